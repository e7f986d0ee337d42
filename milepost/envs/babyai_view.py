"""What an agent of MiniGrid sees, in words: its view of 7 × 7 cells, which it looks over from the middle of the lowest row.

    You see a grey key 3 steps forward and 2 right, a closed red door 1 step left. You carry a blue ball.
    grey key 3 forward 2 right, closed red door 1 left. carry blue ball.                           (terse)

Things come nearest first. Of the walls only the first one straight ahead and to either side is told. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

TYPES = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOORS = ("open", "closed", "locked")
"""By the package's numbers, as its images encode them."""

Cell = Sequence[int]
"""(type, colour, state)"""


class Thing(NamedTuple):
    """`forward` and `right`: steps from the agent as it looks; a negative `right` is to the left."""

    name: str
    forward: int
    right: int


def name_of(cell: Cell) -> str:
    """ "grey key", "locked red door", "lava", or "" for what is no thing: floor, walls and the unseen."""
    kind, colour = TYPES[cell[0]], COLOURS[cell[1]]
    if kind in ("unseen", "empty", "wall", "floor", "agent"):
        return ""
    return "lava" if kind == "lava" else f"{DOORS[cell[2]]} {colour} door" if kind == "door" else f"{colour} {kind}"


def things(image: Sequence[Sequence[Cell]]) -> list[Thing]:
    """All that is seen, nearest first, then from the front and from the left. `image[i][j]`: column i from the left, row j
    from the far end, as the package gives it. What the agent carries lies in its own cell and is left out."""
    middle, last = len(image) // 2, len(image[0]) - 1
    found = [Thing(name_of(cell), last - j, i - middle) for i, column in enumerate(image) for j, cell in enumerate(column)]
    seen = [thing for thing in found if thing.name and (thing.forward or thing.right)]
    return sorted(seen, key=lambda thing: (thing.forward + abs(thing.right), -thing.forward, thing.right))


def walls(image: Sequence[Sequence[Cell]]) -> Iterator[Thing]:
    """The first wall straight ahead, to the left and to the right, as far as they are seen."""
    middle, last = len(image) // 2, len(image[0]) - 1
    ways = [[(step, 0) for step in range(1, last + 1)]]
    ways += [[(0, side * step) for step in range(1, middle + 1)] for side in (-1, 1)]
    for way in ways:
        there = (Thing("wall", *at) for at in way if TYPES[image[middle + at[1]][last - at[0]][0]] == "wall")
        yield from list(there)[:1]


def place(thing: Thing, terse: bool = False) -> str:
    """ "3 steps forward and 2 right", "1 step left"; terse "3 forward 2 right"."""
    parts = [(thing.forward, "forward")] if thing.forward else []
    parts += [(abs(thing.right), "right" if thing.right > 0 else "left")] if thing.right else []
    if terse:
        return " ".join(f"{number} {way}" for number, way in parts)
    (number, way), *rest = parts
    return " and ".join([f"{number} step{'s' * (number > 1)} {way}", *(f"{number} {way}" for number, way in rest)])


def describe(image: Sequence[Sequence[Cell]], carrying: str = "", terse: bool = False) -> str:
    """The view in one or two sentences. Examples above."""
    seen = [*things(image), *walls(image)]
    if terse:
        told = ", ".join(f"{thing.name} {place(thing, terse=True)}" for thing in seen) or "nothing"
        return f"{told}.{f' carry {carrying}.' if carrying else ''}"
    told = ", ".join(f"{with_article(thing.name)} {place(thing)}" for thing in seen) or "nothing"
    return f"You see {told}.{f' You carry {with_article(carrying)}.' if carrying else ''}"


def with_article(name: str) -> str:
    return name if name == "lava" else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
