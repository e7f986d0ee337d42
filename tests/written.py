"""A sampler whose texts are given, and a codec of one token per character: for tests of what is played in a world, where
no model matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from milepost.engines.base import SampleRequest, SamplingSettings, WorkCounters
from milepost.rollout import Codec
from milepost.types import Message, Sampled

END = 0


def ids_of(text: str) -> np.ndarray:
    return np.array([ord(character) for character in text], np.int32)


def text_of(ids: np.ndarray) -> str:
    return "".join(chr(i) for i in ids if i != END)


def complete(text: str) -> np.ndarray:
    return np.append(ids_of(text), np.int32(END))


def shown(messages: Sequence[Message]) -> np.ndarray:
    return ids_of("".join(f"{message['content']}\n" for message in messages))


CODEC = Codec(
    encode=lambda task: ids_of(str(task.prompt)),
    decode=text_of,
    complete=complete,
    prompt=shown,
    observe=lambda messages, last: shown(messages),
    resume=lambda messages, text: np.concatenate([shown(messages), ids_of(text)]),
)


class Written:
    """Writes `write(request)`; what does not fit is cut, as any sampler does. Every token has the log-prob −1."""

    version = 0

    def __init__(self, write: Callable[[SampleRequest], str]) -> None:
        self.write, self.counters = write, WorkCounters()

    def one(self, request: SampleRequest) -> Sampled:
        ids = complete(self.write(request))
        cut, ids = len(ids) > request.max_new_tokens, ids[: request.max_new_tokens]
        return Sampled(ids, -np.ones(len(ids)), 1.0, ((0, 0),), "length" if cut else "stop")

    def converse(self, settings: SamplingSettings, first: np.ndarray) -> WrittenTalk:
        return WrittenTalk(self)


class WrittenTalk:
    """All that is asked is answered at the next step."""

    def __init__(self, sampler: Written) -> None:
        self.sampler, self.asked = sampler, list[SampleRequest]()

    @property
    def num_active(self) -> int:
        return len(self.asked)

    def __enter__(self) -> WrittenTalk:
        return self

    def __exit__(self, *_: object) -> None:
        self.asked.clear()

    def submit(self, request: SampleRequest) -> None:
        self.asked.append(request)

    def step(self) -> list[tuple[SampleRequest, Sampled]]:
        finished = [(request, self.sampler.one(request)) for request in self.asked]
        self.asked.clear()
        return finished

    def release(self, episode: object) -> None:
        """Nothing is kept."""
