"""One conversation with the sampler for all episodes that are being played: while one waits, others decode.

Nobody waits for ever, and nobody decodes in a hurry: a decoding step waits for each piece of work that is with an
environment until that piece has been there for as long as patience lasts. While all answer sooner, the same weights give
the same batches, whoever was quicker; what takes longer holds up nobody but its own episode.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from milepost.engines.base import Sampler, SampleRequest, SamplingSettings, Talk
from milepost.types import EpisodeId, Sampled

_WAKING = 5
"""Rounds of the event loop from one move to the next that follows from it, at most."""


class Pump:
    """Feeds the sampler: requests of all episodes join one conversation; each is answered when its turn is sampled."""

    def __init__(self, sampler: Sampler, settings: SamplingSettings, *, patience: float, num_seats: int) -> None:
        """`patience`: seconds that the others wait for one answer of a world; `num_seats`: episodes that may be played at
        the same time."""
        self.sampler, self.settings, self.patience, self.num_seats = sampler, settings, patience, num_seats
        self.waiting: list[tuple[EpisodeId, asyncio.Future[None]]] = []
        self.talk: Talk | None = None
        self.queue: list[tuple[SampleRequest, asyncio.Future[Sampled]]] = []
        self.answers: dict[EpisodeId, asyncio.Future[Sampled]] = {}
        self.outside_since: dict[object, float] = {}
        """When each piece of work went to its environment; loop time."""
        self.moved = asyncio.Event()
        self.num_moves = 0

    @contextlib.asynccontextmanager
    async def seat(self, name: EpisodeId) -> AsyncIterator[None]:
        """Waits until it may be played. Free seats go by name, not by who asked first: that would be a race."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((name, turn))
        self._move()
        await turn
        try:
            yield
        finally:
            self.num_seats += 1
            self._move()

    def _seated(self) -> bool:
        """Gives free seats to those who wait; whether it did."""
        self.waiting = sorted((one for one in self.waiting if not one[1].done()), key=lambda one: one[0])
        free, self.waiting = self.waiting[: self.num_seats], self.waiting[self.num_seats :]
        self.num_seats -= len(free)
        for _, turn in free:
            turn.set_result(None)
        return bool(free)

    async def sample(self, request: SampleRequest) -> Sampled:
        answer: asyncio.Future[Sampled] = asyncio.get_running_loop().create_future()
        self.queue.append((request, answer))
        self._move()
        return await answer

    def _move(self) -> None:
        self.num_moves += 1
        self.moved.set()

    async def outside(self, work: Any) -> Any:
        """Awaits what an environment does, while others decode."""
        piece = object()
        self.outside_since[piece] = asyncio.get_running_loop().time()
        self._move()
        try:
            return await work
        finally:
            del self.outside_since[piece]
            self._move()

    def over(self, episode: EpisodeId) -> None:
        if self.talk is not None:
            self.talk.release(episode)

    async def run(self, played: Sequence[asyncio.Future[Any]]) -> None:
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
        """Lets every episode go as far as it can, and waits for those outside, each no longer than patience lasts."""
        while True:
            await self._quiet()
            left = self._patience_left()
            if left > 0:
                self.moved.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.moved.wait(), left)
            elif not self._seated():
                return

    def _patience_left(self) -> float:
        """Seconds until nobody is waited for any more. Only a piece of work that begins makes them more, and after one or
        two of those an episode wants to decode."""
        if not self.outside_since:
            return 0.0
        return max(self.outside_since.values()) + self.patience - asyncio.get_running_loop().time()

    async def _quiet(self) -> None:
        """Until nobody has moved for a while: an answer wakes its episode, which acts, which is handed to its environment.
        Whoever moves last, even just now, has the same time for what follows."""
        seen = -1
        while seen != self.num_moves:
            seen = self.num_moves
            for _ in range(_WAKING):
                await asyncio.sleep(0)

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
