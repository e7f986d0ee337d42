"""Stored episodes under another reward: what changes, what it says of it, and that the run stays as it was."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.cli import main
from milepost.disk import StoreError
from milepost.envs.calc import SPEC
from milepost.recipe import make_recipe
from milepost.replay import replay
from milepost.rescore import Change, _parts, constant, judge_again, new_recipe, report, reranked, rescore
from milepost.scripted import episode_of, play_script
from milepost.store import Run
from milepost.types import (
    DataError,
    Episode,
    EpisodeId,
    Group,
    RecipeError,
    Reward,
    Sampled,
    StopKind,
    StopReason,
    Task,
    Turn,
)

COLUMNS = {"numbers": [482, 377, 905], "ops": ["*", "-"], "results": [181714, 180809], "gold": 180809, "num_steps": 2}
CALC = Task("calc/0/3", "Start with 482. Times 377. Minus 905. Result?", columns=COLUMNS, source="calc")
SUM = Task("sums/1", "1+1=", answer="Two", source="sums")
END = StopReason(StopKind.TERMINATED, "end_of_turn")


def calc_group(step: int = 1, version: str = SPEC.version) -> Group:
    """The gold (3 turns, 2 calls, both milestones), one that loops over the first milestone, one that answers at once."""
    scripts = [SPEC.gold, SPEC.known_bad["loops"], SPEC.known_bad["answers at once"]]
    episodes = []
    for member, script in enumerate(scripts):
        mine = episode_of(play_script(SPEC, CALC, script), CALC, member)
        name, facts = EpisodeId("train", step, CALC.key, member), {**mine.facts, "env": "calc", "version": version}
        episodes.append(replace(mine, id=name, group_id=f"train/{step}/{CALC.key}", facts=facts))
    return Group(episodes[0].group_id, CALC, tuple(episodes))


def text_group(*texts: str, step: int = 1, task: Task = SUM) -> Group:
    episodes = []
    for member, text in enumerate(texts):
        drawn = Sampled(np.zeros(len(text)), np.zeros(len(text)), 1.0, ((0, 0),), "stop")
        name = EpisodeId("train", step, task.key, member)
        episodes.append(Episode(name, f"train/{step}/{task.key}", (Turn([1], drawn, text=text),), END))
    return Group(episodes[0].group_id, task, tuple(episodes))


def won(*flags: bool) -> list[Reward]:
    return [Reward(float(flag), {"outcome": float(flag)}, flag) for flag in flags]


def exact(*flags: bool) -> list[Reward]:
    return [Reward(float(flag), {"exact": float(flag)}, flag) for flag in flags]


@pytest.fixture
def calc_run(tmp_path: Path) -> Run:
    with Run.create(tmp_path, make_recipe({"env": {"name": "calc", "max_turns": 12}})) as run:
        run.commit_step(1, "grpo", [calc_group()], [won(True, False, False)])
    return run


@pytest.fixture
def text_run(tmp_path: Path) -> Run:
    functions = [{"name": "exact", "params": {"case_sensitive": True}}]
    with Run.create(tmp_path, make_recipe({"reward": {"functions": functions}})) as run:
        run.commit_step(1, "grpo", [text_group("Two", "two", "three")], [exact(True, False, False)])
    return run


def written(folder: Path, text: str) -> str:
    (folder / "new.toml").write_text(text)
    return str(folder / "new.toml")


# ---- what changes ----------------------------------------------------------------------------------------------------


def test_milestones_move_a_group_and_no_verdict(calc_run: Run, tmp_path: Path) -> None:
    # 1.1, 0.1 and 0 instead of 1, 0 and 0: the mean goes from 1/3 to 0.4, and the loop now stands before the hasty answer.
    new = written(tmp_path, "[reward]\nmilestones = {step = 0.1}\n")
    assert rescore(calc_run.path, new, width=0).splitlines() == [
        "      episodes       reward  success  unscorable  verdicts changed  groups reranked  groups constant",
        "grpo         3  0.333 → 0.4   33.3 %           0                 0           1 of 1                0",
        "",
        "no verdict of 3 changed",
        "ranking changed within 1 of 1 groups of two or more",
        "",
        "row  episode               reward   success  parts that changed",
        "1    train/1/calc/0/3/0/0  1 → 1.1  yes      milestones – → 0.1",
        "2    train/1/calc/0/3/1/0  0 → 0.1  no       milestones – → 0.1",
        f"the biggest changes; one in full: milepost replay {calc_run.path} 1",
    ]


def test_overrides_change_the_new_reward_and_its_order(calc_run: Run, tmp_path: Path) -> None:
    # The cap holds both milestones at 0.15; 12 calls of which 2 are free cost min(0.1, 10 · 0.02) = 0.1.
    new = written(tmp_path, "[reward]\nmilestones = {step = 0.1, result = 0.2}\n"
                            '[[reward.costs]]\nname = "calls"\nfree = 2\nweight = 0.02\ncap = 0.1\n')  # fmt: skip
    with Run.open(calc_run.path) as run:
        recipe = new_recipe(run.recipe, new, ["reward.milestone_cap=0.15"])
        changes = judge_again(run, recipe).changes
    assert [change.new.total for change in changes] == pytest.approx([1.15, 0.0, 0.0])
    assert changes[1].new.parts["milestones"] == pytest.approx(0.1) and changes[1].new.parts["cost/calls"] == -0.1
    assert [change.row for change in changes] == [1, 2, 3]


def test_the_same_reward_changes_nothing(calc_run: Run, text_run: Run) -> None:
    for run in (calc_run, text_run):
        assert rescore(run.path).splitlines()[2:] == [
            "",
            "no verdict of 3 changed",
            "ranking changed within 0 of 1 groups of two or more",
            "every reward and every verdict is as it was",
        ]


def test_another_success_changes_verdicts(text_run: Run, tmp_path: Path) -> None:
    new = written(tmp_path, '[reward]\n[[reward.functions]]\nname = "exact"\nparams = {case_sensitive = false}\n')
    lines = rescore(text_run.path, new, width=0).splitlines()
    assert lines[1].split("  ")[-1].strip() == "0"
    assert "33.3 % → 66.7 %" in lines[1] and "0.333 → 0.667" in lines[1]
    assert lines[3] == "1 of 3 verdicts changed: 1 to success"
    assert lines[7] == "2    train/1/sums/1/1/0  0 → 1   no → yes  exact 0 → 1"


def test_faults_and_what_cannot_be_judged_stay_apart(tmp_path: Path) -> None:
    """A fault is no failure, before and after, and never a change."""
    group = text_group("Two", "", "x")
    fault = replace(group.episodes[1], stop=StopReason(StopKind.FAULT, "engine"))
    empty = replace(group.episodes[2], turns=())
    group = replace(group, episodes=(group.episodes[0], fault, empty))
    rewards = [*exact(True), Reward.unscorable("fault: engine"), Reward(0.0, {"exact": 0.0}, False)]
    with Run.create(tmp_path, make_recipe({"reward": {"functions": [{"name": "exact"}]}})) as run:
        run.commit_step(1, "grpo", [group], [rewards])
        changes = judge_again(run, run.recipe).changes
        lines = list(report(judge_again(run, run.recipe), str(run.path), 0))
    assert [change.verdict for change in changes] == [False, False, True]
    assert [change.size for change in changes] == [0.0, 0.0, np.inf]
    assert "0.5 → 1" in lines[1] and "1 → 2" in lines[1]  # the mean of {1, 0}, then of {1} alone; one more unscorable
    assert lines[3] == "1 of 3 verdicts changed: 1 to unscorable"
    assert lines[7].split()[:5] == ["3", "train/1/sums/1/2/0", "0", "→", "(no"]


def test_evaluations_are_judged_apart_from_training(text_run: Run) -> None:
    class Report:
        split = "validation"

        def to_json(self) -> dict:
            return {}

    with Run.open(text_run.path, write=True) as run:
        run.add_eval("grpo", 1, Report(), [text_group("Two")], [exact(True)])
        run.commit_step(2, "grpo", [text_group("Two", "Two", step=2)], [exact(False, False)])
    lines = rescore(text_run.path, width=0).splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["grpo", "5"], ["grpo", "validation"]]
    assert lines[2].split()[-2:] == ["–", "–"]  # one answer alone is no group
    assert "2 of 6 verdicts changed: 2 to success" in lines
    assert rescore(text_run.path, phase="validation", width=0).splitlines()[3] == "no verdict of 1 changed"
    assert rescore(text_run.path, phase="grpo", step=2, width=0).splitlines()[3] == "2 of 2 verdicts changed: 2 to success"


def test_a_length_controller_rises_as_it_would_have(tmp_path: Path) -> None:
    # Of 2 and 6 tokens the mean is 4 > 3, so the weight 0.4 becomes 0.44 for the second step; kimi pays ±½ of it.
    with Run.create(tmp_path, make_recipe({"reward": {"functions": [{"name": "exact"}]}})) as run:
        for step in (1, 2):
            group = text_group("ab", "Two   ", step=step)
            run.commit_step(step, "grpo", [group], [exact(False, True)])
        length = ["reward.length.form=kimi", "reward.length.weight=0.4", "reward.length.max_mean=3",
                  "reward.length.max_weight=1"]  # fmt: skip
        changes = judge_again(run, new_recipe(run.recipe, None, length)).changes
    assert [change.new.parts["length"] for change in changes] == pytest.approx([0.0, -0.2, 0.0, -0.22])


# ---- rankings --------------------------------------------------------------------------------------------------------


def change(old: float | None, new: float | None) -> Change:
    before, after = (Reward.unscorable("x") if total is None else Reward(total, {}, False) for total in (old, new))
    return Change(1, "e", ("grpo", ""), ("g",), before, after)


@pytest.mark.parametrize(("pairs", "moved"), [
    ([(0, 1), (1, 0)], True), ([(0, 5), (1, 6)], False), ([(0, 0), (0, 0.1)], True), ([(0, 0.2), (1, 0.2)], True),
    ([(0, None), (1, 0)], False), ([(0, 0.1 + 0.2), (0, 0.3)], False), ([(1, 1)], False), ([], False),
])  # fmt: skip
def test_a_ranking(pairs: list, moved: bool) -> None:
    assert reranked([change(*pair) for pair in pairs]) is moved


TOTALS = st.lists(st.integers(-9, 9), min_size=2, max_size=6)


@given(TOTALS, st.integers(1, 5), st.integers(-5, 5))
def test_more_of_the_same_moves_no_ranking_and_the_opposite_moves_each(totals: list, by: int, plus: int) -> None:
    assert not reranked([change(t, by * t + plus) for t in totals])
    assert reranked([change(t, -t) for t in totals]) == (len(set(totals)) > 1)
    assert constant([float(t) for t in totals]) == (len(set(totals)) == 1)


# ---- keeping ---------------------------------------------------------------------------------------------------------


def dump(path: Path) -> list[str]:
    """Every statement of the store but those of the tables for other verdicts."""
    with sqlite3.connect(path / "store.sqlite") as db:
        return [line for line in db.iterdump() if "rescore" not in line]


def test_write_keeps_both_and_touches_nothing(calc_run: Run, tmp_path: Path) -> None:
    before = dump(calc_run.path)
    new = written(tmp_path, "[reward]\nmilestones = {step = 0.1}\n")
    rescore(calc_run.path, new)
    with Run.open(calc_run.path) as run:
        assert run.rescores() == {} and run.rescored(1) == {}
    text = rescore(calc_run.path, new, write="steps")
    assert text.endswith("kept as 'steps' beside the run's own verdicts, which are as they were")
    assert dump(calc_run.path) == before
    with Run.open(calc_run.path) as run:
        assert '"milestones":{"step":0.1}' in run.rescores()["steps"]
        found = [run.rescored(row)["steps"] for row in (1, 2, 3)]
        assert [reward.total for reward in found] == pytest.approx([1.1, 0.1, 0.0])
        assert [stored.reward for stored in run.episodes()] == won(True, False, False)
    assert "    judged again as steps: success, reward 1.1 = outcome 1 + milestones 0.1" in list(replay(calc_run.path, "1"))


def test_a_name_is_given_once_and_goes_with_its_episodes(calc_run: Run) -> None:
    rescore(calc_run.path, write="same")
    for name, sentence in (("same", "there already"), ("", "must be a short plain name"), ("a\x1bb", "plain name")):
        with pytest.raises(RecipeError, match=sentence):
            rescore(calc_run.path, write=name)
    with Run.open(calc_run.path, write=True) as run:  # a step that is written again has verdicts of its own
        run.commit_step(1, "grpo", [calc_group()], [won(True, False, False)])
        assert run.rescored(1) == {}
        with pytest.raises(StoreError, match="holds scores named 'same' already"):
            run.add_rescore("same", "{}", {})


def test_a_run_that_is_being_written_is_read_but_not_written(calc_run: Run) -> None:
    with Run.open(calc_run.path, write=True):
        assert "no verdict of 3 changed" in rescore(calc_run.path)
        with pytest.raises(StoreError, match="is being written"):
            rescore(calc_run.path, write="late")


# ---- what cannot be done ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("toml", "overrides", "sentence"), [
    ("[tasks]\n", [], r"new\.toml has no \[reward\] section; give one, or a recipe$"),
    ("[reward\n", [], r"new\.toml is not valid TOML"),
    ("[reward]\noutcome = 0\n", [], r"^reward\.outcome = 0: .* \(new\.toml\)$"),
    ("[reward]\nmilestones = {stap = 0.1}\n", [], r"^reward\.milestones: .* no 'stap'; did you mean 'step'\?$"),
    (None, ["grpo.steps=3"], r"^override 'grpo\.steps=3': stored episodes can be given another reward, and nothing else; "),
    (None, ["reward"], r"^override 'reward' must look like section\.key=value"),
    (None, ["reward.milestones.step=-1"], r"^reward\.milestones\.step = -1: a milestone is progress"),
])  # fmt: skip
def test_a_reward_that_cannot_be_is_one_sentence(calc_run: Run, tmp_path: Path, toml, overrides, sentence) -> None:
    reward = None if toml is None else written(tmp_path, toml)
    with pytest.raises(RecipeError, match=sentence) as told:
        rescore(calc_run.path, reward, overrides)
    assert "\n" not in str(told.value)


def test_a_shaping_comes_with_its_credit(calc_run: Run, tmp_path: Path) -> None:
    shaped = '[reward]\nmilestones = {step = 0.1}\nmilestone_form = "potential"\n'
    with pytest.raises(RecipeError, match="potential shaping with `episode` credit has no effect"):
        rescore(calc_run.path, written(tmp_path, shaped))
    new = written(tmp_path, f'{shaped}[credit]\nrule = "turn"\n')
    assert "every reward and every verdict is as it was" in rescore(calc_run.path, new)  # Φ is no part of the total


def test_single_answers_have_no_milestones_and_need_functions(text_run: Run, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^reward\.milestones does nothing while env\.name is empty, for single answers"):
        rescore(text_run.path, None, ["reward.milestones.step=0.1"])
    with pytest.raises(RecipeError, match=r"^reward\.functions is empty"):
        rescore(text_run.path, written(tmp_path, "[reward]\nsuccess_at = 0.5\n"))


def test_columns_that_a_new_function_needs_must_be_there(tmp_path: Path) -> None:
    with Run.create(
        tmp_path, make_recipe({"reward": {"functions": [{"name": "regex", "params": {"pattern": "x"}}]}})
    ) as run:
        run.commit_step(1, "grpo", [text_group("x", task=Task("sums/1", "1+1="))], [exact(True)])
    with pytest.raises(RecipeError, match="needs a gold answer, but task sums/1 has none"):
        rescore(run.path, written(tmp_path, '[reward]\n[[reward.functions]]\nname = "numeric"\n'))


def test_states_of_another_version_are_not_judged_with_this_one(tmp_path: Path) -> None:
    with Run.create(tmp_path, make_recipe({"env": {"name": "calc", "max_turns": 12}})) as run:
        run.commit_step(1, "grpo", [calc_group(version="0")], [won(True, False, False)])
    with pytest.raises(DataError, match=f"was played in calc version 0, but this is calc version {SPEC.version}; judge"):
        rescore(run.path)


def test_nothing_to_judge_is_said(text_run: Run, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^--phase sft: no episode belongs to it; there are grpo$"):
        rescore(text_run.path, phase="sft")
    with pytest.raises(RecipeError, match=r"^--step 5: no episode is stored of it; there are steps 1 to 1$"):
        rescore(text_run.path, step=5)
    (tmp_path / "empty").mkdir()
    with Run.create(tmp_path / "empty", text_run.recipe) as run, pytest.raises(RecipeError, match="holds no episode yet"):
        rescore(run.path)
    with pytest.raises(StoreError, match="does not exist"):
        rescore(tmp_path / "nothing")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_line(calc_run: Run, capsys: pytest.CaptureFixture) -> None:
    assert main(["rescore", str(calc_run.path), "reward.milestones.step=0.1", "--write", "steps"]) == 0
    out = capsys.readouterr().out
    assert "ranking changed within 1 of 1 groups" in out and out.endswith("as they were\n")
    assert main(["rescore", str(calc_run.path), "--reward", "nowhere.toml"]) == 2
    assert capsys.readouterr().err.startswith("milepost: recipe nowhere.toml: No such file")


def test_it_loads_no_torch(calc_run: Run) -> None:
    code = (f"import sys; from milepost.cli import main; main(['rescore', {str(calc_run.path)!r}])\n"
            "print([m for m in ('torch', 'transformers') if m in sys.modules])")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_cost_of_nothing_has_no_sign():
    before, after = (
        Reward(1.0, {"outcome": 1.0, "cost/turns": -0.1}, True),
        Reward(1.0, {"outcome": 1.0, "cost/turns": -0.0}, True),
    )
    assert _parts(Change(1, "e", ("grpo", ""), ("g",), before, after)) == "cost/turns -0.1 → 0"
    assert _parts(Change(1, "e", ("grpo", ""), ("g",), won(True)[0], after)) == ""
