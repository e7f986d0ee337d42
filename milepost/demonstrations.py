"""What a warm start shows of single answers: prompts paired with completions. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

from milepost.sections import SftSection, SourceSection, TasksSection
from milepost.shape import Unusable, content_key, prompt_id, read_messages, shape_prompt
from milepost.sources import BadRow, accepted, isolated_random, load_function, read_sources
from milepost.tasks import rank
from milepost.types import DataError, RecipeError, Task


class Demonstration(NamedTuple):
    """A prompt (as a task) and the completion the policy should learn to give."""

    task: Task
    completion: str


def demonstrations(
    section: SftSection, tasks: Sequence[Task], *, seed: int = 0, shape: TasksSection | None = None,
    held_out: Sequence[Task] = (), check: Callable[[Task, str], object] | None = None,
) -> list[Demonstration]:  # fmt: skip
    """The demonstrations of the warm start: from a JSONL file, a Python function, or a template, of each training task.

    A template is formatted with `answer` and every column; a function is called with those it names, and None passes a task
    over. The rows of a file hold prompt and completion; `shape` gives their prompts the tasks' system message and template,
    and none may be a `held_out` prompt. `num_demonstrations` keeps those whose keyed hash ranks lowest, in their given
    order. `check(task, completion)` may raise DataError for one that is kept; where it stands is added. Raises RecipeError
    or DataError.
    """
    spec = section.demonstrations
    lines: list[int] = []
    if Path(spec).suffix in (".jsonl", ".json"):
        made, lines = _from_file(spec, shape or TasksSection(), held_out)
    elif re.search(r"\{\w", spec):
        made = [Demonstration(task, fill(spec, task)) for task in tasks]
    elif re.fullmatch(r"\S+:\w+", spec):
        shown = _demonstrator(spec, seed)
        made = [Demonstration(task, text) for task in tasks if (text := shown(task)) is not None]
    else:
        raise RecipeError(f"sft.demonstrations = {spec!r} is neither a .jsonl file nor module:function nor a template with "
                          "a column; 'Answer: {answer}' works")  # fmt: skip
    kept = _kept([f"{d.task.key}/{d.completion}" for d in made], section, seed)
    for i in kept if check else ():
        _check_kept(check, made[i], lines[i] if lines else 0)
    return [made[i] for i in kept]


def some(tasks: Sequence[Task], section: SftSection, seed: int) -> list[Task]:
    """The tasks that a script demonstrates in an environment: `num_demonstrations` of them, by rank."""
    return [tasks[i] for i in _kept([task.key for task in tasks], section, seed)]


def _kept(keys: Sequence[str], section: SftSection, seed: int) -> list[int]:
    """The `num_demonstrations` whose keyed hash ranks lowest, in their given order."""
    wanted = section.num_demonstrations or len(keys)
    if wanted > len(keys):
        raise DataError(f"sft.num_demonstrations = {wanted}, but there are only {len(keys)} demonstrations; use 0 for all")
    if not keys:
        raise DataError(
            f"sft.demonstrations = {section.demonstrations!r} gives no demonstration: there is no training task"
        )
    ranks = [rank(seed, key) for key in keys]
    return sorted(sorted(range(len(keys)), key=lambda i: ranks[i])[:wanted])


def _check_kept(check: Any, one: Demonstration, line: int) -> None:
    try:
        check(one.task, one.completion)
    except DataError as error:
        where = f"{one.task.source} line {line}" if line else f"task {one.task.key} of {one.task.source!r}"
        raise DataError(f"sft.demonstrations: {where}: {error}") from error


def fill(template: str, task: Task, key: str = "sft.demonstrations") -> str:
    """A template of the setting `key` with the task's answer and columns in it. Raises RecipeError or DataError."""
    if task.answer is None and re.search(r"\{answer\b", template):
        instead = "name another column" if key == "credit.answer" else "use a JSONL file of demonstrations"
        raise DataError(
            f"{key} = {template!r} needs a gold answer, which task {task.key} of {task.source!r} has not; {instead}"
        )
    try:
        text = template.format(**{**task.columns, "answer": task.answer})
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        known = ", ".join(["answer", *task.columns])
        raise RecipeError(f"{key} = {template!r} cannot be filled in ({type(error).__name__}: {error}); it "
                          f"may use {known}, and literal braces are doubled") from error  # fmt: skip
    if not any(name is not None for _, name, _, _ in Formatter().parse(template)) and re.search(r"\{\{\w", template):
        raise RecipeError(f"{key} = {template!r} fills in nothing, for literal braces are doubled; {{answer}} within "
                          "braces is {{{answer}}}")  # fmt: skip
    if not text.strip():
        raise DataError(f"{key} = {template!r} is empty for task {task.key}")
    return text


def _demonstrator(spec: str, seed: int) -> Callable[[Task], str | None]:
    """The user's function of a task's answer and columns. Its draws from `random` depend on seed and task alone."""
    function = load_function(spec, "sft.demonstrations")

    def shown(task: Task) -> str | None:
        offered = {**task.columns, "answer": task.answer}
        try:
            with isolated_random(seed, f"demonstration/{task.key}"):
                text = function(**accepted(function, offered))
        except Exception as error:
            raise RecipeError(
                f"sft.demonstrations = {spec!r} raised {type(error).__name__}: {error} for task {task.key} of "
                f"{task.source!r}; it may take {', '.join(sorted(offered))}"
            ) from error
        if text is not None and (not isinstance(text, str) or not text.strip()):
            raise DataError(
                f"sft.demonstrations = {spec!r} gave {text!r:.60} for task {task.key} of {task.source!r}; it must return "
                "the completion as text, or None to pass the task over"
            )
        return text

    return shown


def _from_file(path: str, shape: TasksSection, held_out: Sequence[Task]) -> tuple[list[Demonstration], list[int]]:
    """The demonstrations and their lines."""
    try:
        held = read_sources([SourceSection(kind="jsonl", path=path)], 0)[0]
    except RecipeError as error:
        raise RecipeError(str(error).replace("tasks.sources[0].path", "sft.demonstrations")) from error
    secret = {prompt_id(task.prompt) for task in held_out}
    made, lines, bad = [], [], list(held.bad)
    for line, row in held.rows:
        try:
            if "prompt" not in row or "completion" not in row:
                raise Unusable("missing column", f"needs prompt and completion; it has {', '.join(row)}")
            raw, completion = read_messages(row["prompt"]), _completion(row["completion"])
        except Unusable as problem:
            bad.append(BadRow(held.name, line, problem.cause, problem.detail))
            continue
        columns = {k: v for k, v in row.items() if k not in ("prompt", "completion")}
        task = Task(
            content_key(held.name, raw, completion),
            shape_prompt(row["prompt"], raw, shape),
            row.get("answer"),
            columns,
            held.name,
        )
        if prompt_id(task.prompt) in secret:
            raise DataError(f"sft.demonstrations: {held.name} line {line} is a validation or test task; remove it")
        made.append(Demonstration(task, completion))
        lines.append(line)
    if bad:
        raise DataError(
            f"sft.demonstrations = {path!r}: {len(bad)} rows are unusable, first {bad[0]}; correct or remove them"
        )
    return made, lines


def _completion(value: Any) -> str:
    if isinstance(value, (list, tuple)) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0].get("content") if value[0].get("role") == "assistant" else None
    if not isinstance(value, str):
        raise Unusable("bad completion", "neither text nor one assistant message")
    if not value.strip():
        raise Unusable("empty completion")
    return value
