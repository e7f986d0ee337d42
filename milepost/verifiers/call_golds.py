"""What a gold for tool calls says: the tools that there are, the calls expected, and each value that will do in them.

    read_gold([{"area": {"base": [10], "unit": ["cm", ""]}}]).wanted[0].table.forms
      ->  {"base": (10,), "unit": ("cm", LEFT_OUT, None)}

Golds are Milepost's own, {"name", "arguments", "any"}, or BFCL's, {"tool": {"parameter": [values that do]}}. One of
Milepost's is refused if anything in it does not fit the tools. BFCL's own golds hold many values that do not, beside others
that do: these are dropped, and a gold is refused if none is left.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.verifiers.call_formats import MAX_CALLS
from milepost.verifiers.json_schema import bad_schema, misfit, resolved, same_json


class BadGold(ValueError):
    """The gold cannot judge anything. The message is one sentence."""


class _LeftOut:
    def __repr__(self) -> str:
        return "LEFT_OUT"


LEFT_OUT = _LeftOut()
"""Among the forms of a key: it may be left out."""


@dataclass(frozen=True)
class Table:
    """A table with these keys alone, each in one of its forms: a JSON value, a Table, a Row, a Loose or LEFT_OUT."""

    forms: Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Row:
    """A list with these forms in its places."""

    forms: tuple[Any, ...]


@dataclass(frozen=True)
class Loose:
    """A text of BFCL's golds. How it is spelt does not count (`_spelling`)."""

    text: str


@dataclass(frozen=True)
class Wanted:
    name: str
    arguments: Mapping[str, Any]
    """One way to make the call."""
    table: Table


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


# --- forms ----------------------------------------------------------------------------------------------------------


def meets(value: Any, form: Any) -> bool:
    """Whether a value that came has the form. Tables are gone through key by key: their product may be huge."""
    if isinstance(form, Table):
        return (
            isinstance(value, Mapping)
            and value.keys() <= form.forms.keys()
            and all(any(meets(value[key], one) for one in forms) if key in value else LEFT_OUT in forms
                    for key, forms in form.forms.items())
        )  # fmt: skip
    if isinstance(form, Row):
        return isinstance(value, (list, tuple)) and len(value) == len(form.forms) and all(map(meets, value, form.forms))
    if isinstance(form, Loose):
        return isinstance(value, str) and (value == form.text or _spelling(value) == _spelling(form.text) != "")
    return form is not LEFT_OUT and same_json(value, form)


_GAP = re.compile(r"[\s_,]+")
_STOP = re.compile(r"(?<=[^\W\d_])\.|\.(?!\d)")


def _spelling(text: str) -> str:
    """What counts of a text as BFCL's golds mean it: not case, blanks, _ and commas, nor full stops outside numbers.

    Between two digits a gap stays one, whatever it is made of: "28,2021" is "28, 2021", and "12.5, 4" is not "12.54".
    """
    text = _STOP.sub(" ", text.casefold())
    return re.sub(r"(?<!\d) | (?!\d)", "", _GAP.sub(" ", text))


def loosened(value: Any) -> Any:
    """The form of one of BFCL's values whose texts need not be spelt alike."""
    if isinstance(value, str):
        return Loose(value)
    if isinstance(value, (list, tuple)):
        return Row(tuple(map(loosened, value)))
    if isinstance(value, Mapping):
        return Table({key: (loosened(one),) for key, one in value.items()})
    return value


def example(form: Any) -> Any:
    """A value of the form: the first that does for each key, and nothing only where nothing else does."""
    if isinstance(form, Row):
        return [example(one) for one in form.forms]
    if not isinstance(form, Table):
        return form.text if isinstance(form, Loose) else form
    made = {}
    for key, forms in form.forms.items():
        nothing = LEFT_OUT if LEFT_OUT in forms else None
        first = next((one for one in forms if one is not LEFT_OUT and one is not None), nothing)
        if first is not LEFT_OUT:
            made[key] = example(first)
    return made


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
    # Other columns may stand beside: the gold may be a whole row. A misspelt "tools" would switch the schemas off.
    if "tools" not in gold and (meant := difflib.get_close_matches("tools", map(str, gold), n=1, cutoff=0.8)):
        raise BadGold(f'the gold has {meant[0]!r}, which is unknown; did you mean "tools"?')
    if len(gold["calls"]) > MAX_CALLS:
        raise BadGold(f"the gold expects {len(gold['calls'])} calls; at most {MAX_CALLS} are read")
    tools = gold.get("tools")
    if tools is not None and (not isinstance(tools, Sequence) or isinstance(tools, str)):
        raise BadGold(f"tools must be a list of tools with name and parameters, not {type(tools).__name__}")
    try:
        schemas = None if tools is None else _schemas(tools)
        return Problem(schemas, tuple(_wanted(call, number, schemas) for number, call in enumerate(gold["calls"], 1)))
    except RecursionError:
        raise BadGold("the gold is nested too deeply") from None


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


