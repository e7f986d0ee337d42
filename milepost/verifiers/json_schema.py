"""Does a JSON value fit a JSON schema? The part of JSON Schema that tool definitions use, and nothing silently ignored.

    misfit({"order": "17"}, {"type": "object", "properties": {"order": {"type": "integer"}}})
      ->  "order must be integer, not string"

Read: type, enum, const, properties, required, additionalProperties, items, prefixItems, the bounds on numbers, texts,
lists and objects, pattern, uniqueItems, anyOf, oneOf, allOf, not, $ref into the same schema, and nullable. A schema with
any other rule is refused by `bad_schema`: a rule that nobody checks is worse than none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

MAX_DEPTH = 40
MAX_PATTERN_CHARACTERS = 10_000
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_NOTES = {"title", "description", "default", "example", "examples", "format", "deprecated", "readOnly", "writeOnly",
          "strict", "optional", "$schema", "$id", "$comment", "$defs", "definitions"}  # fmt: skip
_RULES = {"type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems", "minimum",
          "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "minItems",
          "maxItems", "uniqueItems", "minProperties", "maxProperties", "anyOf", "oneOf", "allOf", "not", "$ref",
          "nullable"}  # fmt: skip
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def type_of(value: Any) -> str:
    """The JSON type of a value. 2.0 is a number, and where an integer is asked it does as one."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, (int, float)):
        return "integer" if isinstance(value, int) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, (list, tuple)) else "object"


def same_json(left: Any, right: Any) -> bool:
    """Equality of JSON values: 2 and 2.0 are equal, true and 1 are not, the order of keys does not matter."""
    one, other = type_of(left), type_of(right)
    if one in ("integer", "number") and other in ("integer", "number"):
        return bool(left == right)
    if one != other:
        return False
    if one == "array":
        return len(left) == len(right) and all(map(same_json, left, right))
    if one == "object":
        return left.keys() == right.keys() and all(same_json(left[key], right[key]) for key in left)
    return bool(left == right)


def misfit(value: Any, schema: Any, root: Any = None) -> str | None:
    """The first thing that is wrong with `value`, with its path, or None. `schema`, or `root` if it is a part of that, must
    have passed `bad_schema`."""
    return next(_misfits(value, schema, schema if root is None else root, "", 0), None)


def _misfits(value: Any, schema: Any, root: Any, path: str, depth: int) -> Iterator[str]:
    name = path or "the value"
    if depth > MAX_DEPTH:
        yield f"{name} is nested too deeply"
        return
    if isinstance(schema, bool):
        if not schema:
            yield f"{name} is not allowed"
        return
    if value is None and schema.get("nullable") is True:
        return
    if "$ref" in schema:
        yield from _misfits(value, _resolve(schema["$ref"], root), root, path, depth + 1)
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds is not None and not any(_is(value, kind) for kind in kinds):
        yield f"{name} must be {' or '.join(kinds)}, not {type_of(value)}"
        return
    if "enum" in schema and not any(same_json(value, item) for item in schema["enum"]):
        yield f"{name} is none of the {len(schema['enum'])} values allowed"
    if "const" in schema and not same_json(value, schema["const"]):
        yield f"{name} is not the one value allowed"
    kind = type_of(value)
    if kind in ("integer", "number"):
        yield from _number(value, schema, name)
    elif kind == "string":
        yield from _text(value, schema, name)
    elif kind == "array":
        yield from _array(value, schema, root, path, depth)
    elif kind == "object":
        yield from _object(value, schema, root, path, depth)
    yield from _combined(value, schema, root, path, depth)


def _is(value: Any, kind: str) -> bool:
    found = type_of(value)
    if found == "number" and kind == "integer":
        return math.isfinite(value) and float(value).is_integer()
    return found == kind or (found == "integer" and kind == "number")


def _number(value: Any, schema: Mapping[str, Any], name: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{name} must be a finite number"
        return
    if value < schema.get("minimum", value) or value > schema.get("maximum", value):
        yield f"{name} is out of bounds"
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if (low is not None and value <= low) or (high is not None and value >= high):
        yield f"{name} is out of bounds"
    step = schema.get("multipleOf")
    if step is not None and (Fraction(str(value)) / Fraction(str(step))).denominator != 1:
        yield f"{name} is no multiple of {step}"


_ENDS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(\$)", re.DOTALL)


def _to_the_end(pattern: str) -> str:
    """With `$` as JSON schema has it: Python's matches before a last line break too."""
    return _ENDS.sub(lambda found: r"\Z" if found[1] else found[0], pattern)


def _text(value: str, schema: Mapping[str, Any], name: str) -> Iterator[str]:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf):
        yield f"{name} has a length that is not allowed"
    elif "pattern" in schema and not re.search(_to_the_end(schema["pattern"]), value[:MAX_PATTERN_CHARACTERS]):
        yield f"{name} does not match its pattern"


def _array(value: Sequence[Any], schema: Mapping[str, Any], root: Any, path: str, depth: int) -> Iterator[str]:
    name = path or "the list"
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf):
        yield f"{name} has a length that is not allowed"
        return
    first = schema.get("prefixItems", [])
    for index, item in enumerate(value):
        rule = first[index] if index < len(first) else schema.get("items", True)
        yield from _misfits(item, rule, root, f"{path}[{index}]", depth + 1)
    if schema.get("uniqueItems"):
        seen = [json.dumps(_plain(item), sort_keys=True) for item in value]
        if len(set(seen)) < len(seen):
            yield f"{name} has an entry twice"


