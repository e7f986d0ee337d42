"""Scripts are played as episodes are: the same in threads and in processes, and what fails there is one sentence."""

from __future__ import annotations

import os

import counter_env
import pytest
import small_env

from milepost.cli import main
from milepost.env import EnvSpec
from milepost.hosts import Hosts
from milepost.kept import EndedProcess, refused_exits
from milepost.scripted import Named, Texts, Unplayable, demonstrator, play_script, problems
from milepost.types import RecipeError, Task

COUNT = counter_env.TASK
LETTERS = Task("k", "a", columns={"letters": "abc"})
SCRIPTS = {
    "gold": (counter_env.SPEC.gold, ["+", "+", "save", "done"]),
    "known bad": (counter_env.SPEC.known_bad["loops over a milestone"], ["+", "-"] * 6),
    "texts": (Texts(("+", "", "save")), ["+", "", "save"]),
}


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_the_same_in_a_process_of_its_own(name):
    script, texts = SCRIPTS[name]
    here = play_script(counter_env.SPEC, COUNT, script)
    with Hosts("counter_env:SPEC", 1, isolated=True) as hosts:
        there = play_script(counter_env.SPEC, COUNT, script, hosts=hosts)
        short = play_script(counter_env.SPEC, COUNT, script, max_turns=2, hosts=hosts)
    assert [step.text for step in here.steps] == texts
    assert there == here and short.steps == here.steps[:2]


def test_a_script_of_ones_own_is_found_by_its_name():
    script = demonstrator("small_env:hasty", small_env.SPEC)
    assert script == Named("small_env:hasty", small_env.hasty)
    with Hosts("small_env:SPEC", 1, isolated=True) as hosts:
        there = play_script(small_env.SPEC, LETTERS, script, hosts=hosts)
        with pytest.raises(RecipeError, match="cannot be played in another process; name it module:function"):
            play_script(small_env.SPEC, LETTERS, small_env.hasty, hosts=hosts)
    assert [step.text for step in there.steps] == list(small_env.hasty(LETTERS, None))


@pytest.mark.parametrize(
    ("world", "detail"),
    [
        ("HANGING", "step: no answer within 0.3 s"),
        ("BROKEN", "step: OSError: the tool broke"),
        ("ENDING", "step: the process ended (exit status 0)"),
    ],
)
def test_what_fails_is_told(world, detail):
    spec: EnvSpec = getattr(small_env, world)
    with Hosts(f"small_env:{world}", 1, isolated=True, step_seconds=0.3) as hosts:
        with pytest.raises(Unplayable) as error:
            play_script(spec, LETTERS, spec.gold, hosts=hosts)
        assert error.value.detail == detail
        (sentence,) = problems(spec, [LETTERS], hosts)
    assert sentence.startswith(f"environment 'next': the gold policy at task k ended in {detail}; `milepost check env`")


def test_an_environment_that_cannot_be_closed_is_told_before_training():
    with Hosts("small_env:STAYING", 1, isolated=True, step_seconds=0.3) as hosts:
        (sentence,) = problems(small_env.STAYING, [LETTERS], hosts)
    assert "the gold policy at task k ended in close: no answer within 0.3 s" in sentence


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        (lambda task, env: iter([env.nothing]), "script: AttributeError: 'Next' object has no attribute 'nothing'"),
        (lambda task, env: iter(["a", 7]), "script: it yielded int, not text"),
        (lambda task, env: None, "script: TypeError: 'NoneType' object is not iterable"),
    ],
)
def test_a_script_that_is_none_is_told(script, detail):
    with pytest.raises(Unplayable) as error:
        play_script(small_env.SPEC, LETTERS, script)
    assert error.value.detail == detail


def test_what_would_end_milepost_raises_and_forks_end_as_they_like():
    usual = os._exit
    with refused_exits():
        with pytest.raises(EndedProcess, match=r"os\._exit\(3\) was called"):
            os._exit(3)
        if (pid := os.fork()) == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        with pytest.raises(Unplayable, match=r"step: milepost\.kept\.EndedProcess|EndedProcess: os\._exit\(0\)"):
            play_script(small_env.ENDING, LETTERS, small_env.gold)  # in a thread of this process
    assert os._exit is usual


@pytest.mark.parametrize(("named", "said"), [("EXITING", "os._exit(0) was called"), ("LEAVING", "SystemExit")])
def test_a_generator_that_ends_the_process_is_one_sentence(tmp_path, capsys, named, said):
    (tmp_path / "r.toml").write_text(
        f'[env]\nname = "small_env:{named}"\n[[tasks.sources]]\nkind = "environment"\nsize = 9\n'
    )
    assert main(["check", "reward", str(tmp_path / "r.toml")]) == 2
    told = capsys.readouterr().err
    assert said in told and "generate(" in told and told.count("\n") == 1
