"""Episodes of many turns: what was sampled is what is stored, every budget has its own reason, faults cost one episode."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from letters_env import GOAL, PATIENT, SPEC, Letters
from odd_envs import SPEC as ODD
from odd_envs import task as odd_task
from small import write_policy
from written import CODEC, Written, complete, shown

from milepost.engines.base import SamplingSettings
from milepost.engines.local import LocalEngine
from milepost.env import EnvSpec, Goal, Tool, fingerprint
from milepost.forest import build_batch
from milepost.hosts import Hosts
from milepost.launch import codec_of
from milepost.models import load_model
from milepost.recipe import make_recipe
from milepost.sections import EnvSection, ModelSection
from milepost.tools import ToolEnv
from milepost.types import Credit, RecipeError, StopKind, StopReason, Task
from milepost.world import World, check_rule, play_world

ROWS = [{"prompt": "abcdefgh0123456789 \n:", "answer": "a"}]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return load_model(ModelSection(path=str(write_policy(tmp_path_factory.mktemp("world") / "policy", ROWS)), device="cpu"))


def play(policy, tasks, spec=SPEC, *, samples=2, max_new=60, context=0, seed=0, step=0, **limits):
    """(groups, sampler) of one call in its own world."""
    recipe = make_recipe({"tasks": {"format": "text"}})
    section = EnvSection(name=spec.name, **limits)
    sampler = LocalEngine(policy.model, policy.eos_ids, seed=seed)
    environment = f"letters_env:{'PATIENT' if spec is PATIENT else 'SPEC'}" if section.isolated else spec
    with Hosts(environment, section.max_concurrent, isolated=section.isolated, step_seconds=section.step_seconds,
               num_retries=0) as hosts:  # fmt: skip
        world = World(spec, hosts, section, context or 2000, seed)
        groups = play_world(tasks, sampler, codec_of(policy, recipe), world, phase="train", step=step, num_samples=samples,
                            max_new_tokens=max_new, settings=SamplingSettings())  # fmt: skip
    return groups, sampler


def write(tasks, spec, text, *, samples=1, context=2000, **limits):
    """Groups of a policy that writes `text`, or what `text(request)` says."""
    section = EnvSection(name=spec.name, **limits)
    sampler = Written(text if callable(text) else lambda request: text)
    with Hosts(spec, section.max_concurrent, num_retries=0) as hosts:
        return play_world(tasks, sampler, CODEC, World(spec, hosts, section, context, 0), phase="train", step=0,
                          num_samples=samples, max_new_tokens=context, settings=SamplingSettings())  # fmt: skip


def task(wanted=10**6, prompt="abc", **columns):
    return Task(f"{prompt}/{wanted}/{json.dumps(columns)}", prompt, columns={"wanted": wanted, **columns})


def histories(episode):
    """The whole context of every turn, as the types define it."""
    seen = np.zeros(0, np.int32)
    for turn in episode.turns:
        seen = turn.context_ids if turn.new_segment else np.concatenate([seen, turn.context_ids])
        yield seen, turn.sampled
        seen = np.concatenate([seen, turn.sampled.ids])


def test_recorded_logprobs_are_those_of_the_stored_history(policy):
    groups, sampler = play(policy, [task(prompt="abc"), task(prompt="ba"), task(prompt="c 1")], max_turns=6, max_invalid=99)
    num_turns = 0
    for episode in (e for g in groups for e in g.episodes):
        for history, sampled in histories(episode):
            (scored,) = sampler.score([(np.concatenate([history, sampled.ids]), len(history), 1.0)])
            np.testing.assert_allclose(scored, sampled.logprobs, rtol=0, atol=2e-4)
            num_turns += 1
    assert num_turns > 12  # episodes do have several turns


def test_the_batch_trains_exactly_the_sampled_tokens_in_the_contexts_seen(policy):
    groups, _ = play(policy, [task(prompt="abc"), task(prompt="ba")], max_turns=5)
    episodes = [e for g in groups for e in g.episodes]
    batch = build_batch(episodes, [Credit(e.id, np.ones(e.num_sampled), True, True) for e in episodes])
    assert batch.num_events == sum(e.num_sampled for e in episodes)
    for index, episode in enumerate(episodes):
        expected = [
            (np.concatenate([history, sampled.ids[:k]]).tolist(), int(token))
            for history, sampled in histories(episode)
            for k, token in enumerate(sampled.ids)
        ]
        found = []
        for event in np.flatnonzero(batch.episode_E == index):
            path, node = [], int(batch.node_E[event])
            while node >= 0:
                path.append(int(batch.forest.ids_U[node]))
                node = int(batch.forest.parent_U[node])
            found.append((path[::-1], int(batch.token_E[event])))
        assert found == expected


def test_equal_calls_give_equal_bits_and_members_differ(policy):
    tasks = [task(prompt="abc"), task(prompt="ba")]
    (one, _), (two, _) = play(policy, tasks, max_turns=5), play(policy, tasks, max_turns=5)
    for a, b in zip(one, two):
        for x, y in zip(a.episodes, b.episodes):
            assert x.stop == y.stop and len(x.turns) == len(y.turns)
            for s, t in zip(x.turns, y.turns):
                assert s.sampled == t.sampled and np.array_equal(s.context_ids, t.context_ids)
    first, second = one[0].episodes
    assert [t.text for t in first.turns] != [t.text for t in second.turns]


def test_who_else_plays_changes_no_token(policy):
    together, _ = play(policy, [task(prompt="abc"), task(prompt="ba"), task(prompt="c 1")], max_turns=4)
    alone, _ = play(policy, [task(prompt="ba")], max_turns=4)
    for x, y in zip(together[1].episodes, alone[0].episodes):
        assert [t.sampled.ids.tolist() for t in x.turns] == [t.sampled.ids.tolist() for t in y.turns]


def stops(groups):
    return Counter(e.stop for g in groups for e in g.episodes)


def test_every_budget_has_its_own_reason(policy):
    def only(kind, reason, **settings):
        groups, _ = play(policy, [task()], samples=6, **settings)
        found = stops(groups)
        assert StopReason(kind, reason) in found, (reason, found)
        return [e for e in groups[0].episodes if e.stop.reason == reason]

    cut = StopKind.TRUNCATED
    for episode in only(cut, "turns", max_turns=2, max_invalid=99, max_new=60):  # case C9
        assert len(episode.turns) == 2
    for episode in only(cut, "invalid_actions", max_turns=50, max_invalid=3, max_new=60):  # case D52
        assert [t.facts["num_invalid"] for t in episode.turns[-3:] if "cut" not in t.facts] == [1, 1, 1]
    for episode in only(cut, "tokens", max_new=1):
        assert episode.turns[-1].facts.get("cut") or episode.num_sampled
    for episode in only(cut, "tokens", max_turns=50, max_invalid=99, max_new=60, max_episode_tokens=9):
        assert episode.num_sampled <= 9
    for episode in only(cut, "context", max_turns=99, max_invalid=99, max_new=60, context=24):
        assert all(len(history) + len(sampled.ids) <= 24 for history, sampled in histories(episode))
    for episode in only(cut, "time", max_turns=99, max_invalid=99, max_new=60, max_seconds=1e-9):
        assert len(episode.turns) == 1


def test_the_goal_ends_the_episode_and_judges_it(policy):
    groups, _ = play(policy, [task(wanted=1), task(wanted=3)], samples=8, max_turns=30, max_invalid=99, max_new=60)
    for group in groups:
        for episode in group.episodes:
            reached = GOAL.holds(group.task, episode.facts["start"], episode.facts["final"])
            assert reached == (episode.stop == StopReason(StopKind.TERMINATED, "goal"))
    assert stops(groups)[StopReason(StopKind.TERMINATED, "goal")] >= 8


def test_a_cut_action_is_not_carried_out(policy):
    groups, _ = play(policy, [task(wanted=1)], samples=8, max_new=1, max_turns=3)
    for episode in groups[0].episodes:
        if episode.stop.reason == "tokens":
            assert episode.turns[-1].facts["state"] == (
                episode.turns[-2].facts["state"] if len(episode.turns) > 1 else episode.facts["start"]
            )


def test_a_full_context_goes_on_without_its_oldest_turns(policy):
    groups, sampler = play(policy, [task()], samples=4, max_turns=40, max_invalid=99, max_new=60, context=150,
                           context_rule="drop_oldest")  # fmt: skip
    segments = [sum(t.new_segment for t in e.turns) for e in groups[0].episodes]
    assert max(segments) >= 1
    for episode in groups[0].episodes:
        for history, sampled in histories(episode):
            assert len(history) + len(sampled.ids) <= 150
            (scored,) = sampler.score([(np.concatenate([history, sampled.ids]), len(history), 1.0)])
            np.testing.assert_allclose(scored, sampled.logprobs, rtol=0, atol=2e-4)


def test_a_rewritten_history_is_a_new_segment(policy):
    groups, sampler = play(policy, [task(rewrite=True)], max_turns=4, max_invalid=99, max_new=60)
    several = [e for e in groups[0].episodes if len(e.turns) > 1]
    assert several
    for episode in several:
        assert [t.new_segment for t in episode.turns] == [False] + [True] * (len(episode.turns) - 1)
        for history, sampled in histories(episode):
            (scored,) = sampler.score([(np.concatenate([history, sampled.ids]), len(history), 1.0)])
            np.testing.assert_allclose(scored, sampled.logprobs, rtol=0, atol=2e-4)


@pytest.mark.parametrize("num_turns", [2, 8, 24])
def test_prefill_grows_linearly_in_turns(policy, num_turns):
    groups, sampler = play(policy, [task()], samples=1, max_turns=num_turns, max_invalid=99, max_new=40, context=2000)
    (episode,) = groups[0].episodes
    # Everything once: prompt and observations, and the last token of each turn but the last, which sampling never fed.
    seen = sum(len(t.context_ids) for t in episode.turns)
    assert sampler.counters.prefill_tokens == seen + len(episode.turns) - 1


def test_members_share_their_start_and_facts_are_complete(policy):
    groups, _ = play(policy, [task()], samples=3, max_turns=2, max_new=60)
    for episode in groups[0].episodes:
        assert episode.start_fingerprint == fingerprint(episode.facts["start"])
        assert json.loads(json.dumps(dict(episode.facts))) == episode.facts
        assert episode.facts["final"] == episode.turns[-1].facts["state"]
    assert len({e.start_fingerprint for e in groups[0].episodes}) == 1


def test_faults_cost_one_episode_and_are_no_failures(policy):
    """case E1, E2: a crash is played anew, then excluded; the others go on."""
    plan = ["ok", "ok", "raise", "ok"]
    tasks = [odd_task("ok", "ok", key="good"), odd_task(*plan, key="bad")]
    groups, _ = play(policy, tasks, ODD, max_turns=9, max_invalid=99, max_new=300, retries=1)
    assert all(e.stop.kind is not StopKind.FAULT for e in groups[0].episodes)
    broken = [e for e in groups[1].episodes if e.stop.kind is StopKind.FAULT]
    assert broken
    for episode in broken:
        assert episode.stop == StopReason(StopKind.FAULT, "crash")
        assert episode.id.attempt == 1
        assert "the tool broke" in episode.facts["fault"]


class Moody(Letters):
    """Starts otherwise each time, whatever the seed: nothing that its members did can be compared."""

    moods = count()

    def state(self):
        return {**super().state(), "mood": self.mood}

    def reset(self, task, seed):
        self.mood = next(self.moods)
        return super().reset(task, seed)


def test_a_group_whose_members_start_differently_is_refused_and_the_others_go_on(policy):
    groups, _ = play(policy, [task(prompt="abc"), task(prompt="ba")], replace(SPEC, make=Moody), max_turns=2)
    assert stops(groups) == {StopReason(StopKind.FAULT, "start"): 4}


def test_a_goal_that_cannot_be_judged_costs_its_episode_not_the_step(policy):
    """An author's predicate that raises on some state is a bug of the environment: no failure, not played anew."""
    goal = Goal(lambda task, start, now: now["no such fact"] if now["count"] > 1 else False)
    groups, _ = play(policy, [task(prompt="abc"), task(prompt="ba")], replace(SPEC, goal=goal), samples=3, max_turns=20,
                     max_invalid=99)  # fmt: skip
    found = stops(groups)
    assert set(found) == {StopReason(StopKind.FAULT, "garbage"), StopReason(StopKind.TRUNCATED, "tokens")}, found
    for broken in (e for g in groups for e in g.episodes if e.stop.kind is StopKind.FAULT):
        assert broken.facts["fault"] == "goal raised KeyError: 'no such fact'" and broken.id.attempt == 0


