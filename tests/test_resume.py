"""Kill it anywhere: a resumed run equals the unbroken one bit for bit (cases G2, G3, G5, G6, G10)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from small import SHORT_ROWS, recipe_file
from torture import At, command, contents, differences

from milepost.store import Run

UPDATE = "milepost.learner:Learner._step"
DRAW = "milepost.engines.local:draw"
COMMIT = "milepost.store:Run.commit_step"
EVAL = "milepost.store:Run.add_eval"
AFTER = "milepost.stages.grpo:Loop.after"
PANEL = "milepost.stages.session:Panel.sample"
MANIFEST = "milepost.checkpoint:_write_manifest"
PLACE = "milepost.checkpoint:_put_in_place"
PRUNE = "milepost.checkpoint:prune"


def recipe(folder, warm, **changes):
    """A recipe on disk: 5 steps of SFT, 6 of GRPO, held-out success every 2, a checkpoint every 3."""
    return recipe_file(folder, warm, SHORT_ROWS, sft__steps=5, sft__lr=1e-3, grpo__steps=6, eval__every=2,
                       save__every=3, grpo__panel_every=2, **changes)  # fmt: skip


def unbroken(tmp_path, warm, **changes):
    path = recipe(tmp_path / "whole", warm, **changes)
    assert command(["run", str(path)], tmp_path / "whole.log") == 0, (tmp_path / "whole.log").read_text()
    return contents(tmp_path / "whole/runs/run")


def killed(tmp_path, warm, points, **changes):
    """The same run, ended before each of `points` in turn and resumed each time; then resumed to its end."""
    path = recipe(tmp_path / "killed", warm, **changes)
    run, log = tmp_path / "killed/runs/run", tmp_path / "killed.log"
    argv = ["run", str(path)]
    for at in points:
        assert command(argv, log, at) == -signal.SIGKILL, f"{at} was not reached: {log.read_text()[-3000:]}"
        with Run.open(run) as opened:
            assert opened.status == "interrupted"
        argv = ["resume", str(run)]
    assert command(argv, log) == 0, log.read_text()[-3000:]
    with Run.open(run) as opened:
        assert opened.status == "finished"
    return contents(run)


def check(tmp_path, warm, points, **changes):
    whole = unbroken(tmp_path, warm, **changes)
    assert whole["steps"] == {"sft": [1, 2, 3, 4, 5], "grpo": [1, 2, 3, 4, 5, 6]}
    again = killed(tmp_path, warm, points, **changes)
    # Paths differ by the folder's name alone.
    assert differences(whole, again) == []


def test_killed_in_every_phase(tmp_path, warm):
    """In the warm start and around its checkpoint; while sampling, updating, storing, saving, testing."""
    points = [
        At(UPDATE, 3),  # the third step of SFT: no checkpoint yet
        At(PLACE, 1),  # its checkpoint of step 3 is written but has no name
        At(UPDATE, 4),  # that checkpoint stands; its moments and schedule are needed
        At(EVAL, 1),  # after SFT's checkpoint, before its validation is stored
        At(PANEL, 1),  # GRPO has not saved anything
        At(DRAW, 25),  # sampling
        At(UPDATE, 2),  # gradients are there, the step is not made
        At(COMMIT, 2),  # updated, not stored
        At(MANIFEST, 1),  # a checkpoint half-written
        At(AFTER, 2),  # stored, not saved
        At(EVAL, 4),  # in the test at the end
    ]
    check(tmp_path, warm, points)


def test_killed_between_several_updates_of_one_batch(tmp_path, warm):
    """case G2: with num_iterations = 2 and minibatches = 2 a step makes four updates; 1 to 3 of them were lost."""
    points = [At(UPDATE, 5 + 2), At(UPDATE, 3), At(UPDATE, 4 + 1), At(PRUNE, 1)]
    check(tmp_path, warm, points, update__num_iterations=2, update__minibatches=2)


def test_killed_with_a_reference_policy(tmp_path, warm):
    """The reference is the policy GRPO began from, not the one it was resumed with."""
    points = [At(COMMIT, 5 + 2), At("milepost.stages.session:Reference.score", 2), At(PLACE, 2)]
    check(tmp_path, warm, points, kl__beta=0.1)


@pytest.mark.nightly
def test_killed_with_kl_in_the_reward_and_a_schedule(tmp_path, warm):
    points = [At(UPDATE, 5 + 4), At(DRAW, 30)]
    check(tmp_path, warm, points, kl__beta=0.1, kl__estimator="k1", kl__place="reward", kl__beta_end=0.0,
          optimizer__schedule="cosine", optimizer__warmup_steps=2)  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("step", range(1, 7))
@pytest.mark.parametrize("where", [DRAW, UPDATE, COMMIT, AFTER])
def test_killed_at_every_step(tmp_path, warm, where, step):
    """case G2: every step k. GRPO's own checkpoint of step 0 is made first, so that calls are counted from there."""
    number = {DRAW: 6 * step, UPDATE: step, COMMIT: step, AFTER: step}[where]
    check(tmp_path, warm, [At(PANEL, 1), At(where, number)])


