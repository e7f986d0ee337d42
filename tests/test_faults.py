"""Many episodes in a world of which a tenth crashes, hangs, talks nonsense or is slow, from the first token to the credit:
none is lost, none is a zero for what the world did, and nothing of it stays behind."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from gauges import counts
from odd_envs import ALIKE as SPEC
from odd_envs import task as odd_task
from written import CODEC, Written

from milepost.credit import assign
from milepost.engines.base import SamplingSettings
from milepost.hosts import Hosts
from milepost.recipe import make_recipe
from milepost.reward_spec import EnvGrader
from milepost.types import StopKind, StopReason
from milepost.world import World, play_world

SIZE = 4
FAULTS = {"raise": "crash", "exit": "crash", "spin": "hang", "set": "garbage"}
RETRIED = ("crash", "hang")


def jobs(num, folder, isolated, kinds):
    """`num` tasks of 1 to 4 steps, one in seven of too many. Of every 20 tasks one misbehaves in all of its episodes and
    four in the one that gets there first: a tenth of all episodes."""
    draw = random.Random(num)
    there = [kind for kind in kinds if isolated or kind != "exit"]  # in-process it would end this very process
    tasks, odd = [], 0
    for i in range(num):
        plan = ["fine"] * (9 if i % 7 == 3 else draw.randint(1, 4))
        if i % 20 in (0, 4, 8, 12, 16):
            kind = there[odd // 5 % len(there)] if i % 20 == 0 else f"{there[odd % len(there)]} once"
            plan[draw.randrange(min(4, len(plan)))] = kind
            odd += 1
        tasks.append(odd_task(*plan, key=f"{i:04}", path=str(folder / str(i))))
    return tasks


def expected(task):
    """(stop, attempt, total) of the group's episodes, in any order."""
    plan = task.columns["plan"]
    odd = next((kind for kind in plan if kind not in ("fine", "slow", "slow once")), "")
    whole = StopReason(StopKind.TERMINATED, "goal") if len(plan) < 9 else StopReason(StopKind.TRUNCATED, "turns")
    fine, fault = (whole, 0, float(len(plan) < 9)), FAULTS.get(odd.removesuffix(" once"))
    if not fault:
        return Counter({fine: SIZE})
    broken = (StopReason(StopKind.FAULT, fault), int(fault in RETRIED), None)
    if not odd.endswith(" once"):
        return Counter({broken: SIZE})
    return Counter({fine: SIZE - 1, (whole, 1, fine[2]) if fault in RETRIED else broken: 1})


def settled(before, seconds=30.0):
    """The counts, which get some time to come down to `before`: an abandoned thread ends when it is asked to."""
    deadline = time.monotonic() + seconds
    while (now := counts()) != before and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


def suffer(num, folder, isolated, kinds):
    """Stop reasons of `num` tasks' groups, after every one of them was found to be as it must."""
    tasks, before = jobs(num, folder, isolated, kinds), counts()
    limits = {"name": "odd_envs:ALIKE", "isolated": isolated, "max_turns": 6, "step_seconds": 1.0, "max_concurrent": 16,
              "patience": 0.01}  # fmt: skip
    recipe = make_recipe({"env": limits})
    with (
        Hosts("odd_envs:ALIKE" if isolated else SPEC, 16, isolated=isolated, step_seconds=1.0) as hosts,
        EnvGrader.of(recipe, SPEC) as grader,
    ):
        groups = play_world(tasks, Written(lambda request: "on"), CODEC, World(SPEC, hosts, recipe.env, 500, 0),
                            phase="train", step=0, num_samples=SIZE, max_new_tokens=9,
                            settings=SamplingSettings())  # fmt: skip
        rewards = grader.score(groups)
    assert settled(before) == before
    credits = assign(groups, rewards, recipe.credit, recipe.rollout)
    assert [group.task for group in groups] == tasks
    for group, judged, told in zip(groups, rewards, credits):
        episodes = group.episodes
        assert [(e.id.task_key, e.id.member) for e in episodes] == [(group.task.key, m) for m in range(SIZE)]
        assert Counter((e.stop, e.id.attempt, r.total) for e, r in zip(episodes, judged)) == expected(group.task)
        for episode, reward, credit in zip(episodes, judged, told):
            broken = episode.stop.kind is StopKind.FAULT
            assert (reward.cause, reward.success is None) == (f"fault: {episode.stop.reason}" if broken else None, broken)
            assert (credit.in_baseline, credit.trained) == (not broken, not broken)  # the group shrinks by id
    return Counter(e.stop.reason for group in groups for e in group.episodes)


BOTH = pytest.mark.parametrize("isolated", [False, True], ids=["thread", "process"])


@BOTH
def test_dozens_of_episodes_of_which_some_break(tmp_path, isolated):
    stops = suffer(20, tmp_path, isolated, ("raise", "set", "slow"))
    assert stops["crash"] == SIZE and stops["garbage"] and sum(stops.values()) == 20 * SIZE


@pytest.mark.nightly
@BOTH
def test_a_thousand_episodes_of_which_a_tenth_breaks(tmp_path, isolated, record_property):
    stops = suffer(250, tmp_path, isolated, ("raise", "exit", "spin", "set", "slow"))
    record_property("stops", dict(stops))
    assert sum(stops.values()) == 1000 and {"crash", "hang", "garbage"} <= set(stops)