# --- slow tools -------------------------------------------------------------------------------------------------------


def slow_and_quick(path):
    """One task whose tool answers only after others have made several turns, and two that note theirs."""
    extra = {"waits": str(path)}, {"notes": str(path)}, {"notes": str(path)}
    prompts = ("abc", "ba", "c 1")
    return [Task(key, p, columns={"wanted": 10**6, **more}) for key, p, more in zip("kxy", prompts, extra)]


def unhurried(tasks):
    return [replace(task, columns={"wanted": task.columns["wanted"]}) for task in tasks]


@pytest.mark.parametrize(
    ("spec", "limits"),
    [
        (SPEC, {}),
        (PATIENT, {"patience": 0.05}),
        (SPEC, {"isolated": True}),
        (SPEC, {"patience": 0.05, "max_concurrent": 3}),
    ],
    ids=["thread", "async", "process", "seats"],
)
def test_while_one_waits_for_its_tool_the_others_decode(policy, tmp_path, spec, limits):
    """The slow tool gives up after 30 s, or answers once the others have played on: it is the proof that they did. Where
    two of three seats are theirs who wait, the others still take turns in the third."""
    tasks = slow_and_quick(tmp_path / "turns")
    groups, _ = play(policy, tasks, spec, max_turns=6, max_invalid=99, **limits)
    usual, _ = play(policy, unhurried(tasks), spec, max_turns=6, max_invalid=99)
    assert (tmp_path / "turns").stat().st_size >= 8
    assert [(g.id, [e.id for e in g.episodes]) for g in groups] == [(g.id, [e.id for e in g.episodes]) for g in usual]
    for one, other in zip((e for g in groups for e in g.episodes), (e for g in usual for e in g.episodes)):
        assert one.stop == other.stop and len(one.turns) == len(other.turns)
        for x, y in zip(one.turns, other.turns):
            assert x.sampled.ids.tolist() == y.sampled.ids.tolist() and x.facts["state"] == y.facts["state"]
            np.testing.assert_allclose(x.sampled.logprobs, y.sampled.logprobs, rtol=0, atol=1e-5)
    assert sum(len(e.turns) for e in groups[0].episodes) > 2  # what waited goes on afterwards


