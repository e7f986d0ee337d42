"""`calc`: arithmetic with a calculator, 1 to 4 turns. The smallest environment with tools: for tests and for learning how.

    Start with 482. Times 377. Minus 905. Result?
    > calc("482*377")                   181714
    > calc("181714-905")                180809
    > answer(180809)                    ends

The numbers are too large to be guessed. The scripted gold works step by step; one call with the whole expression does too,
and costs less. An answer that was never computed is only right by luck.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TypedDict

from milepost.env import Cost, Environment, EnvSpec, Goal, Milestone, Observation, State, Tool
from milepost.streams import generator
from milepost.tools import Refused, ToolEnv, render_call
from milepost.types import DataError, RecipeError, Task

CALC = Tool("calc", {"expression": (str, True)}, "whole numbers, + - * and brackets")
ANSWER = Tool("answer", {"value": (int, True)}, "ends the task")
WORDS = {"*": "Times", "+": "Plus", "-": "Minus"}
MAX_CHARS, MAX_VALUE = 64, 10**17


class CalcRow(TypedDict):
    prompt: str
    numbers: list[int]
    ops: list[str]
    """Between the numbers: + - *, from left to right."""
    results: list[int]
    """After each operation; the last one is the answer."""
    gold: int
    num_steps: int


def generate(
    size: int, seed: int, *, min_steps: int = 1, max_steps: int = 3, digits: int = 3, style: str = "words"
) -> Iterator[CalcRow]:
    """`size` different tasks; row i depends on (seed, i, difficulty) and the rows before it alone.

    min_steps, max_steps: operations, 1 to 6. digits: of the numbers, 2 to 5; the first operation multiplies two of them.
    style: "words" ("Start with 12. Times 34. …"), "symbols" ("12*34-…") or "both". Raises RecipeError.
    """
    _check_difficulty(min_steps, max_steps, digits, style)
    if max_steps == 1 and digits == 2 and size > 4000:
        raise RecipeError(
            f"calc: size = {size} is too many for one step on 2 digits; ask for 4000, or raise max_steps or digits"
        )
    styles = ("words", "symbols") if style == "both" else (style,)
    seen: set[str] = set()
    for index in range(size):
        rng = generator(seed, f"calc/{index}")
        row: CalcRow | None = None
        while row is None or row["prompt"] in seen:
            num_steps = min_steps + int(rng.random() * (max_steps - min_steps + 1))
            row = _draw([float(x) for x in rng.random(2 * num_steps + 2)], num_steps, digits, styles)
        seen.add(row["prompt"])
        yield row


def _check_difficulty(min_steps: int, max_steps: int, digits: int, style: str) -> None:
    for name, value, low, high in (
        ("min_steps", min_steps, 1, 6),
        ("max_steps", max_steps, 1, 6),
        ("digits", digits, 2, 5),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise RecipeError(f"calc: {name} = {value!r} must be a whole number from {low} to {high}")
    if min_steps > max_steps:
        raise RecipeError(f"calc: min_steps = {min_steps} is above max_steps = {max_steps}; lower it or raise max_steps")
    if style not in ("words", "symbols", "both"):
        raise RecipeError(f'calc: style = {style!r} must be "words", "symbols" or "both"')


def _draw(draws: Sequence[float], num_steps: int, digits: int, styles: Sequence[str]) -> CalcRow | None:
    """A row from uniforms in [0, 1), or None if a result is no good: below 100, or among the numbers of the task."""
    low, span = 10 ** (digits - 1), 9 * 10 ** (digits - 1)
    numbers = [low + int(draw * span) for draw in draws[: num_steps + 1]]
    ops = ["*", *("+-*"[int(draw * 3)] for draw in draws[num_steps + 2 :])][:num_steps]
    # Later factors have one digit, so that results stay below 10^17.
    numbers[2:] = [2 + number % 8 if op == "*" else number for op, number in zip(ops[1:], numbers[2:])]
    results = numbers[:1]
    for op, number in zip(ops, numbers[1:]):
        results.append(_apply(op, results[-1], number))
    if min(results[1:]) < 100 or set(results[1:]) & set(numbers):
        return None  # a result that the prompt shows would make its milestone free
    style = styles[int(draws[num_steps + 1] * len(styles))]
    steps = "".join(f" {WORDS[op]} {number}." for op, number in zip(ops, numbers[1:]))
    prompt = f"Start with {numbers[0]}.{steps} Result?" if style == "words" else _in_symbols(numbers, ops) + "=?"
    return {"prompt": prompt, "numbers": numbers, "ops": ops, "results": results[1:], "gold": results[-1],
            "num_steps": num_steps}  # fmt: skip


def _in_symbols(numbers: Sequence[int], ops: Sequence[str]) -> str:
    """The expression that works from left to right: brackets where a sum is multiplied."""
    text, is_sum = str(numbers[0]), False
    for op, number in zip(ops, numbers[1:]):
        text = f"({text}){op}{number}" if op == "*" and is_sum else f"{text}{op}{number}"
        is_sum = op != "*"
    return text


class Calc(ToolEnv):
    """The task decides everything: the seed of `reset` is not needed."""

    tools = (CALC, ANSWER)
    answer: int | None

    def reset(self, task: Task, seed: int) -> Observation:
        if missing := [name for name in ("gold", "results") if name not in task.columns]:
            raise DataError(f"calc: task {task.key} has no column {missing[0]}; take rows from milepost.envs.calc:generate")
        self.num_calls, self.results, self.answer = 0, list[int](), None
        return super().reset(task, seed)

    def state(self) -> State:
        """results: what was computed so far, each value once, in order."""
        return {"results": list(self.results), "answer": self.answer, "num_calls": self.num_calls}

    def do_calc(self, expression: str) -> str:
        value = evaluate(expression)
        self.num_calls += 1
        if value not in self.results:
            self.results.append(value)
        return str(value)

    def do_answer(self, value: int) -> str:
        self.answer = value
        self.over = True
        return "done"


def evaluate(expression: str) -> int:
    """Whole numbers, + - * and brackets, by hand: nothing of the policy's is ever run. Raises Refused."""
    if len(expression) > MAX_CHARS:
        raise Refused(f"use at most {MAX_CHARS} characters a call")
    tokens = re.findall(r"\d+|\S", expression, re.ASCII)
    value, at = _sum(tokens, 0)
    if at < len(tokens):
        raise _unreadable()
    return value


