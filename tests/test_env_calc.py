"""Arithmetic with a calculator: tasks, tools, what counts, and scripts that succeed and that do not."""

import json
import random
import re
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.env import Environment, EnvSpec, canonical, fingerprint, state_key
from milepost.envs.calc import MAX_VALUE, SPEC, evaluate, generate
from milepost.envs.find import SHIPPED, find_env
from milepost.tools import Refused, parse
from milepost.types import DataError, RecipeError, Task

ROW = {"prompt": "Start with 482. Times 377. Minus 905. Result?", "numbers": [482, 377, 905], "ops": ["*", "-"],
       "results": [181714, 180809], "gold": 180809, "num_steps": 2}  # fmt: skip
TASK = Task("k", ROW["prompt"], columns={key: value for key, value in ROW.items() if key != "prompt"})


def started(task=TASK, seed=0):
    env = SPEC.make()
    env.reset(task, seed)
    return env


def play(task, script, limit=40):
    """(environment, states, observations) of a scripted policy."""
    env = started(task)
    states, seen = [env.state()], []
    for text in islice(script(task, env), limit):
        seen.append(env.step(parse(text, SPEC.tools)))
        states.append(env.state())
        if seen[-1].ended:
            break
    return env, states, seen


def succeeds(task, states):
    return SPEC.goal.holds(task, states[0], states[-1])


def task_of(row):
    return Task("k", row["prompt"], columns={key: value for key, value in row.items() if key != "prompt"})


def reached(task, states):
    """Names of the milestones that some step reached, in order."""
    pairs = list(pairwise(states))
    return [m.name for m in SPEC.milestones if any(m.reached(task, before, after) for before, after in pairs)]


def test_an_episode_by_hand():
    env = SPEC.make()
    assert isinstance(env, Environment)
    assert env.reset(TASK, 0).messages == ({"role": "user", "content": ROW["prompt"]},)
    assert env.state() == {"results": [], "answer": None, "num_calls": 0}
    for text, content in [
        ('calc("482*377")', "181714"),
        ("So\ncalc('181714-905')", "180809"),
        ('calc("482*377")', "181714"),
    ]:
        seen = env.step(parse(text, SPEC.tools))
        assert [m["content"] for m in seen.messages] == [content] and not seen.ended and not seen.num_invalid
    before = env.state()
    assert before == {"results": [181714, 180809], "answer": None, "num_calls": 3}  # 482 × 377 = 181,714; − 905 = 180,809
    assert not SPEC.goal.holds(TASK, {}, before)
    assert env.step(parse("answer(180809)", SPEC.tools)).ended
    assert SPEC.goal.holds(TASK, {}, env.state()) and before["answer"] is None
    assert SPEC.costs[0].amount(TASK, [{"num_calls": 0}, before]) == 3.0


def test_mistakes_are_answered_and_change_nothing():
    env = started()
    seen = env.step(parse('calc("2/3")\ncalc("1" + "1")\nanswer("180809")\nanswer(1.5)', SPEC.tools))
    assert seen.num_invalid == 4 and not seen.ended and env.state() == {"results": [], "answer": None, "num_calls": 0}
    assert seen.messages[0]["content"] == 'error: write whole numbers, + - * and brackets, such as "(12+3)*45"'


def test_the_same_results_are_the_same_state():
    once, thrice = started(), started()
    once.step(parse('calc("1+1")', SPEC.tools))
    for _ in range(3):
        thrice.step(parse('calc("1+1")', SPEC.tools))
    assert state_key(once.state(), SPEC.volatile) == state_key(thrice.state(), SPEC.volatile)
    assert fingerprint(once.state()) != fingerprint(thrice.state())


