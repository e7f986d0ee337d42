"""Tasks: sources, row checks, stable splits, order, mixtures, demonstrations."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.demonstrations import demonstrations
from milepost.sections import SftSection, SourceSection, TasksSection
from milepost.sources import load_function
from milepost.tasks import TaskOrder, TaskSet, allot, load_tasks
from milepost.types import DataError, RecipeError, Task


def section(**values: Any) -> TasksSection:
    return TasksSection(**{"validation": 0, "test": 0, **values})


def numbered(n: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"prompt": f"{i} + 1 = ?", "answer": str(i + 1)} for i in range(start, start + n)]


def jsonl(path: Path, rows: list[Any]) -> SourceSection:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return SourceSection(path=str(path))


def load(rows: Any, **values: Any) -> TaskSet:
    return load_tasks(section(**values), 0, rows=rows)


# --- rows ---------------------------------------------------------------------------------------------------------


def test_jsonl_rows_keep_every_column(tmp_path: Path) -> None:
    rows = [{"prompt": "2+2?", "expected_answer": 4, "level": 3, "tests": ["a"]}]
    (task,) = load_tasks(section(sources=[jsonl(tmp_path / "sums.jsonl", rows)]), 0).train
    assert (task.prompt, task.answer, task.source, task.split) == ("2+2?", 4, "sums", "train")
    assert task.columns == {"level": 3, "tests": ["a"], "expected_answer": 4}
    assert len(task.key) == 16


def test_answer_goes_before_expected_answer_and_a_named_column_before_both() -> None:
    row = {"prompt": "q", "answer": "a", "expected_answer": "e", "solution": "s"}
    assert load([row]).train[0].answer == "a"
    named = load([row], answer_column="solution").train[0]
    assert named.answer == "s"
    assert named.columns == {"expected_answer": "e", "solution": "s"}
    assert load([{**row, "answer": None}]).train[0].answer == "e"


def test_the_report_spells_out_what_a_terminal_would_obey(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"prompt": "1+1?", "answer": "2"}\n\x1b[2Jnot\x00json\n')
    text = str(load_tasks(section(sources=[SourceSection(path=str(path))]), 0).report)
    assert r"\x1b[2Jnot\x00json" in text and "\x1b" not in text and "\x00" not in text


def test_bad_rows_are_named_by_line_and_cause(tmp_path: Path) -> None:
    good = {"prompt": "1+1?", "answer": "2"}
    lines: list[tuple[str, str | None]] = [
        (json.dumps(good), None),
        ("", None),
        ("{not json", "not JSON"),
        ("[1, 2]", "not an object"),
        (json.dumps({"prompt": "  ", "answer": "2"}), "empty prompt"),
        (json.dumps({"prompt": "1+2?", "answer": " "}), "empty answer"),
        (json.dumps({"prompt": "1+2?", "answer": None}), "empty answer"),
        ('{"prompt": "1+2?", "answer": NaN}', "empty answer"),
        ('{"prompt": "half?", "answer": "\\frac12"}', "control characters"),  # case D15: \f is a form feed
        ('{"prompt": "unit?", "answer": "3 \\text{cm}"}', "control characters"),  # \t ate "\text{"
        ('{"prompt": "half?", "answer": ["\\bar x"]}', "control characters"),  # \b, inside a list
        ('{"prompt": "a\\u0000b", "answer": "1"}', "control characters"),
        ('{"prompt": "a\\ud800b", "answer": "1"}', "control characters"),  # a lone surrogate cannot be encoded
        (json.dumps(good), "duplicate"),
        (json.dumps({**good, "prompt": "1+1? \n"}), "duplicate"),
        (json.dumps({**good, "answer": "3"}), "duplicate with another answer"),
        (json.dumps({"question": "1+3?", "answer": "4"}), "missing column"),
        (json.dumps({"prompt": "1+4?", "gold": "5"}), "missing column"),
        (json.dumps({"prompt": 5, "answer": "5"}), "bad prompt"),
        (json.dumps({"prompt": "1+6?", "answer": "7", "split": "exam"}), "unknown split"),
        (json.dumps({"prompt": "grid?", "answer": "1\t2\n3\t4\r\n"}), None),  # tabs and line breaks are clean
        (json.dumps({"prompt": "zero?", "answer": 0}), None),
        (json.dumps({"prompt": "no?", "answer": False}), None),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(text for text, _ in lines), encoding="utf-8")
    loaded = load_tasks(section(sources=[SourceSection(path=str(path))]), 0)
    expected = [(number, cause) for number, (_, cause) in enumerate(lines, start=1) if cause]
    assert sorted((row.line, row.cause) for row in loaded.report.bad) == expected
    assert [task.prompt for task in loaded.train] == ["1+1?", "grid?", "zero?", "no?"]
    assert loaded.report.num_usable == 4
    assert loaded.report.num_rows == 22  # 23 lines, one of them blank
    assert loaded.report.counts["control characters"] == 5
    text = str(loaded.report)
    assert "4 of 22 rows usable (4 train, 0 validation, 0 test)" in text
    assert "5 × control characters: rows line 9 (U+000C in answer; write backslashes doubled)" in text


def test_bytes_that_are_no_utf8_spoil_one_line_and_a_byte_order_mark_none(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "answer": "1"}\n{"prompt": "\xff", "answer": "1"}\n')
    report = load_tasks(section(sources=[SourceSection(path=str(path))]), 0).report
    assert [(row.line, row.cause) for row in report.bad] == [(2, "not JSON")]
    assert report.num_usable == 1


@pytest.mark.parametrize("value", ["9" * 6000, "[" * 100_000 + "]" * 100_000])
def test_json_that_python_will_not_read_spoils_one_line(tmp_path: Path, value: str) -> None:
    source = jsonl(tmp_path / "rows.jsonl", numbered(4))
    with open(source.path, "a", encoding="utf-8") as file:
        file.write(f'{{"prompt": "q", "answer": {value}}}\n')
    report = load_tasks(section(sources=[source], validation=0, test=0), 0).report
    assert [(row.line, row.cause) for row in report.bad] == [(5, "not JSON")]
    assert report.num_usable == 4


def test_a_missing_column_is_named_with_the_columns_there_are() -> None:  # case J6
    with pytest.raises(DataError, match=r"'prompt'.*columns question, answer; set tasks.prompt_column = \"question\""):
        load([{"question": "q", "answer": "a"}])
    with pytest.raises(DataError, match=r"no gold column answer or expected_answer.*prompt, solution.*\"solution\""):
        load([{"prompt": "q", "solution": "a"}])
    with pytest.raises(DataError, match=r"no gold column gold: .*prompt, answer"):
        load([{"prompt": "q", "answer": "a"}], answer_column="gold")
    assert load([{"prompt": "q", "tests": "t"}], answer_column="none").train[0].answer is None


def test_no_usable_task_is_refused_with_the_causes() -> None:
    with pytest.raises(DataError, match=r"no usable task: .*2 × empty answer: rows line 1 .*line 2"):
        load([{"prompt": "q", "answer": ""}, {"prompt": "r", "answer": []}])
    with pytest.raises(DataError, match="no usable task"):
        load([])
    with pytest.raises(DataError, match="1 × not an object"):
        load(["text"])


def test_a_gold_that_its_own_checker_rejects_is_dropped_and_counted() -> None:
    def check(tasks: Sequence[Task]) -> list[str | None]:
        if any(task.answer == "3" for task in tasks):
            raise ValueError("boom")  # then each is asked about alone
        return [None if int(task.answer) % 2 else "even" for task in tasks]

    loaded = load_tasks(section(), 0, rows=numbered(4), check=check)  # golds 1, 2, 3, 4
    assert [task.answer for task in loaded.train] == ["1"]
    assert [(row.line, row.detail) for row in loaded.report.bad] == [
        (2, "even"),
        (3, "the checker raised ValueError: boom"),
        (4, "even"),
    ]
    for says, advice in (
        ("odd", r"correct the answers, or the settings of \[reward\] that reject them$"),
        ("reward.canary_good gives 'x', which scores 0", r"; set reward\.canary_good to a completion that .*\{answer\}"),
    ):
        with pytest.raises(DataError, match=advice):
            load_tasks(section(), 0, rows=numbered(4), check=lambda tasks, says=says: [says] * len(tasks))
    no_gold = [{"prompt": "q"}]
    assert load_tasks(section(answer_column="none"), 0, rows=no_gold, check=lambda tasks: ["no"]).report.num_usable == 1


def test_overlong_prompts_are_dropped_and_counted_or_refused() -> None:  # cases B20 and J4
    rows = [{"prompt": "a b c", "answer": "1"}, {"prompt": "a b c d", "answer": "1"}]

    def length(task: Task) -> int:  # counts what is sent: system message and template included
        return sum(len(message["content"].split()) for message in task.prompt if not isinstance(message, str))

    shaped = {"system": "be brief", "template": "{prompt} please", "max_prompt_tokens": 6}
    loaded = load_tasks(section(**shaped), 0, rows=rows, length=length)
    assert [task.prompt[1]["content"] for task in loaded.train] == ["a b c please"]  # type: ignore[index]
    assert [(row.line, row.cause, row.detail) for row in loaded.report.bad] == [(2, "over-long", "7 tokens, limit 6")]
    far = load_tasks(section(**{**shaped, "max_prompt_tokens": 2}), 0, rows=[*rows[:1], {"prompt": "e", "answer": "1"}],
                     length=lambda task: 5 if "a b c" in task.prompt[1]["content"] else 2)  # fmt: skip
    assert far.report.bad[0].detail == "at least 5 tokens, limit 2"  # beyond twice the limit nobody has to count on
    with pytest.raises(DataError, match=r"line 2: the prompt has 7 tokens, over tasks.max_prompt_tokens = 6"):
        load_tasks(section(**shaped, overlong="error"), 0, rows=rows, length=length)


def test_a_prompt_that_cannot_be_encoded_is_named_by_source_and_line() -> None:
    def length(task: Task) -> int:
        if task.prompt == "c":
            raise DataError("the tokenizer does not know 'c'")
        return 1

    with pytest.raises(DataError, match=r"^rows line 3: the tokenizer does not know 'c'$"):
        load_tasks(section(), 0, rows=[{"prompt": p, "answer": "1"} for p in "abcd"], length=length)


# --- prompts ------------------------------------------------------------------------------------------------------


def test_text_prompts_stay_text_unless_there_is_a_system_message() -> None:
    row = [{"prompt": "2+2?", "answer": "4"}]
    assert load(row, template="Q: {prompt} Use \\boxed{}.").train[0].prompt == "Q: 2+2? Use \\boxed{}."
    assert load(row, system="Be brief.", template="Q: {prompt}").train[0].prompt == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q: 2+2?"},
    )
    with pytest.raises(RecipeError, match=r"must contain \{prompt\}"):
        load(row, template="Question: ")


def test_messages_take_the_template_on_the_last_user_message_and_join_system_messages() -> None:
    messages = [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2", "name": None},
        {"role": "user", "content": "2+2?"},
    ]
    task = load([{"prompt": messages, "answer": "4"}], system="Be brief.", template="<{prompt}>").train[0]
    assert task.prompt == (
        {"role": "system", "content": "Be brief.\n\nYou add."},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "<2+2?>"},
    )
    bad = [
        ([{"role": "assistant", "content": "x"}], "empty prompt"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "bad prompt"),
        ([{"role": "robot", "content": "x"}], "bad prompt"),
        ([{"role": "user", "content": [{"type": "image"}]}], "bad prompt"),
        ([], "empty prompt"),
    ]
    rows = [{"prompt": prompt, "answer": "1"} for prompt, _ in bad] + numbered(1)
    assert [row.cause for row in load(rows).report.bad] == [cause for _, cause in bad]


def test_a_text_and_its_one_user_message_are_duplicates() -> None:
    rows = [{"prompt": "q", "answer": "1"}, {"prompt": [{"role": "user", "content": "q"}], "answer": "1"}]
    assert load(rows).report.counts == {"duplicate": 1}


# --- keys and splits ----------------------------------------------------------------------------------------------


def keys(tasks: tuple[Task, ...]) -> set[str]:
    return {task.key for task in tasks}


def test_keys_depend_on_content_alone() -> None:
    rows = numbered(20)
    one = load(rows)
    other = load(rows[::-1], system="Be brief.", template="{prompt}!")
    assert [task.key for task in one.train] == [task.key for task in other.train][::-1]
    assert len(keys(one.train)) == 20
    assert keys(load([{**rows[0], "answer": "2"}]).train).isdisjoint(keys(one.train))
    assert load([{**rows[0], "level": 9}]).train[0].key == one.train[0].key


def test_splits_have_exact_counts_and_ignore_the_order_of_rows() -> None:
    rows = numbered(50)
    one = load(rows, validation=7, test=11)
    assert (len(one.train), len(one.validation), len(one.test)) == (32, 7, 11)
    assert {task.split for task in one.validation} == {"validation"}
    assert {task.split for task in one.test} == {"test"}
    assert one.report.splits == {"train": 32, "validation": 7, "test": 11}
    random.Random(3).shuffle(rows)
    other = load(rows, validation=7, test=11)
    assert [task.key for task in one.test] == [task.key for task in other.test]
    assert [task.key for task in one.validation] == [task.key for task in other.validation]
    again = load_tasks(section(validation=7, test=11), 1, rows=rows)
    assert keys(again.test) != keys(one.test)


@settings(max_examples=40, deadline=None)
@given(before=st.integers(12, 60), added=st.integers(0, 60), seed=st.integers(0, 5))
def test_appended_rows_never_move_a_training_task_into_a_held_out_split(before: int, added: int, seed: int) -> None:
    rows = numbered(before + added)
    shape = section(validation=4, test=5)
    old, new = load_tasks(shape, seed, rows=rows[:before]), load_tasks(shape, seed, rows=rows)
    all_old = keys(old.train) | keys(old.validation) | keys(old.test)
    assert keys(new.test) & all_old <= keys(old.test)
    assert keys(new.validation) & all_old <= keys(old.validation) | keys(old.test)
    assert keys(old.train) <= keys(new.train)


def test_held_out_counts_that_leave_nothing_to_train_on_are_refused() -> None:
    with pytest.raises(DataError, match=r"tasks.validation = 64 and tasks.test = 200 .* of its 100 .* set both to 20"):
        load(numbered(100), validation=64, test=200)
    assert len(load(numbered(100), validation=20, test=20).train) == 60


def test_labelled_rows_are_held_out_as_they_say_and_missing_splits_are_drawn() -> None:
    rows = [{**row, "split": "test"} for row in numbered(6)] + [{**row, "split": "train"} for row in numbered(20, 100)]
    loaded = load(rows, validation=3, test=4)
    assert (len(loaded.test), len(loaded.validation), len(loaded.train)) == (4, 3, 17)
    labelled = {f"{i} + 1 = ?" for i in range(6)}
    assert {task.prompt for task in loaded.test} <= labelled
    assert not {task.prompt for task in loaded.train + loaded.validation} & labelled
    assert loaded.report.notes == ("rows: 6 rows labelled test, 4 wanted, 4 used",)
    only_test = load([{**row, "split": "test"} for row in numbered(6)], validation=2, test=6)
    assert (len(only_test.train), len(only_test.validation), len(only_test.test)) == (0, 0, 6)


def test_one_prompt_in_two_splits_is_refused_even_with_another_answer() -> None:
    rows = [{**numbered(1)[0], "split": "test"}, {**numbered(1)[0], "answer": "other", "split": "train"}]
    with pytest.raises(DataError, match=r"two splits: test \(rows line 1\) and train \(rows line 2\)"):
        load(rows, test=1)


def test_held_out_shares_follow_the_weights(tmp_path: Path) -> None:
    assert allot(10, {"a": 3, "b": 1}) == {"a": 8, "b": 2}  # 7.5 and 2.5: the tie goes to the earlier name
    assert allot(7, {"a": 1, "b": 1, "c": 1}) == {"a": 3, "b": 2, "c": 2}
    sources = [
        jsonl(tmp_path / "a.jsonl", numbered(30)).model_copy(update={"weight": 3.0}),
        jsonl(tmp_path / "b.jsonl", numbered(30, 100)),
    ]
    loaded = load_tasks(section(sources=sources, validation=4, test=8), 0)
    assert Counter(task.source for task in loaded.test) == {"a": 6, "b": 2}
    assert Counter(task.source for task in loaded.validation) == {"a": 3, "b": 1}
    assert loaded.sources == {"a": 3.0, "b": 1.0}
    # More rows in one source leave the other's splits alone.
    sources[1] = jsonl(tmp_path / "b.jsonl", numbered(90, 100))
    more = load_tasks(section(sources=sources, validation=4, test=8), 0)
    assert {t.key for t in more.test if t.source == "a"} == {t.key for t in loaded.test if t.source == "a"}


# --- sources ------------------------------------------------------------------------------------------------------


def test_settings_of_sources_that_cannot_work_are_refused_in_a_sentence(tmp_path: Path) -> None:
    def refused(match: str, **values: Any) -> None:
        with pytest.raises(RecipeError, match=match):
            load_tasks(section(sources=[SourceSection(**values)]), 0)

    refused(r"tasks.sources\[0\].path = 'none.jsonl': No such file", path="none.jsonl")
    refused(r"path is empty; give the JSONL file", kind="jsonl")
    refused(r"params does nothing for a JSONL file", path="x.jsonl", params={"a": 1})
    refused(r"must look like module:function", kind="function", path="milepost.tasks")
    refused(r"cannot be imported \(ModuleNotFoundError", kind="function", path="no_such_module_x:f")
    refused(r"has no function 'f'", kind="function", path="milepost.streams:f")
    refused(r"there is no such file or folder", kind="datasets", path=str(tmp_path / "none"))
    (tmp_path / "array.jsonl").write_text('[{"prompt": "a", "answer": "1"}]')
    refused("one JSON array; write one object per line", path=str(tmp_path / "array.jsonl"))
    with pytest.raises(RecipeError, match=r"tasks.sources is empty"):
        load_tasks(section(), 0)
    (tmp_path / "b").mkdir()
    twice = [jsonl(tmp_path / "a.jsonl", numbered(2)), jsonl(tmp_path / "b" / "a.jsonl", numbered(2))]
    with pytest.raises(RecipeError, match="two sources are both called 'a'"):
        load_tasks(section(sources=twice), 0)
    with pytest.raises(RecipeError, match="rows= were both given"):
        load_tasks(section(sources=twice), 0, rows=numbered(2))


def test_data_sets_in_memory_and_on_disk_give_the_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    held = datasets.Dataset.from_list(numbered(12))
    loaded = load(held, test=2)
    assert len(loaded.train) == 10
    parts = datasets.DatasetDict({"train": held, "test": datasets.Dataset.from_list(numbered(3, 50))})
    by_split = load(parts, test=3)
    assert {task.prompt for task in by_split.test} == {"50 + 1 = ?", "51 + 1 = ?", "52 + 1 = ?"}
    parts.save_to_disk(str(tmp_path / "saved"))
    source = SourceSection(kind="datasets", path=str(tmp_path / "saved"), name="saved")
    from_disk = load_tasks(section(sources=[source], test=3), 0)
    assert {task.prompt for task in from_disk.test} == {task.prompt for task in by_split.test}
    assert len(from_disk.train) == 12


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("rows.jsonl", "no such file or folder in .*; correct it$"),
        ("./rows", "no such file or folder"),
        ("~/rows of nobody", "no such file or folder"),
        ("/nowhere/rows", "no such file or folder"),
        ("here/rows", 'correct it, or write "hf://datasets/here/rows" if it is meant on the hub'),
        ("a/b/rows", "no such file or folder"),
        ("here/held.csv", 'is a file, .* set path = "csv" and params = { data_files = "here/held.csv" }'),
    ],
)
def test_a_data_set_that_is_meant_here_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: Any, path: str, says: str
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/held.csv").write_text("prompt,answer\n1+1?,2\n")
    with pytest.raises(RecipeError, match=says) as error:
        load_tasks(section(sources=[SourceSection(kind="datasets", path=path)]), 0)
    assert "tasks.sources[0].path = " in str(error.value) and "\n" not in str(error.value)


def test_what_the_refusal_of_a_file_advises_works(tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "held.csv").write_text("prompt,answer\n1+1?,2\n")
    source = SourceSection(kind="datasets", path="csv", params={"data_files": str(tmp_path / "held.csv")})
    assert [task.prompt for task in load_tasks(section(sources=[source]), 0).train] == ["1+1?"]


def test_function_sources_get_params_size_and_seed_and_leave_random_state_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import random\nimport numpy as np\n"
        "def rows(size, seed, low):\n"
        "    for i in range(size):\n"
        "        yield {'prompt': f'{seed} {i} {random.random()} {np.random.rand()}', 'answer': low + i}\n"
        "def endless():\n    i = 0\n    while True:\n        i += 1\n        yield {'prompt': str(i), 'answer': i}\n"
        "def broken():\n    raise KeyError('x')\n"
    )

    def source(name: str, **values: Any) -> TasksSection:
        return section(sources=[SourceSection(kind="function", path=f"{tmp_path / 'mine.py'}:{name}", **values)])

    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    one = load_tasks(source("rows", size=3, params={"low": 7}), 4)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    random.seed(6)
    np.random.seed(6)
    other = load_tasks(source("rows", size=3, params={"low": 7}), 4)
    assert [task.prompt for task in one.train] == [task.prompt for task in other.train]
    assert [task.answer for task in one.train] == [7, 8, 9]
    assert str(one.train[0].prompt).startswith("4 0 ")
    assert len(load_tasks(source("endless", size=5), 0).train) == 5
    with pytest.raises(RecipeError, match="the function raised KeyError"):
        load_tasks(source("broken"), 0)
    assert load_function("math:sqrt", "x")(9) == 3


# --- order --------------------------------------------------------------------------------------------------------


def tasks_of(**counts: int) -> list[Task]:
    return [Task(key=f"{name}{i}", prompt=f"{name}{i}", source=name) for name, n in counts.items() for i in range(n)]


def test_as_given_keeps_a_curriculum_and_runs_on_into_the_next_epoch() -> None:  # case I7
    order = TaskOrder(tasks_of(a=5), "as_given", 0)
    assert [[task.key for task in order.take(4)] for _ in range(3)] == [
        ["a0", "a1", "a2", "a3"],
        ["a4", "a0", "a1", "a2"],
        ["a3", "a4", "a0", "a1"],
    ]
    assert order.epochs == {"": 12 / 5}


def test_more_prompts_per_step_than_tasks_are_refused() -> None:  # case J8: never zero steps
    order = TaskOrder(tasks_of(a=3), "shuffled", 0)
    with pytest.raises(DataError, match=r"rollout.prompts_per_step = 8 .* only 3; use rollout.prompts_per_step = 3"):
        order.take(8)
    assert sorted(task.key for task in order.take(3)) == ["a0", "a1", "a2"]
    with pytest.raises(DataError, match="no training task"):
        TaskOrder([], "shuffled", 0)


def test_a_weight_that_a_source_cannot_fill_is_refused() -> None:
    order = TaskOrder(tasks_of(a=2, b=50), "shuffled", 0, {"a": 9.0, "b": 1.0})
    with pytest.raises(DataError, match=r"source 'a' has 2 training tasks, .* 7.2 of rollout.prompts_per_step = 8"):
        order.take(8)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 12), sizes=st.lists(st.integers(1, 15), min_size=1, max_size=3), seed=st.integers(0, 3),
    order=st.sampled_from(["shuffled", "as_given"]), resume_at=st.integers(0, 9),
)  # fmt: skip
def test_takes_hold_different_tasks_fill_epochs_evenly_and_resume(
    n: int, sizes: list[int], seed: int, order: Any, resume_at: int
) -> None:
    tasks = tasks_of(**{f"s{i}": size for i, size in enumerate(sizes)})
    n = min(n, len(tasks))
    one = TaskOrder(tasks, order, seed)
    whole = []
    for number in range(10):
        if number == resume_at:
            saved = json.loads(json.dumps(one.state()))
        whole.append([task.key for task in one.take(n)])
    assert all(len(set(step)) == n for step in whole)
    drawn = Counter(key for step in whole for key in step)
    assert max(drawn.values()) - min(drawn[task.key] for task in tasks) <= 1
    other = TaskOrder(tasks, order, seed)
    other.load_state(saved)
    assert [[task.key for task in other.take(n)] for _ in range(10 - resume_at)] == whole[resume_at:]


def test_shuffled_epochs_differ_and_follow_the_seed() -> None:
    def epochs(seed: int) -> list[list[str]]:
        order = TaskOrder(tasks_of(a=30), "shuffled", seed)
        return [[task.key for task in order.take(30)] for _ in range(2)]

    assert epochs(0) == epochs(0)
    assert epochs(0)[0] != epochs(0)[1]
    assert epochs(0)[0] != epochs(1)[0]


def test_a_state_of_other_tasks_is_refused() -> None:
    state = TaskOrder(tasks_of(a=5), "shuffled", 0).state()
    for other in (TaskOrder(tasks_of(a=6), "shuffled", 0), TaskOrder(tasks_of(a=5), "shuffled", 1)):
        with pytest.raises(DataError, match="belongs to other tasks"):
            other.load_state(state)


def test_mixtures_are_interleaved_by_weight() -> None:
    order = TaskOrder(tasks_of(a=40, b=40), "as_given", 0, {"a": 3.0, "b": 1.0})
    # Shares ¾ and ¼. Behind by (¾, ¼) → a; (½, ½) → a, the earlier; (¼, ¾) → b; (1, 0) → a; and again.
    assert "".join(task.source for task in order.take(8)) == "aabaaaba"


@settings(max_examples=60, deadline=None)
@given(weights=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5), n=st.integers(1, 9))
def test_no_source_runs_ahead_of_its_share(weights: list[float], n: int) -> None:
    names = {f"s{i}": weight for i, weight in enumerate(weights)}
    order = TaskOrder(tasks_of(**dict.fromkeys(names, 10)), "shuffled", 0, names)
    drawn: Counter[str] = Counter()
    for step in range(1, 20):
        drawn.update(task.source for task in order.take(n))
        for name, weight in names.items():
            share = step * n * weight / sum(weights)
            assert drawn[name] < share + 1
            assert drawn[name] > share - len(names)


# --- demonstrations -----------------------------------------------------------------------------------------------


def test_a_template_is_filled_in_with_answer_and_columns() -> None:
    tasks = load([{"prompt": "2+2?", "answer": "4", "steps": "2+2=4"}]).train
    made = demonstrations(SftSection(demonstrations="{steps}\nAnswer: {{{answer}}}"), tasks)
    assert made == [(tasks[0], "2+2=4\nAnswer: {4}")]
    with pytest.raises(RecipeError, match=r"KeyError: 'work'.*may use answer, steps"):
        demonstrations(SftSection(demonstrations="{work}"), tasks)
    for nothing in (r"\boxed{{answer}}", "{{answer}} {{steps}}"):  # else every demonstration would say "answer"
        with pytest.raises(RecipeError, match=r"fills in nothing, .*; {answer} within braces is {{{answer}}}"):
            demonstrations(SftSection(demonstrations=nothing), tasks)
    literal = demonstrations(SftSection(demonstrations="{{steps}} {answer}"), tasks)
    assert [made.completion for made in literal] == ["{steps} 4"]
    with pytest.raises(RecipeError, match=r"neither a .jsonl file nor module:function nor a template"):
        demonstrations(SftSection(demonstrations="Answer"), tasks)
    with pytest.raises(DataError, match="needs a gold answer"):
        demonstrations(SftSection(demonstrations="{answer}"), [Task(key="k", prompt="p")])


def test_a_function_demonstrates_what_it_likes(tmp_path: Path) -> None:
    file = tmp_path / "shows.py"
    file.write_text(
        "import random\n"
        "def half(answer): return f'{answer}' if random.random() < 0.5 else None\n"
        "def number(answer, **columns): return 7\n"
        "def broken(answer, work): return work\n"
    )
    tasks = load(numbered(60)).train

    def shown(name: str, seed: int = 0) -> list[str]:
        return [d.completion for d in demonstrations(SftSection(demonstrations=f"{file}:{name}"), tasks, seed=seed)]

    assert shown("half") == shown("half")
    assert 15 < len(shown("half")) < 45  # half of 60, four standard deviations either way
    assert shown("half") != shown("half", seed=1)
    with pytest.raises(DataError, match=r"gave 7 for task .* must return the completion as text"):
        shown("number")
    with pytest.raises(RecipeError, match=r"raised TypeError: .*work.* for task .* it may take answer"):
        shown("broken")
    with pytest.raises(RecipeError, match="has no function 'absent'; it has broken, half, number"):
        shown("absent")


def test_a_subset_of_demonstrations_is_deterministic_and_grows() -> None:
    tasks = load(numbered(30)).train

    def some(n: int, seed: int = 0) -> list[str]:
        return [
            d.completion
            for d in demonstrations(SftSection(demonstrations="{answer}", num_demonstrations=n), tasks, seed=seed)
        ]

    assert some(5) == some(5)
    assert len(some(5)) == 5
    assert set(some(5)) < set(some(9))
    assert some(5) != some(5, seed=1)
    assert [int(x) for x in some(9)] == sorted(int(x) for x in some(9))  # the given order is kept
    with pytest.raises(DataError, match="num_demonstrations = 31, but there are only 30"):
        some(31)


def without_three(task: Task, text: str) -> None:
    if "3" in text:
        raise DataError("no token for 3")


def test_a_file_of_demonstrations_is_shaped_like_the_tasks_and_holds_no_held_out_prompt(tmp_path: Path) -> None:
    path = tmp_path / "demos.jsonl"
    jsonl(path, [{"prompt": "1+1?", "completion": "It is 2."},
                 {"prompt": "1+2?", "completion": [{"role": "assistant", "content": "3"}]}])  # fmt: skip
    shape = section(system="Be brief.", template="Q: {prompt}")
    made = demonstrations(SftSection(demonstrations=str(path)), (), shape=shape)
    assert [d.completion for d in made] == ["It is 2.", "3"]
    assert made[0].task.prompt == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Q: 1+1?"})
    held_out = load_tasks(shape, 0, rows=[{"prompt": "1+2?", "answer": "3"}]).train
    with pytest.raises(DataError, match=r"^sft\.demonstrations: demos line 2: no token for 3$"):
        demonstrations(SftSection(demonstrations=str(path)), (), shape=shape, check=without_three)
    one = SftSection(demonstrations=str(path), num_demonstrations=1)
    seed = next(s for s in range(20) if demonstrations(one, (), seed=s)[0].completion == "It is 2.")
    assert len(demonstrations(one, (), seed=seed, check=without_three)) == 1  # only those that are used are checked
    with pytest.raises(DataError, match=rf"^sft\.demonstrations: task {held_out[0].key} of 'rows': no token for 3$"):
        demonstrations(SftSection(demonstrations="{answer}"), held_out, check=without_three)
    with pytest.raises(DataError, match="demos line 2 is a validation or test task"):
        demonstrations(SftSection(demonstrations=str(path)), (), shape=shape, held_out=held_out)
    path.write_text('{"prompt": "a", "completion": ""}\n{"prompt": "b"}\n')
    with pytest.raises(DataError, match=r"2 rows are unusable, first demos line 1: empty completion"):
        demonstrations(SftSection(demonstrations=str(path)), ())
    with pytest.raises(RecipeError, match=r"sft.demonstrations = 'none.jsonl': No such file"):
        demonstrations(SftSection(demonstrations="none.jsonl"), ())


def test_tasks_load_without_torch() -> None:
    heavy = ("torch", "transformers", "datasets", "reasoning_gym")
    code = f"import sys, milepost.tasks; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_answers_shared_by_training_and_test_are_told():
    """Different prompts with the same few answers can be learnt by heart: 5 sentences, each shuffled 40 ways."""
    rows = [{"prompt": f"order {i}", "answer": f"sentence {i % 5}"} for i in range(200)]
    report = load_tasks(TasksSection(validation=0, test=20), 0, rows=rows).report
    assert any(
        "20 of 20 test tasks have an answer that training tasks have too (there are 5 different" in n for n in report.notes
    )
    own = [{"prompt": f"order {i}", "answer": f"sentence {i}"} for i in range(200)]
    assert load_tasks(TasksSection(validation=0, test=20), 0, rows=own).report.notes == ()
