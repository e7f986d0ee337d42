"""Rows become tasks: shaped, checked, keyed by content and split by key, never by index. Torch-free.

`load_tasks` reads every source and gives a `TaskSet` with a `LoadReport`; `TaskOrder` deals the training tasks out, step
by step.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from milepost.families import derived_seed
from milepost.sections import LessonSection, SourceSection, TasksSection
from milepost.shape import (
    Found,
    Unusable,
    check_columns,
    digest,
    make_task,
)
from milepost.sources import (
    BadRow,
    Generate,
    SourceRows,
    read_sources,
    rows_in_memory,
    source_name,
)
from milepost.streams import shuffled
from milepost.types import DataError, RecipeError, Task

SPLITS = ("train", "validation", "test")
_CHECKED_AT_ONCE = 256


@dataclass(frozen=True)
class LoadReport:
    """What loading found. `bad` names every unusable row by source, line and cause; str() is a short text for people."""

    num_rows: int
    """Rows read, unusable ones included."""
    num_usable: int
    bad: tuple[BadRow, ...] = ()
    splits: Mapping[str, int] = field(default_factory=dict)
    num_repeated: int = 0
    """Draws of generated sources that repeated an earlier draw; never rows."""
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """cause → number of rows, most frequent first."""
        return dict(Counter(row.cause for row in self.bad).most_common())

    def __str__(self) -> str:
        shares = ", ".join(f"{self.splits[name]} {name}" for name in SPLITS if name in self.splits)
        lines = [f"tasks: {self.num_usable} of {self.num_rows} rows usable" + (f" ({shares})" if shares else "")]
        for cause, count in self.counts.items():
            first = [row for row in self.bad if row.cause == cause][:3]
            where = "; ".join(f"{r.source} line {r.line}" + (f" ({r.detail})" if r.detail else "") for r in first)
            lines.append(f"  {count} × {cause}: {where}" + ("; …" if count > len(first) else ""))
        if self.num_repeated:
            lines.append(f"  {self.num_repeated} generated draws repeated an earlier one")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


@dataclass(frozen=True)
class TaskSet:
    """Tasks by split. No prompt stands in two splits, or twice in one."""

    train: tuple[Task, ...]
    validation: tuple[Task, ...]
    test: tuple[Task, ...]
    report: LoadReport
    sources: Mapping[str, float]
    """Name → weight in the training mixture, in recipe order."""
    lessons: tuple[tuple[Task, ...], ...] = ()
    """Of each of `sft.lessons`, what is demonstrated in it."""


def load_tasks(
    section: TasksSection,
    seed: int,
    *,
    rows: Any = None,
    check: Callable[[Sequence[Task]], Sequence[str | None]] | None = None,
    length: Callable[[Task], int] | None = None,
    generate: Generate | None = None,
    lessons: Sequence[LessonSection] = (),
) -> TaskSet:
    """Reads all sources (or `rows`: a datasets object, a list of mappings, or either by split name).

    `check(tasks)` gives for each the reason why its own checker rejects its gold answer, or None; it is not asked about
    tasks without one. `length(task)` counts the ids the policy would be sent (a lower bound will do for those over twice
    the limit); longer than `section.max_prompt_tokens` follows `section.overlong`. `generate` makes an environment's own
    rows, those of `lessons` included. Raises RecipeError for a source that cannot be read and DataError when what it holds
    cannot be used: no usable task, a missing column, one prompt in two splits, too few tasks for the held-out splits, a
    prompt that `length` cannot encode.
    """
    if "{prompt}" not in section.template:
        raise RecipeError(
            f'tasks.template = {section.template!r} must contain {{prompt}}; "{{prompt}}" alone changes nothing'
        )
    held = _read_all(section, seed, rows, generate)
    bad: list[BadRow] = [row for source in held for row in source.bad]
    found: dict[str, list[Found]] = {}
    seen: dict[str, tuple[Found, str]] = {}
    for source in held:
        check_columns(source, section)
        found[source.name] = []
        for line, one, rejection in _shaped(source, section, check):
            try:
                if isinstance(one, Unusable):
                    raise one
                _check_duplicate(one, source.name, seen)
                _check_task(one, section, length, rejection)
            except Unusable as problem:
                bad.append(BadRow(source.name, line, problem.cause, problem.detail))
            else:
                seen[one.prompt] = (one, source.name)
                found[source.name].append(one)
    weights = {source.name: source.weight for source in held}
    report = LoadReport(
        num_rows=sum(len(source.rows) + len(source.bad) for source in held), bad=tuple(bad),
        num_usable=sum(map(len, found.values())), num_repeated=sum(source.num_repeated for source in held),
        notes=tuple(source.note for source in held if source.note),
    )  # fmt: skip
    if not report.num_usable:
        raise DataError(f"no usable task: {' '.join(str(report).split())}; {_advice(report, section)}")
    splits, notes = _split(found, section, seed, weights, str(report))
    notes += shared_answers(splits)
    report = replace(report, splits={name: len(splits[name]) for name in SPLITS}, notes=report.notes + notes)
    keys = {task.key for name in ("validation", "test") for task in splits[name]}
    held_out = {one.prompt for items in found.values() for one in items if one.task.key in keys}
    taught = tuple(
        _lesson(i, lesson, section, seed, generate, length, held_out) if lesson.size else tuple(splits["train"])
        for i, lesson in enumerate(lessons)
    )
    return TaskSet(**{name: tuple(splits[name]) for name in SPLITS}, report=report, sources=weights, lessons=taught)


def _lesson(
    position: int, lesson: LessonSection, section: TasksSection, seed: int, generate: Generate | None, length: Any,
    held_out: set[str],
) -> tuple[Task, ...]:  # fmt: skip
    """Tasks that an environment makes for one lesson of the warm start, none of them held out.

    Raises RecipeError or DataError.
    """
    source = SourceSection(kind="environment", name=f"lesson {position}", size=lesson.size, params=lesson.params)
    setting = f"sft.lessons[{position}]"
    try:
        (held,) = read_sources([source], derived_seed(seed, setting), generate)
    except RecipeError as error:
        raise RecipeError(str(error).replace("tasks.sources[0]", setting)) from error
    tasks, seen = [], set(held_out)
    for line, row in held.rows:
        one = make_task(held, line, row, section)
        if one.prompt not in seen:
            seen.add(one.prompt)
            try:
                _check_task(one, section, length)
            except Unusable:
                continue
            tasks.append(one.task)
    if not tasks:
        raise DataError(f"{setting} has no usable task: all of them are held out, or longer than tasks.max_prompt_tokens")
    return tuple(tasks)


def _advice(report: LoadReport, section: TasksSection) -> str:
    """What to do where no row is usable, by what most of them suffer from."""
    cause = next(iter(report.counts), "")
    if cause == "over-long":
        return f"raise tasks.max_prompt_tokens = {section.max_prompt_tokens}"
    if cause == "answer rejected" and any("reward.canary_good" in row.detail for row in report.bad):
        return "set reward.canary_good to a completion that [reward] scores as success, with {answer} for the answer"
    if cause == "answer rejected":
        return "correct the answers, or the settings of [reward] that reject them"
    return "every row needs a prompt and a gold answer"


def _read_all(section: TasksSection, seed: int, rows: Any, generate: Generate | None) -> list[SourceRows]:
    if rows is not None:
        if len(section.sources) > 1 or any(s.kind != "datasets" or s.path for s in section.sources):
            raise RecipeError("tasks.sources and rows= were both given; leave tasks.sources out, or name one source of "
                              'kind = "datasets" without a path')  # fmt: skip
        source = section.sources[0] if section.sources else SourceSection(kind="datasets", name="rows")
        return [rows_in_memory(rows, source_name(source) or "rows", source.weight, source.size)]
    if not section.sources:
        raise RecipeError('tasks.sources is empty; add one, for example kind = "jsonl" with path = "tasks.jsonl"')
    names = Counter(source_name(source) for source in section.sources)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise RecipeError(f"tasks.sources: two sources are both called {twice[0]!r}; give each its own name")
    return read_sources(section.sources, seed, generate)


def _check_duplicate(one: Found, source: str, seen: Mapping[str, tuple[Found, str]]) -> None:
    earlier = seen.get(one.prompt)
    if earlier is None:
        return
    first, where = earlier
    mine, theirs = one.label or "train", first.label or "train"
    if mine != theirs:
        raise DataError(f"one prompt stands in two splits: {theirs} ({where} line {first.line}) and {mine} ({source} line "
                        f"{one.line}); remove one of the two rows")  # fmt: skip
    same = digest(one.task.answer) == digest(first.task.answer)
    raise Unusable("duplicate" if same else "duplicate with another answer", f"of {where} line {first.line}")


def _shaped(
    source: SourceRows, section: TasksSection, check: Any
) -> Iterator[tuple[int, Found | Unusable, str | None]]:  # fmt: skip
    """Each row's line, its task or why there is none, and what its checker says; which is asked about many at once."""
    for at in range(0, len(source.rows), _CHECKED_AT_ONCE):
        made = [(line, _made(source, line, row, section)) for line, row in source.rows[at : at + _CHECKED_AT_ONCE]]
        asked = [one.task for _, one in made if isinstance(one, Found) and one.task.answer is not None]
        reasons = iter(_reasons(asked, check) if check is not None else [None] * len(asked))
        for line, one in made:
            yield line, one, next(reasons) if isinstance(one, Found) and one.task.answer is not None else None


