"""The eight APIs and the tasks of BFCL's multi-turn part, as the wheel `bfcl-eval` ships them. Torch-free.

Calls come as (name, arguments) and go straight to the API's method: BFCL's own executor evaluates text, and is not used.
"""

from __future__ import annotations

import ast
import copy
import decimal
import hashlib
import importlib
import importlib.util
import inspect
import json
import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import mpmath

from milepost.env import Tool, canonical
from milepost.tools import Refused
from milepost.types import RecipeError

MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""API → the file of its source and the file of its descriptions, which are called the same."""
VARIANTS = ("base", "miss_func", "miss_param", "long_context")
INSTALL = "pip install --no-deps 'bfcl-eval>=2026.3.23'"
MOST_NODES = 10_000
"""Files and directories. Copies share what they hold, so that a few calls could make a tree without end."""
MOST_DIGITS = 1000
_SHOWN = 240
_TYPES = {"string": str, "integer": int, "float": float, "boolean": bool, "array": list, "dict": dict}
_SOURCES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_LOCK = threading.Lock()
"""mpmath's precision belongs to the process."""


# --- what the wheel holds ------------------------------------------------------------------------------------------------


def _data() -> Path:
    """Raises RecipeError where the package is missing."""
    found = importlib.util.find_spec("bfcl_eval")
    if found is None or not found.submodule_search_locations:
        raise RecipeError(f"environment 'bfcl' needs the package bfcl-eval, without its pinned dependencies; {INSTALL}")
    return Path(found.submodule_search_locations[0]) / "data"


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@cache
def described() -> dict[str, dict[str, Any]]:
    """Tool → its description: name, text, parameters (a JSON schema of BFCL's own dialect), api."""
    found = {}
    for api, name in MODULES.items():
        for line in _lines(_data() / "multi_turn_func_doc" / f"{name}.json"):
            text = line["description"].partition("Tool description: ")[2] or line["description"]
            found[line["name"]] = {"name": line["name"], "text": text, "parameters": line["parameters"], "api": api}
    return found


@cache
def tools() -> tuple[Tool, ...]:
    return tuple(
        Tool(name, {key: (_TYPES[value["type"]], key in one["parameters"]["required"])
                    for key, value in one["parameters"]["properties"].items()}, one["text"])
        for name, one in described().items()
    )  # fmt: skip


@cache
def by_name() -> dict[str, Tool]:
    return {tool.name: tool for tool in tools()}


def listing(names: Sequence[str], full: bool) -> str:
    """One line for each tool: signature, what it does, which values are allowed. `full`: a line for each parameter too."""
    lines = []
    for name in names:
        properties = described()[name]["parameters"]["properties"]
        lines.append(f"{by_name()[name].signature()}: {described()[name]['text']}")
        for key, value in properties.items():
            words = value.get("description", "").strip()
            allowed = re.search(r"\[Enum\]:\s*(\[.*?\])", words)
            if full or allowed:
                lines.append(f"  {key}: {words if full or not allowed else allowed[1]}")
    return "\n".join(lines)


class Entry(TypedDict):
    number: int
    variant: str
    classes: list[str]
    """The APIs that it involves."""
    config: str
    """Their start, JSON in one text: the order of its keys is that of files and messages, and must outlast any copy."""
    turns: list[str]
    """What the user says."""
    gold: list[list[dict[str, Any]]]
    """The calls of each turn: name, arguments."""
    allowed: list[str]
    held_out: dict[str, int]
    """Tool → the turn in which it is handed out."""


@cache
def entries(variant: str) -> tuple[Entry, ...]:
    """The tasks of a variant in their order."""
    name = f"BFCL_v4_multi_turn_{variant}.json"
    asked, answers = _lines(_data() / name), _lines(_data() / "possible_answer" / name)
    return tuple(_entry(row, answer["ground_truth"], variant) for row, answer in zip(asked, answers, strict=True))


def _entry(row: dict[str, Any], truth: list[list[str]], variant: str) -> Entry:
    gold = [[read_call(text) for text in calls] for calls in truth]
    without = set(row.get("excluded_function", ()))
    classes = row["involved_classes"]
    allowed = [name for api in classes for name, one in described().items() if one["api"] == api and name not in without]
    held_out = {name: int(turn) for turn, names in row.get("missed_function", {}).items() for name in names}
    for turn, calls in enumerate(gold):  # one ground truth calls a tool before it is handed out
        for call in calls:
            if held_out.get(call["name"], 0) > turn:
                held_out[call["name"]] = turn
    turns = [messages[0]["content"] if messages else "" for messages in row["question"]]
    return {"number": int(row["id"].rsplit("_", 1)[1]), "variant": variant, "classes": classes,
            "config": json.dumps(row["initial_config"]), "turns": turns, "gold": gold, "allowed": allowed,
            "held_out": held_out}  # fmt: skip


