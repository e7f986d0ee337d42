"""`milepost explain` by value, its stable JSON keys, and one sentence for every kind of bad input."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import numpy as np
import pytest

from milepost.explain import add_explain_parser, explain_advantage, explain_kl, explain_loss, pass_at_k, run_explain
from milepost.formula import describe, describe_advantage
from milepost.recipe import PRESETS, make_recipe
from milepost.types import RecipeError


def command(*words: str) -> int:
    parser = argparse.ArgumentParser("milepost")
    add_explain_parser(parser.add_subparsers(dest="command"))
    return run_explain(parser.parse_args(["explain", *words]))


@pytest.fixture
def explain(capsys):
    """Runs a command with --json and returns what it printed."""

    def run(*words: str) -> dict:
        capsys.readouterr()
        assert command(*" ".join(words).split(), "--json") == 0
        return json.loads(capsys.readouterr().out)

    return run


def close(got, expected, tolerance=5e-7):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


# ---- advantage -------------------------------------------------------------------------------------------------------


def test_advantage_of_the_tutorial_group(explain):
    got = explain("advantage", "--rewards", "0,1,1,0", "--scale", "group", "--std", "population", "--delta", "0")
    assert got["advantages"] == [-1, 1, 1, -1]
    assert got["groups"] == [{"id": "1", "num_counted": 4, "mean": 0.5, "std": 0.5, "constant": False}]
    assert got["baselines"] == [0.5] * 4
    assert got["divisors"] == [0.5] * 4
    assert got["baseline"] == "mean"
    assert set(got) == {"rewards", "scored", "baseline", "scale", "std", "delta", "groups", "std_batch", "baselines",
                        "divisors", "advantages", "trained", "in_baseline"}  # fmt: skip


def test_advantage_defaults_to_leave_one_out(explain):
    got = explain("advantage", "--rewards", "1,0,0,0")
    close(got["advantages"], [1, -1 / 3, -1 / 3, -1 / 3])
    close(got["baselines"], [0, 1 / 3, 1 / 3, 1 / 3])


def test_advantage_shows_how_it_comes_about():
    """baseline and divisor rebuild the advantage, for every choice."""
    rewards, groups = [1, 0, 0.4, None, -1, 1, 1], [1, 1, 1, 1, 2, 2, 3]
    for baseline, scale in (("loo", "none"), ("mean", "none"), ("mean", "group"), ("loo", "batch"), ("none", "none")):
        got = explain_advantage(rewards, groups=groups, baseline=baseline, scale=scale, std="sample").values
        for r, b, d, a in zip(got["scored"], got["baselines"], got["divisors"], got["advantages"]):
            assert a == pytest.approx(0 if r is None else (r - b) / d, abs=1e-12)


def test_interleaved_groups(explain):  # case A10
    assert explain("advantage", "--rewards", "1,0,1,0", "--groups", "1,2,1,2")["advantages"] == [0, 0, 0, 0]


def test_truncated_and_unscorable_episodes(explain):  # block C8
    words = ["advantage", "--rewards", "1,1,0,0,0,0,0,0", "--truncated", "0,0,0,0,0,0,0,1", "--baseline", "mean"]
    kept = explain(*words)
    close(kept["advantages"], [0.75] * 2 + [-0.25] * 5 + [0])
    assert kept["trained"] == [True] * 7 + [False]
    scaled = [*words, "--scale", "group", "--delta", "0", "--truncated-rule"]
    close(explain(*scaled, "score")["advantages"], [1.732051] * 2 + [-0.57735] * 6)
    close(explain(*scaled, "drop")["advantages"], [1.581139] * 2 + [-0.632456] * 5 + [0])
    unscored = explain("advantage", "--rewards", "1,none,0")
    assert unscored["rewards"] == [1, None, 0]
    assert unscored["advantages"] == [1, 0, -1]


def test_soft_penalty_and_weights(explain):  # case C6
    soft = "--truncated-rule soft --max-new-tokens 100 --soft-buffer 20"
    got = explain("advantage --rewards 1,1,1 --lengths 80,90,100 --aggregate sequence_mean", soft)
    assert got["scored"] == [1, 0.5, 0]
    close(got["advantages"], [0.75, 0, -0.75])
    close(got["weights"], [1 / 240, 1 / 270, 1 / 300])
    cut = explain("advantage", "--rewards", "1,0", "--lengths", "2,8", "--truncated", "0,1")
    assert cut["weights"] == [0.5, 0]


# ---- loss ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "value"), [(["token_mean"], 0.6), (["sequence_mean"], 0), (["constant", "--constant", "10"], 0.3)]
)
def test_loss_at_ratio_one(explain, words, value):  # cases A1, A2
    got = explain("loss", "--ratios", "1", "--advantages", "1,-1", "--lengths", "2,8", "--aggregate", *words)
    assert got["loss"] == pytest.approx(value, abs=1e-12)
    assert got["clip_low"] == got["clip_high"] == 0
    assert np.abs(got["gradient"]).min() > 0
    close(got["gradient"], -np.array(got["weights"]) * ([1] * 2 + [-1] * 8))


def test_loss_keys_are_stable(explain):
    got = explain("loss", "--ratios", "1", "--advantages", "1")
    keys = "loss gradient surrogate weights ratios advantages episode metrics clip_low clip_high"
    assert set(got) == set(keys.split())
    got = explain("loss", "--ratios", "1", "--advantages", "1", "--loss", "sapo")
    assert "clip_low" not in got


def test_clip_branches(explain):  # block A3
    words = [
        "loss",
        "--ratios",
        ".5,.5,1.25,1.5,1.5,4",
        "--advantages",
        "1,-1,1,1,-1,-1",
        "--clip-high",
        ".28",
        "--dual-clip",
        "3",
    ]
    got = explain(*words, "--aggregate", "constant", "--constant", "1")
    close(np.array(got["gradient"]) * 6, [-0.5, 0, -1.25, 0, 1.5, 0])
    close(got["surrogate"], [0.5, -0.8, 1.25, 1.28, -1.5, -3])
    assert (got["clip_low"], got["clip_high"]) == (pytest.approx(1 / 6), pytest.approx(1 / 6))


def test_sequence_objectives(explain):  # block A12
    ratios = ",".join(str(x) for x in np.exp([0.1, -0.2, 0.4]))
    got = explain(
        "loss", "--ratios", ratios, "--advantages", "1", "--lengths", "3", "--loss", "gspo", "--clip-high", "0.0004"
    )
    close(got["surrogate"], [1.0004] * 3)
    assert got["clip_high"] == 1
    ratios = ",".join(str(x) for x in np.exp([0.1, -0.2, 0.8]))
    got = explain("loss", "--ratios", ratios, "--advantages", "-1", "--lengths", "3", "--loss", "gmpo")
    assert got["loss"] == pytest.approx(1.262802, abs=5e-7)


def test_cispo_and_dppo_weights(explain):  # blocks A13, A16
    got = explain("loss", "--ratios", ".5,1,1.5,8", "--advantages", "1", "--loss", "cispo_clip", "--clip-high", ".28")
    close(-4 * np.array(got["gradient"]), [0.8, 1, 1.28, 1.28])
    got = explain("loss", "--ratios", "3.5,20", "--advantages", "1", "--loss", "dppo_tv", "--old-probs", ".1,.001")
    close(-2 * np.array(got["gradient"]), [0, 20])


def test_mismatch_weights(explain):  # block D6
    got = explain(
        "loss", "--ratios", "1", "--advantages", "1,1,1,1,1", "--mismatch", ".5,1,1,1.5,16", "--correction", "tis"
    )
    close(got["correction"], [0.5, 1, 1, 1.5, 2])
    assert got["metrics"]["mismatch/ess"] == pytest.approx(0.307102, abs=5e-7)
    assert got["metrics"]["mismatch/chi2"] == pytest.approx(51.1)
    got = explain(
        "loss", "--ratios", "1", "--advantages", "1,1,1,1,1", "--mismatch", ".5,1,1,1.5,16", "--correction", "mis"
    )
    close(got["correction"], [0.5, 1, 1, 1.5, 0])


# ---- KL, returns, pass@k, defaults -----------------------------------------------------------------------------------


def test_kl(explain):  # block A17, cases A18, A19
    got = explain("kl", "--logp", "-1,-1", "--ref", "-2,-0.5")
    close(got["k1"], [1, -0.5])
    close(got["k2"], [0.5, 0.125])
    close(got["k3"], [0.367879, 0.148721])
    close(got["gradient"]["k3"], [0.632121, -0.648721])
    close(got["gradient"]["k1"], [1, 1])
    close(got["gradient"]["k3_ratio"], got["k1"])  # at ratio 1 it is log(π/ref), as for k2
    assert got["mean"]["k1"] == 0.25
    half = explain_kl([-0.6931471805599453], [-1.3862943611198906]).values
    close([half["k1"][0], half["k2"][0], half["k3"][0]], [0.693147, 0.240227, 0.193147])


def test_returns(explain):  # block B1
    close(explain("returns", "--rewards", "0,0,1", "--gamma", "0.95")["returns"], [0.9025, 0.95, 1])
    for steps, expected in ((10, 0.904382), (100, 0.366032)):
        got = explain("returns", "--rewards", ",".join(["0"] * steps + ["1"]), "--gamma", ".99")
        assert got["returns"][0] == pytest.approx(expected, abs=5e-7)
        assert got["discounts"][-1] == pytest.approx(expected, abs=5e-7)


def test_pass_at_k(explain):  # block C12, case K1
    assert explain("passk", "--n", "16", "--c", "4", "--k", "8")["pass_at_k"] == pytest.approx(0.9615384615384616)
    assert pass_at_k(4, 1, 4) == 1
    got = explain("passk", "--n", "8", "--c", "2", "--k", "4")
    assert got["pass_at_k"] == pytest.approx(0.786, abs=5e-4)
    assert got["naive"] == pytest.approx(0.684, abs=5e-4)
    assert pass_at_k(8, 0, 3) == 0
    for n, c, k in ((4, 1, 5), (4, 1, 0), (4, 5, 2), (4, -1, 2)):
        with pytest.raises(RecipeError):
            pass_at_k(n, c, k)


def test_defaults(explain):
    rows = {row["key"]: row for row in explain("defaults")["defaults"]}
    assert rows["rollout.group_size"]["default"] == "8"
    assert rows["loss.aggregate"]["symptom"]
    assert rows["kl.beta"]["seeds"]


# ---- text, formulas, refusals ----------------------------------------------------------------------------------------


def test_text_shows_every_step(capsys):
    command("advantage", "--rewards", "0,1,1,0", "--scale", "group", "--delta", "0")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "A = (r − group mean) / (population std of the group + 0)"
    assert "mean 0.5 · population std 0.5" in lines[1]
    assert lines[3].split() == ["episode", "group", "reward", "baseline", "divisor", "advantage", "trained"]
    assert lines[6].split() == ["2", "1", "1", "0.5", "0.5", "1", "yes"]
    others = ("kl --logp -1 --ref -2", "defaults", "returns --rewards 0,1 --gamma 1", "passk --n 4 --c 1 --k 2")
    for line in ("loss --ratios 1 --advantages 1,-1", *others):
        assert command(*line.split()) == 0
        assert "nan" not in capsys.readouterr().out
    command("loss", "--ratios", "1", "--advantages", "1,-1")
    assert "carry no meaning" in capsys.readouterr().out


@pytest.mark.parametrize("preset", ["", *PRESETS])
def test_every_preset_has_its_formula_in_words(preset):
    recipe = make_recipe({"preset": preset, "env": {"name": "maze"}})
    reward, *lines = describe(recipe)
    assert reward.startswith("reward = ") and len(lines) == 5
    assert lines[0].startswith(("A = ", "A of "))
    assert ("KL" in lines[1]) == bool(recipe.kl.beta)


def test_the_sampling_that_is_really_done_is_said():  # case F4
    values = {"rollout": {"temperature": 0.7, "max_new_tokens": 40}, "eval": {"temperature": 0.3, "top_p": 0.9}}
    assert describe(make_recipe(values))[4] == (
        "sampling: temperature 0.7 from the whole distribution, at most 40 tokens; held-out: temperature 0.3, top-p 0.9; "
        "the model's own generation settings are not used"
    )


@pytest.mark.parametrize(
    ("credit", "parts"),
    [
        (
            {"rule": "anchor", "gamma": 0.95},
            ["− mean of the other members + 1·S", "G − mean G of the other episodes", "0.95^(k−t)"],
        ),
        (
            {"rule": "anchor", "scale": "group", "anchor_weight": 0.5},
            ["+ 0.5·S", "S = (G − mean G of all episodes from the same state) / (population std of these + 1e-06)"],
        ),
        (
            {"rule": "anchor", "history": 2, "history_weights": "k+2", "shrinkage": 3.0},
            ["k = 0 … 2", "weights k+2", "S = n/(n + 3) · (mean G of those who did the same there"],
        ),
        ({"rule": "anchor", "anchor": "graph", "gamma": 0.9}, ["S = 0.9·V of the next state − V of this"]),
        (
            {"rule": "turn", "turns": "information", "answer": "answer({gold})", "gain_weight": 0.4},
            ["0.4·(p after turn k − p before it)", "'answer({gold})'"],
        ),
        ({"rule": "turn", "turns": "process", "scale": "group", "gamma": 0.9}, ["0.9^(k−t)·z_k", "std + 1e-06)"]),
        ({"rule": "value", "lam_alpha": 0.05}, ["λ = max(0, 1 − 1/(0.05·turns))"]),
        ({"rule": "value", "lam_end": 0.5}, ["λ = 0.5^(1/(turns − 1))"]),
        ({"rule": "branch", "branches": {"num": 3}}, ["over 3 continuations", "continuations: r − mean of its rivals"]),
        ({"rule": "branch", "branches": {"form": "vine"}}, ["continuations: not trained"]),
        ({"rule": "branch", "branches": {"form": "tree"}}, ["A of a leaf = r − mean of the other leaves", "of its tree"]),
        ({"rule": "branch", "branches": {"form": "treerl", "sqrt": True}}, [" / √(leaves below)"]),
    ],
)
def test_the_formula_of_a_rule_names_what_it_computes(credit, parts):
    told = describe_advantage(make_recipe({"env": {"name": "maze", "max_turns": 12}, "credit": credit}))
    assert [part for part in parts if part not in told] == []


def test_settings_that_change_the_credit_change_its_formula():
    anchor, tree = {"rule": "anchor", "gamma": 0.9}, {"rule": "branch", "branches": {"form": "tree"}}
    sections = [
        {}, {"scale": "group"}, anchor, {**anchor, "gamma": 0.8}, {**anchor, "scale": "group"}, {**anchor, "history": 1},
        {**anchor, "history": 1, "history_weights": "k+2"}, {**anchor, "history": 2}, {**anchor, "shrinkage": 1.0},
        {**anchor, "baseline": "mean"}, {**anchor, "anchor": "graph"}, {**anchor, "anchor": "graph", "gamma": 0.8},
        tree, {**tree, "scale": "group"}, *({"rule": "branch", "branches": b} for b in (
            {}, {"form": "vine"}, {"num": 3}, {"form": "treerl"}, {"form": "treerl", "sqrt": True})),
        {"rule": "branch", "baseline": "none"}, {"rule": "turn"}, {"rule": "turn", "gamma": 0.9},
        {"rule": "turn", "turns": "first"}, {"rule": "turn", "turns": "first", "scale": "group"},
        {"rule": "turn", "turns": "information", "answer": "{gold}"}, {"rule": "value"}, {"rule": "value", "lam": 0.9},
        {"rule": "value", "lam_end": 0.5}, {"rule": "value", "lam_alpha": 0.5},
    ]  # fmt: skip
    told = [describe_advantage(make_recipe({"env": {"name": "maze", "max_turns": 12}, "credit": s})) for s in sections]
    assert len(set(told)) == len(sections) and not any("\n" in line for line in told)


def test_a_schedule_of_the_kl_weight_is_said():
    schedule = {"kl": {"beta": 0.04, "beta_end": 0.0}}
    assert "(0.04 → 0 over the run)·KL (k2)" in describe(make_recipe(schedule))[1]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("advantage --rewards 1,nan", "nan"),
        ("advantage --rewards 1,inf", "inf"),
        ("advantage --rewards 1,x", "'x' is not a number"),
        ("advantage --rewards ,", "--rewards is empty"),
        ("advantage --rewards 1,0 --groups 1", "--groups has 1 entries but there are 2 rewards"),
        ("advantage --rewards 1,0 --lengths 1,2,3", "--lengths has 3"),
        ("advantage --rewards 1,0 --lengths 1,0", "whole numbers"),
        ("advantage --rewards 1,0 --lengths 1,1e12", "100000"),
        ("advantage --rewards 1,0 --truncated 0,2", "one 0 or 1"),
        ("advantage --rewards 1,0 --scale sigma", "--scale"),
        ("advantage --rewards 1,0 --std unbiased", "--std"),
        ("advantage --rewards 1,0 --delta -1", "--delta"),
        ("advantage --rewards 1,0 --delta nan", "--delta"),
        ("advantage --rewards 1,0 --baseline loo --scale group", "--baseline"),
        ("advantage --rewards 1,0 --truncated-rule maybe", "--truncated-rule"),
        ("advantage --rewards 1,0 --truncated-rule soft --soft-buffer 500", "--soft-buffer"),
        ("loss --ratios 1 --advantages 1 --loss ppo", "--loss"),
        ("loss --ratios 1 --advantages 1 --aggregate mean", "--aggregate"),
        ("loss --ratios 1 --advantages 1 --clip-low -1", "--clip-low"),
        ("loss --ratios 1 --advantages 1 --dual-clip .5", "--dual-clip"),
        ("loss --ratios 1 --advantages 1 --correction huge", "--correction"),
        ("loss --ratios 1,2,3 --advantages 1 --lengths 2,2", "give 1 or 4"),
        ("loss --ratios 1 --advantages 1,2,3 --lengths 2,2", "give 1 or 2 or 4"),
        ("loss --ratios 0 --advantages 1", "above 0"),
        ("loss --ratios nan --advantages 1", "nan"),
        ("loss --ratios 1 --advantages 1 --aggregate constant", "--constant"),
        ("loss --ratios 1 --advantages 1 --loss dppo_tv", "--old-probs"),
        ("loss --ratios 4 --advantages 1 --old-probs .5", "above 1"),
        ("loss --ratios 1 --advantages 1 --old-probs 1.5", "probabilities"),
        ("loss --ratios 1 --advantages 1 --groups a,b", "--groups has 2"),
        ("kl --logp -1,-2 --ref -1", "--ref has 1"),
        ("kl --logp 0.5 --ref -1", "at most 0"),
        ("returns --rewards 0,1 --gamma 1.5", "--gamma"),
        ("returns --rewards 0,none --gamma 1", "not a number"),
        ("passk --n 4 --c 1 --k 5", "k = 5"),
        ("advantage --rewards 1,,0", "--rewards '1,,0': '' is not a number"),
        ("advantage --rewards 1,0,", "--rewards '1,0,': '' is not a number"),
    ],
)
def test_bad_input_is_one_sentence_that_names_the_setting(words, names):
    with pytest.raises(RecipeError) as error:
        command(*words.split())
    assert names in str(error.value)
    assert "\n" not in str(error.value)


def test_lists_may_begin_with_a_minus(explain):
    assert explain("loss", "--ratios", "1", "--advantages", "-1,1")["advantages"] == [-1, 1]
    assert explain("loss", "--ratios", "1", "--advantages=-.5,1")["advantages"] == [-0.5, 1]


def test_what_is_idle_beside_the_rest_may_be_given(explain):
    assert explain("advantage", "--rewards", "1,0", "--std", "sample", "--delta", "1e-4")["advantages"] == [1, -1]
    assert explain("loss", "--ratios", "1", "--advantages", "1", "--gmpo-clip", "1")["loss"] == -1


def test_unknown_keyword_of_the_loss_is_refused():
    with pytest.raises(RecipeError, match=r"--clip-hi is not a setting"):
        explain_loss([1.0], [1.0], clip_hi=0.3)


def test_import_needs_no_torch():
    code = (
        "import milepost.explain, milepost.formula, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
