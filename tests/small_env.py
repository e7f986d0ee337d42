"""A world for whole-loop tests: three letters are shown one after the other, and each is to be answered by the next one.

The hasty script knows the rule and often slips; only the outcome of the whole episode tells.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

from milepost.env import EnvSpec, Goal, Milestone, Observation

LETTERS = "abcdefgh"


def after(letter: str) -> str:
    return LETTERS[(LETTERS.index(letter) + 1) % len(LETTERS)]


class Next:
    def reset(self, task, seed):
        self.letters, self.answers = task.columns["letters"], []
        return Observation(({"role": "user", "content": f"{self.letters[0]}:"},))

    def step(self, action):
        said = action.text.strip()
        if len(said) != 1 or said not in LETTERS:
            return Observation(({"role": "user", "content": f"{self.letters[len(self.answers)]}:"},), num_invalid=1)
        self.answers.append(said)
        ended = len(self.answers) == len(self.letters)
        shown = "" if ended else f"{self.letters[len(self.answers)]}:"
        return Observation(({"role": "user", "content": shown},), ended=ended)

    def state(self):
        return {"answers": list(self.answers)}

    def snapshot(self):
        return json.dumps([self.letters, self.answers]).encode()

    def restore(self, saved):
        self.letters, self.answers = json.loads(saved)

    def close(self):
        pass


def generate(size, seed, *, length=3):
    draw = random.Random(seed)
    seen = set()
    while len(seen) < min(size, len(LETTERS) ** length):
        letters = "".join(draw.choices(LETTERS, k=length))
        if letters not in seen:
            seen.add(letters)
            yield {"prompt": letters[0], "letters": letters}


def right(task, start, now):
    return now["answers"] == [after(letter) for letter in task.columns["letters"]]


def gold(task, env):
    for letter in task.columns["letters"]:
        yield after(letter)


def hasty(task, env):
    """One letter in three is answered by itself."""
    draw = random.Random(task.key)
    for letter in task.columns["letters"]:
        yield letter if draw.random() < 1 / 3 else after(letter)


def first_right(task, before, now):
    return now["answers"][:1] == [after(task.columns["letters"][0])]


SPEC = EnvSpec("next", "1", Next, generate, Goal(right, ends=False), gold=gold,
               milestones=(Milestone("first", first_right),))  # fmt: skip


class Hanging(Next):
    def step(self, action):
        time.sleep(30)


class Broken(Next):
    def step(self, action):
        raise OSError("the tool\nbroke")


class Ending(Next):
    def step(self, action):
        os._exit(0)


class Staying(Next):
    def close(self):
        time.sleep(30)


def no_tasks(size, seed):
    yield {"prompt": "a", "letters": "abc"}
    raise OSError("no words")


def exits(size, seed):
    os._exit(0)
    yield {}


def leaves(size, seed):
    sys.exit("bye")
    yield {}


UNSUPPLIED, EXITING, LEAVING = (replace(SPEC, generate=each) for each in (no_tasks, exits, leaves))
HANGING, BROKEN, ENDING, STAYING = (replace(SPEC, make=make) for make in (Hanging, Broken, Ending, Staying))


def write_policy(folder: Path, **shape) -> Path:
    from milepost.policy import new_policy  # processes that play this world need no torch

    new_policy(folder, texts=[LETTERS + ":\n "], **(shape or {"layers": 2, "width": 48, "heads": 2}))
    return folder
