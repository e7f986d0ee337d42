"""The two arms of an ablation: what can be named, what removing means, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.arms import arms
from milepost.recipe import make_recipe
from milepost.tasks import load_tasks
from milepost.types import RecipeError

CALC: dict[str, Any] = {
    "name": "c",
    "env": {"name": "calc", "max_turns": 5},
    "tasks": {"sources": [{"kind": "environment", "size": 50}]},
    "reward": {
        "milestones": {"step": 0.1, "result": 0.2},
        "milestone_cap": 0.25,
        "costs": [{"name": "calls", "free": 3}, {"name": "tokens", "free": 60, "weight": 0.001}],
    },
    "sft": {"steps": 5, "demonstrations": "gold"},
    "grpo": {"steps": 4},
}
ANSWERS: dict[str, Any] = {
    "tasks": {"sources": [{"path": "t.jsonl"}]},
    "reward": {
        "functions": [
            {"name": "math"},
            {"name": "format", "params": {"end": "boxed"}},
            {"name": "my.py:polite", "weight": 0.1},
        ]
    },
}


def with_(base: dict[str, Any], **sections: Any) -> dict[str, Any]:
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    for key, value in sections.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


def differ(values: dict[str, Any], *without: str) -> dict[str, tuple[str, str]]:
    return {change.key: (change.with_, change.without) for change in arms(values, without=without).changes}


@pytest.mark.parametrize("name", ["milestones", "reward.milestones"])
def test_without_milestones_their_cap_goes_too(name: str) -> None:
    found = arms(CALC, without=[name])
    assert (found.what, found.form, found.slug) == ("reward.milestones", "without", "without-reward.milestones")
    assert found.with_ == make_recipe(CALC)
    assert (found.without.reward.milestones, found.without.reward.milestone_cap) == ({}, 0.5)
    assert found.went_along == ("reward.milestone_cap",)
    assert [str(change) for change in found.changes] == [
        "reward.milestones.step: with 0.1, without nothing",
        "reward.milestones.result: with 0.2, without nothing",
        "reward.milestone_cap: with 0.25, without 0.5",
    ]


@pytest.mark.parametrize(
    ("name", "what", "changed"),
    [
        ("step", "reward.milestones.step", {"reward.milestones.step": ("0.1", "")}),
        ("reward.milestones.step", "reward.milestones.step", {"reward.milestones.step": ("0.1", "")}),
        ("milestone_cap", "reward.milestone_cap", {"reward.milestone_cap": ("0.25", "0.5")}),
        ("reward.costs.calls.free", "reward.costs.calls.free", {"reward.costs.0.free": ("3.0", "0.0")}),
        ("env.max_turns", "env.max_turns", {"env.max_turns": ("5", "10")}),
        ("sft.demonstrations", "sft.demonstrations", {"sft.demonstrations": ('"gold"', '""')}),
        ("sft", "sft", {"sft.steps": ("5", "0"), "sft.demonstrations": ('"gold"', '""')}),
    ],
)
def test_names_mean_keys_and_parts_of_the_reward(name: str, what: str, changed: dict[str, tuple[str, str]]) -> None:
    changed = {key: (one, str(make_recipe({}).env.max_turns) if key == "env.max_turns" else other)
               for key, (one, other) in changed.items()}  # fmt: skip
    assert arms(CALC, without=[name]).what == what
    assert differ(CALC, name) == changed


@pytest.mark.parametrize("name", ["calls", "costs.calls", "reward.costs.calls", "reward.costs.0"])
def test_a_cost_is_called_by_its_name_or_number(name: str) -> None:
    found = arms(CALC, without=[name])
    assert found.what == "reward.costs.calls"
    assert [cost.name for cost in found.without.reward.costs] == ["tokens"]


def test_several_things_at_once() -> None:
    found = arms(CALC, without=["calls", "tokens", "milestones"])
    assert found.without.reward == make_recipe({}).reward
    assert found.what == "reward.costs.calls, reward.costs.tokens, reward.milestones"


def test_what_the_preset_would_set_goes_to_its_default() -> None:
    values = with_(CALC, preset="grpo")
    assert make_recipe(values).kl.beta == 0.04
    assert differ(values, "kl.beta") == {"kl.beta": ("0.04", "0.0"), "kl.estimator": ('"k3"', '"k2"')}
    assert differ(values, "kl") == differ(values, "kl.beta")
    assert differ(values, "credit.scale") == {"credit.scale": ('"group"', '"none"')}
    own = with_(values, kl={"beta": 0.01, "estimator": "k1", "place": "reward"})
    assert arms(own, without=["kl.beta"]).without.kl == make_recipe({}).kl
    assert arms(own, without=["kl.beta"]).went_along == ("kl.estimator", "kl.place")
    assert arms(values, without=["preset"]).without == make_recipe(CALC)


def test_the_opposite_arm_is_set() -> None:
    plain = with_({k: v for k, v in CALC.items() if k != "reward"})
    found = arms(plain, with_=["reward.milestones={step = 0.1}"])
    assert (found.form, found.without) == ("with", make_recipe(plain))
    assert found.with_.reward.milestones == {"step": 0.1}
    assert found.slug == "with-reward.milestones-step-0.1"
    both = arms(plain, with_=["reward.milestones.step=0.1", "credit.rule=turn"])
    assert both.with_.credit.rule == "turn" and both.without.credit.rule == "episode"


def test_success_must_mean_the_same_in_both_arms() -> None:
    assert differ(ANSWERS, "polite") == {
        "reward.functions.2.name": ('"my.py:polite"', ""), "reward.functions.2.weight": ("0.1", ""),
        "reward.functions.2.label": ('""', ""),
    }  # fmt: skip
    with pytest.raises(
        RecipeError, match=r'--without format: it decides what counts as success \(.*reward\.gates.*combine = "sum"'
    ):
        arms(ANSWERS, without=["format"])
    with pytest.raises(RecipeError, match=r"--without math: it decides what counts as success"):
        arms(ANSWERS, without=["math"])
    summed = with_(ANSWERS, reward={**ANSWERS["reward"], "combine": "sum"})
    summed["reward"]["functions"] = [{"name": "math"}, {"name": "format", "params": {"end": "boxed"}, "weight": 0.1}]
    assert [f.name for f in arms(summed, without=["format"]).without.reward.functions] == ["math"]


def test_tests_must_be_the_same_in_both_arms() -> None:
    values = with_(CALC, eval={"test_samples": 2}, rollout={"max_new_tokens": 12}, tasks={"test": 50})
    for name in ("eval.test_samples", "eval", "rollout.max_new_tokens", "tasks.test"):
        with pytest.raises(RecipeError, match=r"would not be tested alike; set it for both by an override"):
            arms(values, without=[name])
    assert arms(CALC, without=["env.max_turns"]).played_apart == ["env.max_turns"]
    assert arms(CALC, without=["step"]).played_apart == []


@pytest.mark.parametrize(
    ("values", "name", "sentence"),
    [
        (CALC, "stp", "--without stp: neither a key of this recipe nor a part of its reward; did you mean step? the "
         "recipe sets env, tasks, reward, reward.milestones, reward.milestones.step, reward.milestones.result, "
         "reward.milestone_cap, reward.costs, reward.costs.calls"),
        ({k: v for k, v in CALC.items() if k != "reward"}, "milestones", "use --with reward.milestones='{step = 0.1}'"),
        ({k: v for k, v in CALC.items() if k != "reward"}, "step", "the recipe pays no milestone step, though calc has "
         "step, result; to see what it would do, use --with reward.milestones.step=0.1"),
        ({k: v for k, v in CALC.items() if k != "reward"}, "milestons", "did you mean milestones? "),
        (CALC, "kl.beta", "the recipe does not set kl.beta, which is at its default: there is nothing to remove; to see "
         "what it would do, use --with kl.beta=VALUE"),
        (CALC, "length", "the recipe does not set reward.length, which is at its default"),
        (CALC, "name", "--without name: name is set by the ablation itself; name another key"),
        (CALC, "step=1", "only a name is needed, its value is removed; write --with step=1 to set it"),
        (CALC, "free", "several parts of the reward are called so; say which: reward.costs.calls.free, "
         "reward.costs.tokens.free"),
        (CALC, "env", 'kind = "environment" needs env.name'),
        (with_(CALC, rollout={"group_size": 8}), "rollout.group_size", "both arms would be the same"),
        (with_(CALC, reward={"milestone_form": "potential"}, credit={"rule": "turn"}), "credit.rule",
         "--without credit.rule: potential shaping with `episode` credit has no effect"),
    ],
)  # fmt: skip
def test_a_bad_name_gets_one_sentence(values: dict[str, Any], name: str, sentence: str) -> None:
    with pytest.raises(RecipeError) as error:
        arms(values, without=[name])
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["kl.bta=1"], "--with kl.bta=1: kl.bta is not a setting; did you mean kl.beta?"),
        (["kl.beta"], "--with kl.beta: override 'kl.beta' must look like section.key=value"),
        (["seed=3"], "--with seed=3: seed is set by the ablation itself"),
        (["kl.beta=0"], "--with kl.beta=0: both arms would be the same"),
        (["tasks.test=5"], "would not be tested alike"),
        (
            ["tasks.max_prompt_tokens=14"],
            "--with tasks.max_prompt_tokens=14: the arms would differ in "
            "tasks.max_prompt_tokens, so that they would not be tested alike; set it for both by an override, such as "
            "tasks.max_prompt_tokens=VALUE",
        ),
        (['tasks.overlong="error"'], "differ in tasks.overlong, so that they would not be tested alike"),
        (["tasks.prompt_column=question"], "differ in tasks.prompt_column, so that they would not be tested alike"),
        (["tasks.answer_column=none"], "differ in tasks.answer_column, so that they would not be tested alike"),
        (["env.name=maze", "reward.milestones={key = 0.1}"], "differ in env.name"),
    ],
)
def test_a_bad_setting_gets_one_sentence(overrides: list[str], sentence: str) -> None:
    with pytest.raises(RecipeError) as error:
        arms(CALC, with_=overrides)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "override",
    [
        "tasks.validation=9",
        "tasks.order=as_given",
        "tasks.system=Think.",
        "tasks.template=Q: {prompt}",
        "tasks.format=text",
    ],
)
def test_settings_of_tasks_that_leave_the_test_tasks_alone_can_be_compared(override: str) -> None:
    rows = [{"prompt": f"say {i}", "answer": str(i)} for i in range(60)]
    base = with_(CALC, tasks={"sources": [], "test": 20, "validation": 12}, env={"name": ""}, reward={})
    plain = {k: v for k, v in base.items() if k not in ("env", "reward", "sft")}
    found = arms(plain, with_=[override])
    assert found.played_apart == [override.partition("=")[0]]
    tests = [[task.key for task in load_tasks(one.tasks, 3, rows=rows).test] for one in (found.with_, found.without)]
    assert tests[0] == tests[1] and len(tests[0]) == 20


def test_what_rejects_gold_answers_is_the_same_in_both_arms() -> None:
    for override in ("reward.timeout_seconds=1", "reward.canary_good=so {answer}"):
        with pytest.raises(RecipeError, match=f"differ in {override.partition('=')[0]}, so that they would not be tested"):
            arms(ANSWERS, with_=[override])


def test_exactly_one_of_both_is_named() -> None:
    with pytest.raises(RecipeError, match="one of the two"):
        arms(CALC)
    with pytest.raises(RecipeError, match="not both"):
        arms(CALC, without=["step"], with_=["kl.beta=0.1"])


def test_the_values_given_stay_as_they_are() -> None:
    before = repr(CALC)
    arms(CALC, without=["milestones", "calls", "sft"])
    assert repr(CALC) == before
