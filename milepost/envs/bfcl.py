"""`bfcl`: the multi-turn tasks of the Berkeley Function Calling Leaderboard, played over stateful APIs. Torch-free.

    Tools: … Move 'final_report.pdf' within document directory …     the first message
    > cd("document")                                                 {"current_working_directory": "document"}
    > mkdir("temp")                                                  None
    > mv("final_report.pdf", "temp")                                 {"result": "'final_report.pdf' moved to …"}
    > Done.                                                          the user's next request
    …

A reply without a call ends the user's turn. What counts is what BFCL counts: after each turn the facts of every API are
those that the ground truth leaves, and all answers that the ground truth gets in it were seen by then. Data and answers
come with the wheel `bfcl-eval`, which is installed without its dependencies.
"""

from __future__ import annotations

import importlib.metadata
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import Parameter, Signature
from itertools import repeat, takewhile
from typing import Any

from milepost.env import Action, Cost, Environment, EnvSpec, Goal, Milestone, Observation, State, Tool, canonical
from milepost.envs.bfcl_apis import MODULES, VARIANTS, Entry, Worlds, by_name, digest, entries, listing, tools
from milepost.streams import shuffled
from milepost.tools import ToolEnv, check_call, permitted, render_call
from milepost.types import DataError, RecipeError, Task

SYSTEM = "Do what the user asks for with the tools. A reply without a call says that you are done; then the user goes on."
MOST_STEPS = 20
"""Of one turn of the user. With one more the conversation is given up, as in BFCL."""
UNPLAYABLE = (173,)
"""Tasks, in every variant, whose ground truth gives a text where the tool takes a number."""
MOST_TURNS = 8
NEEDED = ("classes", "config", "variant", "turns", "gold", "expected", "allowed", "held_out")


class Conversation(ToolEnv):
    """The task decides everything: the seed of `reset` is not needed. `_made` adds the tools."""

    def reset(self, task: Task, seed: int) -> Observation:
        if missing := [name for name in NEEDED if name not in task.columns]:
            raise DataError(f"bfcl: task {task.key} has no column {missing[0]}; take its rows from bfcl's own generator")
        shown = super().reset(task, seed)
        self._begin()
        return shown

    def state(self) -> State:
        """worlds: the APIs' facts. inside: what else their answers depend on. done: for each finished turn of the user the
        digests of the facts it left and of the answers it saw. answers: those of the turn at hand."""
        return {"turn": len(self.done), "worlds": self.worlds.facts(), "inside": self.worlds.inside(),
                "done": [{"facts": dict(d["facts"]), "answers": list(d["answers"])} for d in self.done],
                "answers": sorted(self.answers), "given_up": self.given_up, "num_steps": self.num_steps,
                "num_calls": len(self.calls), "num_errors": self.num_errors}  # fmt: skip

    def step(self, action: Action) -> Observation:
        if self.task is None or self.over:
            raise RuntimeError("step before reset, or after the conversation was over")
        if not action.calls:
            return self._next_turn()
        seen = super().step(action)
        self.num_steps += 1
        self.given_up = self.over = self.num_steps > MOST_STEPS
        return replace(seen, ended=self.over)

    def snapshot(self) -> bytes:
        """The calls that were made: played again they lead to the same worlds, random numbers included."""
        assert self.task is not None, "snapshot before reset"
        task = {"key": self.task.key, "prompt": self.task.prompt, "columns": self.task.columns}
        return json.dumps({"task": task, "calls": self.calls, "num_steps": self.num_steps, "turn": len(self.done),
                           "over": self.over, "given_up": self.given_up}).encode()  # fmt: skip

    def restore(self, saved: bytes) -> None:
        held = json.loads(saved)
        self._open(Task(**held["task"]))
        self._begin()
        for turn, name, arguments in held["calls"]:
            while len(self.done) < turn:
                self._close_turn()
            self._call(name, arguments)
        while len(self.done) < held["turn"]:
            self._close_turn()
        self.num_steps, self.over, self.given_up = held["num_steps"], held["over"], held["given_up"]

    def _begin(self) -> None:
        assert self.task is not None
        columns = self.task.columns
        self.worlds = Worlds(columns["classes"], columns["config"], columns["variant"] == "long_context")
        self.done: list[dict[str, Any]] = []
        self.answers: list[str] = []
        self.calls: list[tuple[int, str, dict[str, Any]]] = []
        self.num_steps = self.num_errors = 0
        self.given_up = False
        self._permit()

    def _permit(self) -> None:
        """Tools that are held out are refused until their turn has come."""
        assert self.task is not None
        held = self.task.columns["held_out"]
        every = permitted(self.tools, self.task.columns)
        self._permitted = tuple(tool for tool in every if held.get(tool.name, 0) <= len(self.done))

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        given = {key: value for key, value in arguments.items() if value is not None}
        answer, wrong = self.worlds.call(name, given)
        self.calls.append((len(self.done), name, given))
        self.answers.append(digest(answer))
        self.num_errors += wrong
        return _whole(answer)

    def _close_turn(self) -> None:
        self.done.append(turn_facts(self.worlds, self.answers))
        self.answers, self.num_steps = [], 0
        self._permit()

    def _next_turn(self) -> Observation:
        assert self.task is not None
        self._close_turn()
        self.over = len(self.done) == len(self.task.columns["turns"])
        if self.over:
            return Observation(ended=True)
        return Observation(({"role": "user", "content": said(self.task.columns, len(self.done))},))