def test_ctrl_c_leaves_a_valid_run_and_exit_code_130(tmp_path, warm):
    path = recipe(tmp_path / "killed", warm)
    run, log = tmp_path / "killed/runs/run", tmp_path / "log"
    assert command(["run", str(path)], log, At(DRAW, 60, signal.SIGINT)) == 130
    assert "milepost resume" in log.read_text() and "Traceback" not in log.read_text()
    with Run.open(run) as opened:
        assert opened.status == "stopped"
    assert command(["resume", str(run)], log, At(MANIFEST, 1, signal.SIGINT)) == 130
    assert command(["resume", str(run)], log) == 0
    assert differences(unbroken(tmp_path, warm), contents(run)) == []


def test_a_real_process_killed_from_outside(tmp_path, warm):
    """`python -m milepost.cli run`, killed when its third GRPO step is stored, whatever it does then."""
    path = recipe(tmp_path / "killed", warm)
    run = tmp_path / "killed/runs/run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen([sys.executable, "-m", "milepost.cli", "run", str(path)], env=environment,
                                   stdout=log, stderr=log)  # fmt: skip
        deadline = time.monotonic() + 120
        while not reached(run, 3) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
        process.wait()
    assert command(["resume", str(run)], tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert differences(unbroken(tmp_path, warm), contents(run)) == []


def reached(path, step):
    if not (path / "store.sqlite").is_file():
        return False
    with Run.open(path) as run:
        return "grpo" in run.phases() and (run.last_step("grpo") or 0) >= step


def test_resuming_a_finished_run_changes_nothing(tmp_path, warm):
    whole = unbroken(tmp_path, warm)
    run = tmp_path / "whole/runs/run"
    log, before = tmp_path / "log", (run / "store.sqlite").read_bytes()
    assert command(["resume", str(run)], log) == 0
    assert log.read_text().strip() == f"{run} is finished, so there is nothing to do; `milepost show {run}` shows it"
    assert (run / "store.sqlite").read_bytes() == before
    assert differences(whole, contents(run)) == []


def test_a_stage_alone_resumes_as_that_stage(tmp_path, warm):
    """`milepost sft` goes on with the warm start and nothing else."""
    path = recipe(tmp_path / "killed", warm)
    run, log = tmp_path / "killed/runs/run", tmp_path / "log"
    assert command(["sft", str(path)], log, At(UPDATE, 2)) == -signal.SIGKILL
    assert command(["resume", str(run)], log) == 0
    with Run.open(run) as opened:
        assert opened.phases() == ["sft"]


def test_two_writers_are_refused(tmp_path, warm):
    path = recipe(tmp_path / "killed", warm)
    run, log = tmp_path / "killed/runs/run", tmp_path / "log"
    assert command(["run", str(path)], log, At(UPDATE, 7)) == -signal.SIGKILL
    with Run.open(run, write=True):
        assert command(["resume", str(run)], log) == 2
    assert "is being written by process" in log.read_text()
