"""One row becomes one task: columns, prompt, gold answer, key. What is wrong with it is said with a cause. Torch-free."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from milepost.sections import TasksSection
from milepost.sources import SourceRows
from milepost.types import DataError, Message, Task

_LABELS = {"train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
           "dev": "validation", "test": "test"}  # fmt: skip
_ROLES = ("system", "user", "assistant", "tool")
_PROMPT_NAMES = ("prompt", "question", "problem", "instruction", "query", "messages", "input", "text")
_GOLD_NAMES = ("answer", "expected_answer", "solution", "final_answer", "ground_truth", "target", "gold", "label", "output")
NO_GOLD = "none"
"""tasks.answer_column = "none": the rewards need no gold answer."""
WHOLE_ROW = "row"
"""tasks.answer_column = "row": the whole row is the gold, as for tests of code that stand in columns of their own."""

_CONTROL = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\ud800-\\udfff]|\\r(?!\\n)")
# "\text", "\frac", "\nabla" … written without doubling the backslash: the escape became a tab or a line break.
_EATEN_ESCAPE = re.compile(r"\t(?:ext\{|extbf\{|frac\{|imes\b|heta\b|riangle\b|au\b)|\n(?:eq\b|abla\b|otin\b)")


class Found(NamedTuple):
    """A task and where it came from."""

    task: Task
    label: str | None
    """The row's own split, if it named one."""
    line: int
    prompt: str
    """`prompt_id` of the row's own prompt."""


class Unusable(Exception):
    """A row that gives no task: a cause to count it under, and what was seen."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(cause, detail)
        self.cause, self.detail = cause, detail


def _columns_wanted(source: SourceRows, section: TasksSection) -> tuple[str, tuple[str, ...]]:
    """(prompt column, gold columns in order of preference)."""
    gold = source.answer_column or section.answer_column
    golds = () if gold == NO_GOLD else (gold,) if gold else ("answer", "expected_answer")
    return source.prompt_column or section.prompt_column, golds


def check_columns(source: SourceRows, section: TasksSection) -> None:
    """Case J6: a column that no row has is named at once, with the columns there are."""
    if not source.rows:
        return
    present = list(dict.fromkeys(str(name) for _, row in source.rows for name in row))
    prompt, golds = _columns_wanted(source, section)
    have = f"source {source.name!r} has the columns {', '.join(present) or '(none)'}"
    if prompt not in present:
        near = [name for name in _PROMPT_NAMES if name in present]
        hint = f'set tasks.prompt_column = "{near[0]}"' if near else "set tasks.prompt_column to the one with the prompt"
        raise DataError(f"tasks.prompt_column = {prompt!r}: {have}; {hint}")
    if golds and golds != (WHOLE_ROW,) and not any(name in present for name in golds):
        near = [name for name in _GOLD_NAMES if name in present]
        hint = f'set tasks.answer_column = "{near[0]}"' if near else "set tasks.answer_column to the gold column"
        raise DataError(f'no gold column {" or ".join(golds)}: {have}; {hint}, or to "{NO_GOLD}" if no reward needs one')


def make_task(source: SourceRows, line: int, row: Mapping[str, Any], section: TasksSection) -> Found:
    """The row's task. Raises Unusable."""
    prompt_column, golds = _columns_wanted(source, section)
    if prompt_column not in row:
        raise Unusable("missing column", f"{prompt_column}; it has {', '.join(map(str, row))}")
    raw = read_messages(row[prompt_column])
    answer = _gold(row, golds, source.gold_optional)
    # The gold stays reachable under its own name too: functions written for the data set ask for it there.
    columns = {str(k): v for k, v in row.items() if k not in (prompt_column, "prompt", "answer", "split")}
    # In an environment the same words may ask for different things: there the whole row is the task.
    whole = digest(columns) if source.by_row else ""
    task = Task(
        key=content_key(source.name, raw, [answer, whole] if source.by_row else answer),
        prompt=shape_prompt(row[prompt_column], raw, section),
        answer=answer,
        columns=columns,
        source=source.name,
    )
    return Found(task, _label(row), line, prompt_id(raw) + whole)


