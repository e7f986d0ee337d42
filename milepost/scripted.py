"""Plays a scripted policy in an environment, without any model: for demonstrations, checks and canaries. Torch-free."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from milepost.env import Action, EnvSpec, Observation, Script, State
from milepost.host_main import GOLD, KNOWN_BAD
from milepost.hosts import Fault, Hosts
from milepost.sources import load_function
from milepost.tools import TERSE, Style, parse, split_thought
from milepost.types import Episode, EpisodeId, MilepostError, RecipeError, Sampled, StopKind, StopReason, Task, Turn


@dataclass(frozen=True)
class Step:
    """One turn: what the script wrote, what the environment answered, the facts after it."""

    text: str
    action: Action
    observation: Observation
    state: State


@dataclass(frozen=True)
class Played:
    """A whole scripted episode. `ended`: the world was over or the goal reached; else the script had nothing more to do."""

    start: Observation
    start_state: State
    steps: tuple[Step, ...]
    ended: bool
    unclosed: str | None = None
    """Why the environment could not be closed."""

    @property
    def final_state(self) -> State:
        return self.steps[-1].state if self.steps else self.start_state


@dataclass(frozen=True)
class Texts:
    """The script that writes these, whatever happens."""

    texts: tuple[str, ...]

    def __call__(self, task: Task, env: Any) -> Iterator[str]:
        return iter(self.texts)


@dataclass(frozen=True)
class Named:
    """A script of somebody's own, and what another process can find it by: module:function or file.py:function."""

    name: str
    script: Script

    def __call__(self, task: Task, env: Any) -> Iterator[str]:
        return self.script(task, env)


NOTHING = Texts(())


class Unplayable(RecipeError):
    """A scripted episode that was not played to its end. `detail`: in what and why, such as "step: ValueError: no"."""

    def __init__(self, spec: EnvSpec, task: Task, detail: str) -> None:
        self.detail = " ".join(detail.split()).rstrip(": ")
        super().__init__(
            f"environment {spec.name!r}: a scripted episode of task {task.key} ended in {self.detail}; "
            "`milepost check env` shows where"
        )


def play_script(
    spec: EnvSpec, task: Task, script: Script, seed: int = 0, *, max_turns: int = 1000, style: Style = TERSE,
    seconds: float = 60.0, hosts: Hosts | None = None,
) -> Played:  # fmt: skip
    """One episode in an instance of its own: one of `hosts`, as other episodes are, or of this process, where each answer
    gets `seconds`. Scripts write terse calls; `style` writes them anew.

    Raises Unplayable if the environment or the script fails, hangs, or ends its process, RecipeError for a script that
    cannot be sent to isolated hosts, and HostsDown.
    """
    if hosts is None:
        with Hosts(spec, 1, step_seconds=seconds, reset_seconds=seconds, num_retries=0) as own:
            return play_script(spec, task, script, seed, max_turns=max_turns, style=style, hosts=own)
    sent = _name_of(script, spec) if hosts.isolated else script
    found: list[Played | Unplayable] = []  # what it returned, asyncio.run would spell out to the last step

    async def play() -> None:
        try:
            found.append(await _played(spec, task, sent, seed, max_turns, style, hosts))
        except Unplayable as error:
            found.append(error)

    asyncio.run(play())
    if isinstance(found[0], Unplayable):
        raise found[0]
    return found[0]


async def _played(
    spec: EnvSpec, task: Task, script: Script | str, seed: int, max_turns: int, style: Style, hosts: Hosts
) -> Played:
    host = _sound(await hosts.open(task, seed), spec, task)
    steps, ended = list[Step](), False
    ready = iter(script.texts) if isinstance(script, Texts) else None
    try:
        while not ended and len(steps) < max_turns:
            text = next(ready, None) if ready else _sound(await host.write(script), spec, task)
            if text is None:
                break
            written = rewritten(text, spec, style)
            action = parse(written, spec.tools, style.format) if spec.tools else Action(written)
            seen = _sound(await host.step(action), spec, task)
            steps.append(Step(written, action, seen.observation, seen.state))
            reached = spec.goal.ends and holds(spec, task, host.start.state, seen.state)
            ended = seen.observation.ended or seen.observation.truncated or reached
    finally:
        await host.close()
    unclosed = host.unclosed.splitlines()[0] if host.unclosed else None
    return Played(host.start.observation, host.start.state, tuple(steps), ended, unclosed)