@pytest.mark.parametrize(
    ("expression", "value"),
    [("12", 12), ("2+3*4", 14), ("(2+3)*4", 20), ("10-4-3", 3), (" 7 * -2 ", -14), ("--3", 3), ("-(1-5)*2", 8),
     ("((((7))))", 7), ("007", 7), ("(" * 31 + "1" + ")" * 31, 1)],
)  # fmt: skip
def test_evaluate(expression, value):
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "says"),
    [(text, "write whole numbers")
     for text in ("", "2/3", "2**3", "1.5", "1 2", "(1", "1)", "()", "a", "+1", "2+", "٣", "__import__('os')")]
    + [("9" * 64, "too large"), ("99999999999*99999999999", "too large"), ("1+" * 40 + "1", "at most 64 characters")],
)  # fmt: skip
def test_evaluate_refuses(expression, says):
    with pytest.raises(Refused, match=says):
        evaluate(expression)


@given(st.text("0123456789+-*() /.a", max_size=30))
def test_evaluate_agrees_with_python(text):
    try:
        value = evaluate(text)
    except Refused:
        return
    assert value == eval(re.sub(r"\b0+(?=\d)", "", text)) and abs(value) < MAX_VALUE


@pytest.mark.parametrize(
    "difficulty", [{}, {"style": "both", "max_steps": 6}, {"style": "symbols", "digits": 5, "min_steps": 6, "max_steps": 6}]
)
def test_rows_are_right(difficulty):
    rows = list(generate(60, 7, **difficulty))
    assert len({row["prompt"] for row in rows}) == 60
    for row in rows:
        value = row["numbers"][0]
        for op, number, result in zip(row["ops"], row["numbers"][1:], row["results"]):
            value = {"*": value * number, "+": value + number, "-": value - number}[op]
            assert value == result and result not in row["numbers"]
        assert row["gold"] == value and str(value) not in row["prompt"] and 100 <= value < MAX_VALUE
        assert row["num_steps"] == len(row["ops"]) == len(row["numbers"]) - 1
        if row["prompt"].endswith("=?"):
            assert eval(row["prompt"].removesuffix("=?")) == value
        else:
            assert [int(n) for n in re.findall(r"\d+", row["prompt"])] == row["numbers"]
        json.dumps(row)


def test_rows_depend_on_seed_and_place_alone():
    state = random.getstate()
    rows = list(generate(20, 3))
    assert list(generate(30, 3))[:20] == rows and list(generate(20, 4)) != rows and random.getstate() == state
    assert {row["num_steps"] for row in generate(60, 3)} == {1, 2, 3}
    assert {row["num_steps"] for row in generate(20, 3, min_steps=2, max_steps=2)} == {2}


def test_prompts_are_short():
    # Words, marks and single digits: at least as many pieces as the default model's tokenizer makes (29 and 19 at most).
    pieces = [
        len(re.findall(r"[A-Za-z]+|\d|[^\w\s]", text)) for text in (SPEC.system, *(r["prompt"] for r in generate(200, 1)))
    ]
    assert pieces[0] + max(pieces[1:]) < 60


@pytest.mark.parametrize(
    ("difficulty", "says"),
    [
        ({"min_steps": 0}, "calc: min_steps = 0 must be a whole number from 1 to 6"),
        ({"max_steps": True}, "calc: max_steps = True must"),
        ({"digits": 6}, "calc: digits = 6 must be a whole number from 2 to 5"),
        ({"min_steps": 3, "max_steps": 2}, "min_steps = 3 is above max_steps = 2"),
        ({"style": "prose"}, "style = 'prose' must be \"words\""),
        ({"max_steps": 1, "digits": 2, "size": 4001}, "size = 4001 is too many"),
    ],
)
def test_difficulty_is_checked(difficulty, says):
    with pytest.raises(RecipeError) as error:
        next(generate(difficulty.pop("size", 1), 0, **difficulty))
    assert says in str(error.value)


def test_rows_of_something_else_are_refused():
    with pytest.raises(DataError, match="has no column gold"):
        started(Task("k", "hello"))


