"""The length controller in whole runs: it raises the weight while answers are long, lowers it after, and is state.

The tasks of the first four steps take long answers, those of the last four short ones, so what it has to do is known.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import small
import small_env
import torch
from small import killed_after
from small_env import LETTERS

from milepost.launch import open_session
from milepost.recipe import make_recipe
from milepost.stages.pipeline import run_pipeline

STEPS = range(1, 9)
LENGTH = {"form": "overlong", "weight": 0.1, "max_weight": 0.2, "rate": 0.5}
# Up by half while over the limit, to .2 at most; down by the same below it, to .1 at least.
WEIGHTS = [0.1, 0.15, 0.2, 0.2, 0.2, 0.2 / 1.5, 0.1, 0.1]


def long_then_short(size, seed):
    for i in range(16):
        yield {"prompt": LETTERS[i % 8], "letters": (LETTERS[i:] + LETTERS)[:5] if i < 8 else LETTERS[i - 8]}


SPEC = replace(small_env.SPEC, generate=long_then_short)


def in_a_world(folder):
    """Five letters asked one by one, 10 tokens; then one letter, 2 tokens."""
    values = {
        "tasks": {"format": "text", "sources": [{"kind": "environment", "size": 16}]},
        "env": {"name": "test_length_controller:SPEC", "max_turns": 6},
        "reward": {"length": {**LENGTH, "target": 8, "buffer": 4, "max_mean": 6}},
        "rollout": {"max_new_tokens": 3},
        "sft": {"demonstrations": "gold", "steps": 30},
        "model": {"path": str(small_env.write_policy(folder / "policy", layers=1, width=32, heads=2))},
    }
    return values, None


def by_functions(folder):
    """Seven letters and the end in one answer, 8 tokens; then one letter, 2 tokens."""
    words = ["abcdefg"[i:] + "abcdefg"[:i] for i in range(7)] + ["gfedcba"]
    rows = [{"prompt": f"{word}>", "answer": word} for word in [*words, *"abcdefgh"]]
    values = {
        "tasks": {"format": "text"},
        "reward": {"functions": [{"name": "exact"}], "length": {**LENGTH, "target": 6, "buffer": 3, "max_mean": 4}},
        "rollout": {"max_new_tokens": 12},
        "sft": {"demonstrations": "{answer}", "steps": 40},
        "model": {"path": str(small.write_policy(folder / "policy", rows))},
    }
    return values, rows


def recipe_of(values, folder):
    own = {
        "tasks": {"order": "as_given", "validation": 0, "test": 0},
        "rollout": {"prompts_per_step": 2, "group_size": 2},
        "sft": {"batch_size": 16, "lr": 1e-2},
    }
    every = {"out": str(folder / "runs"), "grpo": {"steps": len(STEPS)}, "save": {"every": 2}, "optimizer": {"lr": 1e-4}}
    return make_recipe({**values, **every, **{name: {**values[name], **section} for name, section in own.items()}})


def contents(run):
    """All that a clock has no part in: metrics, changes of the reward, and every verdict and advantage."""
    clocks = ("seconds/", "cpu_seconds", "peak_memory")
    metrics = [{k: v for k, v in run.step_metrics(step, "grpo").items() if not k.startswith(clocks)} for step in STEPS]
    changes = [(event.step, event.message) for event in run.events() if event.kind == "reward"]
    episodes = [(str(e.episode.id), e.reward, e.credit.advantages.tolist()) for e in run.episodes("grpo")]
    return metrics, changes, sorted(episodes, key=lambda row: row[0])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=[in_a_world, by_functions])
def unbroken(request, tmp_path_factory):
    """(settings, rows, what a run of them stored)."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("unbroken")
    values, rows = request.param(folder)
    with open_session(recipe_of(values, folder), rows=rows, quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
        return values, rows, contents(session.run)


def test_the_weight_rises_while_answers_are_long_and_falls_after(unbroken):
    metrics, changes, episodes = unbroken[2]
    assert any(m["groups/with_signal"] for m in metrics)  # the weights that a killed run must find again did change
    means = [m["length/mean"] for m in metrics]
    limit = unbroken[0]["reward"]["length"]["max_mean"]
    assert min(means[:4]) > limit > max(means[4:]), means
    assert [m["length/weight"] for m in metrics] == pytest.approx(WEIGHTS)
    assert [step for step, _ in changes] == [1, 2, 5, 6]
    told = ["0.1 → 0.15", "0.15 → 0.2", "0.2 → 0.1333", "0.1333 → 0.1"]
    for (step, text), change, side in zip(changes, told, ["over", "over", "within", "within"]):
        assert text == (f"the reward changed: reward.length.weight {change} after a mean length of {means[step - 1]:.0f} "
                        f"tokens, {side} the limit of {limit}")  # fmt: skip
    # It is what each step was judged by: from the target on, all of it is taken.
    taken = [[-r.parts["length"] for name, r, _ in episodes if name.startswith(f"train/{step}/")] for step in STEPS]
    assert all(0 <= part <= weight + 1e-12 for parts, weight in zip(taken, WEIGHTS) for part in parts)
    assert [max(parts) for parts in taken[:4]] == pytest.approx(WEIGHTS[:4])


@pytest.mark.parametrize("stop_after", [3, 6])
def test_a_run_that_was_killed_goes_on_with_the_same_weight(unbroken, stop_after, tmp_path):
    """Rising and falling; the last checkpoint is that of step 2, or of step 4."""
    values, rows, expected = unbroken

    with killed_after(stop_after), open_session(recipe_of(values, tmp_path), rows=rows, quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
    with open_session(session.recipe, rows=rows, resume=session.run.path, quiet=True) as session:
        run_pipeline(session, stages=("sft", "grpo"))
        assert session.grader.length_weight == pytest.approx(0.1)
        assert contents(session.run) == expected