def _sound(answer: Any, spec: EnvSpec, task: Task) -> Any:
    """The answer itself. Raises Unplayable for a fault."""
    if isinstance(answer, Fault):
        raise Unplayable(spec, task, answer.detail.splitlines()[0])
    return answer


def holds(spec: EnvSpec, task: Task, start: State, state: State) -> bool:
    """The goal. Raises Unplayable if it raises."""
    try:
        return spec.goal.holds(task, start, state)
    except (Exception, SystemExit) as error:
        raise Unplayable(spec, task, f"goal: {type(error).__name__}: {error}") from error


def _name_of(script: Script, spec: EnvSpec) -> Script | str:
    """What can be sent to another process instead of the script; texts need not be."""
    if isinstance(script, Texts):
        return script
    if script is spec.gold:
        return GOLD
    bad = next((name for name, other in spec.known_bad.items() if other is script), None)
    if bad is None and not isinstance(script, Named):
        raise RecipeError(
            f"environment {spec.name!r}: the script {script!r:.80} cannot be played in another process; name it "
            "module:function, or set env.isolated = false"
        )
    return script.name if isinstance(script, Named) else KNOWN_BAD + str(bad)


def episode_of(played: Played, task: Task, member: int = 0) -> Episode:
    """The facts that a stored episode would hold, for judges. No model wrote it: a token stands for 4 characters."""
    turns = []
    for step in played.steps:
        num_tokens = len(step.text) // 4 + 1
        facts = {"state": step.state, "num_invalid": step.observation.num_invalid, "num_calls": len(step.action.calls),
                 "messages": [dict(message) for message in step.observation.messages]}  # fmt: skip
        sampled = Sampled(np.zeros(num_tokens), np.zeros(num_tokens), 1.0, ((0, 0),), "stop")
        turns.append(Turn(np.zeros(0), sampled, step.text, facts=facts))
    stop = StopReason(StopKind.TERMINATED, "ended") if played.ended else StopReason(StopKind.TRUNCATED, "turns")
    ends = {"start": played.start_state, "final": played.final_state,
            "messages": [dict(message) for message in played.start.messages]}  # fmt: skip
    name = EpisodeId("scripted", 0, task.key, member)
    return Episode(name, f"scripted/0/{task.key}", tuple(turns), stop, facts=ends)


def demonstrator(named: str, spec: EnvSpec) -> Script:
    """What `sft.demonstrations` names: "gold", the environment's own script, or module:function. Raises RecipeError."""
    if named == "gold" and spec.gold is not None:
        return spec.gold
    if named == "gold":
        raise RecipeError(
            f'sft.demonstrations = "gold", but environment {spec.name!r} has no gold script; name your own, module:function'
        )
    if ":" not in named or "{" in named:
        raise RecipeError(
            f'sft.demonstrations = {named!r} demonstrates nothing in environment {spec.name!r}; use "gold", or a script of '
            "(task, environment) as module:function"
        )
    return Named(named, load_function(named, "sft.demonstrations"))


def rewritten(text: str, spec: EnvSpec, style: Style) -> str:
    """What a script wrote, with its terse calls in another style, behind its leading thought if there is one.

    A text without calls stays as it is.
    """
    if style.format == "terse" or not spec.tools:
        return text
    thought, _ = split_thought(text)
    calls = [call for call in parse(text, spec.tools).calls if call.error is None]
    return thought + style.write(calls) if calls else text


def problems(spec: EnvSpec, tasks: Sequence[Task], hosts: Hosts | None = None) -> Iterator[str]:
    """A canary: the gold script still succeeds, and doing nothing still does not. One sentence for each that is wrong."""
    for task in tasks:
        for name, script, expected in (("gold", spec.gold, True), ("empty", NOTHING, False)):
            if script is None:
                continue
            try:
                played = play_script(spec, task, script, hosts=hosts)
                if played.unclosed:  # training would count and survive it, and wait as long after every episode
                    raise Unplayable(spec, task, played.unclosed)
                succeeds = holds(spec, task, played.start_state, played.final_state)
            except MilepostError as error:
                yield str(error).replace("a scripted episode of", f"the {name} policy at")
                return
            if succeeds is not expected:
                verdict = "fails" if expected else "succeeds"
                yield f"environment {spec.name!r}: the {name} policy {verdict} at task {task.key}, so it judges wrongly"