def _plain(value: Any) -> Any:
    """2.0 as 2, so that equal values have equal texts."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _object(value: Mapping[str, Any], schema: Mapping[str, Any], root: Any, path: str, depth: int) -> Iterator[str]:
    properties = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{path + '.' if path else ''}{key} is missing"
    if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", math.inf):
        yield f"{path or 'the object'} has a number of keys that is not allowed"
    others = schema.get("additionalProperties", True)
    for key, item in value.items():
        where = f"{path}.{key[:40]}" if path else key[:40]
        if key in properties:
            yield from _misfits(item, properties[key], root, where, depth + 1)
        elif others is False:
            yield f"{where} is no parameter"
        else:
            yield from _misfits(item, others, root, where, depth + 1)


def _combined(value: Any, schema: Mapping[str, Any], root: Any, path: str, depth: int) -> Iterator[str]:
    def fits(rule: Any) -> bool:
        return next(_misfits(value, rule, root, path, depth + 1), None) is None

    name = path or "the value"
    for rule in schema.get("allOf", ()):
        yield from _misfits(value, rule, root, path, depth + 1)
    if "anyOf" in schema and not any(map(fits, schema["anyOf"])):
        yield f"{name} fits none of the forms allowed"
    if "oneOf" in schema and (num := sum(map(fits, schema["oneOf"]))) != 1:
        yield f"{name} fits {num} of the forms allowed, not one"
    if "not" in schema and fits(schema["not"]):
        yield f"{name} has a form that is not allowed"


def _resolve(reference: str, root: Any) -> Any:
    found = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found[part.replace("~1", "/").replace("~0", "~")] if part else found
    return found


def resolved(schema: Any, root: Any) -> Any:
    """What a schema that is a $ref alone refers to; any other is itself."""
    while isinstance(schema, Mapping) and "$ref" in schema and "properties" not in schema:
        schema = _resolve(schema["$ref"], root)
    return schema


# --- schemas themselves ---------------------------------------------------------------------------------------------


def bad_schema(schema: Any) -> str | None:
    """What is wrong with a schema, or would not be checked; None if all of it is."""
    if problem := _bad(schema, schema, 0):
        return problem
    inside = list(_within(schema))
    for part in inside:
        if isinstance(part, Mapping) and "$ref" in part:
            found = _resolve(part["$ref"], schema)
            if not any(found is other for other in inside):
                return f"$ref {part['$ref']!r} leads to no schema"
    return "the schema refers to itself without going into the value" if _circular(schema, schema, set(), set()) else None


def _circular(schema: Any, root: Any, above: set[int], done: set[int]) -> bool:
    """Whether a schema asks itself about the same value, which would never end."""
    if id(schema) in above:
        return True
    if not isinstance(schema, Mapping) or id(schema) in done:
        return False
    same_value = [part for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, ())]
    same_value += [schema["not"]] if "not" in schema else []
    same_value += [_resolve(schema["$ref"], root)] if "$ref" in schema else []
    circular = any(_circular(part, root, above | {id(schema)}, done) for part in same_value)
    done.add(id(schema))
    return circular or any(_circular(part, root, set(), done) for part in _parts(schema))


def _within(schema: Any) -> Iterator[Any]:
    """All schemas in one that has passed `_bad`, itself first."""
    yield schema
    if isinstance(schema, Mapping):
        for part in _parts(schema):
            yield from _within(part)


def _bad(schema: Any, root: Any, depth: int) -> str | None:
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, Mapping):
        return f"a schema must be a table, not {type(schema).__name__}"
    if depth > MAX_DEPTH:
        return "the schema is nested too deeply"
    if unknown := [key for key in schema if key not in _RULES and key not in _NOTES]:
        return f"the rule {unknown[0]!r} of the schema is not checked here; leave it out"
    return _bad_value(schema, root) or next(filter(None, (_bad(part, root, depth + 1) for part in _parts(schema))), None)


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("properties", "$defs", "definitions"):
        yield from schema.get(key, {}).values()
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        yield from schema.get(key, ())
    for key in ("items", "additionalProperties", "not"):
        if key in schema:
            yield schema[key]


def _bad_value(schema: Mapping[str, Any], root: Any) -> str | None:
    """A rule whose own value makes no sense."""
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else [kinds]:
        if kind not in _TYPES:
            return f"type {kind!r} is none of {', '.join(_TYPES)}"
    for key, form in (*((k, Mapping) for k in ("properties", "$defs", "definitions")),
                      *((k, list) for k in ("anyOf", "oneOf", "allOf", "prefixItems", "enum", "required"))):  # fmt: skip
        if key in schema and not isinstance(schema[key], form):
            return f"{key!r} of a schema must be a {'list' if form is list else 'table'}"
    for key in (*_SIZES, *_BOUNDS):
        number = schema.get(key, 1)
        if isinstance(number, bool) or not isinstance(number, int if key in _SIZES else (int, float)):
            return f"{key!r} of a schema must be a number"
        if not abs(number) < math.inf:
            return f"{key!r} of a schema must be finite"
    if not all(isinstance(key, str) for key in schema.get("required", ())):
        return "'required' of a schema must list names"
    if schema.get("multipleOf", 1) <= 0:
        return "'multipleOf' of a schema must be above 0"
    try:
        re.compile(schema.get("pattern", ""))
        if "$ref" in schema:
            if not str(schema["$ref"]).startswith("#"):
                return f"$ref {schema['$ref']!r} leads out of the schema"
            _resolve(schema["$ref"], root)
    except (re.error, KeyError, TypeError, IndexError):
        return "a pattern or $ref of the schema leads nowhere"
    return None
