"""One conversation with the sampler for all episodes that are being played: while one waits, others decode."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from milepost.engines.base import Sampler, SampleRequest, SamplingSettings, Talk
from milepost.types import EpisodeId, Sampled

_PATIENCE = 0.02
"""Seconds that a decoding step waits for isolated environments: short beside the step, long for a quick tool."""


class Pump:
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
