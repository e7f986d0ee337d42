"""The side of `textworld` that touches the package: makes games and plays one. Runs in processes of its own, since the
package imports a library under the GPL and keeps much of what it knows in global variables. Torch-free.

A task without a walkthrough asks for its game to be made; what it then needs to know of it is the start state.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import textworld
import textworld.generator
from textworld.challenges import CHALLENGES

from milepost.env import Action, EnvSpec, Goal, Observation, State
from milepost.types import Message, Task

INFOS = textworld.EnvInfos(
    facts=True, won=True, lost=True, score=True, moves=True, description=True, inventory=True, admissible_commands=True,
    verbs=True,
)  # fmt: skip
SHORT = frozenset(
    [
        "n",
        "north",
        "s",
        "south",
        "e",
        "east",
        "w",
        "west",
        "l",
        "look",
        "i",
        "inventory",
        "x",
        "examine",
        "get",
        "pick",
        "take",
        "go",
    ]
)
_COMMAND = re.compile(r"[a-z0-9][a-z0-9 '-]{0,79}", re.IGNORECASE)
_END = re.compile(r"\n\s*\*\*\* .*", re.DOTALL)
_STATUS = re.compile(r"\n>[^\n]*\Z")
SEED = 20181018


class Game:
    """One game being played. The task decides everything: the seed of `reset` is not needed."""

    env: Any = None

    def reset(self, task: Task, seed: int) -> Observation:
        path = Path(task.columns["path"])
        if not path.exists():
            make(path, task.columns["family"], task.columns["settings"], task.columns["game_seed"])
        self.row: dict[str, Any] | None = None
        if "walkthrough" not in task.columns:
            self.row = json.loads(path.with_suffix(".row").read_text(encoding="utf-8"))
            return Observation(_said("made"))
        self.env = textworld.start(str(path), INFOS)
        self.env.seed(SEED)
        self.seen = self.env.reset()
        self.over = False
        return Observation(_said(_cleaned(self.seen.description)))

    def step(self, action: Action) -> Observation:
        """A command that the game does not know, or that changes nothing and is not among those it offers, is refused."""
        command = self._command(action.text)
        if command is None:
            return Observation(_said("That is no command of this game."), num_invalid=1)
        before, offered = _facts(self.seen), set(self.seen.admissible_commands)
        self.seen, _, self.over = self.env.step(command)
        known = command in offered or command.split()[0] in SHORT or before != _facts(self.seen)
        text = _cleaned(self.seen.feedback) or "Nothing happens."
        return Observation(_said(text), ended=bool(self.over), num_invalid=int(not known))

    def state(self) -> State:
        if self.row is not None:
            return self.row
        return {**_facts(self.seen), "moves": self.seen.moves, "view": _cleaned(self.seen.description),
                "held": _cleaned(self.seen.inventory)}  # fmt: skip

    def close(self) -> None:
        env, self.env = self.env, None
        if env is not None:
            env.close()

    def _command(self, text: str) -> str | None:
        """The first line, if it begins with a verb of the game: the interpreter knows others, such as "save" and "undo"."""
        line = next((line for line in text.splitlines() if line.strip()), "")
        command = " ".join(line.strip().removeprefix(">").split())
        if self.over or not _COMMAND.fullmatch(command) or " then " in f"{command} ":
            return None
        return command if command.split()[0].lower() in SHORT | set(self.seen.verbs) else None


def make(path: Path, family: str, settings: Mapping[str, Any], seed: int) -> None:
    """Compiles a game and writes beside it what tasks tell of it; whole or not at all. Seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=".making-"))
    try:
        options = textworld.GameOptions()
        options.seeds, options.path, options.file_ext = seed, str(folder / path.name), ".z8"
        options.grammar.only_last_action = settings.get("goal") == "brief"
        game = CHALLENGES[f"tw-{family}"][1](dict(settings), options)
        textworld.generator.compile_game(game, options)
        row = {"objective": _cleaned(game.objective), "walkthrough": list(game.metadata["walkthrough"]),
               "max_score": int(game.max_score)}  # fmt: skip
        (folder / path.name).with_suffix(".row").write_text(json.dumps(row), encoding="utf-8")
        for ending in (".json", ".row", path.suffix):  # the game comes last: where it is, all is
            os.replace((folder / path.name).with_suffix(ending), path.with_suffix(ending))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _facts(seen: Any) -> dict[str, Any]:
    return {"facts": sorted(map(str, seen.facts)), "score": int(seen.score or 0), "won": bool(seen.won),
            "lost": bool(seen.lost)}  # fmt: skip


def _cleaned(text: str) -> str:
    """What is said, without the prompt, the status line and the question what to do after the end."""
    text = _END.sub("", _STATUS.sub("", f"\n{text or ''}".rstrip("\n")))
    lines = [" ".join(line.split()) for line in text.split("\n")]
    return "\n".join(line for line in lines if line)


def _said(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def _none(size: int, seed: int) -> Iterator[Mapping[str, Any]]:
    return iter(())


SPEC = EnvSpec("textworld game", "1", Game, _none, Goal(lambda task, start, now: bool(now.get("won"))))
