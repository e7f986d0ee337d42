"""Tool calls: five formats, typed faults, schemas, multisets, three rules of credit, and what hostile text costs."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from milepost.env import Tool
from milepost.tools import parse, schema
from milepost.verifiers.call_formats import FORMATS, MAX_CALLS, read_calls, render_calls
from milepost.verifiers.json_schema import bad_schema, misfit, same_json
from milepost.verifiers.toolcalls import check_gold, right, score, wrong

few = hypothesis_settings(max_examples=40, deadline=None)
TOOLS = [
    {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "number"}},
                                   "required": ["a"]}},
    {"type": "function", "function": {"name": "find", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"], "default": "C"}},
        "required": ["city"]}}},
    {"name": "look", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
    {"name": "stop"},
]  # fmt: skip
ADD, FIND = {"name": "add", "arguments": {"a": 1, "b": 2.5}}, {"name": "find", "arguments": {"city": "Oslo"}}
ONE, TWO, NONE = ({"tools": TOOLS, "calls": calls} for calls in ([ADD], [ADD, FIND], []))


def hermes(*bodies: str) -> str:
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def fault(answer: str, gold=ONE, **params) -> list[str]:
    """The kinds of fault in a verdict, which must be 0 then."""
    verdict = score(answer=answer, gold=gold, **params)
    found = [key.removeprefix("fault/") for key in verdict["parts"] if key.startswith("fault/")]
    assert not found or (verdict["score"] == 0 and any(kind in verdict["compared"] for kind in found))
    return found


# --- the cases ------------------------------------------------------------------------------------------------------


def test_arguments_encoded_twice():  # case D48
    twice = json.dumps({"name": "add", "arguments": json.dumps({"a": 1, "b": 2.5})})
    assert fault(hermes(twice)) == ["double_encoded"]
    assert score(answer=hermes(twice), gold=ONE, decode_twice=True)["score"] == 1
    thrice = json.dumps({"name": "add", "arguments": json.dumps(json.dumps({"a": 1, "b": 2.5}))})
    assert fault(hermes(thrice)) == fault(hermes(thrice), decode_twice=True) == ["double_encoded"]
    # In a message with tool_calls the arguments are a text by the format's own rule; encoded once more they are at fault.
    once = {"tool_calls": [{"type": "function", "function": {"name": "add", "arguments": json.dumps({"a": 1, "b": 2.5})}}]}
    assert score(answer=json.dumps(once), gold=ONE, format="json")["score"] == 1
    once["tool_calls"][0]["function"]["arguments"] = '"{\\"a\\":1,\\"b\\":2.5}"'
    assert fault(json.dumps(once), format="json") == ["double_encoded"]
    assert score(answer=json.dumps(once), gold=ONE, format="json", decode_twice=True)["score"] == 1


@pytest.mark.parametrize(("body", "kind"), [
    ('{"name":"add","arguments":{"a":1}', "not_json"),
    ('{"name":"add"}', "no_arguments"),
    ('{"name":"subtract","arguments":{"a":1}}', "unknown_tool"),
    ('{"name":"add","arguments":[]}', "arguments_not_object"),
])  # fmt: skip
def test_malformed_calls_are_counted_and_raise_nothing(body, kind):  # case D49
    assert fault(hermes(body)) == [kind]
    assert score(answer=hermes(body), gold=ONE)["parts"][f"fault/{kind}"] == 1


@pytest.mark.parametrize(("body", "kind"), [
    ('{"name":"add","arguments":{"a":1,"b":2.5}}{"name":"add","arguments":{"a":1,"b":2.5}}', "several_objects"),
    ('{"name":"add","arguments":{"a":1,"b":2.5}}\n{"name":"add","arguments":{"a":1,"b":2.5}}', "several_objects"),
    ('{"name":"add","arguments":{"a":1,"b":2.5}} done', "not_json"),
    ('call {"name":"add","arguments":{"a":1,"b":2.5}}', "not_json"),
    ('{"name":"add","arguments":{"a":2,"a":1,"b":2.5}}', "duplicate_key"),
    ('{"name":"stop","name":"add","arguments":{"a":1,"b":2.5}}', "duplicate_key"),
    ('{"name":"add","arguments":{"a":1,"b":NaN}}', "not_finite"),
    ('{"name":"add","arguments":{"a":1,"b":1e999}}', "not_finite"),
    ('{"name":"add","arguments":{"a":"1","b":2.5}}', "schema"),
    ('{"name":"add","arguments":{"a":true,"b":2.5}}', "schema"),
    ('{"name":"add","arguments":{"a":1.5,"b":2.5}}', "schema"),
    ('{"name":"add","arguments":{"b":2.5}}', "schema"),
    ('{"name":"add","arguments":{"a":null,"b":2.5}}', "schema"),
    ('{"name":"add","arguments":{"a":1,"b":2.5,"c":0}}', "schema"),
    ('{"name":"Add","arguments":{"a":1,"b":2.5}}', "unknown_tool"),
    ('{"name":"add ","arguments":{"a":1,"b":2.5}}', "unknown_tool"),
    ('{"name":"","arguments":{"a":1,"b":2.5}}', "no_name"),
    ('{"name":["add"],"arguments":{"a":1,"b":2.5}}', "no_name"),
    ('{"arguments":{"a":1,"b":2.5}}', "no_name"),
    ('[{"name":"add","arguments":{"a":1,"b":2.5}}]', "no_name"),
    ('{"name":"add","parameters":{"a":1,"b":2.5}}', "no_arguments"),
    ('{"name":"add","arguments":"a=1, b=2.5"}', "arguments_not_object"),
    ('{"name":"add","arguments":null}', "arguments_not_object"),
    ('{"name":"add","arguments":"7"}', "arguments_not_object"),
    ("{'name':'add','arguments':{'a':1,'b':2.5}}", "not_json"),
    ("add(a=1, b=2.5)", "not_json"),
    ("", "not_json"),
    ('{"name":"add","arguments":{"a":' + "[" * 300 + "]" * 300 + "}}", "too_deep"),
    ('{"name":"add","arguments":{"a":' + "[" * 90_000, "not_json"),
    ('{"name":"add","arguments":{"a":' + "9" * 9_000 + "}}", "not_json"),
])  # fmt: skip
def test_faults(body, kind):
    assert fault(hermes(body)) == [kind]


@pytest.mark.parametrize("body", [
    '{"name":"add","arguments":{"a":1,"b":2.5}}', '{"arguments":{"b":2.5,"a":1},"name":"add"}',
    '{"name":"add","arguments":{"a":1.0,"b":2.50}}', '{"id":"1","name":"add","arguments":{"a":1,"b":25e-1}}',
])  # fmt: skip
def test_renderings_of_the_same_call(body):
    assert score(answer=hermes(body), gold=ONE)["score"] == 1
    assert score(answer=f"<think>{hermes('nonsense')}</think>I see.{hermes(body)}<|im_end|>{hermes(body)}", gold=ONE)[
        "score"
    ]


# --- multisets and credit -------------------------------------------------------------------------------------------

A, F = json.dumps(ADD), json.dumps(FIND)
OTHER, WORSE = A.replace("2.5", "3"), F.replace("Oslo", "Rome")


@pytest.mark.parametrize(("bodies", "all_", "name", "fraction"), [
    ((A, F), 1, 1, 1),
    ((F, A), 1, 1, 1),
    ((A,), 0, 0, 1 / 2),
    ((A, A), 0, 0, 1 / 2),
    ((A, F, F), 0, 0, 2 / 3),
    ((A, F, "junk"), 0, 0, 2 / 3),
    ((A, F, '{"name":"nil","arguments":{}}'), 0, 0, 2 / 3),
    ((OTHER, F), 0, 1, 1 / 2),
    ((OTHER, WORSE), 0, 1, 0),
    ((A,) * 5, 0, 0, 1 / 5),  # five identical right calls are not worth five
    ((A, F) * 5, 0, 0, 2 / 10),
    ((A, F) * 50, 0, 0, 2 / (MAX_CALLS + 1)),
    ((), 0, 0, 0),
])  # fmt: skip
def test_the_three_rules(bodies, all_, name, fraction):
    for credit, expected in (("all", all_), ("name", name), ("fraction", fraction)):
        verdict = score(answer=hermes(*bodies) or "so", gold=TWO, credit=credit)
        assert verdict["score"] == pytest.approx(expected) and verdict["extractable"] == bool(bodies)
        assert verdict["parts"][credit] == verdict["score"] and verdict["cause"] is None


def test_order_where_it_matters():
    assert score(answer=hermes(A, F), gold=TWO, ordered=True)["score"] == 1
    assert score(answer=hermes(F, A), gold=TWO, ordered=True)["score"] == 0
    assert score(answer=hermes(F, A), gold=TWO, ordered=True, credit="name")["score"] == 0


def test_alternatives_are_matched_as_well_as_can_be():
    either = {"name": "find", "any": {"city": ["Oslo", "Rome"]}}
    gold = {"tools": TOOLS, "calls": [either, FIND]}
    for bodies in ((F, WORSE), (WORSE, F), (F, F)):
        assert score(answer=hermes(*bodies), gold=gold)["score"] == 1, bodies
    assert score(answer=hermes(WORSE, WORSE), gold=gold)["score"] == 0


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"city": "Oslo"}, 1), ({"city": "Oslo", "unit": "C"}, 1), ({"city": "Oslo", "unit": None}, 1),
    ({"city": "Oslo", "unit": "F"}, 0), ({"city": "oslo"}, 0), ({"city": " Oslo"}, 0), ({}, 0),
])  # fmt: skip
def test_what_may_be_left_out(arguments, expected):
    answer = hermes(json.dumps({"name": "find", "arguments": arguments}))
    assert score(answer=answer, gold={"tools": TOOLS, "calls": [FIND]})["score"] == expected


def test_null_is_left_out_even_where_the_schema_takes_it():
    rule = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "o": {"type": ["string", "null"]}},
        "required": ["x"],
    }
    for written in ({"x": 1}, {"x": 1, "o": None}):
        for expected in ({"x": 1}, {"x": 1, "o": None}):
            gold = {"tools": [{"name": "f", "parameters": rule}], "calls": [{"name": "f", "arguments": expected}]}
            assert score(answer=hermes(json.dumps({"name": "f", "arguments": written})), gold=gold)["score"] == 1


def test_no_call_expected():
    ok = score(answer="It is 5 already.", gold=NONE)
    assert ok["score"] == 1 and ok["extractable"] is True
    for answer in (
        "",
        " \n",
        "\u200b",
        "<think>no tool",
        hermes(A),
        hermes("junk"),
        hermes('{"name":"stop","arguments":{}}'),
    ):
        for credit in ("all", "name", "fraction"):
            assert score(answer=answer, gold=NONE, credit=credit)["score"] == 0, answer


@pytest.mark.parametrize("answer", ["", " ", "42", "{}", "Done.", f"<think>{hermes(A)}", f"<think>{hermes(A)}</think>ok",
                                    f"ok<|im_end|>{hermes(A)}", A, "add", "<tool_call>", "</tool_call>",
                                    f"<tool_response>1</tool_response>{hermes(A)}"])  # fmt: skip
def test_nothing_found_is_zero_and_unextractable(answer):
    verdict = score(answer=answer, gold=ONE)
    assert verdict["score"] == 0 and verdict["extractable"] is False and verdict["extracted"] is None
    assert verdict["cause"] is None


def test_a_made_up_answer_ends_what_counts():
    assert score(answer=f"{hermes(A)}<tool_response>3</tool_response>{hermes(F)}", gold=ONE)["score"] == 1
    assert score(answer=f"{hermes(F)}<tool_response>3</tool_response>{hermes(A)}", gold=ONE)["score"] == 0


# --- formats --------------------------------------------------------------------------------------------------------

LOOK = {"name": "look", "arguments": {"text": "a door"}}
LLAMA, LIST = A.replace("arguments", "parameters"), f"[{A}, {F}]"


@pytest.mark.parametrize(("format", "answer", "gold"), [
    ("llama", LLAMA, ONE),
    ("llama", f"<|python_tag|>{LLAMA}; {F.replace('arguments', 'parameters')}", TWO),
    ("llama", f"I call it: {LLAMA}", ONE),
    ("mistral", f"[TOOL_CALLS] {LIST}", TWO),
    ("mistral", f"[TOOL_CALLS]{LIST}</s>", TWO),
    ("mistral", LIST, TWO),  # the special token left out by decoding
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2.5}[TOOL_CALLS]find[CALL_ID]x1[ARGS]{"city": "Oslo"}', TWO),
    ("mistral", '[TOOL_CALLS]add{"a": 1, "b": 2.5}', ONE),
    ("json", A, ONE),
    ("json", LIST, TWO),
    ("json", f"Here:\n```json\n{LIST}\n```\n", TWO),
    ("json", LLAMA, ONE),
    ("react", 'Thought: add.\nAction: add\nAction Input: {"a": 1, "b": 2.5}', ONE),
    ("react", '**Action:** add\n**Action Input:** ```json\n{"a": 1, "b": 2.5}\n```', ONE),
    ("react", 'Action: add\nAction Input: {"a": 1, "b": 2.5}\nObservation: 3.5\nAction: stop\nAction Input: {}', ONE),
    ("react", f"Action:\n```json\n{A}\n```", ONE),
    ("react", 'Action: {"action": "add", "action_input": {"a": 1, "b": 2.5}}', ONE),
    ("react", "Action: look\nAction Input: a door", {"tools": TOOLS, "calls": [LOOK]}),
    ("react", "Thought 1: see.\nAction 1: look[a door]\nObservation 1: red\nAction 2: stop[]",
     {"tools": TOOLS, "calls": [LOOK]}),
    ("react", 'Action: add\nAction Input: {"a": 1, "b": 2.5}\n- **Observation**: 3\nAction: stop\nAction Input: {}', ONE),
    ("react", 'Action: add\nAction Input: {"a": 1, "b": 2.5}\n### Observation 1:\nAction: stop\nAction Input: {}', ONE),
    ("react", 'Action: add[{"a": 1, "b": 2.5}]', ONE),
    ("react", "Thought: nothing to do.\nFinal Answer: 5", NONE),
])  # fmt: skip
def test_formats(format, answer, gold):
    verdict = score(answer=answer, gold=gold, format=format)
    assert verdict["score"] == 1, verdict["compared"]


@pytest.mark.parametrize(("format", "answer", "kind"), [
    ("llama", LLAMA[:-1], "incomplete"),
    ("llama", '{"name": "add"}', "no_arguments"),
    ("llama", LLAMA.replace('"a": 1', '"a": 1, "a": 1'), "duplicate_key"),
    ("mistral", f"[TOOL_CALLS] {A}{A}", "several_objects"),
    ("mistral", f"[TOOL_CALLS] {A} ok", "not_json"),
    ("mistral", "[TOOL_CALLS]", "not_json"),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1', "not_json"),
    ("mistral", '[TOOL_CALLS]nil[ARGS]{"a": 1}', "unknown_tool"),
    ("json", f"{A}\n{A}", "several_objects"),
    ("json", f"{A} is it", "not_json"),
    ("json", "{}", "no_name"),
    ("json", "[1, 2]", "no_name"),
    ("react", "Action: add", "no_arguments"),
    ("react", "Action: add\nThought: so\nAction Input: {}", "no_arguments"),
    ("react", "Action: add\nAction Input: a is 1", "not_json"),
    ("react", 'Action: add\nAction Input: "{\\"a\\": 1}"', "double_encoded"),
    ("react", "Action: I add them\nAction Input: {}", "no_name"),
    ("react", "Action: nil\nAction Input: {}", "unknown_tool"),
    ("react", "Action: add[1]", "arguments_not_object"),
    ("react", "Action: add[a]", "not_json"),
    ("react", "Action: add\nAction Input: {} {}", "not_json"),
    ("react", f"Action: {A}{A}", "several_objects"),
])  # fmt: skip
def test_faults_of_other_formats(format, answer, kind):
    assert fault(answer, format=format)[0] == kind


@pytest.mark.parametrize(("format", "answer"), [
    ("react", 'Observation: 1\nAction: add\nAction Input: {"a": 1, "b": 2.5}'),
    ("react", 'Final Answer: 5\nAction: add\nAction Input: {"a": 1, "b": 2.5}'),
    ("react", 'Thought: Action: add Action Input: {"a": 1, "b": 2.5}'),
    ("mistral", f"[TOOL_RESULTS] 1 [TOOL_CALLS] [{A}]"),
    ("json", "42"), ("json", "nothing"), ("json", f"so {A}"), ("llama", "{}"), ("llama", "[TOOL_CALLS]"), ("mistral", A),
])  # fmt: skip
def test_what_is_no_call_in_its_format(format, answer):
    verdict = score(answer=answer, gold=ONE, format=format)
    assert verdict["score"] == 0 and verdict["extractable"] is False and not verdict["parts"].get("fault/schema")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
PLAIN_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="<[|◁"), max_size=8)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "g.h"]), st.dictionaries(PLAIN_TEXT, PLAIN_TEXT | st.integers(0, 9) |
                 st.booleans() | st.lists(PLAIN_TEXT, max_size=2), max_size=3)), min_size=1, max_size=4)  # fmt: skip


@few
@given(CALLS, st.sampled_from(FORMATS), st.randoms())
def test_what_is_rendered_is_read_again_in_any_order(calls, format, random):
    gold = [{"name": name, "arguments": arguments} for name, arguments in calls]
    random.shuffle(calls)
    assert score(answer=render_calls(calls, format), gold=gold, format=format)["score"] == 1
    more = render_calls([*calls, calls[0]], format)
    assert score(answer=more, gold=gold, format=format)["score"] == 0
    assert score(answer=more, gold=gold, format=format, credit="fraction")["score"] == len(calls) / (len(calls) + 1)


ENV_TOOLS = (Tool("f", {"x": (int, True), "y": (float, False), "s": (str, False), "ok": (bool, False)}), Tool("g", {}))
ARGUMENTS = st.dictionaries(st.sampled_from(["x", "y", "s", "ok", "z"]), st.sampled_from([1, 2.5, "t", True, None, [], {}]))


@few
@given(st.sampled_from(["f", "g", "h"]), ARGUMENTS, st.sampled_from(["hermes", "llama"]))
def test_what_an_environment_carries_out_is_what_counts(name, arguments, format):
    text = render_calls([(name, arguments)], format)
    carried_out = [call for call in parse(text, ENV_TOOLS, format).calls if not call.error]
    gold = {"tools": [schema(tool) for tool in ENV_TOOLS], "calls": [{"name": call.name, "arguments": dict(call.arguments)}
                                                                     for call in carried_out]}  # fmt: skip
    assert score(answer=text, gold=gold, format=format)["score"] == float(bool(carried_out))


# --- golds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("gold", [ONE, TWO, NONE, {"tools": TOOLS, "calls": [{"name": "stop", "arguments": {}}]}, [ADD],
                                  json.dumps(TWO), {"tools": TOOLS, "calls": [ADD, ADD]}])  # fmt: skip
@pytest.mark.parametrize("credit", ["all", "name", "fraction"])
def test_right_and_wrong_answers_of_a_gold(gold, format, credit):
    assert check_gold(gold, format=format, credit=credit) is None
    for text in right(gold, format=format):
        assert score(answer=text, gold=gold, format=format, credit=credit)["score"] == 1, text
    for text in wrong(gold, format=format, credit=credit):
        assert score(answer=text, gold=gold, format=format, credit=credit)["score"] == 0, text


@pytest.mark.parametrize(("gold", "says"), [
    (None, "table with \"calls\""), ("{", "not JSON"), ({}, "calls"), ({"tools": TOOLS}, "calls"), 
    ({"calls": "add"}, "calls"),
    ({"tools": TOOLS, "calls": [{"name": "nil"}]}, "none of the tools"), ([{"arguments": {}}], "names no tool"),
    ({"tools": TOOLS, "calls": [{"name": "add", "arguments": {"a": "1"}}]}, "a must be integer, not string"),
    ({"tools": TOOLS, "calls": [{"name": "find", "any": {"city": []}}]}, "list of values"),
    ({"tools": [*TOOLS, {"name": "add"}], "calls": []}, "twice"), ({"tools": {"add": {}}, "calls": []}, "list of tools"),
    ({"tools": [{"name": "f", "parameters": {"patternProperties": {}}}], "calls": []}, "'patternProperties'"),
    ({"tools": [{"name": "f", "parameters": {"type": "array"}}], "calls": []}, "type object"),
    ({"tool": TOOLS, "calls": []}, "the gold has 'tool', which is unknown"), ({"Tools": TOOLS, "calls": [ADD]}, "'Tools'"),
    ([{**ADD, "tool": "add"}], "expected call 1 has 'tool'; it may have name, arguments and any"),
    ([{"type": "function", "function": {**ADD, "args": {}}}], "has 'args'"), ([{"tool": "add"}], "names no tool"),
    ([ADD] * 65, "at most 64"), ([{"name": "f", "arguments": [1]}], "must be tables"),
])  # fmt: skip
def test_bad_golds_are_unscorable(gold, says):
    assert says in check_gold(gold)
    verdict = score(answer=hermes(A), gold=gold)
    assert verdict["score"] is None and verdict["cause"] == "bad_gold" and says in verdict["compared"]


def test_unknown_formats_are_named():
    assert "'xml' is unknown" in check_gold(ONE, format="xml") and "'some'" in check_gold(ONE, credit="some")
    with pytest.raises(ValueError, match="use hermes, llama, mistral, json, react"):
        score(answer="", gold=ONE, format="xml")


def test_gold_and_answer_are_keywords():  # case D21
    with pytest.raises(TypeError):
        score(hermes(A), ONE)


# --- schemas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "good", "bad"), [
    ({"type": "integer"}, [1, 2.0, -3], [True, 1.5, "1", None]),
    ({"type": ["number", "null"]}, [1, 1.5, None], ["1", False]),
    ({"type": "string", "nullable": True}, ["", None], [0]),
    ({"enum": [1, "a", None]}, [1, 1.0, "a", None], [True, "A", 2]),
    ({"const": [1, {"a": 2}]}, [[1, {"a": 2.0}]], [[1], [1, {"a": True}]]),
    ({"minimum": 0, "exclusiveMaximum": 2}, [0, 1.9, "text"], [-1, 2, float("nan"), float("inf")]),
    ({"multipleOf": 0.1}, [0.3, 7, 1e300], [0.35, 0.1000001]),
    ({"minLength": 1, "maxLength": 2, "pattern": "^[a-c]+$"}, ["a", "cb"], ["", "abc", "d"]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": True}, [[1], [1, 2]],
     [[], ["1"], [1, 1.0]]),
    ({"prefixItems": [{"const": 1}], "items": False}, [[], [1]], [[2], [1, 2]]),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, [{"a": 1, "b": 2}], [{}, {"a": "x"}]),
    ({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 1}, [{}, {"z": 1}],
     [{"z": "1"}, {"y": 1, "z": 1}]),
    ({"anyOf": [{"type": "integer"}, {"maxLength": 1, "type": "string"}]}, [1, "a"], ["ab", None]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, [1.5], [1, "a"]),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}], "not": {"const": 2}}, [1, 3], [0, 4, 2]),
    ({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}},
                                                 "additionalProperties": False}}},
     [{}, {"next": {"next": {}}}], [{"next": {"nxt": {}}}, []]),
    (True, [1], []), (False, [], [1]), ({"minimum": 1}, [10**400], [-(10**400)]),
])  # fmt: skip
def test_schemas(rule, good, bad):
    assert bad_schema(rule) is None
    assert [misfit(value, rule) for value in good] == [None] * len(good)
    assert all(misfit(value, rule) for value in bad)


@pytest.mark.parametrize("rule", [
    {"type": "int"}, {"type": 3}, {"if": {}}, {"items": 3}, {"properties": []}, {"required": "a"}, {"required": [[]]},
    {"minimum": "1"}, {"minLength": 1.5}, {"multipleOf": 0}, {"pattern": "("}, {"$ref": "#/nowhere"}, {"$ref": "http://x"},
    {"properties": {"a": {"typ": "string"}}}, 7, None, {"enum": 1}, {"title": "x", "$ref": "#/title"},
    {"multipleOf": math.nan}, {"minimum": math.inf}, {"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"required": ["a"], "$ref": "#/required"},
    {"not": {"allOf": [{"$ref": "#/not"}]}}, {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
])  # fmt: skip
def test_schemas_that_would_not_be_checked_are_refused(rule):
    assert bad_schema(rule)


@few
@given(JSON_VALUES, JSON_VALUES)
def test_equality_of_json(left, right):
    assert same_json(left, left) and same_json(left, right) == same_json(right, left)
    assert same_json(left, json.loads(json.dumps(left)))
    if type(left) is type(right) and not isinstance(left, (list, dict)):
        assert same_json(left, right) == (left == right)


# --- hostile text ---------------------------------------------------------------------------------------------------

N = 3_000
HOSTILE = [
    "<tool_call>" * N,
    "</tool_call>" * N,
    "<tool_call>{" * N,
    '<tool_call>{"a":"' * N,
    "<tool_call>[" * N,
    "[" * N,
    "{" * N,
    '<tool_call>["' * N,
    '"<tool_call>[",' * N,
    '{"name":' * N,
    '{"name":"f","parameters":{}}' * N,
    "[TOOL_CALLS]" * N,
    "[TOOL_CALLS][{" * N,
    "Action:" * N,
    "Action: f\n" * N,
    "Action: f\nAction Input: {" * N,
    "```\n" + " " * N * 5,
    "```" * N,
    "```json\n" * N,
    " " * N,
    '"' * N,
    "\\" * N,
    '{"name":"' + "\\u00" * N,
    "9" * N,
    hermes(*["{}"] * (N // 4)),
    "\n" * N,
    "<tool_call>" + " " * N,
    "[TOOL_CALLS]f" + " " * N,
    '{"tool_calls":[' + "{}," * N,
    "<tool_call>" + '{"a":' * N,
    "**" * N,
]


@pytest.mark.parametrize("format", FORMATS)
def test_hostile_text_costs_its_length(format):
    started = time.process_time()
    for text in HOSTILE:
        verdict = score(answer=text, gold=ONE, format=format)
        assert verdict["score"] == 0 and len(verdict["compared"]) < 500 and json.dumps(verdict)
    assert time.process_time() - started < 20


SCRAPS = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            A,
            LLAMA,
            "{",
            "}",
            '"name"',
            ":",
            '"',
            "add",
            ",",
            "[",
            "]",
            "[TOOL_CALLS]",
            "[ARGS]",
            "Action:",
            "Action Input:",
            "\n",
            "```",
            "Observation:",
            "\\",
            "1e",
            "<think>",
            "</think>",
            "\ud800",
            "null",
            "Thought:",
        ]
    ),
    max_size=25,
).map("".join)


@few
@given(SCRAPS | st.text(max_size=40), st.sampled_from(FORMATS), st.sampled_from(["all", "name", "fraction"]), st.booleans())
def test_any_text_gives_a_verdict(text, format, credit, twice):
    verdict = score(answer=text, gold=TWO, format=format, credit=credit, decode_twice=twice)
    assert 0 <= verdict["score"] <= 1 and verdict["cause"] is None and json.dumps(verdict)
    assert verdict["extractable"] or verdict["score"] == 0
    assert len(read_calls(text, format)) <= MAX_CALLS + 1


AREA = {"name": "area", "parameters": {"type": "dict", "required": ["base", "height"], "properties": {
    "base": {"type": "integer"}, "height": {"type": "float"}, "unit": {"type": "string"},
    "range": {"type": "dict", "properties": {"min": {"type": "integer"}, "max": {"type": "any"}}}}}}  # fmt: skip
OF_BFCL = {"tools": [AREA], "calls": [{"area": {
    "base": [10], "height": [5], "unit": ["units", "unit", ""],
    "range": [{"min": [1, 2], "max": [3, ""]}, ""]}}]}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "paid"),
    [
        ({}, 1), ({"unit": "units"}, 1), ({"unit": "unit"}, 1), ({"range": {"min": 2, "max": 3}}, 1),
        ({"range": {"min": 1}}, 1),
        ({"unit": "cm"}, 0), ({"range": {"max": 3}}, 0), ({"range": {"min": 1, "max": 4}}, 0), ({"base": 11}, 0),
        ({"unit": ""}, 0),
    ],
)  # fmt: skip
def test_golds_of_bfcl_are_read_as_they_are(more, paid):
    assert check_gold(OF_BFCL) is None and all(score(answer=text, gold=OF_BFCL)["score"] == 1 for text in right(OF_BFCL))
    answer = hermes(json.dumps({"name": "area", "arguments": {"base": 10, "height": 5.0, **more}}))
    assert score(answer=answer, gold=OF_BFCL)["score"] == paid
    assert score(answer=answer, gold=OF_BFCL["calls"])["score"] == paid


def test_null_among_the_values_that_do_says_that_a_parameter_may_be_left_out():
    gold = [{"name": "find", "arguments": {"city": "Oslo"}, "any": {"unit": [None, "C"], "day": [None]}}]
    for more, paid in (({}, 1), ({"unit": "C"}, 1), ({"unit": "F"}, 0), ({"day": 1}, 0)):
        text = hermes(json.dumps({"name": "find", "arguments": {"city": "Oslo", **more}}))
        assert score(answer=text, gold=gold)["score"] == paid


def test_the_end_in_a_pattern_is_the_end():
    schema = {"type": "string", "pattern": "^[A-Z]{2}$"}
    assert misfit("AB", schema) is None and misfit("AB\n", schema) is not None
    assert misfit("A$", {"pattern": r"^A\$$"}) is None and misfit("]$", {"pattern": r"^[]$]+$"}) is None


NULLABLE = {"tools": [{"name": "f", "parameters": {"type": "object", "required": ["q"], "properties": {
    "q": {"type": "string"}, "s": {"type": ["string", "null"], "default": "open"}, "b": {"type": "boolean",
    "default": False},
    "w": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": "me"}}}}]}  # fmt: skip


@pytest.mark.parametrize(
    ("made", "wanted", "paid"),
    [({"s": None}, {"s": "open"}, 0), ({"s": None}, {}, 0), ({}, {"s": None}, 0), ({"s": None}, {"s": None}, 1),
     ({"s": "open"}, {}, 1), ({"w": None}, {}, 0), ({"b": None}, {}, 1), ({"b": None}, {"b": True}, 0)],
)  # fmt: skip
def test_null_is_a_value_where_the_schema_has_it_and_else_nothing(made, wanted, paid):
    gold = NULLABLE | {"calls": [{"name": "f", "arguments": {"q": "a", **wanted}}]}
    assert score(answer=hermes(json.dumps({"name": "f", "arguments": {"q": "a", **made}})), gold=gold)["score"] == paid


# --- golds of BFCL --------------------------------------------------------------------------------------------------


def made(arguments, name="f") -> str:
    return hermes(json.dumps({"name": name, "arguments": arguments}))


def bfcl(values, properties=None, required=()):
    """A gold of BFCL for the tool f, without tools or with its properties."""
    calls = [{"f": values}]
    if properties is None:
        return calls
    return {"tools": [{"name": "f", "parameters": {"type": "dict", "properties": properties, "required": list(required)}}],
            "calls": calls}  # fmt: skip


WHERE = {
    "table": ["user"],
    "conditions": [[{"field": ["age"], "op": [">", ">="]}, {"field": ["job"], "op": ["=", ""]}], ""],
}
AGE, JOB = {"field": "age", "op": ">"}, {"field": "job", "op": "="}
STRING, NUMBER, FLAG = {"type": "string"}, {"type": "float"}, {"type": "boolean"}
CONDITIONS = {"type": "array", "items": {"type": "dict", "properties": {"field": STRING, "op": {**STRING, "default": "="}}}}


@pytest.mark.parametrize("gold", [bfcl(WHERE), bfcl(WHERE, {"table": STRING, "conditions": CONDITIONS}, ["table"])])
@pytest.mark.parametrize(("conditions", "paid"), [
    ([AGE, JOB], 1), ([AGE, {"field": "job"}], 1), ([{"field": "age", "op": ">="}, JOB], 1),
    ([JOB, AGE], 0), ([AGE], 0), ([AGE, JOB, JOB], 0), ([], 0), ([{"field": "age"}, JOB], 0), (AGE, 0),
    ([AGE, {**JOB, "op": ">"}], 0), ([AGE, {**JOB, "more": 1}], 0), ([{"field": ["age"], "op": [">", ">="]}, JOB], 0),
])  # fmt: skip
def test_a_list_of_tables_stands_for_each_list_of_the_tables(gold, conditions, paid):
    assert score(answer=made({"table": "user", "conditions": conditions}), gold=gold)["score"] == paid
    assert score(answer=made({"table": "user"}), gold=gold)["score"] == 1
    assert all(score(answer=text, gold=gold)["score"] == 1 for text in right(gold))


@pytest.mark.parametrize(("values", "arguments", "paid"), [
    ({"d": ["", None]}, {"d": None}, 1), ({"d": ["", None]}, {}, 1), ({"d": ["", None]}, {"d": "now"}, 0),
    ({"d": [None]}, {"d": None}, 1), ({"d": [None]}, {}, 1), ({"d": [None]}, {"d": 0}, 0), ({"d": [None]}, {"e": None}, 0),
    ({"d": [1]}, {"d": None}, 0), ({"d": [1]}, {}, 0), ({"d": []}, {"d": []}, 1), ({"d": []}, {"d": [1]}, 0),
    ({"d": [""]}, {}, 1), ({"d": [""]}, {"d": ""}, 1), ({"d": [""]}, {"d": "x"}, 0), ({"d": ["", 1]}, {"d": ""}, 0),
    ({"d": []}, {}, 0), ({"d": [{"k": []}]}, {"d": {"k": []}}, 1), ({"d": [{"k": []}]}, {"d": {}}, 0),
    ({"d": [["a", "b"]]}, {"d": ["a", "b"]}, 1), ({"d": [["a", "b"]]}, {"d": "a"}, 0),
])  # fmt: skip
def test_nothing_and_the_empty_list_as_bfcl_writes_them(values, arguments, paid):
    assert score(answer=made(arguments), gold=bfcl(values))["score"] == paid


@pytest.mark.parametrize(("values", "rule", "needed", "answer", "paid"), [
    ([True, ""], FLAG, True, True, 1), ([True, ""], FLAG, True, False, 0), ([True, ""], FLAG, True, "", 0),
    ([""], STRING, True, "", 1), ([""], STRING, True, "x", 0), (["a", ""], STRING, True, "", 0),
    (["Bronze", "bronze"], {"enum": ["Bronze", "Wood"]}, True, "Bronze", 1),
    (["Bronze", "bronze"], {"enum": ["Bronze", "Wood"]}, True, "bronze", 0),
    (["Bronze", "bronze"], {"enum": ["Bronze", "Wood"]}, True, "Wood", 0),
    (["dontcare", 7], {"type": "integer"}, False, 7, 1), (["dontcare", 7], {"type": "integer"}, False, "dontcare", 0),
    ([None, 7], {"type": "integer"}, True, 7, 1), ([None, 7], {"type": "integer"}, True, None, 0),
    ([None], {"type": ["integer", "null"]}, True, None, 1),
    (["", "C"], {"enum": ["C", "F"], "default": "F"}, False, "F", 1), (["", "C"], {"enum": ["C", "F"]}, False, "F", 0),
    (["", False], {**FLAG, "default": "false"}, False, False, 1), ([5], {"type": "long", "optional": True}, False, 5, 1),
    ([5], {"type": "long"}, False, "5", 0), ([5], {"type": "long"}, False, 5.5, 0),
])  # fmt: skip
def test_values_of_bfcl_that_do_not_fit_are_no_answers(values, rule, needed, answer, paid):
    gold = bfcl({"p": values}, {"p": rule}, ["p"] if needed else [])
    assert check_gold(gold) is None and score(answer=made({"p": answer}), gold=gold)["score"] == paid
    left_out = not needed and ("" in values or None in values)
    assert score(answer=made({}), gold=gold)["score"] == left_out
    assert all(score(answer=text, gold=gold)["score"] == 1 for text in right(gold))


@pytest.mark.parametrize(("values", "rule"), [
    ([True], STRING), (["bronze"], {"enum": ["Bronze"]}), ([{"a": ["x"]}], {"type": "dict", "properties": {"a": NUMBER}}),
    ([[{"a": ["x"]}]], {"type": "array", "items": {"type": "dict", "properties": {"a": NUMBER}}}), ([], STRING),
    ([""], FLAG),
])  # fmt: skip
def test_a_gold_of_bfcl_is_refused_where_none_of_the_values_fits(values, rule):
    assert "none of the values of p does" in check_gold(bfcl({"p": values}, {"p": rule}, ["p"]))
    assert "none of the values of q does" in check_gold(bfcl({"q": [1]}, {"p": rule}))  # no parameter of the tool


def test_milepost_s_own_golds_must_fit_as_a_whole():
    for call in ({"name": "find", "arguments": {"city": "Oslo"}, "any": {"unit": ["C", "c"]}},
                 {"name": "find", "arguments": {"city": "Oslo", "unit": "c"}}):  # fmt: skip
        assert "unit is none of the 2 values" in check_gold({"tools": TOOLS, "calls": [call]})


@pytest.mark.parametrize(("arguments", "paid"), [
    ({}, 1), ({"unit": None}, 1), ({"unit": "C"}, 1), ({"unit": "F"}, 1), ({"unit": "K"}, 0),
])  # fmt: skip
def test_null_among_the_values_that_do_makes_the_default_one_of_them(arguments, paid):
    gold = {"tools": TOOLS, "calls": [{**FIND, "any": {"unit": ["F", None]}}]}
    assert score(answer=made({"city": "Oslo", **arguments}, "find"), gold=gold)["score"] == paid
    only = {"tools": TOOLS, "calls": [{**FIND, "any": {"unit": ["F"]}}]}
    assert score(answer=made({"city": "Oslo", **arguments}, "find"), gold=only)["score"] == (arguments == {"unit": "F"})


BOOK = {"name": "f", "parameters": {"type": "object", "properties": {
    "options": {"$ref": "#/$defs/options"}, "legs": {"type": "array", "items": {"$ref": "#/$defs/options"}}},
    "$defs": {"options": {"type": "object", "properties": {
        "seat": {"type": "string"}, "bags": {"type": "integer", "default": 0}}}}}}  # fmt: skip
AISLE = {"seat": "aisle"}


@pytest.mark.parametrize(("wanted", "arguments", "paid"), [
    (AISLE, {**AISLE, "bags": 0}, 1), ({**AISLE, "bags": 0}, AISLE, 1), (AISLE, AISLE, 1),
    (AISLE, {**AISLE, "bags": None}, 1), (AISLE, {**AISLE, "bags": 1}, 0), ({**AISLE, "bags": 1}, AISLE, 0),
    (AISLE, {"bags": 0}, 0),
])  # fmt: skip
def test_defaults_hold_inside_tables_too(wanted, arguments, paid):
    for wrap in (lambda value: {"options": value}, lambda value: {"legs": [AISLE, value]}):
        gold = {"tools": [BOOK], "calls": [{"name": "f", "arguments": wrap(wanted)}]}
        assert score(answer=made(wrap(arguments)), gold=gold)["score"] == paid
        lists = {key: [value] for key, value in wanted.items()}
        of_bfcl = {"tools": [BOOK], "calls": [{"f": {key: [one] for key, one in wrap(lists).items()}}]}
        if "options" in wrap(lists):
            assert score(answer=made(wrap(arguments)), gold=of_bfcl)["score"] == paid


@pytest.mark.parametrize(("kind", "good", "bad"), [
    ("long", 5, "5"), ("short", 5, 5.5), ("byte", 5, True), ("Bigint", 10**20, "1"), ("float", 1.5, "1.5"),
    ("double", 1, "1"), ("char", "a", 1), ("String", "a", 1), ("Boolean", True, "true"), ("boolean", False, 0),
    ("dict", {"a": 1}, [1]),
    ("tuple", [1, 2], "1, 2"), ("list", [1], {}), ("number", 1.5, "1"),
])  # fmt: skip
def test_names_of_types_in_python_java_and_javascript(kind, good, bad):
    for rule, value, other in (({"type": kind}, good, bad), ({"type": "array", "items": {"type": kind}}, [good], [bad])):
        gold = {"tools": bfcl({}, {"p": rule})["tools"], "calls": [{"name": "f", "arguments": {"p": value}}]}
        assert check_gold(gold) is None and score(answer=made({"p": value}), gold=gold)["score"] == 1
        assert fault(made({"p": other}), gold=gold) == ["schema"]


@pytest.mark.parametrize("kind", ["any", "", "Array", "ArrayList", "HashMap"])
def test_collections_of_java_may_be_named_by_a_variable(kind):
    for value in ([1], {"a": 1}, "theMap"):
        gold = bfcl({"p": [value if not isinstance(value, dict) else {"a": [1]}]}, {"p": {"type": kind}}, ["p"])
        assert score(answer=made({"p": value}), gold=gold)["score"] == 1
        assert score(answer=made({"p": "other"}), gold=gold)["score"] == 0


def test_a_parameter_may_be_named_like_a_rule_or_a_note():
    names = ("default", "type", "enum", "properties", "optional", "items")
    gold = bfcl({name: [1.5] for name in names}, dict.fromkeys(names, NUMBER), names)
    assert check_gold(gold) is None and score(answer=made(dict.fromkeys(names, 1.5)), gold=gold)["score"] == 1


def test_tables_of_many_forms_are_gone_through_key_by_key():
    keys = [f"k{i}" for i in range(60)]
    gold = bfcl({"a": [{key: ["", 1, {"in": [1, 2, ""]}] for key in keys}]})
    assert check_gold(gold) is None
    for table, paid in (({}, 1), (dict.fromkeys(keys, 1), 1), ({key: {"in": 2} for key in keys}, 1), ({"k59": {}}, 1),
                        ({"k59": 2}, 0), ({key: {"in": 3} for key in keys}, 0), ({"k60": 1}, 0)):  # fmt: skip
        assert score(answer=made({"a": table}), gold=gold)["score"] == paid, table
    deep: object = 1
    for _ in range(3000):
        deep = [deep]
    assert "nested too deeply" in check_gold([{"f": {"a": [deep]}}])


@pytest.mark.parametrize(("text", "others", "never"), [
    ("C Major", ["c major", "C_major", "CMajor"], ["C Minor", "C# Major", ""]),
    ("without_joker", ["without joker", "Without Joker"], ["with_joker", "without-joker"]),
    ("Jan.28,2021", ["Jan 28, 2021", "jan. 28 2021"], ["Jan 28, 2022", "Jan 2, 82021", "Jan 282021"]),
    ("Apple Inc.", ["apple inc"], ["Apple"]), ("3**2", ["3 ** 2"], ["32", "3*2"]), ("a-b", ["A-B"], ["ab", "a b"]),
    ("1.5", [" 1.5 ", "1.5."], ["15", "1 5", "1,5", ".15"]), (".5", [" .5"], ["5"]), ("12.5, 4", ["12.5,4"], ["12.54"]),
    ("_", [], ["", ".", " "]), ("San Francisco, CA", ["san francisco CA", "San Francisco,CA"], ["San Francisco"]),
])  # fmt: skip
def test_how_the_texts_of_bfcl_are_spelt_does_not_count(text, others, never):
    for wrap in (lambda one: one, lambda one: ["x", one], lambda one: {"in": one}, lambda one: [{"in": [one]}]):
        inner = wrap(text)
        lists = {"in": [text]} if isinstance(inner, dict) else [{"in": [[text]]}] if inner == [{"in": [text]}] else inner
        gold = bfcl({"p": [lists]})
        assert check_gold(gold) is None
        for one in (text, *others):
            assert score(answer=made({"p": wrap(one)}), gold=gold)["score"] == 1, one
        for one in never:
            assert score(answer=made({"p": wrap(one)}), gold=gold)["score"] == 0, one


def test_texts_of_own_golds_and_of_enums_are_exact():
    gold = [{"name": "f", "arguments": {"p": "C Major"}, "any": {"p": ["C Maj"]}}]
    for text, paid in (("C Major", 1), ("C Maj", 1), ("C major", 0), ("C_Maj", 0)):
        assert score(answer=made({"p": text}), gold=gold)["score"] == paid
    among = bfcl({"p": ["whole"]}, {"p": {"type": "string", "enum": ["whole", "half"]}})
    assert [score(answer=made({"p": text}), gold=among)["score"] for text in ("whole", "Whole", "half")] == [1, 0, 0]
    default = bfcl({"p": [1], "q": ["", "cm"]}, {"p": {"type": "integer"}, "q": {"type": "string", "default": "Square m"}})
    for text, paid in (("square_m", 1), ("CM", 1), ("m", 0)):
        assert score(answer=made({"p": 1, "q": text}), gold=default)["score"] == paid


# --- no call is right -------------------------------------------------------------------------------------------------

IDLE = {"tools": [{"name": "get_weather", "parameters": {"type": "object", "required": ["location"],
                   "properties": {"location": {"type": "string"}}}}, {"name": "stop"}, {"name": "music.mix"}],
        "calls": []}  # fmt: skip
PARIS = '{"name": "get_weather", "arguments": {"location": "Paris"}}'
WRITTEN = [
    PARIS, PARIS.replace("arguments", "parameters"), f"Sure: {PARIS}", f"```json\n{PARIS}\n```", f"```\n[{PARIS}]\n```",
    f"<function_call>{PARIS}</function_call>", f"<tool_call>\n{PARIS}\n</tool_call>", f"[TOOL_CALLS] [{PARIS}]",
    "<tool_call>\n<function=get_weather>\n<parameter=location>\nParis\n</parameter>\n</function>\n</tool_call>",
    '<invoke name="get_weather">', "<tool_call>get_weather\n<arg_key>location</arg_key>", 'get_weather(location="Paris")',
    'I look.\nget_weather(location="Paris")\nDone.', '[get_weather(location="Paris")]', '`get_weather("Paris")`', "stop()",
    '```tool_code\nget_weather(\n    location="Paris",\n)\n```', "music.mix(length=3)", 'found = get_weather("Paris")',
    '<|python_tag|>get_weather.call(location="Paris")', '[TOOL_CALLS]get_weather[ARGS]{"location": "Paris"}',
    'Action: get_weather\nAction Input: {"location": "Paris"}', '{"action": "get_weather", "action_input": "Paris"}',
    '{"tool_calls": [{"type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]}',
]  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("text", WRITTEN)
def test_where_no_call_is_right_one_in_another_format_is_a_call(text, format):
    verdict = score(answer=text, gold=IDLE, format=format)
    assert verdict["score"] == 0 and ("made 1" in verdict["compared"] or any("fault/" in key for key in verdict["parts"]))
    assert score(answer=f"<think>{text}</think>No tool is needed.", gold=IDLE, format=format)["score"] == 1
    assert score(answer="Hello.", gold=IDLE, format=format, credit="name")["score"] == 1
    assert score(answer=text, gold=IDLE, format=format, credit="name")["score"] == 0


@pytest.mark.parametrize("text", [
    "No tool is needed.", "I could call get_weather, but you only said hello.", "get_weather(location) gets the weather.",
    "get_weather(location)", 'Write `get_weather(location="Paris")` for that.', "I must stop (now).", "stop (now)",
    "get_weather",
    'The tool is {"kind": "tool", "name": "get_weather", "description": "It rains."}', "print('get_weather')",
    "other(1)", "2 (3)",
    'Its schema:\n{"function": "get_weather", "parameters": {"type": "object", "properties": {"location": {}}}}',
    '{"kind": "person", "name": "Anna", "arguments": {}}', "stop(", "(" * 3000, '{"' * 20_000, "<function=" * 3000,
    "\n".join(["f(1)"] * 3000),
])  # fmt: skip
def test_where_no_call_is_right_prose_about_a_tool_is_none(text):
    begun = time.monotonic()
    verdict = score(answer=text, gold=IDLE)
    assert verdict["score"] == 1 and verdict["extractable"] and time.monotonic() - begun < 2
    assert score(answer=text, gold=[])["score"] == 1  # no tools are known
