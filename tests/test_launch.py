"""What is refused before weights are read and a run directory is made: contexts in which nothing could be said."""

from __future__ import annotations

import pytest
from small import small_recipe, sorting_rows, write_policy, write_rows
from small_env import write_policy as write_env_policy

from milepost import launch
from milepost.recipe import make_recipe
from milepost.types import RecipeError


class WeightsRead(Exception):
    pass


@pytest.fixture(autouse=True)
def no_weights(monkeypatch):
    def load(section, **options):
        raise WeightsRead

    monkeypatch.setattr(launch, "load_model", load)


def played(folder, **env):
    return make_recipe({
        "out": str(folder / "runs"), "model": {"path": str(write_env_policy(folder / "policy"))}, "sft": {"steps": 0},
        "tasks": {"format": "text", "validation": 4, "test": 4, "sources": [{"kind": "environment", "size": 20}]},
        "env": {"name": "small_env:SPEC", "max_turns": 4, **env}, "rollout": {"max_new_tokens": 3},
        "grpo": {"steps": 1},
    })  # fmt: skip


def said(recipe, folder) -> str:
    with pytest.raises(RecipeError) as error, launch.open_session(recipe, quiet=True):
        pass
    assert "\n" not in str(error.value) and not (folder / "runs").exists()
    return str(error.value)


def test_a_context_that_the_first_prompts_fill_is_refused_with_the_numbers(tmp_path):
    sentence = said(played(tmp_path, max_context_tokens=1), tmp_path)
    start = "env.max_context_tokens = 1 leaves no token to act in behind the longest first prompt of the tasks, which has "
    assert sentence.startswith(start)
    longest = int(sentence.removeprefix(start).partition(";")[0])
    assert longest > 1 and f"use at least {longest + 3}, or 0 for all of the model's" in sentence
    assert f"has {longest};" in said(played(tmp_path / "full", max_context_tokens=longest), tmp_path)
    with pytest.raises(WeightsRead), launch.open_session(played(tmp_path / "room", max_context_tokens=longest + 1)):
        pass  # one token is room to act


def test_a_context_beyond_the_models_own_is_refused_before_its_weights_are_read(tmp_path):
    sentence = said(played(tmp_path, max_context_tokens=10**6), tmp_path)
    assert sentence.startswith("env.max_context_tokens = 1000000 exceeds the model's context of ")


def test_completions_that_the_model_has_no_room_for_are_refused_before_its_weights_are_read(tmp_path):
    rows = sorting_rows(num=40)
    changes = {
        "rollout__max_new_tokens": 10**5,
        "tasks__sources": [{"path": str(write_rows(tmp_path / "rows.jsonl", rows))}],
    }
    sentence = said(small_recipe(tmp_path, write_policy(tmp_path / "policy", rows), **changes), tmp_path)
    assert (
        sentence.startswith("rollout.max_new_tokens = 100000 and the longest prompt (") and "exceed the model's" in sentence
    )
