"""What Gymnasium's toy text worlds share: their table of transitions, and the best policy for it. Torch-free.

    P[state][action] = [(chance, next state, reward, over), …]

`best_actions` is value iteration with success as the only reward and γ just below 1: the surest way first, and of equally
sure ones the shortest.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import cycle, islice, repeat
from typing import Any, TypedDict, TypeVar

import gymnasium
import numpy as np

from milepost.env import Action, Environment, Script, State
from milepost.envs.foreign import Foreign, written
from milepost.streams import generator
from milepost.types import RecipeError, Task

VERSION = f"1 (gymnasium {gymnasium.__version__})"
"""Another release of the package may draw other tasks."""
GAMMA = 0.999
MAX_STEPS = 200
"""Of the best policy: longer tasks are not made. Gymnasium's own limit for Taxi."""
Transitions = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_MARKED = re.compile(r"\x1b\[4\dm.\x1b\[0m")


class ToyText(Foreign):
    """`library`: the world of the package, without its wrappers. A state of the package is one number."""

    library: Any
    idle: int
    """Actions that changed nothing: into a wall, mostly."""

    def make(self, task: Task) -> Any:
        raise NotImplementedError

    def won(self, number: int) -> bool:
        """Is this state of the package the goal?"""
        raise NotImplementedError

    def begin(self, task: Task) -> None:
        self.library, self.idle = self.make(task), 0
        self.library.reset(seed=task.columns["seed"])

    def act(self, action: int) -> None:
        before = self.at
        self.library.step(action)
        self.idle += self.at == before

    @property
    def at(self) -> int:
        return int(self.library.s)


def made(name: str, **settings: Any) -> Any:
    """The package's own world without wrappers: budgets are the trainer's."""
    return copy.copy(_made(name, tuple(settings.items())))


@lru_cache(maxsize=64)
def _made(name: str, settings: tuple[tuple[str, Any], ...]) -> Any:
    """Never played itself. Copies share its table, which takes milliseconds to make, and nothing that changes."""
    return gymnasium.make(name, render_mode="ansi", disable_env_checker=True, **dict(settings)).unwrapped


def plain(rendered: str) -> str:
    """A picture of ANSI colours as text: the highlighted character, which is the agent, becomes @; other colours go."""
    return _ANSI.sub("", _MARKED.sub("@", rendered))


def best_actions(
    transitions: Transitions, won: Callable[[int], bool], lost: Callable[[int], bool] = lambda state: False
) -> tuple[dict[int, int], dict[int, float]]:
    """(state → best action, the first of equal ones; state → its value: the chance of success times γ per step).

    States that are won or lost have no action.
    """
    place = {state: i for i, state in enumerate(transitions)}
    values = np.array([float(won(state)) for state in transitions])
    open_states = [state for state in transitions if not won(state) and not lost(state)]
    actions = list(transitions[open_states[0]])
    widest = max(len(ways) for state in open_states for ways in transitions[state].values())
    chances, afters = np.zeros((2, len(open_states), len(actions), widest))
    for i, state in enumerate(open_states):
        for a, action in enumerate(actions):
            for k, (chance, after, *_) in enumerate(transitions[state][action]):
                chances[i, a, k], afters[i, a, k] = chance, place[int(after)]
    mine, after_of, change = [place[state] for state in open_states], afters.astype(int), 1.0
    while change > 1e-9:
        worth = GAMMA * (chances * values[after_of]).sum(axis=2)
        change = float(np.abs(worth.max(axis=1) - values[mine]).max())
        values[mine] = worth.max(axis=1)
    chosen = np.argmax(np.round(worth, 8), axis=1)  # the first of those that differ by rounding alone
    best = {state: actions[int(a)] for state, a in zip(open_states, chosen)}
    return best, dict(zip(transitions, values.tolist()))


def steps_of_the_best(world: ToyText, task: Task, gold: Script, *, chance: bool) -> int | None:
    """How many steps the best policy needs, or None if it fails, needs more than MAX_STEPS, or could be had by luck: where
    there is `chance`, its first action again and again may do as well."""
    world.reset(task, 0)
    first, steps = next(gold(task, world)), _steps(world, islice(gold(task, world), MAX_STEPS))
    world.reset(task, 0)
    lucky = chance and steps is not None and _steps(world, repeat(first, 2 * steps + 10)) is not None
    return None if lucky else steps


def _steps(world: ToyText, texts: Iterator[str]) -> int | None:
    """After how many of these the goal is reached, or None."""
    for number, text in enumerate(texts, 1):
        if world.step(Action(text)).ended:
            return number if world.won(world.at) else None
    return None


class ToyRow(TypedDict):
    """What the rows of all three have."""

    prompt: str
    seed: int
    """The package's own, for worlds that leave something to chance; else 0."""
    steps: int
    """Of the best policy."""


Row = TypeVar("Row", bound=ToyRow)


def distinct(
    name: str, size: int, seed: int, draw: Callable[[Any], Row | None], wider: str, max_draws: int = 1000
) -> Iterator[Row]:
    """`size` different rows of `draw(rng)`, which may give None; row i depends on (seed, i) and the rows before it alone.

    Raises RecipeError when `max_draws` draws in a row give nothing new; `wider` says what to change.
    """
    seen: set[str] = set()
    for index in range(size):
        rng = generator(seed, f"{name}/{index}")
        for _ in range(max_draws):
            row = draw(rng)
            if row is not None and repr(row) not in seen:
                break
        else:
            raise RecipeError(f"{name}: after {index} different tasks {max_draws} draws gave no further one; {wider}")
        seen.add(repr(row))
        yield row


def random_seed(rng: Any) -> int:
    return int(rng.random() * 2**31)


# ---- costs and scripted policies; the bad ones go on for three times the best policy's length --------------------------


def idle_steps(task: Task, states: Sequence[State]) -> float:
    return float(states[-1]["idle"] - states[0]["idle"])


def follow(world: Any, actions: Mapping[int, int], *, harmless: bool = False) -> Iterator[str]:
    """`harmless`: a bad policy, which stops where its action could reach the goal by chance. Luck is no cheat."""
    words = written(world.words)
    while world.at in actions:
        number = actions[world.at]
        if harmless and any(world.won(after) for _, after, *_ in world.library.P[world.at][number]):
            return
        yield words[number]


def empty(task: Task, world: Environment) -> Iterator[str]:
    return repeat("", patience(task))


def claims(task: Task, world: Environment) -> Iterator[str]:
    return repeat("Step 1 done. I have reached the goal. Success!", patience(task))


def to_and_fro(task: Task, world: Any) -> Iterator[str]:
    """Between the first two actions and back."""
    for number in islice(cycle(list(written(world.words))[:2]), patience(task)):
        yield from islice(follow(world, {world.at: number}, harmless=True), 1)


def patience(task: Task) -> int:
    return 3 * int(task.columns["steps"])
