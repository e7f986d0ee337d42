"""`babyai`: the grid worlds of BabyAI and MiniGrid as text: a mission, and what the agent sees, in words. Torch-free.

    go to the purple ball
    You see a red key 1 step forward and 2 left, a purple ball 4 steps forward and 1 right, a wall 5 steps forward.
    > forward                           You see a red key 2 steps left, a purple ball 3 steps forward and 1 right, …
    …
    > right                             Solved.

One action of the package a turn. A mission is over when the package's own verifier says so; "done" gives up, except where
a level asks for it. Every task was solved by the package's expert when it was made.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from itertools import cycle, islice, repeat
from typing import Any, ClassVar, TypedDict

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it would greet on standard output

import gymnasium
import minigrid  # noqa: F401  (registers its levels)
from minigrid.envs.babyai.core import roomgrid_level
from minigrid.envs.babyai.core.verifier import SeqInstr

from milepost.env import Cost, Environment, EnvSpec, Goal, Milestone, State
from milepost.envs.babyai_bot import DONE, MOST_STEPS, Expert, things_of
from milepost.envs.babyai_view import DOORS, describe, name_of
from milepost.envs.foreign import Foreign, whole_number, written
from milepost.streams import generator
from milepost.types import RecipeError, Task

# A level that is drawn anew says so on standard output, from any thread.
roomgrid_level.print = lambda *words: None  # type: ignore[attr-defined]

SYSTEM = (
    "You are in a grid and see what lies up to 6 steps ahead and 3 to either side. "
    "Write one of: left, right, forward, pick up, drop, toggle, done. "
    "left and right turn you, toggle opens the door or box ahead, done gives up."
)
WORDS = (
    f"{SYSTEM} go to the a pick up open put next to then after you and on your left right in front of behind object "
    "red green blue purple yellow grey key ball box door goal lava wall open closed locked an You see nothing. You carry "
    "1 step forward and 2 steps left, Nothing happened. Not understood. It is over. Solved. Failed. carry 0123456789 "
    "use the key to open the door and then get to the goal green goal square reach avoid lava find opening get fetch"
)
"""Every word of BabyAI's missions and of all observations and actions: texts for a policy that knows nothing but words."""
FACING = ("east", "south", "west", "north")
FAMILIES = ("MiniGrid-", "BabyAI-")
MAX_DRAWS = 200


class BabyAIRow(TypedDict):
    prompt: str
    level: str
    """The package's id."""
    seed: int
    """The package's own."""
    terse: bool
    wanted: list[str]
    """Things that the mission names."""
    steps: int
    """Of the expert."""


def generate(
    size: int, seed: int, *, levels: str | Sequence[str] = "GoToLocal", terse: bool = False, min_steps: int = 3,
    max_steps: int = MOST_STEPS,
) -> Iterator[BabyAIRow]:  # fmt: skip
    """`size` different tasks; row i depends on (seed, i, difficulty) and the rows before it alone.

    levels: some of BabyAI's and MiniGrid's, drawn from evenly: "GoToLocal,PickupLoc", "DoorKey-8x8", or whole ids.
    terse: views in fewer words. min_steps, max_steps: of the expert. Raises RecipeError.
    """
    names = re.findall(r"[\w-]+", levels) if isinstance(levels, str) else levels
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise RecipeError(f'babyai: levels = {levels!r} must be names of levels, such as "GoToLocal,PickupLoc"')
    ids = [level_id(name) for name in names]
    if not ids:
        raise RecipeError(f'babyai: levels = {levels!r} names none; "GoToLocal" is one')
    if not isinstance(terse, bool):
        raise RecipeError(f"babyai: terse = {terse!r} must be true or false")
    whole_number("babyai", "min_steps", min_steps, 1, MOST_STEPS)
    whole_number("babyai", "max_steps", max_steps, min_steps, MOST_STEPS)
    seen: set[tuple[str, str]] = set()
    for index in range(size):
        rng = generator(seed, f"babyai/{index}")
        name = ids[int(rng.random() * len(ids))]
        for _ in range(MAX_DRAWS):
            world = Level(name, int(rng.random() * 2**31))
            if world.identity in seen:
                continue
            steps = expert_steps(world)
            if steps is not None and min_steps <= steps <= max_steps:
                break
        else:
            raise RecipeError(f"babyai: after {index} different tasks {MAX_DRAWS} draws of {name} gave no further one "
                              f"that the expert solves in {min_steps} to {max_steps} steps; widen them or name another "
                              "level")  # fmt: skip
        seen.add(world.identity)
        yield {"prompt": world.mission, "level": name, "seed": world.seed, "terse": terse, "wanted": world.wanted,
               "steps": steps}  # fmt: skip