def _made(source: SourceRows, line: int, row: Mapping[str, Any], section: TasksSection) -> Found | Unusable:
    try:
        return make_task(source, line, row, section)
    except Unusable as problem:
        return problem


def _reasons(tasks: Sequence[Task], check: Any) -> Sequence[str | None]:
    """What the checker says of each; where it raises on all, which of them it raises on."""
    try:
        return check(tasks) if tasks else []
    except RecipeError:
        raise
    except Exception as error:
        if len(tasks) == 1:
            return [f"the checker raised {type(error).__name__}: {error}"]
        return [_reasons([task], check)[0] for task in tasks]


def _check_task(one: Found, section: TasksSection, length: Any, rejection: str | None = None) -> None:
    task, limit = one.task, section.max_prompt_tokens
    try:
        num_tokens = length(task) if length is not None else 0
    except DataError as error:  # an unknown character, roles that the template refuses
        raise DataError(f"{task.source} line {one.line}: {error}") from error
    if num_tokens > limit:
        count = f"{num_tokens} tokens" if num_tokens <= 2 * limit else f"at least {num_tokens} tokens"
        if section.overlong == "error":
            raise DataError(f"{task.source} line {one.line}: the prompt has {count}, over tasks.max_prompt_tokens = "
                            f'{limit}; raise it, or drop such prompts with tasks.overlong = "drop"')  # fmt: skip
        raise Unusable("over-long", f"{count}, limit {limit}")
    if rejection:
        raise Unusable("answer rejected", rejection)


