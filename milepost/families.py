"""reasoning-gym families: rows that are the same in every process, and the families that are refused. Torch-free.

All drawing happens in one child process with a fixed hash seed and fixed global random state: several families depend on
either (word_ladder on the hash seed, list_functions on the global generator), one disturbs it, one prints. So rows depend
on family, parameters, label and seed alone, and this process is left as it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from milepost.types import RecipeError

_EXECUTES = "its scorer calls eval() on the model's text"
_PARSES = "its scorer calls sympy's parse_expr() on the model's text, which evaluates it as Python"

REFUSED_FAMILIES: dict[str, str] = {
    "binary_matrix": _EXECUTES,
    "n_queens": _EXECUTES,
    "spiral_matrix": _EXECUTES,
    "string_insertion": _EXECUTES,
    "countdown": _PARSES,
    "intermediate_integration": _PARSES,
    "polynomial_multiplication": _PARSES,
    "puzzle24": _PARSES,
    "simple_integration": _PARSES,
}
"""reasoning-gym families (0.1.25) whose scorers execute what the model wrote; refused until scoring is sandboxed."""


class Draw(NamedTuple):
    """`size` rows of a family; `label` keeps apart two sources that draw the same family with one seed."""

    family: str
    params: Mapping[str, Any]
    size: int
    seed: int
    label: str


def draw_families(requests: Sequence[Draw]) -> list[dict[str, Any]] | None:
    """One reply per request, in order; None when reasoning-gym is not installed.

    A reply is {"rows": [(draw number, packed entry), …], "num_draws": n}, or {"error": text, "fields": names} when the
    family refused its parameters, or {"known": names} when there is no such family. Raises RecipeError if drawing broke.
    """
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from milepost.families import _child; _child()"],
        input=json.dumps(requests, default=str), capture_output=True, text=True, encoding="utf-8",
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    if done.returncode:
        names = ", ".join(request.family for request in requests)
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RecipeError(f"tasks.sources: drawing {names} failed ({last[:200]}); check their params and size")
    replies: list[dict[str, Any]] | None = json.loads(done.stdout)
    return replies


def _child() -> None:
    """The child process: requests on standard input, replies on standard output, both JSON."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # some families print while they draw
    requests = [Draw(*fields) for fields in json.load(sys.stdin)]
    try:
        from reasoning_gym import factory
    except ImportError:
        json.dump(None, answer)
    else:
        # codeio runs bundled snippets to make its rows; last, so that they cannot touch the rows of others.
        order = sorted(range(len(requests)), key=lambda i: requests[i].family == "codeio")
        replies = {i: _draw(factory, requests[i]) for i in order}
        json.dump([replies[i] for i in range(len(requests))], answer)
    answer.flush()


def _draw(factory: Any, request: Draw) -> dict[str, Any]:
    """`size` distinct questions, or as many as there seem to be: drawing ends after max(100, 3 · found) repeats in a row.

    Rounds of `size` draws, each with a seed of its own: some families lay out all `size` rows when they are built.
    """
    family, size = request.family, request.size
    if family not in factory.DATASETS:
        return {"known": sorted(factory.DATASETS)}
    fields = [f.name for f in dataclasses.fields(factory.DATASETS[family][1]) if f.name not in ("size", "seed")]
    rows: list[tuple[int, Any]] = []
    seen: set[str] = set()
    num_draws = num_stale = 0
    for number in itertools.count():
        own = derived_seed(request.seed, f"{request.label}/{number}")
        random.seed(own)
        np.random.seed(own)
        try:
            drawn = factory.create_dataset(family, size=size, seed=own, **request.params)
        except Exception as error:
            return {"error": " ".join(str(error).split())[:200] or type(error).__name__, "fields": fields}
        for index in range(size):
            entry = drawn[index]
            num_draws += 1
            if (question := entry["question"].strip()) in seen:
                num_stale += 1
            else:
                num_stale = 0
                seen.add(question)
                rows.append((num_draws, pack(entry)))
            if len(rows) == size or num_stale >= max(100, 3 * len(rows)):
                return {"rows": rows, "num_draws": num_draws}
    raise AssertionError("unreachable")


def pack(value: Any) -> Any:
    """JSON that keeps what JSON would change: tuples, keys that are no text, sets, fractions and complex numbers."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, Mapping):
        if all(isinstance(k, str) and not k.startswith("!") for k in value):
            return {str(k): pack(v) for k, v in value.items()}
        return {"!map": [[pack(k), pack(v)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"!tuple": [pack(v) for v in value]}
    if isinstance(value, (set, frozenset)):
        return {"!set": sorted((pack(v) for v in value), key=json.dumps)}
    if isinstance(value, list):
        return [pack(v) for v in value]
    if isinstance(value, Fraction):
        return {"!fraction": str(value)}
    if isinstance(value, complex):
        return {"!complex": [value.real, value.imag]}
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise TypeError(f"{type(value).__name__} {value!r} cannot be stored with a task")


def unpack(value: Any) -> Any:
    """The inverse of `pack`: what a reasoning-gym scorer must be given as its entry."""
    if isinstance(value, list):
        return [unpack(v) for v in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1:
        tag, inner = next(iter(value.items()))
        if tag in _UNPACK:
            return _UNPACK[tag](inner)
    return {k: unpack(v) for k, v in value.items()}


_UNPACK: dict[str, Callable[[Any], Any]] = {
    "!map": lambda pairs: {unpack(k): unpack(v) for k, v in pairs},
    "!tuple": lambda items: tuple(unpack(v) for v in items),
    "!set": lambda items: {unpack(v) for v in items},
    "!fraction": Fraction,
    "!complex": lambda parts: complex(*parts),
}


def derived_seed(seed: int, label: str) -> int:
    """31 bits from (seed, label). reasoning-gym adds the row index to its seed, so neighbouring seeds would share rows."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{label}".encode(), digest_size=4).digest(), "little") >> 1