def _made() -> type[Conversation]:
    """The class with a method for each of the 128 tools, so that calls are checked as any tool's are."""
    methods = {f"do_{tool.name}": _method(tool) for tool in tools()}
    return type("Bfcl", (Conversation,), {"tools": tools(), **methods})


def _method(tool: Tool) -> Any:
    def do(self: Conversation, **arguments: Any) -> str:
        return self._call(tool.name, arguments)

    one = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    more = [Parameter(key, Parameter.KEYWORD_ONLY, default=Parameter.empty if required else None)
            for key, (_, required) in tool.parameters.items()]  # fmt: skip
    do.__signature__ = Signature([one, *more])  # type: ignore[attr-defined]
    return do


def _whole(text: str) -> str:
    """Answers may repeat half a character that the policy wrote; messages hold none."""
    return text.encode("utf-8", "replace").decode()


def said(columns: Mapping[str, Any], turn: int) -> str:
    """What the user says. Where tools are handed out, they come first."""
    new = [name for name in columns["allowed"] if columns["held_out"].get(name) == turn]
    text = columns["turns"][turn]
    if not turn or not new:
        return text or "Go on."
    text = text or "You have them now: please do what was not possible before."
    return f"New tools:\n{listing(new, columns.get('docs') == 'full')}\n\n{text}"


# --- what counts ----------------------------------------------------------------------------------------------------------


def turn_facts(worlds: Worlds, answers: Sequence[str]) -> dict[str, Any]:
    facts = {api: digest(canonical(public)) for api, public in worlds.facts().items()}
    return {"facts": facts, "answers": sorted(answers)}


def passed(task: Task, now: State) -> list[bool]:
    """Whether each finished turn is right: something was called, the worlds are as the ground truth leaves them, and every
    answer that it gets in this turn was seen in this one or before. A turn without ground truth is, whatever was done."""
    seen, verdicts = Counter[str](), []
    for done, wanted in zip(now["done"], task.columns["expected"]):
        seen.update(done["answers"])
        right = wanted is None or (
            bool(done["answers"]) and done["facts"] == wanted["facts"] and not Counter(wanted["answers"]) - seen
        )
        verdicts.append(right)
    return verdicts


def solved(task: Task, start: State, now: State) -> bool:
    return len(now["done"]) == len(task.columns["expected"]) and all(passed(task, now))


