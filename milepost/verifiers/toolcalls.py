"""Tool calls judged by name and arguments: against the tools' JSON schemas and against the calls that were expected.

    gold = {"tools": [{"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}],
            "calls": [{"name": "add", "arguments": {"a": 1}}]}
    score(answer='<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', gold=gold)["score"]  -> 1.0

Calls of one answer are a multiset: order does not matter (unless ordered), number does. Whatever was called beyond what was
expected costs, so nothing is earned by calling more; a call at fault counts as one that was made. Expected values are
JSON: 2 equals 2.0, true does not equal 1, texts must be the same. A call of the gold may list other values that do as
well, {"name", "arguments", "any": {"city": ["Paris", "Paris, France"]}}; parameters that a schema gives a default have it
where they are left out, and null for an optional parameter means that it is left out.

Three named rules: "all" pays 1 if the calls are the expected ones and nothing else; "name" pays 1 if the tools called are
the expected ones, whatever they were given; "fraction" pays the matched calls divided by the expected or the made ones,
whichever are more. All three stand in the parts, beside fault/KIND, the number of calls with each fault.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from milepost.verifiers.call_formats import FAULTS, FORMATS, MAX_CALLS, UNREADABLE, Made, read_calls, render_calls
from milepost.verifiers.extract import blank, spoken
from milepost.verifiers.json_schema import bad_schema, misfit, same_json

Credit = Literal["all", "name", "fraction"]
CREDITS: tuple[Credit, ...] = ("all", "name", "fraction")


class BadGold(ValueError):
    """The gold cannot judge anything. The message is one sentence."""


@dataclass(frozen=True)
class Wanted:
    name: str
    arguments: Mapping[str, Any]
    any: Mapping[str, Sequence[Any]]
    """Parameter → every value that does; None among them: it may be left out."""


@dataclass(frozen=True)
class Problem:
    schemas: Mapping[str, Mapping[str, Any]] | None
    """Tool → the schema of its arguments; None: any tool, unchecked."""
    wanted: tuple[Wanted, ...]

    @property
    def lone(self) -> dict[str, str]:
        """Tool → its only parameter, where that is a text."""
        found = {}
        for name, schema in (self.schemas or {}).items():
            properties = schema.get("properties", {})
            if len(properties) == 1:
                key, rule = next(iter(properties.items()))
                if isinstance(rule, Mapping) and rule.get("type") == "string":
                    found[name] = key
        return found


# --- the gold -------------------------------------------------------------------------------------------------------


def read_gold(gold: Any) -> Problem:
    """{"tools", "calls"}, or the list of calls alone, also as JSON text. Raises BadGold."""
    if isinstance(gold, str):
        try:
            gold = json.loads(gold)
        except (ValueError, RecursionError):
            raise BadGold("the gold is text, but not JSON") from None
    if isinstance(gold, Sequence):
        gold = {"calls": gold}
    if not isinstance(gold, Mapping) or not isinstance(gold.get("calls"), Sequence) or isinstance(gold["calls"], str):
        raise BadGold(
            'a gold for tool calls is a table with "calls", the list of calls expected (empty: none must be made)'
        )
    if len(gold["calls"]) > MAX_CALLS:
        raise BadGold(f"the gold expects {len(gold['calls'])} calls; at most {MAX_CALLS} are read")
    tools = gold.get("tools")
    if tools is not None and (not isinstance(tools, Sequence) or isinstance(tools, str)):
        raise BadGold(f"tools must be a list of tools with name and parameters, not {type(tools).__name__}")
    schemas = None if tools is None else _schemas(tools)
    return Problem(schemas, tuple(_wanted(call, number, schemas) for number, call in enumerate(gold["calls"], 1)))


def _schemas(tools: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    schemas: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str) or not inner["name"]:
            raise BadGold("every tool needs a name")
        name = inner["name"]
        if name in schemas:
            raise BadGold(f"tool {name} is there twice")
        schema: Any = next((inner[key] for key in ("parameters", "input_schema", "inputSchema") if inner.get(key)), {})
        schema = _standard(schema)
        if problem := bad_schema(schema):
            raise BadGold(f"tool {name}: {problem}")
        if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
            raise BadGold(f"tool {name}: the schema of its arguments must have the type object")
        schemas[name] = {"type": "object", "additionalProperties": False, **schema}
    return schemas


_PYTHON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def _standard(schema: Any, depth: int = 0) -> Any:
    """With JSON's names for the types that BFCL calls as Python does."""
    if isinstance(schema, list) and depth < 50:
        return [_standard(part, depth + 1) for part in schema]
    if not isinstance(schema, Mapping) or depth >= 50:
        return schema
    kept = {k: v if k in ("enum", "const", "default", "examples") else _standard(v, depth + 1) for k, v in schema.items()}
    kind = kept.get("type")
    if kind == "any":
        del kept["type"]
    elif isinstance(kind, str):
        kept["type"] = _PYTHON_TYPES.get(kind, kind)
    return kept


