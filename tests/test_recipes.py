"""The recipes that ship: they load, and their demonstrators are as imperfect as docs/recipes.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.envs.desk import BY_NAME, WORDS
from milepost.envs.find import FOREIGN, find_env
from milepost.policy import make_model, make_tokenizer, shape_of, vocabulary
from milepost.recipe import load_recipe
from milepost.scripted import demonstrator, play_script
from milepost.tools import parse, render_call
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
def test_as_many_demonstrations_succeed_as_the_docs_say(path):
    ends = [spec.goal.holds(task, played.start_state, played.final_state) for spec, task, played in shown(path, 200)]
    low, high = (0.18, 0.34) if path.stem == "desk" else (0.35, 0.65)
    assert low < sum(ends) / len(ends) < high


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


def test_the_clerk_of_desk_forgets_more_changes_than_he_makes():
    wanted = made = elsewhere = 0
    for _, task, played in shown(next(path for path in RECIPES if path.stem == "desk"), 400):
        plan = [render_call(name, given, tool=BY_NAME[name]) for name, given in task.columns["plan"]]
        changes, done = ([t for t in texts if t.partition("(")[0] not in ("search", "read", "done")]
                         for texts in (plan, [step.text for step in played.steps]))  # fmt: skip
        wanted, made = wanted + len(changes), made + sum(text in done for text in changes)
        elsewhere += sum(text not in changes for text in done)
    assert made / wanted == pytest.approx(0.40, abs=0.06) and elsewhere / wanted == pytest.approx(0.06, abs=0.03)
