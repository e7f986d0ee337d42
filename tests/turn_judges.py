"""Turn scorers for tests: good ones, and one for each way to go wrong. They run in processes of their own."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def always(action):
    return 1.0


def careful(before, after):
    """1 for a turn that came nearer to two, 0.5 for one that kept its distance, else 0."""
    was, now = abs(2 - before["count"]), abs(2 - after["count"])
    return 1.0 if now < was else 0.5 if now == was else 0.0


def by_word(action, **more):
    """What the action itself asks for, so that one episode can hold every case."""
    word = action.strip()
    if word == "touch":
        raise ValueError("no opinion")
    return {"+": 1.0, "-": 0, "save": None, "done": float("nan")}.get(word, 0.25)


def hangs_on_save(action):
    if action == "save":
        time.sleep(600)
    return 1


def dies_on_save(action):
    if action == "save":
        os._exit(3)
    return 1


def generous(action):
    return 1.5 if action == "save" else 0.5


def talks(action):
    return "very good"


async def slowly(action, messages, observation):
    return 0.5


def writes_down(task, turn, before, after, action, messages, observation, path):
    """Keeps all it was given, one line per turn."""
    seen = {"target": task.columns["target"], "turn": turn, "before": before, "after": after, "action": action,
            "messages": messages, "observation": observation}  # fmt: skip
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(seen) + "\n")
    return 1


def burns(action, seconds=0.1):
    """Uses that much CPU time."""
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass
    return 1.0


def burns_by_answers(completions, seconds=0.1):
    """A reward function that uses that much CPU time for each completion."""
    for _ in completions:
        burns("", seconds)
    return [0.0] * len(completions)


def sees_nothing(turn):
    return 1


def wants_more(action, colour):
    return 1
