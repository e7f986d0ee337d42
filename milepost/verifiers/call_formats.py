"""Reads tool calls out of what a policy said, in the formats of the common chat templates. No text makes it raise.

    hermes   <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>                     (Hermes, Qwen)
    llama    {"name": "f", "parameters": {"x": 1}}                                           (Llama 3)
    mistral  [TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]    or    [TOOL_CALLS]f[ARGS]{"x": 1}
    json     {"name": "f", "arguments": {"x": 1}}, a list of such, or {"tool_calls": [{"function": …}]}, and nothing else
    react    Thought: …  Action: f  Action Input: {"x": 1}

A call that cannot be understood has a `fault`, one of `FAULTS`. What a policy makes up about the answer to a call (an
Observation, a <tool_response>) ends what counts: calls behind it were made in a world that does not exist. Where hermes and
llama calls begin and end is decided by the readers of tools.py, which environments use.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from milepost.tools import ANY_TAG, BEGUN, CLOSED, NOTHING, OPEN_TAG, WORD, json_at

FAULTS: dict[str, str] = {
    "not_json": "the call is no JSON, or something stands beside it",
    "incomplete": "the call is not ended",
    "several_objects": "one call holds several JSON objects",
    "duplicate_key": "a key is given twice",
    "not_finite": "a number is not finite",
    "no_name": "the call names no tool",
    "no_arguments": "the call has no arguments, not even empty ones",
    "arguments_not_object": "the arguments are no JSON object",
    "double_encoded": "the arguments are a text that holds JSON, not JSON",
    "unknown_tool": "there is no such tool",
    "schema": "the arguments do not fit the tool's schema",
    "too_deep": "the call is nested too deeply",
    "too_many": "more calls than are read",
    "other_format": "a tool is called in another format, where none must be called",
}
UNREADABLE = ("not_json", "incomplete", "several_objects", "no_name")
MAX_CALLS = 64
MAX_DEPTH = 64


@dataclass(frozen=True)
class Made:
    """One call as it was written. `arguments` is None where they could not be read."""

    name: str = ""
    arguments: Mapping[str, Any] | None = None
    fault: str | None = None
    """A key of FAULTS, or None."""
    detail: str = ""


def read_calls(said: str, format: str, lone: Mapping[str, str] | None = None, *, decode_twice: bool = False) -> list[Made]:
    """The calls in a text, in order, at most MAX_CALLS; one more with the fault "too_many" stands for the rest.

    lone: tool → its only parameter, a text, for ReAct inputs that are no JSON. decode_twice: arguments that are a text
    holding an object are read as that object, instead of being at fault. Raises KeyError for an unknown format.
    """
    made = list(islice(_READERS[format](said, lone or {}, decode_twice), MAX_CALLS + 1))
    return [*made[:MAX_CALLS], Made(fault="too_many")] if len(made) > MAX_CALLS else made


# --- one call -------------------------------------------------------------------------------------------------------


class _Fault(Exception):
    """args[0]: a key of FAULTS."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise _Fault("duplicate_key")
    return result


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Fault("not_finite")
    return value


_STRICT = json.JSONDecoder(strict=False, object_pairs_hook=_pairs, parse_float=_finite, parse_constant=_finite)


def _object_at(text: str, at: int) -> tuple[Any, int, str | None]:
    """(value, where it ends, the fault in it). Python takes the last of two equal keys, and NaN; no call may have them."""
    value, end = json_at(text, at)
    if value is NOTHING:
        return value, end, "not_json"
    try:
        _STRICT.raw_decode(text[at:end].lstrip())
    except _Fault as fault:
        return value, end, str(fault.args[0])
    except RecursionError:
        return value, end, "too_deep"
    return value, end, "too_deep" if _too_deep(value) else None


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else
                                                       item if isinstance(item, list) else ())]  # fmt: skip
        if not level:
            return False
    return True


def json_alone(text: str) -> tuple[Any, str | None]:
    """(the one JSON value that a text is, None), or (what was read of it, the fault: a key of FAULTS)."""
    value, end, fault = _object_at(text, 0)
    rest = text[end:].strip()
    if value is not NOTHING and rest:
        return value, "several_objects" if rest[:1] in ("{", "[") else "not_json"
    return (None if value is NOTHING else value), fault


def fenced(text: str) -> list[str]:
    """The contents of the complete fenced blocks that are unmarked or marked as JSON."""
    return [body.strip() for body in _FENCED.findall(text)]


