"""Runs that belong together: each is made or resumed once, and what the runs of one seed have in common is made once.

The warm start is linked into the other runs of its seed, and the evaluations of the base model and of the warm start are
copied. A finished run is never run again, so whoever was stopped simply starts the same command once more.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from milepost.checkpoint import latest, path_of
from milepost.envs.find import find_env
from milepost.evaluate import EvalReport
from milepost.launch import check_version, open_session
from milepost.progress import say
from milepost.recipe import Recipe
from milepost.sections import MAX_INTEGER
from milepost.stages.compare import cpu_of, stored_tests
from milepost.stages.pipeline import check_stages, run_pipeline, test_all
from milepost.stages.session import RunStopped, Session
from milepost.store import Run
from milepost.types import RecipeError

STAGES = ("sft", "grpo", "test")


@dataclass(frozen=True)
class Trial:
    """One run of several."""

    value: str
    """What tells it from the others of its seed."""
    seed: int
    recipe: Recipe

    @property
    def path(self) -> Path:
        return Path(self.recipe.out) / self.recipe.name


MOST_SEEDS = 1000
"""Runs of one command have at most so many seeds."""


def read_seeds(seeds: str) -> list[int]:
    """[0, 1, 2, 7] of "0-2,7". Raises RecipeError."""
    found: list[int] = []
    for part in str(seeds).split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise RecipeError(f"--seeds {seeds!r} must be different whole numbers, for example 0,1 or 0-9")
        if max(len(first), len(last)) > len(str(MAX_INTEGER)) or int(last or first) > MAX_INTEGER:
            raise RecipeError(f"--seeds {_short(seeds)}: a seed is at most {MAX_INTEGER}; 0-9 works")
        if int(last or first) < int(first):
            raise RecipeError(f"--seeds {seeds!r} must be different whole numbers, for example 0,1 or 0-9")
        if len(found) + int(last or first) - int(first) >= MOST_SEEDS:
            raise RecipeError(f"--seeds {_short(seeds)} names more than {MOST_SEEDS} seeds; ten, 0-9, are usual")
        found += range(int(first), int(last or first) + 1)
    if len(set(found)) != len(found) or not found:
        raise RecipeError(f"--seeds {seeds!r} must be different whole numbers, for example 0,1 or 0-9")
    return found


def _short(seeds: str) -> str:
    return seeds if len(seeds) <= 40 else f"{seeds[:40]}…"


def check_no_seed(overrides: Sequence[str]) -> None:
    """Refuses an override of what --seeds says. Raises RecipeError."""
    for override in overrides:
        if override.partition("=")[0].strip() == "seed":
            raise RecipeError(f"{override} does nothing, for --seeds says which seeds are run; use --seeds, or remove it")


def check_trial(recipe: Recipe, what: str) -> None:
    """Refuses runs that would have no test after GRPO. `what`: who compares them. Raises RecipeError."""
    check_stages(recipe, STAGES)
    if not recipe.grpo.steps or not recipe.tasks.test:
        wrong = "tasks.test = 0" if recipe.grpo.steps else "grpo.steps = 0"
        works = "tasks.test = 200" if recipe.grpo.steps else "grpo.steps = 40"
        raise RecipeError(f"{wrong}, but {what} compares tests after GRPO; set {works}")


def reports_of(
    trial: Trial, trials: Sequence[Trial], toml: str, label: str, *, test_stopped: bool = False
) -> dict[str, EvalReport]:  # fmt: skip
    """The trial's test reports by stage: read where the run is finished, else run or resumed first.

    `trials`: all of them, with whose runs it shares what it can. Training that stops itself raises RunStopped; with
    `test_stopped` the best checkpoint that it left is tested instead.
    """
    existing = trial.path.exists()
    if existing:
        with Run.open(trial.path) as run:
            if run.recipe != trial.recipe:
                raise RecipeError(f"{trial.path} was made by another recipe; delete it, or give these another `name`")
            if trial.recipe.env.name:  # a finished run is not resumed, and would be compared with those that are made now
                check_version(run, find_env(trial.recipe.env.name, "env.name"))
            tests = stored_tests(run)
        if "grpo" in tests:
            say(f"{label}: {trial.path} is finished already")
            return tests
    say(f"{label}: {trial.path}")
    with open_session(trial.recipe, toml=toml, resume=trial.path if existing else None, quiet=True) as session:
        share(session, trial, trials)
        try:
            return run_pipeline(session, stages=STAGES)
        except RunStopped as error:
            if not test_stopped:
                raise
            say(f"{trial.path} stopped: {error}; what it left is tested")
            return test_all(session)


# --- what the runs of one seed have in common -----------------------------------------------------------------------


def share(session: Session, trial: Trial, trials: Sequence[Trial]) -> None:
    """Links the warm start of an earlier run of the same seed into this run, and copies the evaluations both would make."""
    for other in trials:
        if other.seed != trial.seed or other == trial or not (other.path / "store.sqlite").is_file():
            continue
        with Run.open(other.path) as donor:
            if donor.recipe != other.recipe or donor.meta().get("environment") != session.run.meta().get("environment"):
                continue
            same_start = bool(trial.recipe.sft.steps) and warm_start(trial.recipe) == warm_start(other.recipe)
            if same_start and not _link_warm_start(donor, session.run, trial.recipe.sft.steps):
                continue
            if judgement(trial.recipe) == judgement(other.recipe):
                same_reward = trial.recipe.reward == other.recipe.reward
                _copy_evals(donor, session.run, ("base", "sft") if same_start else ("base",), same_reward=same_reward)
        return


def warm_start(recipe: Recipe) -> str:
    """Everything the weights after the warm start depend on."""
    optimizer = recipe.optimizer.model_dump(exclude={"lr", "schedule", "warmup_steps"})
    update = recipe.update.model_dump(include={"tokens_per_call", "executor"})
    return _canonical(recipe, {"seed", "model", "tasks", "env", "sft"}) + json.dumps([optimizer, update, _judges(recipe)])


def judgement(recipe: Recipe) -> str:
    """Everything the success of given weights depends on, and how many samples the base model is tested with."""
    sections = _canonical(recipe, {"seed", "model", "tasks", "env", "eval"})
    return sections + json.dumps([_judges(recipe), recipe.rollout.max_new_tokens, bool(recipe.sft.steps)])


JUDGES = ("functions", "success", "success_at", "extract", "timeout_seconds", "canary_good", "combine", "gates")
"""Settings of the reward by which single answers are judged right, golds of tasks included."""


def _judges(recipe: Recipe) -> dict[str, Any]:
    """What of the reward says what is right. An environment's own goal does; there the length of an action counts too."""
    if recipe.env.name:
        return {"max_new_tokens": recipe.rollout.max_new_tokens}
    return recipe.reward.model_dump(include=set(JUDGES), mode="json")


