"""BFCL's conversations: judged as its own checker judges, dispatched without evaluating text, played through the tokens.

BFCL's checker runs the calls of these tests as text, by its own executor: they are its own ground truth, changed here.
"""

from __future__ import annotations

import ast
import decimal
import json
import random
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("bfcl_eval")

import mpmath
from foreign_worlds import check_tokens

from milepost.call_style import model_style
from milepost.env import fingerprint, state_key
from milepost.envs import bfcl, bfcl_apis
from milepost.envs.bfcl import SPEC, generate, passed, potential
from milepost.envs.bfcl_apis import VARIANTS, entries, listing, read_call, tools
from milepost.health.env_check import check_env
from milepost.hosts import Hosts
from milepost.launch import open_session
from milepost.policy import new_policy
from milepost.recipe import make_recipe
from milepost.reward_spec import RewardSpec, judge
from milepost.scripted import episode_of, play_script
from milepost.sections import EnvSection
from milepost.stages.pipeline import run_pipeline
from milepost.tools import parse, render_call, usage
from milepost.types import DataError, RecipeError, StopKind, Task
from milepost.world import World

APIS = "GorillaFileSystem,MathAPI,TicketAPI,MessageAPI,TwitterAPI"


def as_task(row):
    return Task(f"{row['variant']}/{row['number']}", row["prompt"], columns={k: v for k, v in row.items() if k != "prompt"})


def tasks_of(variant="base", **difficulty):
    return [as_task(row) for row in generate(difficulty.pop("size", 199), 0, variant=variant, **difficulty)]


def task_of(number, variant="base"):
    return as_task(bfcl._row(next(e for e in entries(variant) if e["number"] == number), "short"))


def solves(task, script):
    played = play_script(SPEC, task, script)
    return SPEC.goal.holds(task, played.start_state, played.final_state)


class Talk:
    """One conversation, spoken by hand."""

    def __init__(self, task, **columns):
        self.task = Task(task.key, task.prompt, columns={**task.columns, **columns})
        self.env = SPEC.make()
        self.first = self.env.reset(self.task, 0).messages[-1]["content"]

    def say(self, text):
        """(answers, number refused, over)"""
        seen = self.env.step(parse(text, SPEC.tools))
        return [message["content"] for message in seen.messages], seen.num_invalid, seen.ended

    @property
    def solved(self):
        return SPEC.goal.holds(self.task, {}, self.env.state())


# ---- tasks -----------------------------------------------------------------------------------------------------------


def test_there_are_199_tasks_in_each_of_four_variants_over_128_tools_of_8_apis():
    for variant in VARIANTS:
        assert [entry["number"] for entry in entries(variant)] == list(range(200))
    assert len(tools()) == 128 and len({bfcl_apis.described()[tool.name]["api"] for tool in tools()}) == 8
    rows = list(generate(199, 0))
    assert sorted(row["number"] for row in rows) == sorted(set(range(200)) - {173})
    assert all(json.loads(json.dumps(row)) == row for row in rows[:20])


def test_rows_depend_on_the_seed_and_parts_share_no_task():
    rows = list(generate(30, 3))
    assert rows[:10] == list(generate(10, 3)) and rows[:10] != list(generate(10, 4))
    parts = {part: [*bfcl._chosen("all", "all", part, "short")] for part in ("train", "test")}
    numbers = {part: {entry["number"] for entry in chosen} for part, chosen in parts.items()}
    assert numbers["test"] == set(range(3, 200, 4)) and not numbers["train"] & numbers["test"]
    assert {part: len(chosen) for part, chosen in parts.items()} == {"train": 596, "test": 200}
    assert {row["variant"] for row in generate(30, 0, variant="all")} == {*VARIANTS}


@pytest.mark.parametrize(
    ("difficulty", "message"),
    [
        ({"size": 200}, "size = 200, but there are 199 tasks of variant 'base'"),
        ({"variant": "composite"}, "variant = 'composite' must be one of base, miss_func"),
        ({"apis": "Twitter"}, "apis = 'Twitter' must be \"all\" or some of GorillaFileSystem"),
        ({"part": "dev"}, "part = 'dev'"),
        ({"docs": "none"}, "docs = 'none' must be one of short, full"),
    ],
)
def test_what_there_is_not_is_refused(difficulty, message):
    with pytest.raises(RecipeError, match=message):
        list(generate(difficulty.pop("size", 1), 0, **difficulty))


def test_a_task_of_another_environment_is_refused():
    with pytest.raises(DataError, match="no column classes"):
        SPEC.make().reset(Task("k", "2+2?"), 0)


