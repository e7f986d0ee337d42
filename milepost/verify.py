"""`milepost verify`: one answer or a file of them, judged by hand. Torch-free.

    milepost verify math --gold 5/4 --answer 'So it is \\boxed{1 1/4}.'
    milepost verify code --gold-file tests.json --answer-file answer.md mode=fraction --json
    milepost verify by_row --jsonl rows.jsonl

The same verifiers, settings, processes and limits as in training. A row of the file holds the answer under `completion`,
`response` or `answer`, the gold under `gold`, `expected_answer` or, where the answer has another name, `answer`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from milepost import scorers
from milepost.reward_checks import LOAD_SECONDS, check_function_params
from milepost.terminal import visible
from milepost.types import VERDICTS, DataError, RecipeError
from milepost.verifiers.kinds import BY_ROW, KINDS, ROW_COLUMNS, module_of, named_by, score_all
from milepost.workers import Call, WorkerPool

NAMES = (*KINDS, "exact", "numeric", "regex")
_ANSWERS, _GOLDS = ("completion", "response", "answer"), ("gold", "expected_answer", "answer")
_WIDEST = 100
_NO_GYM = ("reasoning_gym judges by the whole entry that its family generated, which a gold is not; use a recipe with "
           'tasks of kind = "reasoning_gym" and the reward function reasoning_gym')  # fmt: skip


@dataclass(frozen=True)
class Item:
    kind: str
    answer: str
    gold: Any
    line: int = 0


@dataclass(frozen=True)
class Judged:
    """What a verifier said of one answer; `verdict` is one of types.VERDICTS. A score below 1 is no right answer."""

    kind: str
    verdict: str
    score: float | None
    extracted: str | None
    extractable: bool
    cause: str | None
    compared: str
    parts: Mapping[str, float]

    def text(self) -> str:
        rows = {"score": "none" if self.score is None else f"{self.score:g}",
                "extracted": "nothing" if self.extracted is None else self.extracted,
                "compared": self.compared, "cause": self.cause,
                "parts": ", ".join(f"{name} {value:g}" for name, value in self.parts.items())}  # fmt: skip
        lines = [f"{'verdict':<11}{self.verdict}"]
        for name, value in rows.items():
            shown = visible(value or "").splitlines() if value else []
            lines += [f"{name if i == 0 else '':<11}{line}" for i, line in enumerate(shown)]
        return "\n".join(lines)

    def line(self, number: int) -> str:
        shown = " ".join(visible(self.extracted or self.cause or "nothing found").split())
        score = "none" if self.score is None else f"{self.score:g}"
        cut = shown if len(shown) <= _WIDEST else shown[: _WIDEST - 1] + "…"
        return f"{number:>6}  {self.kind:<10}  {self.verdict:<13}  {score:>5}  {cut}"


def judge(items: Sequence[Item], params: Mapping[str, Any], *, seconds: float = 10.0, num_workers: int = 2) -> list[Judged]:
    """One verdict per item, in order. `params` are those of the kind; of by_row, one table per kind. Raises RecipeError."""
    by_kind: defaultdict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        by_kind[item.kind].append(index)
    results: dict[int, Judged] = {}
    with WorkerPool(
        num_workers, setup=Call("milepost.verifiers.kinds:warm", {"kinds": list(by_kind)}, LOAD_SECONDS)
    ) as pool:
        for kind, chosen in by_kind.items():
            pairs = [(items[i].answer, items[i].gold) for i in chosen]
            for index, found in zip(chosen, _score(kind, pairs, params, pool, seconds)):
                results[index] = _judged(kind, found)
    return [results[index] for index in range(len(items))]


def _judged(kind: str, found: Mapping[str, Any]) -> Judged:
    score = found["score"]
    verdict = "unscorable" if score is None else "correct" if score >= 1 else "unextractable"
    verdict = "wrong" if verdict == "unextractable" and found["extractable"] else verdict
    return Judged(kind, verdict, score, *(found[n] for n in ("extracted", "extractable", "cause", "compared", "parts")))


def _score(
    kind: str, pairs: Sequence[tuple[str, Any]], params: Mapping[str, Any], pool: WorkerPool, seconds: float
) -> list[dict[str, Any]]:  # fmt: skip
    if kind in KINDS:
        return score_all(kind, pairs, params, pool, seconds)
    if kind == "regex":
        calls = [Call("milepost.scorers:matches", {"texts": [answer], **params}, seconds) for answer, _ in pairs]
        found = pool.map(calls)
        what = f"searched for {params['pattern']!r}"
        return [_result(None if a.failure else a.value[0], answer, what, a.failure) for a, (answer, _) in zip(found, pairs)]
    return [_exactly(kind, answer, gold, params) for answer, gold in pairs]


def _exactly(kind: str, answer: str, gold: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """exact and numeric, which a recipe runs here too."""
    compared = f"{answer.strip()[:200]!r} with {str(gold).strip()[:200]!r}"
    if kind == "exact":
        return _result(scorers.exact(answer=answer, gold=gold, **params), answer.strip(), compared)
    wanted = scorers.parse_number(gold)
    if wanted is None:
        return _result(None, None, f"the gold {str(gold)[:80]!r} is no number", "bad_gold")
    value = scorers.numeric(answer=answer, gold=wanted, **params)
    number = scorers.parse_number(answer)
    return _result(value or 0.0, None if number is None else str(number), compared, found=value is not None)


def _result(
    score: float | None, extracted: str | None, compared: str, cause: str | None = None, found: bool = True
) -> dict[str, Any]:  # fmt: skip
    return {"score": score, "cause": cause, "extracted": extracted, "extractable": found and score is not None,
            "compared": compared, "parts": {}}  # fmt: skip


# --- input ------------------------------------------------------------------------------------------------------------


def add_verify_parser(commands: Any) -> argparse.ArgumentParser:
    command = commands.add_parser("verify", help="judges answers by hand: what was read, what was compared, the score")
    command.add_argument("kind", metavar="KIND", help=f"{', '.join(NAMES)}; {BY_ROW}: each row of --jsonl names its own")
    command.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="the verifier's params, such as percent=strict"
    )
    # argparse takes an answer such as -\frac12 for an option; here one dash begins no option but -h.
    command._negative_number_matcher = re.compile(r"^-[^-]")  # type: ignore[attr-defined]
    for name, text in (("gold", "what is right; for code and tool_calls JSON"), ("answer", "the completion; - reads it")):
        command.add_argument(f"--{name}", help=text)
        command.add_argument(f"--{name}-file", metavar="FILE", help="the same, from a file")
    command.add_argument("--jsonl", metavar="FILE", help="rows with answer and gold; - reads them")
    command.add_argument("--seconds", type=float, default=10.0, help="limit of one answer (code has its own)")
    command.add_argument("--json", action="store_true", help="machine-readable; of a file, one object per line")
    return command


def run_verify(args: argparse.Namespace) -> int:
    """0: every answer scored 1; 1: some did not. Raises RecipeError and DataError for input that cannot be judged."""
    params = read_params(args.kind, args.overrides)
    if not 0 < args.seconds < 1e6:
        raise RecipeError(f"--seconds {args.seconds:g} must be a number above 0; 10 works")
    if args.jsonl is None:
        one = _one(args)
        if args.kind == "format" and (problem := _formless(one, params)):
            raise RecipeError(problem)
        found = judge([one], params, seconds=args.seconds)
        print(json.dumps(asdict(found[0]), ensure_ascii=True) if args.json else found[0].text())
    else:
        if given := [flag for flag in ("gold", "gold_file", "answer", "answer_file") if getattr(args, flag) is not None]:
            raise RecipeError(f"--{given[0].replace('_', '-')} does nothing beside --jsonl, whose rows hold it; remove one")
        items = read_rows(args.kind, args.jsonl)
        for item in items:
            own = params.get("format", {}) if args.kind == BY_ROW else params
            if item.kind == "format" and (problem := _formless(item, own)):
                raise DataError(f"{args.jsonl} line {item.line}: {problem}")
        found = _judge_rows(args.kind, items, params, args.seconds)
        _show(items, found, as_json=args.json)
    return 0 if all(one.verdict == "correct" for one in found) else 1


def _formless(item: Item, params: Mapping[str, Any]) -> str | None:
    """Why nothing says which form is asked for; a gold that names one in a wrong way is judged, as in training."""
    named = isinstance(item.gold, Mapping) or (isinstance(item.gold, str) and item.gold.lstrip().startswith("{"))
    problem = None if named else module_of("format").check_gold(item.gold, **params)
    return f"format does not know what to look for: {problem}; give it, for example boxes=1" if problem else None


def _judge_rows(kind: str, items: Sequence[Item], params: Mapping[str, Any], seconds: float) -> list[Judged]:
    if kind != BY_ROW:
        return judge(items, params, seconds=seconds)
    results: dict[int, Judged] = {}
    for one in dict.fromkeys(item.kind for item in items):
        chosen = [i for i, item in enumerate(items) if item.kind == one]
        own = params.get(one, {})
        results |= zip(chosen, judge([items[i] for i in chosen], own, seconds=seconds))
    return [results[i] for i in range(len(items))]


def _show(items: Sequence[Item], found: Sequence[Judged], *, as_json: bool) -> None:
    if as_json:
        for item, one in zip(items, found):
            print(json.dumps({"line": item.line, **asdict(one)}, ensure_ascii=True))
        return
    print(f"{'line':>6}  {'kind':<10}  {'verdict':<13}  {'score':>5}  read as the answer")
    for item, one in zip(items, found):
        print(one.line(item.line))
    counts = Counter(one.verdict for one in found)
    readable = sum(one.extractable for one in found) / len(found)
    print(f"\n{len(found)} answers: {', '.join(f'{counts[name]} {name}' for name in VERDICTS)}; {readable:.1%} readable")


def _read_value(text: str) -> Any:
    """TOML, or JSON of a table or list, as schemas are written, or else the text itself."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        return text


