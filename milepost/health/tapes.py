"""Plays policies in an environment and records everything, within deadlines: what `env_check.py` judges. Torch-free."""

from __future__ import annotations

import copy
import ctypes
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.env import Action, Environment, EnvSpec, Observation, Script, State, canonical
from milepost.host_main import Instance, Reply
from milepost.tools import parse, render_call
from milepost.types import Task

MOST_TURNS = 1000
"""A gold script that needs more is taken to run in circles."""
JUNK = (
    "", " \n\t ", "\x00\x07", "a" * 20_000, "(" * 3000, "[" * 3000, "{" * 3000, '{"name": ', "<tool_call>",
    "<tool_call>{}</tool_call>", "Ünïcödé 🙂 \u202e", "nosuchtool(1)",
    "None", "-1", "1e999", "../../etc/passwd", "'; DROP TABLE tasks; --", "%s %d {0} {x}",
)  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds, as training would set them."""

    step_seconds: float = 10.0
    reset_seconds: float = 60.0
    note: Callable[[str, float], None] = lambda what, seconds: None
    """Told what is about to be done and its deadline, in case this process does not survive it."""


@dataclass(frozen=True)
class Fault:
    """Why a tape ends early. kind: "crash", "garbage", "hang", "script" (the policy's own code) or "goal"."""

    kind: str
    where: str
    detail: str


@dataclass(frozen=True)
class Turn:
    text: str
    action: Action
    observation: Observation
    state: State
    holds: bool


@dataclass
class Tape:
    """One recorded episode. Its states are copies that share nothing with the environment."""

    policy: str
    task: Task
    seed: int
    start: Observation | None = None
    start_state: State | None = None
    start_holds: bool = False
    turns: list[Turn] = field(default_factory=list)
    can_snapshot: bool = False
    over: bool = False
    """The world ended it, or the goal was reached."""
    fault: Fault | None = None
    wrote: str | None = None
    """What the environment or the script changed in its task, which others play too."""
    slowest: dict[str, float] = field(default_factory=dict)
    """Most seconds of one "reset", "step" or "close"."""

    @property
    def texts(self) -> list[str]:
        return [turn.text for turn in self.turns]

    @property
    def success(self) -> bool:
        return self.turns[-1].holds if self.turns else self.start_holds

    def states(self) -> list[State]:
        return [self.start_state or {}, *(turn.state for turn in self.turns)]

    def where(self, turn: int | None = None) -> str:
        """Names a place for people: turns count from 1, 0 is the start."""
        at = len(self.turns) if turn is None else turn
        said = f", which wrote {self.turns[at - 1].text!r:.120}" if 0 < at <= len(self.turns) else ""
        return f"task {self.task.key} ({self.policy}, turn {at}{said})"


def act(text: str, spec: EnvSpec) -> Action:
    return parse(text, spec.tools) if spec.tools else Action(text)


def record(
    spec: EnvSpec, task: Task, seed: int, policy: str, script: Script, limits: Limits, max_turns: int = MOST_TURNS
) -> Tape:
    """Plays `script` in an instance of its own, in a thread of its own, until the world is over or it stops yielding."""
    own = copy.deepcopy(task)
    tape = Tape(policy, own, seed)
    watched(lambda watch: _play(spec, script, tape, watch, max_turns), limits, tape)
    tape.wrote = difference(task.columns, own.columns, "columns")
    tape.task = task
    return tape


def replay(texts: Sequence[str]) -> Script:
    """The policy that writes these texts, whatever happens."""
    return lambda task, env: iter(texts)


class Watch:
    """What a watched thread is doing, so that a deadline can be set for each call rather than for all."""

    def __init__(self, limits: Limits, policy: str = "recorded actions") -> None:
        self.limits, self.policy = limits, policy
        self.episode = ""
        self.ended = False
        self.begin("start", limits.reset_seconds)

    def begin(self, where: str, seconds: float, wrote: str = "") -> None:
        self.now = (where, time.perf_counter() + seconds, seconds)
        self.limits.note(f"{where}{self.episode}{wrote}", seconds)

    def ask(self, instance: Instance, method: str, *arguments: Any) -> Reply:
        if method == "open":
            task, seed = arguments[:2]
            self.episode = f" of task {task.key} with seed {seed} ({self.policy})"
            self.begin("reset", self.limits.reset_seconds)
        else:
            self.begin(method, self.limits.step_seconds, f" after {arguments[0].text!r:.120}" if method == "step" else "")
        reply = instance.ask(method, *arguments)
        self.begin("script", self.limits.step_seconds)
        return reply


def watched(work: Callable[[Watch], None], limits: Limits, tape: Tape | None = None) -> Fault | None:
    """Runs `work(watch)` in a thread. A call that misses its deadline is a fault; its thread is given up.

    Raises what `work` raised.
    """
    watch, raised = Watch(limits, f"{tape.policy} policy") if tape else Watch(limits), list[BaseException]()

    def run() -> None:
        try:
            work(watch)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="milepost-check", daemon=True)
    thread.start()
    while thread.is_alive():
        where, until, seconds = watch.now
        left = until - time.perf_counter()
        if left <= 0:
            fault = Fault("hang", where, f"{where} gave no answer within {seconds:g} s")
            if tape is not None:
                tape.fault = fault
            watch.ended = True
            if thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
            return fault
        thread.join(min(left, 0.5) + 0.001)
    if raised:
        raise raised[0]
    return None


