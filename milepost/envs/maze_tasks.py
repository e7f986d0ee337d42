"""What `maze` is played in: mazes as plain JSON, their exact shortest paths, and the generator of its tasks. Torch-free.

    {"start": "2 1", "exit": "0 0", "keys": {"green": "0 2"},
     "rooms": {"2 1": {"north": ["2 2", ""]}, …, "0 1": {"east": ["1 1", ""], "south": ["0 0", "green"]}}}

Rooms are named "x y". The text behind a neighbour is the colour of the door to it, "" without one. A key stays in hand when
it opens, and opens the one door of its colour.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, NotRequired, TypedDict, TypeVar

import numpy as np

from milepost.env import State
from milepost.streams import generator
from milepost.types import RecipeError

Room = tuple[int, int]
T = TypeVar("T")
COLOURS = ("red", "blue", "green", "yellow")
STEPS = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
HELD = "held"
MAX_ROOMS = 100
"""10 × 10: the name of a room is two digits."""
MAX_DRAWS = 1000
TERSE = "One word: take, drop, open suffice. Rooms are xy; a capital is a locked door, behind the dot lie keys."
"""What the prompts of terse mazes say besides."""


# ---- the maze and its shortest paths ---------------------------------------------------------------------------------


class Where(NamedTuple):
    """What decides the rest of the way. `keys[i]`: the room of the maze's i-th key, or HELD."""

    at: str
    keys: tuple[str, ...]
    opened: frozenset[str]


def start_of(maze: Mapping[str, Any]) -> Where:
    return Where(maze["start"], tuple(maze["keys"].values()), frozenset())


def where_of(maze: Mapping[str, Any], state: State) -> Where:
    return Where(state["at"], tuple(state["keys"][colour] for colour in maze["keys"]), frozenset(state["opened"]))


def options(maze: Mapping[str, Any], where: Where, *, drop: bool = False) -> Iterator[tuple[str, Where]]:
    """Every action that changes something, and what it leads to. Without `drop`, which no shortest path needs."""
    at, keys, opened = where
    colours = tuple(maze["keys"])
    for direction, (room, colour) in maze["rooms"][at].items():
        if not colour or colour in opened:
            yield direction, Where(room, keys, opened)
        elif keys[colours.index(colour)] == HELD:
            yield f"open {direction}", Where(at, keys, opened | {colour})
    for i, place in enumerate(keys):
        if place == at:
            yield f"take {colours[i]}", Where(at, (*keys[:i], HELD, *keys[i + 1 :]), opened)
        elif drop and place == HELD:
            yield f"drop {colours[i]}", Where(at, (*keys[:i], at, *keys[i + 1 :]), opened)


def distances(maze: Mapping[str, Any], root: Where) -> dict[Where, int]:
    """Actions left to the exit, from all that can be reached from `root` without dropping a key."""
    before: dict[Where, list[Where]] = {root: []}
    queue = deque([root])
    while queue:
        where = queue.popleft()
        if where.at == maze["exit"]:
            continue
        for _, after in options(maze, where):
            if after not in before:
                before[after] = []
                queue.append(after)
            before[after].append(where)
    left = {where: 0 for where in before if where.at == maze["exit"]}
    queue.extend(left)
    while queue:
        after = queue.popleft()
        for where in before[after]:
            if where not in left:
                left[where] = left[after] + 1
                queue.append(where)
    return left


@lru_cache(maxsize=256)
def _cached_distances(maze_json: str, root: Where) -> dict[Where, int]:
    return distances(json.loads(maze_json), root)


def left_from(maze: Mapping[str, Any], where: Where) -> dict[Where, int]:
    """`distances` with `where` among the keys, remembered: one search serves a whole maze as long as no key is dropped."""
    text = json.dumps(maze)  # not sorted: the order of the keys is that of `Where.keys`
    left = _cached_distances(text, start_of(maze))
    return left if where in left else _cached_distances(text, where)  # after a key was dropped elsewhere


