"""What levers remember is in the checkpoint: a run with them on, killed and resumed, equals the unbroken one exactly."""

from __future__ import annotations

import signal

from small import SHORT_ROWS, recipe_file
from small_env import write_policy
from torture import At, command, contents, differences

from milepost.store import Run

UPDATE = "milepost.learner:Learner._step"
REFILL = "milepost.rollout:Rollouts.more"
COMMIT = "milepost.store:Run.commit_step"
AFTER = "milepost.stages.grpo:Loop.after"


def run_of(folder, policy, rows, points, **changes):
    """The contents of a run that was ended before each of `points` in turn and resumed each time, and its metrics."""
    path = recipe_file(folder, policy, rows, grpo__steps=6, eval__every=3, save__every=2, **changes)
    run, log = folder / "runs/run", folder / "log"
    argv = ["run", str(path)]
    for at in points:
        assert command(argv, log, at) == -signal.SIGKILL, f"{at} was not reached: {log.read_text()[-3000:]}"
        argv = ["resume", str(run)]
    assert command(argv, log) == 0, log.read_text()[-3000:]
    with Run.open(run) as opened:
        return contents(run), [opened.step_metrics(step, "grpo") for step in range(1, 7)]


def test_killed_with_every_lever_on_single_answers(tmp_path, warm):
    """Twelve tasks in two levels, so that they come again: sizes, replay and refills all depend on what was before."""
    rows = [{**row, "level": i % 2} for i, row in enumerate(SHORT_ROWS[:20])]
    changes = {
        "tasks__validation": 4, "tasks__test": 4, "update__num_iterations": 2, "rollout__group_size": 3,
        "rollout__prompts_per_step": 3, "optimizer__lr": 3e-3, "seed": 2,
        "levers": {"refills": 1, "mixed_chance": 0.7, "group_size_min": 2, "group_size_max": 4, "keep_of_group": 3,
                   "difficulty_column": "level", "difficulty_levels": 2, "difficulty_success": 0.2, "window": 2,
                   "success_replay": True, "repair_groups": True},
        "loss": {"top_entropy": 0.5, "kl_cov_share": 0.1, "negative_mask": 0.5},
    }  # fmt: skip
    whole, metrics = run_of(tmp_path / "whole", warm, rows, [], **changes)
    points = [At(UPDATE, 5), At(REFILL, 1), At(COMMIT, 2), At(AFTER, 2)]
    again, _ = run_of(tmp_path / "killed", warm, rows, points, **changes)
    assert differences(whole, again) == []
    # And they did something: a level came in, sizes changed, groups were replaced, successes replayed.
    assert {m["curriculum/level"] for m in metrics} == {1, 2} and len({m["groups/size"] for m in metrics}) > 1
    assert sum(m["refill/rounds"] for m in metrics) and sum(m["replay/episodes"] for m in metrics)


def test_killed_while_the_horizon_rises(tmp_path):
    """One turn more whenever a tenth of the episodes of a step succeeds; two letters are two turns at least."""
    policy = write_policy(tmp_path / "policy")
    changes = {
        "tasks": {"format": "text", "validation": 4, "test": 4,
                  "sources": [{"kind": "environment", "size": 60, "params": {"length": 2}}]},
        "env": {"name": "small_env:SPEC", "max_turns": 4, "max_invalid": 3}, "rollout__max_new_tokens": 3, "reward": {},
        "sft": {"demonstrations": "small_env:hasty", "steps": 40, "batch_size": 16, "lr": 1e-2},
        "levers": {"horizon_start": 2, "horizon_success": 0.1, "window": 1, "skip_void_turns": True},
    }  # fmt: skip
    whole, metrics = run_of(tmp_path / "whole", policy, [], [], **changes)
    again, _ = run_of(tmp_path / "killed", policy, [], [At(UPDATE, 42), At(COMMIT, 2), At(AFTER, 1)], **changes)
    assert differences(whole, again) == []
    assert len({m["curriculum/turns"] for m in metrics}) > 2
    assert all(m["turns/mean"] <= m["curriculum/turns"] for m in metrics)