# --- splits -------------------------------------------------------------------------------------------------------


def _split(
    found: Mapping[str, list[Found]], section: TasksSection, seed: int, weights: Mapping[str, float], report: str
) -> tuple[dict[str, list[Task]], tuple[str, ...]]:
    """Exact counts, allotted to sources by weight; within a source the tasks whose keyed hash ranks lowest.

    A task's rank depends on its key and the seed alone, and more rows can only push it back. So appending rows moves
    tasks from test towards validation and train, never the other way: nothing once trained on is ever held out.
    """
    splits: dict[str, list[Task]] = {name: [] for name in SPLITS}
    notes: list[str] = []
    quotas = {"test": allot(section.test, weights), "validation": allot(section.validation, weights)}
    for name, items in found.items():
        if not items:
            raise DataError(f"source {name!r} has no usable task; {' '.join(report.split())}")
        pool = [f for f in items if f.label in (None, "train")]
        for split in ("test", "validation"):
            want = quotas[split][name]
            own = [f for f in items if f.label == split]
            if own and len(own) != want:
                notes.append(f"{name}: {len(own)} rows labelled {split}, {want} wanted, {min(len(own), want)} used")
            if not own and not pool and want:
                notes.append(f"{name}: no row is left to draw {want} {split} tasks from")
            elif not own and want and want >= len(pool):
                raise DataError(_too_few(name, len(items), section, want, split))
            taken = sorted(own or pool, key=lambda f: rank(seed, f.task.key))[:want]
            splits[split] += [replace(f.task, split=split) for f in taken]
            held = {f.task.key for f in taken}
            pool = [f for f in pool if f.task.key not in held]
        splits["train"] += [f.task for f in pool]
    for split in ("test", "validation"):
        splits[split].sort(key=lambda task: rank(seed, task.key))
    return splits, tuple(notes)