def _call(value: Any, keys: Sequence[str], decode_twice: bool, *, encoded: bool = False) -> Made:
    """encoded: the arguments are a JSON text by the format's own rule, so that decoding them once is no mistake."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or not value["name"]:
        return Made(fault="no_name")
    name = value["name"]
    arguments = next((value[key] for key in keys if key in value), NOTHING)
    if arguments is NOTHING:
        return Made(name, fault="no_arguments")
    if encoded and isinstance(arguments, str):
        arguments, fault = _decoded(arguments)
        if fault:
            return Made(name, fault=fault)
    if isinstance(arguments, str):
        inner, fault = _decoded(arguments)
        if inner is NOTHING or isinstance(inner, (str, Mapping)):
            if inner is NOTHING:
                return Made(name, fault="arguments_not_object")
            if not decode_twice or fault or not isinstance(inner, Mapping):
                return Made(name, fault=fault or "double_encoded")
        arguments = inner
    if not isinstance(arguments, Mapping):
        return Made(name, fault="arguments_not_object")
    return Made(name, arguments)


def _decoded(text: str) -> tuple[Any, str | None]:
    value, end, fault = _object_at(text, 0)
    if value is not NOTHING and text[end:].strip():
        return NOTHING, "not_json"
    return value, fault


# --- the formats ----------------------------------------------------------------------------------------------------


_MADE_UP = re.compile(r"<tool_response>|\[TOOL_RESULTS\]|<\|start_header_id\|>|<\|python_output\|>")


def _hermes(said: str, lone: Mapping[str, str], decode_twice: bool) -> Iterator[Made]:
    at = 0
    while (begun := said.find(OPEN_TAG, at)) >= 0:
        if _MADE_UP.search(said, at, begun):
            return
        value, end, fault = _object_at(said, begun + len(OPEN_TAG))
        closed = CLOSED.match(said, end)
        if value is not NOTHING and closed:
            yield Made(fault=fault) if fault else _call(value, ("arguments",), decode_twice)
        elif value is not NOTHING:
            rest = said[end : end + 1000].lstrip()
            yield Made(fault="several_objects" if rest[:1] in ("{", "[") else "not_json" if rest else "incomplete")
        else:
            yield Made(fault="not_json" if ANY_TAG.search(said, end) else "incomplete")
        after = closed or ANY_TAG.search(said, end)
        at = len(said) if after is None else after.start() if after[0] == OPEN_TAG else after.end()


def _llama(said: str, lone: Mapping[str, str], decode_twice: bool) -> Iterator[Made]:
    at = 0
    while begun := BEGUN.search(said, at):
        if _MADE_UP.search(said, at, begun.start()):
            return
        value, at, fault = _object_at(said, begun.start())
        if value is NOTHING:
            yield Made(fault="incomplete")
            return  # nothing says where it was meant to end
        if "name" in value or "parameters" in value:
            yield Made(fault=fault) if fault else _call(value, ("parameters",), decode_twice)


_FENCED = re.compile(r"```(?:json|JSON|python|tool_call)?[ \t]*+\n(.*?)```", re.DOTALL)


def _json(said: str, lone: Mapping[str, str], decode_twice: bool) -> Iterator[Made]:
    text = said.strip()
    if text[:1] not in ("{", "["):
        blocks = fenced(text)
        if not blocks:
            return
        text = blocks[-1]
    yield from _listed(text, decode_twice)


def _listed(text: str, decode_twice: bool) -> Iterator[Made]:
    """The calls of a text that is one JSON value: a call, a list of calls, or a message with tool_calls."""
    value, fault = json_alone(text)
    if fault:
        yield Made(fault=fault)
        return
    if isinstance(value, Mapping) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    for item in value if isinstance(value, list) else [value]:
        inner = item.get("function") if isinstance(item, Mapping) else None
        if isinstance(inner, Mapping):
            yield _call(inner, ("arguments", "parameters"), decode_twice, encoded=True)
        else:
            yield _call(item, ("arguments", "parameters"), decode_twice)


_MISTRAL = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([A-Za-z_][\w.-]{0,63})(?:\[CALL_ID\]\w{1,64})?(?:\[ARGS\])?\s*(?=\{)", re.ASCII)


def _mistral(said: str, lone: Mapping[str, str], decode_twice: bool) -> Iterator[Made]:
    said = _MADE_UP.split(said, maxsplit=1)[0]
    parts = said.split(_MISTRAL)
    # The marker is a special token, which decoding may have left out: then the list is all there is.
    parts = parts[1:] if len(parts) > 1 else [said] if said.lstrip().startswith("[{") else []
    for part in parts:
        named = _NAMED.match(part)
        if not named:
            yield from _listed(part.strip(), decode_twice)
            continue
        value, end, fault = _object_at(part, named.end())
        rest = part[end:].strip()
        if fault or rest:
            yield Made("" if value is NOTHING else named[1], fault=fault or "not_json")
        else:
            yield _call({"name": named[1], "arguments": value}, ("arguments",), decode_twice)


_LABEL = re.compile(
    r"^[ \t>#*_-]*+(thought|action input|action|observation|final answer)(?:[ \t]+\d{1,3})?[ \t*_]*+:[*_]*+",
    re.IGNORECASE | re.MULTILINE,
)
_BRACKETS = re.compile(r"([A-Za-z_][\w.-]{0,39})\[(.*)\]", re.ASCII | re.DOTALL)  # Search[Paris], as in the ReAct paper


def _react(said: str, lone: Mapping[str, str], decode_twice: bool) -> Iterator[Made]:
    labels = list(_LABEL.finditer(said))
    sections: list[tuple[str, str]] = []
    for index, label in enumerate(labels):
        if label[1].lower() in ("observation", "final answer"):
            break
        end = labels[index + 1].start() if index + 1 < len(labels) else len(said)
        sections.append((label[1].lower(), _unfenced(said[label.end() : end])))
    for index, (label_name, content) in enumerate(sections):
        if label_name != "action":
            continue
        following = sections[index + 1] if index + 1 < len(sections) else ("", "")
        brackets = _BRACKETS.fullmatch(content)
        if content[:1] in ("{", "["):
            yield from _blob(content, decode_twice)
        elif brackets and following[0] != "action input":
            yield _input(brackets[1], brackets[2].strip(), lone.get(brackets[1]), decode_twice)
        elif not WORD.fullmatch(name := content.strip("`* \t")):
            yield Made(fault="no_name")
        elif following[0] != "action input":
            yield Made(name, fault="no_arguments")
        else:
            yield _input(name, following[1], lone.get(name), decode_twice)


def _unfenced(text: str) -> str:
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    return fenced[1].strip() if fenced else text


def _blob(content: str, decode_twice: bool) -> Iterator[Made]:
    """One JSON object that holds both: {"action": …, "action_input": …}, or name and arguments."""
    value, fault = _decoded(content)
    if isinstance(value, Mapping) and not fault and "action" in value:
        yield _call({"name": value["action"], **{k: v for k, v in value.items() if k == "action_input"}},
                    ("action_input",), decode_twice)  # fmt: skip
    else:
        yield from _listed(content, decode_twice)


def _input(name: str, content: str, only: str | None, decode_twice: bool) -> Made:
    value, fault = _decoded(content)
    if only is not None and not isinstance(value, Mapping) and content and content[:1] not in ("{", "["):
        return Made(name, {only: value if isinstance(value, str) else content})
    if value is NOTHING:
        return Made(name, fault="not_json")
    return Made(name, fault=fault) if fault else _call({"name": name, "arguments": value}, ("arguments",), decode_twice)


_Reader = Callable[[str, Mapping[str, str], bool], Iterator[Made]]
_READERS: dict[str, _Reader] = {"hermes": _hermes, "llama": _llama, "mistral": _mistral, "json": _json, "react": _react}
FORMATS = tuple(_READERS)


def render_calls(calls: Sequence[tuple[str, Mapping[str, Any]]], format: str) -> str:
    """The inverse of `read_calls`. Raises KeyError for an unknown format."""
    key = "parameters" if format == "llama" else "arguments"
    texts = [json.dumps({"name": name, key: dict(arguments)}, ensure_ascii=False) for name, arguments in calls]
    if format == "react":
        return "\n".join(
            f"Action: {name}\nAction Input: {json.dumps(dict(arguments), ensure_ascii=False)}" for name, arguments in calls
        )
    return {
        "hermes": lambda: "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts),
        "llama": lambda: "\n".join(texts),
        "mistral": lambda: f"{_MISTRAL} [{', '.join(texts)}]",
        "json": lambda: f"[{', '.join(texts)}]",
    }[format]()
