"""What a user can get wrong ends in one sentence that names the setting and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest
from small import SHORT_ROWS, as_toml, recipe_file, settings, write_rows
from torture import command, contents, differences

from milepost.cli import main
from milepost.store import Run

pytestmark = pytest.mark.usefixtures("one_thread")


def refused(capsys, *argv) -> str:
    """The one sentence the command ends with; it exited with 2 and showed no traceback."""
    code = main([str(argument) for argument in argv])
    errors = capsys.readouterr().err
    assert code == 2, errors
    assert "Traceback" not in errors
    said = [line for line in errors.splitlines() if line.startswith("milepost: ")]
    assert len(said) == 1 and errors.rstrip().endswith(said[0]), errors
    return said[0]


def nothing_left(tmp_path) -> bool:
    return not (tmp_path / "runs").exists()


RECIPES = {
    "wrong key": ({"rollout__group_sizes": 4}, [], ["rollout.group_sizes", "rollout.group_size?"]),
    "wrong section": ({"roll_out__group_size": 4}, [], ["roll_out"]),
    "wrong type": ({"grpo__steps": "many"}, [], ["grpo.steps", "'many'"]),
    "group of one": ({"rollout__group_size": 1, "model__path": "./nowhere"}, [], ["rollout.group_size = 1", "8"]),
    "no prompts in a step": ({"rollout__prompts_per_step": 0}, [], ["rollout.prompts_per_step = 0"]),
    "more mini-batches than prompts": ({"update__minibatches": 8}, [], ["update.minibatches = 8", "prompts_per_step = 4"]),
    "more prompts than tasks": ({"rollout__prompts_per_step": 500}, [], ["rollout.prompts_per_step = 500", "200"]),
    "options that do nothing together": ({"kl__estimator": "k3"}, [], ["kl.estimator", "kl.beta = 0"]),
    "loo with group scale": ({"credit__baseline": "loo", "credit__scale": "group"}, [], ["credit.baseline", "mean"]),
    "cut support": ({"rollout__top_p": 0.9}, [], ["rollout.top_p", "eval"]),
    "nothing to do": ({"grpo__steps": 0}, [], ["grpo.steps"]),
    "no such model": ({"model__path": "./nowhere"}, [], ["model.path = './nowhere'"]),
    "no such rows": ({"tasks__sources": [{"path": "nowhere.jsonl"}]}, [], ["tasks.sources[0].path = 'nowhere.jsonl'"]),
    "no such prompt column": ({"tasks__prompt_column": "query"}, [], ["tasks.prompt_column = 'query'", '"prompt"']),
    "no such answer column": ({"tasks__answer_column": "gold"}, [], ["gold", "answer"]),
    "too much held out": ({"tasks__test": 300}, [], ["tasks.test = 300"]),
    "prompts over the limit": ({"tasks__max_prompt_tokens": 2}, [], ["tasks.max_prompt_tokens", "2"]),
    "longer than the context": ({"rollout__max_new_tokens": 9000}, [], ["rollout.max_new_tokens = 9000", "2048"]),
    "misspelt reward": ({"reward__functions": [{"name": "exat"}]}, [], ["reward.functions.0.name", "exact"]),
    "no reward": ({"reward__functions": []}, [], ["reward.functions"]),
    "no such reward file": ({"reward__functions": [{"name": "no.py:judge"}]}, [], ["reward.functions.0.name", "no.py"]),
    "bad pattern": ({"reward__extract": "(("}, [], ["reward.extract"]),
    "bad demonstrations": ({"sft__steps": 2, "sft__demonstrations": "{answr}"}, [], ["sft.demonstrations", "answer"]),
    "no demonstrations": ({"sft__steps": 2, "sft__demonstrations": ""}, [], ["sft.demonstrations"]),
    "no such demonstrations": ({"sft__steps": 2, "sft__demonstrations": "no.jsonl"}, [], ["sft.demonstrations = 'no"]),
    "override of nothing": ({}, ["grpo.stpes=3"], ["grpo.stpes", "grpo.steps"]),
    "override without value": ({}, ["grpo.steps="], ["grpo.steps"]),
    "override of a value": ({}, ["seed.steps=3"], ["seed"]),
    "wrong canary": (
        {"reward__canary_good": "So {answer}."},
        [],
        ["reward.canary_good with the task's own answer, 'So ", "set reward.canary_good to a completion that [reward]"],
    ),
    "data set that is not there": (
        {"tasks__sources": [{"kind": "datasets", "path": "data/rows.parquet"}]},
        [],
        ["tasks.sources[0].path = 'data/rows.parquet'", "no such file or folder"],
    ),
    "unknown character in a demonstration": (
        {"sft__steps": 2, "sft__demonstrations": "It's {answer}"},
        [],
        ["sft.demonstrations: task ", "of 'rows'", "does not know 'I' (U+0049)"],
    ),
    "bad name": ({"name": "a/b"}, [], ["name = 'a/b'"]),
}  # fmt: skip


@pytest.mark.parametrize("case", RECIPES)
def test_a_wrong_recipe_is_refused_in_one_sentence(tmp_path, warm, capsys, monkeypatch, case):
    changes, overrides, named = RECIPES[case]
    monkeypatch.chdir(tmp_path)
    recipe = recipe_file(tmp_path, warm, SHORT_ROWS, **{"grpo__steps": 2, **changes})
    said = refused(capsys, "run", recipe, *overrides)
    assert all(name in said for name in named), said
    assert nothing_left(tmp_path)


REWARDS = {
    "no such function": ("def other(completions): return [0.0]\n", ["'judge'", "other"]),
    "not Python": ("def judge(completions:\n", ["judge.py"]),
    "asks for a column that is not there": (
        "def judge(completions, unit_tests): return [0.0] * len(completions)\n",
        ["'unit_tests'", "answer"],
    ),
    "takes no completions": ("def judge(answers): return [0.0]\n", ["completions"]),
    "one value for all": ("def judge(completions, **columns): return [1.0]\n", ["expected 2, got 1", "judge"]),
    "texts": ("def judge(completions, **columns): return ['good'] * len(completions)\n", ["judge"]),
}


@pytest.mark.parametrize("case", REWARDS)
def test_a_wrong_reward_function_is_refused_before_the_model(tmp_path, warm, capsys, case):
    """cases D32, J6: by name, with what it has and what there is."""
    code, named = REWARDS[case]
    (tmp_path / "judge.py").write_text(code)
    functions = [{"name": f"{tmp_path / 'judge.py'}:judge"}]
    recipe = recipe_file(tmp_path, warm, SHORT_ROWS, grpo__steps=2, reward__functions=functions)
    said = refused(capsys, "run", recipe)
    assert all(name in said for name in named), said
    assert nothing_left(tmp_path)


ROWS = {
    "no rows": ("", ["no usable task"]),
    "one JSON array": ("[1, 2]\n", ["one JSON array", "one object per line"]),
    "unknown character": (
        '{"prompt": "ba>", "answer": "ab"}\n{"prompt": "bä>", "answer": "ab"}\n',
        ["bad line 2: the tokenizer does not know 'ä' (U+00E4)"],
    ),
    "only endless prompts": (
        json.dumps({"prompt": "ab" * 1_000_000, "answer": "ab"}) + "\n",
        ["no usable task", "1 × over-long: bad line 1 (at least 8192 tokens, limit 512)", "tasks.max_prompt_tokens = 512"],
    ),
    "only empty prompts": ('{"prompt": "", "answer": "1"}\n' * 3, ["no usable task", "empty prompt"]),
    "no answer": ('{"prompt": "ba>"}\n', ["answer", "prompt"]),
    "one prompt in two splits": (
        '{"prompt": "ba>", "answer": "ab", "split": "test"}\n{"prompt": "ba>", "answer": "ab", "split": "train"}\n',
        ["two splits", "line 2"],
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_unusable_rows_are_refused_in_one_sentence(tmp_path, warm, capsys, case):
    text, named = ROWS[case]
    (tmp_path / "bad.jsonl").write_text(text)
    sources = [{"path": str(tmp_path / "bad.jsonl")}]
    recipe = recipe_file(tmp_path, warm, SHORT_ROWS, grpo__steps=2, tasks__sources=sources, tasks__validation=0,
                         tasks__test=0)  # fmt: skip
    said = refused(capsys, "run", recipe)
    assert all(name in said for name in named), said
    assert nothing_left(tmp_path)


def test_a_recipe_that_cannot_be_read(tmp_path, capsys):
    assert "nowhere.toml" in refused(capsys, "run", tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("[grpo\nsteps = 3\n")
    said = refused(capsys, "run", tmp_path / "bad.toml")
    assert "bad.toml is not valid TOML" in said and "line 1" in said
    assert "is a directory" in refused(capsys, "run", tmp_path).lower()


def test_a_folder_that_is_no_run(tmp_path, capsys):
    for name in ("resume", "show", "report"):
        assert "is not a run" in refused(capsys, name, tmp_path)
        assert "does not exist" in refused(capsys, name, tmp_path / "nowhere")


def test_a_place_that_cannot_hold_runs(tmp_path, warm, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "file2").symlink_to(tmp_path / "file")
    for out, says in ((tmp_path / "file", "file is not a folder"), (tmp_path / "file2/runs", "file2 is not a folder"),
                      ("", "names no folder")):  # fmt: skip
        recipe = recipe_file(tmp_path, warm, SHORT_ROWS, grpo__steps=2, out=str(out), model__path="./nowhere")
        said = refused(capsys, "run", recipe)  # before the model, which is not there
        assert f'out = "{out}"' in said and says in said and '"runs"' in said


def test_a_seed_that_no_generator_takes(tmp_path, capsys):
    for seed in (10**30, -1):
        said = refused(capsys, "policy", "new", tmp_path / "policy", "--seed", seed)
        assert f"seed = {seed} must be" in said and "0 works" in said
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_a_run_leaves_none(tmp_path, warm):
    """The disk is full from the start: one sentence, exit code 2, no half-made run."""
    recipe, log = recipe_file(tmp_path, warm, SHORT_ROWS, grpo__steps=2), tmp_path / "log"
    assert command(["run", str(recipe)], log, file_bytes=16 << 10) == 2, log.read_text()
    assert said(log).startswith("milepost: ") and str(tmp_path / "runs/run") in said(log)
    assert list((tmp_path / "runs").iterdir()) == []


def said(log):
    text = log.read_text()
    assert "Traceback" not in text
    return text.rstrip().splitlines()[-1]


def test_a_disk_that_fills_up_loses_nothing(tmp_path, warm):
    """case G10: the disk takes no more while training; with room again the run goes on as if nothing had been."""
    changes = {"grpo__steps": 8, "eval__every": 2, "tasks__test": 0}
    for name in ("whole", "full"):
        recipe_file(tmp_path / name, warm, SHORT_ROWS, **changes)
    assert command(["run", str(tmp_path / "whole/recipe.toml")], tmp_path / "whole.log") == 0
    run, log = tmp_path / "full/runs/run", tmp_path / "full.log"
    size = max(file.stat().st_size for file in (tmp_path / "whole/runs/run").glob("store.sqlite*"))
    assert command(["run", str(tmp_path / "full/recipe.toml")], log, file_bytes=size * 2 // 3) == 2, log.read_text()
    assert f"`milepost resume {run}`" in said(log)
    with Run.open(run) as opened:
        assert opened.last_step("grpo") < 8
    assert command(["resume", str(run)], log) == 0, log.read_text()
    assert differences(contents(tmp_path / "whole/runs/run"), contents(run)) == []


def test_a_checkpoint_that_does_not_fit_keeps_the_older_one(tmp_path, warm):
    recipe, log = recipe_file(tmp_path, warm, SHORT_ROWS, grpo__steps=2, tasks__test=0), tmp_path / "log"
    largest = (warm / "model.safetensors").stat().st_size
    assert command(["run", str(recipe)], log, file_bytes=largest + 1000) == 2, log.read_text()  # the moments are twice that
    assert "checkpoint" in said(log) and "free" in said(log)
    assert not list((tmp_path / "runs/run/checkpoints").rglob(".step*"))


def cpu_seconds(*argv) -> tuple[float, list[str]]:
    """(CPU-seconds of a python process with these arguments, heavy modules that it loaded)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-X", "importtime", *argv], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = sorted(loaded & {"torch", "transformers", "pydantic", "numpy", "rich", "jinja2", "reasoning_gym"})
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, heavy