def test_patience_is_long_in_process_and_short_with_processes():
    assert EnvSection().resolved_patience == 1
    assert EnvSection(isolated=True).resolved_patience == 0.02
    assert EnvSection(isolated=True, patience=3).resolved_patience == 3 and EnvSection(patience=0).resolved_patience == 0


# --- calls ------------------------------------------------------------------------------------------------------------


class Bell(ToolEnv):
    tools = (Tool("ring", {}),)

    def reset(self, task, seed):
        self.rings = 0
        return super().reset(task, seed)

    def state(self):
        return {"rings": self.rings}

    def do_ring(self):
        self.rings += 1
        self.over = self.rings == self.task.columns.get("enough")
        return f"ding {self.rings}"


BELL = EnvSpec("bell", "1", Bell, lambda size, seed: iter(()), Goal(lambda task, start, now: now["rings"] == 99),
               tools=Bell.tools)  # fmt: skip


def test_tool_calls_used_up_end_an_episode_and_what_is_too_many_is_told():
    (group,) = write([Task("k", "ring")], BELL, "ring()\nring()\nring()", max_tool_calls=4)
    (episode,) = group.episodes
    assert episode.stop == StopReason(StopKind.TRUNCATED, "tool_calls")
    first, second = (turn.facts for turn in episode.turns)
    assert (first["num_calls"], first["state"], "num_surplus" in first) == (3, {"rings": 3}, False)
    assert (second["num_calls"], second["state"], second["num_surplus"]) == (1, {"rings": 4}, 2)
    assert [message["content"] for message in second["messages"]] == ["ding 4"]
    assert (episode.facts["num_calls"], episode.facts["num_invalid"]) == (4, 0)
    (group,) = write([Task("k", "ring")], BELL, "ring()", max_tool_calls=4)
    assert len(group.episodes[0].turns) == 4 and not any("num_surplus" in t.facts for t in group.episodes[0].turns)


