"""The expert of `babyai`: the bot that comes with MiniGrid, which solves BabyAI's levels, taught to read MiniGrid's own
missions as well. It sees what the agent sees and remembers it. Torch-free.

Not solved: boxes with a key inside, levels that begin with something in hand, mazes that ask for a memory, and MiniGrid's
own missions of two parts.
"""

from __future__ import annotations

from typing import Any

from minigrid.utils.baby_ai_bot import (
    BabyAIBot,
    GoNextToSubgoal,
    OpenSubgoal,
    PickupSubgoal,
    Subgoal,
)

DONE = 6
"""The package's action that says so."""
MOST_STEPS = 500


class Step(Subgoal):
    """Onto the cell ahead, once: the goal square is reached by standing on it."""

    def replan_before_action(self) -> Any:
        return self.actions.forward

    def replan_after_action(self, action_taken: Any) -> None:
        self.bot.stack.pop()


class Expert(BabyAIBot):
    """`target`: a thing to walk up to instead of what the mission asks for."""

    def __init__(self, level: Any, target: Any = None) -> None:
        self.target = target
        for column, row, thing in things_of(level):
            if thing.cur_pos is None:  # some levels lay their things out without telling them where they are
                thing.cur_pos = (column, row)
        if not hasattr(level, "room_from_pos"):
            level.room_from_pos = lambda column, row: None  # only BabyAI's "on your left" would need one
        super().__init__(level)

    def next_action(self) -> int:
        """Raises AssertionError (the bot's own), TypeError or AttributeError where the bot is at its wits' end."""
        return int(self.replan())

    def _process_instr(self, instr: Any) -> None:
        if self.target is not None:
            self.stack.append(GoNextToSubgoal(self, self.target))
        elif instr is not None:
            super()._process_instr(instr)
        else:
            self.stack += self._plan(self.mission)

    def _plan(self, level: Any) -> list[Subgoal]:
        """What MiniGrid's own missions ask for; the last one comes first."""
        found = things_of(level)
        squares = [(column, row) for column, row, thing in found if thing.type == "goal"]
        named = [thing for _, _, thing in found if level.mission.endswith(f"{thing.color} {thing.type}")]
        if squares:
            return [Step(self), GoNextToSubgoal(self, squares[0])]
        if level.mission == "open the door":
            return [OpenSubgoal(self), GoNextToSubgoal(self, level.door, reason="Open")]
        if named and level.mission.startswith("go to"):
            return [GoNextToSubgoal(self, named[0])]
        if named or hasattr(level, "obj"):
            return [PickupSubgoal(self), GoNextToSubgoal(self, level.obj if hasattr(level, "obj") else named[0])]
        raise AttributeError(f"no plan for {level.mission!r}")


def things_of(level: Any) -> list[tuple[int, int, Any]]:
    """(column, row, thing) of all that lies or stands in a level but walls and floor, column by column."""
    cells = ((i, j, level.grid.get(i, j)) for i in range(level.width) for j in range(level.height))
    return [(i, j, cell) for i, j, cell in cells if cell is not None and cell.type not in ("wall", "floor")]
