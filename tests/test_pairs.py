"""What paired seeds show, with numbers worked by hand."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.evaluate import EvalReport, paired, task_interval
from milepost.pairs import ENOUGH, compare_seeds, interval, sign_flip_p, subset_means, verdict
from milepost.types import RecipeError


def report(outcomes: dict[str, tuple[bool | None, ...]], greedy: dict[str, bool] | None = None) -> EvalReport:
    rates = task_interval(outcomes.values())
    best = task_interval((one,) for one in greedy.values()).mean if greedy else None
    return EvalReport("test", 1, len(outcomes), 2, {"temperature": 1.0}, rates.mean, rates.low, rates.high, outcomes,
                      greedy=best, greedy_outcomes=greedy or {})  # fmt: skip


def right(num: int, of: int = 10, prefix: str = "t") -> EvalReport:
    """The first `num` of the tasks succeed, in both samples and greedily."""
    return report({f"{prefix}{i}": (i < num,) * 2 for i in range(of)}, {f"{prefix}{i}": i < num for i in range(of)})


def test_subset_means_of_three_by_hand() -> None:
    # {1} {2} {4} {1,2} {1,4} {2,4} {1,2,4}
    assert subset_means([1, 2, 4]).tolist() == pytest.approx([1, 1.5, 2, 7 / 3, 2.5, 3, 4])


def test_six_pairs_by_hand() -> None:
    # 2^6 = 64 gaps, ⌊.025 · 64⌋ = 1 is cut off at each end: the interval reaches from the smallest subset mean, which is
    # the smallest difference, to the largest. All have one sign: 2 of 64 sign changes are as extreme.
    assert interval([3, 1, 6, 2, 5, 4]) == (1, 6)
    assert sign_flip_p([3, 1, 6, 2, 5, 4]) == 2 / 64
    # One of them points the other way by 1: flipped sums are as extreme as 19 where nothing is flipped, or the −1 is.
    assert sign_flip_p([3, -1, 6, 2, 5, 4]) == 4 / 64
    assert interval([3, -1, 6, 2, 5, 4]) == (-1, 6)


def test_seven_pairs_by_hand() -> None:
    # ⌊.025 · 128⌋ = 3. Ascending subset means of 1 … 7: 1, 3/2, then 2 ({2}, {1,3}, {1,2,3}); descending: 7, 13/2, 6.
    assert interval([1, 2, 3, 4, 5, 6, 7]) == (2, 6)
    assert sign_flip_p([1, 2, 3, 4, 5, 6, 7]) == 2 / 128


def test_five_pairs_have_no_interval() -> None:
    assert interval([1, 2, 3, 4, 5]) is None  # ⌊.025 · 32⌋ = 0
    assert sign_flip_p([1, 2, 3, 4, 5]) == 2 / 32 > 0.06
    assert sign_flip_p([5]) == 1


def test_differences_of_nothing_show_nothing() -> None:
    assert sign_flip_p([0.0] * 8) == 1
    assert interval([0.0] * 8) == (0, 0)
    assert sign_flip_p([0.1, -0.1] * 4) == 1


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=9))
def test_interval_and_test_agree_and_equal_plain_counting(values: list[int]) -> None:
    flips = [sum(s * v for s, v in zip(signs, values)) for signs in itertools.product((1, -1), repeat=len(values))]
    extreme = sum(abs(flip) >= abs(sum(values)) for flip in flips)
    assert sign_flip_p(values) == extreme / len(flips)
    found = interval(values)
    if found is None:
        assert len(values) < ENOUGH
        assert extreme / len(flips) > 0.05
        return
    subsets = itertools.chain.from_iterable(itertools.combinations(values, n) for n in range(1, len(values) + 1))
    means = sorted(Fraction(sum(some), len(some)) for some in subsets)
    cut = 2 ** len(values) // 40
    assert found == pytest.approx((float(means[cut - 1]), float(means[-cut])))
    outside = means[cut - 1] > 0 or means[-cut] < 0
    assert outside == (extreme / len(flips) <= 0.05)


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=9), st.sampled_from([3, 7, 64, 200, 1000]))
def test_shares_of_tasks_show_what_their_counts_show(values: list[int], num_tasks: int) -> None:
    found, shares = interval(values), [value / num_tasks for value in values]
    assert sign_flip_p(shares) == sign_flip_p(values)
    if found is not None:
        low, high = interval(shares) or (0.0, 0.0)
        assert (low > 0, high < 0) == (found[0] > 0, found[1] < 0)


def test_a_sum_of_shares_that_is_nothing_shows_nothing() -> None:
    shares = [0.055, -0.045, 0.075, 0.07, 0.01, 0.02, 0.035, 0.085]  # -.045 + .01 + .035 = 0, in floats 7e-18
    low, _ = interval(shares) or (1.0, 1.0)
    assert low == 0 and sign_flip_p(shares) > 0.05


@pytest.mark.parametrize("num", [6, 8, 10])
def test_the_interval_covers_as_often_as_it_says(num: int) -> None:
    # Hartigan's theorem is exact: k = 1, 6, 25 of 64, 256, 1024 gaps at each end leave 96.9, 95.3, 95.1 %.
    rng = np.random.default_rng(num)
    kinds = (rng.normal(3, 2, (600, num)), 3 + rng.standard_t(2, (600, num)), 3 + rng.choice([-1.0, 1.0], (600, num)))
    for k, draws in enumerate(kinds):
        covered = np.mean([(found := interval(row)) is not None and found[0] <= 3 <= found[1] for row in draws])
        assert covered > 0.92, k
    wrong = np.mean([sign_flip_p(row) <= 0.05 for row in rng.normal(0, 2, (600, num))])
    assert wrong < 0.08


def test_beyond_twenty_pairs_subsets_are_drawn() -> None:
    values = np.random.default_rng(1).normal(1.0, 2.0, 30)
    low, high = interval(values) or (np.nan, np.nan)
    half = 2.045 * values.std(ddof=1) / np.sqrt(30)  # Student's interval, 29 degrees of freedom
    assert low == pytest.approx(values.mean() - half, abs=0.1)
    assert high == pytest.approx(values.mean() + half, abs=0.1)
    assert interval(values) == (low, high)  # the same ones each time


def test_tasks_are_paired_within_a_seed() -> None:
    # Task a 1 → 1/2, task b 0 → 1: differences with − without −1/2 and 1, mean .25. Task c is judged in one arm only.
    with_ = report({"a": (True, False), "b": (True, True), "c": (None, None)})
    without = report({"a": (True, True), "b": (False, False), "c": (True, True)})
    effect = compare_seeds({0: (with_, without)})
    assert effect.difference == 0.25
    assert effect.pairs[0].over_tasks == paired(without, with_)
    assert effect.pairs[0].over_tasks.left_out == 1
    assert (effect.low, effect.high, effect.shown) == (None, None, False)


def test_the_effect_of_six_seeds_by_hand() -> None:
    rates = {0: (6, 5), 1: (8, 5), 2: (7, 5), 3: (9, 5), 4: (5, 4), 5: (8, 6)}  # of 10: +1 +3 +2 +4 +1 +2 tasks
    effect = compare_seeds({seed: (right(a, prefix=f"s{seed}-"), right(b, prefix=f"s{seed}-"))
                            for seed, (a, b) in rates.items()})  # fmt: skip
    assert effect.difference == pytest.approx(13 / 60)
    assert (effect.with_, effect.without) == pytest.approx((43 / 60, 30 / 60))
    assert (effect.low, effect.high) == pytest.approx((0.1, 0.4))
    assert effect.p == 2 / 64
    assert effect.num_recurring == 0
    assert verdict(effect, "milestones") == ("milestones helps here: +21.7 points, 95 % [+10.0, +40.0], p = .031, 6 pairs")
    same_tasks = compare_seeds({seed: (right(a), right(b)) for seed, (a, b) in rates.items()}, greedy=True)
    assert same_tasks.num_recurring == 50
    assert same_tasks.difference == pytest.approx(13 / 60)  # the greedy ones


def test_verdicts() -> None:
    def effect(*differences: int):
        return compare_seeds({seed: (right(5 + d), right(5)) for seed, d in enumerate(differences)})

    assert verdict(effect(1, 1, 1, 1, 1), "x") == (
        "5 pairs of runs can show nothing: even if all point one way, chance does that with p = .062; it takes 6 pairs to "
        "reach p < .05"
    )
    assert "1 pair of runs can show nothing: even if all point one way, chance does that with p = 1.000" in verdict(
        effect(5), "x"
    )
    assert verdict(effect(*[0] * 6), "x") == "no pair differs: x changed no final success here"
    assert verdict(effect(1, 1, 1, 1, 1, -1), "x").startswith("not shown that x matters here: +6.7 points, 95 % [-10.0, ")
    assert verdict(effect(-1, -2, -1, -1, -1, -3), "x").startswith("x harms here: -15.0 points")
    assert "p < .001" in verdict(effect(*range(-1, -5, -1), *range(-1, -5, -1), *range(-1, -5, -1)), "x")


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(RecipeError, match="no pair of runs is finished"):
        compare_seeds({})
    with pytest.raises(RecipeError, match="the same tasks"):
        compare_seeds({0: (right(1), right(1, prefix="u"))})