def read_call(text: str) -> dict[str, Any]:
    """A call of the ground truth, read as syntax and never evaluated. Values by position get the names of the method."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name), text
    api = described()[call.func.id]["api"]
    names = list(inspect.signature(getattr(_source(api), call.func.id)).parameters)[1:]
    given = {key: ast.literal_eval(value) for key, value in zip(names, call.args)}
    given |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return {"name": call.func.id, "arguments": given}


def _source(api: str) -> Any:
    return getattr(importlib.import_module(f"{_SOURCES}.{MODULES[api]}"), api)


# --- the worlds of one episode -------------------------------------------------------------------------------------------


class Worlds:
    """One instance of each API that a task involves."""

    def __init__(self, classes: Sequence[str], config: str, long_context: bool) -> None:
        self.of: dict[str, Any] = {}
        given = json.loads(config)
        for api in classes:
            world = self.of[api] = _source(api)()
            if api != "MathAPI":  # which has no state
                world._load_scenario(given.get(api, {}), long_context=long_context)
            vars(world).update(copy.deepcopy(vars(world)))  # long contexts are lists of the module, shared by all

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """(what BFCL's executor would have answered, whether it is an error). Raises Refused where a call would never end,
        and leaves everything as it was."""
        if arguments.get("precision", 0) > MOST_DIGITS:
            raise Refused(f"precision is at most {MOST_DIGITS}")
        world = self.of[described()[name]["api"]]
        before = copy.deepcopy(vars(world)) if name in ("cp", "mv") else None
        with _LOCK, decimal.localcontext():
            digits = mpmath.mp.dps
            try:
                answer, wrong = _answered(getattr(world, name), copy.deepcopy(dict(arguments)))
            finally:
                mpmath.mp.dps = digits
        if before is not None and _size(world.root) > MOST_NODES:
            vars(world).update(before)
            raise Refused("that would make the file system too large")
        return answer, wrong

    def facts(self) -> dict[str, dict[str, Any]]:
        """API → its public facts, those that BFCL compares. Long ones as "#digest"."""
        found = {}
        for api, world in self.of.items():
            public = {key: _plain(value) for key, value in vars(world).items() if not key.startswith("_")}
            found[api] = {key: value if len(text := canonical({"": value})) <= _SHOWN else f"#{digest(text)}"
                          for key, value in public.items()}  # fmt: skip
        return found

    def inside(self) -> dict[str, str]:
        """API → digest of what BFCL does not compare but later answers depend on: random numbers, the directory at hand."""
        hidden = {api: {key: _plain(value) for key, value in vars(world).items()
                        if key.startswith("_") and key not in ("_api_description", "_current_dir")}
                  for api, world in self.of.items()}  # fmt: skip
        if "GorillaFileSystem" in self.of:
            hidden["GorillaFileSystem"]["at"] = _way(self.of["GorillaFileSystem"]._current_dir)
        return {api: digest(canonical(facts)) for api, facts in hidden.items() if facts}


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _answered(method: Any, arguments: dict[str, Any]) -> tuple[str, bool]:
    """As BFCL's executor puts it into words: JSON of a dict if it can be, else the text of whatever came back."""
    try:
        result = method(**arguments)
    except Exception as error:
        return f"Error during execution: {error}", True
    wrong = isinstance(result, dict) and "error" in result
    if isinstance(result, dict):
        try:
            return json.dumps(result), wrong
        except (TypeError, ValueError, RecursionError):
            return str(result), wrong
    return result if isinstance(result, str) else str(result), wrong


def _plain(value: Any) -> Any:
    """Plain JSON that is equal where BFCL finds the values equal: 2.0 is 2, a set has no order, files are their content."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value if abs(value) < float("inf") else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=lambda item: canonical({"": item}))
    if isinstance(value, random.Random):
        return digest(repr(value.getstate()))
    if hasattr(value, "contents"):
        return {"directory": {str(key): _plain(item) for key, item in value.contents.items()}}
    return {"file": value.content} if hasattr(value, "content") else str(value)


def _size(directory: Any) -> int:
    """How many files and directories there are below, as one who walks through them counts, up to one too many."""
    num, open_ = 0, [directory]
    while open_ and num <= MOST_NODES:
        num += 1
        open_ += getattr(open_.pop(), "contents", {}).values()
    return num


def _way(directory: Any) -> str:
    return "/".join(reversed([step.name for step in _upwards(directory)]))


def _upwards(directory: Any) -> Iterator[Any]:
    for _ in range(MOST_NODES):  # parents of what was moved may go round in a circle
        if directory is None:
            return
        yield directory
        directory = directory.parent