_TYPES = {
    **dict.fromkeys(("dict",), "object"), **dict.fromkeys(("tuple", "list"), "array"),
    **dict.fromkeys(("byte", "short", "int", "long", "Bigint"), "integer"), **dict.fromkeys(("float", "double"), "number"),
    **dict.fromkeys(("char", "String", "str"), "string"), **dict.fromkeys(("Boolean", "bool"), "boolean"),
}  # fmt: skip
_ANY_TYPE = ("", "any", "Any", "Array", "ArrayList", "Set", "HashMap", "Hashtable", "Queue", "Stack")
"""Anything, and Java's collections: where one is asked for, its golds name a variable or write a term of Java."""


def _standard(schema: Any, depth: int = 0) -> Any:
    """With JSON's names for the types that BFCL calls as Python, Java and JavaScript do."""
    if depth >= 50:
        return schema
    if isinstance(schema, list):
        return [_standard(part, depth + 1) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = dict(schema)
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            kept[key] = {name: _standard(part, depth + 1) for name, part in value.items()}
        elif key in ("items", "additionalProperties", "not", "anyOf", "oneOf", "allOf", "prefixItems"):
            kept[key] = _standard(value, depth + 1)
    kind = kept.get("type")
    if isinstance(kind, str) and kind in _ANY_TYPE:
        del kept["type"]
    elif isinstance(kind, str):
        kept["type"] = _TYPES.get(kind, kind)
    return kept


_KEYS = ("name", "arguments", "parameters", "any", "function", "id", "type", "index")
"""Of a call: the last four are of OpenAI's form and say nothing."""


def _wanted(call: Any, number: int, schemas: Mapping[str, Mapping[str, Any]] | None) -> Wanted:
    outer = call if isinstance(call, Mapping) else {}
    inner = outer["function"] if isinstance(outer.get("function"), Mapping) and "name" in outer["function"] else outer
    of_bfcl = _of_bfcl(inner)
    name = next(iter(inner)) if of_bfcl else inner.get("name")
    if not isinstance(name, str) or not name:
        raise BadGold(f"expected call {number} names no tool")
    if not of_bfcl and (unknown := [key for key in (*outer, *inner) if key not in _KEYS]):
        raise BadGold(f"expected call {number} has {str(unknown[0])[:40]!r}; it may have name, arguments and any")
    if schemas is not None and name not in schemas:
        raise BadGold(f"expected call {number} calls {name}, which is none of the tools")
    schema = True if schemas is None else schemas[name]
    where = f"expected call {number}"
    return _from_bfcl(name, inner[name], schema, where) if of_bfcl else _from_own(name, inner, schema, where)


def _from_own(name: str, call: Mapping[str, Any], schema: Any, where: str) -> Wanted:
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    others = call.get("any", {})
    if not isinstance(arguments, Mapping) or not isinstance(others, Mapping):
        raise BadGold(f'{where}: "arguments" and "any" must be tables')
    if not all(isinstance(values, list) and values for values in others.values()):
        raise BadGold(f'{where}: "any" must give a list of values for each parameter')
    first = {key: value for key, values in others.items() for value in values[::-1] if value is not None}
    arguments = {**first, **arguments}
    for given in (arguments, *({**arguments, key: value} for key, values in others.items() for value in values)):
        if problem := misfit(settled(given, schema), schema):
            raise BadGold(f"{where} does not fit its own tool: {problem}")
    own = settled(arguments, schema)
    forms: dict[str, tuple[Any, ...]] = {key: (value,) for key, value in own.items()}
    for key, values in others.items():
        mapped = [settled({**arguments, key: value}, schema).get(key) for value in values]
        without = settled({k: v for k, v in arguments.items() if k != key}, schema) if None in values else {}
        forms[key] = (*mapped, *forms.get(key, ()), *((LEFT_OUT, None) if None in values else ()),
                      *((without[key],) if key in without else ()))  # fmt: skip
    return Wanted(name, own, Table(forms))


# --- golds of BFCL --------------------------------------------------------------------------------------------------


def _of_bfcl(call: Mapping[str, Any]) -> bool:
    """Whether it is BFCL's {"tool": {"parameter": [values that do, "" if it may be left out]}}."""
    name, values = next(iter(call.items()), ("name", None))
    if name in ("name", "arguments", "parameters", "any") or len(call) != 1 or not isinstance(values, Mapping):
        return False
    return all(isinstance(choices, list) for choices in values.values())


def _from_bfcl(name: str, values: Mapping[str, Any], schema: Any, where: str) -> Wanted:
    forms = {key: _choices(key, choices, schema, schema) for key, choices in values.items()}
    if lost := [key for key, some in forms.items() if not some]:
        raise BadGold(f"{where} does not fit its own tool: none of the values of {lost[0][:40]} does")
    table = Table({**_defaults_as_forms(schema, schema, forms), **forms})
    arguments = settled(example(table), schema)
    if problem := misfit(arguments, schema):
        raise BadGold(f"{where} does not fit its own tool: {problem}")
    return Wanted(name, arguments, table)


def _choices(key: str, choices: Sequence[Any], schema: Any, root: Any) -> tuple[Any, ...]:
    """The forms of BFCL's list of values that do, without those that the schema around them does not allow."""
    rules = resolved(schema, root)
    rules = rules if isinstance(rules, Mapping) else {}
    rule, needed = _rule_of(key, rules), key in rules.get("required", ())
    found: list[Any] = []
    for value in choices or [[]]:  # an empty list of values is the empty list
        if value is None or value == "":
            if not needed:
                found += [LEFT_OUT, *(() if value == "" and _has_null(rule, root) else (None,))]
            meant = all(one == "" for one in choices) if value == "" else needed  # the text "" itself, or null itself
            if meant and misfit(value, rule, root) is None:
                found.append(value)
        else:
            found += [form for form in _forms(value, rule, root) if misfit(example(form), rule, root) is None]
    if LEFT_OUT in found and (default := _default(rule, root)) is not LEFT_OUT:
        found.append(loosened(default))
    return tuple(found)


def _forms(value: Any, rule: Any, root: Any) -> list[Any]:
    """The form of one of BFCL's values, in which tables may have lists of values again; [] if a key has no value left."""
    rules = resolved(rule, root)
    rules = rules if isinstance(rules, Mapping) else {}
    if isinstance(value, list) and any(isinstance(one, (Mapping, list)) for one in value):
        first, rest = rules.get("prefixItems", []), rules.get("items", True)
        each = [_forms(one, first[at] if at < len(first) else rest, root) for at, one in enumerate(value)]
        return [Row(tuple(one[0] for one in each))] if all(each) else []
    if not isinstance(value, Mapping) or not value or not all(isinstance(inner, list) for inner in value.values()):
        return [loosened(settled(value, rule, root))]
    forms = {key: _choices(key, inner, rules, root) for key, inner in value.items()}
    return [Table({**_defaults_as_forms(rules, root, forms), **forms})] if all(forms.values()) else []


def _defaults_as_forms(schema: Any, root: Any, known: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    filled = settled({}, schema, root) if isinstance(schema, Mapping) else {}
    return {key: (LEFT_OUT, loosened(value)) for key, value in filled.items() if key not in known}


def _rule_of(key: str, rules: Mapping[str, Any]) -> Any:
    return rules.get("properties", {}).get(key, rules.get("additionalProperties", True))


# --- defaults -------------------------------------------------------------------------------------------------------


def settled(value: Any, schema: Any, root: Any = None) -> Any:
    """With defaults for what was left out, in tables at any depth. Null for what may be left out leaves it out, unless null
    is a value of it beside its default."""
    root = schema if root is None else root
    rules = resolved(schema, root)
    if not isinstance(rules, Mapping):
        return value
    if isinstance(value, (list, tuple)):
        first, rest = rules.get("prefixItems", []), rules.get("items", True)
        return [settled(item, first[at] if at < len(first) else rest, root) for at, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    properties, required = rules.get("properties", {}), rules.get("required", ())
    given = {
        k: settled(v, _rule_of(k, rules), root) for k, v in value.items()
        if v is not None or k in required or k not in properties or _has_null(properties[k], root)
    }  # fmt: skip
    defaults = {key: _default(rule, root) for key, rule in properties.items() if key not in given}
    return {**{key: default for key, default in defaults.items() if default is not LEFT_OUT}, **given}


def _default(rule: Any, root: Any) -> Any:
    """A default that does not fit its own schema is none: BFCL writes "false" for a boolean, and null for no default."""
    if not isinstance(rule, Mapping) or "default" not in rule:
        return LEFT_OUT
    value = settled(rule["default"], rule, root)
    return LEFT_OUT if misfit(value, rule, root) else value


def _has_null(rule: Any, root: Any) -> bool:
    return isinstance(rule, Mapping) and rule.get("default") is not None and misfit(None, rule, root) is None
