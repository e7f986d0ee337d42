"""Episodes that continue from saved states: played, credited and trained."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from small import write_policy
from test_world import GOAL, ROWS, Letters, histories, task

from milepost.branching import branches_here, check_branches, is_uncertain, surprise
from milepost.credit import assign
from milepost.credit_sections import BranchSection, CreditSection
from milepost.engines.base import SamplingSettings
from milepost.engines.local import LocalEngine
from milepost.env import EnvSpec, Milestone
from milepost.executors import Executor
from milepost.forest import build_batch
from milepost.hosts import Hosts
from milepost.launch import codec_of
from milepost.learner import WorkCounters, events_of
from milepost.loss import policy_loss
from milepost.models import load_model
from milepost.recipe import make_recipe
from milepost.sections import CorrectionSection, EnvSection, KlSection, LossSection, ModelSection, RolloutSection
from milepost.types import Credit, EpisodeId, RecipeError, Reward, Sampled, StopKind, StopReason, Turn
from milepost.world import World, play_world


class Saved(Letters):
    """Letters that can be saved; `spoilt` ones come back as something else."""

    def snapshot(self):
        return json.dumps([self.wanted, self.count, self.seed, self.rewrite]).encode()

    def restore(self, saved):
        self.wanted, self.count, self.seed, self.rewrite = json.loads(saved)
        self.count += getattr(self, "spoilt", 0)


class Spoilt(Saved):
    spoilt = 1


MILESTONE = Milestone("first", lambda task, start, now: now["count"] >= 1, kind="state")
SPEC = EnvSpec("letters", "1", Saved, lambda size, seed: iter(()), GOAL, milestones=(MILESTONE,))


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return load_model(
        ModelSection(path=str(write_policy(tmp_path_factory.mktemp("branch") / "policy", ROWS)), device="cpu")
    )


def play(policy, tasks, branches, spec=SPEC, *, samples=2, seed=0, max_turns=7, **limits):
    section = EnvSection(name=spec.name, max_turns=max_turns, max_invalid=99, **limits)
    sampler = LocalEngine(policy.model, policy.eos_ids, seed=seed)
    with Hosts(spec, section.max_concurrent, num_retries=0) as hosts:
        world = World(spec, hosts, section, 2000, seed, branches=branches)
        codec = codec_of(policy, make_recipe({"tasks": {"format": "text"}}))
        groups = play_world(tasks, sampler, codec, world, phase="train", step=0, num_samples=samples,
                            max_new_tokens=40, settings=SamplingSettings())  # fmt: skip
    return groups, sampler


TASKS = [task(prompt="abc"), task(prompt="ba")]
EVERY = BranchSection(every=2, num=2, most=2)


@pytest.fixture(scope="module")
def played(policy):
    return play(policy, TASKS, EVERY)


def test_continuations_share_their_trunk_and_go_their_own_way(played):
    groups, _ = played
    kinds = set()
    for group in groups:
        trunks = {e.id: e for e in group.episodes if e.branch_of is None}
        assert len(trunks) == 2 and len({e.id for e in group.episodes}) == len(group.episodes)
        for child in group.episodes[2:]:
            parent, turn = child.branch_of
            trunk = trunks[parent]
            assert turn in (2, 4) and child.turns[:turn] == trunk.turns[:turn]
            assert np.array_equal(child.turns[turn].context_ids, trunk.turns[turn].context_ids)
            assert child.turns[turn].state_key == trunk.turns[turn].state_key
            assert child.num_own == sum(len(t.sampled.ids) for t in child.turns[turn:]) < child.num_sampled
            kinds.add(child.turns[turn].text == trunk.turns[turn].text)
        for trunk in trunks.values():
            points = [child.branch_of[1] for child in group.episodes[2:] if child.branch_of[0] == trunk.id]
            # Every second turn that was acted in, the last one included: two continuations each.
            acted = [t for t in (2, 4) if t < len(trunk.turns) and not trunk.turns[t].facts.get("cut")]
            assert points == [t for t in acted for _ in range(2)]
    assert False in kinds  # they do differ


def test_what_a_continuation_sampled_has_the_logprobs_of_its_whole_history(played):
    groups, sampler = played
    for child in (e for g in groups for e in g.episodes if e.branch_of):
        for history, sampled in list(histories(child))[child.branch_of[1] :]:
            (scored,) = sampler.score([(np.concatenate([history, sampled.ids]), len(history), 1.0)])
            np.testing.assert_allclose(scored, sampled.logprobs, rtol=0, atol=2e-4)


def test_a_continuation_counts_from_where_it_was_saved(played):
    for child in (e for g in played[0] for e in g.episodes if e.branch_of):
        count = 0
        for turn in child.turns:
            count += turn.text.count("a") if not turn.facts.get("cut") else 0
            assert turn.facts["state"]["count"] == count
        assert child.facts["final"]["count"] == count and len(child.turns) <= 7
        assert child.facts["num_invalid"] == sum(t.facts["num_invalid"] for t in child.turns)


def test_the_order_in_which_they_end_changes_nothing(policy, played):
    again, _ = play(policy, list(reversed(TASKS)), EVERY, max_concurrent=1)
    told = {e.id: [t.text for t in e.turns] for g in played[0] for e in g.episodes}
    assert told == {e.id: [t.text for t in e.turns] for g in again for e in g.episodes}


def test_branch_points_follow_milestones(policy):
    (group,), _ = play(policy, [task(prompt="abc")], BranchSection(at="milestones", num=1, most=1), samples=4)
    children = [e for e in group.episodes if e.branch_of]
    assert children
    for child in children:
        turn = child.branch_of[1]
        counts = [t.facts["state"]["count"] for t in child.turns]
        assert counts[turn - 1] >= 1 and not any(counts[: turn - 1])


def test_b18_surprise_decides_with_chance():
    # Entropy .8 after the tool and .5 at first, w = p = .5: U − .15 ≤ .5.
    assert not is_uncertain(0.9, 0.3, 0.5, 0.5) and is_uncertain(0.6, 0.3, 0.5, 0.5)
    assert surprise(Sampled(np.zeros(2), np.log([0.5, 0.125]), 1.0, ((0, 0),), "stop")) == pytest.approx(2 * np.log(2))


def test_uncertain_turns_are_chosen_the_same_way_again(policy):
    branches = BranchSection(at="uncertain", num=1, most=2, chance=0.3)
    points = [[[e.branch_of for e in g.episodes] for g in play(policy, TASKS, branches, samples=4)[0]] for _ in range(2)]
    assert points[0] == points[1] and any(point for group in points[0] for point in group)


def test_runs_of_another_seed_branch_elsewhere(policy):
    """The same names, the same tokens: U is the run's own, and comes again with its seed."""
    name, sampled = EpisodeId("train", 1, "k", 0), Sampled(np.zeros(1), np.zeros(1), 1.0, ((0, 0),), "stop")
    turns = [Turn(np.zeros(1), sampled)]
    section = BranchSection(at="uncertain")

    def points(seed):
        return [branches_here(section, SPEC, TASKS[0], name, turns * n, [], sampled, seed) for n in range(1, 30)]

    assert points(1) == points(1) != points(2) and 5 < sum(points(1)) < 25