def test_gold_succeeds_and_pays_every_milestone():
    for row in generate(60, 5, style="both", max_steps=3):
        task = task_of(row)
        _, states, seen = play(task, SPEC.gold)
        assert succeeds(task, states) and seen[-1].ended and len(seen) == row["num_steps"] + 1 <= 4
        assert reached(task, states) == ["step", "result"] and not any(o.num_invalid for o in seen)
        assert SPEC.costs[0].amount(task, states) == row["num_steps"]


def test_one_call_with_the_whole_expression_does_too():
    env, states, _ = play(TASK, lambda task, env: iter(['calc("482*377-905")\nanswer(180809)']))
    assert succeeds(TASK, states) and reached(TASK, states) == ["step", "result"] and env.over


@pytest.mark.parametrize("name", list(SPEC.known_bad))
def test_known_bad_policies_fail(name):
    for row in generate(20, 5):
        task = task_of(row)
        _, states, seen = play(task, SPEC.known_bad[name])
        assert seen and not succeeds(task, states)
        assert reached(task, states) == (
            [] if name != "loops" else ["step"] if row["num_steps"] > 1 else ["step", "result"]
        )
        if name in ("empty", "claims success"):
            assert all(o.num_invalid == 1 for o in seen) and states[-1] == states[0]


def test_numbers_of_the_prompt_are_no_progress():
    _, states, _ = play(TASK, lambda task, env: (f'calc("{n}")' for n in ROW["numbers"]))
    assert states[-1]["results"] == [482, 377, 905] and reached(TASK, states) == []


def test_milestones_are_transitions():
    step = SPEC.milestones[0]
    none, first = {"results": []}, {"results": [181714]}
    assert step.reached(TASK, none, first) and not step.reached(TASK, first, first)
    assert step.reached(TASK, first, {"results": [181714, 180809]})  # the tally pays it once


def test_a_forbidden_calculator_is_refused():
    env = started(Task("k", TASK.prompt, columns={**TASK.columns, "forbidden": ["calc"]}))
    seen = env.step(parse('calc("1+1")', SPEC.tools))
    assert (
        seen.messages[0]["content"] == "error: calc is not allowed in this task; use answer" and not env.state()["results"]
    )


def test_instances_are_apart_and_a_reset_forgets():
    one, other = started(), started()
    one.step(parse('calc("1+1")\nanswer(2)', SPEC.tools))
    assert other.state() == started(seed=9).state() != one.state()
    one.reset(TASK, 0)
    assert canonical(one.state()) == canonical(other.state()) and not one.over


# ---- by name ----


def test_environments_are_found_by_name(tmp_path):
    assert find_env("calc") is SPEC and "calc" in SHIPPED
    assert find_env("milepost.envs.calc:SPEC") is SPEC
    file = tmp_path / "mine.py"
    file.write_text(
        "from milepost.envs.calc import SPEC\nimport dataclasses\nMINE = dataclasses.replace(SPEC, name='mine')\n"
    )
    found = find_env(f"{file}:MINE")
    assert isinstance(found, EnvSpec) and found.name == "mine"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        # case E12
        ("clac", "envs.name = 'clac' is no environment; did you mean 'calc'? there are calc, desk, maze, repair, "),
        ("boot", "or name your own as module:object or file.py:object"),
        ("Maze", "did you mean 'maze'?"),
        ("chess", "envs.name = 'chess' is no environment; there are calc, desk, maze, repair"),
        ("milepost.envs.calc:Calc", "milepost.envs.calc has no EnvSpec 'Calc'; it has SPEC"),
        ("nothing_here.py:SPEC", "nothing_here.py cannot be imported"),
        (":SPEC", "must look like module:EnvSpec or file.py:EnvSpec"),
    ],
)
def test_unknown_environments_are_refused(name, says):
    with pytest.raises(RecipeError) as error:
        find_env(name, "envs.name")
    assert says in str(error.value)
