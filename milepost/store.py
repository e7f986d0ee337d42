"""The run directory and its only reader and writer. No torch: a run can be read, scored again and reported anywhere.

    runs/NAME/  recipe.json     resolved recipe          store.sqlite   metrics, episodes, evaluations, events
                recipe.toml     as given, if it was      checkpoints/   see checkpoint.py
                formula.txt     loss in words            report.html    see report.py

Every commit is one transaction in write-ahead mode: a process killed at any time leaves a valid store that holds whole
steps only. One process writes a run (`Run.create`, `Run.open(path, write=True)`); any number may read meanwhile.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import milepost
from milepost import rows
from milepost.disk import StoreError, WriteLock, disk_problem, writer_pid
from milepost.recipe import Recipe, make_recipe
from milepost.rows import dumps, loads
from milepost.types import Credit, Episode, EpisodeId, Group, RecipeError, Reward, StopKind, StopReason, Task, Turn

SCHEMA_VERSION = 1

# phase and step say which commit a row belongs to; id_phase and id_step belong to the episode's own name, which may be
# older (episodes sampled ahead) or shared between commits (the same held-out tasks after SFT and after GRPO).
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE commits (id INTEGER PRIMARY KEY, phase TEXT NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL,
    UNIQUE (phase, step));
CREATE TABLE metrics (phase TEXT NOT NULL, step INTEGER NOT NULL, name TEXT NOT NULL, value REAL NOT NULL,
    PRIMARY KEY (phase, step, name)) WITHOUT ROWID;
CREATE TABLE tasks (key TEXT PRIMARY KEY, source TEXT, split TEXT, prompt TEXT, answer TEXT, columns TEXT);
CREATE TABLE episodes (id INTEGER PRIMARY KEY, phase TEXT NOT NULL, step INTEGER NOT NULL, split TEXT NOT NULL,
    id_phase TEXT, id_step INTEGER, task_key TEXT, member INTEGER, attempt INTEGER, group_id TEXT, source TEXT,
    stop_kind TEXT, stop_reason TEXT, branch_of TEXT, facts TEXT, start_fingerprint TEXT, seconds REAL,
    num_sampled INTEGER, reward REAL, parts TEXT, success INTEGER, extractable INTEGER, cause TEXT,
    advantage REAL, advantages BLOB, trained INTEGER, in_baseline INTEGER, constant_group INTEGER,
    UNIQUE (phase, step, split, id_phase, id_step, task_key, member, attempt));
CREATE TABLE turns (episode INTEGER NOT NULL, turn INTEGER NOT NULL, context_ids BLOB, sampled_ids BLOB, logprobs BLOB,
    temperature REAL, versions TEXT, finish TEXT, text TEXT, new_segment INTEGER, facts TEXT, state_key TEXT,
    events TEXT, seconds REAL, agent TEXT, PRIMARY KEY (episode, turn)) WITHOUT ROWID;
CREATE TABLE blobs (episode INTEGER NOT NULL, turn INTEGER NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (episode, turn, name));
CREATE TABLE evals (id INTEGER PRIMARY KEY, phase TEXT NOT NULL, step INTEGER NOT NULL, split TEXT NOT NULL,
    time REAL NOT NULL, report TEXT NOT NULL, UNIQUE (phase, step, split));
CREATE TABLE events (id INTEGER PRIMARY KEY, time REAL NOT NULL, phase TEXT NOT NULL, step INTEGER,
    level TEXT NOT NULL, kind TEXT NOT NULL, message TEXT NOT NULL);
CREATE VIEW samples AS SELECT e.phase, e.step, e.split, e.task_key, e.member, e.reward, e.success, e.cause, e.advantage,
    t.prompt, (SELECT text FROM turns WHERE episode = e.id ORDER BY turn DESC LIMIT 1) AS completion
    FROM episodes e LEFT JOIN tasks t ON t.key = e.task_key;
"""


