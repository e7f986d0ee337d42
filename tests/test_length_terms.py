"""Length terms: exact values, no pay for a wrong answer, and the unsafe forms with their counter-examples' numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from milepost.advantages import advantages
from milepost.length_terms import LengthController, LengthTerm, length_bounds, length_part, length_term
from milepost.recipe import make_recipe
from milepost.reward import Grader
from milepost.reward_sections import LengthSection
from milepost.reward_spec import CostTerm
from milepost.types import Episode, EpisodeId, Group, RecipeError, Sampled, StopKind, StopReason, Task, Turn
from milepost.unsafe_rewards import UNSAFE_KEYS, UNSAFE_LENGTHS


def part(form, success, length, lengths=(), *, value=1.0, **more):
    return length_part(LengthTerm(form, **{"weight": 1.0, **more}), success, value, length, lengths or (length,))


# ---- exact values ----------------------------------------------------------------------------------------------------


def test_c3_kimi():
    lengths = [1000, 2000, 3000, 5000]
    assert [part("kimi", True, n, lengths) for n in lengths] == pytest.approx([0.5, 0.25, 0, -0.5])
    assert [part("kimi", False, n, lengths) for n in lengths] == pytest.approx([0, 0, 0, -0.5])
    assert part("kimi", True, 7, [7, 7]) == 0  # nothing to compare


def test_c6_l1_max():
    assert 1 + part("l1_max", True, 900, weight=0.0003, target=1000) == pytest.approx(0.53)
    assert 1 + part("l1_max", True, 1400, weight=0.0003, target=1000) == pytest.approx(0.38)
    assert 1 + part("l1_max", True, 9000, weight=0.0003, target=1000, floor=0.2) == pytest.approx(0.2)


def test_c7_gr3_against_the_additive_form():
    lengths, mean = [2000, 200], 1100
    additive = {alpha: [right - CostTerm("tokens", "token", 0, alpha / mean, cap=9).paid(length)
                        for right, length in zip((1, 0), lengths)] for alpha in (0.5, 1)}  # fmt: skip
    assert additive[0.5] == pytest.approx([0.090909, -0.090909], abs=1e-6)
    assert additive[1] == pytest.approx([-0.818182, -0.181818], abs=1e-6)  # the wrong short answer wins
    assert [1 + part("gr3", True, 2000, lengths), part("gr3", False, 200, lengths)] == pytest.approx(
        [0.354839, 0], abs=1e-6
    )
    assert 1 + part("gr3", True, 2000, lengths, weight=0.5) == pytest.approx(0.523810, abs=1e-6)
    # In a group of wrong answers the additive form trains brevity alone; the safe ones leave it constant.
    wrong = [2000, 200, 200]
    assert advantages([-0.5 * n / 800 for n in wrong], "ggg", baseline="mean") == pytest.approx([-0.75, 0.375, 0.375])
    assert [part(form, False, n, wrong, target=1000) for form in ("gr3", "l1_max") for n in wrong] == [0] * 6


def test_a5_overlong():
    values = {16384: 0, 16385: -0.000244140625, 17408: -0.25, 18000: -0.39453125, 18432: -0.5, 20480: -1, 20481: -1}
    for n, expected in values.items():
        for success in (True, False):
            assert part("overlong", success, n, target=20480, buffer=4096) == pytest.approx(expected, abs=1e-12)
    assert part("overlong", True, 90, target=100, buffer=20) == pytest.approx(-0.5)  # case C6


def test_c8_a_long_right_answer_keeps_what_it_is_worth():
    assert 1 + part("overlong", True, 18000, target=20480, buffer=4096) == pytest.approx(0.605469, abs=1e-6)
    rewards = [1, 1, 0, 0, 0, 0, 0, 0]  # 2 right, 5 wrong, 1 cut short
    assert advantages(rewards, "g" * 8, baseline="mean", scale="group")[[0, 2]] == pytest.approx(
        [1.732051, -0.57735], abs=1e-5
    )
    dropped = advantages(rewards[:7], "g" * 7, baseline="mean", scale="group")
    assert dropped[[0, 2]] == pytest.approx([1.581139, -0.632456], abs=1e-5)
    assert advantages(rewards, "g" * 8, baseline="mean")[[0, 2]] == pytest.approx([0.75, -0.25])


# ---- what holds for all of them --------------------------------------------------------------------------------------

TERMS = st.builds(
    LengthTerm,
    form=st.sampled_from(["kimi", "gr3", "l1_max", "overlong"]),
    weight=st.floats(0.001, 3),
    target=st.integers(50, 500),
    buffer=st.integers(1, 50),
    floor=st.floats(0, 0.9),
)


@given(term=TERMS, lengths=st.lists(st.integers(0, 600), min_size=1, max_size=8), value=st.floats(0.1, 3))
@hypothesis_settings(max_examples=200, deadline=None)
def test_no_length_pays_a_wrong_answer_and_bounds_hold(term, lengths, value):
    low, high, low_failure = length_bounds(term, value, len(lengths), 600)
    for n in lengths:
        assert -1e-9 + low_failure <= length_part(term, False, value, n, lengths) <= 0
        assert -1e-9 + low <= length_part(term, True, value, n, lengths) <= high + 1e-9


@given(term=TERMS, n=st.integers(0, 500), value=st.floats(0.1, 3))
@hypothesis_settings(max_examples=100, deadline=None)
def test_a_longer_success_never_earns_more(term, n, value):
    others = [0, 50, 600]
    shorter, longer = (length_part(term, True, value, m, [m, *others]) for m in (n, n + 40))
    assert longer <= shorter + 1e-9


def test_weights_by_form():
    forms = {"kimi": 0.1, "gr3": 0.1, "l1_max": 0.0003, "overlong": 0.5}
    for form, weight in forms.items():
        needs = {"target": 100} if form in ("l1_max", "overlong") else {}
        needs |= {"buffer": 20} if form == "overlong" else {}
        assert length_term(LengthSection(form=form, **needs)).weight == weight
    assert length_term(LengthSection()) is None


# ---- the controller --------------------------------------------------------------------------------------------------


def test_the_controller_raises_the_weight_within_its_bounds_and_lowers_it_again():
    controller = LengthController(LengthSection(form="kimi", weight=0.1, max_mean=100, max_weight=0.15, rate=0.25))
    weights, said = [], []
    for mean in (150, 150, 150, 90, 90, 90):
        said.append(controller.observe([mean - 10, mean + 10]))
        weights.append(controller.weight)
    assert weights == pytest.approx([0.125, 0.15, 0.15, 0.12, 0.1, 0.1])
    assert [text is None for text in said] == [False, False, True, False, False, True]
    assert said[0] == ("the reward changed: reward.length.weight 0.1 → 0.125 after a mean length of 150 tokens, over the "
                       "limit of 100")  # fmt: skip
    assert controller.observe([]) is None


@given(means=st.lists(st.integers(1, 300), max_size=30))
@hypothesis_settings(max_examples=50, deadline=None)
def test_the_weight_never_leaves_its_bounds(means):
    controller = LengthController(LengthSection(form="gr3", weight=0.2, max_mean=100, max_weight=0.7, rate=0.3))
    for mean in means:
        controller.observe([mean])
        assert 0.2 <= controller.weight <= 0.7


# ---- single answers --------------------------------------------------------------------------------------------------


def answers(*texts_and_lengths):
    episodes = []
    for i, (text, n) in enumerate(texts_and_lengths):
        turn = Turn(np.zeros(1), Sampled(np.zeros(n), np.zeros(n), 1.0, (), "stop"), text)
        episodes.append(
            Episode(EpisodeId("train", 1, "t", i), "g", (turn,), StopReason(StopKind.TERMINATED, "end_of_turn"))
        )
    return Group("g", Task("t", "?", "7"), tuple(episodes))


def test_reward_functions_take_a_length_term_too():
    section = make_recipe(
        {"reward": {"functions": [{"name": "exact", "weight": 2.0}], "length": {"form": "kimi", "weight": 0.2}}}
    )
    with Grader(section.reward) as grader:
        (rewards,) = grader.score([answers(("7", 10), ("7", 30), ("8", 10), ("8", 50))])
    assert [r.total for r in rewards] == pytest.approx([2.1, 2.0, 0, -0.1])
    assert [r.parts["length"] for r in rewards] == pytest.approx([0.1, 0, 0, -0.1])
    assert [r.success for r in rewards] == [True, True, False, False]


def test_reward_functions_under_gdpo_give_their_weights():
    functions = [{"name": "exact"}, {"name": "regex", "weight": 0.1, "params": {"pattern": "7"}}]
    with Grader(make_recipe({"reward": {"functions": functions, "combine": "gdpo"}}).reward) as grader:
        assert grader.part_weights == {"exact": 1.0, "regex": 0.1}
    with Grader(make_recipe({"reward": {"functions": functions}}).reward) as grader:
        assert grader.part_weights is None


# ---- unsafe forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", UNSAFE_LENGTHS)
def test_unsafe_length_forms_are_refused_in_one_sentence(form):
    with pytest.raises(RecipeError) as error:
        make_recipe({"reward": {"length": {"form": form}}})
    assert UNSAFE_LENGTHS[form] in str(error.value) and 'use "kimi"' in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", UNSAFE_KEYS)
def test_unsafe_keys_are_refused_in_one_sentence(key):
    with pytest.raises(RecipeError, match=rf"^reward\.{key} = -0\.5 is refused: ") as error:
        make_recipe({"reward": {key: -0.5}})
    assert UNSAFE_KEYS[key] in str(error.value)


def test_the_numbers_of_the_counter_examples():
    linear = [right - 0.001 * length for right, length in ((1, 1500), (0, 50))]
    assert linear == pytest.approx([-0.5, -0.05])
    assert [-1 / math.log(length) for length in (2, 100)] == pytest.approx([-1.4427, -0.2171], abs=1e-4)
    assert math.log(1) == 0

    def cosine(share, empty=-10.0, full=0.0):
        return full + 0.5 * (empty - full) * (1 + math.cos(math.pi * share))

    # block C4: 0, 1000, 7168 and 14336 tokens of 14336; case D30: the value at 0 belongs to 0
    shares = [n / 14336 for n in (0, 1000, 7168, 14336)]
    assert [cosine(share) for share in shares] == pytest.approx([-10, -9.880424, -5, 0], abs=1e-6)
    assert [cosine(share, 2, 1) for share in shares] == pytest.approx([2, 1.988042, 1.5, 1], abs=1e-6)
    said = UNSAFE_LENGTHS["cosine"]
    assert "worth −10 when empty, it earns −5 at half the limit and 0 at the limit" in said

    def l1_exact(right, length):
        return right - 0.0003 * abs(1000 - length)

    assert l1_exact(1, 1200) == pytest.approx(0.94)  # block C6
    assert [l1_exact(0, 1000), l1_exact(1, 5000)] == pytest.approx([0, -0.2])
    assert "1,000 tokens earns 0 and a right one of 5,000 earns −0.2" in UNSAFE_LENGTHS["l1_exact"]
    boxed = advantages([0] + [-1] * 7, "g" * 8)
    right = advantages([1] + [0] * 7, "g" * 8)
    assert boxed == pytest.approx(right) and boxed[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        ({"costs": [{"name": "calls", "weight": -0.1}]}, "would pay for every unit: at −0.1, ten calls earn 1.0"),
        ({"costs": [{"name": "calls", "cap": 0}]}, "a cost without one outweighs success: at 0.01, 150 units cost 1.5"),
        ({"costs": [{"name": "calls"}, {"name": "calls"}]}, "reward.costs: two of them are called 'calls'"),
        ({"milestones": {"found": -1}}, "reward.milestones.found = -1: a milestone is progress and pays more than 0"),
        ({"milestone_cap": 0.2}, "reward.milestone_cap = 0.2 does nothing without reward.milestones"),
        ({"length": {"weight": 0.2}}, 'reward.length.weight = 0.2 does nothing while reward.length.form = "none"'),
        ({"length": {"form": "kimi", "target": 9}}, 'length.target = 9 does nothing while reward.length.form = "kimi"'),
        ({"length": {"form": "kimi", "rate": 0.2}}, "and max_mean = 0; remove it, or set reward.length.max_mean"),
        ({"length": {"form": "l1_max"}}, 'reward.length.form = "l1_max" needs reward.length.target'),
        ({"length": {"form": "overlong", "target": 100}}, "reward.length.buffer = 0 must lie between 1 and"),
        ({"length": {"form": "overlong", "target": 100, "buffer": 120}}, "reward.length.buffer = 120 must lie between"),
        ({"length": {"form": "kimi", "max_mean": 9}}, "reward.length.max_weight = 0 must exceed the weight, 0.1"),
        ({"milestones": {"a": 1}, "milestone_form": "potential"}, "potential shaping with `episode` credit has no effect"),
        ({"combine": "gdpo", "length": {"form": "gr3"}}, 'reward.length.form = "gr3" multiplies success and is no part'),
    ],
)  # fmt: skip
def test_rewards_that_cannot_be_meant_are_refused(reward, sentence):
    with pytest.raises(RecipeError) as error:
        make_recipe({"reward": reward})
    assert sentence in str(error.value) and "\n" not in str(error.value)