def shared_answers(splits: Mapping[str, Sequence[Task]]) -> tuple[str, ...]:
    """A note when most test answers stand in training too: success may then be memory of the answers (case: 2,000 word
    orders of only 91 sentences, which a longer warm start learnt by heart and "solved" at 97 %)."""
    trained = {digest(task.answer) for task in splits["train"] if task.answer is not None}
    test = [digest(task.answer) for task in splits["test"] if task.answer is not None]
    seen = sum(answer in trained for answer in test)
    if not test or seen <= len(test) / 2:
        return ()
    return (
        f"{seen} of {len(test)} test tasks have an answer that training tasks have too (there are {len(trained)} different "
        "ones): unless answers are few by nature, a policy may know them by heart instead of solving the task",
    )


def _too_few(name: str, usable: int, section: TasksSection, want: int, split: str) -> str:
    fifth = usable // 5
    return (f"tasks.validation = {section.validation} and tasks.test = {section.test} hold out too much of source "
            f"{name!r}: of its {usable} usable tasks {want} are wanted for {split}, and one at least must be left to train "
            f"on; set both to {fifth}, or add rows")  # fmt: skip


def rank(seed: int, key: str) -> bytes:
    """Orders what has a key, differently for each seed."""
    return hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=16).digest()


def allot(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """`total` in whole shares proportional to the weights (largest remainders; ties go to the earlier name)."""
    whole = sum(weights.values())
    exact = {name: total * weight / whole for name, weight in weights.items()}
    shares = {name: math.floor(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: shares[name] - exact[name])
    for name in by_remainder[: total - sum(shares.values())]:
        shares[name] += 1
    return shares


# --- order --------------------------------------------------------------------------------------------------------


class _Lane:
    """The training tasks of one source, epoch after epoch. Every task comes once per epoch."""

    def __init__(self, name: str, tasks: Sequence[Task], order: str, seed: int) -> None:
        self.name, self.tasks, self.order, self.seed = name, tasks, order, seed
        self.num_drawn = 0
        self.epoch = self.position = 0
        self.deferred: list[int] = []
        """Tasks passed over because the same step already held them; they come first in the next one."""
        self.indices = self._indices()

    def _indices(self) -> np.ndarray:
        if self.order == "as_given":
            return np.arange(len(self.tasks))
        return shuffled(self.seed, f"tasks/{self.name}/{self.epoch}", len(self.tasks))

    def draw(self, used: set[int]) -> int:
        """The next task that is not in `used`, which must not hold them all."""
        self.num_drawn += 1
        for at, index in enumerate(self.deferred):
            if index not in used:
                return self.deferred.pop(at)
        while True:
            if self.position == len(self.tasks):
                self.epoch, self.position = self.epoch + 1, 0
                self.indices = self._indices()
            index = int(self.indices[self.position])
            self.position += 1
            if index not in used:
                return index
            self.deferred.append(index)

    def state(self) -> dict[str, Any]:
        return {
            "num_drawn": self.num_drawn,
            "epoch": self.epoch,
            "position": self.position,
            "deferred": list(self.deferred),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.num_drawn, self.epoch, self.position = (int(state[k]) for k in ("num_drawn", "epoch", "position"))
        self.deferred = [int(index) for index in state["deferred"]]
        self.indices = self._indices()


class TaskOrder:
    """Deals training tasks out, reproducibly: the sequence depends on tasks, order, seed and weights alone.

    "shuffled" makes a new permutation per source and epoch; "as_given" keeps the rows' order. Several sources are
    interleaved by weight: each draw goes to the source furthest behind its share, so no source is ever a whole task ahead
    of it (only where one has no task left that this step does not hold, the next takes over). `weights` None deals all
    tasks as one source.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        order: Literal["shuffled", "as_given"],
        seed: int,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        if not tasks:
            raise DataError("there is no training task; add rows, or lower tasks.validation and tasks.test")
        lanes: dict[str, list[Task]] = {}
        for task in tasks:
            lanes.setdefault("" if weights is None else task.source, []).append(task)
        shares = {"": 1.0} if weights is None else {name: w for name, w in weights.items() if name in lanes}
        if missing := [name for name in lanes if name not in shares]:
            raise ValueError(f"no weight for source {missing[0]!r}; weights name {', '.join(shares) or 'none'}")
        whole = sum(shares.values())
        self._shares = {name: weight / whole for name, weight in shares.items()}
        self._lanes = {name: _Lane(name, lanes[name], order, seed) for name in shares}
        self._num_tasks = len(tasks)
        self._identity = digest([[task.key for task in tasks], order, seed, self._shares])

    def __len__(self) -> int:
        return self._num_tasks

    def take(self, n: int, beside: Sequence[Task] = ()) -> list[Task]:
        """The next n tasks, all different; runs on into the next epoch. Raises DataError if there are not n (case J8).

        With `beside`, tasks of the same step that were taken before: as many others as there still are, up to n.
        """
        held = {task.key for task in beside}
        n = min(n, self._num_tasks - len(held)) if held else n
        if not held:
            self._refuse(n)
        used: dict[str, set[int]] = {
            name: {i for i, task in enumerate(lane.tasks) if task.key in held} if held else set()
            for name, lane in self._lanes.items()
        }
        taken: list[Task] = []
        total = sum(lane.num_drawn for lane in self._lanes.values())
        for number in range(total + 1, total + n + 1):
            open_lanes = [lane for name, lane in self._lanes.items() if len(used[name]) < len(lane.tasks)]
            lane = max(open_lanes, key=lambda one: self._shares[one.name] * number - one.num_drawn)
            index = lane.draw(used[lane.name])
            used[lane.name].add(index)
            taken.append(lane.tasks[index])
        return taken

    def _refuse(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"take({n}): at least one task must be asked for")
        if n > self._num_tasks:
            raise DataError(f"rollout.prompts_per_step = {n} needs {n} different training tasks, but there are only "
                            f"{self._num_tasks}; use rollout.prompts_per_step = {self._num_tasks} or add rows")  # fmt: skip
        for name, lane in self._lanes.items():
            if n * self._shares[name] > len(lane.tasks) + 1e-9:
                raise DataError(f"source {name!r} has {len(lane.tasks)} training tasks, but its weight asks for "
                                f"{n * self._shares[name]:.1f} of rollout.prompts_per_step = {n}; lower its weight to a "
                                f"share of {len(lane.tasks) / n:.2f}, or add rows to it")  # fmt: skip

    @property
    def epochs(self) -> dict[str, float]:
        """Passes made so far, by source."""
        return {name: lane.num_drawn / len(lane.tasks) for name, lane in self._lanes.items()}

    def state(self) -> dict[str, Any]:
        """Plain JSON; with it a new TaskOrder over the same tasks goes on where this one stands."""
        return {"identity": self._identity, "lanes": {name: lane.state() for name, lane in self._lanes.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Raises DataError if the state belongs to other tasks, another order, seed or weights."""
        if state["identity"] != self._identity:
            raise DataError("the saved task order belongs to other tasks (or another tasks.order, seed or weights); resume "
                            "with the recipe and rows of the run")  # fmt: skip
        for name, lane in self._lanes.items():
            lane.load_state(state["lanes"][name])
