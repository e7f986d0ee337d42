"""Plays a scripted policy in an environment, without any model: for demonstrations, checks and canaries. Torch-free."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from milepost.env import Action, EnvSpec, Observation, Script, State
from milepost.sources import load_function
from milepost.tools import TERSE, Style, parse, split_thought
from milepost.types import Episode, EpisodeId, RecipeError, Sampled, StopKind, StopReason, Task, Turn


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

    @property
    def final_state(self) -> State:
        return self.steps[-1].state if self.steps else self.start_state


def play_script(
    spec: EnvSpec, task: Task, script: Script, seed: int = 0, *, max_turns: int = 1000, style: Style = TERSE,
    seconds: float = 120.0,
) -> Played:  # fmt: skip
    """One episode in an instance of its own, in this process. Scripts write terse calls; `style` writes them anew.

    Raises RecipeError if it takes longer than `seconds`; its thread is then abandoned. What the environment or the script
    raises comes through.
    """
    found: list[Played | BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(_played(spec, task, script, seed, max_turns, style)))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, name="script", daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise RecipeError(
            f"environment {spec.name!r}: a scripted episode of task {task.key} did not end within {seconds:g} seconds; see "
            "where it hangs with `milepost check env`"
        )
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


async def _played(spec: EnvSpec, task: Task, script: Script, seed: int, max_turns: int, style: Style) -> Played:
    env: Any = spec.make()
    try:
        start = await _settled(env.reset(task, seed))
        start_state, steps, ended = await _settled(env.state()), [], False
        for text in script(task, env):
            written = rewritten(text, spec, style)
            action = parse(written, spec.tools, style.format) if spec.tools else Action(written)
            seen = await _settled(env.step(action))
            steps.append(Step(written, action, seen, await _settled(env.state())))
            reached = spec.goal.ends and spec.goal.holds(task, start_state, steps[-1].state)
            ended = seen.ended or seen.truncated or reached
            if ended or len(steps) >= max_turns:
                break
        return Played(start, start_state, tuple(steps), ended)
    finally:
        await _settled(env.close())


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
    return load_function(named, "sft.demonstrations")


def rewritten(text: str, spec: EnvSpec, style: Style) -> str:
    """What a script wrote, with its terse calls in another style, behind its leading thought if there is one.

    A text without calls stays as it is.
    """
    if style.format == "terse" or not spec.tools:
        return text
    thought, _ = split_thought(text)
    calls = [call for call in parse(text, spec.tools).calls if call.error is None]
    return thought + style.write(calls) if calls else text


def problems(spec: EnvSpec, tasks: Sequence[Task], seconds: float = 120.0) -> Iterator[str]:
    """A canary: the gold script still succeeds, and doing nothing still does not. One sentence for each that is wrong."""
    for task in tasks:
        for name, script, expected in (("gold", spec.gold, True), ("empty", _nothing, False)):
            if script is None:
                continue
            try:
                played = play_script(spec, task, script, seconds=seconds)
            except RecipeError as error:
                yield str(error)
                return
            except Exception as error:
                told = " ".join(str(error).split())
                told = f"{type(error).__name__}: {told}"
                yield f"environment {spec.name!r}: the {name} policy at task {task.key} ended in {told}"
                continue
            if spec.goal.holds(task, played.start_state, played.final_state) is not expected:
                verdict = "fails" if expected else "succeeds"
                yield f"environment {spec.name!r}: the {name} policy {verdict} at task {task.key}, so it judges wrongly"


def _nothing(task: Task, env: Any) -> Iterator[str]:
    return iter(())


async def _settled(value: Any) -> Any:
    """The result of a method that may be async."""
    return await value if inspect.isawaitable(value) else value
