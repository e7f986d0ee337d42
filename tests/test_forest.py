"""The forest, its events and the calls, by hand and by property."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.forest import aggregation_weights, build_batch, grow, plan, tree_mask
from milepost.types import Credit, Episode, EpisodeId, Sampled, StopKind, StopReason, Turn

STOP = StopReason(StopKind.TERMINATED, "end_of_turn")


def episode(member, turns, group="g", advantage=1.0, trained=True, constant=False):
    """turns: (context ids, sampled ids[, new_segment])."""
    made = []
    for context, sampled, *fresh in turns:
        logprobs = [-0.1 * (i + 1) for i in range(len(sampled))]
        made.append(Turn(context, Sampled(sampled, logprobs, 1.0, ((0, 0),), "stop"), new_segment=bool(fresh and fresh[0])))
    e = Episode(EpisodeId("train", 0, group, member), group, tuple(made), STOP)
    return e, Credit(e.id, np.full(e.num_sampled, advantage), trained, True, constant)


def batch_of(*pairs, **options):
    return build_batch([e for e, _ in pairs], [c for _, c in pairs], **options)


def test_shared_prompt_stands_once():
    """The picture in the module's docstring: 5 nodes a b c d f, events (b→c)(c→d)(d→e)(b→f)(f→g)."""
    a, b, c, d, e, f, g = range(1, 8)
    batch = batch_of(episode(0, [([a, b], [c, d, e])]), episode(1, [([a, b], [f, g])]))
    ids = batch.forest.ids_U
    assert sorted(ids) == [a, b, c, d, f]
    assert [(ids[n], t) for n, t in zip(batch.node_E, batch.token_E)] == [(b, c), (c, d), (d, e), (b, f), (f, g)]
    assert batch.node_E[0] == batch.node_E[3]
    assert list(batch.weight_E) == pytest.approx([0.2] * 5)
    assert list(batch.episode_E) == [0, 0, 0, 1, 1]
    assert list(batch.forest.position_U[batch.node_E]) == [1, 2, 3, 1, 2]


def test_turns_append_and_observations_are_context_only():
    batch = batch_of(episode(0, [([1, 2], [3, 4]), ([5, 6], [7])]))
    assert list(batch.forest.ids_U) == [1, 2, 3, 4, 5, 6]
    assert list(batch.token_E) == [3, 4, 7]
    assert [batch.forest.ids_U[n] for n in batch.node_E] == [2, 3, 6]
    assert list(batch.turn_E) == [0, 0, 1]


def test_rewritten_history_starts_a_new_segment_of_the_same_episode():
    batch = batch_of(episode(0, [([1, 2], [3]), ([9, 2], [4, 5], True)]))
    assert len(batch.paths) == 2
    assert list(batch.segment_E) == [0, 1, 1]
    assert list(batch.episode_E) == [0, 0, 0]
    assert sorted(batch.forest.ids_U) == [1, 2, 2, 4, 9]


def test_one_id_sampled_as_eos_and_pad_is_trained_by_length_alone():
    """case B14, B15, B16: lengths rule, ids do not."""
    batch = batch_of(episode(0, [([1], [5, 6, 0])]), episode(1, [([1], [0, 0, 0, 0])]))
    assert np.bincount(batch.episode_E).tolist() == [3, 4]


def test_no_trained_token_is_none_and_wrong_advantage_length_is_named():
    assert batch_of(episode(0, [([1], [2])], trained=False)) is None
    e, c = episode(0, [([1], [2, 3])])
    with pytest.raises(ValueError, match="1 advantages for 2 sampled"):
        build_batch([e], [Credit(c.episode, np.ones(1), True, True)])


def test_an_episode_to_be_trained_without_a_sampled_token_is_named():  # case B11
    live = episode(0, [([1], [2])])
    for nothing in ([], [([1, 2], [])]):
        with pytest.raises(ValueError, match="train/0/g/1/0 is to be trained, but the policy sampled no token"):
            batch_of(live, episode(1, nothing))
    assert batch_of(live, episode(1, [], trained=False)).num_events == 1


def test_advantages_reach_the_events_as_they_were_given():  # case A29: nothing normalises them a second time
    values = [1.7320508, -0.5773503, -0.5773503, -0.5773503]
    batch = batch_of(*[episode(m, [([1], [2, m])], advantage=a) for m, a in enumerate(values)])
    assert batch.advantage_E.tolist() == np.repeat(values, 2).tolist()


