"""A world that counts the letters a that a policy writes. A module of its own, because processes of their own import it.

With the column `waits`, every step lasts until the file of that name has grown to `many` bytes; with `notes` each step adds
one byte to it. So a tool can be slower than others by turns, not by seconds.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace

from milepost.env import EnvSpec, Goal, Observation

DEADLINE = 30.0
MANY = 8
"""Steps of others that a waiting one lets pass."""


class Letters:
    """A text without any letter a is invalid."""

    notes: str | None = None
    waits: str | None = None

    def reset(self, task, seed):
        self.wanted, self.count, self.seed, self.rewrite = task.columns["wanted"], 0, seed, task.columns.get("rewrite")
        self.notes, self.waits = task.columns.get("notes"), task.columns.get("waits")
        return Observation(({"role": "user", "content": f"{task.prompt}:"},))

    def step(self, action):
        if self.notes:
            with open(self.notes, "ab") as file:
                file.write(b".")
        deadline = time.monotonic() + DEADLINE
        while self.is_waiting(deadline):
            time.sleep(0.01)
        return self.seen(action)

    def is_waiting(self, deadline):
        if not self.waits or (os.path.exists(self.waits) and os.path.getsize(self.waits) >= MANY):
            return False
        if time.monotonic() > deadline:
            raise TimeoutError("nobody else went on")
        return True

    def seen(self, action):
        found = action.text.count("a")
        self.count += found
        shown = ({"role": "user", "content": f"{self.count}:"},)
        return Observation(shown, num_invalid=int(not found), history=shown if self.rewrite else None)

    def state(self):
        return {"count": self.count, "wanted": self.wanted}

    def close(self):
        pass


class Patient(Letters):
    """The same with an async step."""

    async def step(self, action):
        deadline = time.monotonic() + DEADLINE
        while self.is_waiting(deadline):
            await asyncio.sleep(0.01)
        return Letters.step(self, action)


GOAL = Goal(lambda task, start, now: now["count"] >= now["wanted"])
SPEC = EnvSpec("letters", "1", Letters, lambda size, seed: iter(()), GOAL)
PATIENT = replace(SPEC, make=Patient)
