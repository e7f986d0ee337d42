"""How a model's own chat template shows tools and writes calls: `env.tool_format = "model"`. Found by asking it.

An assistant's message with `tool_calls` is rendered, and what the template wrote is given to the readers of tools.py. The
one that gets the very calls back reads for this model, and the template writes its demonstrations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from milepost.env import Call, EnvSpec, Tool
from milepost.render import Schemas, observation_ids, templated, uses_chat
from milepost.sections import EnvSection, TasksSection
from milepost.tools import Format, Style, parse, schema
from milepost.types import DataError, Message, RecipeError

_MARK = "[milepost]"
_ASK: Message = {"role": "user", "content": "?"}
_WORKS = 'use "terse", "hermes" or "llama"'


def style_of(tokenizer: Any, spec: EnvSpec, section: EnvSection, tasks: TasksSection) -> Style:
    """How calls are written and read here. Raises RecipeError where `env.tool_format = "model"` cannot work."""
    return model_style(tokenizer, spec, tasks) if section.tool_format == "model" else Style(section.tool_format)


def model_style(tokenizer: Any, spec: EnvSpec, tasks: TasksSection) -> Style:
    """The style of the tokenizer's template. Raises RecipeError if it ignores tools, loses the environment's words beside
    them, writes calls otherwise than a reader knows, or takes no tool's answer."""
    if not spec.tools:
        raise RecipeError(f'env.tool_format = "model", but environment {spec.name!r} has no tools; remove env.tool_format')
    if spec.lists_tools:
        raise RecipeError(f'env.tool_format = "model" would show all {len(spec.tools)} tools of environment {spec.name!r}, '
                          f"whose messages list those that a task permits; {_WORKS}")  # fmt: skip
    if not uses_chat(tokenizer, tasks):
        raise RecipeError(f'env.tool_format = "model", but prompts are plain text, without a chat template; {_WORKS}')
    schemas = tuple(schema(tool) for tool in spec.tools)
    try:
        _check_shown(tokenizer, spec, schemas)
        style = _asked(tokenizer, spec.tools, schemas)
        observation_ids([{"role": "tool", "name": spec.tools[0].name, "content": "1"}] * 2, -1, tokenizer, tasks, schemas)
    except DataError as error:
        why = str(error).partition("; ")[0]
        raise RecipeError(f'env.tool_format = "model" does not work with this model: {why}; {_WORKS}') from error
    return style


def _check_shown(tokenizer: Any, spec: EnvSpec, schemas: Schemas) -> None:
    """Raises DataError if the template does not show a tool that it is given, or drops the system message for it."""
    system: list[Message] = [{"role": "system", "content": _MARK}] if spec.system else []
    bare = templated(tokenizer, [*system, _ASK], add_generation_prompt=True)
    shown = templated(tokenizer, [*system, _ASK], schemas, add_generation_prompt=True)
    if lost := [tool.name for tool in spec.tools if shown.count(tool.name) <= bare.count(tool.name)]:
        raise DataError(f"its chat template does not show the tools it is given ({lost[0]} is missing)")
    if system and _MARK not in shown:
        raise DataError("its chat template drops the system message when it is given tools")


def _asked(tokenizer: Any, tools: Sequence[Tool], schemas: tuple[dict[str, Any], ...]) -> Style:
    """The style that gets every call back from what the template writes. Raises DataError."""

    def together(calls: Sequence[Call]) -> str:
        return _written(tokenizer, calls, schemas)

    def one_by_one(calls: Sequence[Call]) -> str:
        return "\n".join(_written(tokenizer, [call], schemas) for call in calls)

    calls = _examples(tools)
    formats: tuple[Format, ...] = ("hermes", "llama")
    for format in formats:
        if all(_reads(format, tools, [call], together) for call in calls):
            # Some templates take, or write, one call in a message.
            write = together if _reads(format, tools, calls, together) else one_by_one
            return Style(format, write, schemas)
    shown = " ".join(together(calls[:1]).split())[:80]
    raise DataError(f"its chat template writes calls as {shown!r}, which is read neither as hermes nor as llama")


def _reads(format: Format, tools: Sequence[Tool], calls: Sequence[Call], write: Callable[[Sequence[Call]], str]) -> bool:
    try:
        return parse(write(calls), tools, format).calls == tuple(calls)
    except DataError:
        if len(calls) == 1:
            raise
        return False


def _examples(tools: Sequence[Tool]) -> list[Call]:
    """Each tool called with all it takes and with no more than it needs, with values that are not easily written."""
    values = {int: -7, float: 0.5, str: 'a "b"\n{é}', bool: True, list: ['"', -7], dict: {"k": 0.5}}
    return [Call(tool.name, {key: values[kind] for key, (kind, needed) in tool.parameters.items() if needed or full})
            for tool in tools for full in (True, False)]  # fmt: skip


def _wants_ids(tokenizer: Any, made: Sequence[dict[str, Any]], schemas: Schemas) -> bool:
    """Whether the template takes these calls and an answer to each with ids of nine characters, and not without."""

    def takes(**ids: str) -> bool:
        told = [{**call, **({"id": ids["tool_call_id"]} if ids else {})} for call in made[:1]]
        answer: Message = {"role": "tool", "name": made[0]["function"]["name"], "content": "1", **ids}
        try:
            templated(tokenizer, [_ASK, {"role": "assistant", "content": "", "tool_calls": told}, answer], schemas,
                      add_generation_prompt=True)  # fmt: skip
        except DataError:
            return False
        return True

    return not takes() and takes(tool_call_id="milepost1")


def _written(tokenizer: Any, calls: Sequence[Call], schemas: Schemas) -> str:
    """What the template writes for an assistant's calls between its header and the end of the turn. Raises DataError.

    A question follows: as the last message of all, an answer may get an empty thought.
    """
    made = [{"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}} for c in calls]
    answers = ({"role": "assistant", "content": _MARK}, {"role": "assistant", "content": "", "tool_calls": made})
    try:
        frame, text = (
            templated(tokenizer, [_ASK, answer, _ASK], schemas, add_generation_prompt=False) for answer in answers
        )
    except DataError:
        if _wants_ids(tokenizer, made, schemas):
            raise DataError(
                "its chat template, as those of Mistral do, wants an id with every call and every answer to one, and calls "
                "have none here"
            ) from None
        raise
    before, found, after = frame.partition(_MARK)
    if not found or not text.startswith(before) or not text.endswith(after) or len(text) < len(before) + len(after):
        raise DataError("its chat template does not write calls where it writes answers")
    return text[len(before) : len(text) - len(after)]