def level_id(name: str) -> str:
    """The package's id: "GoToLocal" is "BabyAI-GoToLocal-v0". Raises RecipeError."""
    ids = _levels()
    if name in ids:
        return ids[name]
    if name in gymnasium.registry and name.startswith(FAMILIES):
        return name
    near = difflib.get_close_matches(name, ids, n=1, cutoff=0.4)
    raise RecipeError(f"babyai: levels names {name!r}, which is no level of MiniGrid's"
                      f"{f'; did you mean {near[0]!r}?' if near else ''}")  # fmt: skip


@lru_cache(maxsize=1)
def _levels() -> dict[str, str]:
    """Short name → id, the latest version; BabyAI's before MiniGrid's of the same name."""
    found: dict[str, str] = {}
    for family in FAMILIES:
        ids = sorted(name for name in gymnasium.registry if name.startswith(family) and "-WFC-" not in name)
        found |= {name.removeprefix(family).rpartition("-v")[0]: name for name in ids}
    return found


# ---- the world -------------------------------------------------------------------------------------------------------


class Level:
    """One level of the package, and how its mission stands."""

    def __init__(self, name: str, seed: int) -> None:
        self.seed = seed
        made: Any = gymnasium.make(name, disable_env_checker=True)
        self.grid = made.unwrapped
        self.grid.reset(seed=seed)
        # The recipe's budgets count: the package pays less the later, and below 0 beyond its own.
        self.grid.max_steps = 1 << 40
        self.mission = str(self.grid.mission)
        self.identity = (self.mission, str(self.grid.hash(64)))
        self.instrs: Any = getattr(self.grid, "instrs", None)
        self.grid.instrs = self.instrs  # the bot asks for it in every level
        self.status = "running"
        self.wanted = self._named()

    def act(self, action: int) -> None:
        _, reward, ended, _, _ = self.grid.step(action)
        if ended:
            self.status = "solved" if reward > 0 else "failed"
        elif action == DONE:
            self.status = "failed"

    def image(self) -> list[list[list[int]]]:
        """[7][7][3], as the agent sees it: `describe` has the order."""
        image: list[list[list[int]]] = self.grid.gen_obs()["image"].tolist()
        return image

    def carrying(self) -> str:
        return "" if self.grid.carrying is None else name_of(self.grid.carrying.encode())

    def parts(self) -> list[bool]:
        """Which parts of a compound mission are done."""
        return _done(self.instrs) if isinstance(self.instrs, SeqInstr) else [self.status == "solved"]

    def _named(self) -> list[str]:
        """What the mission names, in the package's own words for things: "red ball", "grey door"."""
        named = [thing for instr in leaves(self.instrs) for thing in _described(instr)]
        if self.instrs is None:
            found = [thing for _, _, thing in things_of(self.grid)]
            named = [thing for thing in found if f"{thing.color} {thing.type}" in self.mission]
        return sorted({f"{thing.color} {thing.type}" for thing in named})


def _described(instr: Any) -> list[Any]:
    descriptions = (getattr(instr, name, None) for name in ("desc", "desc_move", "desc_fixed"))
    return [thing for description in descriptions if description is not None for thing in description.obj_set]


def leaves(instr: Any) -> list[Any]:
    """The single instructions of a mission, in the order of its words; none of a level that is not BabyAI's."""
    if isinstance(instr, SeqInstr):
        return [*leaves(instr.instr_a), *leaves(instr.instr_b)]
    return [] if instr is None else [instr]


def _done(instr: Any) -> list[bool]:
    both = ((instr.instr_a, instr.a_done), (instr.instr_b, instr.b_done))
    return [flag for part, done in both for flag in (_done(part) if isinstance(part, SeqInstr) else [done == "success"])]


def expert_steps(level: Level) -> int | None:
    """How many steps the expert needs; None if it does not solve the level. The level is played by that."""
    try:
        expert = Expert(level.grid)
        for number in range(1, MOST_STEPS + 1):
            action = expert.next_action()
            level.act(action)
            if level.status != "running":
                return number if level.status == "solved" else None
    except (AssertionError, AttributeError, TypeError):
        return None
    return None


