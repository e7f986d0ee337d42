"""The verifiers that a recipe, a row or `milepost verify` can name: their settings, and how a batch of answers is judged.

    score_all("math", [(answer, gold), …], params, pool, seconds) -> one result per answer, as in verifiers/__init__.py

Code is judged here, in the caller's process, whose sandbox does the rest; everything else in a killable worker, within
`seconds` from when a worker begins with an answer. Answers that are the same are judged once. What fails there is
unscorable with a cause: "timeout", "worker_died" or "checker_error: X".
"""

from __future__ import annotations

import difflib
import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.types import RecipeError
from milepost.workers import Call, WorkerPool

Check = Callable[[Any], str | None]
"""What a setting must be, as the end of a sentence, if the given value is not that."""


@dataclass(frozen=True)
class Kind:
    module: str
    params: Mapping[str, Check]
    needs_gold: bool = True
    graded: bool = False
    """Whether a score may lie between 0 and 1 by default."""


# --- what settings must be --------------------------------------------------------------------------------------------


def _one_of(*choices: str) -> Check:
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _number(low: float, high: float = math.inf, *, works: str) -> Check:
    def check(value: Any) -> str | None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        bounds = f"≥ {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        return (
            None if is_number and low <= value <= high and value < math.inf else f"must be a number {bounds}; {works} works"
        )

    return check


def _whole(low: int, high: int, *, works: int) -> Check:
    def check(value: Any) -> str | None:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return None if is_whole and low <= value <= high else f"must be a whole number from {low} to {high}; {works} works"

    return check


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "must be a text that is not empty"


def _tag(value: Any) -> str | None:
    right = isinstance(value, str) and re.fullmatch(r"[^\s<>/]+", value)
    return None if right else "must be the name of a tag without <, > and blanks; answer works"


def _texts(value: Any) -> str | None:
    right = isinstance(value, (list, tuple)) and all(isinstance(item, str) and item for item in value)
    return None if right else "must be a list of texts"


def _places(value: Any) -> str | None:
    from milepost.verifiers.extract import POLICIES, are_places

    return None if are_places(value) else f"must be one or several of {', '.join(POLICIES)}"


def _any(value: Any) -> None:
    """The module's own check of the gold says what is wrong with it."""


_TOLERANCE = _number(0, works="0.001")

KINDS: dict[str, Kind] = {
    "math": Kind("milepost.verifiers.math", {
        "extract": _places, "tag": _tag, "marker": _text, "opened": _flag, "stops": _texts,
        "percent": _one_of("lenient", "strict"), "units": _one_of("lenient", "strict", "ignore"),
        "rounding": _one_of("exact", "gold"), "rel_tol": _TOLERANCE, "abs_tol": _TOLERANCE,
    }),
    "code": Kind("milepost.verifiers.code", {
        "mode": _one_of("all", "fraction"), "extract": _one_of("last_block", "block_or_whole", "whole"),
        "seconds": _number(0.01, 600, works="4"), "total_seconds": _number(0.01, 3600, works="20"),
        "memory_mb": _whole(16, 1 << 20, works=256), "packages": _texts, "allow_plain": _flag, "rel_tol": _TOLERANCE,
        "abs_tol": _TOLERANCE, "exact_types": _flag, "blanks": _one_of("trailing", "any"),
    }),
    "tool_calls": Kind("milepost.verifiers.toolcalls", {
        "format": _one_of("hermes", "llama", "mistral", "json", "react"), "credit": _one_of("all", "name", "fraction"),
        "ordered": _flag, "decode_twice": _flag, "opened": _flag,
    }),
    "countdown": Kind("milepost.verifiers.countdown", {
        "use": _one_of("all", "some"), "extract": _places, "tag": _tag, "opened": _flag,
    }),
    "format": Kind("milepost.verifiers.format", {
        "blocks": _any, "boxes": _any, "schema": _any, "least": _any, "opened": _flag,
    }, needs_gold=False),
    "repetition": Kind("milepost.verifiers.repetition", {
        "n": _whole(1, 100, works=4), "free": _number(0, 0.99, works="0.2"), "least": _whole(1, 1 << 20, works=1),
    }, needs_gold=False, graded=True),
    "judge": Kind("milepost.verifiers.judge", dict.fromkeys((
        "url", "model", "rubric", "votes", "api_key_env", "options", "timeout_seconds", "deadline_seconds", "concurrency",
        "retries", "max_characters", "extract", "tag", "opened", "cache", "probe",
    ), _any), needs_gold=False),
    "reward_model": Kind("milepost.verifiers.reward_model", dict.fromkeys((
        "model", "form", "text", "output", "center", "scale", "low", "high", "label", "max_tokens", "batch_tokens",
        "memory_mb", "timeout_seconds", "load_seconds", "deadline_seconds", "device", "dtype", "extract", "tag", "opened",
    ), _any), needs_gold=False, graded=True),
}  # fmt: skip
SERVED = ("judge", "reward_model")
"""Answered for by a server or a process that stays up: `served`."""
BY_ROW = "by_row"
ROW_COLUMNS = ("reward_type", "verifier")


