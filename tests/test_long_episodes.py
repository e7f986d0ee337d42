"""Episodes of up to 200 turns: every token is prefilled once, and trained once in the context it was sampled in; neither
memory nor work per turn grows with the history; however many rows show a trajectory, it weighs as one episode."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import write_policy
from test_executors import gradient, relative
from test_world import histories

from milepost.batch_signal import reward_metrics, signal_report
from milepost.credit import assign
from milepost.credit_sections import CreditSection
from milepost.engines.base import SamplingSettings
from milepost.engines.local import LocalEngine
from milepost.engines.talk import Conversation
from milepost.env import EnvSpec, Goal, Observation
from milepost.evaluate import summarise
from milepost.executors import Executor
from milepost.forest import build_batch
from milepost.health.preflight import examine
from milepost.history import History
from milepost.hosts import Hosts
from milepost.launch import codec_of
from milepost.learner import Learner
from milepost.loss import OBJECTIVES, Events, policy_loss, summarize
from milepost.models import load_model
from milepost.recipe import make_recipe
from milepost.sections import (
    CorrectionSection,
    EnvSection,
    KlSection,
    LossSection,
    ModelSection,
    OptimizerSection,
    RolloutSection,
    UpdateSection,
)
from milepost.stages.step_metrics import episode_metrics
from milepost.types import (
    Credit,
    Episode,
    EpisodeId,
    Group,
    RecipeError,
    Reward,
    Sampled,
    StopKind,
    StopReason,
    Task,
    Turn,
)
from milepost.world import World, check_rule, demonstrate, play_world

ROWS = [{"prompt": "abcdefgh0123456789 \n:;.", "answer": "a"}]
NUM_ROWS = 60
"""Of the clerk's world; a turn changes one of them."""


class Clerk:
    """Answers every action with its number; the world is a table, of which each action changes one row."""

    def reset(self, task, seed):
        self.turn, self.rows = 0, {str(i): {"name": f"a record of the number {i}", "count": 0} for i in range(NUM_ROWS)}
        return Observation(({"role": "user", "content": f"{task.prompt}:"},))

    def step(self, action):
        self.turn += 1
        self.rows[str(self.turn % NUM_ROWS)]["count"] += 1
        return Observation(({"role": "user", "content": f"{self.turn % 1000:03d}:"},))

    def state(self):
        return {"turn": self.turn, "rows": {key: dict(row) for key, row in self.rows.items()}}

    def close(self):
        pass


def so_far(task, start, now):
    return f"{now['turn']:03d} a;"


SPEC = EnvSpec("clerk", "1", Clerk, lambda size, seed: iter(()), Goal(lambda task, start, now: False), summary=so_far)
TASK = Task("k", "abc", columns={})


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = write_policy(tmp_path_factory.mktemp("long") / "policy", ROWS, layers=2, width=32, heads=2, context=8192)
    return load_model(ModelSection(path=str(folder), device="cpu"))


def play(policy, num_turns, *, samples=2, tasks=(TASK,), spec=SPEC, context=8192, ends="abcdefgh", max_new=60, **limits):
    """(groups, sampler). Every letter in `ends` ends a turn, so that turns are short."""
    recipe = make_recipe({"tasks": {"format": "text"}})
    section = EnvSection(name=spec.name, max_turns=num_turns, max_invalid=10**6, **limits)
    letters = policy.tokenizer.convert_tokens_to_ids(list(ends))
    sampler = LocalEngine(policy.model, {*policy.eos_ids, *letters}, seed=0)
    with Hosts(spec, 8) as hosts:
        world = World(spec, hosts, section, context, 0)
        groups = play_world(tasks, sampler, codec_of(policy, recipe), world, phase="train", step=0, num_samples=samples,
                            max_new_tokens=max_new, settings=SamplingSettings())  # fmt: skip
    return groups, sampler


def batch_of(episodes, seed=0):
    rng = np.random.default_rng(seed)
    credits = [Credit(e.id, rng.normal(size=e.num_sampled).round(2), True, True) for e in episodes]
    return build_batch(episodes, credits)


