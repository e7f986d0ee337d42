"""Whether a text calls a tool in whatever format: where no tool is to be called, a call that cannot be read is one as well.

    called('Here: {"name": "add", "arguments": {"a": 1}}', {"add"})  ->  "add"
    called("I could use add here, but need not.", {"add"})           ->  None

Known are JSON with a name and arguments wherever it stands, the formats of `call_formats`, tags that name a function, and
a call written as Python by itself on a line, with plain values. Prose that mentions a tool, its schema and its signature
are no call. No text makes it raise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from milepost.tools import json_at
from milepost.verifiers.call_formats import read_calls

MAX_CHARACTERS = 50_000
MAX_TRIES = 64
_NAMES = ("name", "tool", "tool_name", "function", "action")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "action_input", "tool_input")
_OPENED = re.compile(r'\{\s*"')
_TAGGED = re.compile(
    r"<(?:function|invoke|tool)(?:=|\s+name=)[\"']?([\w.-]{1,64})|<(?:tool_call|function_call)>\s*([\w.-]{1,64})\s*[<({\n]"
    r"|\bto=functions\.([\w.-]{1,64})"
)
_BLOCK = re.compile(r"```[\w-]*[ \t]*\n(.*?)```", re.DOTALL)


def called(said: str, tools: Collection[str]) -> str | None:
    """The first tool that is called; None if none is."""
    said = said[:MAX_CHARACTERS]
    return next((name for name in _names(said) if name in tools), None)


def _names(said: str) -> Iterator[str]:
    yield from (name for value in _objects(said) for name in _named(value))
    yield from (tag[1] or tag[2] or tag[3] for tag in _TAGGED.finditer(said))
    yield from (call.name for format in ("mistral", "react") for call in read_calls(said, format))
    for text in (said, *_BLOCK.findall(said), *said.splitlines()):
        yield from _of_python(text.strip(" \t\r\n`").removeprefix("<|python_tag|>"))


def _objects(said: str) -> Iterator[Any]:
    """JSON objects of the text, from the outermost."""
    at = 0
    for _ in range(MAX_TRIES):
        if not (opened := _OPENED.search(said, at)):
            return
        value, end = json_at(said, opened.start())
        if isinstance(value, Mapping):
            yield value
        at = max(end, opened.end())


def _named(value: Any) -> Iterator[str]:
    """Names of what looks like a call, in it and in what it holds."""
    level = [value]
    for _ in range(MAX_TRIES):
        for item in level:
            name = next((item[key] for key in _NAMES if isinstance(item.get(key), str)), None)
            given = next((item[key] for key in _ARGUMENTS if key in item), None)
            is_schema = isinstance(given, Mapping) and {"type", "properties"} <= given.keys()
            if name is not None and given is not None and not is_schema:
                yield name
        inner = [one for item in level for part in item.values() for one in (part if isinstance(part, list) else [part])]
        level = [one for one in inner if isinstance(one, Mapping)]


def _of_python(text: str) -> Iterator[str]:
    """Of calls that are all of the text, or what a name is set to, with plain values: f(a) alone is a signature."""
    if len(text) > 2000 or "(" not in text:
        return
    try:
        nodes = ast.parse(text).body
        for node in nodes:
            value = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
            for call in value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]:
                if isinstance(call, ast.Call) and _plain(call):
                    yield ast.unparse(call.func).removesuffix(".call")  # so Llama writes what it knows by itself
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return


def _plain(call: ast.Call) -> bool:
    try:
        for value in (*call.args, *(keyword.value for keyword in call.keywords)):
            ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
