"""The audit of reasoning-gym's scorers: it finds what is known to be bad, and what it found before; the page says so."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from milepost.families import AUDIT_FILE, Draw, audited, draw_families, refusal
from milepost.health.family_audit import Finding, _changed, _holds, _tries, audit
from milepost.types import RecipeError
from milepost.verifiers.gym import Ask, GymScorers

pytest.importorskip("reasoning_gym")

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts/audit_families.py"
VERDICT = ("safe", "sound", "evaluates")


def test_the_audit_finds_the_same_again() -> None:  # cases D24, D27
    """A sound family, one that evaluates, one that pays junk, one that raises."""
    families = ["chain_sum", "spiral_matrix", "game_of_life_halting", "prime_factorization"]
    found = {finding.family: finding.row() for finding in audit(families, size=2, size_of_pool=1)}
    for family in families:
        assert [found[family][key] for key in VERDICT] == [audited()[family][key] for key in VERDICT], found[family]
    assert found["chain_sum"]["sound"] and found["chain_sum"]["gold"] == 1.0
    assert "evaluates the answer as Python" in found["spiral_matrix"]["reason"] and found["spiral_matrix"]["safe"]
    assert found["game_of_life_halting"]["junk"] == 1.0
    assert "ValueError" in found["prime_factorization"]["reason"]


def test_the_audit_finds_scorers_that_pay_constants_and_numbers_cut_short() -> None:
    """nan and nan+1j, 0 and every beginning of the right number, the number of the other sign."""
    families = ["complex_arithmetic", "coin_flip", "gsm_symbolic", "products"]
    found = {finding.family: finding.row() for finding in audit(families, size=3, size_of_pool=1)}
    assert [found[family]["sound"] for family in families] == [False, False, False, True]
    assert found["complex_arithmetic"]["junk"] == 1.0 and found["gsm_symbolic"]["changed"] == 1.0
    assert found["coin_flip"]["changed"] == 1.0 and "OverflowError" in found["coin_flip"]["raised"]
    for family in families:
        assert found[family]["reason"] == audited()[family]["reason"]
        assert (refusal(family) is None) == found[family]["sound"] and refusal(family, [family]) is None


@pytest.mark.nightly
def test_the_audit_of_every_family_finds_the_same_again() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]


def test_the_page_says_what_the_audit_found() -> None:
    spec = importlib.util.spec_from_file_location("audit_families", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = script.page(json.loads(AUDIT_FILE.read_text(encoding="utf-8")))
    assert (ROOT / "docs/families.md").read_text(encoding="utf-8") == page, "run scripts/audit_families.py --page"
    for family, row in audited().items():
        assert f"| `{family}` | {'yes' if row['sound'] else 'no'} |" in page


@pytest.mark.parametrize(("changes", "says"), [
    ({}, ""),
    ({"evaluates": True, "junk": 1.0}, "its scorer evaluates the answer as Python, so that an answer can give itself any "
     "score"),
    ({"gold": 0.01}, "its scorer gives its own stored answer 0.01"),
    ({"gold": None}, "it stores no right answer to check its scorer by"),
    ({"junk": 0.25}, "its scorer pays 0.25 for junk"),
    ({"junk": 0.1}, ""),
    ({"copied": 1.0}, "its scorer takes the question for the answer"),
    ({"hedged": 0.5}, ""),
    ({"hedged": 1.0}, "its scorer takes two answers, of which one is right, for a right one"),
    ({"changed": 1.0}, "its scorer takes a right answer with one number changed for a right one"),
    ({"repeats": False}, "its scorer depends on the hash seed"),
    ({"raised": "KeyError"}, "its scorer raises KeyError on some answers"),
    ({"hangs": True}, "its scorer takes over 3 s for some answers"),
])  # fmt: skip
def test_why_a_family_is_unsound(changes: dict[str, Any], says: str) -> None:
    finding = Finding("x", 3, **({"gold": 1.0} | changes))
    assert finding.reason == says and finding.safe
    assert not Finding("x", 3, gold=1.0, broken=True).safe
    assert Finding("x", 0, undrawn="no").row()["reason"] == "no tasks can be drawn: no"


def test_what_is_tried() -> None:
    entries = [{"question": "2 + 3", "answer": "5"}, {"question": "a list", "answer": "[1, 2.5]"}]
    tried: dict[str, list[str | None]] = {}
    for kind, text, _ in _tries(entries):
        tried.setdefault(kind, []).append(text)
    assert tried["gold"] == ["5", "[1, 2.5]"]
    assert tried["changed"] == ["6", "-5", "0", "[1, 3.5]", "[1, -2.5]", "[1, 2]", "[1, 0]"]
    assert tried["copied"] == ["2 + 3", "a list"] and tried["other"] == ["[1, 2.5]", "5"]
    assert tried["hedged"][:4] == ["[1, 2.5]\n5", "5\n[1, 2.5]", "[1, 2.5] or 5", "5 or [1, 2.5]"]  # both orders, in pairs
    assert None in tried["junk"] and "" in tried["junk"] and max(len(text or "") for text in tried["junk"]) == 10_000
    assert {"nan", "1e999", "nan+1j"} <= set(tried["junk"]) and "0" not in tried["junk"]
    words = [{"question": "who?", "answer": "Bob"}, {"question": "?", "answer": "10 a"}, {"question": "?", "answer": None}]
    assert [entry["answer"] for kind, text, entry in _tries(words) if kind == "junk" and text == "0"] == ["Bob", None]
    assert _holds("None", "on") and not _holds("zzz", "on") and not _holds("zzz", None)


@pytest.mark.parametrize(("gold", "changed"), [
    ("77", ["78", "-77", "7", "0"]), ("-77", ["-78", "77", "-7", "0"]), ("0", ["1"]), ("a1", ["a2"]),
    ("0.8125", ["1.8125", "-0.8125", "0.8", "0"]), ("5.0", ["6.0", "-5.0", "0"]),
    ("0.05", ["1.05", "-0.05", "0.0", "0"]), ("-0.5", ["-1.5", "0.5", "-0", "0"]),
    ("True", []), ("-5.0 + 20.0i", ["-5.0 + 21.0i", "5.0 + 20.0i", "0 + 20.0i"]), ("2024-01-05", ["2024-01-6"]),
    ("x = 3, y = 12", ["x = 3, y = 13", "x = 3, y = -12", "x = 3, y = 1", "x = 3, y = 0"]),
])  # fmt: skip
def test_right_answers_with_a_number_changed(gold: str, changed: list[str]) -> None:
    assert list(_changed(gold)) == changed


@pytest.fixture(scope="module")
def entries() -> dict[str, Any]:
    families = ["chain_sum", "countdown"]
    replies = draw_families([Draw(family, {}, 2, 0, "test") for family in families])
    assert replies is not None
    return {family: reply["rows"][0][1] for family, reply in zip(families, replies)}


def test_an_answer_that_fails_costs_no_other(entries: dict[str, Any]) -> None:
    entry = entries["chain_sum"]
    broken = {key: value for key, value in entry.items() if key != "answer"}
    right = entry["answer"]
    tries = [(right, entry), ("1", broken), (right, entry), (None, entry), (f"{right}.0", entry)]
    asks = [Ask(text, "chain_sum", {}, own) for text, own in tries]
    gym = GymScorers(1)
    answers = gym.score(asks, 60.0)
    assert [answer.value for answer in answers] == [1.0, None, 1.0, 0.0, 1.0]
    assert answers[1].failure == "error: KeyError" and gym.num_calls == 5 and gym.cpu_seconds > 0
    assert gym.network_blocked


def test_an_answer_that_is_evaluated_ends_itself_alone(entries: dict[str, Any]) -> None:
    entry = entries["countdown"]
    asks = [Ask(text, "countdown", {}, entry) for text in ("__import__('os')._exit(0)", entry["answer"])]
    with pytest.raises(RecipeError, match=r"countdown is refused: see docs/families\.md"):
        GymScorers(1).score(asks, 60.0)
    for together in (lambda family: True, lambda family: False):  # in one process, the others go on in a new one
        answers = GymScorers(1, sound_only=False, together=together).score(asks, 60.0)
        assert [(answer.value, answer.failure) for answer in answers] == [(None, "worker_died"), (1.0, None)]
