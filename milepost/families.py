"""reasoning-gym families: rows that are the same in every process, and whose scorers may be used. Torch-free.

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
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from milepost.types import RecipeError

AUDIT_FILE = Path(__file__).with_name("families.json")
"""What `scripts/audit_families.py` found."""
MOST_FOR_JUNK = 0.1
"""A sound scorer pays no more for what is no answer."""
OFFERED: dict[str, tuple[str, str]] = {
    "base_conversion": ("a number in another base", "text equal"),
    "binary_alternation": ("fewest swaps until bits alternate", "text equal"),
    "caesar_cipher": ("decrypt a shifted text", "text equal"),
    "calendar_arithmetic": ("weekdays, days between dates", "weekday equal; numbers pay more the nearer they are"),
    "chain_sum": ("a sum of several numbers", "numbers equal as decimals; commas, sign, zeros do not count"),
    "count_bits": ("ones in a binary number", "text equal"),
    "count_primes": ("primes in an interval", "text equal"),
    "course_schedule": ("can all courses be taken?", "text equal, True or False: half are guessed"),
    "fraction_simplification": ("a fraction in lowest terms", "numerator and denominator equal; of LaTeX the first counts"),
    "gcd": ("greatest common divisor", "text equal"),
    "largest_island": ("the largest region in a grid", "text equal"),
    "lcm": ("least common multiple", "text equal"),
    "leg_counting": ("legs of many animals", "text equal"),
    "letter_counting": ("how often a letter stands in a text", "text equal"),
    "mini_sudoku": ("a 4×4 sudoku", "all cells equal; part of the right cells pays"),
    "needle_haystack": ("who likes what, in a long list", "name equal but for case and blanks"),
    "products": ("a product of numbers", "numbers equal as decimals, as in chain_sum"),
    "rotate_matrix": ("a matrix turned by quarters", "text equal, blanks and line breaks included"),
    "rotten_oranges": ("minutes until all have rotted", "text equal"),
    "shortest_path": ("a shortest way through a grid", "any valid path of that length; a longer one pays half"),
    "string_manipulation": ("a text after rewriting rules", "text equal"),
    "word_ladder": ("from word to word, letter by letter", "any chain of known words; each unknown one halves it"),
    "word_sequence_reversal": ("words in reverse order", "text equal"),
    "word_sorting": ("words in order", "list equal; words in place pay"),
}
"""Read by hand as well, and offered first: what the task is, and what the scorer compares. Where it is "text equal", a text
that holds the right answer earns its share of the text."""


@cache
def audited() -> dict[str, dict[str, Any]]:
    """Family → what the audit found: "safe", "sound", "reason", … (`health.family_audit.Finding`)."""
    found: dict[str, dict[str, Any]] = json.loads(AUDIT_FILE.read_text(encoding="utf-8"))["families"]
    return found


def refusal(family: str, accepted: Sequence[str] = ()) -> str | None:
    """Why the family's scorer must not be used, in a sentence; None: it may. `accepted`: unsound ones that a user takes."""
    found = audited().get(family)
    if found is None:
        return f"{family} has not been audited; use one of docs/families.md, for example chain_sum"
    if found["sound"] or (family in accepted and found["safe"]):
        return None
    if not found["safe"]:
        return f"{family} is refused: {found['reason']}; use another family, for example chain_sum"
    return (f"{family} is refused: {found['reason']}; use another family, for example chain_sum, or take it as it is with "
            f'params.accept_unsound = ["{family}"]')  # fmt: skip


def shares_a_process(family: str) -> bool:
    """Whether answers may be scored in one process: none of them can do anything to the next."""
    found = audited().get(family, {})
    return bool(found) and not (found["evaluates"] or found["undrawn"])


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
