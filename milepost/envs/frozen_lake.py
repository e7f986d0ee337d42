"""`frozen_lake`: Gymnasium's FrozenLake-v1 as text. Cross the ice to G without falling into a hole. Torch-free.

    Cross the ice.
    @ F F F
    F H F H
    F F F H
    H F F G
    > down                              S F F F
                                        @ H F H
    …                                   > right: a hole, and it is over

Maps are drawn by the package. On slippery ice a step goes the intended way with a chance of ⅓ and to either side with ⅓;
the task's own seed decides which, so that all episodes of a task slip alike. Tasks at which even the best policy fails, or
which one action again and again would solve by luck, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar

from gymnasium.envs.toy_text.frozen_lake import generate_random_map

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
    plain,
    random_seed,
    steps_of_the_best,
    to_and_fro,
)
from milepost.types import RecipeError, Task

SYSTEM = "Go to G over the ice: S and F are safe, H is a hole, @ is you. Write one of: left, down, right, up."
WORDS = f"{SYSTEM} Cross the ice. Cross the slippery ice. Not understood. It is over. You fell into a hole. You are there."
"""Every word of prompts, observations and actions: texts for a policy that knows nothing but words."""


class LakeRow(ToyRow):
    map: list[str]
    slippery: bool


def generate(size: int, seed: int, *, side: int = 4, holes: float = 0.2, slippery: bool = False) -> Iterator[LakeRow]:
    """`size` different tasks; row i depends on (seed, i, difficulty) and the rows before it alone.

    side: of the square map, 3 to 10. holes: chance that a cell is one, 0 to 0.4; every map has a way. slippery: see above.
    Raises RecipeError.
    """
    whole_number("frozen_lake", "side", side, 3, 10)
    if isinstance(holes, bool) or not isinstance(holes, (int, float)) or not 0 <= holes <= 0.4:
        raise RecipeError(f"frozen_lake: holes = {holes!r} must be a number from 0 to 0.4")
    if not isinstance(slippery, bool):
        raise RecipeError(f"frozen_lake: slippery = {slippery!r} must be true or false")
    prompt = f"Cross the {'slippery ' if slippery else ''}ice."

    def draw(rng: Any) -> LakeRow | None:
        cells = generate_random_map(side, 1 - holes, random_seed(rng))
        row: LakeRow = {
            "prompt": prompt,
            "map": cells,
            "slippery": slippery,
            "seed": random_seed(rng) if slippery else 0,
            "steps": 0,
        }
        steps = steps_of_the_best(FrozenLake(), Task("", prompt, columns=row), gold, chance=slippery)
        return None if steps is None else {**row, "steps": steps}

    yield from distinct("frozen_lake", size, seed, draw, "raise side, or lower size")


class FrozenLake(ToyText):
    name = "frozen_lake"
    words: ClassVar[Mapping[str, int]] = {"left": 0, "down": 1, "right": 2, "up": 3}
    needed = ("map", "slippery", "seed")

    def make(self, task: Task) -> Any:
        return made("FrozenLake-v1", desc=tuple(task.columns["map"]), is_slippery=task.columns["slippery"])

    def cell(self, number: int) -> str:
        cells = self.task.columns["map"]
        return str(cells[number // len(cells)][number % len(cells)])

    def won(self, number: int) -> bool:
        return self.cell(number) == "G"

    def lost(self) -> bool:
        return self.cell(self.at) == "H"

    def view(self) -> str:
        if self.lost():
            return "You fell into a hole."
        if self.won(self.at):
            return "You are there."
        rows = plain(self.library.render()).splitlines()[1:]  # the first names the last action
        return "\n".join(" ".join(row) for row in rows)

    def state(self) -> State:
        row, column = divmod(self.at, len(self.task.columns["map"]))
        return {"row": row, "column": column, "cell": self.cell(self.at), "steps": self.num_steps, "idle": self.idle}


def _there(task: Task, start: State, now: State) -> bool:
    return now["cell"] == "G"


def gold(task: Task, world: Environment) -> Iterator[str]:
    """The surest way by the package's own table of chances; of equally sure ones the shortest."""
    lake: Any = world
    return follow(lake, best_actions(lake.library.P, lake.won, lambda number: lake.cell(number) == "H")[0])


def _drowns(task: Task, world: Environment) -> Iterator[str]:
    """The surest way into a hole, if there is one."""
    lake: Any = world
    surest, _ = best_actions(lake.library.P, lambda number: lake.cell(number) == "H", lake.won)
    return islice(follow(lake, surest, harmless=True), patience(task))


FrozenLake.goal = Goal(_there)

SPEC = EnvSpec(
    name="frozen_lake",
    version=VERSION,
    make=FrozenLake,
    generate=generate,
    goal=FrozenLake.goal,
    costs=(Cost("idle", "step that led nowhere", idle_steps),),
    gold=gold,
    known_bad={"empty": empty, "claims success": claims, "to and fro": to_and_fro, "drowns": _drowns},
    volatile=("steps", "idle"),
    system=SYSTEM,
    seeded=False,
    luck=0.25,  # small maps are crossed by chance: 14 of 200
)
