"""Tool calls: what a policy wrote becomes `Call`s, and `ToolEnv` carries them out. Torch-free.

    terse    refund(order=17, note="late")                one call per line; every other line is thought
    hermes   <tool_call>{"name": "refund", "arguments": {"order": 17}}</tool_call>
    llama    {"name": "refund", "parameters": {"order": 17}}

A `Style` says which of them a policy uses, and how the calls of one action are put down.
Whatever a policy can write gives calls or none, never an exception: one that cannot be carried out has an `error` that
says what would work. Errors repeat no text of the policy's own except names and numbers, because they stand in its context.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Literal

from milepost.env import Action, Call, Observation, State, Tool
from milepost.types import DataError, Message, Task

Format = Literal["terse", "hermes", "llama"]
FORMATS: tuple[Format, ...] = ("terse", "hermes", "llama")


def parse(text: str, tools: Sequence[Tool], format: Format = "terse") -> Action:
    """The calls in `text`, in order. A leading <think>…</think> is thought: calls in it are none."""
    _, rest = split_thought(text)
    return Action(text, tuple(_READERS[format](rest, tools)), format)


def split_thought(text: str) -> tuple[str, str]:
    """(the leading <think>…</think> with the blanks around it, or "", the rest). A thought without end is all there is."""
    thought = _THOUGHT.match(text)
    end = thought.end() if thought else 0
    return text[:end], text[end:]


def render_call(name: str, arguments: Mapping[str, Any], format: str = "terse", tool: Tool | None = None) -> str:
    """The inverse of `parse`, for arguments that are booleans, texts, finite floats, ints of 64 bits, and lists and maps
    of such.

    With `tool`, a terse call gives its arguments by position for as long as they come in the tool's order: fewer tokens.
    """
    if format == "terse":
        order = list(tool.parameters) if tool else []
        num_positional = next((i for i, key in enumerate(arguments) if order[i : i + 1] != [key]), len(arguments))
        parts = (_terse_value(value) if i < num_positional else f"{key}={_terse_value(value)}"
                 for i, (key, value) in enumerate(arguments.items()))  # fmt: skip
        return f"{name}({', '.join(parts)})"
    key = "arguments" if format == "hermes" else "parameters"
    body = json.dumps({"name": name, key: dict(arguments)}, ensure_ascii=False, allow_nan=False)
    return f"<tool_call>\n{body}\n</tool_call>" if format == "hermes" else body


@dataclass(frozen=True)
class Style:
    """How a policy's calls are read and written; settled once, before anything is played."""

    format: Format = "terse"
    """How they are read."""
    template: Callable[[Sequence[Call]], str] | None = None
    """How the model's own chat template writes the calls of one action; None: `render_call`, one per line."""
    schemas: tuple[Mapping[str, Any], ...] = ()
    """The tools as that template is given them; empty: the system message lists them."""

    def write(self, calls: Sequence[Call]) -> str:
        if self.template is not None:
            return self.template(calls)
        return "\n".join(render_call(call.name, call.arguments, self.format) for call in calls)


TERSE = Style()


def schema(tool: Tool) -> dict[str, Any]:
    """The tool as chat templates take it: a function with a JSON schema of its parameters."""
    properties = {key: {"type": _JSON_TYPES[kind]} for key, (kind, _) in tool.parameters.items()}
    required = [key for key, (_, needed) in tool.parameters.items() if needed]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": tool.name, "description": tool.doc, "parameters": parameters}}


def usage(tools: Sequence[Tool], format: str = "terse") -> str:
    """How to call a tool, in a few words: what a policy is told that called none."""
    if not tools:
        return "there are no tools"
    where = "one per line, " if format == "terse" else ""
    return f"write a call, {where}such as {_example(tools[0], format)}; there is {_names(tools)}"


def check_call(name: str, arguments: Mapping[str, Any], tools: Sequence[Tool]) -> Call:
    """The call as it can be carried out (ints as floats where floats are asked, None for an optional parameter left out),
    or with the error that says what would work."""
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        shown = name if WORD.fullmatch(name) else ""
        return Call(shown, error=f"there is no tool {shown or 'of that name'}; use {_names(tools)}")
    given = {k: v for k, v in arguments.items() if v is not None or k not in tool.parameters or tool.parameters[k][1]}
    missing = [key for key, (_, required) in tool.parameters.items() if required and given.get(key) is None]
    extra = [key for key in given if key not in tool.parameters]
    if missing:
        return Call(name, error=f"{name} needs {missing[0]}; it is {tool.signature()}")
    if extra:
        what = extra[0] if WORD.fullmatch(extra[0]) else "such parameter"
        return Call(name, error=f"{name} takes no {what}; it is {tool.signature()}")
    problems = (_wrong_type(key, tool.parameters[key][0], value) for key, value in given.items())
    if problem := next(filter(None, problems), None):
        return Call(name, error=problem)
    return Call(name, {k: float(v) if tool.parameters[k][0] is float else v for k, v in given.items()})