def test_constant_groups_leave_the_forest_but_stay_in_the_denominator():
    live, dead = episode(0, [([1], [2, 3])], group="a"), episode(0, [([1], [4, 5, 6])], "b", 0.0, True, True)
    kept, whole = batch_of(live, dead), batch_of(live, dead, drop_constant_groups=False)
    assert kept.num_events == 2 and whole.num_events == 5
    assert kept.weight_E[0] == whole.weight_E[0] == pytest.approx(1 / 5)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("sequence_mean", [1 / 4, 1 / 12]),  # block A6: .25, .083333
        ("token_mean", [1 / 8, 1 / 8]),
        ("constant", [1 / 16, 1 / 16]),
        ("prompt_mean", [1 / 8, 1 / 8]),
    ],
)
def test_aggregation_weights_of_lengths_2_and_6(aggregate, expected):
    assert aggregation_weights([2, 6], ["g", "g"], aggregate, 8) == pytest.approx(expected)


def test_prompt_mean_weighs_prompts_equally():
    # prompts of 4 and 2 tokens: 1/(2·4), 1/(2·2)
    assert aggregation_weights([1, 3, 2], ["a", "a", "b"], "prompt_mean") == pytest.approx([1 / 8, 1 / 8, 1 / 4])


sequence = st.lists(st.integers(0, 3), min_size=1, max_size=9)


@settings(max_examples=150, deadline=None)
@given(st.lists(sequence, min_size=1, max_size=12))
def test_forest_holds_each_distinct_prefix_once_and_paths_spell_the_sequences(sequences):
    arrays = [np.array(s, ">i4") for s in sequences]
    forest, paths = grow(arrays)
    assert len(forest) == len({tuple(s[: i + 1]) for s in sequences for i in range(len(s))})
    for s, path in zip(sequences, paths):
        assert list(forest.ids_U[path]) == s
        assert list(forest.position_U[path]) == list(range(len(s)))
        assert list(forest.parent_U[path]) == [-1, *path[:-1]]
    assert (forest.parent_U < np.arange(len(forest))).all()


turns = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), sequence, st.booleans()), min_size=1, max_size=3
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), turns), min_size=1, max_size=8), st.integers(4, 60), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_every_sampled_token_is_read_exactly_once_whatever_the_plan(episodes, budget, shared, together):
    """Invariant 1: trained ids equal sampled ids, each once, for random ids, groups, segments, budgets."""
    pairs = [episode(i, t, group=g) for i, (g, t) in enumerate(episodes)]
    batch = batch_of(*pairs)
    calls = plan(batch, shared=shared, tokens_per_call=budget, together=together)
    events = np.concatenate([c.event for c in calls])
    assert sorted(events) == list(range(batch.num_events))
    trained = [list(batch.token_E[batch.episode_E == i]) for i in range(len(pairs))]
    assert trained == [[int(x) for t in e.turns for x in t.sampled.ids] for e, _ in pairs]
    whole = [len(path) for path in batch.paths]
    if together:
        owner = dict(zip(batch.segment_E.tolist(), batch.episode_E.tolist()))
        whole = [n * max(len(batch.paths[s]) for s in owner if owner[s] == i)
                 for i, n in enumerate(np.bincount(list(owner.values())))]  # fmt: skip
    for call in calls:
        others = set(batch.episode_E[np.setdiff1d(np.arange(batch.num_events), call.event)])
        assert not together or not others & set(batch.episode_E[call.event])  # no episode straddles two calls
        assert call.padded_tokens <= max(budget, *whole)  # only what cannot be split exceeds the budget
        for e, r, slot in zip(call.event, call.row_e, call.slot_e):
            assert call.rows[r][slot] == batch.node_E[e]


@settings(max_examples=60, deadline=None)
@given(st.lists(turns, min_size=1, max_size=6))
def test_tree_mask_sees_exactly_the_ancestors(episodes):
    batch = batch_of(*[episode(i, t) for i, t in enumerate(episodes)])
    for call in plan(batch, shared=True, tokens_per_call=10_000):
        mask = tree_mask(batch, call)
        for r, nodes in enumerate(call.rows):
            for i, node in enumerate(nodes):
                ancestors, at = set(), node
                while at >= 0:
                    ancestors.add(int(at))
                    at = batch.forest.parent_U[at]
                assert {int(nodes[j]) for j in np.flatnonzero(mask[r, i, : len(nodes)])} == ancestors
