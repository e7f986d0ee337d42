"""A counter that misbehaves on demand: `task.columns["plan"][n]` says what its n-th step does, "start" what its reset does.
"KIND once": only the first of all instances that get there, which leaves the file `path` behind.

A module of its own, because processes of their own import it by name.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time

from milepost.env import EnvSpec, Goal, Observation
from milepost.types import Task


def task(*plan: str, start: str = "", key: str = "", **columns) -> Task:
    return Task(key or "-".join((start, *plan)), "count", columns={"plan": list(plan), "start": start, **columns})


class Counter:
    """Counts its steps; the goal is as many as the plan has."""

    num_made = 0

    def __init__(self) -> None:
        self.count, self.plan, self.seed, self.odd = -1, [], 0, None
        Counter.num_made += 1

    def reset(self, task, seed):
        self.count, self.plan, self.seed, self.path = 0, task.columns["plan"], seed, task.columns.get("path")
        self.behave(task.columns["start"])
        return self.seen()

    def step(self, action):
        kind = self.plan[self.count]
        self.count += 1
        self.behave(kind)
        if kind == "not an observation":
            return {"messages": []}
        if kind == "bad message":
            return Observation(({"role": "user"},))
        if kind == "bad flag":
            return Observation(num_invalid=-1)
        return self.seen()

    def seen(self):
        return Observation(({"role": "user", "content": str(self.count)},), ended=self.count >= len(self.plan))

    def behave(self, kind):
        if kind.endswith(" once"):
            kind = kind.removesuffix(" once") if self.is_first() else "fine"
        if kind == "raise":
            raise RuntimeError("the tool broke")
        if kind == "stop":
            raise SystemExit(0)
        if kind == "interrupt":
            raise KeyboardInterrupt("Ctrl-C")
        if kind == "exit":
            os._exit(3)
        if kind == "spin":
            while True:
                pass
        if kind == "sleep":
            time.sleep(600)
        if kind == "doze":
            time.sleep(1.2)
        if kind == "slow":
            time.sleep(0.02)
        if kind == "sleep with child":
            with open(self.path, "w") as file:
                file.write(str(subprocess.Popen(["/bin/sleep", "600"]).pid))
            time.sleep(600)
        if kind.startswith("daemon"):  # a process that nothing but its place in the tree ties to this one
            reading, writing = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.write(writing, str(os.getpid()).encode())
                    os.execv("/bin/sleep", ["sleep", "600"])
                os._exit(0)
            with open(self.path, "w") as file:
                file.write(os.read(reading, 20).decode())
            if kind == "daemon and exit":
                os._exit(3)
            time.sleep(600 if kind == "daemon and sleep" else 0)
        if kind == "flaky":  # works the third time
            with open(self.path, "a+") as file:
                file.write("x")
                file.seek(0)
                if len(file.read()) < 3:
                    raise ConnectionError("server is busy")
        if kind == "temporary":
            with open(tempfile.mkstemp(prefix="odd-")[0], "w") as file:
                file.write("left behind")
        self.odd = {
            "set": {1, 2},
            "nan": float("nan"),
            "tuple": (1,),
            "number as key": {1: 2},
            "surrogate": "\udc80",
            "huge": ["x" * 5_000_000],
        }.get(kind)

    def is_first(self):
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def state(self):
        if isinstance(self.odd, str):
            return {"text": self.odd}
        return {"count": self.count, "seed": self.seed, "pid": os.getpid()} | ({"odd": self.odd} if self.odd else {})

    def snapshot(self):
        return json.dumps([self.count, self.plan, self.seed]).encode()

    def restore(self, saved):
        self.count, self.plan, self.seed = json.loads(saved)

    def close(self):
        if self.plan and self.plan[-1] == "close fails":
            raise OSError("cannot close")


class Alike(Counter):
    """The same facts in whatever process it is."""

    def state(self):
        return {key: value for key, value in Counter.state(self).items() if key != "pid"}


class Patient(Counter):
    """The same with async methods, and a clock that ticks on between its steps."""

    async def reset(self, task, seed):
        self.ticks = 0
        self.ticking = asyncio.create_task(self.tick())
        return Counter.reset(self, task, seed)

    async def tick(self):
        while True:
            await asyncio.sleep(0.001)
            self.ticks += 1

    async def step(self, action):
        if self.plan[self.count] == "wait":
            await asyncio.sleep(600)
        await asyncio.sleep(0)
        return Counter.step(self, action)

    def state(self):
        return {**Counter.state(self), "ticks": self.ticks}

    async def close(self):
        self.ticking.cancel()


def solved(task, start, state):
    return state["count"] == len(task.columns["plan"])


def generate(size, seed, **difficulty):
    for i in range(size):
        yield {"prompt": f"count {i}", "plan": ["fine"] * 3, "start": ""}


SPEC = EnvSpec("odd", "1", Counter, generate, Goal(solved))
ALIKE = EnvSpec("alike", "1", Alike, generate, Goal(solved))
PATIENT = EnvSpec("patient", "1", Patient, generate, Goal(solved))