def test_calls_of_the_ground_truth_are_read_as_syntax():
    assert read_call("sort('a.txt')") == {"name": "sort", "arguments": {"file_name": "a.txt"}}
    assert read_call("mean(numbers=[1, 2.5])") == {"name": "mean", "arguments": {"numbers": [1, 2.5]}}
    with pytest.raises(ValueError):
        read_call("cd(folder=__import__('os').getcwd())")


def test_tools_are_listed_with_what_their_parameters_may_be():
    assert listing(["cd"], full=False).startswith("cd(folder: str): Change the current working directory")
    short, full = (listing(["startEngine", "ls"], full=full).split("\n") for full in (False, True))
    assert short[0].startswith("startEngine(ignitionMode: str): ") and short[1].startswith(
        '  ignitionMode: ["START", "STOP"]'
    )
    assert len(short) == 3 and len(full) == 4 and full[1].startswith("  ignitionMode: The ignition mode")


# ---- a conversation by hand ------------------------------------------------------------------------------------------


def test_the_first_task_by_hand():
    talk = Talk(task_of(0))
    assert talk.first.startswith("Tools:\n") and talk.first.endswith("Make sure to create the directory")
    assert "\ncp(" not in talk.first and "\nmv(" in talk.first  # BFCL leaves cp out of this task
    assert talk.say('cd("document")') == (['{"current_working_directory": "document"}'], 0, False)
    answers, refused, over = talk.say('mkdir("temp")\nmv("final_report.pdf", "temp")')
    assert answers[1] == """{"result": "'final_report.pdf' moved to 'temp/final_report.pdf'"}""" and (refused, over) == (
        0,
        False,
    )
    assert passed(talk.task, talk.env.state()) == []
    answers, refused, over = talk.say("Done.")
    assert answers == [talk.task.columns["turns"][1]] and (refused, over) == (0, False)
    assert passed(talk.task, talk.env.state()) == [True] and potential(talk.task, {}, talk.env.state()) == 1 / 4
    talk.say('cd("temp")')
    talk.say('grep("final_report.pdf", "budget analysis")')
    talk.say("Done.")
    talk.say('sort("final_report.pdf")')
    talk.say("Done.")
    talk.say('cd("..")\nmv("previous_report.pdf", "temp")\ncd("temp")\ndiff("final_report.pdf", "previous_report.pdf")')
    assert not talk.solved
    assert talk.say("Done.") == ([], 0, True)
    assert talk.solved and potential(talk.task, {}, talk.env.state()) == 1


def test_another_way_counts_if_it_leads_to_the_same_facts_and_saw_the_same_answers():
    """cat is not asked for, a wrong name is tried first; but who does not grep has not seen what grep says."""
    script = ['cat("final_report.pdf")', 'cd("document")', 'mkdir("temp")', 'mv("final_report.pdf", "temp")', "Done.",
              'cd("temp")', "{grep}", "Done.", 'sort("final_report.pdf")', "Done.", 'cd("..")',
              'mv("previous_report.pdf", "temp")', 'cd("temp")', 'diff("final_report.pdf", "previous_report.pdf")',
              "Done."]  # fmt: skip
    for grep, right in (('grep("final_report.pdf", "budget analysis")', True), ('cat("final_report.pdf")', False)):
        talk = Talk(task_of(0))
        for text in script:
            talk.say(text.replace("{grep}", grep))
        assert talk.solved is right and talk.env.state()["num_errors"] == 1
        assert passed(talk.task, talk.env.state()) == [True, right, True, True]


def test_one_step_too_many_ends_the_conversation():
    talk = Talk(task_of(0))
    assert [talk.say("pwd()")[2] for _ in range(21)] == [False] * 20 + [True]
    assert talk.env.state()["given_up"] and not talk.solved
    refused = Talk(task_of(0))
    for _ in range(21):
        before = state_key(refused.env.state(), SPEC.volatile)
        assert refused.say("cp('a', 'b')")[1] == 1 and state_key(refused.env.state(), SPEC.volatile) == before
    assert refused.env.state()["given_up"]
    talk = Talk(task_of(0))
    for _ in range(20):
        talk.say("pwd()")
    assert not talk.say("Done.")[2] and not talk.say("pwd()")[2]  # counted anew for each turn of the user


