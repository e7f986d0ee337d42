"""reasoning-gym's own scorers, in the sandbox: some evaluate the answer as Python, one could come to.

    [answer] = GymScorers(2).score([Ask("6", "chain_sum", {}, entry)], seconds=10.0)     # answer.value = 1.0, or .failure

An entry is what `families.pack` made of it. Answers for sound families (docs/families.md) share a process, one after the
other, for a process costs more than most answers. A family whose scorer evaluates the answer gets a process for each: there
an answer can give itself any score, but none to another.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from milepost.families import shares_a_process, unpack
from milepost.sandbox.pool import Sandbox
from milepost.sandbox.runs import Limits, Ran, Run, calls
from milepost.types import RecipeError
from milepost.workers import Answer

LIMITS = Limits(seconds=3600.0, cpu_seconds=3600, memory_mb=1024, out_bytes=1 << 16, stop_at_output=False)
"""The most that a run may ask for; its seconds are those of its answers."""
PORTION = 32
"""Answers in one process."""
_ENTRY = "score"
_CODE = """
import json
import reasoning_gym

made = {}

def score(answer, family, params, entry):
    key = json.dumps([family, params], sort_keys=True, default=str)
    if key not in made:
        made[key] = reasoning_gym.create_dataset(family, size=1, seed=0, **params)
    return float(made[key].score_answer(answer, entry))
"""


class Ask(NamedTuple):
    """`params` as the family's rows were drawn with; `entry` packed."""

    answer: str | None
    family: str
    params: Mapping[str, Any]
    entry: Any


@dataclass
class _Share:
    """Asks that go through processes one after the other, and how many of them are done."""

    asks: list[tuple[int, Ask]]
    done: int = 0


@cache
def _shared_sandbox(size: int, allow_plain: bool, hash_seed: int, process: int) -> Sandbox:
    return Sandbox(size, limits=LIMITS, packages=("reasoning_gym",), allow_plain=allow_plain, hash_seed=hash_seed)


class GymScorers:
    """At most `size` answers at once. May be called from any thread.

    sound_only: no family that evaluates answers is asked. allow_plain: then, where no isolation works on this machine, the
    scorers run within limits alone, with a warning. Else RecipeError, before anything is scored.
    """

    def __init__(
        self, size: int = 2, *, sound_only: bool = True, allow_plain: bool = False, hash_seed: int = 0,
        together: Callable[[str], bool] = shares_a_process,
    ) -> None:  # fmt: skip
        self.size, self.sound_only, self.hash_seed = size, sound_only, hash_seed
        self.allow_plain = allow_plain and sound_only
        self.together = together
        self.num_calls, self._cpu_seconds = 0, 0.0
        self._sandbox: Sandbox | None = None

    @property
    def cpu_seconds(self) -> float:
        return self._cpu_seconds

    @property
    def network_blocked(self) -> bool | None:
        """None while nothing has run."""
        if self._sandbox is None:
            return None
        return bool(self._sandbox.isolation.level != "plain" or self._sandbox.isolation.facts["filter"])

    @property
    def sandbox(self) -> Sandbox:
        """Built at the first call, which takes seconds; one for all scorers of this process that ask for the same."""
        if self._sandbox is None:
            self._sandbox = _shared_sandbox(self.size, self.allow_plain, self.hash_seed, os.getpid())
        return self._sandbox

    def close(self) -> None:
        """Nothing to do: the sandbox is this process' own, and goes with it."""

    def score(self, asks: Sequence[Ask], seconds: float, cpu_seconds: float | None = None) -> list[Answer]:
        """One answer for each, in order, `seconds` at most for any; failures as `WorkerPool` names them.

        cpu_seconds: how much of the processor, on average of those that share a process; None: as many.
        """
        self.num_calls += len(asks)
        answers: dict[int, Answer] = {}
        shares = self._shares(asks)
        while open_ := [share for share in shares if share.done < len(share.asks)]:
            for share, ran in zip(
                open_, self.sandbox.run([_run(share, seconds, cpu_seconds or seconds) for share in open_])
            ):
                self._cpu_seconds += ran.cpu_seconds
                self._take(share, ran, answers)
        return [answers[index] for index in range(len(asks))]

    def _shares(self, asks: Sequence[Ask]) -> list[_Share]:
        together, alone = [], []
        for index, ask in enumerate(asks):
            if self.together(ask.family):
                together.append((index, ask))
            elif self.sound_only:
                raise RecipeError(f"reasoning-gym's {ask.family} is refused: see docs/families.md")
            else:
                alone.append(_Share([(index, ask)]))
        portion = max(1, min(PORTION, math.ceil(len(together) / self.size)))
        return [_Share(together[at : at + portion]) for at in range(0, len(together), portion)] + alone

    def _take(self, share: _Share, ran: Ran, answers: dict[int, Answer]) -> None:
        """What one process said; the ask with which it ended, if it did, has failed."""
        for number, kind, value, detail in ran.records:
            if number == share.done and kind in ("value", "error") and share.done < len(share.asks):
                answers[share.asks[share.done][0]] = _answer(kind, value, detail)
                share.done += 1
        if share.done < len(share.asks):
            if ran.ended == "broken":
                failure = "checker_error: sandbox"
            else:
                failure = "timeout" if ran.ended == "time" else "worker_died"
            answers[share.asks[share.done][0]] = Answer(failure=failure, detail=f"{ran.why}\n{ran.err}".strip())
            share.done += 1


def _run(share: _Share, seconds: float, cpu_seconds: float) -> Run:
    asks = [ask for _, ask in share.asks[share.done :]]
    arguments: list[tuple[tuple, dict]] = [
        ((ask.answer, ask.family, _settings(ask), unpack(ask.entry)), {}) for ask in asks
    ]
    limits = replace(LIMITS, seconds=seconds * len(asks) + 1.0, cpu_seconds=math.ceil(cpu_seconds * len(asks)),
                     idle_seconds=seconds)  # fmt: skip
    return calls(_CODE, _ENTRY, arguments, limits, first=share.done, after=False)


def _settings(ask: Ask) -> dict[str, Any]:
    return {key: value for key, value in ask.params.items() if key not in ("size", "seed")}


def _answer(kind: str, value: Any, detail: Any) -> Answer:
    if kind == "error":
        name = value[0] if isinstance(value, list) and value and isinstance(value[0], str) else "Exception"
        return Answer(failure=f"error: {name}", detail=str(detail)[-20_000:])
    if isinstance(value, (int, float)):
        return Answer(value=float(value))
    return Answer(failure="error: no number", detail=f"the scorer returned {str(value)[:200]}")
