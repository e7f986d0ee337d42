"""Judges single turns: a verifier or a judge that the user brings, in the same killable processes as reward functions.

    scorers = TurnScorers(recipe.reward)                # RecipeError here, before any model is loaded
    scorers.score([(task, episode), …], counts)         # for each episode: label → one score or None per turn

A scorer is asked once for each turn, and sees what the store keeps of it: stored episodes can be judged again. None, an
error, a time-out and what is not finite leave the turn without a score: it earns nothing by this scorer, which is counted.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from milepost.reward_checks import Scorer, check_params, load_scorer, short
from milepost.reward_sections import RewardSection
from milepost.types import Episode, Message, RecipeError, Task
from milepost.workers import Answer, Call, spent_by

log = logging.getLogger("milepost.reward")

TURN_GIVEN = ("task", "turn", "before", "after", "action", "messages", "observation")
"""What a scorer can ask for by name:

    task         the `Task`, its answer and columns included
    turn         0, 1, …
    before       the state of the world before the action, after: the one it led to
    action       what the policy wrote
    messages     what was new to the policy when it wrote that, observation: what it was answered; lists of messages
"""

Scores = Mapping[str, Sequence[float | None]]
"""label → what the scorer said of each turn; None: nothing."""


class TurnScorers:
    """The entries of reward.turn_scorers, loaded. `close()` ends their processes.

    Raises RecipeError for functions that do not load and parameters that nothing fills in. Up to `num_workers` processes
    per scorer; 0: as many as cores, 4 to 8.
    """

    def __init__(self, section: RewardSection, *, num_workers: int = 0) -> None:
        self.timeout = section.timeout_seconds
        self._scorers: list[Scorer] = []
        self._reported: set[tuple[str, str]] = set()
        num_workers = num_workers or max(4, min(8, os.cpu_count() or 1))
        try:
            for index, entry in enumerate(section.turn_scorers):
                where = f"reward.turn_scorers.{index}.name = {entry.name!r}"
                label = entry.resolved_label
                self._scorers.append(load_scorer(label, entry.weight, entry.name, entry.params, where, num_workers))
                check_turn_signature(self._scorers[-1], where)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for scorer in self._scorers:
            if scorer.pool:
                scorer.pool.close()

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(scorer.label for scorer in self._scorers)

    def spent(self) -> dict[str, float]:
        """Calls and CPU-seconds so far, as `workers.spent_by` names them."""
        return spent_by([scorer.pool for scorer in self._scorers if scorer.pool])

    def score(self, played: Sequence[tuple[Task, Episode]], counts: Counter[str] | None = None) -> list[Scores]:
        """What every scorer says of every turn of these episodes, which must hold their states.

        Adds unscored/LABEL/CAUSE to `counts` for each turn without a score. A score may lie outside [0, 1]: who pays by it
        asserts the bounds. Raises RecipeError for a scorer that returns anything but a number or None.
        """
        if not self._scorers or not played:
            return [{} for _ in played]
        with ThreadPoolExecutor(len(self._scorers)) as threads:  # each waits for processes of its own: wait together
            columns = list(threads.map(lambda scorer: self._ask(scorer, played), self._scorers))
        for scorer, column in zip(self._scorers, columns):
            for _, causes in column if counts is not None else ():
                counts.update(f"unscored/{scorer.label}/{cause}" for cause in causes if cause)  # type: ignore[union-attr]
        return [{scorer.label: column[i][0] for scorer, column in zip(self._scorers, columns)} for i in range(len(played))]

    def _ask(
        self, scorer: Scorer, played: Sequence[tuple[Task, Episode]]
    ) -> list[tuple[tuple[float | None, ...], tuple[str, ...]]]:
        """For each episode, the scores of its turns, and the causes ("" where there is a score)."""
        assert scorer.pool is not None
        asked = [[self._keywords(scorer, task, episode, t) for t in range(len(episode.turns))] for task, episode in played]
        calls = [
            Call("milepost.scorers:invoke_turn", {"name": scorer.name, "keywords": keywords}, self.timeout)
            for turns in asked
            for keywords in turns
            if not isinstance(keywords, str)
        ]
        answers = iter(scorer.pool.map(calls) if calls else [])
        found = []
        for (_, episode), turns in zip(played, asked):
            told = [(None, k) if isinstance(k, str) else self._read(scorer, episode, next(answers)) for k in turns]
            found.append((tuple(score for score, _ in told), tuple(cause for _, cause in told)))
        return found

    def _keywords(self, scorer: Scorer, task: Task, episode: Episode, t: int) -> dict[str, Any] | str:
        """What the scorer is given for turn `t`; or the cause why it is not asked."""
        facts = episode.turns[t].facts
        if facts.get("cut"):
            return "cut"  # nothing of the action was carried out
        before = episode.turns[t - 1].facts["state"] if t else episode.facts["start"]
        given: dict[str, Any] = {"task": task, "turn": t, "before": before, "after": facts["state"],
                                 "action": episode.turns[t].text, "messages": _read_before(task, episode, t),
                                 "observation": facts.get("messages")}  # fmt: skip
        given = {key: value for key, value in given.items() if scorer.accepts(key)}
        if any(given.get(key, ()) is None for key in ("messages", "observation")):
            return "messages not stored"
        return {**given, **scorer.params}

    def _read(self, scorer: Scorer, episode: Episode, answer: Answer) -> tuple[float | None, str]:
        if answer.failure:
            self._report(scorer, episode, answer)
            return None, answer.failure
        if "contract" in answer.value:
            raise RecipeError(f"expected a number from 0 to 1 or None, got {answer.value['contract']}, from "
                              f"{short(scorer.name)}; return one for the turn that it is given")  # fmt: skip
        score = answer.value["score"]
        if score is None:
            return None, "none"
        return (score, "") if math.isfinite(score) else (None, "not finite")

    def _report(self, scorer: Scorer, episode: Episode, answer: Answer) -> None:
        """Logs the first failure of each kind with its traceback; the rest are only counted."""
        key = (scorer.label, str(answer.failure))
        if key not in self._reported:
            self._reported.add(key)
            log.warning("turn scorer %s: %s in %s (further ones are only counted)\n%s",
                        scorer.label, answer.failure, episode.id, answer.detail)  # fmt: skip


def _read_before(task: Task, episode: Episode, t: int) -> list[Message] | None:
    """The messages that were new to the policy at turn `t`; None if they are not stored."""
    if t:
        return episode.turns[t - 1].facts.get("messages")
    prompt = [{"role": "user", "content": task.prompt}] if isinstance(task.prompt, str) else [dict(m) for m in task.prompt]
    return episode.facts.get("messages", prompt)


def check_turn_signature(scorer: Scorer, where: str) -> None:
    """Refuses a function that could not be called, or would see nothing of the turn. Raises RecipeError."""
    given = ", ".join(TURN_GIVEN)
    check_params(scorer, TURN_GIVEN, where)
    for key in scorer.required:
        if key not in TURN_GIVEN and key not in scorer.params:
            raise RecipeError(
                f"{where} needs {key!r}, which nothing fills in; it is given {given}: rename the parameter, or set it "
                "under params"
            )
    if not any(scorer.accepts(key) for key in TURN_GIVEN if key != "turn"):
        raise RecipeError(f"{where} sees nothing of the turn; name some of {given} as its parameters")
