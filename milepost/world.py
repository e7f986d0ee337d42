"""Plays episodes of many turns in an environment: tokens in, tokens out. Torch-free.

Authors' environments speak in messages and state; here they get tokens, budgets and deadlines. History is appended, never
rendered again; where it is rewritten, a new segment starts with exactly what the policy sees. While one episode waits
for its environment the others decode. In-process environments are waited for, so that the same weights give the same
bits; isolated ones are not. The order in which episodes end changes nothing: each has its own noise, and groups are
returned in task order.
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

from milepost.engines.base import Sampler, SampleRequest, SamplingSettings, Talk
from milepost.env import Action, EnvSpec, Observation, Script, State, fingerprint, state_key
from milepost.history import History
from milepost.host_main import Garbage
from milepost.hosts import Fault, Host, Hosts
from milepost.rollout import Codec, sizes_of
from milepost.scripted import play_script
from milepost.sections import EnvSection
from milepost.tools import Style, parse, split_thought, usage
from milepost.types import Episode, EpisodeId, Group, Message, RecipeError, Sampled, StopKind, StopReason, Task, Turn

_PATIENCE = 0.02
"""Seconds that a decoding step waits for isolated environments: short beside the step, long for a quick tool."""
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
    except Exception as error:
        raise Garbage(f"{what} raised {type(error).__name__}: {error}") from error


def check_rule(limits: EnvSection, spec: EnvSpec) -> None:
    """Raises RecipeError where full histories are to be summed up by an environment that cannot."""
    if limits.context_rule == "summary" and spec.summary is None:
        raise RecipeError(
            f'env.context_rule = "summary" needs an environment that sums up (EnvSpec.summary), and {spec.name} does not; '
            'use "drop_oldest" or "stop"'
        )


def play_world(
    tasks: Sequence[Task], sampler: Sampler, codec: Codec, world: World, *, phase: str, step: int,
    num_samples: int | Sequence[int], max_new_tokens: int, settings: SamplingSettings,
) -> list[Group]:  # fmt: skip
    """`num_samples` episodes of each task, in task order; `max_new_tokens` per turn. Raises HostsDown."""

    episodes: list[Episode] = []
    sizes = sizes_of(num_samples, tasks)

    async def everything() -> None:  # what it returned, asyncio.run would spell out to the last token
        pump = _Pump(sampler, settings, wait=not world.limits.isolated)
        seats = asyncio.Semaphore(world.limits.max_concurrent)
        played = [
            asyncio.ensure_future(
                _play(task, EpisodeId(phase, step, task.key, member), world, codec, pump, seats, max_new_tokens)
            )
            for task, size in zip(tasks, sizes)
            for member in range(size)
        ]
        try:
            await pump.run(played)
            episodes.extend(episode.result() for episode in played)
        finally:
            for episode in played:
                episode.cancel()
            await asyncio.gather(*played, return_exceptions=True)
            pump.close()

    asyncio.run(everything())
    groups = []
    rest = iter(episodes)
    for task, size in zip(tasks, sizes):
        mine = tuple(islice(rest, size))
        groups.append(Group(mine[0].group_id, task, _same_start(mine)))
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
                             style=world.style,
                             seconds=world.limits.reset_seconds + world.limits.step_seconds)  # fmt: skip
        failed = not world.spec.goal.holds(task, played.start_state, played.final_state)
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


class _Pump:
    """Feeds the sampler: requests of all episodes join one conversation; each is answered when its turn is sampled."""

    def __init__(self, sampler: Sampler, settings: SamplingSettings, *, wait: bool) -> None:
        self.sampler, self.settings, self.wait = sampler, settings, wait
        self.talk: Talk | None = None
        self.queue: list[tuple[SampleRequest, asyncio.Future[Sampled]]] = []
        self.answers: dict[EpisodeId, asyncio.Future[Sampled]] = {}
        self.num_outside = 0
        """Episodes that are with their environment."""
        self.moved = asyncio.Event()

    async def sample(self, request: SampleRequest) -> Sampled:
        answer: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self.queue.append((request, answer))
        self.moved.set()
        return await answer

    async def outside(self, work: Any) -> Any:
        """Awaits what an environment does, while others decode."""
        self.num_outside += 1
        try:
            return await work
        finally:
            self.num_outside -= 1
            self.moved.set()

    def over(self, episode: EpisodeId) -> None:
        if self.talk is not None:
            self.talk.release(episode)

    async def run(self, played: Sequence[asyncio.Future[Episode]]) -> None:
        for episode in played:
            episode.add_done_callback(lambda _: self.moved.set())
        while True:
            await self._settle()
            for episode in played:
                if episode.done() and not episode.cancelled() and (error := episode.exception()):
                    raise error
            if all(episode.done() for episode in played):
                return
            self._join()
            if self.talk is not None and self.talk.num_active:
                for request, sampled in self.talk.step():
                    self.answers.pop(request.episode).set_result(sampled)
            else:
                self.moved.clear()
                await self.moved.wait()

    async def _settle(self) -> None:
        """Lets every episode go as far as it can, and waits (for isolated ones a moment) until none is outside."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE
        busy = self.talk is not None and self.talk.num_active > 0
        while True:
            for _ in range(3):  # an answer wakes its episode, which acts, which is handed to its environment
                await asyncio.sleep(0)
            left = until - loop.time()
            if not self.num_outside or (not self.wait and (left <= 0 or not busy)):
                return
            self.moved.clear()
            try:
                await asyncio.wait_for(self.moved.wait(), None if self.wait else left)
            except TimeoutError:
                return

    def _join(self) -> None:
        """In an order that does not depend on who was quicker."""
        self.queue.sort(key=lambda item: item[0].episode)
        for request, answer in self.queue:
            if self.talk is None:
                self.talk = self.sampler.converse(self.settings, request.ids)
                self.talk.__enter__()
            self.answers[request.episode] = answer
            self.talk.submit(request)
        self.queue.clear()

    def close(self) -> None:
        if self.talk is not None:
            self.talk.__exit__(None, None, None)