def shortest_path(maze: Mapping[str, Any], where: Where) -> list[str]:
    """The actions of one shortest way to the exit, always the same one."""
    left, actions = left_from(maze, where), []
    while left[where]:
        action, where = next((a, w) for a, w in options(maze, where) if left.get(w) == left[where] - 1)
        actions.append(action)
    return actions


# ---- tasks -----------------------------------------------------------------------------------------------------------


class MazeRow(TypedDict):
    prompt: str
    maze: dict[str, Any]
    """rooms: name → direction → (room, colour of its door or ""); keys: colour → room; start; exit."""
    shortest: int
    """Actions on the shortest way out."""
    num_rooms: int
    num_keys: int
    terse: NotRequired[bool]


def generate(
    size: int,
    seed: int,
    *,
    rooms: int = 16,
    keys: int = 1,
    loops: int = 0,
    min_length: int = 2,
    max_length: int = 0,
    terse: bool = False,
) -> Iterator[MazeRow]:
    """Rows of `size` different mazes; row i depends on (seed, i, difficulty) and the rows before it, not on `size`.

    rooms: 4 to 100, on a square grid. keys: 0 to 4, with as many locked doors, all of which must be opened. loops: passages
    more than a tree has. min_length, max_length: wanted range of the shortest path, in actions (0: no upper limit). terse:
    the same mazes, with actions of one word and short observations. Columns: maze, shortest (length of the shortest path),
    num_rooms, num_keys, and terse if it is so. Raises RecipeError.
    """
    _check_difficulty(rooms, keys, loops, min_length, max_length)
    if not isinstance(terse, bool):
        raise RecipeError(f"maze: terse = {terse!r} must be true or false")
    seen: set[str] = set()
    for index in range(size):
        rng, longest = generator(seed, f"maze/{index}"), 0
        for _ in range(MAX_DRAWS):
            maze = _draw(rng, rooms, keys, loops)
            length = distances(maze, start_of(maze)).get(start_of(maze), 0) if maze else 0
            longest = max(longest, length)
            if maze and min_length <= length <= (max_length or length) and (text := json.dumps(maze)) not in seen:
                break
        else:
            raise RecipeError(_nothing_found(rooms, keys, min_length, max_length, longest, len(seen)))
        seen.add(text)
        row: MazeRow = {
            "prompt": f"Exit {maze['exit']}.",
            "maze": maze,
            "shortest": length,
            "num_rooms": rooms,
            "num_keys": keys,
        }
        yield {**row, "prompt": f"{TERSE} Exit {maze['exit'].replace(' ', '')}.", "terse": True} if terse else row


def _check_difficulty(rooms: int, keys: int, loops: int, min_length: int, max_length: int) -> None:
    bounds = {"rooms": (rooms, 4, MAX_ROOMS), "keys": (keys, 0, len(COLOURS)), "loops": (loops, 0, MAX_ROOMS),
              "min_length": (min_length, 2, 1000), "max_length": (max_length, 0, 1000)}  # fmt: skip
    for name, (value, low, high) in bounds.items():
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise RecipeError(f"maze: {name} = {value!r} must be a whole number from {low} to {high}")
    if 0 < max_length < min_length:
        raise RecipeError(f"maze: max_length = {max_length} is below min_length = {min_length}; raise it, or set it to 0")


def _nothing_found(rooms: int, keys: int, low: int, high: int, longest: int, num_found: int) -> str:
    wanted = f"from {low} to {high}" if high else f"of {low} or more"
    return (f"maze: after {num_found} different mazes, {MAX_DRAWS} draws with rooms = {rooms} and keys = {keys} gave no "
            f"further one with a shortest path {wanted} actions (the longest drawn has {longest}); widen min_length to "
            "max_length, or change rooms or keys")  # fmt: skip