def read_messages(prompt: Any) -> tuple[dict[str, Any], ...]:
    """The prompt as messages, checked. Text is one user message; keys without a value (as datasets pads them) go."""
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if prompt is None or prompt == []:
        raise Unusable("empty prompt")
    if not isinstance(prompt, (list, tuple)) or not all(isinstance(m, Mapping) for m in prompt):
        raise Unusable("bad prompt", f"{type(prompt).__name__} is neither text nor a list of messages")
    messages = tuple({str(k): v for k, v in m.items() if v is not None} for m in prompt)
    for message in messages:
        if message.get("role") not in _ROLES:
            raise Unusable("bad prompt", f"role {message.get('role')!r} is none of {', '.join(_ROLES)}")
        if not isinstance(message.get("content", "" if message["role"] == "assistant" else None), str):
            raise Unusable("bad prompt", f"the {message['role']} message has no text content")
        if control := _control_character(message.get("content", "")):
            raise Unusable("control characters", f"{control} in the prompt")
    asked = [m["content"] for m in messages if m["role"] == "user"]
    if not asked or not asked[-1].strip():
        raise Unusable("empty prompt")
    if messages[-1]["role"] not in ("user", "tool"):
        raise Unusable("bad prompt", f"it ends with the {messages[-1]['role']}, so nothing is asked")
    return messages


def _gold(row: Mapping[str, Any], golds: Sequence[str], optional: bool) -> Any:
    if not golds:
        return None
    if golds == (WHOLE_ROW,) and WHOLE_ROW not in row:
        row = {WHOLE_ROW: {str(name): value for name, value in row.items() if name != "split"}}
    present = [name for name in golds if name in row]
    if not present:
        raise Unusable("missing column", f"{' or '.join(golds)}; it has {', '.join(map(str, row))}")
    answer = next((row[name] for name in present if row[name] is not None), None)
    if answer is None and optional:
        return None
    blank = not answer.strip() if isinstance(answer, str) else isinstance(answer, (list, tuple, dict)) and not answer
    if answer is None or blank:
        raise Unusable("empty answer", present[0])
    if isinstance(answer, float) and not math.isfinite(answer):
        raise Unusable("empty answer", f"{present[0]} is {answer}")
    # Case D15: "\frac" in a JSON string without doubled backslash is a form feed and "rac".
    for text in _texts(answer):
        if control := _control_character(text) or _eaten_escape(text):
            raise Unusable("control characters", f"{control} in {present[0]}; write backslashes doubled")
    return answer


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _control_character(text: str) -> str:
    """The first character that no clean text holds, as U+…; tabs and line breaks are clean."""
    found = _CONTROL.search(text)
    return f"U+{ord(found.group()[0]):04X}" if found else ""


def _eaten_escape(text: str) -> str:
    """A tab or line break that stands where a LaTeX backslash was."""
    found = _EATEN_ESCAPE.search(text)
    return f"U+{ord(found.group()[0]):04X} before {found.group()[1:]!r}" if found else ""


def _label(row: Mapping[str, Any]) -> str | None:
    given = row.get("split")
    if given is None or given == "":
        return None
    label = _LABELS.get(str(given).strip().lower())
    if label is None:
        raise Unusable("unknown split", f"{given!r}; use train, validation or test")
    return label


def shape_prompt(given: Any, messages: tuple[dict[str, Any], ...], section: TasksSection) -> str | tuple[Message, ...]:
    """Applies `template` to the text (of messages: to the last user message) and puts `system` before everything."""
    at = max(i for i, m in enumerate(messages) if m["role"] == "user")
    content = section.template.replace("{prompt}", messages[at]["content"])
    if isinstance(given, str) and not section.system:
        return content
    shaped = [*messages[:at], {**messages[at], "content": content}, *messages[at + 1 :]]
    if section.system and shaped[0]["role"] == "system":
        shaped[0] = {**shaped[0], "content": f"{section.system}\n\n{shaped[0]['content']}"}
    elif section.system:
        shaped.insert(0, {"role": "system", "content": section.system})
    return tuple(shaped)


def content_key(source: str, messages: Sequence[Message], answer: Any) -> str:
    """16 hex digits of the row's content before system and template are applied, so rewording them moves no task."""
    return digest([source, prompt_id(messages), answer])


def prompt_id(prompt: str | Sequence[Message]) -> str:
    """Equal for prompts that ask the same, up to white space at the ends; a text equals its one user message."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return digest([{**m, "content": m.get("content", "").strip()} for m in messages])


def digest(value: Any) -> str:
    """16 hex digits of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