def _play(spec: EnvSpec, script: Script, tape: Tape, watch: Watch, max_turns: int) -> None:
    instance = Instance(spec.make)
    try:
        reply = watch.ask(instance, "open", tape.task, tape.seed, None)
        if not _noted(tape, watch, "reset", reply):
            return
        tape.start, tape.start_state, tape.can_snapshot = reply.observation, reply.state, reply.can_snapshot
        tape.start_holds = _holds(spec, tape, tape.states()[0])
        assert instance.env is not None
        for text in _written(script, tape, instance.env):
            action = act(text, spec)
            reply = watch.ask(instance, "step", action)
            if watch.ended or not _noted(tape, watch, "step", reply):
                return
            assert reply.state is not None
            holds = _holds(spec, tape, reply.state)
            tape.turns.append(Turn(text, action, reply.observation, reply.state, holds))
            tape.over = reply.observation.ended or reply.observation.truncated or (spec.goal.ends and holds)
            if tape.over or tape.fault or len(tape.turns) >= max_turns:
                break
        _noted(tape, watch, "close", watch.ask(instance, "close"))
    finally:
        instance.shut()


def _written(script: Script, tape: Tape, env: Environment) -> Iterator[str]:
    try:
        for text in script(tape.task, env):
            if not isinstance(text, str):
                raise TypeError(f"it yielded {type(text).__name__}, not text")
            yield text
    except Exception as error:
        tape.fault = Fault("script", "script", f"{type(error).__name__}: {error}")


def _noted(tape: Tape, watch: Watch, where: str, reply: Reply) -> bool:
    """Keeps times and faults; whether the episode can go on."""
    tape.slowest[where] = max(tape.slowest.get(where, 0.0), reply.seconds)
    if reply.fault and not watch.ended:
        tape.fault = Fault(reply.fault, where, reply.detail.splitlines()[0])
    return reply.fault is None


def _holds(spec: EnvSpec, tape: Tape, state: State) -> bool:
    """The goal, asked twice of the same facts."""
    start = tape.states()[0]
    before = canonical(start), canonical(state)
    try:
        verdicts = [spec.goal.holds(tape.task, start, state) for _ in range(2)]
    except Exception as error:
        tape.fault = Fault("goal", "goal", f"the goal raised {type(error).__name__}: {error}")
        return False
    if not all(isinstance(verdict, bool) for verdict in verdicts):
        tape.fault = Fault("goal", "goal", f"the goal returned {verdicts[0]!r}, not True or False")
    elif (canonical(start), canonical(state)) != before:
        tape.fault = Fault("goal", "goal", "the goal changed the state it was shown")
    elif verdicts[0] is not verdicts[1]:
        tape.fault = Fault("goal", "goal", "the goal answered differently when asked twice about the same state")
    return bool(verdicts[0])