def _of_bfcl(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """BFCL's {"tool": {"parameter": [values that do, "" if it may be left out]}} as a call with "any"; others unchanged."""
    name, values = next(iter(call.items()), ("", None))
    if name in ("name", "arguments", "parameters", "any") or len(call) != 1 or not isinstance(values, Mapping):
        return call
    if not all(isinstance(choices, list) for choices in values.values()):
        return call
    return {
        "name": name,
        "any": {key: [one for value in choices for one in _choices(value)] for key, choices in values.items()},
    }


_MOST_CHOICES = 64


def _choices(value: Any) -> list[Any]:
    """What a value of BFCL stands for: "" for none, a table of lists for every table with one of each."""
    if value == "":
        return [None]
    if (
        not isinstance(value, Mapping)
        or not value
        or not all(isinstance(inner, list) and inner for inner in value.values())
    ):
        return [value]
    each = [[one for inner in choices for one in _choices(inner)] for choices in value.values()]
    if math.prod(map(len, each)) > _MOST_CHOICES:
        raise BadGold(f"a table of an expected call has more than {_MOST_CHOICES} forms")
    return [{k: v for k, v in zip(value, chosen) if v is not None} for chosen in itertools.product(*each)]


def _wanted(call: Any, number: int, schemas: Mapping[str, Mapping[str, Any]] | None) -> Wanted:
    call = _of_bfcl(call.get("function", call)) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str) or not call["name"]:
        raise BadGold(f"expected call {number} names no tool")
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    others = call.get("any", {})
    if not isinstance(arguments, Mapping) or not isinstance(others, Mapping):
        raise BadGold(f'expected call {number}: "arguments" and "any" must be tables')
    if not all(isinstance(values, list) and values for values in others.values()):
        raise BadGold(f'expected call {number}: "any" must give a list of values for each parameter')
    first = {key: value for key, values in others.items() for value in values[::-1] if value is not None}
    arguments = {**first, **arguments}
    if schemas is not None:
        if call["name"] not in schemas:
            raise BadGold(f"expected call {number} calls {call['name']}, which is none of the tools")
        arguments = _settled(arguments, schemas[call["name"]])
        for given in (arguments, *({**arguments, key: value} for key, values in others.items() for value in values)):
            if problem := misfit(_settled(given, schemas[call["name"]]), schemas[call["name"]]):
                raise BadGold(f"expected call {number} does not fit its own tool: {problem}")
    return Wanted(call["name"], arguments, {key: [*values, arguments.get(key)] for key, values in others.items()})