def test_milestones_that_an_environment_does_not_have_are_no_branch_points():
    section = CreditSection(rule="branch", branches={"at": "milestones"})
    check_branches(section, SPEC)
    with pytest.raises(RecipeError, match=r'^credit\.branches\.at = "milestones" .* letters has none; use "every"'):
        check_branches(section, replace(SPEC, milestones=()))
    check_branches(CreditSection(rule="branch"), replace(SPEC, milestones=()))


def test_trunks_limits_who_branches(policy):
    (group,), _ = play(policy, [task(prompt="abc")], BranchSection(every=1, num=1, most=1, trunks=1), samples=3)
    assert {e.branch_of[0].member for e in group.episodes if e.branch_of} == {0}


def test_a_world_that_comes_back_as_another_is_a_fault(policy):
    (group,), _ = play(policy, [task(prompt="abc")], EVERY, replace(SPEC, make=Spoilt))
    children = [e for e in group.episodes if e.branch_of]
    assert children and all(e.stop.kind is StopKind.FAULT and "restore()" in e.facts["fault"] for e in children)
    assert all(e.stop.kind is not StopKind.FAULT for e in group.episodes if not e.branch_of)


def test_a_world_that_cannot_be_saved_is_refused(policy):
    with pytest.raises(ValueError, match=r"needs an environment that can be saved .* letters cannot"):
        play(policy, [task(prompt="abc")], EVERY, replace(SPEC, make=Letters))


