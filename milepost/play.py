"""`milepost play ENV`: a person, or the gold script, plays one task and sees what an episode is judged by. Torch-free."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from milepost.env import Action, EnvSpec, Observation, Script, State
from milepost.envs.find import find_env
from milepost.reward_spec import RewardSpec, progress
from milepost.sources import generated
from milepost.tools import parse
from milepost.types import RecipeError, Task

MAX_LINES, MAX_CHARS = 12, 60
"""Of the changes shown after one action, and of one value in them."""
GOLD_TURNS = 1000
"""The gold script is stopped after as many."""


def play(
    name: str, *, seed: int = 0, number: int = 0, overrides: Sequence[str] = (), gold: bool = False,
    show: Callable[[str], None] = print,
) -> bool:  # fmt: skip
    """Plays task `number` of environment `name`; actions come from stdin, whose end ends the episode. → success.

    `overrides`: difficulty as key=value. Raises RecipeError.
    """
    spec = find_env(name, "play")
    if gold and spec.gold is None:
        raise RecipeError(f"play: {spec.name} has no gold script; leave --gold out and play by hand")
    difficulty = read_difficulty(spec, overrides)
    task = draw_task(spec, seed, number, difficulty)
    with asyncio.Runner() as runner:
        game = Game(spec, task, seed, runner)
        shown = ", ".join(f"{key} = {value}" for key, value in difficulty.items())
        show(f"{spec.name} {spec.version}, task {number} of seed {seed}{f' ({shown})' if shown else ''}")
        if not gold:
            show(f"One action a line; a line that ends in \\ goes on in the next. {END_OF_INPUT} stops.")
        try:
            _play(game, spec.gold if gold else None, show)
        finally:
            game.close()
        won = game.holds()
        for line in _verdict(game, _gold_length(game) if spec.gold and not gold else ""):
            show(line)
    return won


END_OF_INPUT = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"


def read_difficulty(spec: EnvSpec, overrides: Sequence[str]) -> dict[str, Any]:
    """key=value texts as arguments of the generator. Raises RecipeError for one that it does not take."""
    known = {name: p for name, p in inspect.signature(spec.generate).parameters.items() if name not in ("size", "seed")}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
    difficulty = {}
    for text in overrides:
        key, _, value = text.partition("=")
        if key not in known and not takes_any:
            has = ", ".join(f"{k} = {p.default}" for k, p in known.items() if p.kind is not p.VAR_KEYWORD)
            raise RecipeError(f"{spec.name} has no difficulty {key!r}; it has {has or 'none'}")
        try:
            difficulty[key] = json.loads(value)
        except ValueError:
            difficulty[key] = value
    return difficulty


def draw_task(spec: EnvSpec, seed: int, number: int, difficulty: Mapping[str, Any]) -> Task:
    """The `number`-th task that the environment generates, counted from 0. Raises RecipeError."""
    if number < 0:
        raise RecipeError(f"play: task = {number} must be 0 or more; 0 is the first")
    rows = generated(spec.generate, number + 1, seed, difficulty, f"play: environment {spec.name!r}")
    row = rows[number] if number < len(rows) else None
    if row is None or "prompt" not in row:
        what = "gives no task" if row is None else "gives no prompt with task"
        raise RecipeError(f"play: the generator of {spec.name} {what} {number}; try --task 0 or another difficulty")
    columns = {key: value for key, value in row.items() if key not in ("prompt", "answer")}
    return Task(f"{spec.name}/{seed}/{number}", row["prompt"], row.get("answer"), columns, spec.name)


class Game:
    """One episode: the world, its states so far, and what they are worth."""

    def __init__(self, spec: EnvSpec, task: Task, seed: int, runner: asyncio.Runner) -> None:
        self.spec, self.task, self.seed, self.runner = spec, task, seed, runner
        self.world: Any = spec.make()  # any method may be async
        self.states: list[State] = []
        self.num_invalid = 0
        self.why = "stopped"

    def begin(self) -> Observation:
        seen: Observation = self._now(self.world.reset(self.task, self.seed))
        self.states.append(self._now(self.world.state()))
        return seen

    def act(self, text: str) -> Observation:
        action = parse(text, self.spec.tools) if self.spec.tools else Action(text)
        seen: Observation = self._now(self.world.step(action))
        self.states.append(self._now(self.world.state()))
        self.num_invalid += seen.num_invalid
        return seen

    def over(self, seen: Observation) -> bool:
        """Whether a rollout would end here, in the order in which it asks."""
        reasons = {"goal": self.spec.goal.ends and self.holds(), "ended": seen.ended, "truncated": seen.truncated}
        self.why = next((reason for reason, true in reasons.items() if true), self.why)
        return any(reasons.values())

    def holds(self) -> bool:
        return bool(self.states) and self.spec.goal.holds(self.task, self.states[0], self.states[-1])

    def milestones(self) -> list[set[str]]:
        """Those that count, at the start and after each turn."""
        names = [milestone.name for milestone in self.spec.milestones]
        held = progress(RewardSpec(milestones=dict.fromkeys(names, 1.0)), self.spec, self.task, self.states)
        return [{name for name in names if held[name][turn]} for turn in range(len(self.states))]

    def costs(self, states: Sequence[State]) -> dict[str, float]:
        return {cost.name: cost.amount(self.task, states) for cost in self.spec.costs}

    def close(self) -> None:
        self._now(self.world.close())

    def _now(self, value: Any) -> Any:
        async def awaited() -> Any:
            return await value

        return self.runner.run(awaited()) if inspect.isawaitable(value) else value


def _play(game: Game, script: Script | None, show: Callable[[str], None]) -> None:
    if game.spec.system:
        show(f"\n{game.spec.system}")
    for tool in game.spec.tools:
        show(f"  {tool.signature()}{f'  {tool.doc}' if tool.doc else ''}")
    show("")
    _show_messages(game.begin(), show)
    texts = script(game.task, game.world) if script else typed(show)
    for turn, text in enumerate(texts, 1):
        if script:
            show(f"{turn}> {text}")
        seen = game.act(text)
        _show_messages(seen, show)
        for line in _what_changed(game):
            show(f"    {line}")
        if game.over(seen):
            return


def typed(show: Callable[[str], None]) -> Iterator[str]:
    """Actions from stdin, at a terminal or piped; what was piped is shown too, so that the output reads as a dialogue."""
    by_hand = sys.stdin.isatty()
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")
    turn, begun = 1, ""
    while True:
        prompt = f"{turn}> " if not begun else "...  "
        try:
            line = input(prompt if by_hand else "")
        except EOFError:
            if begun:
                yield begun
            if by_hand:
                show("")
            return
        if not by_hand:
            show(f"{prompt}{line}")
        if line.endswith("\\"):
            begun += line[:-1] + "\n"
            continue
        yield begun + line
        turn, begun = turn + 1, ""


def _show_messages(seen: Observation, show: Callable[[str], None]) -> None:
    if seen.history is not None:
        show("(the conversation was rewritten:)")
    for message in (*(seen.history or ()), *seen.messages):
        label = "" if message["role"] == "user" else f"{message.get('name', message['role'])}: "
        show(f"{label}{message.get('content', '')}")


# ---- what an action did ----------------------------------------------------------------------------------------------


def _what_changed(game: Game) -> list[str]:
    """State, milestones and costs: what the last action changed of them."""
    was, now = ({k: v for k, v in state.items() if k not in game.spec.volatile} for state in game.states[-2:])
    changed = list(changes(was, now))
    lines = changed[:MAX_LINES] + ([f"… and {len(changed) - MAX_LINES} more"] if len(changed) > MAX_LINES else [])
    *_, before, after = game.milestones()
    lines += [f"milestone reached: {name}" for name in sorted(after - before)]
    lines += [f"milestone taken back: {name}" for name in sorted(before - after)]
    earlier = game.costs(game.states[:-1])
    return lines + [
        f"cost: {name} {amount:g}" for name, amount in game.costs(game.states).items() if amount != earlier[name]
    ]


_ABSENT = object()


def changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """One line for each fact that differs, such as `keys.red: 0 2 → held` or `opened: + red`."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            was, now = before.get(key, _ABSENT), after.get(key, _ABSENT)
            if was != now:
                yield from changes(was, now, f"{path}.{key}" if path else str(key))
    elif isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        gone, new = _without(before, after), _without(after, before)
        parts = [*(f"− {_short(item)}" for item in gone), *(f"+ {_short(item)}" for item in new)]
        yield f"{path}: {', '.join(parts) or 'in another order'}"
    else:
        yield f"{path}: {_short(before)} → {_short(after)}"