_THOUGHT = re.compile(r"\s*<think>.*?(?:</think>\s*|\Z)", re.DOTALL)
WORD = re.compile(r"[A-Za-z_][\w.-]{0,39}", re.ASCII)
"""What may be shown as the name of a tool or parameter: short, without blanks."""
_NUMBER = r"[-+]?(?:\d{1,300}(?:\.\d{0,300})?|\.\d{1,300})(?:[eE][-+]?\d{1,3})?"
_INT_LIMIT = 2**63
_SAMPLES = {int: 1, float: 1.5, str: "text", bool: True, list: ["text"], dict: {"key": "text"}}
_JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", list: "array", dict: "object"}
_NESTED_TYPES = (list, dict)
_DEEPEST = 6
"""Lists and maps within one another."""


def _names(tools: Sequence[Tool]) -> str:
    return ", ".join(tool.name for tool in tools) or "none"


def _example(tool: Tool, format: str) -> str:
    needed = {key: _SAMPLES[kind] for key, (kind, required) in tool.parameters.items() if required}
    return render_call(tool.name, needed, format).replace("\n", "")


def _wrong_type(key: str, kind: type, value: Any) -> str | None:
    """Why `value` cannot be given for `key`, or None. A bool is no int; an int does where a float is asked."""
    if kind in _NESTED_TYPES and type(value) is kind:
        return _wrong_inside(key, value)
    if isinstance(value, int) and not isinstance(value, bool) and kind in (int, float):
        return None if -_INT_LIMIT <= value < _INT_LIMIT else f"{key} is too large; use at most 18 digits"
    if type(value) is not kind:
        return f"{key} must be {kind.__name__}{_instead(kind, value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{key} must be a finite number"
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        return f"{key} holds half a character; write the character itself"  # no file or database takes it
    return None


def _wrong_inside(key: str, value: Any, depth: int = 1) -> str | None:
    """Why a list or map cannot be given for `key`: it holds what no plain value is, or goes too deep."""
    if depth > _DEEPEST:
        return f"{key} is nested too deeply"
    for item in [*value, *value.values()] if isinstance(value, dict) else value:
        problem = (_wrong_inside(key, item, depth + 1) if type(item) in _NESTED_TYPES else
                   None if item is None else _wrong_type(f"an item of {key}", type(item), item))  # fmt: skip
        if problem:
            return problem
    return None


def _instead(kind: type, value: Any) -> str:
    if kind is list and value is not None and type(value) in _SAMPLES:
        return ': write a list, such as ["text"]'
    if kind in (int, float) and isinstance(value, str) and re.fullmatch(_NUMBER, value.strip(), re.ASCII):
        return f": write {value.strip()} without quotes"
    if kind is int and isinstance(value, float) and value.is_integer() and abs(value) < _INT_LIMIT:
        return f": write {int(value)}"
    if kind is str and type(value) in (int, float) and len(str(value)) < 40:
        return f': write "{value}"'
    if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        return f": write {value.lower()} without quotes"
    return f", not {'null' if value is None else type(value).__name__}"


# --- terse: Python's call syntax, read by a scanner of its own: `ast` warns, recurses and can be crashed by a policy -----


class _Malformed(Exception):
    """What is wrong with a call that was begun."""


_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|\'[^\'\\]*+(?:\\.[^\'\\]*+)*+\''
_OPENING = re.compile(r"([A-Za-z_][\w.-]{0,39})\(", re.ASCII)
_ARGUMENT = re.compile(rf"\s*(?:([A-Za-z_]\w*)\s*=\s*)?({_STRING}|{_NUMBER}(?![\w.])|[A-Za-z]+(?![\w.(]))\s*", re.ASCII)
_NESTED = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*=\s*)?(?=[\[{])", re.ASCII)
_ITEM = re.compile(rf"({_STRING}|{_NUMBER}(?![\w.])|[A-Za-z]+(?![\w.(]))\s*", re.ASCII)
_CLOSING = re.compile(r"\s*\)\s*(?:#.*)?\Z")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(.))")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\\": "\\", '"': '"', "'": "'"}
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def _terse(text: str, tools: Sequence[Tool]) -> Iterator[Call]:
    by_name = {tool.name: tool for tool in tools}
    for line in text.split("\n"):  # not splitlines: other separators may stand inside a text
        opening = _OPENING.match(line := line.strip())
        if opening is None:
            continue
        tool = by_name.get(opening[1])
        try:
            nested = tool is not None and any(kind in _NESTED_TYPES for kind, _ in tool.parameters.values())
            given = _scan(line, opening.end(), nested)
            yield check_call(opening[1], _bind(tool, given) if tool else {}, tools)
        except _Malformed as error:
            if tool:  # else it is a line of thought that has a bracket in it
                yield Call(tool.name, error=f"{error}; {tool.name} is {tool.signature()}")


