"""`taxi`: Gymnasium's Taxi-v4 as text. Fetch the passenger, bring him to where he wants. Torch-free.

    Passenger at Y. Bring him to G.
    Taxi 3 1.                           row and column, from the north-west
    > west                              Taxi 3 0.
    > south                             Taxi 4 0.
    > pickup                            Taxi 4 0. Passenger in the taxi.
    …                                   > dropoff: Delivered.

Four pads: R 0 0, G 0 4, Y 4 0, B 4 3. Walls stop east and west. A passenger set down at another pad waits there. In the
rain a move goes the intended way with a chance of 0.8 and to either side with 0.1; the task's own seed decides which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar

from milepost.env import Cost, Environment, EnvSpec, Goal, Milestone, State
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

PADS = ("R", "G", "Y", "B")
IN_TAXI = 4
"""The package's number for a passenger on board; 0 to 3 are the pads."""
PICKUP, DROPOFF = 4, 5
STARTS = [n for n in range(500) if n // 4 % 5 < IN_TAXI and n // 4 % 5 != n % 4]
"""The package's start states: ((row · 5 + column) · 5 + where the passenger is) · 4 + where he wants to go."""
SYSTEM = """Drive the taxi. Rows 0 to 4 from north to south, columns 0 to 4 from west to east; | is a wall.
+---------+
|R: | : :G|
| : | : : |
| : : : : |
| | : | : |
|Y| : |B: |
+---------+
Write one of: south, north, east, west, pickup, dropoff."""
WORDS = f"""{SYSTEM} Passenger at R. Bring him to G. Y B. It rains. Taxi 0 0. Passenger in the taxi. Delivered. Nobody here.
Not understood. It is over. No passenger to set down here."""
"""Every word of prompts, observations and actions: texts for a policy that knows nothing but words."""


class TaxiRow(ToyRow):
    start: int
    """The package's number of the state."""
    rainy: bool


def generate(size: int, seed: int, *, rainy: bool = False, min_steps: int = 1) -> Iterator[TaxiRow]:
    """`size` different tasks; row i depends on (seed, i, difficulty) and the rows before it alone.

    rainy: see above; without it there are 300 tasks. min_steps: of the best policy, at least. Raises RecipeError.
    """
    if not isinstance(rainy, bool):
        raise RecipeError(f"taxi: rainy = {rainy!r} must be true or false")
    weather = "It rains. " if rainy else ""

    def draw(rng: Any) -> TaxiRow | None:
        start = STARTS[int(rng.random() * len(STARTS))]
        waits, wanted = start // 4 % 5, start % 4
        prompt = f"{weather}Passenger at {PADS[waits]}. Bring him to {PADS[wanted]}."
        row: TaxiRow = {
            "prompt": prompt,
            "start": start,
            "rainy": rainy,
            "seed": random_seed(rng) if rainy else 0,
            "steps": 0,
        }
        steps = steps_of_the_best(Taxi(), Task("", prompt, columns=row), gold, chance=rainy)
        return None if steps is None or steps < min_steps else {**row, "steps": steps}

    yield from distinct("taxi", size, seed, draw, "300 starts are all there are in dry weather: lower size or min_steps, "
                        "or set rainy = true")  # fmt: skip


class Taxi(ToyText):
    name = "taxi"
    words: ClassVar[Mapping[str, int]] = {"south": 0, "north": 1, "east": 2, "west": 3, "pickup": PICKUP,
             "dropoff": DROPOFF, "pick up": PICKUP, "drop off": DROPOFF}  # fmt: skip
    needed = ("start", "rainy", "seed")
    mistakes: int
    """Pickups and dropoffs where that was not possible."""
    wanted: int
    last: int | None

    def make(self, task: Task) -> Any:
        return made("Taxi-v4", is_rainy=task.columns["rainy"])

    def begin(self, task: Task) -> None:
        super().begin(task)
        self.library.s = task.columns["start"]
        self.mistakes, self.last = 0, None
        self.wanted = int(self.library.decode(self.at)[3])

    def act(self, action: int) -> None:
        before = self.at
        super().act(action)
        wrong = action in (PICKUP, DROPOFF) and self.at == before
        self.mistakes, self.last = self.mistakes + wrong, action if wrong else None

    def won(self, number: int) -> bool:
        """Set down at the pad he wanted: the package's start states never have him there."""
        _, _, where, wanted = self.library.decode(number)
        return bool(where == wanted)

    def lost(self) -> bool:
        return False

    def view(self) -> str:
        if self.won(self.at):
            return "Delivered."
        row, column, where, _ = self.library.decode(self.at)
        told = {PICKUP: " Nobody here.", DROPOFF: " No passenger to set down here."}.get(self.last or 0, "")
        at = "in the taxi" if where == IN_TAXI else f"at {PADS[where]}"
        return f"Taxi {row} {column}. Passenger {at}.{told}"

    def state(self) -> State:
        row, column, where, wanted = (int(number) for number in self.library.decode(self.at))
        passenger = "taxi" if where == IN_TAXI else PADS[where]
        return {"taxi": [row, column], "passenger": passenger, "wants": PADS[wanted], "steps": self.num_steps,
                "idle": self.idle, "mistakes": self.mistakes}  # fmt: skip


def _delivered(task: Task, start: State, now: State) -> bool:
    return now["passenger"] == start["wants"]


def _mistakes(task: Task, states: Sequence[State]) -> float:
    return float(states[-1]["mistakes"] - states[0]["mistakes"])


def gold(task: Task, world: Environment) -> Iterator[str]:
    """A shortest way by the package's own table; in the rain the one that is shortest on average."""
    return follow(world, _best(task.columns["rainy"]))


@lru_cache
def _best(rainy: bool) -> dict[int, int]:
    taxi = Taxi()
    taxi.begin(Task("", "", columns={"start": STARTS[0], "rainy": rainy, "seed": 0}))
    return best_actions(taxi.library.P, taxi.won)[0]


def _without_passenger(task: Task, world: Environment) -> Iterator[str]:
    """Drives to where he wants to go, and tries to set down nobody."""
    taxi: Any = world
    goal = taxi.library.locs[taxi.wanted]
    there, _ = best_actions(taxi.library.P, lambda number: taxi.library.decode(number)[:2] == tuple(goal))
    yield from islice(follow(taxi, {s: a for s, a in there.items() if a < PICKUP}, harmless=True), patience(task))
    yield from ["dropoff"] * 3


def _another_pad(task: Task, world: Environment) -> Iterator[str]:
    """Fetches the passenger and sets him down where he does not want to go."""
    taxi: Any = world
    waits = int(taxi.library.decode(taxi.at)[2])
    other = next(pad for pad in range(4) if pad not in (taxi.wanted, waits))
    there, _ = best_actions(taxi.library.P, lambda number: taxi.library.decode(number)[2] == other, taxi.won)
    return islice(follow(taxi, there, harmless=True), patience(task) + 20)


Taxi.goal = Goal(_delivered)

SPEC = EnvSpec(
    name="taxi",
    version=VERSION,
    make=Taxi,
    generate=generate,
    goal=Taxi.goal,
    milestones=(Milestone("picked up", lambda task, before, after: after["passenger"] == "taxi" != before["passenger"]),),
    costs=(Cost("idle", "step that led nowhere", idle_steps), Cost("mistakes", "pickup or dropoff in vain", _mistakes)),
    gold=gold,
    known_bad={
        "empty": empty,
        "claims success": claims,
        "to and fro": to_and_fro,
        "without passenger": _without_passenger,
        "another pad": _another_pad,
    },
    volatile=("steps", "idle", "mistakes"),
    system=SYSTEM,
    seeded=False,
)