def _canonical(recipe: Recipe, sections: set[str]) -> str:
    return json.dumps(recipe.model_dump(include=sections, mode="json"), sort_keys=True)


def _link_warm_start(donor: Run, run: Run, step: int) -> bool:
    """True if the run now has the finished warm start. Checkpoints never change once written, so a link is enough."""
    source, target = donor.checkpoints / "sft", run.checkpoints / "sft"
    if latest(target, warn=say) is not None:
        return True
    done = latest(source, warn=say)
    if done is None or done != path_of(source, step):
        return False
    draft = target / f".{done.name}.tmp"
    shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed here
    shutil.copytree(done, draft, copy_function=_link)
    os.rename(draft, target / done.name)
    run.add_event("info", "warm_start", f"the warm start is that of {donor.path}", phase="sft", step=step)
    return True


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _copy_evals(donor: Run, run: Run, stages: Sequence[str], *, same_reward: bool) -> None:
    """Success is that of the same weights on the same tasks; what another reward would pay is left out."""
    have = {(stored.phase, stored.split) for stored in run.evals()}
    for stored in donor.evals():
        if stored.phase in stages and (stored.phase, stored.split) not in have:
            report = EvalReport.from_json(stored.report)
            run.add_eval(stored.phase, stored.step, report if same_reward else replace(report, reward=None, parts={}))


def warm_start_cpu(trial: Trial, trials: Sequence[Trial]) -> float | None:
    """CPU-seconds of the warm start that the trial began with, whichever run of its seed made it; None: unknown."""
    alike = [other for other in trials if other.seed == trial.seed and warm_start(other.recipe) == warm_start(trial.recipe)]
    for one in (trial, *alike) if trial.recipe.sft.steps else ():
        if (one.path / "store.sqlite").is_file():
            with Run.open(one.path) as run:
                if (used := cpu_of(run, "sft")) is not None:
                    return used
    return None
