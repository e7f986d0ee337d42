"""`milepost verify`: what it shows, its exit codes, and one sentence for what it cannot use."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from milepost.cli import main

KEYS = {"kind", "verdict", "score", "extracted", "extractable", "cause", "compared", "parts"}
TESTS = '{"entry_point": "add", "tests": [{"args": [1, 2], "expected": 3}, {"args": [0, 0], "expected": 0}]}'


def verify(capsys, *words):
    code = main(["verify", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["math", "--gold", "5/4", "--answer", r"\boxed{1 1/4}"], 0, {"score": 1, "extracted": "1 1/4"}),
        (["math", "--gold", "5/4", "--answer", r"-\frac12"], 1, {"verdict": "wrong", "score": 0, "extracted": r"-\frac12"}),
        (["math", "--gold", "-5", "--answer", "-5"], 0, {"verdict": "correct"}),
        (["math", "--gold", "5", "--answer", "Hm, hard to say."], 1, {"verdict": "unextractable", "extractable": False}),
        (["math", "--gold", r"\frac{1}{", "--answer", "1"], 1, {"score": None, "cause": "bad_gold"}),
        (["math", "percent=strict", "--gold", "0.28", "--answer", "28"], 1, {"verdict": "wrong"}),
        (["exact", "case_sensitive=false", "--gold", "Yes", "--answer", " yes"], 0, {"extracted": "yes"}),
        (["numeric", "--gold", "1000", "--answer", "1,000"], 0, {"extracted": "1000"}),
        (["numeric", "abs_tol=0.5", "--gold", "3", "--answer", "four"], 1, {"verdict": "unextractable"}),
        (["regex", "pattern=o+", "--answer", "foo"], 0, {"verdict": "correct"}),
        (["repetition", "--answer", "a b a b a b a b a b"], 1, {"verdict": "wrong"}),
        (["format", 'blocks=["think", "answer"]', "--answer", "<think>so</think><answer>4</answer>"], 0, {"score": 1}),
        (["code", "mode=fraction", "--gold", TESTS, "--answer", "```python\ndef add(a, b):\n    return 0\n```"], 1,
         {"score": 0.5, "verdict": "wrong", "parts": {"passed": 0.5, "hidden": 0.5}}),
    ],
)  # fmt: skip
def test_one_answer(capsys, words, code, expected):
    got, out, _ = verify(capsys, *words, "--json")
    found = json.loads(out)
    assert found.keys() == KEYS and {name: found[name] for name in expected} == expected and got == code


def test_in_words_escape_sequences_are_shown_and_not_obeyed(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("So:\n\\boxed{\x1b[31m4}"))
    code, out, _ = verify(capsys, "math", "--gold", "4", "--answer", "-")
    assert (
        code == 1
        and "\x1b" not in out
        and "extracted  ␛[31m4" in out
        and out.startswith("verdict    wrong\nscore      0\n")
    )


def test_a_file_of_rows(capsys, tmp_path):
    rows = [{"gold": "1/2", "answer": "0.5", "reward_type": "math"},
            {"answer": "yes", "completion": "no", "verifier": "exact"},
            {"expected_answer": {"calls": []}, "response": "No tool is needed.", "verifier": "tool_calls"},
            {"gold": "1/2", "answer": "0.28%", "reward_type": "math"}]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(map(json.dumps, rows)))
    code, out, _ = verify(capsys, "by_row", "--jsonl", str(path), "math.percent=strict")
    assert code == 1 and "4 answers: 2 correct, 2 wrong, 0 unextractable, 0 unscorable; 100.0% readable" in out
    code, out, _ = verify(capsys, "by_row", "--jsonl", str(path), "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(one["line"], one["kind"], one["score"]) for one in found] == [
        (1, "math", 1), (3, "exact", 0), (5, "tool_calls", 1), (7, "math", 0)]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["maths", "--gold", "1", "--answer", "1"], "verifier 'maths' is unknown; did you mean math?"),
        (["math", "percnt=1", "--gold", "1", "--answer", "1"], "math.percnt is not a parameter of math; it takes extract"),
        (["math", "percent=loose", "--gold", "1", "--answer", "1"], "must be one of lenient, strict"),
        (["math", "--gold", "1"], "--answer is missing"),
        (["math", "--answer", "1"], "--gold is missing, which math compares with"),
        (["math", "--gold", "1", "--answer", "1", "--answer-file", "x"], "--answer and --answer-file both give it"),
        (["math", "--gold", "1", "--answer-file", "nowhere.txt"], "nowhere.txt: No such file or directory"),
        (["math", "--gold", "1", "--jsonl", "x"], "--gold does nothing beside --jsonl"),
        (["by_row", "--gold", "1", "--answer", "1"], "by_row needs --jsonl"),
        (["by_row", "percent=strict", "--jsonl", "x"], "must name the verifier too"),
        (["reasoning_gym", "--answer", "1"], "reasoning_gym judges by the whole entry that its family generated"),
        (["regex", "--answer", "1"], "regex needs params.pattern"),
        (["format", "--answer", "1", "--seconds", "0"], "--seconds 0 must be"),
        (["format", "--answer", "1"], 'a form has one of "blocks" (names of tags), "boxes" (their number) and "schema"'),
        (["format", "--answer", "1", "--gold", "1", "opened=true"], "give it, for example boxes=1"),
        (["math", "percent=strict", "percent=lenient", "--gold", "1", "--answer", "1"], "percent is given twice"),
        (["by_row", "math.tag=a", "math.tag=a", "--jsonl", "x"], "math.tag is given twice"),
        (["math", "tag='<x>'", "--gold", "1", "--answer", "1"], "must be the name of a tag without <, > and blanks"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(capsys, words, sentence):
    code, out, err = verify(capsys, *words)
    assert code == 2 and not out and sentence in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "has no rows"), ("{", "line 1 is no JSON"), ("[1]", "line 1 is no object, but list"),
     ('{"gold": "1"}', "line 1 has no text under completion, response, answer; it has gold"),
     ('{"answer": "1"}', "line 1 has no gold under gold or expected_answer"),
     ('{"gold": "1", "answer": 1}', "no text under")],
)  # fmt: skip
def test_rows_that_cannot_be_used_are_named_by_line(capsys, tmp_path, text, sentence):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    code, _, err = verify(capsys, "math", "--jsonl", str(path))
    assert code == 2 and sentence in err and err.count("\n") == 1


@pytest.mark.parametrize(("row", "code", "says"), [
    ({"reward_type": "math", "verifier": "exact"}, 2, "reward_type and verifier name two verifiers, math and exact"),
    ({"reward_type": "math", "verifier": "math"}, 0, ""), ({"reward_type": "math", "verifier": None}, 0, ""),
    ({"verifier": "format"}, 2, "line 1: format does not know what to look for"),
    ({"verifier": "format", "gold": {"boxes": 1}, "completion": r"\boxed{4}"}, 0, ""),
])  # fmt: skip
def test_rows_name_one_verifier_and_a_byte_order_mark_is_no_part_of_them(capsys, tmp_path, row, code, says):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"gold": "x", "completion": "x"} | row), encoding="utf-8-sig")
    got, _, err = verify(capsys, "by_row", "--jsonl", str(path))
    assert got == code and says in err and err.count("\n") == (code == 2)


def test_a_form_in_the_gold_needs_no_setting_and_settings_are_optional(capsys):
    code, out, _ = verify(capsys, "format", "--gold", '{"boxes": 1}', "--answer", r"\boxed{4}", "--json")
    assert code == 0 and json.loads(out)["score"] == 1
    code, out, _ = verify(capsys, "format", "--gold", '{"boxes": 0}', "--answer", r"\boxed{4}", "--json")
    assert code == 1 and json.loads(out)["cause"] == "bad_gold"
    with pytest.raises(SystemExit):
        verify(capsys)
    err = capsys.readouterr().err
    assert "[KEY=VALUE ...]" in err and "required: KIND\n" in err


def test_rows_of_reasoning_gym_are_told_what_to_use_instead(capsys, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"gold": "1", "completion": "1", "verifier": "reasoning_gym"}')
    code, _, err = verify(capsys, "by_row", "--jsonl", str(path))
    assert code == 2 and "line 1: reasoning_gym judges by the whole entry" in err and "use a recipe with" in err


def test_an_output_that_knows_only_ascii_gets_escapes():
    command = [sys.executable, "-m", "milepost", "verify", "exact", "--gold", "Zoë", "--answer", "Zoë → ⟨5⟩"]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=120)
    assert done.returncode == 1 and b"Traceback" not in done.stderr and rb"Zo\xeb \u2192" in done.stdout
