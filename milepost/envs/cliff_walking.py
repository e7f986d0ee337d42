"""`cliff_walking`: Gymnasium's CliffWalking-v1 as text. Walk along a cliff to the corner beyond it. Torch-free.

    Go to 3 11. You are at 2 3.
    > right                             You are at 2 4.
    > down                              You fell off the cliff.

Rows 0 to 3 from the top, columns 0 to 11; the cliff is row 3, columns 1 to 10. The package always begins at 3 0 and puts
who falls back there; here tasks begin anywhere, which makes more than one of them, and a fall is the end. On slippery
ground a step goes the intended way with a chance of ⅓ and to either side with ⅓; the task's own seed decides which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar

from milepost.env import Cost, Environment, EnvSpec, Goal, State
from milepost.envs.foreign import whole_number
from milepost.envs.toy_text import (
    VERSION,
    ToyRow,
    ToyText,
    best_actions,
    claims,
    distinct,
    empty,
    follow,
    idle_steps,
    made,
    patience,
    random_seed,
    steps_of_the_best,
    to_and_fro,
)
from milepost.types import RecipeError, Task

ROWS, COLUMNS = 4, 12
EXIT = ROWS * COLUMNS - 1
FALL = -100
"""The package's reward for one: nothing else tells a fall from 3 0 back to 3 0."""
SYSTEM = (
    "Rows 0 to 3 from the top, columns 0 to 11 from the left. Row 3, columns 1 to 10 is a cliff: do not step there. "
    "Write one of: up, right, down, left."
)
WORDS = f"""{SYSTEM} Go to 3 11. You are at 3 11. The ground is slippery. You fell off the cliff. You are there.
Not understood. It is over."""
"""Every word of prompts, observations and actions: texts for a policy that knows nothing but words."""


class CliffRow(ToyRow):
    start: int
    slippery: bool


def generate(size: int, seed: int, *, slippery: bool = False, min_steps: int = 6) -> Iterator[CliffRow]:
    """`size` different tasks; row i depends on (seed, i, difficulty) and the rows before it alone.

    min_steps: of the best policy on dry ground, 1 to 14. There are 37 tasks on dry ground, 25 of 6 or more steps.
    slippery: see above; then tasks of one start differ by where they slip. Raises RecipeError.
    """
    whole_number("cliff_walking", "min_steps", min_steps, 1, 14)
    if not isinstance(slippery, bool):
        raise RecipeError(f"cliff_walking: slippery = {slippery!r} must be true or false")
    starts = [n for n in (*range(ROWS * COLUMNS - COLUMNS), EXIT - COLUMNS + 1) if _distance(n) >= min_steps]
    prompt = f"{'The ground is slippery. ' if slippery else ''}Go to {ROWS - 1} {COLUMNS - 1}."

    def draw(rng: Any) -> CliffRow | None:
        start = starts[int(rng.random() * len(starts))]
        row: CliffRow = {
            "prompt": prompt,
            "start": start,
            "slippery": slippery,
            "seed": random_seed(rng) if slippery else 0,
            "steps": 0,
        }
        steps = steps_of_the_best(CliffWalking(), Task("", prompt, columns=row), gold, chance=slippery)
        return None if steps is None else {**row, "steps": steps}

    yield from distinct("cliff_walking", size, seed, draw, f"there are {len(starts)} starts on dry ground: lower size or "
                        "min_steps, or set slippery = true")  # fmt: skip


def _distance(number: int) -> int:
    """Steps to the exit on dry ground: over row 2 at the lowest."""
    row, column = divmod(number, COLUMNS)
    return COLUMNS - 1 - column + (2 if row == ROWS - 1 else ROWS - 1 - row)


class CliffWalking(ToyText):
    name = "cliff_walking"
    words: ClassVar[Mapping[str, int]] = {"up": 0, "right": 1, "down": 2, "left": 3}
    needed = ("start", "slippery", "seed")
    fell: bool

    def make(self, task: Task) -> Any:
        return made("CliffWalking-v1", is_slippery=task.columns["slippery"])

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.library.s, self.fell = task.columns["start"], False

    def act(self, action: int) -> None:
        before = self.at
        _, reward, *_ = self.library.step(action)
        self.fell = reward == FALL
        self.idle += self.at == before and not self.fell

    def won(self, number: int) -> bool:
        return number == EXIT

    def lost(self) -> bool:
        return self.fell

    def view(self) -> str:
        if self.fell:
            return "You fell off the cliff."
        return "You are there." if self.won(self.at) else f"You are at {' '.join(map(str, divmod(self.at, COLUMNS)))}."

    def state(self) -> State:
        row, column = divmod(self.at, COLUMNS)
        return {"row": row, "column": column, "fell": self.fell, "steps": self.num_steps, "idle": self.idle}


def _there(task: Task, start: State, now: State) -> bool:
    return not now["fell"] and (now["row"], now["column"]) == (ROWS - 1, COLUMNS - 1)


def gold(task: Task, world: Environment) -> Iterator[str]:
    """The shortest way that never falls: along the edge on dry ground, away from it on slippery ground."""
    return follow(world, _best(task.columns["slippery"]))


@lru_cache
def _best(slippery: bool) -> dict[int, int]:
    walk = CliffWalking()
    walk.begin(Task("", "", columns={"start": 0, "slippery": slippery, "seed": 0}))
    return best_actions(_with_falls(walk.library.P), walk.won, lambda number: number < 0)[0]


def _leaps(task: Task, world: Environment) -> Iterator[str]:
    walk: Any = world
    surest, _ = best_actions(_with_falls(walk.library.P), lambda number: number < 0, walk.won)
    return islice(follow(walk, surest, harmless=True), patience(task))


def _with_falls(transitions: Any) -> dict[int, dict[int, list[tuple[float, int, float, bool]]]]:
    """The package's table with a state of its own, −1, for who fell, and numbers that are plain."""
    table = {state: {action: [(chance, -1 if reward == FALL else int(after), reward, over)
                              for chance, after, reward, over in ways] for action, ways in actions.items()}
             for state, actions in transitions.items()}  # fmt: skip
    return {**table, -1: {}}


CliffWalking.goal = Goal(_there)

SPEC = EnvSpec(
    name="cliff_walking",
    version=VERSION,
    make=CliffWalking,
    generate=generate,
    goal=CliffWalking.goal,
    costs=(Cost("idle", "step that led nowhere", idle_steps),),
    gold=gold,
    known_bad={"empty": empty, "claims success": claims, "to and fro": to_and_fro, "leaps": _leaps},
    volatile=("steps", "idle"),
    system=SYSTEM,
    seeded=False,
    luck=0.2,  # 1 of 25 tasks
)
