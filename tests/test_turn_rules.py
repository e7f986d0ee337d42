"""Rules that spread rewards, values and a teacher's opinion over turns and tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from milepost.advantages import adaptive_lambda, advantages, discounted_returns, gae, gdpo, minus, relative_lambda
from milepost.credit import assign
from milepost.credit_sections import CreditSection
from milepost.forest import build_batch
from milepost.learner import events_of
from milepost.levers import has_signal
from milepost.loss import Events, policy_loss
from milepost.recipe import make_recipe
from milepost.sections import CorrectionSection, KlSection, LossSection, RolloutSection
from milepost.types import Credit, Episode, EpisodeId, Group, RecipeError, Reward, Sampled, StopKind, StopReason, Task, Turn

DONE = StopReason(StopKind.TERMINATED, "ended")


def group_of(*num_turns, name="g", source="", tokens=1):
    episodes = []
    for i, turns in enumerate(num_turns):
        sampled = Sampled(np.zeros(tokens), np.zeros(tokens), 1.0, ((0, 0),), "stop")
        episodes.append(Episode(EpisodeId("train", 1, name, i), name, (Turn(np.zeros(1), sampled),) * turns, DONE))
    return Group(name, Task(name, "?", source=source), tuple(episodes))


def told(group, totals, per_turn=None, section=None, **more):
    ids = [e.id for e in group.episodes]
    if per_turn is not None:
        more["turn_rewards"] = dict(zip(ids, per_turn))
    more = {key: dict(zip(ids, value)) if isinstance(value, list) else value for key, value in more.items()}
    (credits,) = assign([group], [[Reward(t) for t in totals]], CreditSection(**section), RolloutSection(), **more)
    return [c.advantages for c in credits]


def test_a2_process_rewards_are_normalised_over_all_steps():
    # Steps 1, 0 and 0, 0, 1: mean .4, std .489898; then summed from each step on.
    section = {"rule": "turn", "turns": "process", "baseline": "mean", "delta": 1e-12, "scale": "group"}
    first, second = told(group_of(2, 3), [1, 1], [[1, 0], [0, 0, 1]], section)
    assert first == pytest.approx([0.408248, -0.816497], abs=1e-6)
    assert second == pytest.approx([-0.408248, 0.408248, 1.224745], abs=1e-6)


@pytest.mark.parametrize("paid", [0.1, 0.2, 0.7])
@pytest.mark.parametrize("baseline", ["loo", "mean"])
def test_rounding_of_a_mean_is_no_signal(paid, baseline):
    # .1 + .1 + .1 = .30000000000000004: .1 minus a mean of tenths is −1.4e-17.
    for size in (3, 4, 7):
        group = group_of(*[2] * size)
        section = CreditSection(rule="turn", baseline=baseline)
        (credits,) = assign([group], [[Reward(paid)] * size], section, RolloutSection())
        assert all(c.advantages.tolist() == [0, 0] and c.constant_group for c in credits) and not has_signal(credits)
    # A difference that is none of rounding stays: .3 against the others' .1.
    (last, *_) = told(group_of(2, 2, 2), [0.3, 0.1, 0.1], section={"rule": "turn"})
    assert last == pytest.approx([0.2, 0.2])


def test_parts_and_stds_of_rounding_are_none():
    # All of a batch paid .1: their std is rounding (1.4e-17), and .1 over it would be 1e5.
    raw = advantages([0.1] * 3, "abc", baseline="none", scale="batch")
    assert raw.tolist() == [0, 0, 0]
    # Parts that cancel: z of .1, .2, .4 and of their negatives with an offset; weights 1 and 1.
    parts = [[x, 0.7 - x] for x in (0.1, 0.2, 0.4, 0.3)]
    assert gdpo(parts, [1.0, 1.0], ["g"] * 4).tolist() == [0.0] * 4


def test_minus_is_exact_zero_within_the_tolerance_alone():
    assert minus([0.1, 1e9 + 1, 2e-9, 5e-10], [0.1 - 1.4e-17, 1e9, 0.0, 0.0]).tolist() == [0.0, 0.0, 2e-9, 0.0]
    assert minus(1e9 + 10, 1e9) == 10 and minus(0.0, -0.5) == 0.5


def test_b1_e9_discounts():
    assert discounted_returns([0, 0, 1], 0.95) == pytest.approx([0.9025, 0.95, 1])
    (first, _) = told(group_of(5, 5), [1, 0], section={"rule": "discounted", "gamma": 0.95, "baseline": "none"})
    assert first == pytest.approx([0.814506, 0.857375, 0.9025, 0.95, 1], abs=1e-6)


def test_b4_mt_grpo_pays_the_first_turn_to_the_first_turn_alone():
    # Outcome 1 and 0, first turn's reward .2 and .4: under z-scores the two cancel where both are told.
    totals, per_turn = [1.2, 0.4], [[0.2, 1.0], [0.4, 0.0]]
    z = {"rule": "turn", "turns": "first", "baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-12}
    first, second = told(group_of(2, 2), totals, per_turn, z)
    assert first == pytest.approx([0, 0.707107], abs=1e-6) and second == pytest.approx([0, -0.707107], abs=1e-6)
    first, second = told(group_of(2, 2), totals, per_turn, {"rule": "turn", "turns": "first", "baseline": "mean"})
    assert first == pytest.approx([0.4, 0.5]) and second == pytest.approx([-0.4, -0.5])


def test_mt_grpo_tells_an_episode_of_one_turn_its_whole_total():
    """Nobody was called first there: it counts with its total among outcomes and with 0 among first turns, and is told A of
    all totals, as its authors' code does."""
    totals, per_turn = [1.2, 0.4, 1.0], [[0.2, 1.0], [0.4, 0.0], [1.0]]
    first, second, single = told(
        group_of(2, 2, 1), totals, per_turn, {"rule": "turn", "turns": "first", "baseline": "mean"}
    )
    # Outcomes 1, 0, 1: mean 2/3. First turns .2, .4, 0: mean .2. Totals: mean 13/15.
    assert first == pytest.approx([1 / 3 + 0, 1 / 3]) and second == pytest.approx([-2 / 3 + 0.2, -2 / 3])
    assert single == pytest.approx([1 - 13 / 15])
    z = {"rule": "turn", "turns": "first", "baseline": "mean", "scale": "group", "std": "population", "delta": 1e-12}
    first, second, single = told(group_of(2, 2, 1), totals, per_turn, z)
    # Divided by √2/3, by √(.08/3) and by √(.3466667/3).
    assert first == pytest.approx([0.707107, 0.707107], abs=1e-6)
    assert second == pytest.approx([-1.414214 + 1.224745, -1.414214], abs=1e-6)
    assert single == pytest.approx([0.392232], abs=1e-6)
    # Where nobody calls anything, it is the rule `episode`.
    assert [a.tolist() for a in told(group_of(1, 1), [1, 0], [[1], [0]], {"rule": "turn", "turns": "first"})] == [[1], [-1]]