# --- trained as it was played ---------------------------------------------------------------------------------------


def check_trained_as_played(policy, groups, sampler, turns):
    """The batch trains the sampled tokens, each once; log-probs of some turns are those of a forward of that turn alone."""
    episodes = [e for g in groups for e in g.episodes]
    batch = batch_of(episodes)
    assert batch.num_events == sum(e.num_sampled for e in episodes)
    trained = Executor(policy.model, "packed", 512).score(batch)
    for index, episode in enumerate(episodes):
        mine = np.flatnonzero(batch.episode_E == index)
        assert batch.token_E[mine].tolist() == [int(i) for t in episode.turns for i in t.sampled.ids]
        for k, (history, sampled) in enumerate(histories(episode)):
            if k not in turns:
                continue
            at = mine[batch.turn_E[mine] == k]
            spelled = [batch.forest.ids_U[batch.paths[s]] for s in {int(batch.segment_E[e]) for e in at}]
            assert len(spelled) == 1 and spelled[0][: len(history)].tolist() == history.tolist()
            (alone,) = sampler.score([(np.concatenate([history, sampled.ids]), len(history), 1.0)])
            np.testing.assert_allclose(trained[at], alone, rtol=0, atol=1e-4)
            np.testing.assert_allclose(sampled.logprobs, alone, rtol=0, atol=2e-4)
    return batch


def check_gradients(policy, batch):
    """packed, in small calls and in one, equals plain, one row per segment."""
    loss = LossSection()
    value, expected, _ = gradient(policy.model, batch, "plain", loss)
    for tokens in (256, 100_000):
        got = gradient(policy.model, batch, "packed", loss, tokens=tokens)
        assert got[0] == pytest.approx(value, rel=1e-4, abs=1e-6) and relative(got[1], expected) <= 1e-5