def read_params(kind: str, overrides: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE, of by_row KIND.KEY=VALUE; values are TOML or JSON, or else text. Raises RecipeError."""
    if kind == "reasoning_gym":
        raise RecipeError(_NO_GYM)
    if kind not in (*NAMES, BY_ROW):
        near = difflib.get_close_matches(kind, (*NAMES, BY_ROW), n=1)
        hint = f"did you mean {near[0]}?" if near else f"use {', '.join((*NAMES, BY_ROW))}"
        raise RecipeError(f"verifier {kind!r} is unknown; {hint}")
    params: dict[str, Any] = {}
    for override in overrides:
        key, found, text = override.partition("=")
        if not found or not key:
            raise RecipeError(f"{override!r} must look like KEY=VALUE, for example percent=strict")
        value = _read_value(text)
        table, name = params, key
        if kind == BY_ROW:
            owner, dot, name = key.partition(".")
            if not dot or owner not in NAMES:
                raise RecipeError(f"{override!r} must name the verifier too, for example math.percent=strict")
            table = params.setdefault(owner, {})
        if name in table:
            raise RecipeError(f"{key} is given twice; keep one of the two")
        table[name] = value
    for one in params if kind == BY_ROW else (kind,):
        check_function_params(one, params[one] if kind == BY_ROW else params, one)
    return params


def _one(args: argparse.Namespace) -> Item:
    if args.kind == BY_ROW:
        raise RecipeError(f"{BY_ROW} needs --jsonl, whose rows name their verifier in {' or '.join(ROW_COLUMNS)}")
    answer, gold = (_given(name, getattr(args, name), getattr(args, f"{name}_file")) for name in ("answer", "gold"))
    if answer is None:
        raise RecipeError("--answer is missing; give the completion, --answer-file FILE, or --answer - to read it")
    if gold is None and _needs_gold(args.kind):
        raise RecipeError(f"--gold is missing, which {args.kind} compares with; give it, or --gold-file FILE")
    return Item(args.kind, answer, gold)


def _needs_gold(kind: str) -> bool:
    return KINDS[kind].needs_gold if kind in KINDS else kind != "regex"


def _given(name: str, text: str | None, file: str | None) -> str | None:
    if text is not None and file is not None:
        raise RecipeError(f"--{name} and --{name}-file both give it; remove one")
    if file is not None:
        return _read(file)
    return sys.stdin.read() if text == "-" and name == "answer" else text


def _read(file: str) -> str:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        return text.removeprefix("\ufeff")  # the byte order mark that some editors write
    except OSError as error:
        raise DataError(f"{file}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from None


def read_rows(kind: str, file: str) -> list[Item]:
    """Raises DataError with the line that cannot be used."""
    items = []
    for number, line in enumerate(_read(file).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file} line {number} is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise DataError(f"{file} line {number} is no object, but {type(row).__name__}")
        items.append(_item(kind, row, f"{file} line {number}", number))
    if not items:
        raise DataError(f"{file} has no rows; each line is an object with answer and gold")
    return items


def _item(kind: str, row: Mapping[str, Any], where: str, number: int) -> Item:
    if kind == BY_ROW:
        kind = named_by(row)
        if " and " in kind:
            raise DataError(f"{where}: {' and '.join(ROW_COLUMNS)} name two verifiers, {kind}; keep one of them")
        if kind == "reasoning_gym":
            raise DataError(f"{where}: {_NO_GYM}")
        if kind not in NAMES:
            raise DataError(f"{where}: {' or '.join(ROW_COLUMNS)} is {kind!r}; use one of {', '.join(NAMES)}")
        if kind == "regex":
            raise DataError(f"{where}: regex needs a pattern; judge such rows with `milepost verify regex pattern=…`")
    written = next((name for name in _ANSWERS if name in row), None)
    if written is None or not isinstance(row[written], str):
        has = ", ".join(map(str, row)) or "nothing"
        raise DataError(f"{where} has no text under {', '.join(_ANSWERS)}; it has {has}")
    told = next((name for name in _GOLDS if name in row and name != written), None)
    if (told is None or row[told] is None) and _needs_gold(kind):
        raise DataError(f"{where} has no gold under gold or expected_answer, which {kind} compares with")
    return Item(kind, row[written], row[told] if told else None, number)