def test_b6_advantages_over_turns():
    assert gae([0, 0, 1], [0.3, 0.5, 0.8], 0.95, 0.9) == pytest.approx([0.543505, 0.431, 0.2])
    assert gae([0, 0, 1], [0, 0, 0], 1, 1).tolist() == [1, 1, 1]
    rewards = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]  # RAGEN's vector
    found = gae(rewards, [0.1 * i for i in range(11)], 1, 1)
    assert found == pytest.approx([2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 0.4, 0.3, 0.2, 0.1, 0.0])
    assert [adaptive_lambda(0.05, n) for n in (10, 100, 1000)] == pytest.approx([0, 0.8, 0.98])
    assert relative_lambda(0.5, 5) == pytest.approx(0.840896, abs=1e-6) and relative_lambda(0.5, 1) == 1


def test_b6_the_rule_uses_values_of_turns_and_no_group():
    section = {"rule": "value", "gamma": 0.95, "lam": 0.9}
    values = [[0.3, 0.5, 0.8], [0.0]]
    first, second = told(group_of(3, 1), [1, 1], section=section, turn_values=values)
    assert first == pytest.approx([0.543505, 0.431, 0.2]) and second.tolist() == [1.0]  # equal totals, yet told
    first, _ = told(
        group_of(5, 1), [0, 1], section={"rule": "value", "lam_end": 0.5}, turn_values=[[0.0] * 4 + [1.0], [0.0]]
    )
    assert first == pytest.approx([-(0.5 ** (1 - t / 4)) + (0.5 ** ((3 - t) / 4) if t < 4 else 0) for t in range(5)])


def test_while_the_value_learns_the_policy_follows_its_episodes():
    first, second = told(group_of(2, 1), [1, 0], section={"rule": "value"}, turn_values=None)
    assert first.tolist() == [1, 1] and second.tolist() == [-1]


def test_a_value_out_of_reach_says_nothing():
    group = group_of(2, 1)
    only = {group.episodes[0].id: [0.25, 0.5]}
    (credits,) = assign([group], [[Reward(1), Reward(0)]], CreditSection(rule="value"), RolloutSection(), turn_values=only)
    assert credits[0].advantages.tolist() == [0.75, 0.5] and credits[1].advantages.tolist() == [0]