def _without(items: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """`items` less each of `others` once."""
    left = list(items)
    for item in others:
        if item in left:
            left.remove(item)
    return left


def _short(value: Any) -> str:
    if value is _ABSENT:
        return "–"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split()) or '""'
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


# ---- the verdict -----------------------------------------------------------------------------------------------------


def _verdict(game: Game, gold: str) -> Iterator[str]:
    turns = len(game.states) - 1
    yield f"\n{'success' if game.holds() else 'no success'} after {turns} turn{'s' if turns != 1 else ''} ({game.why})"
    if "shortest" in game.task.columns:
        yield f"shortest: {game.task.columns['shortest']} turns"
    if gold:
        yield f"gold script: {gold}"
    if game.spec.milestones and game.states:
        held = game.milestones()[-1]
        yield f"milestones: {', '.join(m.name for m in game.spec.milestones if m.name in held) or 'none'}"
    units = {cost.name: cost.unit for cost in game.spec.costs}
    used = [f"{name} {amount:g} (unit: {units[name]})" for name, amount in game.costs(game.states).items()]
    yield f"costs: {', '.join([*used, f'invalid actions {game.num_invalid}'])}"


def _gold_length(game: Game) -> str:
    """How the gold script does on the same task, in a world of its own."""
    assert game.spec.gold is not None
    other = Game(game.spec, game.task, game.seed, game.runner)
    try:
        other.begin()
        for text in islice(game.spec.gold(other.task, other.world), GOLD_TURNS):
            if other.over(other.act(text)):
                break
        return f"{len(other.states) - 1} turns{'' if other.holds() else ', without success'}"
    finally:
        other.close()