def gradient(policy, batch, kind="plain"):
    """Of the loss of one update on the batch, over all weights."""
    policy.model.zero_grad()
    executor = Executor(policy.model, kind, 4096, WorkCounters())
    for call in executor.calls(batch, together=False):
        readout = executor.run(batch, call)
        value, _ = policy_loss(readout.logprobs, events_of(batch, call.event, readout.logprobs), LossSection(),
                               KlSection(), CorrectionSection(), beta=0.0, correct=False)  # fmt: skip
        value.backward()
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def points_of(trunk, episodes):
    """Where others continue from it, in order: [(turn, their positions in the group)]."""
    found = {}
    for i, e in enumerate(episodes):
        if e.branch_of and e.branch_of[0] == episodes[trunk].id:
            found.setdefault(e.branch_of[1], []).append(i)
    return sorted(found.items())


def value_of(trunk, episodes, totals):
    """Expected total from the start, as a tree saw it: at each split all branches are as likely."""
    value = totals[trunk]
    for _, leaves in reversed(points_of(trunk, episodes)):
        value = (value + sum(totals[i] for i in leaves)) / (1 + len(leaves))
    return value


def stretches_of(trunk, episodes, totals, form):
    """By a form's definition alone: (what each stretch of the trunk is told, what a continuation from point k is told)."""
    points = [leaves for _, leaves in points_of(trunk, episodes)]
    below = [[trunk, *(i for leaves in points[k:] for i in leaves)] for k in range(len(points) + 1)]
    if form == "treerl":  # V of a state: the mean below it of totals less all other leaves' mean; of the root: 0
        less = [t - (sum(totals) - t) / (len(totals) - 1) for t in totals]
        values = [0.0, *(np.mean([less[i] for i in leaves]) for leaves in below)]
        return [2 * v - parent for parent, v in pairwise(values)], lambda i, k: 2 * less[i] - values[k + 1]
    others = [value_of(i, episodes, totals) for i, e in enumerate(episodes) if not e.branch_of and i != trunk]
    values = [np.mean(others), *(np.mean([totals[i] for i in leaves]) for leaves in points), totals[trunk]]
    rivals = lambda i, k: [totals[j] for j in [*points[k], trunk] if j != i]  # noqa: E731
    return [v - before for before, v in pairwise(values)], lambda i, k: totals[i] - np.mean(rivals(i, k))


def paths_of(trunk, episodes, totals, form):
    """The root-to-leaf paths of a tree, each an episode of its own: (episode, weight of its leaf, told per turn)."""
    points = points_of(trunk, episodes)
    turns = [0, *(turn for turn, _ in points), len(episodes[trunk].turns)]
    tree = [trunk, *(i for _, leaves in points for i in leaves)]
    for leaf in tree:
        episode = episodes[leaf]
        own = episode.branch_of[1] if episode.branch_of else turns[-1]
        weight = np.prod([1 / (1 + len(leaves)) for turn, leaves in points if turn <= own])
        if form == "vine":  # continuations measure
            weight = float(leaf == trunk)
        if form == "tree":
            told = [2 * totals[leaf] - np.mean(totals) - np.mean([totals[i] for i in tree])] * len(episode.turns)
        else:
            steps, after = stretches_of(trunk, episodes, totals, form)
            told = [step for step, last, first in zip(steps, turns[1:], turns) for _ in range(first, min(last, own))]
            told += [after(leaf, turns.index(own) - 1)] * (len(episode.turns) - own) if leaf != trunk else []
        yield replace(episode, branch_of=None), float(weight) * (episode.stop is not CUT), told