def test_distillation_tells_each_token_what_the_teacher_thinks():
    gaps = [[0.5, -1.0, 0.25, 0.0], [-0.1, 0.1]]
    first, second = told(group_of(2, 1, tokens=2), [1, 0], section={"rule": "distill", "teacher": "t"}, teacher_gaps=gaps)
    assert first.tolist() == gaps[0] and second.tolist() == gaps[1]
    section = {"rule": "distill", "teacher": "t", "outcome_weight": 0.5}
    first, second = told(group_of(2, 1, tokens=2), [1, 0], section=section, teacher_gaps=gaps)
    assert first.tolist() == [1.0, -0.5, 0.75, 0.5] and second == pytest.approx([-0.6, -0.4])


def test_b14_sources_that_pay_on_other_scales_are_told_as_strongly():
    rewards, groups = [1, 0, 0.1, 0], ["a", "a", "b", "b"]
    settings = {"baseline": "mean", "delta": 0.0, "sources": ["large", "large", "small", "small"]}
    assert advantages(rewards, groups, scale="source", **settings) == pytest.approx([1, -1, 1, -1])
    assert advantages(rewards, groups, scale="none", **settings) == pytest.approx([0.5, -0.5, 0.05, -0.05])
    groups = [group_of(1, 1, name=name, source=name) for name in ("large", "small")]
    credits = assign(groups, [[Reward(1), Reward(0)], [Reward(0.1), Reward(0)]],
                     CreditSection(scale="source", baseline="mean", delta=0.0), RolloutSection())  # fmt: skip
    assert [float(c.advantages[0]) for row in credits for c in row] == pytest.approx([1, -1, 1, -1])


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"shrinkage": 2}, 'credit.shrinkage = 2 does nothing while credit.rule = "episode"; remove it, or set credit'),
        ({"rule": "anchor", "lam": 0.9}, 'credit.lam = 0.9 does nothing while credit.rule = "anchor"'),
        ({"branches": {"num": 3}}, 'credit.branches does nothing while credit.rule = "episode"'),
        ({"rule": "branch", "branches": {"at": "uncertain", "every": 3}}, "credit.branches.every = 3 does nothing"),
        ({"rule": "branch", "branches": {"sqrt": True}}, "credit.branches.sqrt does nothing"),
        ({"rule": "distill"}, "needs credit.teacher"),
        ({"rule": "value", "lam": 0.9, "lam_alpha": 0.05}, "keep one of them"),
        ({"rule": "value", "scale": "group"}, "has the value as its baseline"),
        ({"rule": "anchor", "anchor": "graph", "history": 2}, 'belong to credit.anchor = "returns"'),
        ({"rule": "anchor", "anchor": "graph", "scale": "group"}, 'to A; set credit.scale = "none" instead of "group"'),
        ({"rule": "anchor", "scale": "batch"}, 'must divide both alike; set credit.scale = "none" instead of "batch"'),
        ({"rule": "anchor", "scale": "source"}, 'set credit.scale = "none" instead of "source"'),
        ({"rule": "anchor", "history_weights": "k+2"}, 'credit.history_weights = "k+2" does nothing while credit.history'),
        ({"rule": "branch", "scale": "group"}, 'credit.branches.form = "differences" is told in the units of the total'),
        ({"rule": "branch", "std": "sample"}, 'credit.std = "sample" does nothing while credit.scale = "none"'),
        ({"rule": "branch", "branches": {"form": "vine"}, "scale": "source"}, 'credit.branches.form = "vine" is told in'),
        ({"rule": "branch", "branches": {"form": "treerl"}, "scale": "group"}, 'form = "treerl" is told in the units'),
        ({"rule": "branch", "branches": {"form": "treerl"}, "baseline": "mean"}, 'set credit.baseline = "auto" instead of'),
        ({"rule": "branch", "branches": {"form": "tree"}, "scale": "batch"}, "compares within the task and within"),
        ({"rule": "branch", "branches": {"at": "uncertain", "uncertainty": 0, "chance": 0}}, "never branch"),
        ({"rule": "turn", "turns": "process"}, 'takes mean and std of all steps of the group; set credit.scale = "group"'),
        ({"rule": "turn", "turns": "process", "scale": "batch"}, 'set credit.scale = "group" instead of "batch"'),
        ({"rule": "turn", "turns": "process", "scale": "group", "baseline": "none"}, 'set credit.baseline = "auto"'),
        ({"rule": "turn", "turns": "first", "gamma": 0.9}, 'credit.gamma = 0.9 does nothing while credit.turns = "first"'),
        ({"rule": "distill", "teacher": "t", "scale": "group"}, "without credit.outcome_weight does not look at rewards"),
        ({"rule": "distill", "teacher": "t", "baseline": "mean"}, "without credit.outcome_weight does not look at rewards"),
    ],
)  # fmt: skip
def test_settings_that_do_nothing_are_refused(section, said):
    with pytest.raises(RecipeError) as error:
        make_recipe({"credit": section, "env": {"name": "calc"}})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"credit": {"rule": "branch"}, "env": {"max_turns": 4}}, "credit.branches.every = 4 is never reached, for"),
        ({"preset": "vineppo", "env": {"max_turns": 3}}, "ends every episode before; use at most 2"),
        ({"credit": {"rule": "branch", "branches": {"at": "uncertain"}}, "env": {"max_turns": 1}}, "env.max_turns = 1"),
        ({"credit": {"rule": "value", "value_warmup": 9}, "grpo": {"steps": 9}},
         'credit.value_warmup = 9 lasts for all of grpo.steps = 9, so that credit.rule = "value" never has a say and every '
         "step follows episode credit; set credit.value_warmup to at most 8, or raise grpo.steps"),
        ({"credit": {"rule": "value"}, "grpo": {"steps": 1}}, "credit.value_warmup = 5 lasts for all of grpo.steps = 1"),
        ({"credit": {"rule": "anchor", "anchor": "graph"}, "reward": {"potential": 1}},
         "potential shaping with `anchor` credit of anchor = "),
    ],
)  # fmt: skip
def test_what_the_rest_of_the_recipe_leaves_without_effect_is_refused(values, said):
    with pytest.raises(RecipeError) as error:
        make_recipe({**values, "env": {"name": "maze", **values.get("env", {})}})
    assert said in str(error.value)


