"""Plays episodes of many turns in an environment: tokens in, tokens out. Torch-free.

Authors' environments speak in messages and state; here they get tokens, budgets and deadlines. History is appended, never
rendered again; where it is rewritten, a new segment starts with exactly what the policy sees. While one episode waits
for its environment the others decode; quick answers are waited for, so that the same weights give the same bits (pump.py).
The order in which episodes end changes nothing: each has its own noise, and groups are returned in task order.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import is_
from typing import Any

import numpy as np

from milepost.branching import Saved, branches_here, check_branches
from milepost.credit_sections import BranchSection
from milepost.engines.base import Sampler, SampleRequest, SamplingSettings
from milepost.env import Action, EnvSpec, Observation, Script, State, fingerprint, state_key
from milepost.history import History
from milepost.host_main import Garbage
from milepost.hosts import Fault, Host, Hosts
from milepost.pump import Pump
from milepost.recipe import Recipe
from milepost.rollout import Codec, sizes_of
from milepost.scripted import holds, play_script
from milepost.sections import EnvSection
from milepost.tools import Style, parse, split_thought, usage
from milepost.types import Episode, EpisodeId, Group, Message, RecipeError, Sampled, StopKind, StopReason, Task, Turn

_DONE = StopReason(StopKind.TERMINATED, "ended")


@dataclass(frozen=True)
class World:
    """What tasks are played in."""

    spec: EnvSpec
    hosts: Hosts
    limits: EnvSection
    context: int
    """Most tokens of a history, the next action included."""
    seed: int
    asked: Style | None = None
    """How calls are written, where the model's template was asked; else `limits.tool_format` says it."""
    branches: BranchSection | None = None
    """From where further episodes continue each one; None: from nowhere."""

    @property
    def style(self) -> Style:
        if self.asked is not None:
            return self.asked
        if self.limits.tool_format == "model":
            raise RecipeError('env.tool_format = "model" is settled with the model\'s tokenizer, by `open_session`')
        return Style(self.limits.tool_format)

    def start_seed(self, task: Task) -> int:
        """The same for all members of a group, and whenever the task comes again."""
        digest = hashlib.blake2b(f"{self.seed}/{task.key}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big")

    def opening(self, messages: Sequence[Message]) -> list[Message]:
        """What every history begins with: how to act, then what the environment says.

        Tools that the environment's own words do not show are listed after them, unless the chat template shows them.
        """
        spec, style = self.spec, self.style
        parts = [spec.system]
        if not style.schemas:
            listed = () if spec.lists_tools else spec.tools
            parts += [tool.signature() for tool in listed if f"{tool.name}(" not in spec.system]
            parts += [f"{usage(listed, style.format)}."] if listed and style.format != "terse" else []
            parts += [f"{usage(spec.tools, style.format).partition('; ')[0]}."] if spec.lists_tools else []
        system = "\n".join(part for part in parts if part)
        return [*([{"role": "system", "content": system}] if system else []), *messages]

    def reached(self, task: Task, start: State, state: State) -> bool:
        """Whether the goal holds. Raises Garbage where it cannot be said."""
        return bool(_asked("goal", self.spec.goal.holds, task, start, state))

    def summary(self, task: Task, start: State, state: State) -> str:
        """What the environment sums up. Raises Garbage where it cannot."""
        assert self.spec.summary is not None, "check_rule comes first"
        text = _asked("summary", self.spec.summary, task, start, state)
        if not isinstance(text, str) or not text.strip():
            raise Garbage(f"summary returned {text!r:.80}, not a text")
        return text


def _asked(what: str, function: Callable[..., Any], *facts: Any) -> Any:
    """What a function of the environment's author says of facts."""
    try:
        return function(*facts)
    except (Exception, SystemExit) as error:
        raise Garbage(f"{what} raised {type(error).__name__}: {error}") from error


def check_world(recipe: Recipe, spec: EnvSpec) -> None:
    """Refuses what a recipe asks of an environment that does not have it. Raises RecipeError."""
    check_rule(recipe.env, spec)
    check_branches(recipe.credit, spec)