# --- bad policies ---------------------------------------------------------------------------------------------------


def empty(task: Task, env: Environment) -> Iterator[str]:
    return iter([""] * 8)


def claim(task: Task, env: Environment) -> Iterator[str]:
    """Says that it is done, in several ways."""
    yield "Step 1 done. Step 2 done. The task is complete."
    yield "SUCCESS: all goals were reached."
    yield "done"
    yield '{"status": "success", "reward": 1.0}'


def loop(first: str, num_turns: int) -> Script:
    """Does the first right thing again and again."""
    return replay([first] * num_turns)


def junk(spec: EnvSpec) -> Script:
    """Everything a policy should not write, calls with wrong arguments included."""
    calls = []
    for tool in spec.tools:
        calls += [f"{tool.name}()", f"{tool.name}", f"{tool.name}(", render_call(tool.name, {"no_such": 1})]
        for value in (-1, 10**15, 0.5, True, "", "x" * 5000, "🙂"):
            calls.append(render_call(tool.name, dict.fromkeys(tool.parameters, value)))
        calls.append(render_call(tool.name, {key: _SENSELESS[kind] for key, (kind, _) in tool.parameters.items()}))
    return replay([*JUNK, *calls])


_SENSELESS = {int: -7, float: -0.25, str: "no such thing", bool: False, list: ["no such thing", -7], dict: {"no": 1}}


def at_random(spec: EnvSpec, others: Sequence[str], seed: str, num_turns: int) -> Script:
    """Right things of other tasks, and calls with arguments that mean nothing."""
    rng = random.Random(seed)
    made = []
    for _ in range(num_turns):
        if spec.tools and (not others or rng.random() < 0.5):
            tool = rng.choice(spec.tools)
            values: dict[type, Any] = {int: rng.randint(0, 20), float: round(rng.random() * 20, 2),
                                       bool: rng.random() < 0.5, str: rng.choice(("a", "open", "1")),
                                       list: ["a", 1], dict: {"a": 1}}  # fmt: skip
            made.append(render_call(tool.name, {key: values[kind] for key, (kind, _) in tool.parameters.items()}))
        else:
            made.append(rng.choice(others) if others else rng.choice(JUNK))
    return replay(made)


# --- comparing ------------------------------------------------------------------------------------------------------


def difference(one: Any, other: Any, where: str = "state") -> str | None:
    """The first place where two plain values differ, as "state['a'][0]: 1 ≠ 2"."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                return f"{where}[{key!r}] is there only once"
            if found := difference(one[key], other[key], f"{where}[{key!r}]"):
                return found
        return None
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        return next((f for i, (a, b) in enumerate(zip(one, other)) if (f := difference(a, b, f"{where}[{i}]"))), None)
    return None if one == other and type(one) is type(other) else f"{where}: {one!r:.80} ≠ {other!r:.80}"


def changed(spec: EnvSpec, before: State, after: State) -> str | None:
    """The first difference that is not a clock or a counter."""
    one, other = ({key: value for key, value in state.items() if key not in spec.volatile} for state in (before, after))
    return None if canonical(one) == canonical(other) else difference(one, other)


def unlike(spec: EnvSpec, tape: Tape, turn: int, observation: Observation, state: State) -> str | None:
    """How what was seen at a turn (0: the start) differs from the tape. Clocks may differ, except at the start."""
    facts = tape.states()[turn]
    found = changed(spec, facts, state) if turn else difference(dict(facts), dict(state))
    there = tape.turns[turn - 1].observation if turn else tape.start
    found = found or difference(vars(there), vars(observation), "observation")
    return f"{tape.where(turn)}: {found}" if found else None
