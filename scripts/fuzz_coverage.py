"""Lets atheris look for answers that make a verifier's parser raise, hang, or break its contract, guided by coverage.

    pip install -e '.[fuzz]'
    python scripts/fuzz_coverage.py --minutes 60 --corpus fuzz-corpus

The corpus begins with the labelled answers and keeps what reached new code, so that a later hunt goes on where this one
stopped. It ends at the first finding, with the traceback and the answer in CORPUS-crash-…; replay it with --replay FILE.
scripts/fuzz_verifiers.py needs no atheris and judges whole answers in workers; this one reaches deeper into the parsers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["milepost.verifiers"]):
    from milepost.verifiers import broken, math, toolcalls
    from milepost.verifiers import format as form
    from milepost.verifiers.call_formats import FORMATS
    from milepost.verifiers.code_gold import extract_code
    from milepost.verifiers.extract import POLICIES, extract
    from milepost.verifiers.json_schema import bad_schema, misfit
    from milepost.verifiers.labelled import KINDS, labelled_pairs

MOST_SECONDS = 2.0
GOLDS = ("5", "1/3", "-7", "x+1", r"\{1,2\}", "(1,2)", "[0,1)", r"\sqrt2", r"28\%", "10 cm", "E", "even", "x>3",
    "101_2", "y=2x+1",
         r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"(-\infty,1)\cup(2,\infty)", "3+4i", r"\frac{\pi}{2}",
         r"\$5")  # fmt: skip
CALLS = {"tools": [{"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}},
    "required": ["a"]}},
                   {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}],
         "calls": [{"name": "add", "arguments": {"a": 1}}, {"name": "look", "arguments": {"at": "x"}}]}  # fmt: skip
FORMS: tuple[dict[str, Any], ...] = ({"blocks": ["think", "answer"]}, {"boxes": 1},
                                     {"schema": {"type": "object", "properties": {"a": {"type": "string"}},
                                     "required": ["a"]}})  # fmt: skip


def check(data: bytes) -> None:
    """One input: two bytes choose what reads the rest, as UTF-8 in which lone surrogates may stand."""
    if len(data) < 3:
        return
    which, choice, text = data[0] % 6, data[1], data[2:].decode("utf-8", "surrogateescape" if data[0] & 128 else "replace")
    began = time.process_time()
    (_mathematics, _golds, _calls, _forms, _extraction, _schema)[which](text, choice)
    spent = time.process_time() - began
    if spent > MOST_SECONDS:
        raise RuntimeError(f"took {spent:.1f} s")


def _mathematics(text: str, choice: int) -> None:
    gold = GOLDS[choice % len(GOLDS)]
    place = ("boxed", "line", "whole", "tag", "marker")[choice // len(GOLDS) % 5]
    answer = rf"\boxed{{{text}}}" if place == "boxed" else text
    kept(math.score(answer=answer, gold=gold, extract=place))


def _golds(text: str, choice: int) -> None:
    problem = math.check_gold(text)
    assert problem is None or isinstance(problem, str)
    if problem is None:
        kept(math.score(answer=text, gold=text, extract="whole"))
        for form_ in math.wrong(text)[:4] if choice < 64 else ():
            kept(math.score(answer=form_, gold=text))


def _calls(text: str, choice: int) -> None:
    kept(toolcalls.score(answer=text, gold=CALLS, format=FORMATS[choice % len(FORMATS)], decode_twice=choice > 127))


def _forms(text: str, choice: int) -> None:
    kept(form.score(answer=text, gold=FORMS[choice % len(FORMS)], opened=choice > 127))


def _extraction(text: str, choice: int) -> None:
    found, where = extract(text, POLICIES[choice % len(POLICIES)], opened=choice > 127)
    assert where and (found is None or found.strip())
    code = extract_code(text, "add")
    assert code is None or isinstance(code, str)


def _schema(text: str, choice: int) -> None:
    rule, _, value = text.partition("\n")
    try:
        rule, value = json.loads(rule), json.loads(value or "null")
    except (ValueError, RecursionError):
        return
    if bad_schema(rule) is None:
        wrong = misfit(value, rule)
        assert wrong is None or isinstance(wrong, str)
    kept(toolcalls.score(answer="<tool_call>", gold={"tools": [{"name": "f", "parameters": rule}], "calls": [value]}))


def kept(result: dict[str, Any]) -> None:
    """The contract of a verdict."""
    assert broken(result) is None and result["cause"] in (None, "bad_gold"), result


def seed(corpus: Path) -> None:
    """The labelled answers, one file each, behind the two bytes that lead to the parser of their kind."""
    corpus.mkdir(parents=True, exist_ok=True)
    leads = {"math": (0, 1, 4), "tool_calls": (2,), "format": (3,), "code": (4,)}
    for kind in KINDS:
        for number, pair in enumerate(labelled_pairs(kind)):
            for lead in leads.get(kind, ()):
                text = pair.gold if lead == 1 and isinstance(pair.gold, str) else pair.answer
                data = bytes((lead, number % 256)) + text.encode("utf-8", "replace")[:4000]
                (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    rules = ('{"type": "object", "properties": {"a": {"type": "integer"}}}\n{"a": 1}',
    '{"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"const": 1}}}\n1',
             '{"type": ["array"], "items": {"pattern": "a+"}, "uniqueItems": true}\n["a"]')  # fmt: skip
    for rule in rules:
        (corpus / hashlib.sha1(rule.encode()).hexdigest()).write_bytes(b"\x05\x00" + rule.encode())


def main() -> int:
    parser = argparse.ArgumentParser(description="fuzzes the verifiers' parsers, guided by coverage")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--corpus", type=Path, default=Path("fuzz-corpus"))
    parser.add_argument("--replay", type=Path, help="plays one file and ends")
    given = parser.parse_args()
    math.score(answer=r"\boxed{\int_0^1 x dx}", gold=r"\frac12")  # math-verify is slow to import
    if given.replay:
        check(given.replay.read_bytes())
        return 0
    seed(given.corpus)
    limits = [f"-max_total_time={round(60 * given.minutes)}", "-max_len=4096", "-timeout=60", "-report_slow_units=60",
              "-rss_limit_mb=2000", "-print_final_stats=1", f"-artifact_prefix={given.corpus}-"]  # fmt: skip
    atheris.Setup([sys.argv[0], *limits, str(given.corpus)], check)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