def test_calls_are_not_counted_where_there_are_none():
    with pytest.raises(RecipeError, match=r"env\.max_tool_calls = 3 does nothing in letters, which has no tools"):
        check_rule(EnvSection(max_tool_calls=3), SPEC)
    check_rule(EnvSection(max_tool_calls=3), BELL)


class AtOnce(Bell):
    """Says of its only step what the task wants: several reasons to stop at once."""

    def step(self, action):
        seen, says = super().step(action), self.task.columns["says"]
        self.rings = 99 if "goal" in says else self.rings
        return replace(seen, ended="ended" in says, truncated="environment" in says,
                       num_invalid=int("invalid_actions" in says))  # fmt: skip


REASONS = ["goal", "ended", "environment", "invalid_actions", "turns", "tool_calls", "tokens", "time", "context"]


@pytest.mark.parametrize("first", range(len(REASONS)))
def test_of_several_reasons_to_stop_the_first_in_a_fixed_order_counts(first):
    """All from `first` on hold after the one turn that is played."""
    there, text = REASONS[first:], "ring()"
    budgets = {"turns": {"max_turns": 1}, "tool_calls": {"max_tool_calls": 1}, "time": {"max_seconds": 1e-9},
               "tokens": {"max_episode_tokens": len(complete(text))}}  # fmt: skip
    limits = {key: value for reason, more in budgets.items() if reason in there for key, value in more.items()}
    spec = replace(BELL, make=AtOnce)
    opening = World(spec, None, EnvSection(), 0, 0).opening([{"role": "user", "content": "go"}])
    context = len(shown(opening)) + len(complete(text))  # room for one action and no more
    (group,) = write([Task("k", "go", columns={"says": there})], spec, text, context=context, max_invalid=1, **limits)
    (episode,) = group.episodes
    assert (len(episode.turns), episode.stop.reason) == (1, REASONS[first])