def _scan(line: str, at: int, nested: bool) -> list[tuple[str | None, Any]]:
    """(name or None, value) of each argument of the call whose bracket opened before `at`; lists and maps if `nested`."""
    given: list[tuple[str | None, Any]] = []
    while not _CLOSING.match(line, at):
        if nested and (begun := _NESTED.match(line, at)):
            value, at = _read_nested(line, begun.end())
            given.append((begun[1], value))
        elif found := _ARGUMENT.match(line, at):
            given.append((found[1], _literal(found[2])))
            at = found.end()
        else:
            raise _Malformed(f'argument {len(given) + 1} is no plain value: write a number, "text", true or false')
        if line[at : at + 1] == ",":
            at += 1
        elif not _CLOSING.match(line, at):
            raise _Malformed("end the call with )" if at >= len(line) else
                             "write nothing behind the call on its line" if line[at] == ")" else
                             f"write a comma or ) behind argument {len(given)}")  # fmt: skip
    return given


def _read_nested(line: str, at: int, depth: int = 1) -> tuple[Any, int]:
    """The list or map that opens at `at`, and where what follows it begins. Python's and JSON's way to write it."""
    if depth > _DEEPEST:
        raise _Malformed("it is nested too deeply")
    keyed, close = (True, "}") if line[at] == "{" else (False, "]")
    items: list[Any] = []
    at = _after_blanks(line, at + 1)
    while line[at : at + 1] != close:
        value, at = _read_item(line, at, depth)
        if keyed:
            key = value
            if not isinstance(key, str) or line[at : at + 1] != ":":
                raise _Malformed('write a map as {"key": "text"}')
            value, at = _read_item(line, _after_blanks(line, at + 1), depth)
            value = (key, value)
        items.append(value)
        if line[at : at + 1] == ",":
            at = _after_blanks(line, at + 1)
        elif line[at : at + 1] != close:
            raise _Malformed(f"write a comma or {close} behind item {len(items)}")
    return (dict(items) if keyed else items), _after_blanks(line, at + 1)


def _read_item(line: str, at: int, depth: int) -> tuple[Any, int]:
    if line[at : at + 1] in ("[", "{"):
        return _read_nested(line, at, depth + 1)
    found = _ITEM.match(line, at)
    if not found:
        raise _Malformed('an item is no plain value: write a number, "text", true or false')
    return _literal(found[1]), found.end()


def _after_blanks(line: str, at: int) -> int:
    while line[at : at + 1].isspace():
        at += 1
    return at


def _literal(token: str) -> Any:
    if token[0] in "\"'":
        return _ESCAPE.sub(_unescape, token[1:-1])
    if token.isalpha():
        if token.lower() not in _WORDS:
            raise _Malformed(f'write texts in quotes: "{token[:40]}"')
        return _WORDS[token.lower()]
    return float(token) if any(mark in token for mark in ".eE") else int(token)


def _unescape(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    return chr(int(code, 16)) if code else _ESCAPED.get(found[4], found[0])


def _bind(tool: Tool, given: Sequence[tuple[str | None, Any]]) -> dict[str, Any]:
    order = list(tool.parameters)
    arguments: dict[str, Any] = {}
    for i, (key, value) in enumerate(given):
        if key is None and (i >= len(order) or any(earlier for earlier, _ in given[:i])):
            raise _Malformed("too many arguments" if i >= len(order) else "name every argument behind a named one")
        key = order[i] if key is None else key
        if key in arguments:
            raise _Malformed(f"{key[:40]} is given twice")
        arguments[key] = value
    return arguments


def _terse_value(value: Any) -> str:
    if isinstance(value, (str, list, dict)):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)  # its escapes are Python's too
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be written as a tool argument")
    return repr(value)


# --- JSON formats ---------------------------------------------------------------------------------------------------

