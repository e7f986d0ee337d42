"""A world as small as can be, for tests of rewards: count up to a target, save it, and leave everything else alone."""

from __future__ import annotations

from collections.abc import Iterator

from milepost.env import Cost, EnvSpec, Goal, Milestone, Observation
from milepost.scripted import episode_of, play_script
from milepost.types import Episode, Task

WORDS = ("+", "-", "save", "touch", "done")


class Counter:
    def reset(self, task, seed):
        self.count, self.saved, self.other = 0, 0, 0
        return Observation(({"role": "user", "content": str(task.columns["target"])},))

    def step(self, action):
        word = action.text.strip()
        if word == "save":
            self.saved = self.count
        elif word == "touch":
            self.other += 1
        elif word in ("+", "-"):
            self.count += 1 if word == "+" else -1
        elif word != "done":
            return Observation(num_invalid=1)
        return Observation(ended=word == "done")

    def state(self):
        return {"count": self.count, "saved": self.saved, "other": self.other}

    def close(self):
        pass


def generate(size: int, seed: int, *, target: int = 2) -> Iterator[dict]:
    for i in range(size):
        yield {"prompt": f"count {i}", "target": target}


def solved(task, start, now):
    return now["saved"] == task.columns["target"] and now["other"] == start["other"]


def gold(task, env):
    yield from ["+"] * task.columns["target"]
    yield from ("save", "done")


SPEC = EnvSpec(
    name="counter",
    version="1",
    make=Counter,
    generate=generate,
    goal=Goal(solved, ends=False),
    milestones=(
        Milestone("half", lambda task, before, now: before["count"] < task.columns["target"] / 2 <= now["count"]),
        Milestone("full", lambda task, start, now: now["count"] == task.columns["target"], "state"),
        Milestone("stored", lambda task, start, now: now["saved"] == task.columns["target"], "state", after=("full",)),
    ),
    costs=(Cost("damage", "touched record", lambda task, states: states[-1]["other"] - states[0]["other"]),),
    gold=gold,
    known_bad={
        "claims": lambda task, env: iter(["Step 1 done.", "I saved it: success!"]),
        "loops over a milestone": lambda task, env: iter(["+", "-"] * 6),
        "undoes and does again": lambda task, env: iter(["+"] * task.columns["target"] + ["-", "+"] * 3),
        "touches another record": lambda task, env: iter([*[*gold(task, env)][:-1], "touch", "done"]),
        "ends early": lambda task, env: iter(["done"]),
    },
)
TASK = Task("two", "count", columns={"target": 2})


def played(*words: str, task: Task = TASK, spec: EnvSpec = SPEC, member: int = 0) -> Episode:
    """The episode of a policy that writes these words."""
    return episode_of(play_script(spec, task, lambda task, env: iter(words)), task, member)