def check_rule(limits: EnvSection, spec: EnvSpec) -> None:
    """Raises RecipeError where full histories are to be summed up by an environment that cannot, or calls counted where
    there are none."""
    if limits.max_tool_calls and not spec.tools:
        raise RecipeError(
            f"env.max_tool_calls = {limits.max_tool_calls} does nothing in {spec.name}, which has no tools; remove it, and "
            "bound its actions with env.max_turns"
        )
    if limits.context_rule == "summary" and spec.summary is None:
        raise RecipeError(
            f'env.context_rule = "summary" needs an environment that sums up (EnvSpec.summary), and {spec.name} does not; '
            'use "drop_oldest" or "stop"'
        )


def play_world(
    tasks: Sequence[Task], sampler: Sampler, codec: Codec, world: World, *, phase: str, step: int,
    num_samples: int | Sequence[int], max_new_tokens: int, settings: SamplingSettings,
) -> list[Group]:  # fmt: skip
    """`num_samples` episodes of each task, in task order; `max_new_tokens` per turn. Raises HostsDown.

    Where the world branches, a group holds its continuations as well, behind its members.
    """
    families: list[list[Episode]] = []
    sizes = sizes_of(num_samples, tasks)

    async def everything() -> None:  # what it returned, asyncio.run would spell out to the last token
        pump = Pump(sampler, settings, patience=world.limits.resolved_patience, num_seats=world.limits.max_concurrent)
        played = [
            asyncio.ensure_future(
                _family(task, EpisodeId(phase, step, task.key, member), size, world, codec, pump, max_new_tokens)
            )
            for task, size in zip(tasks, sizes)
            for member in range(size)
        ]
        try:
            await pump.run(played)
            families.extend(family.result() for family in played)
        finally:
            for episode in played:
                episode.cancel()
            await asyncio.gather(*played, return_exceptions=True)
            pump.close()

    asyncio.run(everything())
    groups = []
    rest = iter(families)
    for task, size in zip(tasks, sizes):
        mine = list(islice(rest, size))
        ordered = [family[0] for family in mine] + [one for family in mine for one in family[1:]]
        groups.append(Group(ordered[0].group_id, task, _same_start(tuple(ordered))))
    return groups


def _same_start(episodes: Sequence[Episode]) -> tuple[Episode, ...]:
    """Members that never started count as started alike. Where starts differ nothing can be compared: the group is refused,
    each of its episodes a fault, which is in no statistic."""
    starts = {e.start_fingerprint for e in episodes if e.start_fingerprint}
    if len(starts) > 1:
        refused = StopReason(StopKind.FAULT, "start")
        return tuple(replace(e, stop=refused, start_fingerprint="") for e in episodes)
    return tuple(replace(e, start_fingerprint="".join(starts)) for e in episodes)


