"""A whole run: warm start, GRPO, and the test split once at the end, for every stage's weights under the same noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from milepost.checkpoint import latest, path_of, read_plain
from milepost.evaluate import EvalReport, best_report
from milepost.progress import say
from milepost.recipe import Recipe
from milepost.stages.grpo import run_grpo
from milepost.stages.session import Session, load_weights
from milepost.stages.sft import run_sft
from milepost.types import RecipeError


def check_stages(recipe: Recipe, stages: Sequence[str]) -> None:
    """Refuses stages that this recipe gives nothing to do. Raises RecipeError before any model is loaded.

    A recipe without test tasks simply skips the test; so does a whole run without a warm start, or with nothing else.
    """
    training = [stage for stage in stages if stage in ("sft", "grpo")]
    if len(training) > 1 and not recipe.sft.steps and not recipe.grpo.steps:
        raise RecipeError(
            "sft.steps = 0 and grpo.steps = 0, so nothing would be trained; set grpo.steps, for example to 100"
        )
    if training == ["sft"] and not recipe.sft.steps:
        raise RecipeError("sft.steps = 0, so the warm start has nothing to do; set sft.steps, for example to 30")
    if training == ["grpo"] and not recipe.grpo.steps:
        raise RecipeError("grpo.steps = 0, so GRPO has nothing to do; set grpo.steps, for example to 100")
    if "sft" in stages and recipe.sft.steps and not recipe.sft.demonstrations:
        raise RecipeError(
            f"sft.demonstrations is empty, but sft.steps = {recipe.sft.steps} needs some; give a JSONL file with prompt "
            "and completion, or a template such as 'Answer: {answer}'"
        )
    if not training and not recipe.tasks.test:
        raise RecipeError("tasks.test = 0, so there is nothing to test; set it to 200")


def run_pipeline(session: Session, *, stages: tuple[str, ...] = ("sft", "grpo", "test")) -> dict[str, EvalReport]:
    """Runs the asked stages that the recipe has steps for; finished ones are passed over, so this also resumes.

    Returns the test reports by stage ("base", "sft", "grpo"), in that order.
    """
    recipe = session.recipe
    if "stages" not in session.run.meta():
        session.run.set_meta(stages=list(stages))  # `milepost resume` goes on with the same ones
    if "sft" in stages and recipe.sft.steps:
        _sft(session)
    if "grpo" in stages and recipe.grpo.steps:
        run_grpo(session, resume=_latest(session, "grpo"))
    return test_all(session) if "test" in stages and session.tasks.test else {}


def _sft(session: Session) -> None:
    """Trains, resumes, or only loads the warm start; nothing at all once GRPO has checkpoints of its own."""
    steps, done = session.recipe.sft.steps, _latest(session, "sft")
    if done is None or done != _path(session, "sft", steps):
        run_sft(session, resume=done)
    elif _latest(session, "grpo") is None:
        load_weights(session.policy, done / "model")
        session.sampler.load(steps)
    # Not part of the training above: a run that ended between its last checkpoint and this still gets it.
    if session.tasks.validation and not session.run.evals("validation", "sft"):
        report = session.evaluate("validation", steps, stage="sft")
        readable = "" if report.extractable is None else f", {report.extractable:.1%} with a readable answer"
        say(f"after the warm start: held-out success {report.success:.1%}{readable}")


def _latest(session: Session, stage: str) -> Path | None:
    return latest(session.run.checkpoints / stage, warn=say)


def _path(session: Session, stage: str, step: int) -> Path:
    return session.run.checkpoints / stage / f"step-{step:06d}"


def test_all(session: Session) -> dict[str, EvalReport]:
    """The test split, once, for the base model, the warm start and the best GRPO checkpoint that exist."""
    tested = {(e.phase, e.step): EvalReport.from_json(e.report) for e in session.run.evals("test")}
    reports = {}
    for stage, folder, step in stage_weights(session):
        if (stage, step) in tested:
            reports[stage] = tested[stage, step]
            continue
        if stage == "grpo" and step == 0 and session.tasks.validation:
            say("no step of GRPO did better on validation than step 0: what is tested is where it began")
        load_weights(session.policy, folder)
        # As in training: the updates that its own stage's learner made, so that episodes tell which weights made them.
        session.sampler.load(0 if stage == "base" else read_plain(folder.parent)[0]["num_steps"])
        # Once is enough for a base model that only shows where the warm start came from.
        shown = stage == "base" and session.recipe.sft.steps > 0
        samples = 1 if shown else session.recipe.eval.test_samples
        say(f"testing {stage}: {len(session.tasks.test)} unseen tasks × {samples}{'' if shown else ', and greedily'}")
        report = reports[stage] = session.evaluate("test", step, stage=stage, samples=samples, greedy=not shown)
        say(f"{stage}: {report.success:.1%} sampled{'' if report.greedy is None else f', {report.greedy:.1%} greedy'}")
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
    """The step of the best validation success; of equals the earliest; without validation the last that was saved."""
    evals = session.run.evals(split="validation", phase="grpo")
    best = best_report([EvalReport.from_json(found.report) for found in evals])
    if best is None and (last := _latest(session, "grpo")):
        return read_plain(last)[1]["step"]
    return best.step if best else session.recipe.grpo.steps