def _settled(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """With defaults for what was left out. Null for what may be left out leaves it out, unless null is a value of it beside
    its default."""
    properties = schema.get("properties", {})
    required = schema.get("required", ())
    given = {
        k: v for k, v in arguments.items()
        if v is not None or k in required or k not in properties or _has_null(properties[k])
    }  # fmt: skip
    defaults = {key: rule["default"] for key, rule in properties.items() if isinstance(rule, Mapping) and "default" in rule}
    return {**defaults, **given}


def _has_null(rule: Any) -> bool:
    return isinstance(rule, Mapping) and rule.get("default") is not None and misfit(None, rule) is None


# --- judging --------------------------------------------------------------------------------------------------------


def score(
    *, answer: str, gold: Any, format: str = "hermes", credit: Credit = "all", ordered: bool = False,
    decode_twice: bool = False, opened: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The verdict on one answer.

    format: hermes, llama, mistral, json or react. ordered: the calls must come in the gold's order. decode_twice: arguments
    that are a text holding an object are taken for it. opened: the prompt opened the reasoning. Nothing that can be read as
    a call is score 0 with extractable False, unless none was expected: then it is right, if anything was said at all.
    Raises ValueError for an unknown format or credit.
    """
    if format not in FORMATS or credit not in CREDITS:
        wrong, known = (format, FORMATS) if format not in FORMATS else (credit, CREDITS)
        raise ValueError(f"{wrong!r} is unknown for tool calls; use {', '.join(known)}")
    try:
        problem = read_gold(gold)
    except BadGold as error:
        return {"score": None, "cause": "bad_gold", "extracted": None, "extractable": False, "compared": str(error),
                "parts": {}}  # fmt: skip
    said, why = spoken(answer, opened=opened)
    if said is None or blank(said):
        return _verdict(0.0, [], why or "nothing was said", {})
    made = [_checked(call, problem) for call in read_calls(said, format, problem.lone, decode_twice=decode_twice)]
    parts = _parts(made, problem.wanted, ordered)
    return _verdict(parts[credit], made, _compared(made, problem.wanted, parts), parts, none_wanted=not problem.wanted)


def _checked(call: Made, problem: Problem) -> Made:
    """With its arguments settled, or the fault that the tools' schemas show."""
    if call.fault or problem.schemas is None:
        return call
    schema = problem.schemas.get(call.name)
    if schema is None:
        return replace(call, fault="unknown_tool")
    arguments = _settled(call.arguments or {}, schema)
    wrong = misfit(arguments, schema)
    return replace(call, fault="schema", detail=wrong) if wrong else replace(call, arguments=arguments)


def _fits(call: Made, wanted: Wanted) -> bool:
    if call.fault or call.name != wanted.name or call.arguments is None:
        return False
    left_out = wanted.arguments.keys() - call.arguments.keys()
    if call.arguments.keys() - wanted.arguments.keys() or any(None not in wanted.any.get(key, ()) for key in left_out):
        return False
    return all(any(same_json(value, other) for other in wanted.any.get(key, [wanted.arguments[key]]))
               for key, value in call.arguments.items())  # fmt: skip


def _parts(made: Sequence[Made], wanted: Sequence[Wanted], ordered: bool) -> dict[str, float]:
    if ordered:
        num_matched = sum(_fits(call, want) for call, want in zip(made, wanted))
    else:
        num_matched = _num_matched([[_fits(call, want) for want in wanted] for call in made])
    most = max(len(made), len(wanted))
    names = [call.name for call in made if call.arguments is not None and call.fault != "unknown_tool"]
    expected = [want.name for want in wanted]
    right_names = len(names) == len(made) and (names == expected if ordered else Counter(names) == Counter(expected))
    faults = Counter(f"fault/{call.fault}" for call in made if call.fault)
    fraction = num_matched / most if most else 1.0
    return {"all": float(fraction == 1.0), "name": float(right_names), "fraction": fraction,
            **{kind: float(number) for kind, number in faults.items()}}  # fmt: skip


def _num_matched(fits: Sequence[Sequence[bool]]) -> int:
    """The most pairs of calls and expectations, each used once (augmenting paths): greedy would miss some of them."""
    taken: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in tried:
                tried.add(column)
                if column not in taken or place(taken[column], tried):
                    taken[column] = row
                    return True
        return False

    return sum(place(row, set()) for row in range(len(fits)))


def _verdict(
    value: float, made: Sequence[Made], compared: str, parts: dict[str, float], *, none_wanted: bool = False
) -> dict:
    readable = [call for call in made if call.fault not in (*UNREADABLE, "too_many")]
    shown = json.dumps([{"name": call.name[:80], "arguments": call.arguments} for call in readable], ensure_ascii=True)
    extracted = shown[:2000] if made and readable else None
    extractable = bool(readable) or (none_wanted and not made and bool(parts))
    return {"score": value, "cause": None, "extracted": extracted, "extractable": extractable, "compared": compared,
            "parts": parts}  # fmt: skip


def _compared(made: Sequence[Made], wanted: Sequence[Wanted], parts: Mapping[str, float]) -> str:
    if not made:
        return "no call was made" + (", as was right" if not wanted else f"; expected {_listed(wanted)}")
    if parts["all"] == 1.0:
        return f"{len(made)} of {len(wanted)} calls match"
    faulty = next((call for call in made if call.fault), None)
    if faulty is not None:
        what = f"{faulty.name[:40]}: " if faulty.name else ""
        return f"{faulty.fault}: {what}{faulty.detail or FAULTS[str(faulty.fault)]}"
    return f"made {len(made)}, expected {_listed(wanted)}; {round(parts['fraction'] * max(len(made), len(wanted)))} match"


def _listed(wanted: Sequence[Wanted]) -> str:
    texts = [f"{want.name}({json.dumps(want.arguments, ensure_ascii=True)[:80]})" for want in wanted[:3]]
    return f"{len(wanted)}: {', '.join(texts)}" if wanted else "none"


# --- checks of the gold ---------------------------------------------------------------------------------------------


def check_gold(gold: Any, *, format: str = "hermes", credit: str = "all", **params: Any) -> str | None:
    """What is wrong with a gold, with its tools, or with how it is to be judged; None if nothing is."""
    if format not in FORMATS or credit not in CREDITS:
        wrong, known = (format, FORMATS) if format not in FORMATS else (credit, CREDITS)
        return f"{wrong!r} is unknown for tool calls; use {', '.join(known)}"
    try:
        read_gold(gold)
    except BadGold as error:
        return str(error)
    return None


def right(gold: Any, *, format: str = "hermes", ordered: bool = False, **params: Any) -> list[str]:
    """The expected calls, written in the format; with their order turned round where it does not matter. Raises BadGold."""
    calls = [(want.name, want.arguments) for want in read_gold(gold).wanted]
    if not calls:
        return ["No tool is needed here."]
    prose = "" if format in ("json", "mistral") else "I call what is needed.\n"
    texts = [render_calls(calls, format), f"<think>Which?</think>\n{prose}{render_calls(calls, format)}"]
    return texts if ordered or len(calls) == 1 else [*texts, render_calls(calls[::-1], format)]


def wrong(gold: Any, *, format: str = "hermes", credit: str = "all", **params: Any) -> list[str]:
    """Texts that must score 0: none of the expected calls is in them, or, where all must match, one too few or too many."""
    problem = read_gold(gold)
    calls = [(want.name, want.arguments) for want in problem.wanted]
    if not calls:
        return ["", " \n", render_calls([("anything", {})], format)]
    other = render_calls([("no_such_tool", calls[0][1])], format)
    texts = ["", " \n", "Done. All tools were called.", "{}", "42", other, f"<think>{render_calls(calls, format)}"]
    bare = [_checked(Made(name, {}), problem) for name, _ in calls]
    if credit != "name" and not any(_fits(call, want) for call in bare for want in problem.wanted):
        texts.append(render_calls([(call.name, {}) for call in bare], format))
    if credit != "fraction":
        texts += [render_calls([*calls, calls[0]], format), render_calls([*calls, ("no_such_tool", {})], format)]
        texts.append(render_calls(calls * 5, format))
        if len(calls) > 1:
            texts.append(render_calls(calls[:-1], format))
    if credit == "all":
        name, arguments = calls[0]
        texts.append(render_calls([(name, {**arguments, "no_such_parameter": 1}), *calls[1:]], format))
    return texts