def test_a_tool_that_is_held_out_is_refused_until_its_turn():
    talk = Talk(task_of(4, "miss_func"))
    assert talk.task.columns["held_out"] == {"sort": 2, "echo": 2}
    assert "\nsort(" not in talk.first
    (answer,), refused, _ = talk.say('sort("report.txt")')
    assert answer.startswith("error: sort is not allowed in this task") and refused == 1
    assert talk.env.state()["num_calls"] == 0
    talk.say("Done.")
    (asked,), _, _ = talk.say("I cannot sort it.")
    assert (
        asked.startswith("New tools:\n")
        and "\nsort(" in asked
        and asked.endswith("please do what was not possible before.")
    )
    (answer,), refused, _ = talk.say('sort("report.txt")')
    assert "sorted_content" in answer and refused == 0


def test_a_tool_that_the_ground_truth_needs_sooner_is_handed_out_sooner():
    assert task_of(49, "miss_func").columns["held_out"] == {"wc": 3, "tail": 1, "cat": 3}
    assert solves(task_of(49, "miss_func"), SPEC.gold)


def test_lists_go_through_in_every_format_and_forbidden_tools_do_not():
    task = next(t for t in tasks_of() if any(c["name"] == "post_tweet" for calls in t.columns["gold"] for c in calls))
    given = {"content": "a", "tags": ["#b"], "mentions": ["@c"]}
    answers = set()
    for format in ("terse", "hermes", "llama"):
        talk = Talk(task)
        talk.env.worlds.of["TwitterAPI"].authenticated = True
        seen = talk.env.step(parse(render_call("post_tweet", given, format), SPEC.tools, format))
        answers.add(seen.messages[0]["content"])
    assert len(answers) == 1 and json.loads(answers.pop())["tags"] == ["#b"]
    assert Talk(task, forbidden=["post_tweet"]).say(render_call("post_tweet", given))[1] == 1


# ---- what a policy may write -----------------------------------------------------------------------------------------


def test_text_is_never_evaluated(tmp_path):
    mark = tmp_path / "mark"
    evil = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    talk = Talk(task_of(0))
    for text in (f"cd({evil})", f'cd("{evil}")', f'mkdir("a"); {evil}', evil, "_load_scenario({})", "__init__()",
                 f"find(path={evil}, name=1)", f'echo("{evil}", "b")', 'cat("b")'):  # fmt: skip
        talk.env.over or talk.say(text)
    assert not mark.exists()
    for module in (bfcl, bfcl_apis):
        calls = [node.func.id for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]  # fmt: skip
        assert not {"eval", "exec", "compile", "__import__"} & {*calls}


def test_a_tree_without_end_is_refused_and_nothing_is_changed():
    task = next(t for t in tasks_of() if "GorillaFileSystem" in t.columns["classes"] and "cp" in t.columns["allowed"])
    talk = Talk(task)
    talk.say('mkdir("d")')
    before = fingerprint(talk.env.state()["worlds"])
    (answer,), refused, _ = talk.say('cp("d", "d")')  # it would hold itself
    assert answer == "error: that would make the file system too large" and refused == 1
    assert fingerprint(talk.env.state()["worlds"]) == before
    for i in range(40):  # doubled each time
        if talk.env.over:
            break
        talk.say(f'cp("d", "e{i}")\nmv("e{i}", "d")' if i % 19 != 18 else "Done.")
    assert fingerprint(talk.env.state())


def test_digits_are_bounded_and_precision_stays_where_it_was():
    task = next(t for t in tasks_of() if "MathAPI" in t.columns["classes"])
    digits, context = mpmath.mp.dps, decimal.getcontext().prec
    talk = Talk(task)
    assert talk.say("square_root(2, 100000000)")[1] == 1
    assert talk.say("logarithm(8, 2, 900)")[1] == 0 and "1.41421" in talk.say("square_root(2, 50)")[0][0]
    assert talk.say('mean(["a", "b"])')[0] == ['{"error": "All elements in the list must be numbers"}']
    assert (mpmath.mp.dps, decimal.getcontext().prec) == (digits, context)


def test_conversations_side_by_side_share_nothing():
    """Long contexts are lists of BFCL's modules, which its APIs write into."""
    task = next(t for t in tasks_of("long_context") if "TradingBot" in t.columns["classes"])
    one, other = Talk(task), Talk(task)
    before = fingerprint(other.env.state())
    for name in ("add_to_watchlist", "remove_stock_from_watchlist"):
        one.say(f'{name}("NVDA")')
    for stock in one.env.worlds.of["TradingBot"].stocks.values():
        stock["price"] = -1.0
    assert fingerprint(other.env.state()) == before == fingerprint(Talk(task).env.state())