def _draw(rng: np.random.Generator, num_rooms: int, num_keys: int, num_loops: int) -> dict[str, Any] | None:
    """A random maze, or None if this draw has no place for a door or a key.

    The first door stands before the exit and each further one before the key of the last. A key is laid where no door
    bars the way yet, so the last key is free, opens the way to the one before it, and so on.
    """
    parents = _tree(rng, num_rooms)
    start = _pick(rng, list(parents))
    for room, parent in pairwise(_trail(parents, start)):  # the tree, hung up by the start
        parents[parent] = room
    parents[start] = start
    trails = {room: _trail(parents, room) for room in parents}
    others = [room for room in parents if room != start]
    far = 2 ** int(rng.random() * 4)  # the farthest of 1, 2, 4 or 8: lengths then spread over a wide range
    goal = target = max((_pick(rng, others) for _ in range(far)), key=lambda room: len(trails[room]))
    doors: dict[Room, str] = {}  # each between a room and its parent
    places: dict[Room, str] = {}
    for colour in [COLOURS[i] for i in _order(rng, len(COLOURS))[:num_keys]]:
        beside = {end for room in doors for end in trails[room][:2]}
        cuts = [room for room in trails[target][:-1] if beside.isdisjoint(trails[room][:2])]
        if not cuts:
            return None
        cut = cuts[int(rng.random() ** 3 * len(cuts))]  # rather near the target, or little of the maze is left for keys
        doors[cut] = colour
        free = [room for room in others if room not in places and room != goal and doors.keys().isdisjoint(trails[room])]
        if not free:
            return None
        spots = [_pick(rng, free) for _ in range(far)]
        target = max(spots, key={room: len({*trails[room]} ^ {*trails[cut]}) for room in spots}.__getitem__)
        places[target] = colour
    joined = {frozenset(trails[room][:2]): doors.get(room, "") for room in others}
    behind = {room: doors.keys() & trails[room] for room in parents}
    pairs = [frozenset((a, b)) for a in parents for b in _around(a) if a < b and behind.get(b) == behind[a]]
    walls = [pair for pair in pairs if pair not in joined]
    joined |= {walls[i]: "" for i in _order(rng, len(walls))[:num_loops]}
    return _as_json(start, goal, places, joined)


def _as_json(start: Room, goal: Room, places: Mapping[Room, str], joined: Mapping[frozenset[Room], str]) -> dict[str, Any]:
    rooms: dict[str, dict[str, list[str]]] = {}
    for a in sorted(frozenset().union(*joined)):
        exits = {direction: (b, frozenset((a, b))) for direction, b in zip(STEPS, _around(a))}
        rooms[_name(a)] = {d: [_name(b), joined[pair]] for d, (b, pair) in exits.items() if pair in joined}
    keys = {colour: _name(room) for room, colour in places.items()}
    return {"start": _name(start), "exit": _name(goal), "rooms": rooms,
            "keys": {colour: keys[colour] for colour in COLOURS if colour in keys}}  # fmt: skip


def _tree(rng: np.random.Generator, num_rooms: int) -> dict[Room, Room]:
    """Room → where a depth-first walk entered it from: long corridors with side arms. The first is its own parent."""
    width = math.isqrt(num_rooms - 1) + 1
    cells = [(i % width, i // width) for i in range(num_rooms)]
    inside, stack = set(cells), [_pick(rng, cells)]
    parents = {stack[0]: stack[0]}
    while stack:
        free = [room for room in _around(stack[-1]) if room in inside and room not in parents]
        if not free:
            stack.pop()
            continue
        room = _pick(rng, free)
        parents[room] = stack[-1]
        stack.append(room)
    return parents


def _trail(parents: Mapping[Room, Room], room: Room) -> list[Room]:
    """From a room back to the one that is its own parent."""
    trail = [room]
    while (parent := parents[trail[-1]]) != trail[-1]:
        trail.append(parent)
    return trail


def _pick(rng: np.random.Generator, items: Sequence[T]) -> T:
    return items[int(rng.random() * len(items))]


def _order(rng: np.random.Generator, n: int) -> list[int]:
    return [int(i) for i in np.argsort(rng.random(n), kind="stable")]


def _around(room: Room) -> list[Room]:
    return [(room[0] + x, room[1] + y) for x, y in STEPS.values()]


def _name(room: Room) -> str:
    return f"{room[0]} {room[1]}"