def named_by(columns: Mapping[str, Any]) -> str:
    """The verifier that a row names, "" for none; of two names that differ both, which no verifier has."""
    return " and ".join(dict.fromkeys(str(columns[name]) for name in ROW_COLUMNS if columns.get(name)))


def param_problem(kind: str, params: Mapping[str, Any], where: str) -> str | None:
    """What is wrong with the settings of a verifier, in one sentence; None if nothing is."""
    known = KINDS[kind].params
    for key, value in params.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            return f"{where}.{key} is not a parameter of {kind}; it takes {', '.join(known)}{hint}"
        if problem := known[key](value):
            return f"{where}.{key} = {value!r} {problem}"
    form = [key for key in ("blocks", "boxes", "schema") if key in params]
    if kind == "format" and form and (problem := module_of(kind).check_gold(None, **params)):
        return f"{where}: {problem}"
    if kind in SERVED:
        try:
            module_of(kind).read_settings(params)
        except RecipeError as error:
            return f"{where}: {error}"
    return None


def is_graded(name: str, params: Mapping[str, Any]) -> bool:
    """Whether a built-in function may give a value between 0 and 1."""
    if name == BY_ROW:  # any row may name reasoning_gym or repetition
        return True
    graded = name == "reasoning_gym" or (name in KINDS and KINDS[name].graded)
    return graded or params.get("mode") == "fraction" or params.get("credit") == "fraction"


def module_of(kind: str) -> Any:
    return importlib.import_module(KINDS[kind].module)


# --- judging ----------------------------------------------------------------------------------------------------------


def score_all(
    kind: str, items: Sequence[tuple[str, Any]], params: Mapping[str, Any], pool: WorkerPool, seconds: float
) -> list[dict[str, Any]]:  # fmt: skip
    """One result per (answer, gold), in order. Never raises for an answer or a gold."""
    if kind in SERVED:
        from milepost.verifiers.served import Question, Served

        with Served(tried=False) as served:
            return served.score(kind, params, [Question(answer, gold=gold) for answer, gold in items])
    first: dict[tuple[str, int], int] = {}
    places = [first.setdefault((answer, id(gold)), len(first)) for answer, gold in items]
    distinct = [items[places.index(place)] for place in range(len(first))] if len(first) < len(items) else list(items)
    if kind == "code":
        results = module_of(kind).score_many(distinct, **params)
    else:
        calls = [Call(f"{KINDS[kind].module}:score", {"answer": answer, "gold": gold, **params}, seconds)
                 for answer, gold in distinct]  # fmt: skip
        results = [_result(answer) for answer in pool.map(calls)]
    return [results[place] for place in places]


def _result(answer: Any) -> dict[str, Any]:
    if answer.failure is None:
        return answer.value
    cause = answer.failure.replace("error: ", "checker_error: ", 1)
    return {"score": None, "cause": cause, "extracted": None, "extractable": False, "compared": answer.detail, "parts": {}}


def gold_problem(kind: str, gold: Any, params: Mapping[str, Any], pool: WorkerPool, seconds: float) -> str | None:
    """What is wrong with a gold by the verifier's own word, or None. Of code the tests are read, but not run."""
    if kind == "code":
        return module_of(kind).check_gold(gold, **params)
    call = Call("milepost.verifiers.kinds:examine_gold", {"kind": kind, "gold": gold, "params": dict(params)}, seconds)
    answer = pool.map([call])[0]
    return f"it cannot be checked: {answer.failure}" if answer.failure else answer.value


def examine_gold(*, kind: str, gold: Any, params: Mapping[str, Any]) -> str | None:
    """In a worker: the verifier's own check, and whether the gold, written as an answer, scores 1."""
    module = module_of(kind)
    if problem := module.check_gold(gold, **params):
        return problem
    for text in module.right(gold, **params)[:1]:
        result = module.score(answer=text, gold=gold, **params)
        if result["score"] != 1.0:
            return f"the gold itself, as {text[:60]!r}, scores {result['score']}: {result['compared'][:200]}"
    return None


def right_answer(kind: str, gold: Any, params: Mapping[str, Any], pool: WorkerPool, seconds: float) -> str | None:
    """A text that must score 1; None where none is known."""
    if kind == "code":
        texts = module_of(kind).right(gold, **params) if not module_of(kind).check_gold(gold, **params) else []
    else:
        texts = pool.map([Call(f"{KINDS[kind].module}:right", {"gold": gold, **params}, seconds)])[0].value
    return texts[0] if texts else None


def warm(*, kinds: Sequence[str]) -> None:
    """In a new worker, before any clock runs: imports what the kinds need, the large libraries included."""
    for kind in kinds:
        if kind in KINDS and kind not in ("code", *SERVED):
            module_of(kind)
        if kind == "math":
            importlib.import_module("math_verify")