def potential(task: Task, start: State, now: State) -> float:
    """The share of the user's turns that are finished and right, up to the first that is not."""
    return len(list(takewhile(bool, passed(task, now)))) / len(task.columns["expected"])


def _right(turn: int) -> Milestone:
    def reached(task: Task, before: State, after: State) -> bool:
        return len(before["done"]) <= turn < len(after["done"]) and passed(task, after)[turn]

    return Milestone(f"turn {turn + 1}", reached)


def summed_up(task: Task, start: State, now: State) -> str:
    """What the user has said so far."""
    num = min(now["turn"] + 1, len(task.columns["turns"]))
    return "The user said:\n" + "\n".join(said(task.columns, turn) for turn in range(num))


def _more(key: str, task: Task, states: Sequence[State]) -> float:
    return float(states[-1][key] - states[0][key])


# --- tasks ----------------------------------------------------------------------------------------------------------------


class BfclRow(Entry):
    prompt: str
    docs: str
    expected: list[dict[str, Any] | None]
    """For each turn what the ground truth leaves and is answered."""


def generate(
    size: int, seed: int, *, variant: str = "base", apis: str | Sequence[str] = "all", part: str = "all",
    docs: str = "short",
) -> Iterator[BfclRow]:  # fmt: skip
    """`size` of BFCL's tasks, in an order drawn by `seed`. There are 199 in each variant.

    variant: "base", "miss_func" (a tool is handed out late), "miss_param" (what is needed is said late), "long_context" or
    "all". apis: "all", or those that a task may involve. part: every fourth task is of "test", the others of "train", the
    same ones in every variant. docs: "short" (signature, purpose and allowed values of each tool) or "full" (its parameters
    too). Raises RecipeError.
    """
    found = list(_chosen(variant, apis, part, docs))
    if size > len(found):
        raise RecipeError(f"bfcl: size = {size}, but there are {len(found)} tasks of variant {variant!r}, part {part!r} "
                          "and these apis; ask for no more, or for another variant")  # fmt: skip
    for i in shuffled(seed, f"bfcl/{variant}/{part}", len(found))[:size]:
        yield _row(found[int(i)], docs)


def _chosen(variant: str, apis: str | Sequence[str], part: str, docs: str) -> Iterator[Entry]:
    names = re.findall(r"\w+", apis) if isinstance(apis, str) else [*apis]
    names = list(MODULES) if names == ["all"] else names
    for name, value, known in (("variant", variant, (*VARIANTS, "all")), ("part", part, ("all", "train", "test")),
                               ("docs", docs, ("short", "full"))):  # fmt: skip
        if value not in known:
            raise RecipeError(f"bfcl: {name} = {value!r} must be one of {', '.join(known)}")
    if not names or any(name not in MODULES for name in names):
        raise RecipeError(f'bfcl: apis = {apis!r} must be "all" or some of {", ".join(MODULES)}')
    for one in VARIANTS if variant == "all" else (variant,):
        for entry in entries(one):
            of = "test" if entry["number"] % 4 == 3 else "train"
            if entry["number"] not in UNPLAYABLE and part in ("all", of) and set(entry["classes"]) <= set(names):
                yield entry


def _row(entry: Entry, docs: str) -> BfclRow:
    shown = [name for name in entry["allowed"] if not entry["held_out"].get(name)]
    prompt = f"Tools:\n{listing(shown, docs == 'full')}\n\n{entry['turns'][0]}"
    return {"prompt": prompt, **entry, "docs": docs, "expected": expected(entry)}


def expected(entry: Entry) -> list[dict[str, Any] | None]:
    """For each turn what the ground truth leaves and is answered; None where it calls nothing."""
    worlds = Worlds(entry["classes"], entry["config"], entry["variant"] == "long_context")
    found = list[dict[str, Any] | None]()
    for calls in entry["gold"]:
        answers = []
        for call in calls:
            checked = check_call(call["name"], call["arguments"], [by_name()[call["name"]]])
            arguments = call["arguments"] if checked.error else checked.arguments
            answers.append(digest(worlds.call(call["name"], arguments)[0]))
        found.append(turn_facts(worlds, answers) if calls else None)
    return found


