"""Verifiers that something answers for which stays up: a judge behind a server, a reward model in its own process.

    with Served() as served:
        served.score("judge", params, [Question(answer, prompt, gold), …])   -> one result each, as in verifiers/__init__.py

Each is made with the first use of its settings. A judge is tried on phrases that say nothing before it is believed.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from milepost.types import RecipeError
from milepost.verifiers import judge, reward_model
from milepost.verifiers.judge import Judge, Question
from milepost.verifiers.reward_model import RewardModel


class Served:
    """What answers for the settings that it was asked about. `close` ends the processes.

    tried: whether a judge must pass its probe, unless its own settings say probe = false.
    """

    def __init__(self, *, tried: bool = True) -> None:
        self.tried = tried
        self._made: dict[str, Judge | RewardModel] = {}
        self._lock = threading.Lock()

    def of(self, kind: str, params: Mapping[str, Any]) -> Judge | RewardModel:
        """Raises RecipeError for settings that cannot work, a model that does not load and a judge that fails its probe."""
        name = json.dumps([kind, dict(params)], sort_keys=True, default=str)
        with self._lock:
            if name not in self._made:
                self._made[name] = self._make(kind, params)
            return self._made[name]

    def _make(self, kind: str, params: Mapping[str, Any]) -> Judge | RewardModel:
        if kind == "reward_model":
            scorer = RewardModel(reward_model.read_settings(params))
            scorer.start()
            return scorer
        made = Judge(judge.read_settings(params))
        if self.tried and made.settings.probe and (problem := judge.probe(made)):
            raise RecipeError(f"{problem}, or set probe = false")
        return made

    def score(self, kind: str, params: Mapping[str, Any], questions: Sequence[Question]) -> list[dict[str, Any]]:
        """Raises RecipeError as `of` does."""
        return self.of(kind, params).score_many(questions)

    @property
    def num_calls(self) -> int:
        """Calls to servers, and batches given to models."""
        return sum(one.num_calls if isinstance(one, Judge) else one.pool.num_calls for one in self._made.values())

    @property
    def cpu_seconds(self) -> float:
        """Of processes here; what a server spends is not known."""
        return math.fsum(one.pool.cpu_seconds for one in self._made.values() if isinstance(one, RewardModel))

    def close(self) -> None:
        for one in self._made.values():
            if isinstance(one, RewardModel):
                one.close()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