class BabyAI(Foreign):
    name = "babyai"
    words: ClassVar[Mapping[str, int]] = {
        "left": 0, "right": 1, "forward": 2, "pick up": 3, "drop": 4, "toggle": 5, "done": DONE,
        "pickup": 3, "turn left": 0, "turn right": 1, "go forward": 2, "move forward": 2, "open": 5,
    }  # fmt: skip
    needed = ("level", "seed", "wanted")
    level: Level
    idle: int
    sees: str

    def begin(self, task: Task) -> None:
        self.level, self.idle, self.last_idle = Level(task.columns["level"], task.columns["seed"]), 0, False
        self._look()

    def act(self, action: int) -> None:
        before = self._world()
        self.level.act(action)
        self._look()
        self.last_idle = before == self._world()
        self.idle += self.last_idle

    def lost(self) -> bool:
        return self.level.status == "failed"

    def view(self) -> str:
        if self.level.status != "running":
            return "Solved." if self.level.status == "solved" else "Failed."
        return f"{'Nothing happened. ' if self.last_idle else ''}{self.sees}"

    def state(self) -> State:
        return {**self._world(), "sees": self.sees, "steps": self.num_steps, "idle": self.idle}

    def _look(self) -> None:
        self.sees = describe(self.level.image(), self.level.carrying(), self.task.columns.get("terse", False))

    def _world(self) -> dict[str, Any]:
        grid = self.level.grid
        return {"at": [int(number) for number in grid.agent_pos], "facing": FACING[grid.agent_dir],
                "carrying": self.level.carrying(), "status": self.level.status, "parts": self.level.parts(),
                "things": [[i, j, name_of(thing.encode())] for i, j, thing in things_of(grid)]}  # fmt: skip


# ---- what counts -----------------------------------------------------------------------------------------------------


def _solved(task: Task, start: State, now: State) -> bool:
    return now["status"] == "solved"


def in_sight(task: Task, state: State) -> bool:
    """Does the agent see or carry something that the mission names?"""
    return any(name in state["sees"] for name in task.columns["wanted"])


def _found(task: Task, before: State, after: State) -> bool:
    return in_sight(task, after) and not in_sight(task, before)


def _held(task: Task, before: State, after: State) -> bool:
    return after["carrying"] != before["carrying"] and after["carrying"] in task.columns["wanted"]


def _part(task: Task, before: State, after: State) -> bool:
    return after["status"] != "solved" and sum(after["parts"]) > sum(before["parts"])


def _opened(task: Task, before: State, after: State) -> bool:
    return _num_open(after) > _num_open(before)


def _num_open(state: State) -> int:
    return sum(name.startswith(DOORS[0]) for _, _, name in state["things"])


def summed_up(task: Task, start: State, now: State) -> str:
    """How the mission stands, and the view at hand."""
    done = sum(now["parts"])
    told = f"{done} of {len(now['parts'])} parts are done. " if len(now["parts"]) > 1 else ""
    return f"{told}{now['sees']}"


def _idle(task: Task, states: Sequence[State]) -> float:
    return float(states[-1]["idle"] - states[0]["idle"])


def _steps(task: Task, states: Sequence[State]) -> float:
    return float(states[-1]["steps"] - states[0]["steps"])


# ---- scripted policies -----------------------------------------------------------------------------------------------

WRITTEN = written(BabyAI.words)


def gold(task: Task, world: Environment) -> Iterator[str]:
    """The package's expert."""
    expert = Expert(world.level.grid)  # type: ignore[attr-defined]
    while True:  # it is not asked again once the mission is over
        yield WRITTEN[expert.next_action()]


def _patience(task: Task) -> int:
    return 3 * int(task.columns["steps"])


def _empty(task: Task, world: Environment) -> Iterator[str]:
    return repeat("", _patience(task))


def _claims(task: Task, world: Environment) -> Iterator[str]:
    return repeat("Step 1 done. The mission is accomplished. Success!", _patience(task))


def _gives_up(task: Task, world: Environment) -> Iterator[str]:
    yield WRITTEN[DONE]


def _spins(task: Task, world: Environment) -> Iterator[str]:
    """Turns and looks, and says done: never a step nearer. Does not turn towards what would solve the mission by chance."""
    if _solves_by_turning(task):
        return
    yield from islice(cycle(("left",)), 5)
    yield WRITTEN[DONE]


def _solves_by_turning(task: Task) -> bool:
    level = Level(task.columns["level"], task.columns["seed"])
    for action in (0, 0, 0, 0):
        level.act(action)
    return level.status == "solved"


BabyAI.goal = Goal(_solved)

SPEC = EnvSpec(
    name="babyai",
    version=f"1 (minigrid {version('minigrid')})",  # another release may draw other tasks
    make=BabyAI,
    generate=generate,
    goal=BabyAI.goal,
    milestones=(
        Milestone("found", _found),
        Milestone("held", _held),
        Milestone("opened", _opened),
        Milestone("part", _part),
    ),
    costs=(Cost("steps", "action of the package", _steps), Cost("idle", "action that changed nothing", _idle)),
    gold=gold,
    known_bad={"empty": _empty, "claims success": _claims, "gives up": _gives_up, "spins": _spins},
    volatile=("steps", "idle"),
    summary=summed_up,
    system=SYSTEM,
    seeded=False,
)
