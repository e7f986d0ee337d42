"""What the whole-loop tests share: a task that a small policy learns in seconds, its rows, its policy and its recipe.

The task: sort a few letters, "dbca>" → "abcd". The demonstrations are of mixed quality: in most of them two neighbours
are swapped. The warm start can do no better than imitate them; only the reward tells which answers are right.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from milepost.checkpoint import path_of
from milepost.launch import open_session
from milepost.policy import new_policy
from milepost.recipe import Recipe, make_recipe
from milepost.stages.pipeline import run_pipeline
from milepost.stages.session import Session
from milepost.store import Run

Row = dict[str, str]


def sorting_rows(length: int = 4, letters: str = "abcdefgh", num: int = 1500, wrong: float = 0.7) -> list[Row]:
    """prompt, answer, and `shown`: what the demonstrations give, with two neighbours swapped with chance `wrong`."""
    draw = random.Random(7)
    every = ["".join(word) for word in itertools.product(letters, repeat=length)]
    rows = []
    for word in draw.sample(every, min(num, len(every))):
        answer = sorted(word)
        shown = list(answer)
        if draw.random() < wrong:
            i = draw.randrange(length - 1)
            shown[i], shown[i + 1] = shown[i + 1], shown[i]
        rows.append({"prompt": f"{word}>", "answer": "".join(answer), "shown": "".join(shown)})
    return rows


def write_rows(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_policy(folder: Path, rows: list[Row], **shape: Any) -> Path:
    """A new random policy whose characters are the rows'. Default shape: a few thousand weights, for tests of mechanics."""
    texts = [row["prompt"] + row["answer"] for row in rows]
    new_policy(folder, texts=texts, **(shape or {"layers": 1, "width": 32, "heads": 2}))
    return folder


def settings(folder: Path, policy: Path, **changes: Any) -> dict[str, Any]:
    """A small run as a nested mapping; `changes` are dotted keys with __ for the dot: grpo__steps=3."""
    values: dict[str, Any] = {
        "name": "run",
        "out": str(folder / "runs"),
        "model": {"path": str(policy)},
        "tasks": {"format": "text", "validation": 8, "test": 8},
        "reward": {"functions": [{"name": "exact"}]},
        "rollout": {"max_new_tokens": 5, "prompts_per_step": 4, "group_size": 4},
        "sft": {"batch_size": 16, "demonstrations": "{shown}"},
        "optimizer": {"lr": 1e-3},
    }
    for key, value in changes.items():
        *sections, last = key.split("__")
        node = values
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = value
    return values


def small_recipe(folder: Path, policy: Path, **changes: Any) -> Recipe:
    return make_recipe(settings(folder, policy, **changes))


def recipe_file(folder: Path, policy: Path, rows: list[Row], **changes: Any) -> Path:
    """`folder`/recipe.toml of a run over `folder`/rows.jsonl; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    values = settings(folder, policy, **changes)
    values["tasks"].setdefault("sources", [{"path": str(write_rows(folder / "rows.jsonl", rows))}])
    path = folder / "recipe.toml"
    path.write_text(as_toml(values), encoding="utf-8")
    return path


def as_toml(values: dict[str, Any], section: str = "") -> str:
    """TOML of a nested mapping: JSON's scalars are TOML's."""
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    lines = [f"[{section}]"] if section else []
    lines += [f"{key} = {_inline(value)}" for key, value in plain.items()]
    for key, value in values.items():
        if isinstance(value, dict):
            lines.append(as_toml(value, f"{section}.{key}".lstrip(".")))
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(map(_inline, value))}]" if isinstance(value, list) else json.dumps(value)


@contextmanager
def small_session(folder: Path, policy: Path, rows: Any, **changes: Any) -> Iterator[Session]:
    """A new run over `rows`, quiet."""
    with open_session(small_recipe(folder, policy, **changes), rows=rows, quiet=True) as session:
        yield session


class Killed(BaseException):
    """Ends a run where no handler expects it."""


@contextmanager
def killed_after(last: int, of: str = "grpo") -> Iterator[None]:
    """The run in this block must not outlive step `last` of a stage: it ends right after that is stored."""
    commit = Run.commit_step

    def dies(run: Run, step: int, stage: str, *args: Any, **kwargs: Any) -> None:
        commit(run, step, stage, *args, **kwargs)
        if stage == of and step == last:
            raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Run, "commit_step", dies)
        with pytest.raises(Killed):
            yield


SHORT_ROWS = sorting_rows(length=3, letters="abcdef", wrong=0.4)


def warm_policy(folder: Path, rows: list[Row], steps: int = 60) -> Path:
    """The small policy after a warm start: its folder."""
    new = write_policy(folder / "new", rows)
    with small_session(folder, new, rows, sft__steps=steps, sft__lr=1e-2, sft__batch_size=32) as session:
        run_pipeline(session, stages=("sft",))
        return path_of(session.run.checkpoints / "sft", steps) / "model"
