"""The laboratory of credit: pinned panels, equal budgets, shared warm starts, resuming, and what its table may say."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import Killed

from milepost import cli
from milepost.env import Action
from milepost.evaluate import EvalReport, task_interval
from milepost.lab import panels
from milepost.lab.arms import (
    RULES,
    Plan,
    plan_of,
    recipe_of,
    reported_trials,
    settings_of,
    start_of,
    trial_of,
    tuned_at,
    tuning_trials,
)
from milepost.lab.command import written
from milepost.lab.credit import Cell, Choice, Lab, chosen, holm, read_lab, run_lab, sentence
from milepost.lab.page import text, write_page
from milepost.lab.runs import LabRun, identity, make_all, read_result
from milepost.lab.table import curve_of, facts, notes, raw_rows, rows_of, write_files
from milepost.policy import make_model, make_tokenizer, shape_of, vocabulary
from milepost.recipe import make_recipe
from milepost.scripted import play_script
from milepost.shape import digest
from milepost.sources import load_named
from milepost.stages.trials import judgement, warm_start
from milepost.store import Run
from milepost.tasks import load_tasks
from milepost.types import RecipeError, Task

CELLS = [(world, horizon) for world in panels.LAB_WORLDS for horizon in panels.HORIZONS]


# --- panels -----------------------------------------------------------------------------------------------------------


def test_the_panels_are_the_pinned_ones() -> None:
    """Whoever changes a digest here has made all earlier results incomparable."""
    assert digest(panels.read()) == "114911ec3345524a"
    assert [len(panels.pool(*which)) for which in panels.POOLS] == [640] * 15  # each row equals its own digest
    assert panels.order(0)[:5] == [0, 336, 464, 52, 396]
    for seeds, numbers in ((panels.REPORTED, range(640)), (panels.TUNING, range(640, 1280))):
        assert all(sorted(panels.order(seed)) == list(numbers) for seed in seeds)
    assert len({tuple(panels.order(seed)) for seed in (*panels.REPORTED, *panels.TUNING)}) == 13


@pytest.mark.parametrize(("world", "horizon"), CELLS)
def test_rates_are_chosen_on_rows_that_no_reported_seed_meets(world: str, horizon: int) -> None:
    """By content: of 3 × 3 rooms there are few mazes, so that two pools drawn from different seeds would share some."""
    parts = [
        {digest({key: value for key, value in row.items() if key not in ("number", "split")}) for seed in seeds
         for row in panels.rows(640, 0, world=world, horizon=horizon, panel=seed)}
        for seeds in (panels.REPORTED, panels.TUNING)
    ]  # fmt: skip
    assert [len(part) for part in parts] == [640, 640] and not parts[0] & parts[1]


def test_a_row_that_came_out_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    panels.pool.cache_clear()
    monkeypatch.setattr(panels, "POOL_SEED", 6)
    with pytest.raises(RecipeError, match="row 0 of the laboratory's panel 'corridor 10' is not the one that was pinned"):
        panels.pool("corridor", 10)


@pytest.mark.parametrize(("world", "horizon"), [("corridor", 10), ("maze", 30)])
def test_a_seed_meets_its_panel_in_its_order(world: str, horizon: int) -> None:
    recipe = recipe_of(Plan(Path("x")), world, horizon, "episode", 1e-3, 3)
    spec = panels.LAB_WORLDS[world].spec
    tasks = load_tasks(recipe.tasks, recipe.seed, generate=spec.generate)
    again = load_tasks(recipe.tasks, recipe.seed + 1, generate=spec.generate)  # the run's own seed decides nothing of it
    met = panels.order(3)
    assert [task.columns["number"] for task in tasks.train] == met[128:]
    assert sorted(task.columns["number"] for task in tasks.test) == sorted(met[:128])
    assert [task.key for task in again.train] == [task.key for task in tasks.train]
    assert {task.key for task in again.test} == {task.key for task in tasks.test}
    assert len({task.key for task in (*tasks.train, *tasks.test)}) == 640 and not tasks.validation


def test_panels_do_not_depend_on_the_process() -> None:
    code = ("from milepost.lab.panels import rows; from milepost.shape import digest; "
            "print(digest([*rows(99, 0, world='maze', horizon=10, panel=7)]))")  # fmt: skip
    found = [
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, text=True,
                       capture_output=True, check=True, cwd=place).stdout
        for seed, place in (("1", "/"), ("2", Path(__file__).parents[1]))
    ]  # fmt: skip
    assert found[0] == found[1] == digest([*panels.rows(99, 5, world="maze", horizon=10, panel=7)]) + "\n"


def test_prompts_hold_nothing_but_what_differs() -> None:
    first = next(panels.rows(1, 0, world="corridor", horizon=10, panel=0))
    assert re.fullmatch(r"Corridor \d+\.", first["prompt"]) and first["place"] == 5
    assert re.fullmatch(r"Exit \d\d\.", next(panels.rows(1, 0, world="maze", horizon=10, panel=0))["prompt"])


def test_demonstrators_slip_and_only_where_they_should() -> None:
    rows = list(panels.rows(400, 0, world="corridor", horizon=10, panel=0))
    tasks = [Task(f"k{i}", row["prompt"], columns=row) for i, row in enumerate(rows)]
    shown = [play_script(panels.CORRIDOR_SPEC, task, panels.corridor_slips) for task in tasks]
    right = sum(panels.CORRIDOR_SPEC.goal.holds(t, {}, p.final_state) for t, p in zip(tasks, shown))
    assert 130 < right < 190  # .4 of 400 within three standard deviations
    elsewhere = [step.text for played in shown for i, step in enumerate(played.steps) if i != 4]
    assert all(0.22 < elsewhere.count(way) / len(elsewhere) < 0.28 for way in "abcd")
    assert [s.text for s in shown[0].steps] == [
        s.text for s in play_script(panels.CORRIDOR_SPEC, tasks[0], panels.corridor_slips).steps
    ]
    for row in panels.rows(40, 0, world="maze", horizon=30, panel=0):
        task = Task(str(row["number"]), row["prompt"], columns=row)
        played = play_script(panels.MAZE_SPEC, task, panels.maze_slips, max_turns=500)
        assert panels.MAZE_SPEC.goal.holds(task, {}, played.final_state) and len(played.steps) >= row["shortest"]
        assert not any(step.observation.num_invalid for step in played.steps)


# --- arms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "horizon"), CELLS)
def test_arms_of_a_seed_differ_in_credit_alone(world: str, horizon: int) -> None:
    plan = Plan(Path("x"))
    trials = [trial_of(plan, world, horizon, rule, rate, 2) for rule in RULES for rate in plan.rates[world]]
    recipes = [trial.run.recipe for trial in trials]
    start = start_of(plan, world, horizon, 2).recipe
    assert {warm_start(recipe) for recipe in recipes} == {warm_start(start)}
    assert {judgement(recipe) for recipe in recipes} == {judgement(start)}
    assert {recipe.grpo.tokens for recipe in recipes} == {plan.steps[horizon] * 64 * 2 * horizon} == {plan.budget(horizon)}
    assert len({trial.result for trial in trials}) == len({identity(trial.run) for trial in trials}) == 21
    sections = {"credit", "optimizer", "reward", "rollout", "name"}
    for recipe in recipes:
        mine = settings_of(recipe.name.split("-lr")[0], plan, horizon)
        changed = {name for name in type(recipe).model_fields if getattr(recipe, name) != getattr(recipes[0], name)}
        assert changed <= sections and {"credit", *mine} & changed == set(mine)
        assert recipe.optimizer.model_copy(update={"lr": 0.0}) == recipes[0].optimizer.model_copy(update={"lr": 0.0})


def test_settings_by_hand() -> None:
    plan = Plan(Path("x"))
    assert settings_of("discounted", plan, 10)["credit"]["gamma"] == 0.9  # .9¹⁰ ≈ .35 is left at the first of ten turns
    assert settings_of("branch", plan, 30) == {
        "credit": {"rule": "branch", "branches": {"every": 10}},
        "rollout": {"group_size": 4},
    }
    assert settings_of("turn", plan, 10)["reward"] == {"potential": 1.0} and settings_of("episode", plan, 10) == {}
    assert [plan.rules_of(horizon) for horizon in panels.HORIZONS] == [RULES, RULES[:-1], RULES[:-1]]
    assert plan.budget(10) == 30 * 8 * 8 * 2 * 10 == 38_400
    assert (plan.seeds_of(10), plan.seeds_of(30), plan.seeds_of(100)) == (
        tuple(range(10)),
        tuple(range(10)),
        (0, 1, 2, 3, 4),
    )
    assert [tuned_at(horizon) for horizon in panels.HORIZONS] == [10, 30, 30]
    assert plan.cells[:3] == [("corridor", 10), ("maze", 10), ("corridor", 30)]
    tuning = list(tuning_trials(plan, "maze", 10))
    assert len(tuning) == 7 * 3 * 2 and {trial.seed for trial in tuning} == {100, 101}
    reported = list(reported_trials(plan, "maze", 10, dict.fromkeys(RULES, 1e-3)))
    assert len(reported) == 70 and [trial.rule for trial in reported[:8]] == [*RULES, "episode"]
    assert not {trial.seed for trial in tuning} & {trial.seed for trial in reported}


@pytest.mark.parametrize("small", [False, True])
def test_values_are_used_for_nearly_all_of_the_budget(small: bool) -> None:
    """The steps counted here are the fewest: an episode that ends early leaves tokens for more."""
    plan = plan_of("x", small=small)
    for world, horizon in plan.cells:
        for rule in plan.rules_of(horizon):
            credit = trial_of(plan, world, horizon, rule, 1e-3, 0).run.recipe.credit
            if credit.rule == "value":
                assert 0 < credit.value_warmup <= plan.steps[horizon] / (4 if small else 15)


@pytest.mark.parametrize("world", list(panels.LAB_WORLDS))
def test_the_policy_is_small_and_knows_every_word(world: str) -> None:
    """At most a million weights; actions of one token, observations of at most six, line breaks included."""
    played = panels.LAB_WORLDS[world]
    words = load_named(played.texts, "texts", "text", lambda value: isinstance(value, str), lambda value: False)
    tokenizer = make_tokenizer(vocabulary([words], None, "pairs"), "pairs", 2048)
    new = recipe_of(Plan(Path("x")), world, 10, "episode", 1e-3, 0).model.new
    shape = shape_of(new.size, new.layers or None, new.width or None, new.heads or None)
    assert sum(p.numel() for p in make_model(shape, len(tokenizer), 2048, 0).parameters()) <= 1_000_000
    for row in panels.rows(20, 0, world=world, horizon=30, panel=0):
        task, env = Task("k", row["prompt"], columns=row), played.spec.make()
        opening = env.reset(task, 0).messages[-1]["content"]
        assert tokenizer.unk_token_id not in tokenizer.encode(f"{opening}\n")
        for action in played.spec.gold(task, env):
            seen = env.step(Action(action)).messages[0]["content"]
            ids = tokenizer.encode(f"\n{seen}\n")
            assert len(tokenizer.encode(action)) == 1 and len(ids) <= 6 and tokenizer.unk_token_id not in ids


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"horizons": "20"}, "--horizons 20: there is no '20'; there are 10, 30, 100"),
        ({"rules": "episode,distill"}, "--rules episode,distill: there is no 'distill'; there are episode, discounted"),
        ({"worlds": "desk"}, "--worlds desk: there is no 'desk'; there are corridor, maze"),
        ({"seeds": "0-10"}, "--seeds 0-10: seed 10 has no pinned panel; there are 0 to 9"),
        ({"seeds": "x"}, "--seeds 'x' must be different whole numbers"),
        ({"rules": ","}, "--rules is empty"),
    ],
)
def test_words_that_name_nothing_are_refused(words: dict[str, str], sentence: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(sentence)):
        plan_of("x", **words)


def test_words_become_plans() -> None:
    plan = plan_of("x", horizons="30,10", rules="anchor", seeds="0-2")
    assert (plan.horizons, plan.rules, plan.seeds) == ((10, 30), ("episode", "anchor"), {10: (0, 1, 2), 30: (0, 1, 2)})
    small = plan_of("x", small=True)
    assert small.horizons == (10,) and small.rules_of(10) == RULES and small.seeds_of(10) == (0, 1)
    assert plan_of("x", small=True, horizons="30").seeds_of(30) == (0, 1)
    args = cli.parse(["lab", "credit", "--small", "--rules", "episode,anchor", "--jobs", "2"])
    assert written(args) == "milepost lab credit --small --rules episode,anchor"


def test_a_budget_of_tokens_needs_steps() -> None:
    with pytest.raises(RecipeError, match=r"grpo.tokens = 100 does nothing while grpo.steps = 0; set grpo.steps"):
        make_recipe({"grpo": {"tokens": 100}})


# --- runs -------------------------------------------------------------------------------------------------------------


def little(out: Path, **changes: Any) -> Plan:
    """One seed for choosing and one to report of two rules: 64 episodes of ten turns at most."""
    plan = Plan(out, worlds=("corridor",), horizons=(10,), rules=("episode", "branch"), seeds={10: (0,)}, tuning=(100,),
                rates={"corridor": (1e-3,)}, steps={10: 1}, sft_steps=12, test=4, samples=1)  # fmt: skip
    return replace(plan, **changes)


def plain(lab: Lab) -> list[dict[str, Any]]:
    """What runs showed, without clocks and gauges."""
    gauges = ("cpu_seconds", "cpu_seconds_values", "wall_seconds", "memory_gb")
    rows = [{key: value for key, value in row.items() if key not in gauges} for row in raw_rows(lab)]
    runs = [run for cell in lab.cells for rule in cell.rules for run in cell.of(rule)]
    return [{**row, "curve": run.curve, "outcomes": run.after.outcomes} for row, run in zip(rows, runs)]


@contextmanager
def killed_in(name: str, last: int) -> Iterator[None]:
    """Whatever runs in this block ends after step `last` of the run whose name begins so."""
    commit = Run.commit_step

    def dies(run: Run, step: int, stage: str, *args: Any, **kwargs: Any) -> None:
        commit(run, step, stage, *args, **kwargs)
        if run.name.startswith(name) and (stage, step) == ("grpo", last):
            raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Run, "commit_step", dies)
        with pytest.raises(Killed):
            yield


def test_equal_budgets_one_warm_start_and_going_on_after_a_kill(tmp_path: Path, capsys) -> None:
    plan = little(tmp_path / "killed")
    with killed_in("branch-lr0.001-s100", 1):
        run_lab(plan, jobs=0)
    with pytest.raises(RecipeError, match=r"branch, rate 0.001, seed 100 is not finished, so no rate is chosen yet"):
        read_lab(plan)
    capsys.readouterr()
    lab = run_lab(plan, jobs=0)
    said = capsys.readouterr().err
    assert "corridor 10, choosing rates: run 1/1: corridor 10, branch, rate 0.001, seed 100" in said
    whole = run_lab(little(tmp_path / "whole"), jobs=0)
    assert plain(lab) == plain(whole) and len(plain(lab)) == 2

    episode, branch = (lab.cells[0].runs[rule, 0] for rule in ("episode", "branch"))
    assert episode.before == branch.before and set(episode.after.outcomes) == set(branch.after.outcomes)
    assert len(episode.after.outcomes) == 4
    for run in (episode, branch):  # ended with the step that used the budget up, and not before
        assert run.tokens >= plan.budget(10) > run.curve[-1][0] and run.curve[0][0] == 0
        assert len(run.curve) == run.steps and run.cpu > 0 and run.wall > 0 and 0.1 < run.memory < 8
    # The folders of finished runs are gone, their results and the warm starts are there.
    names = sorted(path.name for path in (plan.out / "corridor-10").iterdir())
    assert names == ["branch-lr0.001-s0.json", "branch-lr0.001-s100.json", "episode-lr0.001-s0.json",
                     "episode-lr0.001-s100.json", "start-s0", "start-s100"]  # fmt: skip
    stamps = {path: path.stat().st_mtime_ns for path in plan.out.rglob("*.json")}
    capsys.readouterr()
    assert plain(run_lab(plan, jobs=0)) == plain(lab)
    assert capsys.readouterr().err == "" and {path: path.stat().st_mtime_ns for path in stamps} == stamps


def test_results_of_other_settings_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    plan = little(tmp_path)
    trial = trial_of(plan, "corridor", 10, "episode", 1e-3, 0)
    trial.result.parent.mkdir(parents=True)
    trial.result.write_text(json.dumps({"recipe": "0" * 16}), encoding="utf-8")
    with pytest.raises(RecipeError, match=r"episode-lr0.001-s0.json was made by other settings; delete it, or give --out"):
        read_result(trial)
    assert read_result(trial_of(plan, "corridor", 10, "branch", 1e-3, 0)) is None


# --- what is told, with numbers made by hand --------------------------------------------------------------------------


def report(right: int, num: int = 10) -> EvalReport:
    verdicts = {f"t{i}": (i < right,) for i in range(num)}
    interval = task_interval(verdicts.values())
    return EvalReport("test", 1, num, 1, {}, interval.mean, interval.low, interval.high, verdicts)


def showed(rule: str, seed: int, right: int, **changes: Any) -> LabRun:
    made = LabRun("corridor", 10, rule, 1e-3, seed, report(right), 0.3, 40, 51_300, 30.0, 0.0, 33.0, 0.5,
                  ((0, 0.3), (1280, 0.5), (50_000, 0.75)))  # fmt: skip
    return replace(made, **changes)


def cell_of(rights: dict[str, list[int]], **changes: Any) -> Cell:
    """Finished runs with so many right of ten, by rule and seed."""
    runs = {(rule, seed): showed(rule, seed, right) for rule, some in rights.items() for seed, right in enumerate(some)}
    num = len(rights["episode"])
    choices = {rule: Choice(1e-3, {3e-4: 0.4, 1e-3: 0.5, 3e-3: 0.2}) for rule in rights}
    return replace(Cell("corridor", 10, tuple(rights), tuple(range(num)), 51_200, choices, 10, runs), **changes)


def lab_of(*cells: Cell) -> Lab:
    return Lab(Plan(Path("x"), rules=cells[0].rules), cells)


EVEN = [5, 5, 5, 5, 4, 6]


def test_the_table_by_hand() -> None:
    cell = cell_of({"episode": EVEN, "anchor": [6, 8, 7, 9, 5, 8], "value": [6, 4, 6, 4, 5, 5]})
    cell = replace(
        cell, runs={**cell.runs, **{("value", s): replace(cell.runs["value", s], cpu_value=6.0) for s in range(6)}}
    )
    lab = lab_of(cell)
    # Differences of anchor: 10, 30, 20, 40, 10, 20 points, mean 21.67, all of one sign: p = 2/64; with six pairs the
    # interval reaches from the least to the largest. Of value: 10, −10, 10, −10, 10, −10: any sign is as good, p = 1.
    corrected = holm(lab)
    assert corrected == {("corridor", 10, "anchor"): pytest.approx(2 * 2 / 64), ("corridor", 10, "value"): 1.0}
    assert rows_of(cell, corrected) == [
        ("episode", "0.001", "50.0 %", "–", "–", "–", "–", "6/6", "51,300", "40.0", "30.0", "–", "33.0", "0.50"),
        ("anchor", "0.001", "71.7 %", "+21.7", "[+10.0, +40.0]", ".031", ".062", "6/6", "51,300", "40.0", "30.0", "–",
         "33.0", "0.50"),
        ("value", "0.001", "50.0 %", "+0.0", "[-10.0, +10.0]", "1.000", "1.000", "6/6", "51,300", "40.0", "30.0", "6.0",
         "33.0", "0.50"),
    ]  # fmt: skip
    assert sentence(cell, "anchor", 0.0625) == (
        "anchor instead of episode helps here: +21.7 points, 95 % [+10.0, +40.0], p = .031, 6 pairs; among all comparisons "
        "of this laboratory chance may do that (p = .062 by Holm)"
    )
    assert sentence(cell, "anchor", 0.031).endswith("p = .031, 6 pairs")
    assert sentence(cell, "value", 1.0).startswith("not shown that value instead of episode matters here")
    assert sentence(cell, "value", 1.0).endswith("the interval holds 0")
    worse = cell_of({"episode": [6, 8, 7, 9, 5, 8], "anchor": EVEN})
    assert sentence(worse, "anchor", 0.03).startswith("anchor instead of episode harms here: -21.7 points")
    equal = cell_of({"episode": EVEN, "anchor": EVEN})
    assert sentence(equal, "anchor", 1.0) == "no pair differs: anchor instead of episode changed no final success here"


def test_few_seeds_describe_and_claim_nothing() -> None:
    cell = cell_of({"episode": [1] * 5, "anchor": [9] * 5}, horizon=100, tuned_at=30)
    lab = lab_of(cell)
    assert sentence(cell, "anchor", None) == "anchor: +80.0 points over 5 pairs: a description, too few to show anything"
    assert holm(lab) == {} and rows_of(cell, {})[1][3:7] == ("+80.0", "–", "–", "–")
    told = notes(lab)
    assert told[0] == "corridor 100 has 5 seeds, fewer than the 6 that can show anything: it describes"
    assert told[1] == "corridor 100: rates are those chosen at horizon 30; beyond 30 none are chosen"
    every = Lab(Plan(Path("x")), (replace(cell, rules=RULES[:-1]),))
    assert "corridor 100: not compared with critic; --rules episode,critic does it" in notes(every)
    assert not any("not compared" in line for line in told)  # who named rules knows which are missing
    # Five seeds with the same ten tasks: each of them recurs four times.
    assert ("corridor 100: 40 of the test tasks stand in the tests of several seeds, which all draw from the same pinned "
            "rows: the interval speaks of these rows") in told  # fmt: skip


def test_unfinished_pairs_are_counted_and_never_paired_by_place() -> None:
    cell = cell_of({"episode": EVEN, "anchor": EVEN})
    runs = {key: run for key, run in cell.runs.items() if key not in (("anchor", 0), ("episode", 5))}
    part = replace(cell, runs=runs)
    assert part.paired_seeds("anchor") == [1, 2, 3, 4] and lab_of(part).num_left == 2
    assert sentence(part, "anchor", None).endswith("too few to show anything (2 of 6 pairs are not finished)")
    none = replace(cell, runs={})
    assert sentence(none, "anchor", None) == "anchor: no pair is finished" and rows_of(none, {})[0][2] == "–"
    assert "12 reported runs are not finished" in text(lab_of(none))


def test_holm_by_hand() -> None:
    """p of 2/64, 4/64 and 64/64 for three rules: times 3, 2, 1, none below the one before."""
    cell = cell_of({"episode": EVEN, "a": [6, 8, 7, 9, 5, 8], "b": [6, 6, 6, 6, 5, 6], "c": [5, 5, 5, 5, 4, 7]})
    raw = {rule: cell.effect(rule).p for rule in "abc"}
    assert raw == {"a": 2 / 64, "b": 4 / 64, "c": 1.0}  # b: five differences of one sign, and one of 0
    assert {key[2]: p for key, p in holm(lab_of(cell)).items()} == {"a": 6 / 64, "b": 8 / 64, "c": 1.0}


def test_rates_are_chosen_by_mean_success_and_ties_go_to_the_smaller() -> None:
    best = chosen({3e-4: [0.2, 0.4], 1e-3: [0.5, 0.3], 3e-3: [0.9, 0.0]})
    assert best.rate == 3e-3 and best.means == {3e-4: pytest.approx(0.3), 1e-3: 0.4, 3e-3: 0.45} and best.at_edge
    middle = chosen({3e-4: [0.25], 1e-3: [0.5], 3e-3: [0.5]})
    assert middle.rate == 1e-3 and not middle.at_edge
    cell = cell_of({"episode": EVEN}, choices={"episode": best})
    assert (
        "the best of the rates tried lies at their edge for episode; one beyond it may be better" in notes(lab_of(cell))[0]
    )


def test_learning_curves_by_hand() -> None:
    """Ten bins of 5,120 tokens: steps at 0 and 1,280 fall into the first, 50,000 into the last."""
    runs = [showed("episode", 0, 5), showed("episode", 1, 5, curve=((0, 0.5), (49_000, 0.95)))]
    one = curve_of(runs, 51_200, "episode")
    assert one.points == [(2560.0, pytest.approx((0.4 + 0.5) / 2)), (48_640.0, pytest.approx((0.75 + 0.95) / 2))]
    assert one.band == [(2560.0, pytest.approx(0.4), 0.5), (48_640.0, 0.75, 0.95)]
    assert curve_of([], 51_200, "episode").points == []


def test_files_and_page_hold_what_the_terminal_says(tmp_path: Path) -> None:
    cell = cell_of({"episode": EVEN, "anchor": [6, 8, 7, 9, 5, 8]})
    stopped = {**cell.runs, ("anchor", 2): replace(cell.runs["anchor", 2], stopped="nothing to learn")}
    lab = Lab(Plan(tmp_path), (replace(cell, runs=stopped),))
    write_files(lab, "milepost lab credit")
    page = write_page(lab, "milepost lab credit").read_text(encoding="utf-8")
    shown = text(lab)
    told = ["+21.7", "[+10.0, +40.0]", "corridor, horizon 10: 6 paired seeds, 51,200 tokens each; warm start 30.0 %"]
    told += ["anchor instead of episode helps here", "training stopped itself: anchor seed 2 (nothing to learn)"]
    assert all(line in shown and line in page for line in told)
    assert "<svg" in page and "milepost lab credit" in page and "http" not in page.replace("http://www.w3.org", "")
    with (tmp_path / "lab.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["rule"], row["seed"], row["success"]) for row in rows[5:8]] == [
        ("episode", "5", "0.6"), ("anchor", "0", "0.6"), ("anchor", "1", "0.8")]  # fmt: skip
    values = json.loads((tmp_path / "lab.json").read_text(encoding="utf-8"))
    with (tmp_path / "lab-curves.csv").open(encoding="utf-8", newline="") as file:
        points = list(csv.DictReader(file))
    assert len(points) == 12 * 3 and points[19] == {"world": "corridor", "horizon": "10", "rule": "anchor", "rate": "0.001",
                                                    "seed": "0", "tokens": "1280", "success": "0.5"}  # fmt: skip
    assert values == json.loads(json.dumps(facts(lab, "milepost lab credit"))) and len(values["runs"]) == 12
    effect = values["cells"][0]["effects"]["anchor"]
    assert effect["difference"] == pytest.approx(13 / 60) and effect["p"] == 2 / 64 and effect["holm"] == 2 / 64
    assert effect["pairs"][1] == {"seed": 1, "rule": 0.8, "episode": 0.5}


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_run_that_fails_in_its_process_does_not_keep_the_others(tmp_path: Path, capsys) -> None:
    from milepost.types import MilepostError

    plan = little(tmp_path)
    good, bad = trial_of(plan, "corridor", 10, "episode", 1e-3, 0), trial_of(plan, "corridor", 10, "branch", 1e-3, 0)
    Run.create(bad.run.recipe.out, bad.run.recipe.model_copy(update={"seed": 5})).close()
    with pytest.raises(
        MilepostError, match=r"1 of 2 runs failed, the first is corridor 10, branch, .* made by another recipe"
    ):
        make_all([bad, good], 2, keep=True, label="some")
    said = capsys.readouterr().err
    assert "FAILED" in said and "some 2/2: " in said
    found = read_result(good)
    assert found is not None and good.run.path.is_dir() and read_result(bad) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.skipif(sys.platform != "linux", reason="pidfd_open is Linux's")
def test_with_a_laboratory_that_is_killed_its_runs_end(tmp_path: Path, number: int) -> None:
    argv = [sys.executable, "-m", "milepost", "lab", "credit", "--small", "--worlds", "corridor", "--out", str(tmp_path)]
    laboratory = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    locks: list[Path] = []
    until = time.monotonic() + 120
    while not locks and laboratory.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
        locks = [lock for lock in tmp_path.glob("*/*/lock") if lock.read_text().strip()]
    assert locks, "no run has begun"
    run = int(locks[0].read_text())
    assert run != laboratory.pid and Path(f"/proc/{run}").exists()
    laboratory.send_signal(number)
    laboratory.wait(30)
    while Path(f"/proc/{run}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(f"/proc/{run}").exists()


def test_a_number_of_jobs_below_none_is_refused(tmp_path: Path, capsys) -> None:
    assert cli.main(["lab", "credit", "--small", "--out", str(tmp_path), "--jobs", "-1"]) != 0
    assert "--jobs -1: give the number of runs at a time" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_small_laboratory(tmp_path: Path, capsys, record_property) -> None:
    """`milepost lab credit --small`: every rule in both worlds, from the panels to the page."""
    argv = ["lab", "credit", "--small", "--out", str(tmp_path / "lab")]
    assert cli.main(argv) == 0
    shown = capsys.readouterr()
    lab = read_lab(plan_of(tmp_path / "lab", small=True))
    assert lab.num_left == 0 and len(raw_rows(lab)) == 2 * 7 * 2
    for cell in lab.cells:
        for seed in cell.seeds:
            runs = [cell.runs[rule, seed] for rule in RULES]
            assert len({run.before for run in runs}) == 1 and len({tuple(sorted(run.after.outcomes)) for run in runs}) == 1
            assert all(run.tokens >= cell.budget > run.curve[-1][0] for run in runs)
        assert all(run.cpu_value > 0 for rule in ("value", "critic") for run in cell.of(rule))
        assert all(run.cpu_value == 0 for run in cell.of("episode"))
        assert all("a description, too few to show anything" in sentence(cell, rule, None) for rule in RULES[1:])
    assert (tmp_path / "lab/report.html").is_file() and "report: " in shown.out
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "lab").rglob("*-s*.json")}
    assert cli.main([*argv, "--tell"]) == 0 and cli.main([*argv, "--json"]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    record_property("successes", {f"{cell.world} {rule} {seed}": cell.runs[rule, seed].success
                                  for cell in lab.cells for rule in RULES for seed in cell.seeds})  # fmt: skip