def test_a_restored_conversation_has_the_same_future():
    for task in (*tasks_of(size=199)[::25], *tasks_of("miss_func")[::50]):
        talk, other = Talk(task), Talk(task_of(0))
        texts = list(SPEC.gold(task, talk.env))
        half = len(texts) // 2
        for text in texts[:half]:
            talk.say(text)
        saved, state = talk.env.snapshot(), fingerprint(talk.env.state())
        future = [(talk.say(text), fingerprint(talk.env.state())) for text in texts[half:]]
        for env in (talk.env, other.env):
            env.restore(saved)
            talk.env = env
            assert fingerprint(env.state()) == state and env.snapshot() == saved
            assert [(talk.say(text), fingerprint(talk.env.state())) for text in texts[half:]] == future


# ---- the ground truth, and what is none ------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_gold_solves_and_known_bad_scripts_do_not(variant):
    for task in tasks_of(variant)[::25]:
        assert solves(task, SPEC.gold)
        assert not [name for name, script in SPEC.known_bad.items() if solves(task, script)]


def test_milestones_pay_for_each_finished_turn_once():
    spec = RewardSpec(milestones={f"turn {i}": 0.1 for i in range(1, 9)}, outcome=1.0)
    task = task_of(0)
    gold, bad = (episode_of(play_script(SPEC, task, script), task)
                 for script in (SPEC.gold, SPEC.known_bad["all but the last request"]))  # fmt: skip
    assert judge(spec, SPEC, task, gold).total == pytest.approx(1.4)
    assert judge(spec, SPEC, task, bad).total == pytest.approx(0.3)


@pytest.mark.nightly
@pytest.mark.parametrize("variant", VARIANTS)
def test_gold_solves_every_task_and_known_bad_scripts_none(variant):
    tasks = tasks_of(variant)
    won = {
        name: sum(solves(task, script) for task in tasks) for name, script in {"gold": SPEC.gold, **SPEC.known_bad}.items()
    }
    assert won == {"gold": 199, **dict.fromkeys(SPEC.known_bad, 0)}


NAMES = count()