def demonstrate(
    tasks: Sequence[Task], script: Script, codec: Codec, world: World, *, max_new_tokens: int
) -> list[Episode]:  # fmt: skip
    """Episodes as a policy would have played them that writes what the script does: the same contexts, the same ids.

    Where the environment's own script fails, its episode is left out; another script may be as imperfect as it is. What
    would not fit into the context is not shown.
    """
    episodes = []
    for index, task in enumerate(tasks):
        played = play_script(world.spec, task, script, world.start_seed(task), max_turns=world.limits.max_turns,
                             style=world.style, hosts=world.hosts)  # fmt: skip
        failed = not holds(world.spec, task, played.start_state, played.final_state)
        if failed and script is world.spec.gold:
            continue
        history = History(codec, world.opening, world.limits, world.context, played.start.messages)
        room = min(max_new_tokens, world.context // 4)
        turns: list[Turn] = []
        for step in played.steps:
            text = _continued(step.text, codec.opened)
            ids = codec.complete(text)
            if len(history.ids) + len(ids) > world.context:
                break
            sampled = Sampled(ids, np.zeros(len(ids)), 1.0, ((0, 0),), "stop")
            turns.append(Turn(history.new, sampled, text=text, new_segment=history.new_segment))
            history.add(ids, step.observation, room, partial(world.summary, task, played.start_state, step.state))
        if turns:
            name = f"sft/{index}/{task.key}"
            episodes.append(Episode(EpisodeId("sft", index, task.key, 0), name, tuple(turns), _DONE))
    return episodes


def _continued(text: str, opened: str) -> str:
    """What a policy writes in place of `text` behind a header that has opened a thought: its rest, or its end at once."""
    if not opened:
        return text
    thought, rest = split_thought(text)
    return f"{thought.strip().removeprefix(opened).lstrip()}\n\n{rest}" if thought else f"</think>\n\n{text}"


async def _family(
    task: Task, name: EpisodeId, size: int, world: World, codec: Codec, pump: Pump, max_new_tokens: int
) -> list[Episode]:
    """A member of a group, and those who continue from its branch points, numbered behind the group's `size` members."""
    trunk, points = await _play(_Play(task, name, world, codec, pump, max_new_tokens))
    branches = world.branches
    if branches is None or not points or trunk.stop.kind is StopKind.FAULT:
        return [trunk]
    first = size + name.member * branches.most * branches.num
    others = [
        _Play(task, replace_member(name, first + at * branches.num + one), world, codec, pump, max_new_tokens,
              origin=(trunk, saved))
        for at, saved in enumerate(points)
        for one in range(branches.num)
    ]  # fmt: skip
    return [trunk, *[episode for episode, _ in await asyncio.gather(*map(_play, others))]]


def replace_member(name: EpisodeId, member: int) -> EpisodeId:
    return EpisodeId(name.phase, name.step, name.task_key, member, 0)


async def _play(first: _Play) -> tuple[Episode, list[Saved]]:
    """One episode, played anew after a fault of its environment as often as the recipe allows; and its branch points."""
    name = first.name
    async with first.pump.seat(name):
        for attempt in range(first.world.limits.retries + 1):
            own = EpisodeId(name.phase, name.step, name.task_key, name.member, attempt)
            play = replace(first, name=own, turns=[], saved=[])
            episode, again = await play.run()
            if not again:
                break
        return episode, play.saved


@dataclass
class _Play:
    """One attempt at one episode."""

    task: Task
    name: EpisodeId
    world: World
    codec: Codec
    pump: Pump
    max_new_tokens: int
    origin: tuple[Episode, Saved] | None = None
    """The episode that this one continues, and from where."""
    turns: list[Turn] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    """Branch points."""
    num_sampled: int = 0
    num_calls: int = 0
    invalid_in_a_row: int = 0
    num_invalid: int = 0

    async def run(self) -> tuple[Episode, bool]:
        """→ (the episode, whether it should be played anew)."""
        began = time.perf_counter()
        saved = None if self.origin is None else self.origin[1].world
        opened = await self.pump.outside(self.world.hosts.open(self.task, self.world.start_seed(self.task), saved))
        if isinstance(opened, Fault):
            return self._episode(_fault(opened), None, None, began, opened), opened.retryable
        self._begin(opened)
        try:
            stop, fault = await self._turns(opened, began) if self._is_restored(opened) else _lost()
        finally:
            await self.pump.outside(opened.close())
            self.pump.over(self.name)
        return self._episode(stop, self.start, self.state, began, fault), fault is not None and fault.retryable

    def _begin(self, host: Host) -> None:
        """At the start, or where the episode that this one continues was saved."""
        world = self.world
        if self.origin is None:
            self.start = self.state = host.start.state
            self.shown = tuple(host.start.observation.messages)
            self.history = History(self.codec, world.opening, world.limits, world.context, self.shown)
            return
        trunk, saved = self.origin
        self.start, self.shown = trunk.facts["start"], tuple(trunk.facts["messages"])
        self.state, self.history, self.turns = saved.state, saved.history.copy(), list(saved.turns)
        self.num_sampled = sum(len(turn.sampled.ids) for turn in self.turns)
        self.num_calls, self.num_invalid = saved.num_calls, saved.num_invalid
        self.invalid_in_a_row = saved.invalid_in_a_row

    def _is_restored(self, host: Host) -> bool:
        return self.origin is None or fingerprint(host.start.state) == fingerprint(self.state)

    async def _turns(self, host: Host, began: float) -> tuple[StopReason, Fault | None]:
        world, history = self.world, self.history
        room_to_act = min(self.max_new_tokens, world.context // 4)
        while True:
            room, cut = self._room(len(history.ids))
            if room < 1:
                return StopReason(StopKind.TRUNCATED, cut), None
            before, asked = self.state, time.perf_counter()
            sampled = await self.pump.sample(SampleRequest(self.name, len(self.turns), history.ids, room))
            text = self.codec.decode(sampled.ids)
            turn = {"context_ids": history.new, "sampled": sampled, "text": text, "new_segment": history.new_segment,
                    "state_key": state_key(before, world.spec.volatile)}  # fmt: skip
            if sampled.finish != "stop":  # a last action that was cut is not carried out
                self._add(turn, {"state": before, "num_invalid": 0, "num_calls": 0, "cut": True}, asked)
                return StopReason(StopKind.TRUNCATED, "tokens" if sampled.finish == "length" else sampled.finish), None
            action, num_surplus = self._action(text)
            fault = await self._save(host, sampled)
            if fault is not None:
                return _fault(fault), fault
            seen = await self.pump.outside(host.step(action))
            if isinstance(seen, Fault):
                facts = {"state": before, "num_invalid": 0, "num_calls": len(action.calls), "fault": seen.kind}
                self._add(turn, facts, asked)
                return _fault(seen), seen
            self.state, observation = _shared(before, seen.state), seen.observation
            self._count(action, observation)
            malformed = sum(call.error is not None for call in action.calls)
            self._add(turn, {"state": self.state, "num_invalid": observation.num_invalid, "num_calls": len(action.calls),
                             **({"num_malformed": malformed} if malformed else {}),
                             **({"num_surplus": num_surplus} if num_surplus else {}),
                             "messages": [dict(m) for m in observation.messages],
                             "env_seconds": seen.seconds}, asked)  # fmt: skip
            try:
                if stop := self._stop(observation, began):
                    return stop, None
                sum_up = partial(world.summary, self.task, self.start, self.state)
                history.add(sampled.ids, observation, room_to_act, sum_up)
            except Garbage as error:
                fault = Fault("garbage", str(error), False)
                return _fault(fault), fault

    async def _save(self, host: Host, sampled: Sampled) -> Fault | None:
        """Keeps the state before this turn, if others are to continue from it."""
        section = self.world.branches
        if section is None or self.origin is not None or len(self.saved) >= section.most:
            return None
        if section.trunks and self.name.member >= section.trunks:
            return None
        states = [self.start, *(turn.facts["state"] for turn in self.turns)]
        if not branches_here(section, self.world.spec, self.task, self.name, self.turns, states, sampled, self.world.seed):
            return None
        if not host.can_snapshot:
            raise RecipeError(
                f'credit.rule = "branch" needs an environment that can be saved (snapshot and restore), and '
                f'{self.world.spec.name} cannot; use credit.rule = "anchor" or "episode"'
            )
        world = await self.pump.outside(host.snapshot())
        if isinstance(world, Fault):
            return world
        self.saved.append(Saved(world, self.history.copy(), self.state, tuple(self.turns), self.num_calls,
                                self.num_invalid, self.invalid_in_a_row))  # fmt: skip
        return None

    def _action(self, text: str) -> tuple[Action, int]:
        """The calls in the text, no more of them than are left (one text can hold thousands); how many are too many."""
        spec, limits = self.world.spec, self.world.limits
        text = self.codec.opened + text
        if not spec.tools:
            return Action(text), 0
        action = parse(text, spec.tools, self.world.style.format)
        left = limits.max_tool_calls - self.num_calls if limits.max_tool_calls else len(action.calls)
        return replace(action, calls=action.calls[:left]), max(0, len(action.calls) - left)

    def _count(self, action: Action, observation: Observation) -> None:
        self.num_calls += len(action.calls)
        self.num_invalid += observation.num_invalid
        self.invalid_in_a_row = self.invalid_in_a_row + 1 if observation.num_invalid else 0

    def _room(self, history: int) -> tuple[int, str]:
        """Tokens that the next action may have, and the budget that would cut it."""
        limits = self.world.limits
        rooms = [(self.max_new_tokens, "tokens"), (self.world.context - history, "context")]
        if limits.max_episode_tokens:
            rooms.append((limits.max_episode_tokens - self.num_sampled, "tokens"))
        return min(rooms)

    def _stop(self, observation: Observation, began: float) -> StopReason | None:
        """The checks after a turn, always in this order."""
        limits = self.world.limits
        if self.world.spec.goal.ends and self.world.reached(self.task, self.start, self.state):
            return StopReason(StopKind.TERMINATED, "goal")
        if observation.ended:
            return StopReason(StopKind.TERMINATED, "ended")
        if observation.truncated:
            return StopReason(StopKind.TRUNCATED, "environment")
        if self.invalid_in_a_row >= limits.max_invalid:
            return StopReason(StopKind.TRUNCATED, "invalid_actions")
        if len(self.turns) >= limits.max_turns:
            return StopReason(StopKind.TRUNCATED, "turns")
        if limits.max_tool_calls and self.num_calls >= limits.max_tool_calls:
            return StopReason(StopKind.TRUNCATED, "tool_calls")
        if limits.max_episode_tokens and self.num_sampled >= limits.max_episode_tokens:
            return StopReason(StopKind.TRUNCATED, "tokens")
        if limits.max_seconds and time.perf_counter() - began >= limits.max_seconds:
            return StopReason(StopKind.TRUNCATED, "time")
        return None

    def _add(self, turn: dict[str, Any], facts: dict[str, Any], began: float) -> None:
        self.turns.append(Turn(**turn, facts=facts, seconds=time.perf_counter() - began))
        self.num_sampled += len(self.turns[-1].sampled.ids)

    def _episode(
        self, stop: StopReason, start: State | None, final: State | None, began: float, fault: Fault | None
    ) -> Episode:
        facts: dict[str, Any] = {"env": self.world.spec.name, "version": self.world.spec.version, "start": start,
                                 "final": final, "num_calls": self.num_calls, "num_invalid": self.num_invalid}  # fmt: skip
        if start is not None:
            facts["messages"] = [dict(message) for message in self.shown]
        if fault is not None:
            facts["fault"] = fault.detail
        group = f"{self.name.phase}/{self.name.step}/{self.name.task_key}"
        branch_of = None if self.origin is None else (self.origin[0].id, len(self.origin[1].turns))
        return Episode(self.name, group, tuple(self.turns), stop, branch_of, facts=facts,
                       seconds=time.perf_counter() - began,
                       start_fingerprint="" if start is None else fingerprint(start))  # fmt: skip


def _shared(before: Any, after: Any) -> Any:
    """`after`, made of the parts of `before` wherever they are equal: every turn keeps its state, and most of a world stays
    as it is. States are never written to."""
    if type(before) is not type(after):
        return after
    if isinstance(after, dict):
        made = {key: _shared(before[key], value) if key in before else value for key, value in after.items()}
        return before if before.keys() == made.keys() and all(before[key] is made[key] for key in made) else made
    if isinstance(after, list):
        items = [_shared(*pair) for pair in zip(before, after)] + after[len(before) :]
        return before if len(before) == len(items) and all(map(is_, before, items)) else items
    return before if repr(before) == repr(after) else after  # 0.0 is not −0.0


def _lost() -> tuple[StopReason, Fault]:
    fault = Fault("garbage", "restore() led to another state than the one that snapshot() was asked to save", False)
    return _fault(fault), fault


def _fault(fault: Fault) -> StopReason:
    return StopReason(StopKind.FAULT, fault.kind)