@pytest.mark.parametrize(
    ("num_turns", "rule", "context"),
    [
        (30, "stop", 8192),
        (30, "drop_oldest", 100),
        (30, "summary", 100),
        pytest.param(200, "stop", 8192, marks=pytest.mark.nightly),
        pytest.param(200, "drop_oldest", 400, marks=pytest.mark.nightly),
        pytest.param(200, "summary", 400, marks=pytest.mark.nightly),
    ],
)
def test_a_long_episode_is_trained_in_exactly_the_contexts_it_was_played_in(policy, num_turns, rule, context):
    groups, sampler = play(policy, num_turns, samples=3, context=context, context_rule=rule)
    assert [len(e.turns) for e in groups[0].episodes] == [num_turns] * 3
    for episode in groups[0].episodes:
        assert all(len(history) + len(sampled.ids) <= context for history, sampled in histories(episode))
        assert any(t.new_segment for t in episode.turns) == (rule != "stop")
    watched = {0, 1, num_turns // 2, num_turns - 2, num_turns - 1}
    batch = check_trained_as_played(policy, groups, sampler, watched)
    check_gradients(policy, batch)


# --- prefill and unique tokens: counted -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_turns", [2, 7, 50])
def test_siblings_prefill_their_prompt_once_and_every_other_token_once(policy, num_turns):
    """T turns of G siblings: one prompt, then all that each of them read, and the last token of each turn but its last,
    which sampling never fed. Read again from its beginning every turn, the same would grow with T²."""
    groups, sampler = play(policy, num_turns, samples=3)
    episodes = groups[0].episodes
    (prompt,) = {len(e.turns[0].context_ids) for e in episodes}
    read = sum(len(t.context_ids) for e in episodes for t in e.turns[1:])
    assert sampler.counters.prefill_tokens == prompt + read + 3 * (num_turns - 1)
    assert sampler.counters.shared_tokens == 2 * prompt
    again = sum(len(history) for e in episodes for history, _ in histories(e))
    assert num_turns < 10 or again > num_turns / 4 * sampler.counters.prefill_tokens


def test_dropping_old_turns_keeps_prefill_linear(policy):
    """A history of C tokens is read again once per C/2 tokens played: at most about three times everything."""
    groups, sampler = play(policy, 60, samples=1, context=120, context_rule="drop_oldest")
    (episode,) = groups[0].episodes
    opening = len(episode.turns[0].context_ids)
    played = opening + sum(len(t.sampled.ids) for t in episode.turns) + sum(
        len(t.context_ids) for t in episode.turns if not t.new_segment)  # fmt: skip
    assert sum(t.new_segment for t in episode.turns) >= 3
    assert played < sampler.counters.prefill_tokens + sampler.counters.decode_tokens < 3 * played


def turns_of(*pairs):
    """(context ids, sampled ids[, new_segment]) → turns."""
    return tuple(
        Turn(c, Sampled(s, np.full(len(s), -1.0), 1.0, ((0, 0),), "stop"), new_segment=bool(new)) for c, s, *new in pairs
    )


def episode(member, turns, *, group="g", reason="ended", kind=StopKind.TERMINATED, **facts):
    facts = {"num_calls": len(turns), "num_invalid": 0, **facts}
    return Episode(EpisodeId("train", 0, group, member), group, turns, StopReason(kind, reason), facts=facts)


def test_the_unique_ratio_by_hand(policy):
    """Two siblings over 3 4: rows 3 4 | 5 6 | 7 | 8 and 3 4 | 5 | 9 9 | 8, whose last ids predict nothing, so 5 + 5 places.
    They share 3 4 5: 7 different ones. Read again every turn, the first would be 3 4 5 and 3 4 5 6 7: 2 + 5 more."""
    one = episode(0, turns_of(([3, 4], [5, 6]), ([7], [8])))
    two = episode(1, turns_of(([3, 4], [5]), ([9, 9], [8])))
    batch = batch_of([one, two])
    assert (len(batch.forest), sum(map(len, batch.paths))) == (7, 10)
    learner = Learner(policy, OptimizerSection(), UpdateSection(), lr=0.0, total_steps=1)
    assert learner.update(batch, LossSection()).metrics["tree/unique_ratio"] == pytest.approx(7 / 10)
    rows = turns_of(([3, 4], [5, 6]), ([3, 4, 5, 6, 7], [8], True))
    again = batch_of([episode(0, rows), two])  # the second segment spells the first one out: nothing new
    assert (len(again.forest), sum(map(len, again.paths))) == (7, 3 + 5 + 5)


# --- memory and work ------------------------------------------------------------------------------------------------


def test_what_an_episode_keeps_grows_with_what_is_new_in_each_turn_alone(policy):
    """Pickled, shared objects count once. Histories and unchanged parts of the world are not kept turn by turn."""
    (group,), _ = play(policy, 80, samples=1)
    (whole,) = group.episodes
    world = len(pickle.dumps(dict(whole.facts["start"])))
    sizes = [len(pickle.dumps(replace(whole, turns=whole.turns[:k]))) for k in (20, 40, 80)]
    per_turn = (sizes[1] - sizes[0]) / 20, (sizes[2] - sizes[1]) / 40
    assert per_turn[1] < 1.15 * per_turn[0]
    # A turn keeps one changed row and a table of references; 80 whole worlds would be this much.
    assert sizes[2] < 0.5 * 80 * world
    kept = [turn.facts["state"]["rows"] for turn in whole.turns[:3]]
    assert kept[0]["5"] is kept[1]["5"] and kept[1]["2"] is not kept[0]["2"]
    assert [rows[str(k)]["count"] for k, rows in enumerate(kept, 1)] == [1, 1, 1]


def test_episodes_are_never_spelled_out(policy, monkeypatch):
    """asyncio.run spells out what its coroutine returned when it compares signal handlers: seconds for long episodes."""

    def spelled(self):
        raise AssertionError("a turn was spelled out")

    monkeypatch.setattr(Turn, "__repr__", spelled)
    groups, _ = play(policy, 2, samples=1)
    assert len(groups[0].episodes[0].turns) == 2


class Watched(Conversation):
    """Counts the bytes of keys and values."""

    most: tuple[int, int] = (0, 0)
    """(bytes held, bytes of all that is stored)"""

    def step(self):
        done = super().step()
        memory = self.memory
        tensors = [x for layer in memory.layers for x in (layer.suffix_k, layer.suffix_v) if x is not None]
        held = sum(x.numel() * x.element_size() for x in tensors)
        each = sum(x.shape[1] * x.shape[3] * x.element_size() for x in tensors)
        Watched.most = max(Watched.most, (held, each * int(memory.suffix_B.sum())))
        return done


def test_the_memory_of_a_conversation_is_that_of_its_keys_and_values(policy, monkeypatch):
    """Rows are equally long here, so that at most half of the memory is room to grow; nothing is kept after the end."""
    monkeypatch.setattr("milepost.engines.local.Conversation", Watched)
    Watched.most = (0, 0)
    play(policy, 40, samples=3, ends="abcdefgh0123456789 \n:;.<pad><unk>")
    held, stored = Watched.most
    assert stored > 3 * 40 * 4 and held <= 2 * stored + 3 * 64 * stored / (3 * 40)


def calls_by_turn(policy, num_turns):
    """Python and C calls that each turn of a lone episode takes, in this thread."""
    counts, current = [], [0]

    class Counted(Clerk):
        def step(self, action):
            counts.append(current[0])
            current[0] = 0
            return super().step(action)

    def count(frame, event, arg):
        current[0] += event in ("call", "c_call")

    every = "".join(policy.tokenizer.convert_ids_to_tokens([i for i in range(3, len(policy.tokenizer))]))
    sys.setprofile(count)
    try:
        play(policy, num_turns, samples=1, spec=replace(SPEC, make=Counted), ends=every)
    finally:
        sys.setprofile(None)
    return np.array(counts)


@pytest.mark.parametrize("num_turns", [40, pytest.param(200, marks=pytest.mark.nightly)])
def test_a_late_turn_takes_no_more_steps_than_an_early_one(policy, num_turns):
    """One token per turn, so that turns are alike: calls are counted, since clocks would say little here. A turn that
    waits for another thread takes a few calls more, by chance; what a longer past costs, every turn pays."""
    counts = calls_by_turn(policy, num_turns)
    early, late = counts[10:20], counts[-10:]
    assert late.min() <= 1.02 * early.min()


def test_the_calls_of_a_long_episode_keep_to_their_budget(policy):
    """Segments of an episode may go into several calls, unless the loss has a ratio of whole episodes."""
    groups, _ = play(policy, 60, samples=2, context=120, context_rule="drop_oldest")
    batch = batch_of(groups[0].episodes)
    longest = max(map(len, batch.paths))
    for kind in ("packed", "plain"):
        executor = Executor(policy.model, kind, 150)
        apart, whole = executor.calls(batch, together=False), executor.calls(batch)
        assert max(call.padded_tokens for call in apart) <= max(150, longest) < max(c.padded_tokens for c in whole)
        for calls in (apart, whole):
            assert sorted(np.concatenate([call.event for call in calls])) == list(range(batch.num_events))
        assert all(len({c for c, call in enumerate(whole) if i in batch.episode_E[call.event]}) == 1 for i in range(2))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_updates_in_small_calls_equal_updates_in_one(policy, objective):
    groups, _ = play(policy, 25, samples=2, context=100, context_rule="drop_oldest")
    batch = batch_of(groups[0].episodes)
    batch = batch.with_logprobs(old=batch.sampler_E + 0.2 * np.random.default_rng(1).normal(size=batch.num_events))
    reports = []
    for tokens in (120, 100_000):
        learner = Learner(policy, OptimizerSection(), UpdateSection(tokens_per_call=tokens), lr=0.0, total_steps=1)
        reports.append(learner.update(batch, LossSection(objective=objective), correct=True))
    small, large = reports
    assert small.loss == pytest.approx(large.loss, rel=1e-4, abs=1e-6)
    assert small.grad_norm == pytest.approx(large.grad_norm, rel=1e-4)
    assert small.metrics == pytest.approx(large.metrics, rel=1e-3, abs=1e-6)


# --- one trajectory, one vote ---------------------------------------------------------------------------------------


def rows_of(whole: Episode) -> Episode:
    """The same trajectory, shown as one row per turn."""
    shown = tuple(Turn(history, sampled, new_segment=k > 0) for k, (history, sampled) in enumerate(histories(whole)))
    return replace(whole, turns=tuple(replace(t, facts=old.facts, text=old.text) for t, old in zip(shown, whole.turns)))


def trajectory(member, num_turns, **more):
    """2 tokens a turn."""
    pairs = [([3, 4] if k == 0 else [10 + k], [5 + member, 7]) for k in range(num_turns)]
    return episode(member, turns_of(*pairs), **more)


UNEVEN = [  # B2: success in 2 turns, failure in 8; and a group of 1, 3 and 5 turns
    Group("g", Task("g", "p", source="s"), (trajectory(0, 2), trajectory(1, 8, num_invalid=4))),
    Group("h", Task("h", "p", source="t"), tuple(trajectory(m, 1 + 2 * m, group="h", num_invalid=m) for m in range(3))),
]
TOTALS = [[1.0, 0.0], [0.0, 0.5, 1.0]]
REWARDS = [[Reward(t, {"outcome": t}, t == 1.0) for t in row] for row in TOTALS]


def shown(split: bool):
    return [replace(g, episodes=tuple(rows_of(e) if split else e for e in g.episodes)) for g in UNEVEN]


def flat(groups, credits):
    return [e for g in groups for e in g.episodes], [c for row in credits for c in row]


def test_a_long_failure_weighs_as_much_as_a_short_success():  # case B2 of the worked examples
    """By episodes the mean is .5 and the advantages ±.5, scaled (sample std .7071) ±.7071; by rows it would be .2 and +.8,
    −.2, scaled +1.897, −.474."""
    for split in (False, True):
        (first, _) = shown(split)
        for section, expected in (
            (CreditSection(baseline="mean"), 0.5),
            (CreditSection(baseline="mean", scale="group", std="sample", delta=0.0), 0.5 / np.sqrt(0.5)),
            (CreditSection(baseline="loo"), 1.0),
            (CreditSection(rule="turn"), 1.0),
        ):
            ((success, failure),) = assign([first], [REWARDS[0]], section, RolloutSection())
            np.testing.assert_allclose(success.advantages, np.full(4, expected), rtol=1e-6)
            np.testing.assert_allclose(failure.advantages, np.full(16, -expected), rtol=1e-6)


def test_every_statistic_counts_a_trajectory_once_by_hand():
    """5 episodes of 2, 8, 1, 3 and 5 turns, 2 tokens each, that earn 1, 0, 0, .5 and 1."""
    for split in (False, True):
        groups = shown(split)
        metrics = reward_metrics(groups, REWARDS) | episode_metrics(groups, REWARDS)
        assert metrics["reward/mean"] == pytest.approx(2.5 / 5)
        assert metrics["reward/outcome"] == pytest.approx(2.5 / 5)
        assert metrics["success/train"] == pytest.approx(2 / 5)
        assert (metrics["success/train/s"], metrics["success/train/t"]) == (pytest.approx(1 / 2), pytest.approx(1 / 3))
        assert (metrics["length/mean"], metrics["length/max"], metrics["tokens/sampled"]) == (38 / 5, 16, 38)
        assert (metrics["turns/mean"], metrics["calls/mean"]) == (19 / 5, 19 / 5)
        assert metrics["calls/invalid"] == pytest.approx((0 + 4 / 8 + 0 + 1 / 3 + 2 / 5) / 5)  # by rows it would be 7 / 19
        assert metrics["stop/ended"] == 1
        report = summarise(groups, REWARDS, split="test", step=0, settings={})
        assert report.success == pytest.approx((1 / 2 + 1 / 3) / 2) and report.reward == pytest.approx(0.5)
        assert (report.length, report.truncated, report.num_scored) == (38 / 5, 0, 5)


@pytest.mark.parametrize("rule", ["episode", "discounted", "turn"])
@pytest.mark.parametrize("aggregate", ["sequence_mean", "token_mean", "constant", "prompt_mean"])
def test_showing_a_trajectory_as_many_rows_changes_nothing(rule, aggregate):
    """Advantages, weights, statistics of every kind, and the loss of every objective, given the same log-probs."""
    section = CreditSection(rule=rule, gamma=0.9 if rule != "episode" else 1.0)
    recipe = make_recipe({"rollout": {"group_size": 3}})
    found = []
    for split in (False, True):
        groups = shown(split)
        credits = assign(groups, REWARDS, section, RolloutSection(), part_weights=None)
        signal = signal_report(groups, REWARDS, credits)
        metrics = signal.metrics() | reward_metrics(groups, REWARDS) | episode_metrics(groups, REWARDS)
        report = summarise(groups, REWARDS, split="test", step=0, settings={})
        batch = build_batch(*flat(groups, credits), aggregate=aggregate, constant=16)
        columns = [batch.advantage_E, batch.weight_E, batch.episode_E, batch.token_E, batch.turn_E, batch.sampler_E]
        found.append((metrics, report, examine(groups, REWARDS, credits, recipe), np.stack(columns), losses(batch)))
    one, many = found
    assert one[:3] == many[:3]
    assert np.array_equal(one[3], many[3]) and one[4] == many[4]


def losses(batch):
    """Value and statistics of every objective, at log-probs of the same seed."""
    rng = np.random.default_rng(3)
    logprobs = torch.from_numpy(batch.sampler_E + 0.1 * rng.normal(size=batch.num_events))
    columns = [torch.from_numpy(x) for x in (batch.advantage_E, batch.weight_E, batch.episode_E)]
    events = Events(*columns, len(batch.episodes), torch.from_numpy(batch.sampler_E), torch.from_numpy(batch.sampler_E),
                    torch.from_numpy(batch.sampler_E) - 0.2)  # fmt: skip
    made = {}
    for objective in OBJECTIVES:
        value, stats = policy_loss(logprobs, events, LossSection(objective=objective), KlSection(),
                                   CorrectionSection(kind="geometric_mask"), beta=0.1, correct=True)  # fmt: skip
        made[objective] = (float(value), summarize([stats]))
    return made


def test_gdpo_counts_a_trajectory_once():
    """Parts [1, 0] in 2 and 8 turns: z-scores ±1 of the group, whitened by the std of the batch's two values, 1."""
    for split in (False, True):
        ((one, two),) = assign(shown(split)[:1], REWARDS[:1], CreditSection(delta=1e-12), RolloutSection(),
                               part_weights={"outcome": 1.0})  # fmt: skip
        np.testing.assert_allclose(one.advantages, np.ones(4), rtol=1e-6)
        np.testing.assert_allclose(two.advantages, -np.ones(16), rtol=1e-6)


def test_the_same_episode_twice_is_refused():
    (first, _) = UNEVEN
    twice = replace(first, episodes=(*first.episodes, first.episodes[1]))
    with pytest.raises(ValueError, match="train/0/g/1/0 appears twice: statistics count every episode once"):
        assign([twice], [[*REWARDS[0], REWARDS[0][1]]], CreditSection(), RolloutSection())


def test_faults_are_in_no_mean_of_lengths():
    """What a fault broke off says nothing about how long episodes are; it is counted by its reason."""
    broken = trajectory(2, 1, kind=StopKind.FAULT, reason="crash")
    group = replace(UNEVEN[0], episodes=(*UNEVEN[0].episodes, broken))
    judged = [[*REWARDS[0], Reward.unscorable("fault: crash")]]
    metrics = episode_metrics([group], judged)
    assert (metrics["length/mean"], metrics["turns/mean"], metrics["calls/mean"]) == (20 / 2, 10 / 2, 10 / 2)
    assert metrics["calls/invalid"] == pytest.approx(4 / 8 / 2) and metrics["stop/crash"] == pytest.approx(1 / 3)
    assert metrics["tokens/sampled"] == 22
    assert summarise([group], judged, split="test", step=0, settings={}).length == 20 / 2
    alone = replace(group, episodes=(broken,))
    assert "length/mean" not in episode_metrics([alone], [judged[0][2:]])


# --- when the context is full ---------------------------------------------------------------------------------------


def history(policy, rule, context):
    codec = codec_of(policy, make_recipe({"tasks": {"format": "text"}}))
    return History(codec, list, EnvSection(context_rule=rule), context, [{"role": "user", "content": "abc"}])


def says(text, **facts):
    return Observation(({"role": "user", "content": text},), **facts)


def spell(policy, ids):
    return policy.tokenizer.decode([int(i) for i in ids])


def test_dropping_the_oldest_turns_by_hand(policy):
    """Opening abc and a line break (4); a turn is b<end> (2) and its answer between line breaks (4).
    Context 20, 4 of it for an action."""
    seen = history(policy, "drop_oldest", 20)
    act = seen.codec.complete("b")
    seen.add(act, says("00"), 4)
    seen.add(act, says("01"), 4)
    assert spell(policy, seen.ids) == "abc\nb<end>\n00\nb<end>\n01\n" and not seen.new_segment and len(seen.ids) == 16
    seen.add(act, says("02"), 4)  # 22 tokens: what fits into 10 behind the opening is the last turn
    assert spell(policy, seen.ids) == "abc\nb<end>\n02\n" and seen.new_segment and seen.new is seen.ids
    seen.add(act, says("03"), 4)
    assert spell(policy, seen.ids) == "abc\nb<end>\n02\nb<end>\n03\n" and not seen.new_segment
    assert spell(policy, seen.new) == "\n03\n"


def test_kept_turns_are_the_very_ids_that_were_sampled(policy):  # case B2: no detour through text
    seen = history(policy, "drop_oldest", 20)
    unknown = policy.tokenizer.unk_token_id  # decodes to nothing that could be encoded again
    for ids in ([3, 1], [unknown, unknown, 1], [unknown, 4, 1]):
        seen.add(np.array(ids, np.int32), says("0"), 6)
    assert seen.new_segment and seen.ids[4:7].tolist() == [unknown, 4, 1]


def test_a_summary_by_hand(policy):
    """The opening, what is summed up, the last answer; and again from the opening, never from summary to summary."""
    seen = history(policy, "summary", 24)
    act = seen.codec.complete("b")
    asked = []

    def sums_up():
        asked.append(len(asked))
        return f"{len(asked)} a;"

    for k in range(2):
        seen.add(act, says(f"0{k}"), 4, sums_up)
    assert not asked and not seen.new_segment
    seen.add(act, says("02"), 4, sums_up)
    assert asked == [0] and spell(policy, seen.ids) == "abc\n1 a;\n02\n" and seen.new_segment and seen.new is seen.ids
    seen.add(act, says("03"), 4, sums_up)
    assert spell(policy, seen.ids) == "abc\n1 a;\n02\nb<end>\n03\n" and not seen.new_segment
    seen.add(act, says("04"), 4, sums_up)
    assert asked == [0, 1] and spell(policy, seen.ids) == "abc\n2 a;\n04\n" and seen.new_segment


def test_no_new_segment_is_begun_that_is_not_shorter(policy):
    seen = history(policy, "summary", 12)
    seen.add(seen.codec.complete("b"), says("00"), 4, lambda: "a;" * 20)
    assert not seen.new_segment and spell(policy, seen.ids) == "abc\nb<end>\n00\n"
    seen = history(policy, "drop_oldest", 12)
    seen.add(seen.codec.complete("b"), says("00"), 4)  # the only turn: there is nothing to drop
    assert not seen.new_segment and len(seen.ids) == 10


def test_summaries_are_played_from_the_facts_and_recorded_as_seen(policy):
    groups, _ = play(policy, 40, samples=2, context=80, context_rule="summary")
    for one in groups[0].episodes:
        begun = [k for k, turn in enumerate(one.turns) if turn.new_segment]
        assert len(begun) > 3
        for k in begun:
            state = one.turns[k - 1].facts["state"]
            assert spell(policy, one.turns[k].context_ids) == f"abc:\n{so_far(TASK, None, state)}\n{k:03d}:\n"


def test_an_environment_without_a_summary_refuses_the_rule():
    with pytest.raises(RecipeError, match=r'env\.context_rule = "summary" needs .* that sums up .*, and clerk does not'):
        check_rule(EnvSection(context_rule="summary"), replace(SPEC, summary=None))
    check_rule(EnvSection(context_rule="drop_oldest"), replace(SPEC, summary=None))
    check_rule(EnvSection(context_rule="summary"), SPEC)


@pytest.mark.parametrize(
    ("summary", "words"),
    [(lambda task, start, now: now["nothing"], "KeyError"), (lambda task, start, now: " ", "returned ' ', not a text")],
)
def test_a_summary_that_cannot_be_made_is_a_fault_of_the_environment(policy, summary, words):
    groups, _ = play(policy, 40, samples=1, context=60, context_rule="summary", spec=replace(SPEC, summary=summary))
    (one,) = groups[0].episodes
    assert one.stop == StopReason(StopKind.FAULT, "garbage") and words in one.facts["fault"] and one.id.attempt == 0


@pytest.mark.parametrize("rule", ["stop", "drop_oldest", "summary"])
def test_demonstrations_are_cut_or_go_on_as_a_policy_would(policy, rule):
    """The same script, played by hand through a history: the same contexts, none beyond the limit. Under "stop" there are
    5, 14, 22, 30, 38 and 46 tokens before an action: the fifth ends at 40 of 40, the sixth cannot begin."""
    texts = ["ab", "c", "d", "a", "b", "cc", "d", "a"]
    codec = codec_of(policy, make_recipe({"tasks": {"format": "text"}}))
    world = World(SPEC, None, EnvSection(name="clerk", context_rule=rule, max_turns=9), 40, 0)
    (shown,) = demonstrate([TASK], lambda task, env: iter(texts), codec, world, max_new_tokens=5)
    by_hand = History(codec, world.opening, world.limits, 40, [{"role": "user", "content": "abc:"}])
    for k, turn in enumerate(shown.turns):
        assert turn.context_ids.tolist() == by_hand.new.tolist() and turn.new_segment == by_hand.new_segment
        assert len(by_hand.ids) + len(turn.sampled.ids) <= 40 and turn.text == texts[k]
        by_hand.add(turn.sampled.ids, says(f"{k + 1:03d}:"), 5, lambda k=k: so_far(TASK, None, {"turn": k + 1}))
    assert len(shown.turns) == (len(texts) if rule != "stop" else 5)
    assert any(turn.new_segment for turn in shown.turns) == (rule != "stop")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["stop", "drop_oldest", "summary"]), st.integers(12, 60), st.integers(1, 12),
    st.lists(st.tuples(st.lists(st.integers(3, 20), max_size=5), st.text("abc01", max_size=6)), max_size=12),
)  # fmt: skip
def test_a_history_is_its_parts_whatever_the_rule(policy, rule, context, room, turns):
    """Unless a segment begins, `ids` is what was there, the action and `new`; one begins only when full, and is shorter."""
    seen = history(policy, rule, context)
    for ids, answer in turns:
        before, action = seen.ids, np.array([*ids, 1], np.int32)
        seen.add(action, says(answer), room, lambda: "a;")
        if seen.new_segment:
            glue = len(seen.codec.observe(says(answer).messages, 1))
            assert seen.new is seen.ids and len(seen.ids) < len(before) + len(action) + glue
            assert len(before) + len(action) + glue + room > context
            assert seen.ids[:4].tolist() == seen.codec.prompt([{"role": "user", "content": "abc"}]).tolist()
        else:
            assert seen.ids.tolist() == [*before.tolist(), *action.tolist(), *seen.new.tolist()]