def test_importing_milepost_and_its_help_are_instant():
    """Under half a second of CPU on a quiet machine; asserted with room for a busy one."""
    seconds, heavy = cpu_seconds("-c", "import milepost")
    assert heavy == [] and seconds < 1
    seconds, heavy = cpu_seconds("-m", "milepost.cli", "--help")
    assert not {"torch", "transformers", "reasoning_gym"} & set(heavy) and seconds < 2


@pytest.mark.parametrize("module", ["milepost", "milepost.cli"])
def test_the_real_command_line_says_it_too(tmp_path, warm, module):
    """One of the cases above through the interpreter: nothing but the sentence on standard error."""
    path = tmp_path / "recipe.toml"
    path.write_text(as_toml(settings(tmp_path, warm, grpo__stepps=2)))
    done = subprocess.run([sys.executable, "-m", module, "run", str(path)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONWARNINGS": "ignore"})  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    line = path.read_text().splitlines().index("stepps = 2") + 1
    assert done.stderr == f"milepost: grpo.stepps is not a setting; did you mean grpo.steps? (recipe.toml, line {line})\n"


def test_a_second_ctrl_c_while_the_process_ends_shows_no_traceback():
    """Finalizers of libraries run after the command is over; this one takes as long as it takes to press Ctrl-C again."""
    code = """
import atexit, os, signal, time
from milepost import cli

def slow():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)

def stopped(args):
    raise KeyboardInterrupt

atexit.register(slow)
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.run_info = stopped
raise SystemExit(cli.main(["info"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_unknown_commands_and_flags_exit_with_2(capsys):
    for argv in (["trian"], ["run"], ["eval", "x", "--splitt", "test"]):
        with pytest.raises(SystemExit) as stopped:
            main(argv)
        assert stopped.value.code == 2
        assert "usage" in capsys.readouterr().err


def test_rows_that_are_partly_bad_are_named_by_line_and_the_rest_is_used(tmp_path, warm, capsys):
    """Not an error: the load report says which lines, and why."""
    rows = write_rows(tmp_path / "rows.jsonl", SHORT_ROWS)
    with open(rows, "a") as file:
        file.write(json.dumps({"prompt": " ", "answer": "x"}) + "\nnot JSON\n")
    recipe = recipe_file(tmp_path / "run", warm, SHORT_ROWS, grpo__steps=1, tasks__test=0,
                         tasks__sources=[{"path": str(rows)}])  # fmt: skip
    assert main(["train", str(recipe)]) == 0
    errors = capsys.readouterr().err
    assert f"empty prompt: rows line {len(SHORT_ROWS) + 1}" in errors
    assert f"not JSON: rows line {len(SHORT_ROWS) + 2}" in errors