# Verdicts under other rewards, beside the run's own. Made when first needed: most runs are never judged again.
RESCORES = (
    "CREATE TABLE IF NOT EXISTS rescores (name TEXT PRIMARY KEY, time REAL NOT NULL, reward TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS rescored (name TEXT NOT NULL, episode INTEGER NOT NULL, reward REAL, parts TEXT,
    success INTEGER, extractable INTEGER, cause TEXT, PRIMARY KEY (episode, name)) WITHOUT ROWID""",
)


@dataclass(frozen=True)
class StoredEpisode:
    """One episode as committed, with what was judged about it. `split` is "" for training episodes."""

    phase: str
    step: int
    split: str
    episode: Episode
    reward: Reward | None
    credit: Credit | None
    row: int = 0
    """Names it within this run."""


@dataclass(frozen=True)
class EpisodeLine:
    """What a list of episodes says of one, without its turns. (phase, step, split) is the commit it belongs to."""

    row: int
    phase: str
    step: int
    split: str
    id: EpisodeId
    group_id: str
    stop: StopReason
    num_turns: int
    num_sampled: int
    reward: Reward | None


@dataclass(frozen=True)
class StoredEval:
    """One evaluation: `report` is the JSON form of an `EvalReport`."""

    phase: str
    step: int
    split: str
    report: dict[str, Any]


@dataclass(frozen=True)
class Event:
    """Something that happened once. `level` is "info", "warning", "stop" or "error"; `time` in seconds since the epoch."""

    time: float
    phase: str
    step: int | None
    level: str
    kind: str
    message: str


class Judged(Protocol):
    """An evaluation's report, such as `milepost.evaluate.EvalReport`."""

    @property
    def split(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


class Run:
    """One run directory. Use `create` or `open`; close it, or use it as a context manager."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: WriteLock | None) -> None:
        self.path = path
        self._db = connection
        self._lock = lock

    @classmethod
    def create(
        cls,
        root: str | Path,
        recipe: Recipe,
        *,
        toml: str = "",
        formula: str = "",
        meta: Mapping[str, Any] | None = None,
    ) -> Run:
        """Makes `root/recipe.name`, or name-2, name-3, … if that exists, open for writing.

        `toml` is the recipe's text as given, `formula` the resolved loss in words. Versions are recorded by themselves;
        `meta` adds facts such as the model's identity. Raises RecipeError or StoreError.
        """
        check_place(root, recipe.name)
        path = _new_folder(Path(root), recipe.name)
        lock = WriteLock(path)
        try:
            with _disk_errors(path, "creating the run"):
                (path / "checkpoints").mkdir()
                for name, text in (
                    ("recipe.json", recipe.model_dump_json(indent=2)),
                    ("recipe.toml", toml),
                    ("formula.txt", formula),
                ):
                    if text:
                        _write_text(path / name, text)
                _create_store(path)
                run = cls(path, _connect(path, write=True), lock)
                run.set_meta(versions=_versions(), created=time.time(), status="running", **(meta or {}))
        except BaseException:  # an unfinished folder is no run, and would keep its name from the next one
            lock.release()
            shutil.rmtree(path, ignore_errors=True)
            raise
        return run

    @classmethod
    def open(cls, path: str | Path, *, write: bool = False) -> Run:
        """Opens a run to read, or with `write` to continue it. Raises StoreError if it is not a run or is being written."""
        path = Path(path)
        if not (path / "store.sqlite").is_file() or not (path / "recipe.json").is_file():
            what = "does not exist" if not path.exists() else "is not a run (it has no recipe.json with store.sqlite)"
            raise StoreError(f"{path} {what}; give the folder of a run, such as runs/run")
        lock = WriteLock(path) if write else None
        try:
            connection = _connect(path, write)
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if not (path / "store.sqlite").stat().st_size:
                connection.close()
                raise StoreError(f"{path / 'store.sqlite'} is empty; restore it from a copy, or start a new run")
            if version != SCHEMA_VERSION:
                connection.close()
                raise StoreError(
                    f"{path} was written by another version of Milepost (its store is version {version}, this one reads "
                    f"{SCHEMA_VERSION}); use that version"
                )
        except (StoreError, sqlite3.Error) as error:
            if lock:
                lock.release()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{path / 'store.sqlite'} cannot be read ({error}); restore it from a copy") from error
        return cls(path, connection, lock)

    def close(self) -> None:
        self._db.close()
        if self._lock:
            self._lock.release()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the run is

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe. Settings that would be refused today because they do nothing did nothing then."""
        return make_recipe(json.loads((self.path / "recipe.json").read_text(encoding="utf-8")), idle=True)

    @property
    def formula(self) -> str:
        file = self.path / "formula.txt"
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @property
    def toml(self) -> str:
        file = self.path / "recipe.toml"
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    def meta(self) -> dict[str, Any]:
        return {key: loads(value) for key, value in self._db.execute("SELECT key, value FROM meta ORDER BY rowid")}

    @property
    def status(self) -> str:
        """As last set ("running", "stopped", "failed", "finished"); "interrupted" if it was running and its writer died."""
        status = str(self.meta().get("status", "running"))
        return "interrupted" if status == "running" and not (self._lock or writer_pid(self.path)) else status

    @property
    def has_many_turns(self) -> bool:
        """Whether any stored episode has more than one turn."""
        return self._db.execute("SELECT EXISTS (SELECT 1 FROM turns WHERE turn > 0)").fetchone()[0] == 1

    # Writing

    def set_meta(self, **values: Any) -> None:
        with self._transaction("facts about the run"):
            pairs = [(key, dumps(value)) for key, value in values.items()]
            upsert = "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            self._db.executemany(upsert, pairs)

    def set_status(self, status: str) -> None:
        self.set_meta(status=status)

    def add_event(self, level: str, kind: str, message: str, *, phase: str = "", step: int | None = None) -> None:
        """Records a warning, a canary's result, a finding."""
        with self._transaction(f"the event {kind}"):
            row = (time.time(), phase, step, level, kind, message)
            self._db.execute("INSERT INTO events (time, phase, step, level, kind, message) VALUES (?, ?, ?, ?, ?, ?)", row)

    def commit_step(
        self,
        step: int,
        phase: str,
        groups: Sequence[Group] = (),
        rewards: Sequence[Sequence[Reward]] | None = None,
        credits: Sequence[Sequence[Credit]] | None = None,
        metrics: Mapping[str, float | None] | None = None,
    ) -> None:
        """Writes everything of one step of a stage ("sft", "grpo", …) in one transaction.

        `rewards` and `credits` run parallel to `groups` and their episodes. Metrics without a value (None, NaN) stay
        absent. A step written before is replaced; its evaluations stay (see `truncate_after`).
        """
        with self._transaction(f"step {step} of {phase}"):
            for table in ("commits", "metrics"):
                self._db.execute(f"DELETE FROM {table} WHERE phase = ? AND step = ?", (phase, step))
            self._db.execute("INSERT INTO commits (phase, step, time) VALUES (?, ?, ?)", (phase, step, time.time()))
            self._delete_episodes("phase = ? AND step = ? AND split = ''", (phase, step))
            present = {name: float(value) for name, value in (metrics or {}).items() if value is not None}
            values = [(phase, step, name, value) for name, value in present.items() if not math.isnan(value)]
            self._db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", values)
            self._insert_groups(phase, step, "", groups, rewards, credits)

    def add_eval(
        self,
        phase: str,
        step: int,
        report: Judged,
        groups: Sequence[Group] = (),
        rewards: Sequence[Sequence[Reward]] | None = None,
        greedy_groups: Sequence[Group] = (),
        greedy_rewards: Sequence[Sequence[Reward]] | None = None,
    ) -> None:
        """Writes one evaluation with its episodes, replacing an earlier one of the same phase, step and split.

        Greedy episodes are kept under the split's name + "/greedy".
        """
        split = report.split
        with self._transaction(f"the {split} evaluation at step {step} of {phase}"):
            place = (phase, step, split)
            self._db.execute("DELETE FROM evals WHERE phase = ? AND step = ? AND split = ?", place)
            row = (*place, time.time(), json.dumps(report.to_json()))
            self._db.execute("INSERT INTO evals (phase, step, split, time, report) VALUES (?, ?, ?, ?, ?)", row)
            for name, some, judged in ((split, groups, rewards), (f"{split}/greedy", greedy_groups, greedy_rewards)):
                self._delete_episodes("phase = ? AND step = ? AND split = ?", (phase, step, name))
                self._insert_groups(phase, step, name, some, judged, None)

    def truncate_after(self, step: int, *phases: str) -> None:
        """Forgets every row after `step` of these phases (of all, if none is named), so that they can be written again.

        Name the phases when stages count steps from 0 each. Events without a step stay: they tell what happened to the
        run, not to a step.
        """
        where, values = "step > ?", [step, *phases]
        if phases:
            where += f" AND phase IN ({', '.join('?' * len(phases))})"
        with self._transaction(f"going back to step {step}"):
            self._delete_episodes(where, values)
            for table in ("commits", "metrics", "evals", "events"):
                self._db.execute(f"DELETE FROM {table} WHERE {where}", values)

    # Reading

    def phases(self) -> list[str]:
        """Phases with committed steps, oldest first."""
        return [phase for (phase,) in self._db.execute("SELECT phase FROM commits GROUP BY phase ORDER BY MIN(id)")]

    def last_step(self, phase: str | None = None) -> int | None:
        """The last committed step of a phase, or of the phase that was written last."""
        sql = "SELECT step FROM commits WHERE phase = coalesce(?, phase) ORDER BY id DESC LIMIT 1"
        found = self._db.execute(sql, (phase,)).fetchone()
        return found[0] if found else None

    def commit_times(self, phase: str | None = None) -> list[float]:
        """When each step was committed, in seconds since the epoch."""
        sql = "SELECT time FROM commits WHERE phase = coalesce(?, phase) ORDER BY id"
        return [moment for (moment,) in self._db.execute(sql, (phase,))]

    def metric_names(self, phase: str | None = None) -> list[str]:
        sql = "SELECT DISTINCT name FROM metrics WHERE phase = coalesce(?, phase) ORDER BY name"
        return [name for (name,) in self._db.execute(sql, (phase,))]

    def metrics(self, name: str, phase: str | None = None) -> list[tuple[int, float]]:
        """(step, value) where the metric has one, by step."""
        sql = "SELECT step, value FROM metrics WHERE name = ? AND phase = coalesce(?, phase) ORDER BY step"
        return list(self._db.execute(sql, (name, phase)))

    def step_metrics(self, step: int, phase: str) -> dict[str, float]:
        return dict(self._db.execute("SELECT name, value FROM metrics WHERE step = ? AND phase = ?", (step, phase)))

    def evals(self, split: str | None = None, phase: str | None = None) -> list[StoredEval]:
        """In the order in which they were written."""
        sql = (
            "SELECT phase, step, split, report FROM evals WHERE split = coalesce(?, split) AND phase = coalesce(?, phase) "
            "ORDER BY id"
        )
        return [StoredEval(p, s, n, json.loads(report)) for p, s, n, report in self._db.execute(sql, (split, phase))]

    def events(self, level: str | None = None) -> list[Event]:
        sql = "SELECT time, phase, step, level, kind, message FROM events WHERE level = coalesce(?, level) ORDER BY id"
        return [Event(*row) for row in self._db.execute(sql, (level,))]

    def task(self, key: str) -> Task:
        row = self._db.execute("SELECT source, split, prompt, answer, columns FROM tasks WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise StoreError(f"{self.path} holds no task {key!r}")
        source, split, prompt, answer, columns = row
        return Task(key, loads(prompt), loads(answer), loads(columns), source, split)

    def episodes(
        self,
        phase: str | None = None,
        step: int | None = None,
        split: str | None = "",
        *,
        order: str = "stored",
        limit: int = -1,
    ) -> Iterator[StoredEpisode]:
        """Episodes exactly as committed; training episodes unless a `split` is named (None: all).

        `order` is "stored", "best" or "worst" (by reward; unscorable ones only under "stored").
        """
        by = {"stored": "id", "best": "reward DESC, id", "worst": "reward, id"}[order]
        scored = "" if order == "stored" else "AND reward IS NOT NULL"
        sql = (f"SELECT * FROM episodes WHERE phase = coalesce(?, phase) AND step = coalesce(?, step) "
               f"AND split = coalesce(?, split) {scored} ORDER BY {by} LIMIT ?")  # fmt: skip
        for row in self._rows(sql, (phase, step, split, limit)):
            yield self._stored(row)

    def episode(self, row: int) -> StoredEpisode:
        """Raises StoreError for a row that is none."""
        for found in self._rows("SELECT * FROM episodes WHERE id = ?", (row,)):
            return self._stored(found)
        first, last = self._db.execute("SELECT MIN(id), MAX(id) FROM episodes").fetchone()
        there = f"its rows are {first} to {last}" if last else "it holds none"
        raise StoreError(f"{self.path} has no episode in row {row}; {there}")

    def episode_lines(
        self,
        *,
        phase: str | None = None,
        step: int | None = None,
        success: bool | None = None,
        stop: str | None = None,
        name: EpisodeId | None = None,
        group_id: str | None = None,
    ) -> list[EpisodeLine]:
        """Episodes of every commit in the order in which they were written.

        `phase` is a commit's ("grpo"), a split ("validation") or the first part of the episode's name ("train").
        """
        wanted = {"step = ?": step, "success = ?": success, "stop_reason = ?": stop, "group_id = ?": group_id}
        if name is not None:
            wanted |= {f"{key} = ?": value for key, value in zip(_NAME_COLUMNS, rows.id_fields(name))}
        where = [text for text, value in wanted.items() if value is not None]
        values: list[Any] = [value for value in wanted.values() if value is not None]
        if phase is not None:
            where, values = [*where, "? IN (phase, split, id_phase)"], [*values, phase]
        sql = (f"SELECT *, (SELECT COUNT(*) FROM turns WHERE episode = e.id) AS num_turns FROM episodes e "
               f"WHERE {' AND '.join(where) or '1'} ORDER BY id")  # fmt: skip
        return [_line(row) for row in self._rows(sql, values)]

    def commits(self) -> list[tuple[str, int, str]]:
        """(phase, step, split) of all commits with episodes, in the order in which they were written."""
        sql = "SELECT phase, step, split FROM episodes GROUP BY phase, step, split ORDER BY MIN(id)"
        return list(self._db.execute(sql))

    def largest_advantage(self, phase: str, step: int) -> float:
        """max |advantage| over the episodes of one commit; 0 without any. Of an episode whose tokens differ, their mean."""
        sql = "SELECT MAX(ABS(advantage)) FROM episodes WHERE phase = ? AND step = ?"
        return float(self._db.execute(sql, (phase, step)).fetchone()[0] or 0.0)

    # Judged again

    def add_rescore(self, name: str, reward: str, scores: Mapping[int, Reward]) -> None:
        """Keeps other verdicts on stored episodes (by row) under a name; `reward` says in JSON what judged them.

        The run's own verdicts stay as they are. Raises StoreError if the name is taken.
        """
        if name in self.rescores():
            raise StoreError(f"{self.path} holds scores named {name!r} already; choose another name")
        with self._transaction(f"the scores {name}"):
            for table in RESCORES:
                self._db.execute(table)
            self._db.execute("INSERT INTO rescores VALUES (?, ?, ?)", (name, time.time(), reward))
            for row, verdict in scores.items():
                found = rows.reward_row(f"row {row}", verdict)
                values = [found[key] for key in ("reward", "parts", "success", "extractable", "cause")]
                self._db.execute("INSERT INTO rescored VALUES (?, ?, ?, ?, ?, ?, ?)", (name, row, *values))

    def rescores(self) -> dict[str, str]:
        """name → the reward that judged, as JSON; oldest first."""
        if not self._has_rescores:
            return {}
        return dict(self._db.execute("SELECT name, reward FROM rescores ORDER BY time, name"))

    def rescored(self, row: int) -> dict[str, Reward]:
        """name → verdict on one episode, oldest first."""
        if not self._has_rescores:
            return {}
        sql = "SELECT r.* FROM rescored r JOIN rescores s USING (name) WHERE episode = ? ORDER BY s.time, name"
        found = ((line["name"], rows.reward(line)) for line in self._rows(sql, (row,)))
        return {name: verdict for name, verdict in found if verdict is not None}

    @property
    def _has_rescores(self) -> bool:
        return self._db.execute("SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'rescored')").fetchone()[0] == 1

    def groups(self, phase: str, step: int, split: str = "") -> list[tuple[Group, list[StoredEpisode]]]:
        """The groups of one commit with their tasks, ready to be scored and credited again."""
        found: dict[str, list[StoredEpisode]] = {}
        for stored in self.episodes(phase, step, split):
            found.setdefault(stored.episode.group_id, []).append(stored)
        tasks = {group_id: self.task(members[0].episode.id.task_key) for group_id, members in found.items()}
        return [(Group(g, tasks[g], tuple(m.episode for m in members)), members) for g, members in found.items()]

    # Private

    def _rows(self, sql: str, values: Sequence[Any]) -> Iterator[sqlite3.Row]:
        cursor = self._db.cursor()
        cursor.row_factory = sqlite3.Row  # type: ignore[assignment]
        return iter(cursor.execute(sql, values))

    def _stored(self, row: sqlite3.Row) -> StoredEpisode:
        facts = rows.loads(row["facts"])
        start = facts.get("start") if isinstance(facts, dict) else None
        episode = rows.episode(row, self._turns(row["id"], start))
        return StoredEpisode(
            row["phase"], row["step"], row["split"], episode, rows.reward(row), rows.credit(row), row["id"]
        )

    def _turns(self, episode: int, state: Any) -> tuple[Turn, ...]:
        """`state`: at the start of the episode."""
        blobs: dict[int, dict[str, bytes]] = {}
        sql = "SELECT turn, name, data FROM blobs WHERE episode = ? ORDER BY rowid"
        for turn, name, data in self._db.execute(sql, (episode,)):
            blobs.setdefault(turn, {})[name] = data
        found = self._db.execute("SELECT * FROM turns WHERE episode = ? ORDER BY turn", (episode,))
        turns: list[Turn] = []
        for row in found:
            turns.append(rows.turn(row[2:], blobs.get(row[1], {}), state))
            state = turns[-1].facts.get("state", state)
        return tuple(turns)

    def _insert_groups(
        self,
        phase: str,
        step: int,
        split: str,
        groups: Sequence[Group],
        rewards: Sequence[Sequence[Reward]] | None,
        credits: Sequence[Sequence[Credit]] | None,
    ) -> None:
        for i, group in enumerate(groups):
            task, num = group.task, len(group.episodes)
            row = (task.key, task.source, task.split, dumps(task.prompt), dumps(task.answer), dumps(task.columns))
            self._db.execute("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?, ?, ?)", row)
            judged = rewards[i] if rewards is not None else [None] * num
            credited = credits[i] if credits is not None else [None] * num
            for episode, reward, credit in zip(group.episodes, judged, credited, strict=True):
                self._insert_episode((phase, step, split), task.source, episode, reward, credit)

    def _insert_episode(
        self, place: tuple[str, int, str], source: str, episode: Episode, reward: Reward | None, credit: Credit | None
    ) -> None:
        row: dict[str, Any] = {"phase": place[0], "step": place[1], "split": place[2], "source": source}
        row |= rows.episode_row(episode) | rows.reward_row(str(episode.id), reward) | rows.credit_row(credit)
        sql = f"INSERT INTO episodes ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        try:
            key = self._db.execute(sql, list(row.values())).lastrowid
        except sqlite3.IntegrityError as error:
            raise StoreError(
                f"two episodes of step {place[1]} are named {episode.id}; each needs a name of its own, because the name "
                "keys its random stream"
            ) from error
        state = episode.facts.get("start")
        for i, turn in enumerate(episode.turns):
            values = (key, i, *rows.turn_row(turn, state))
            self._db.execute(f"INSERT INTO turns VALUES ({', '.join('?' * 15)})", values)
            state = turn.facts.get("state", state)
            named = [(key, i, name, data) for name, data in turn.blobs.items()]
            self._db.executemany("INSERT INTO blobs VALUES (?, ?, ?, ?)", named)

    def _delete_episodes(self, where: str, values: Sequence[Any]) -> None:
        for table in ("turns", "blobs", *(["rescored"] if self._has_rescores else [])):
            self._db.execute(f"DELETE FROM {table} WHERE episode IN (SELECT id FROM episodes WHERE {where})", values)
        self._db.execute(f"DELETE FROM episodes WHERE {where}", values)

    @contextmanager
    def _transaction(self, what: str) -> Iterator[None]:
        if self._lock is None:
            raise StoreError(f"{self.path} was opened to read; use Run.open(path, write=True) to write {what}")
        with _disk_errors(self.path, f"writing {what}"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


_NAME_COLUMNS = ("id_phase", "id_step", "task_key", "member", "attempt")


def _line(row: sqlite3.Row) -> EpisodeLine:
    stop = StopReason(StopKind(row["stop_kind"]), row["stop_reason"])
    return EpisodeLine(row["id"], row["phase"], row["step"], row["split"], EpisodeId(*(row[k] for k in _NAME_COLUMNS)),
                       row["group_id"], stop, row["num_turns"], row["num_sampled"], rows.reward(row))  # fmt: skip


# Files


def check_place(root: str | Path, name: str) -> None:
    """Refuses a folder or a name in which no run can be made; makes nothing. Raises RecipeError."""
    if not name or name in (".", "..") or "/" in name or "\0" in name or len(name.encode()) > 200:
        raise RecipeError(f'name = {name[:40]!r} must be a plain folder name of at most 200 bytes; "run" works')
    if not str(root).strip():
        raise RecipeError(f'out = "{root}" names no folder; use "runs", or "." for the current one')
    there = next(place for place in (Path(root), *Path(root).parents) if os.path.lexists(place))
    effective = os.access in os.supports_effective_ids
    if not os.path.isdir(there):
        problem = f"{there} is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK, effective_ids=effective):
        problem = f"{there.resolve()} cannot be written"
    else:
        return
    raise RecipeError(f'out = "{root}": {problem}; name a folder that can be written, such as "runs"')


def _new_folder(root: Path, name: str) -> Path:
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in range(1, 100_000):
            path = root / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
                return path
            except FileExistsError:
                continue
    except OSError as error:
        raise RecipeError(f'out = "{root}": {error.strerror}; name a folder that can be written, such as "runs"') from error
    raise RecipeError(f"name = {name!r} is taken 99,999 times under {root}; choose another")


def _write_text(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _create_store(path: Path) -> None:
    """An empty store.sqlite, whole or absent: readers may look in at any moment, and the writer may be killed."""
    draft = path / ".store.sqlite"
    connection = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    finally:
        connection.close()
    os.rename(draft, path / "store.sqlite")


def _connect(path: Path, write: bool) -> sqlite3.Connection:
    file = (path / "store.sqlite").resolve().as_uri()
    if not write:
        try:
            connection = sqlite3.connect(f"{file}?mode=ro", uri=True, isolation_level=None, timeout=30)
            connection.execute("PRAGMA schema_version")
            return connection
        except sqlite3.OperationalError:  # a read-only disk: there can be no writer, so nothing changes underneath
            return sqlite3.connect(f"{file}?immutable=1", uri=True, isolation_level=None)
    connection = sqlite3.connect(file, uri=True, isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


@contextmanager
def _disk_errors(path: Path, doing: str) -> Iterator[None]:
    """Turns a full or failing disk into one sentence. What was committed before is untouched."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        problem = disk_problem(error)
        if problem is None:
            raise
        raise StoreError(
            f"{path}: {problem} while {doing}; everything committed before is kept, so free some space on that disk and "
            f"continue with `milepost resume {path}`"
        ) from error


def _versions() -> dict[str, str]:
    found = {"milepost": milepost.__version__, "python": sys.version.split()[0], "platform": platform.platform()}
    for package in ("torch", "transformers", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