def verdict_of_bfcl(task, turns):
    """BFCL's own verdict on calls of turns; each call of the list is one step."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    columns = task.columns
    row = {"id": f"multi_turn_{columns['variant']}_{columns['number']}", "initial_config": json.loads(columns["config"]),
           "involved_classes": columns["classes"]}  # fmt: skip
    texts = [[[_python(call)] for call in calls] for calls in turns]
    truth = [[_python(call) for call in calls] for calls in columns["gold"]]
    return multi_turn_checker(texts, truth, row, f"multi_turn_{columns['variant']}", f"milepost{next(NAMES)}")["valid"]


def _python(call):
    return f"{call['name']}({', '.join(f'{key}={value!r}' for key, value in call['arguments'].items())})"


def our_verdict(task, turns):
    def script(task, env):
        for calls in turns:
            yield from bfcl._turn(calls)

    return solves(task, script)


def changed(turns, rng):
    """The ground truth with something left out, moved, doubled, swapped, of another value or added."""
    turns = [[{"name": c["name"], "arguments": dict(c["arguments"])} for c in calls] for calls in turns]
    full = [i for i, calls in enumerate(turns) if calls]
    i = rng.choice(full)
    at = rng.randrange(len(turns[i]))
    kind = rng.choice(("same", "left out", "doubled", "later", "earlier", "other value", "swapped", "added"))
    call = turns[i][at]
    if kind in ("left out", "later", "earlier"):
        del turns[i][at]
        to = i + {"left out": 0, "later": 1, "earlier": -1}[kind]
        if kind != "left out" and 0 <= to < len(turns):
            turns[to].insert(0 if to > i else len(turns[to]), call)
    elif kind == "doubled":
        turns[i].insert(at, call)
    elif kind == "swapped":
        rng.shuffle(turns[i])
    elif kind == "other value" and call["arguments"]:
        key = rng.choice(sorted(call["arguments"]))
        value = call["arguments"][key]
        turns[i][at] = {"name": call["name"], "arguments": {**call["arguments"], key: _other(value)}}
    elif kind == "added":
        turns[i].append(rng.choice([c for calls in turns for c in calls]))
    return turns


def _other(value):
    return (not value if isinstance(value, bool) else value + 1 if isinstance(value, (int, float)) else
            value[::-1] if isinstance(value, (str, list)) else {})  # fmt: skip


def agreement(tasks, num, seed):
    """How often the verdicts (BFCL's, ours) came up."""
    rng, found, odd = random.Random(seed), Counter(), []
    for task in tasks:
        for _ in range(num):
            turns = changed(task.columns["gold"], rng)
            both = verdict_of_bfcl(task, turns), our_verdict(task, turns)
            found[both] += 1
            if both[0] != both[1]:
                odd.append((task.key, turns, both))
    assert not odd, odd[:2]
    return found


def playable(tasks):
    """Without those whose held-out tools a changed ground truth might call too early: BFCL runs them, we refuse them."""
    return [task for task in tasks if not task.columns["held_out"]]


def test_verdicts_are_those_of_bfcl_s_own_checker():
    found = agreement(playable(tasks_of()[::16] + tasks_of("miss_param")[::40]), 4, 0)
    assert found[True, True] > 10 and found[False, False] > 10


@pytest.mark.nightly
def test_verdicts_are_those_of_bfcl_s_own_checker_on_all_tasks():
    found = agreement([task for variant in ("base", "miss_param", "long_context") for task in tasks_of(variant)], 4, 1)
    assert found[True, True] > 400 and found[False, False] > 400


# ---- the contract, and the tokens ------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_keeps_the_contract(variant):
    report = check_env("bfcl", num_tasks=12, num_episodes=40, difficulty={"variant": variant})
    assert report.ok, report.text()


def test_it_keeps_the_contract_on_a_few_tasks():
    report = check_env("bfcl", num_tasks=4, num_episodes=8, difficulty={"apis": APIS})
    assert report.ok, report.text()


@pytest.mark.parametrize("steps", [14, pytest.param(40, marks=pytest.mark.nightly)])
def test_fifty_episodes_of_a_new_policy(tmp_path, steps):
    """26 tasks, each played twice: what was sampled is what is stored."""
    tasks = tasks_of("all", size=70, apis=APIS)
    texts = [bfcl.SYSTEM, usage(SPEC.tools)]
    texts += [text for task in tasks for text in [task.prompt, *task.columns["turns"], *SPEC.gold(task, None)]]
    new_policy(tmp_path / "policy", texts=texts, tokens="words", layers=1, width=32, heads=2, context=8192)
    source = {"kind": "environment", "size": 70, "params": {"variant": "all", "apis": APIS}}
    recipe = make_recipe({
        "name": "sampled", "out": str(tmp_path / "runs"), "model": {"path": str(tmp_path / "policy"), "device": "cpu"},
        "env": {"name": "bfcl", "max_turns": 10, "max_invalid": 10},
        "tasks": {"format": "text", "validation": 4, "test": 26, "max_prompt_tokens": 4000, "sources": [source]},
        "rollout": {"max_new_tokens": 24, "prompts_per_step": 2, "group_size": 2},
        "sft": {"demonstrations": "gold", "num_demonstrations": 24, "steps": steps, "batch_size": 4, "lr": 0.03},
        "grpo": {"steps": 0}, "eval": {"test_samples": 1},
    })  # fmt: skip
    with open_session(recipe, quiet=True) as session:
        run_pipeline(session, stages=("sft",))
        groups = session.play(session.tasks.test, phase="check", step=0, num_samples=2)
        episodes = [episode for group in groups for episode in group.episodes]
        check_tokens(session, episodes)
    assert len(episodes) == 52 and not any(episode.stop.kind is StopKind.FAULT for episode in episodes)
    ends = [episode.facts["final"] for episode in episodes]
    for group in groups:
        for episode in group.episodes:
            right = passed(group.task, episode.facts["final"])
            assert len(right) == len(episode.facts["final"]["done"]) <= len(group.task.columns["turns"])
    assert sum(len(end["done"]) for end in ends) > 52  # the user went on
    assert steps < 40 or sum(end["num_calls"] for end in ends) > 5  # and some calls were carried out


def test_the_system_message_shows_no_tool_but_an_example():
    task = task_of(0)
    with Hosts(SPEC, 1) as hosts:
        for format in ("terse", "hermes"):
            world = World(SPEC, hosts, EnvSection(name="bfcl", tool_format=format), 2000, 0)
            system, first = world.opening(({"role": "user", "content": task.prompt},))
            assert system["content"].startswith(bfcl.SYSTEM) and len(system["content"]) < 400
            assert "write a call" in system["content"] and first["content"] == task.prompt
    with pytest.raises(RecipeError, match="would show all 128 tools of environment 'bfcl'"):
        model_style(None, SPEC, None)