def _sum(tokens: Sequence[str], at: int) -> tuple[int, int]:
    """(value, next token) of terms joined by + and -."""
    value, at = _product(tokens, at)
    while at < len(tokens) and tokens[at] in "+-":
        term, after = _product(tokens, at + 1)
        value, at = _apply(tokens[at], value, term), after
    return value, at


def _product(tokens: Sequence[str], at: int) -> tuple[int, int]:
    value, at = _factor(tokens, at)
    while at < len(tokens) and tokens[at] == "*":
        factor, at = _factor(tokens, at + 1)
        value = _apply("*", value, factor)
    return value, at


def _factor(tokens: Sequence[str], at: int) -> tuple[int, int]:
    token = tokens[at] if at < len(tokens) else ""
    if token.isdecimal() and token.isascii():
        return _apply("+", int(token), 0), at + 1
    if token == "-":
        value, after = _factor(tokens, at + 1)
        return -value, after
    if token == "(":
        value, after = _sum(tokens, at + 1)
        if tokens[after : after + 1] == [")"]:
            return value, after + 1
    raise _unreadable()


def _apply(op: str, left: int, right: int) -> int:
    value = left * right if op == "*" else left + right if op == "+" else left - right
    if abs(value) >= MAX_VALUE:
        raise Refused("the result is too large")
    return value


def _unreadable() -> Refused:
    return Refused('write whole numbers, + - * and brackets, such as "(12+3)*45"')


def _right(task: Task, start: State, now: State) -> bool:
    return now["answer"] is not None and now["answer"] == task.columns["gold"]


def _computed(wanted: Sequence[int], before: State, after: State) -> bool:
    return any(value in wanted and value not in before["results"] for value in after["results"])


STEP = Milestone("step", lambda task, before, after: _computed(task.columns["results"], before, after))
RESULT = Milestone("result", lambda task, before, after: _computed([task.columns["gold"]], before, after))
CALLS = Cost("calls", "calculator call", lambda task, states: float(states[-1]["num_calls"] - states[0]["num_calls"]))

_PATIENCE = 12


def _calc(expression: str) -> str:
    return render_call("calc", {"expression": expression}, tool=CALC)


def _answer(value: int) -> str:
    return render_call("answer", {"value": value}, tool=ANSWER)


def gold(task: Task, world: Environment) -> Iterator[str]:
    """One calculator call for each step, then the answer."""
    numbers, ops, results = (task.columns[name] for name in ("numbers", "ops", "results"))
    for left, op, right in zip([numbers[0], *results], ops, numbers[1:]):
        yield _calc(f"{left}{op}{right}")
    yield _answer(results[-1])


def _empty(task: Task, world: Environment) -> Iterator[str]:
    return repeat("", _PATIENCE)


def _random(task: Task, world: Environment) -> Iterator[str]:
    rng = generator(0, f"calc/random/{task.key}")
    for draw, other in rng.random((_PATIENCE, 2)):
        yield _calc(f"{int(draw * 90)}{'+-*'[int(other * 3)]}{int(other * 90)}")
    yield _answer(-int(rng.random() * 1000))  # never right: luck would make a check fail at random


def _claims(task: Task, world: Environment) -> Iterator[str]:
    """Knows the answer and only says it."""
    return repeat(f"Step 1 done. The answer is {task.columns['gold']}. Task complete: success!", _PATIENCE)


def _loops(task: Task, world: Environment) -> Iterator[str]:
    """Earns the first milestone, and asks for the same again."""
    return repeat(next(gold(task, world)), _PATIENCE)


def _hasty(task: Task, world: Environment) -> Iterator[str]:
    yield _answer(task.columns["numbers"][0])


SPEC = EnvSpec(
    name="calc",
    version="1",
    make=Calc,
    generate=generate,
    goal=Goal(_right, ends=False),
    tools=Calc.tools,
    milestones=(STEP, RESULT),
    costs=(CALLS,),
    gold=gold,
    known_bad={"empty": _empty, "random": _random, "claims success": _claims, "loops": _loops, "answers at once": _hasty},
    volatile=("num_calls",),
    system=f"Call {CALC.signature()}, then {ANSWER.signature()}. One call per line.",
    seeded=False,
)