@pytest.fixture(scope="module")
def grown(policy):
    """Two groups of three trees that branch at different turns, some of them not at all."""
    by_chance = BranchSection(at="uncertain", num=2, most=2, chance=0.3, uncertainty=0)
    groups, _ = play(policy, TASKS, by_chance, samples=3, seed=1)
    shapes = {tuple(turn for turn, _ in points_of(i, g.episodes)) for g in groups for i in range(3)}
    assert len(shapes) > 2 and max(map(len, shapes)) == 2
    return groups


CUT = StopReason(StopKind.TRUNCATED, "tokens")
ENDED = StopReason(StopKind.TERMINATED, "ended")


@pytest.mark.parametrize("cut", [(), (0, 3, 4, 7, 8)])
@pytest.mark.parametrize(
    ("form", "executor"),
    [("differences", "plain"), ("vine", "packed"), ("tree", "plain"), ("tree", "packed"), ("treerl", "packed")],
)
def test_the_gradient_of_a_tree_is_the_sum_over_its_root_to_leaf_paths(policy, grown, form, executor, cut):
    """1e-5 in float32. The plain side knows nothing of trees: episodes, a number per turn, and a weight for each. Those
    `cut` are compared with and out of the loss, trunks and continuations: no path of theirs is trained, all others are."""
    grown = [replace(g, episodes=tuple(replace(e, stop=CUT if i in cut else ENDED) for i, e in enumerate(g.episodes)))
             for g in grown]  # fmt: skip
    totals = [[float(i % 3 == 0) + (i % 4) / 4 for i, _ in enumerate(g.episodes)] for g in grown]
    section = CreditSection(rule="branch", baseline="mean" if form == "tree" else "auto", branches={"form": form})
    credits = assign(grown, [[Reward(t) for t in some] for some in totals], section, RolloutSection())
    episodes = [e for g in grown for e in g.episodes]
    credits = [c for row in credits for c in row]
    tree = build_batch(episodes, credits, aggregate="constant", constant=10)
    if not cut:  # each token is trained once; as a measure alone, not at all
        assert tree.num_events == sum(e.num_own for e in episodes if not e.branch_of or form != "vine")
    paths = [path for g, some in zip(grown, totals) for i in range(3) for path in paths_of(i, g.episodes, some, form)]
    plain = []
    for e, weight, told in paths:
        advantages = np.repeat(told, [len(turn.sampled.ids) for turn in e.turns])
        plain.append(Credit(e.id, advantages, weight > 0, True, weights=np.full(e.num_sampled, weight)))
    batch = build_batch([e for e, _, _ in paths], plain, aggregate="constant", constant=10)
    # `constant` divides by the number of episodes: trees there, as many as there are paths here.
    trees = {e.branch_of[0] if e.branch_of else e.id for e, c in zip(episodes, credits) if c.trained}
    expected = gradient(policy, batch) * sum(c.trained for c in plain) / len(trees)
    torch.testing.assert_close(gradient(policy, tree, executor), expected, rtol=0, atol=1e-5)
    assert expected.abs().max() > 1e-2


@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean", "constant", "prompt_mean"])
def test_a_tree_weighs_as_one_episode_in_every_aggregate(played, aggregate):
    (group, _), _ = played
    section = CreditSection(rule="branch", branches={"every": 2})
    rewards = [[Reward(float(i % 2)) for i, _ in enumerate(group.episodes)]]
    (credits,) = assign([group], rewards, section, RolloutSection(truncated="score"))
    batch = build_batch(group.episodes, credits, aggregate=aggregate, constant=10)
    size = {t.id: 0.0 for t in group.episodes if t.branch_of is None}
    for e, c in zip(group.episodes, credits):
        size[e.branch_of[0] if e.branch_of else e.id] += float(c.weights.sum())
    for index, (trunk, tokens) in enumerate(size.items()):
        mine = [i for i, e in enumerate(group.episodes) if e.id == trunk or (e.branch_of and e.branch_of[0] == trunk)]
        total = float(batch.weight_E[np.isin(batch.episode_E, mine)].sum())
        expected = {"token_mean": tokens / sum(size.values()), "sequence_mean": 0.5, "constant": tokens / 20,
                    "prompt_mean": tokens / sum(size.values())}[aggregate]  # fmt: skip
        assert total == pytest.approx(expected), index
