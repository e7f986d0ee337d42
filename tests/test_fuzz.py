"""Mutated answers through every verifier that reads text: nothing raises, hangs, or runs as Python."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/fuzz_verifiers.py"


def loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


fuzz = loaded("fuzz_verifiers", SCRIPT)
FINE = {"score": 0.0, "cause": None, "extracted": None, "extractable": False, "compared": "", "parts": {}}


def slow(answer: str) -> dict:
    until = time.process_time() + 0.06
    while time.process_time() < until:
        pass
    return FINE


def test_two_thousand_answers_do_no_harm() -> None:
    """Cases 0 to 1,999, the same on every machine; `make nightly` plays more."""
    told = fuzz.hunt(120, most=2000, told=lambda text: None)
    assert told.num_cases == 2000 and told.cpu_seconds > 0
    assert not told.findings, told.text()


@pytest.mark.nightly
def test_minutes_of_answers_do_no_harm(record_property: Callable[[str, object], None]) -> None:
    minutes = float(os.environ.get("MILEPOST_FUZZ_MINUTES", "10"))
    told = fuzz.hunt(60 * minutes, first=int(time.time()), told=lambda text: None)
    record_property("fuzzed", {"first": told.first, "num_cases": told.num_cases, "cpu_seconds": told.cpu_seconds,
                               "slowest": told.slowest, "findings": told.findings[:20]})  # fmt: skip
    assert not told.findings, told.text()


def test_a_case_is_its_number() -> None:
    assert fuzz.case(7) == fuzz.case(7) and fuzz.case(7) != fuzz.case(8)
    kinds = {fuzz.case(number).kind for number in range(200)}
    assert kinds == {"math", "tool_calls", "format", "repetition", "code", "judge"}
    assert any(not fuzz.case(number).whole for number in range(200))


@pytest.mark.parametrize(("score", "says"), [
    (lambda answer: 1 / 0, "raised ZeroDivisionError"),
    (lambda answer: {**FINE, "score": float(bool(eval("1 + 1")))}, "did compile '1 + 1'"),
    (lambda answer: open("fuzzed", "w").close() or FINE, "did open 'fuzzed' w"),
    (lambda answer: os.system(":") or FINE, "did os.system"),
    (slow, "took 0.1 s"),
    (lambda answer: {**FINE, "score": None, "cause": "checker_error: X"}, "no score for a good gold: checker_error: X"),
    (lambda answer: {**FINE, "score": 1.0}, "pays 1 for what it could not read"),
    (lambda answer: {**FINE, "score": 1.5}, "score 1.5"),
    (lambda answer: {**FINE, "parts": {1, 2}}, "raised TypeError"),
    (lambda answer: {"score": 0.0}, "lacks"),
])  # fmt: skip
def test_what_it_looks_for_it_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, score, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fuzz, "LIMIT", 0.05)
    monkeypatch.setattr(fuzz, "case", lambda number: fuzz.Case(number, "math", "1", "x", {}, True))
    module = SimpleNamespace(check_gold=lambda gold: None, score=lambda *, answer, gold: score(answer))
    monkeypatch.setattr(fuzz, "module_of", lambda kind: module)
    if "listening" not in vars(fuzz):  # a hook stays for good, but only listens while a case is judged
        sys.addaudithook(fuzz._listen)
        fuzz.listening = True
    (finding,) = fuzz.play(numbers=[0])["findings"]
    assert finding.startswith("case 0 (math): ") and says in finding, finding


def test_an_answer_that_ends_its_process_is_named(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    ends = "    if one.number == 307:\n        import os\n\n        os._exit(0)\n    return sound(one)\n"
    planted.write_text(f"{SCRIPT.read_text()}\n\nsound = judge\n\n\ndef judge(one):\n{ends}")
    told = loaded("planted", planted).hunt(120, first=300, most=100, told=lambda text: None)
    assert told.num_cases == 100 and len(told.findings) == 1
    assert told.findings[0].startswith("case 307 (") and "ended its process: worker_died" in told.findings[0]