# --- scripted policies ----------------------------------------------------------------------------------------------------


def _text(call: Mapping[str, Any]) -> str:
    return render_call(call["name"], call["arguments"], tool=by_name()[call["name"]])


def _turn(calls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One call an action, or as few as the steps of a turn allow; then the word that ends it."""
    width = -(-len(calls) // MOST_STEPS)
    for i in range(0, len(calls), width or 1):
        yield "\n".join(map(_text, calls[i : i + width]))
    yield "Done."


def gold(task: Task, env: Environment) -> Iterator[str]:
    """The ground truth."""
    for calls in task.columns["gold"]:
        yield from _turn(calls)


def _but_the_last(task: Task, env: Environment) -> Iterator[str]:
    """The ground truth, but nothing in the last turn that asks for anything."""
    last = max(i for i, calls in enumerate(task.columns["gold"]) if calls)
    for i, calls in enumerate(task.columns["gold"]):
        yield from _turn(() if i == last else calls)


def _at_once(task: Task, env: Environment) -> Iterator[str]:
    """All that is right, before it is asked for; nothing where only one turn asks for something."""
    turns = [calls for calls in task.columns["gold"] if calls]
    if len(turns) > 1:
        yield "\n".join(_text(call) for calls in turns for call in calls)
        yield from repeat("Done.", MOST_TURNS)


def _thought(task: Task, env: Environment) -> Iterator[str]:
    """The right calls, in thought only."""
    for calls in task.columns["gold"]:
        yield f"<think>{chr(10).join(map(_text, calls))}</think>Done."


def _loops(task: Task, env: Environment) -> Iterator[str]:
    return repeat(_text(next(call for calls in task.columns["gold"] for call in calls)), MOST_STEPS + 5)


def _by_chance(task: Task, env: Environment) -> Iterator[str]:
    """Tools by chance with arguments that mean nothing. The last turn that asks for something stays without a call: luck
    would make a check fail at random."""
    rng = random.Random(f"bfcl random {task.columns['variant']} {task.columns['number']}")
    values: dict[type, Any] = {str: "a", int: 1, float: 1.5, bool: True, list: ["a"], dict: {"a": "b"}}
    last = max(i for i, calls in enumerate(task.columns["gold"]) if calls)
    for i in range(len(task.columns["gold"])):
        for _ in range(3 * (i < last)):
            tool = by_name()[rng.choice(task.columns["allowed"])]
            yield _text({"name": tool.name, "arguments": {key: values[kind] for key, (kind, _) in tool.parameters.items()}})
        yield "Done."


KNOWN_BAD = {
    "empty": lambda task, env: repeat("", MOST_TURNS),
    "random": _by_chance,
    "claims success": lambda task, env: repeat("Done. Every request was carried out: success!", MOST_TURNS),
    "loops": _loops,
    "all but the last request": _but_the_last,
    "all at once": _at_once,
    "calls in thought": _thought,
}  # fmt: skip

SPEC = EnvSpec(
    name="bfcl",
    version=f"1, bfcl-eval {importlib.metadata.version('bfcl-eval')}",
    make=_made(),
    generate=generate,
    goal=Goal(solved, ends=False),
    tools=tools(),
    lists_tools=True,
    milestones=tuple(map(_right, range(MOST_TURNS))),
    costs=(
        Cost("calls", "call carried out", partial(_more, "num_calls")),
        Cost("errors", "answer that is an error", partial(_more, "num_errors")),
    ),
    potential=potential,
    gold=gold,
    known_bad=KNOWN_BAD,
    volatile=("num_steps", "num_calls", "num_errors", "given_up"),
    summary=summed_up,
    system=SYSTEM,
    seeded=False,
)
