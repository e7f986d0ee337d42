"""A whole run: warm start, GRPO, and the test split once at the end, for every stage's weights under the same noise."""

from __future__ import annotations

from pathlib import Path

from milepost.checkpoint import latest, path_of
from milepost.evaluate import EvalReport
from milepost.progress import say
from milepost.stages.grpo import run_grpo
from milepost.stages.session import Session, load_weights
from milepost.stages.sft import run_sft


def run_pipeline(session: Session, *, stages: tuple[str, ...] = ("sft", "grpo", "test")) -> dict[str, EvalReport]:
    """Runs the asked stages that the recipe has steps for; finished ones are passed over, so this also resumes.

    Returns the test reports by stage ("base", "sft", "grpo"), in that order.
    """
    recipe = session.recipe
    if "sft" in stages and recipe.sft.steps:
        _sft(session)
    if "grpo" in stages and recipe.grpo.steps:
        run_grpo(session, resume=_latest(session, "grpo"))
    return test_all(session) if "test" in stages and session.tasks.test else {}


def _sft(session: Session) -> None:
    """Trains, resumes, or only loads the warm start; nothing at all once GRPO has checkpoints of its own."""
    done = _latest(session, "sft")
    if done is not None and done == _path(session, "sft", session.recipe.sft.steps):
        if _latest(session, "grpo") is None:
            load_weights(session.policy, done / "model")
        return
    run_sft(session, resume=done)
    if session.tasks.validation:
        report = session.evaluate("validation", session.recipe.sft.steps, stage="sft")
        readable = "" if report.extractable is None else f", {report.extractable:.1%} with a readable answer"
        say(f"after the warm start: held-out success {report.success:.1%}{readable}")


def _latest(session: Session, stage: str) -> Path | None:
    return latest(session.run.checkpoints / stage, warn=say)


def _path(session: Session, stage: str, step: int) -> Path:
    return session.run.checkpoints / stage / f"step-{step:06d}"


def test_all(session: Session) -> dict[str, EvalReport]:
    """The test split, once, for the base model, the warm start and the best GRPO checkpoint that exist."""
    reports = {}
    for stage, folder, step in stage_weights(session):
        load_weights(session.policy, folder)
        session.sampler.load(session.sampler.version)
        say(f"testing {stage}: {len(session.tasks.test)} unseen tasks × {session.recipe.eval.test_samples}, and greedily")
        reports[stage] = session.evaluate("test", step, stage=stage)
        say(f"{stage}: {reports[stage].success:.1%} sampled, {reports[stage].greedy or 0:.1%} greedy")
    return reports


def stage_weights(session: Session) -> list[tuple[str, Path, int]]:
    """(stage, Hugging Face folder, completed steps) of every set of weights this run compares."""
    found = [("base", Path(session.policy.path), 0)]
    if session.recipe.sft.steps and (done := _latest(session, "sft")):
        found.append(("sft", done / "model", session.recipe.sft.steps))
    if session.recipe.grpo.steps:
        best = best_step(session)
        found.append(("grpo", path_of(session.run.checkpoints / "grpo", best) / "model", best))
    return found


def best_step(session: Session) -> int:
    """The step of the best validation success; of equals the earliest; the last step without validation."""
    evals = [e for e in session.run.evals(split="validation", phase="grpo") if e.report["success"] is not None]
    if not evals:
        return session.recipe.grpo.steps
    return min(evals, key=lambda e: (-e.report["success"], e.step)).step