_JSON = json.JSONDecoder(strict=False)  # policies write line breaks into texts
NOTHING = object()
"""Where there is no JSON value; None is one."""
OPEN_TAG, _CLOSE_TAG = "<tool_call>", "</tool_call>"
ANY_TAG = re.compile("</?tool_call>")
"""Where a call in Hermes' format begins or ends."""
CLOSED = re.compile(rf"\s*{_CLOSE_TAG}")
"""What must follow its JSON."""
BEGUN = re.compile(r'\{\s*"(?:name|type|function|parameters)"\s*:')
"""Where a call in Llama 3's format begins: an object whose first key is one of a call's."""


def json_at(text: str, at: int) -> tuple[Any, int]:
    """(value, where it ends), or (NOTHING, at)."""
    while text[at : at + 1].isspace():
        at += 1
    try:
        return _JSON.raw_decode(text, at)
    except (ValueError, RecursionError):  # no JSON, a number of thousands of digits, nested too deeply
        return NOTHING, at


def _hermes(text: str, tools: Sequence[Tool]) -> Iterator[Call]:
    at = 0
    while (at := text.find(OPEN_TAG, at)) >= 0:
        value, end = json_at(text, at + len(OPEN_TAG))
        closed = CLOSED.match(text, end)
        if value is not NOTHING and closed:
            yield _from_json(value, "hermes", tools)
        else:
            problem = "that was not one JSON object" if value is NOTHING or end < len(text.rstrip()) else "end the call"
            yield Call("", error=f"{problem}; {usage(tools, 'hermes')}")
        after = closed or ANY_TAG.search(text, end)
        at = len(text) if after is None else after.start() if after[0] == OPEN_TAG else after.end()


def _llama(text: str, tools: Sequence[Tool]) -> Iterator[Call]:
    at = 0
    while begun := BEGUN.search(text, at):
        value, at = json_at(text, begun.start())
        if value is NOTHING:
            yield Call("", error=f"that was no complete JSON object; {usage(tools, 'llama')}")
            return  # nothing says where it was meant to end
        if "name" in value or "parameters" in value:
            yield _from_json(value, "llama", tools)


def _from_json(value: Any, format: str, tools: Sequence[Tool]) -> Call:
    key = "arguments" if format == "hermes" else "parameters"
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Call("", error=f'give the "name" of a tool; {usage(tools, format)}')
    name, arguments = value["name"], value.get(key, NOTHING)
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None or isinstance(arguments, dict):
        return check_call(name, arguments if isinstance(arguments, dict) else {}, tools)
    problem = (f'"{key}" is missing' if arguments is NOTHING else
               f'"{key}" must be an object, not a JSON string' if isinstance(arguments, str) else
               f'"{key}" must be an object, not {type(arguments).__name__}')  # fmt: skip
    return Call(name, error=f"{problem}; write {_example(tool, format)}")


_READERS: dict[str, Callable[[str, Sequence[Tool]], Iterator[Call]]] = {
    "terse": _terse,
    "hermes": _hermes,
    "llama": _llama,
}


# --- carrying calls out ---------------------------------------------------------------------------------------------


class Refused(Exception):
    """Raised by a `do_` method: the policy asked for what cannot be done. The sentence is its answer."""


def permitted(tools: Sequence[Tool], columns: Mapping[str, Any]) -> tuple[Tool, ...]:
    """The tools that a task permits: those of its column `allowed` (all, without one) that `forbidden` does not name.

    Raises DataError for anything but lists of tool names: a lock with a slip in it would not close.
    """
    lists = {column: columns[column] for column in ("allowed", "forbidden") if columns.get(column) is not None}
    names = [tool.name for tool in tools]
    for column, held in lists.items():
        if not isinstance(held, (list, tuple)) or any(name not in names for name in held):
            raise DataError(f"task column {column!r} is {held!r}; it must be a list of tool names out of {_names(tools)}")
    allowed = lists.get("allowed", names)
    return tuple(tool for tool in tools if tool.name in allowed and tool.name not in lists.get("forbidden", ()))


