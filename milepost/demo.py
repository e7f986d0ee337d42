"""The main job end to end: preflight sample, warm start, GRPO, one test at the end, and (asked for) two controls.

base model → SFT on a hasty demonstrator → GRPO → 200 unseen tasks × 4, all under the same sampling noise
                                         ↘ control-sft: the warm start simply goes on ┐ for the CPU-seconds
                                         ↘ control-random: GRPO on coin-toss rewards  ┘ that GRPO used
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from milepost.health.preflight import preflight
from milepost.launch import open_session
from milepost.progress import say
from milepost.recipe import load_recipe
from milepost.report import show, write_report
from milepost.stages.controls import run_controls
from milepost.stages.pipeline import run_pipeline

RECIPE = Path(__file__).with_name("demo.toml")
PREFLIGHT_TASKS = 16


SLIPS = 0.6
"""Share of the demonstrations that have a slip."""


def hasty(answer: str) -> str:
    """A demonstrator who knows the form and has the idea, but often swaps two neighbours. Never says when."""
    words = answer.split(", ")
    if random.random() < SLIPS:
        at = random.randrange(len(words) - 1)
        words[at], words[at + 1] = words[at + 1], words[at]
    return " Answer: " + ", ".join(words)


def demo(overrides: Sequence[str], *, controls: bool) -> int:
    """Runs the demo (and the controls) and prints what was learned. Returns 0: a bar that was not met is a result too."""
    recipe = load_recipe(RECIPE, overrides)
    with open_session(recipe, toml=RECIPE.read_text(encoding="utf-8")) as session:
        say("preflight: what the base model does with these tasks")
        print(preflight(session, num_tasks=PREFLIGHT_TASKS).text())
        run_pipeline(session)
        if controls:
            run_controls(session)
    tell(session.run.path)
    return 0


def tell(run: Path) -> None:
    """The verdict and the table, where things are, what to try next."""
    print(show(run))
    print(f"""
files: {run} (store.sqlite, checkpoints/, report.html)
report: {write_report(run)}
next:
  milepost show {run}
  milepost demo --controls              the same with both controls at equal CPU time
  milepost demo grpo.steps=120          longer
  milepost init && milepost run recipe.toml    your own tasks and reward""")
