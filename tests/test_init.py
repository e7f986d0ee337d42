"""The recipe that `milepost init` writes, and the texts a vocabulary is taken from."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from milepost.init import CHOSEN, NUM_EXAMPLES, UNSHOWN, example_tasks, write_recipe
from milepost.launch import open_session
from milepost.policy import new_policy
from milepost.recipe import Recipe, iter_settings, load_recipe, make_recipe
from milepost.sources import texts_of
from milepost.stages.pipeline import check_stages, run_pipeline
from milepost.types import RecipeError


def test_it_loads_and_sets_exactly_what_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "new" / "recipe.toml"
    said = write_recipe(path)
    assert said.startswith(f"wrote {path}, which trains on {NUM_EXAMPLES} example sums in {path.parent / 'tasks.jsonl'}")
    recipe = load_recipe(path)
    check_stages(recipe, ("sft", "grpo", "test"))
    assert recipe == make_recipe({
        "tasks": {"sources": [{"path": str(path.parent / "tasks.jsonl")}], "validation": 64, "test": 200},
        "reward": {"functions": [{"name": "exact"}]},
        "rollout": {"max_new_tokens": 16},
        "sft": {"steps": 20, "demonstrations": "{answer}"},
        "grpo": {"steps": 40},
    })  # fmt: skip


def test_every_setting_stands_in_it_with_its_default(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    write_recipe(path)
    text = path.read_text(encoding="utf-8")
    opened = re.sub(r"^#([a-z_]+ = )", r"\1", text, flags=re.MULTILINE)
    values = tomllib.loads(opened)
    assert make_recipe(values) == load_recipe(path)  # what is commented out is the default indeed

    def keys(node: dict, prefix: str = "") -> set[str]:
        found = set()
        for key, value in node.items():
            inner = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else value
            deeper = isinstance(inner, dict) and inner and key != "params"
            found |= keys(inner, f"{prefix}{key}.") if deeper else {prefix + key}
        return found

    known = {key for key, _ in iter_settings(Recipe) if not key.startswith(tuple(f"{name}." for name in UNSHOWN))}
    known -= {"tasks.sources", "reward.functions"}
    assert known - keys(values) == {"kl.beta_end", "env.patience"}  # TOML has no word for "none"
    assert set(CHOSEN) <= known


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path, tasks = tmp_path / "recipe.toml", tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "mine", "answer": "1"}\n')
    assert f"the tasks that lie in {tasks}" in write_recipe(path)
    assert tasks.read_text() == '{"prompt": "mine", "answer": "1"}\n'
    path.write_text("seed = 9\n")
    with pytest.raises(RecipeError, match=r"recipe.toml exists already; name another file"):
        write_recipe(path)
    assert path.read_text() == "seed = 9\n"
    with pytest.raises(RecipeError, match=r"is a folder; name a file in it"):
        write_recipe(tmp_path)


def test_the_examples_are_distinct_sums() -> None:
    rows = list(example_tasks())
    assert len({row["prompt"] for row in rows}) == len(rows) == 600
    for row in rows:
        first, second = re.fullmatch(r"(\d\d) \+ (\d\d) =", row["prompt"]).groups()
        assert int(first) + int(second) == int(row["answer"])
    assert len({row["answer"] for row in rows}) > 20  # guessing one answer gets nowhere


def test_it_runs_as_written_on_a_small_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe("recipe.toml")
    new_policy("tiny", texts=texts_of("tasks.jsonl"), layers=1, width=32, heads=2)
    small = (
        "model.path=tiny",
        "sft.steps=2",
        "grpo.steps=1",
        "tasks.test=4",
        "tasks.validation=4",
        "rollout.max_new_tokens=4",
    )
    recipe = load_recipe("recipe.toml", small)
    with open_session(recipe, toml=Path("recipe.toml").read_text(), quiet=True) as session:
        reports = run_pipeline(session)
        assert session.run.meta()["stages"] == ["sft", "grpo", "test"]
    assert list(reports) == ["base", "sft", "grpo"]


def test_texts_of_prompts_answers_and_completions(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": "2 + 2?", "answer": 4, "level": "hidden"},
        {"prompt": [{"role": "system", "content": "short"}, {"role": "user", "content": "why?"}], "completion": "so"},
        {"prompt": "x", "expected_answer": "y", "completion": [{"role": "assistant", "content": "z"}]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert texts_of(path) == ["2 + 2?", "4", "short", "why?", "so", "x", "y", "z"]
    path.write_text('{"question": "?"}\n')
    with pytest.raises(RecipeError, match=r"--texts = .*rows.jsonl' holds no prompt, answer or completion"):
        texts_of(path)
    with pytest.raises(RecipeError, match=r"--texts = 'nowhere.jsonl': No such file"):
        texts_of("nowhere.jsonl")


@pytest.mark.parametrize(
    ("values", "stages", "wrong"),
    [
        ({}, ("sft", "grpo", "test"), "sft.steps = 0 and grpo.steps = 0, so nothing would be trained"),
        ({}, ("sft",), "sft.steps = 0, so the warm start has nothing to do"),
        ({"sft": {"steps": 5, "demonstrations": "{answer}"}}, ("grpo",), "grpo.steps = 0, so GRPO has nothing to do"),
        ({"sft": {"steps": 5}}, ("sft",), "sft.demonstrations is empty, but sft.steps = 5 needs some"),
        ({"sft": {"steps": 5}, "grpo": {"steps": 5}}, ("sft", "grpo", "test"), "sft.demonstrations is empty"),
        ({"tasks": {"test": 0}}, ("test",), "tasks.test = 0, so there is nothing to test"),
    ],
)
def test_stages_with_nothing_to_do_are_refused(values: dict, stages: tuple[str, ...], wrong: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(wrong)):
        check_stages(make_recipe(values), stages)


@pytest.mark.parametrize(
    ("values", "stages"),
    [
        ({"grpo": {"steps": 1}, "tasks": {"test": 0}}, ("sft", "grpo", "test")),  # no warm start, no test: both skipped
        ({"sft": {"steps": 1, "demonstrations": "{answer}"}}, ("sft", "grpo", "test")),
        ({"sft": {"steps": 1}, "grpo": {"steps": 1}}, ("grpo",)),  # demonstrations are not needed without sft
        ({}, ("test",)),
    ],
)
def test_stages_with_something_to_do_pass(values: dict, stages: tuple[str, ...]) -> None:
    check_stages(make_recipe(values), stages)