class ToolEnv:
    """Base class of environments that are acted in by tool calls.

        class Bell(ToolEnv):
            tools = (Tool("ring", {"times": (int, False)}),)

            def reset(self, task, seed):
                self.num_rings = 0
                return super().reset(task, seed)

            def state(self):
                return {"num_rings": self.num_rings}

            def do_ring(self, times=1):
                if times < 1:
                    raise Refused("ring at least once")
                self.num_rings += times
                return "ding"

    A subclass has one method `do_<tool>` for each of its tools, with the same parameters; it returns what the policy sees.
    Setting `self.over` ends the episode. A `do_` method checks everything first and changes the world last, because
    `Refused` says that nothing was changed. Any other exception is a fault of the environment.
    """

    tools: ClassVar[tuple[Tool, ...]] = ()
    task: Task | None = None
    """The task being played; set, like `over`, before a subclass's `reset` runs."""
    over: bool = False
    _permitted: tuple[Tool, ...] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        check_tools(cls)
        if "reset" in vars(cls):
            cls.reset = _opened(cls.reset)  # type: ignore[method-assign]

    def _open(self, task: Task) -> None:
        self._permitted = permitted(self.tools, task.columns)
        self.task, self.over = task, False

    def reset(self, task: Task, seed: int) -> Observation:
        """Shows the task's prompt. Raises DataError if its permissions cannot be read."""
        self._open(task)
        messages: tuple[Message, ...] = ({"role": "user", "content": task.prompt},)
        return Observation(messages if isinstance(task.prompt, str) else tuple(task.prompt))

    def state(self) -> State:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to free, unless a subclass says otherwise."""

    def step(self, action: Action) -> Observation:
        """Carries the calls out in order until the world is over; a refused one changes nothing and gets `error: …`."""
        if self.task is None or self.over:
            raise RuntimeError("step before reset, or after the world was over")
        if not action.calls:
            hint = f"error: no tool was called; {usage(self._permitted, action.format)}"
            return Observation(({"role": "user", "content": hint},), num_invalid=1)
        messages: list[Message] = []
        num_invalid = 0
        for call in action.calls:
            if self.over:
                break
            answer = self._carry_out(call)
            num_invalid += isinstance(answer, Refused)
            content = f"error: {answer}" if isinstance(answer, Refused) else answer
            messages.append({"role": "tool", "name": call.name, "content": content})
        return Observation(tuple(messages), ended=self.over, num_invalid=num_invalid)

    def _carry_out(self, call: Call) -> str | Refused:
        """The tool's answer. Everything that can be refused is refused before a tool runs."""
        locked = {tool.name for tool in self.tools} - {tool.name for tool in self._permitted}
        if call.error is None and call.name in locked:
            return Refused(f"{call.name} is not allowed in this task; use {_names(self._permitted)}")
        call = call if call.error else check_call(call.name, call.arguments, self._permitted)
        if call.error:
            return Refused(call.error)
        try:
            answer = getattr(self, f"do_{call.name}")(**call.arguments)
        except Refused as refused:
            return refused
        if not isinstance(answer, str):
            raise TypeError(f"do_{call.name} returned {type(answer).__name__}; it must return what the policy sees, a text")
        return answer


def _opened(reset: Callable[..., Any]) -> Callable[..., Any]:
    """`reset` with the permissions read first, whether or not the author calls super: a lock that cannot be forgotten."""

    @wraps(reset)
    def opened(self: ToolEnv, task: Task, seed: int) -> Any:
        self._open(task)
        return reset(self, task, seed)

    return opened


def check_tools(cls: type) -> None:
    """Every tool has its method with the same parameters, every method its tool; else TypeError. Run for each subclass."""
    tools: tuple[Tool, ...] = cls.tools  # type: ignore[attr-defined]
    where, names = cls.__name__, [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise TypeError(f"{where}.tools names {max(names, key=names.count)} twice; give each tool a name of its own")
    for tool in tools:
        if not tool.name.isidentifier() or not all(key.isidentifier() for key in tool.parameters):
            raise TypeError(f"tool {tool.name!r} of {where}: its name and its parameters must be identifiers")
        if wrong := [kind for kind, _ in tool.parameters.values() if kind not in _SAMPLES]:
            raise TypeError(
                f"tool {tool.name!r} of {where} has a parameter of type {wrong[0]}; use int, float, str, bool, list or dict"
            )
        method = getattr(cls, f"do_{tool.name}", None)
        wanted = {key: required for key, (_, required) in tool.parameters.items()}
        if method is None or inspect.iscoroutinefunction(method) or _parameters(method) != list(wanted.items()):
            shape = ", ".join(["self", *(key if required else f"{key}=…" for key, required in wanted.items())])
            raise TypeError(
                f"{where} must have a method do_{tool.name}({shape}), not async, for its tool {tool.signature()}"
            )
    if tools and (stray := [key for key in dir(cls) if key.startswith("do_") and key[3:] not in names]):
        raise TypeError(f"{where}.{stray[0]} has no tool; add Tool({stray[0][3:]!r}, …) to tools or rename it")


def _parameters(method: Callable[..., Any]) -> list[tuple[str, bool]]:
    """(name, required) of each parameter behind self; others than plain ones count as wrong."""
    plain = list(inspect.signature(method).parameters.values())[1:]
    usual = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [(p.name if p.kind in usual else f"*{p.name}", p.default is p.empty) for p in plain]