@pytest.mark.parametrize(
    "section",
    [
        {"rule": "turn", "turns": "process", "scale": "group", "std": "sample", "delta": 0.1},
        {"rule": "turn", "turns": "first", "scale": "batch"},
        {"rule": "anchor", "scale": "group", "history": 2, "history_weights": "k+2"},
        {"rule": "branch", "scale": "group", "delta": 0.1, "branches": {"form": "tree"}},
        {"rule": "branch", "baseline": "none"},
        {"rule": "distill", "teacher": "t", "outcome_weight": 0.5, "scale": "group"},
    ],
)
def test_settings_that_do_something_are_taken(section):
    make_recipe({"credit": section, "env": {"name": "maze"}})


@pytest.mark.parametrize(("warmup", "steps"), [(8, 9), (0, 1), (5, 0)])
def test_values_that_have_a_say_and_recipes_that_train_nothing_are_taken(warmup, steps):
    make_recipe({"credit": {"rule": "value", "value_warmup": warmup}, "env": {"name": "maze"}, "grpo": {"steps": steps}})


def test_presets_of_turn_credit_expand_and_give_way_to_own_settings():
    def made(**values):
        return make_recipe({"env": {"name": "maze"}, **values}).credit

    assert (made(preset="gigpo").rule, made(preset="gigpo").gamma, made(preset="hgpo").history) == ("anchor", 0.95, 2)
    assert made(preset="mt_grpo").turns == "first"
    vine = made(preset="vineppo", credit={"branches": {"num": 4}})
    assert (vine.branches.form, vine.branches.num) == ("vine", 4)


RATIOS = ([0.1, 0.1, -0.2, 0.05], [0, 0, 1, 1], [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        ("token", [1.105171, 1.105171, 0.818731, 1.051271]),
        ("turn", [1.221403, 1.221403, 0.860708, 0.860708]),
        ("episode", [1.051271] * 4),
    ],
)
def test_b5_ratios_of_tokens_turns_and_episodes(ratio, expected):
    log_ratio, turn, episode = (torch.tensor(values) for values in RATIOS)
    events = Events(torch.ones(4), torch.ones(4), episode, 1, old_logprobs=torch.zeros(4), turn=turn)
    loss = LossSection(ratio=ratio, clip_low=0.9, clip_high=9.0)
    value, _ = policy_loss(log_ratio, events, loss, KlSection(), CorrectionSection(), beta=0.0, correct=False)
    assert -float(value) == pytest.approx(sum(expected), abs=1e-5)
    # A turn beyond the range is clipped as a whole, where single tokens would not be.
    loss = LossSection(ratio=ratio, clip_low=0.9, clip_high=0.15)
    _, stats = policy_loss(log_ratio, events, loss, KlSection(), CorrectionSection(), beta=0.0, correct=False)
    assert stats.clipped_high.tolist() == [e > 1.15 for e in expected]


def test_turns_are_numbered_within_their_episodes():
    group = group_of(2, 3, tokens=2)
    credits = [Credit(e.id, np.ones(e.num_sampled), True, True) for e in group.episodes]
    batch = build_batch(group.episodes, credits)
    events = events_of(batch, np.arange(batch.num_events), torch.zeros(1))
    assert events.turn.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_where_no_teacher_is_asked_episodes_are_compared():  # as a look before training does
    first, second = told(group_of(2, 1), [1, 0], section={"rule": "distill", "teacher": "t"})
    assert first.tolist() == [1, 1] and second.tolist() == [-1]
