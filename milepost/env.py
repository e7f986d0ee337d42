"""The world a task is played in: messages in, messages out, plain facts after every step. Torch-free.

Authors write an `Environment` (reset, step, state, close) and describe it with an `EnvSpec`; they never see a token.
Budgets, deadlines, parsing of tool calls and clean-up belong to the wrapper that plays it.

    task → reset → Observation → (policy writes an Action) → step → Observation → … → state → outcome

Whether an episode succeeded, and whether the world ends it, are one predicate: `EnvSpec.goal`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from milepost.types import Message, Task

State = Mapping[str, Any]
"""The facts of the world now: JSON-able, nothing but str keys, lists, numbers, texts, booleans and None. What success,
milestones and costs are read from. Never text that the policy wrote about itself."""


@dataclass(frozen=True)
class Call:
    """One tool call as the policy wrote it. `error`: why it cannot be carried out (one sentence); then nothing is."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Action:
    """What the policy did in one turn: the text it wrote, and the tool calls found in it."""

    text: str
    calls: tuple[Call, ...] = ()
    format: str = "terse"
    """How calls are written: terse, hermes or llama. For what is said about calls."""


@dataclass(frozen=True)
class Observation:
    """What the policy sees next.

    `ended`: the world is over (Gymnasium's terminated). `truncated`: a limit of the environment's own ended it.
    `num_invalid`: actions of this step that were refused or not understood; such a step changed nothing by them.
    `history`: if given, the whole conversation was rewritten to these messages, and a new segment starts.
    """

    messages: tuple[Message, ...] = ()
    ended: bool = False
    truncated: bool = False
    num_invalid: int = 0
    history: tuple[Message, ...] | None = None


@runtime_checkable
class Environment(Protocol):
    """One instance plays one episode. Any method may be async. An exception is a fault of the environment, never of the
    policy: whatever a policy can write must be answered with an observation."""

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """The start state and the first messages. The same (task, seed) always gives the same start."""
        ...

    def step(self, action: Action) -> Observation | Awaitable[Observation]: ...

    def state(self) -> State:
        """A copy of all facts. Later steps do not change what was returned."""
        ...

    def close(self) -> None:
        """Frees everything; also called after an exception, and perhaps twice."""
        ...


@runtime_checkable
class Snapshots(Protocol):
    """For environments that can be saved and continued: what branching needs."""

    def snapshot(self) -> bytes: ...

    def restore(self, saved: bytes) -> None:
        """Puts a fresh instance, or this one, into the saved state, randomness included."""
        ...


@dataclass(frozen=True)
class Tool:
    """One tool as the policy sees it. `parameters`: name → (type, required); types are str, int, float, bool,
    and list and dict of plain values."""

    name: str
    parameters: Mapping[str, tuple[type, bool]]
    doc: str = ""
    """At most one short line; it stands in every prompt."""

    def signature(self) -> str:
        """Terse, as prompts show it: `refund(order: int, note?: str)`."""
        parts = (f"{name}{'' if required else '?'}: {kind.__name__}" for name, (kind, required) in self.parameters.items())
        return f"{self.name}({', '.join(parts)})"


Predicate = Callable[[Task, State, State], bool]
"""(task, start state, state now) → bool. For milestones: (task, state before the step, state after it)."""


@dataclass(frozen=True)
class Goal:
    """Success, read from persisted state alone, "nothing else was changed" included.

    `ends`: the world ends the episode as soon as it holds. Otherwise the policy says when it is done, and the very same
    predicate judges the state it left.
    """

    holds: Predicate
    ends: bool = True


@dataclass(frozen=True)
class Milestone:
    """A state transition worth a reward, paid once per episode; what it pays stands in the recipe.

    event: latched once `reached(task, before, after)` was true for some step. state: held while `reached(task, start, now)`
    is true, taken back when it is undone. `after` names milestones that must have been reached before.
    """

    name: str
    reached: Predicate
    kind: Literal["event", "state"] = "event"
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """Something an episode uses up, counted from its facts; free allowance, weight and cap stand in the recipe.

    `amount(task, states)`: how many units an episode with these states (start, after turn 1, …) used.
    """

    name: str
    unit: str
    amount: Callable[[Task, Sequence[State]], float]


Potential = Callable[[Task, State, State], float]
"""(task, start state, state now) → how near the goal is, from 0 to 1. For shaping, which takes it as 0 at every end."""


Script = Callable[[Task, Environment], Iterator[str]]
"""A scripted policy: yields what it writes, turn by turn, after the environment was reset. The gold one may look into the
state; a known-bad one shows a way to cheat or to fail. It stops yielding when it has nothing more to do."""


@dataclass(frozen=True)
class EnvSpec:
    """All there is to know about a kind of environment. Recipes name it: "calc", "module:object" or "file.py:object"."""

    name: str
    version: str
    """Stored with every run and compared on resume: another grammar of actions is another environment."""
    make: Callable[[], Environment]
    generate: Callable[..., Iterator[Mapping[str, Any]]]
    """generate(size, seed, **difficulty) → task rows: prompt (text, shown first by `reset`) and columns."""
    goal: Goal
    tools: tuple[Tool, ...] = ()
    """Empty: actions are plain text."""
    lists_tools: bool = False
    """Its own messages list the tools that the task at hand permits, so that nobody else lists all there are."""
    milestones: tuple[Milestone, ...] = ()
    costs: tuple[Cost, ...] = ()
    potential: Potential | None = None
    """What `reward.potential` weighs."""
    gold: Script | None = None
    known_bad: Mapping[str, Script] = field(default_factory=dict)
    volatile: tuple[str, ...] = ()
    """Top-level keys of the state that say nothing about where the episode is: clocks, counters, ids."""
    summary: Callable[[Task, State, State], str] | None = None
    """summary(task, start state, state now) → what the policy has seen and done so far, in a few plain words: what it goes
    on from when its context is full (`env.context_rule = "summary"`). Only what it has seen or done itself: never what it
    is still to find out, nor what is wanted of it beyond the prompt."""
    system: str = ""
    """Shown before every task: what the world is and how to act in it. Short; it is paid for in every episode."""
    seeded: bool | None = None
    """Whether the seed of `reset` makes a task another, in what is seen or in the state. False: the task alone decides.
    None: not said, and `milepost check env` cannot tell a seed that was forgotten from one that is not needed."""
    luck: float = 0.05
    """Share of tasks that random actions may solve before `milepost check env` says that success means little."""


def canonical(state: State) -> str:
    """JSON with sorted keys: equal states give equal texts. Raises TypeError for anything that is not plain JSON."""
    return json.dumps(state, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def fingerprint(state: State) -> str:
    """16 hex digits of all facts: equal if and (collisions aside) only if the states are."""
    return hashlib.blake2b(canonical(state).encode(), digest_size=8).hexdigest()


def state_key(state: State, volatile: Sequence[str]) -> str:
    """What counts as "the same state" for credit: the fingerprint without clocks and counters."""
    return fingerprint({key: value for key, value in state.items() if key not in volatile})
