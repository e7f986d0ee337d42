"""The recipes that ship: they load, and their demonstrators are as imperfect as docs/recipes.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.envs.desk import WORDS
from milepost.envs.find import FOREIGN, find_env
from milepost.policy import make_model, make_tokenizer, shape_of, vocabulary
from milepost.recipe import load_recipe
from milepost.scripted import demonstrator, play_script
from milepost.tools import parse
from milepost.types import Task

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))


def shown(path, num_tasks):
    """(task, what its demonstrator played) for the first tasks of a recipe."""
    recipe = load_recipe(path)
    if recipe.env.name in FOREIGN:
        pytest.importorskip(FOREIGN[recipe.env.name][0])
    spec = find_env(recipe.env.name, "env.name")
    script = demonstrator(recipe.sft.demonstrations, spec)
    for index, row in enumerate(spec.generate(num_tasks, 0, **recipe.tasks.sources[0].params)):
        task = Task(f"{index}", row["prompt"], columns=row)
        yield spec, task, play_script(spec, task, script, max_turns=recipe.env.max_turns)


def test_there_are_recipes():
    assert {path.stem for path in RECIPES} == {"calc", "desk", "desk_long", "babyai"}
    assert {load_recipe(path).name for path in RECIPES} == {path.stem for path in RECIPES}


def test_the_policy_of_desk_long_has_at_most_two_million_weights():
    section = load_recipe(next(path for path in RECIPES if path.stem == "desk_long")).model.new
    assert section.texts == "milepost.envs.desk:WORDS"
    shape = shape_of(section.size, section.layers or None, section.width or None, section.heads or None)
    tokenizer = make_tokenizer(vocabulary([WORDS], None, section.tokens), section.tokens, section.context)
    model = make_model(shape, len(tokenizer), section.context, section.seed)
    assert 1_500_000 < sum(parameter.numel() for parameter in model.parameters()) <= 2_000_000


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_about_half_of_the_demonstrations_succeed(path):
    ends = [spec.goal.holds(task, played.start_state, played.final_state) for spec, task, played in shown(path, 200)]
    assert 0.35 < sum(ends) / len(ends) < 0.65


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_demonstrations_end_by_themselves_and_hold_calls_that_can_be_read(path):
    for spec, _, played in shown(path, 50):
        assert played.ended
        assert all(call.error is None for step in played.steps for call in parse(step.text, spec.tools).calls)
        assert not spec.tools or all(len(step.action.calls) == 1 for step in played.steps)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_same_task_is_demonstrated_the_same_way(path):
    def texts():
        return [[step.text for step in played.steps] for _, _, played in shown(path, 20)]

    assert texts() == texts()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_meets_the_sizes_of_the_standard_bar(path):
    recipe = load_recipe(path)
    assert recipe.tasks.test == 200
    assert recipe.eval.test_samples == 2
