"""Grammars that write tool calls, JSON and schemas whose verdict is known beforehand, and pieces whose is not."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from fuzzed import FEW, MANY, MOST_SECONDS, judged
from hypothesis import given
from hypothesis import strategies as st

from milepost.verifiers import format as form
from milepost.verifiers import toolcalls
from milepost.verifiers.call_formats import FORMATS, render_calls
from milepost.verifiers.json_schema import bad_schema, misfit, same_json

NAMES = st.sampled_from(["a", "b", "city", "Ünicode 北", "</tool_call>", "Action: x", "```", '"', "\\"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    NAMES,
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)), max_leaves=8
)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "g", "look_up"]), st.dictionaries(NAMES, VALUES, max_size=3)), max_size=3)


def _clean(calls: list[tuple[str, dict[str, Any]]]) -> bool:
    text = json.dumps(calls, ensure_ascii=False)
    return not any(mark in text for mark in ("<|", "<think", "</think", "\ud800")) and text.isprintable()


def check_calls(calls: list[tuple[str, dict[str, Any]]], name: str, ascii_only: bool, indent: int | None) -> None:
    gold = [{"name": tool, "arguments": arguments} for tool, arguments in calls]
    answer = render_calls(calls[::-1], name)
    if name == "hermes":
        turned = [json.dumps({"arguments": dict(reversed(arguments.items())), "name": tool}, ensure_ascii=ascii_only,
            indent=indent)
                  for tool, arguments in calls]  # fmt: skip
        answer = "\n".join(f"<tool_call>{text}</tool_call>" for text in turned)
    if not calls and name != "mistral":
        answer = "Nothing to call."
    assert judged(toolcalls, answer=answer, gold=gold, format=name)["score"] == 1, answer
    assert (
        judged(toolcalls, answer=render_calls([*calls, ("f", {"never": 0.5})], name), gold=gold, format=name)["score"] == 0
    )
    if calls:
        assert judged(toolcalls, answer=render_calls(calls[1:], name) or "Nothing.", gold=gold, format=name)["score"] == 0


@FEW
@given(CALLS.filter(_clean), st.sampled_from(FORMATS), st.booleans(), st.sampled_from([None, 2]))
def test_calls_are_a_multiset_in_every_format(calls, name, ascii_only, indent):
    check_calls(calls, name, ascii_only, indent)


@pytest.mark.nightly
@MANY
@given(CALLS.filter(_clean), st.sampled_from(FORMATS), st.booleans(), st.sampled_from([None, 2]))
def test_many_calls_are_multisets(calls, name, ascii_only, indent):
    check_calls(calls, name, ascii_only, indent)


PIECES = st.sampled_from([*'{}[]",:\\ \n', "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "Action:",
    "\nAction Input:", "Observation:", "```json\n", "```", '"name"', '"f"',
                          '"arguments"', '"parameters"', "null", "1e999", "NaN", "0.1", "<tool_response>", "<think>",
                          "f[x]", "\\u", "\ud800", "<|python_tag|>", ";"])  # fmt: skip


@FEW
@given(st.lists(PIECES, max_size=40).map("".join), st.sampled_from(FORMATS), st.booleans())
def test_broken_calls_are_judged(text, name, twice):
    gold = {
        "tools": [{"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}],
        "calls": [{"name": "f", "arguments": {}}],
    }
    judged(toolcalls, answer=text, gold=gold, format=name, decode_twice=twice)
    judged(form, answer=text, gold={"blocks": ["think", "answer"]})
    judged(form, answer=text, gold={"schema": {"type": "object", "required": ["name"]}})
    judged(form, answer=text, gold={"boxes": 1})


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> tuple[dict[str, Any], Any]:
    """(a schema, a value that fits it)."""
    kind = draw(
        st.sampled_from(
            ("integer", "number", "string", "boolean", "null", "enum") + ("array", "object", "anyOf", "ref") * (depth > 0)
        )
    )
    if kind == "integer":
        value = draw(st.integers(-99, 99))
        return {"type": "integer", "minimum": value - draw(st.integers(0, 3)), "maximum": value}, draw(
            st.sampled_from((value, float(value)))
        )
    if kind == "number":
        value = draw(st.integers(-99, 99)) / 4
        return {"type": ["number", "null"], "multipleOf": 0.25, "exclusiveMaximum": value + 0.5}, value
    if kind == "string":
        value = draw(st.text("abc", max_size=5))
        return {"type": "string", "minLength": len(value), "pattern": "^[abc]*$"}, value
    if kind in ("boolean", "null"):
        return {"type": kind}, None if kind == "null" else draw(st.booleans())
    if kind == "enum":
        value = draw(VALUES)
        return {"enum": ["another", value]}, value
    if kind == "array":
        pairs = draw(st.lists(schemas(depth - 1), min_size=1, max_size=3))
        return {"type": "array", "prefixItems": [rule for rule, _ in pairs], "items": False, "minItems": len(pairs)}, [
            value for _, value in pairs
        ]
    if kind == "object":
        pairs = draw(st.dictionaries(st.sampled_from("abcd"), schemas(depth - 1), max_size=3))
        rule = {
            "type": "object",
            "properties": {name: pair[0] for name, pair in pairs.items()},
            "required": list(pairs),
            "additionalProperties": False,
        }
        return rule, {name: pair[1] for name, pair in pairs.items()}
    inner, value = draw(schemas(depth - 1))
    return ({"anyOf": [{"const": "another"}, inner]} if kind == "anyOf" else {"allOf": [inner]}), value


def check_schema(pair: tuple[dict[str, Any], Any], other: Any) -> None:
    schema, value = pair
    assert bad_schema(schema) is None and misfit(value, schema) is None, (schema, value)
    assert misfit(json.loads(json.dumps(value)), json.loads(json.dumps(schema))) is None
    assert misfit(value, {"not": schema}) is not None
    assert same_json(value, value) and (misfit(other, {"const": value}) is None) == same_json(other, value)
    assert isinstance(misfit(other, schema), (str, type(None)))


@FEW
@given(schemas(), VALUES)
def test_a_value_fits_the_schema_it_was_made_with(pair, other):
    check_schema(pair, other)


RULES = st.sampled_from(["type", "enum", "const", "properties", "required", "items", "prefixItems", "minimum",
    "multipleOf", "pattern", "anyOf", "oneOf", "allOf", "not",
                         "$ref", "nullable", "title", "$defs", "minLength", "uniqueItems", "additionalProperties",
                         "maxItems"])  # fmt: skip
ANY_SCHEMA = st.recursive(
    st.one_of(SCALARS, st.sampled_from(["#", "#/title", "#/$defs/a", "#/anyOf/0", "object", "string", [], {}, True,
        float("nan"), float("inf")])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.one_of(RULES, st.sampled_from("ab")),
        inner, max_size=4)), max_leaves=12,
)  # fmt: skip


def check_any_schema(schema: Any, value: Any) -> None:
    began = time.process_time()
    if bad_schema(schema) is None:
        assert isinstance(misfit(value, schema), (str, type(None)))
    judged(
        toolcalls,
        answer="<tool_call>",
        gold={"tools": [{"name": "f", "parameters": schema}], "calls": [{"name": "f", "arguments": value}]},
    )
    assert time.process_time() - began < MOST_SECONDS


@FEW
@given(ANY_SCHEMA, VALUES)
def test_any_schema_is_refused_or_checked(schema, value):
    check_any_schema(schema, value)


@pytest.mark.nightly
@MANY
@given(schemas(), ANY_SCHEMA, VALUES)
def test_many_schemas(pair, schema, value):
    check_schema(pair, value)
    check_any_schema(schema, value)
