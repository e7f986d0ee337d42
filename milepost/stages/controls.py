"""What else the same cost could have bought: controls of a finished run, from its own warm start.

    control-sft      the warm start simply goes on        ┐ for the CPU-seconds that GRPO used,
    control-random   GRPO, rewarded by coin tosses        ┘ processes that score included

Both are tested on the run's own test tasks under the same sampling noise. The standard bar asks that GRPO beats them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from milepost.checkpoint import latest
from milepost.evaluate import EvalReport
from milepost.launch import open_session
from milepost.progress import say
from milepost.stages.compare import cpu_of, stored_tests
from milepost.stages.grpo import run_grpo
from milepost.stages.session import Session, load_weights
from milepost.stages.sft import run_sft
from milepost.store import Run
from milepost.types import RecipeError

CONTROLS = ("control-sft", "control-random")


def add_controls(folder: str | Path, stages: Sequence[str]) -> None:
    """Runs controls of a finished run and keeps their tests in it. One that was stopped begins anew, one that is tested is
    passed over. Raises RecipeError before any model is loaded where there is nothing to compare."""
    with Run.open(folder) as run:
        recipe, status, tests = run.recipe, run.status, stored_tests(run)
    if "grpo" not in tests:
        raise RecipeError(f"{folder} is {status} and holds no test of GRPO that a control could be compared with; "
                          f"`milepost resume {folder}` finishes it")  # fmt: skip
    if not recipe.sft.steps:
        raise RecipeError(f"{folder} has no warm start (sft.steps = 0) from which one could begin; compare two runs with "
                          "`milepost eval --paired RUN --control OTHER`")  # fmt: skip
    missing = [stage for stage in stages if stage not in tests]
    if missing:
        with open_session(recipe, resume=Path(folder), stages=("sft", "grpo")) as session:
            run_controls(session, missing)


def run_controls(session: Session, stages: Sequence[str] = CONTROLS) -> dict[str, EvalReport]:
    """Each from the run's warm start for the CPU-seconds of its GRPO. → test reports by stage."""
    budget = cpu_of(session.run, "grpo") or 0.0
    start = latest(session.run.checkpoints / "sft", warn=say)
    if start is None:
        raise RecipeError(f"{session.run.path} keeps no checkpoint of its warm start, from which controls begin")
    reports = {}
    for stage in stages:
        say(f"{stage}: {budget:.0f} CPU-seconds, as many as GRPO used")
        session.run.truncate_after(0, stage)
        load_weights(session.policy, start / "model")
        session.sampler.load(0)
        if stage == "control-sft":
            run_sft(session, stage=stage, cpu_seconds=budget)
        else:
            run_grpo(session, stage=stage, cpu_seconds=budget, random_reward=True)
        reports[stage] = session.evaluate("test", session.run.last_step(stage) or 0, stage=stage)
    return reports