async def _play(
    task: Task, name: EpisodeId, world: World, codec: Codec, pump: _Pump, seats: asyncio.Semaphore, max_new_tokens: int
) -> Episode:
    """One episode, played anew after a fault of its environment as often as the recipe allows."""
    async with seats:
        for attempt in range(world.limits.retries + 1):
            own = EpisodeId(name.phase, name.step, name.task_key, name.member, attempt)
            episode, again = await _Play(task, own, world, codec, pump, max_new_tokens).run()
            if not again:
                break
        return episode


@dataclass
class _Play:
    """One attempt at one episode."""

    task: Task
    name: EpisodeId
    world: World
    codec: Codec
    pump: _Pump
    max_new_tokens: int
    turns: list[Turn] = field(default_factory=list)
    num_sampled: int = 0
    num_calls: int = 0
    invalid_in_a_row: int = 0
    num_invalid: int = 0

    async def run(self) -> tuple[Episode, bool]:
        """→ (the episode, whether it should be played anew)."""
        began = time.perf_counter()
        opened = await self.pump.outside(self.world.hosts.open(self.task, self.world.start_seed(self.task)))
        if isinstance(opened, Fault):
            return self._episode(_fault(opened), None, None, began, opened), opened.retryable
        self.start = self.state = opened.start.state
        self.shown = tuple(opened.start.observation.messages)
        try:
            stop, fault = await self._turns(opened, began)
        finally:
            await self.pump.outside(opened.close())
            self.pump.over(self.name)
        return self._episode(stop, self.start, self.state, began, fault), fault is not None and fault.retryable

    async def _turns(self, host: Host, began: float) -> tuple[StopReason, Fault | None]:
        world = self.world
        history = History(self.codec, world.opening, world.limits, world.context, host.start.observation.messages)
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
            action = self._action(text)
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

    def _action(self, text: str) -> Action:
        """The calls in the text, no more of them than are left: one text can hold thousands."""
        spec, limits = self.world.spec, self.world.limits
        text = self.codec.opened + text
        if not spec.tools:
            return Action(text)
        action = parse(text, spec.tools, self.world.style.format)
        left = limits.max_tool_calls - self.num_calls if limits.max_tool_calls else len(action.calls)
        return replace(action, calls=action.calls[:left])

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
        return Episode(self.name, group, tuple(self.turns), stop, facts=facts, seconds=time.perf_counter() - began,
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


def _fault(fault: Fault) -> StopReason:
    return StopReason(StopKind.FAULT, fault.kind)
