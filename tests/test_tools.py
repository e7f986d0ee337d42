"""What a policy wrote becomes calls, never an exception; what may not be done changes nothing."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.env import Action, Call, Environment, Observation, Tool
from milepost.tools import FORMATS, Refused, ToolEnv, check_call, parse, permitted, render_call, usage
from milepost.types import DataError, Task

REFUND = Tool("refund", {"order": (int, True), "note": (str, False)})
MIX = Tool("mix", {"ratio": (float, True), "hot": (bool, False), "label": (str, False), "times": (int, False)})
STOP = Tool("stop", {})
TOOLS = (REFUND, MIX, STOP)
PLAIN = 'write a number, "text", true or false'


def calls(text, format="terse"):
    return parse(text, TOOLS, format).calls


def one(text, format="terse") -> Call:
    (call,) = calls(text, format)
    return call


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


# ---- terse ----


def test_terse_calls_stand_one_per_line_among_thought():
    text = (
        'The order is late (17), so refund it.\n  refund(order=17, note="late")\n\nstop()\r\nThen I am done: stop() again.'
    )
    assert calls(text) == (Call("refund", {"order": 17, "note": "late"}), Call("stop"))
    assert parse(text, TOOLS).text == text


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("refund(17)", {"order": 17}),
        ("refund( 17 , 'it''s' )", None),  # two strings side by side are no plain value
        ("refund(17, 'late')", {"order": 17, "note": "late"}),
        ("refund(17, note='late',)", {"order": 17, "note": "late"}),
        ('refund(note = "a", order = -3)  # a comment', {"order": -3, "note": "a"}),
        (r"refund(1, 'it\'s \"x\"\n\t\\ \x41\u00e9\d')", {"order": 1, "note": 'it\'s "x"\n\t\\ Aé\\d'}),
        ("refund(1, 'a) # b, c=')", {"order": 1, "note": "a) # b, c="}),
        ("refund(1, None)", {"order": 1}),
    ],
)
def test_terse_arguments(text, arguments):
    call = one(text)
    assert (call.arguments == arguments and call.error is None) if arguments is not None else call.error


def test_ints_do_as_floats_and_become_floats():
    call = one("mix(2, hot=true, times=3)")
    assert call == Call("mix", {"ratio": 2.0, "hot": True, "times": 3}) and type(call.arguments["ratio"]) is float
    assert one("mix(.5)").arguments == {"ratio": 0.5} and one("mix(-1e-3)").arguments == {"ratio": -0.001}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('refund(order="17")', "order must be int: write 17 without quotes"),
        ("refund(order=True)", "order must be int, not bool"),
        ("refund(order=17.0)", "order must be int: write 17"),
        ("refund(order=1.5)", "order must be int, not float"),
        ("refund(17, 5)", 'note must be str: write "5"'),
        ("mix(1, hot=1)", "hot must be bool, not int"),
        ("mix(1, hot='True')", "hot must be bool: write true without quotes"),
        ("mix(1e999)", "ratio must be a finite number"),
        ("refund(9223372036854775808)", "order is too large; use at most 18 digits"),
        ("refund(1, '\\ud800')", "note holds half a character; write the character itself"),
        ("refund()", "refund needs order; it is refund(order: int, note?: str)"),
        ("refund(None)", "refund needs order; it is refund(order: int, note?: str)"),
        ("refund(1, amount=3)", "refund takes no amount; it is refund(order: int, note?: str)"),
        ("refund(1, 'a', 3)", "too many arguments; refund is refund(order: int, note?: str)"),
        ("refund(1, order=1)", "order is given twice; refund is refund(order: int, note?: str)"),
        ("refund(note='a', 1)", "name every argument behind a named one; refund is refund(order: int, note?: str)"),
        ("refund(17", "end the call with ); refund is refund(order: int, note?: str)"),
        ("refund(17) please", "write nothing behind the call on its line; refund is refund(order: int, note?: str)"),
        ("refund(17 18)", "write a comma or ) behind argument 1; refund is refund(order: int, note?: str)"),
        ("refund(late)", 'write texts in quotes: "late"; refund is refund(order: int, note?: str)'),
        ("refund(3*4)", "write a comma or ) behind argument 1; refund is refund(order: int, note?: str)"),
        ("refund([1])", f"argument 1 is no plain value: {PLAIN}; refund is refund(order: int, note?: str)"),
        ("refund(1, 'open", f"argument 2 is no plain value: {PLAIN}; refund is refund(order: int, note?: str)"),
        ("refnd(order=17)", "there is no tool refnd; use refund, mix, stop"),
    ],
)  # fmt: skip
def test_terse_errors_say_what_would_work(text, says):
    assert one(text).error == says
    assert not one(text).arguments


def test_brackets_in_thought_are_no_calls():
    assert calls("f(x) is what I want\nrefund the order\nrefund (17)\n(17)\nmaybe(") == ()


def test_thinking_is_not_acting():
    assert calls("<think>\nstop()\n</think>\nrefund(1)") == (Call("refund", {"order": 1}),)
    assert calls("<think>stop()\nstop()") == ()
    assert calls("<think>" + hermes('{"name": "stop", "arguments": {}}'), "hermes") == ()


# ---- hermes and llama ----


def test_several_hermes_calls():
    text = (
        "First.\n" + hermes('{"name": "refund", "arguments": {"order": 17}}') + hermes('{"arguments": {}, "name": "stop"}')
    )
    assert calls(text, "hermes") == (Call("refund", {"order": 17}), Call("stop"))


@pytest.mark.parametrize(
    ("body", "name", "says"),
    [
        # case D48: arguments encoded twice
        (r'{"name": "refund", "arguments": "{\"order\": 1}"}', "refund", "must be an object, not a JSON string"),
        (r'{"name": "refund", "arguments": "\"{\\\"order\\\":1}\""}', "refund", "not a JSON string"),
        # case D49: missing brace, no arguments key, unknown tool, a list of arguments
        ('{"name":"refund","arguments":{"order":1}', "", "that was not one JSON object"),
        ('{"name":"refund"}', "refund", '"arguments" is missing'),
        ('{"name":"refund","parameters":{"order":1}}', "refund", '"arguments" is missing'),
        ('{"name":"refnd","arguments":{"order":1}}', "refnd", "there is no tool refnd; use refund, mix, stop"),
        ('{"name":"refnd"}', "refnd", "there is no tool refnd"),
        ('{"name":"refund","arguments":[]}', "refund", '"arguments" must be an object, not list'),
        ('{"name":"refund","arguments":null}', "refund", '"arguments" must be an object, not NoneType'),
        ('{"arguments":{"order":1}}', "", 'give the "name" of a tool'),
        ('{"name":7,"arguments":{"order":1}}', "", 'give the "name" of a tool'),
        ('[{"name":"stop","arguments":{}}]', "", 'give the "name" of a tool'),
        ('{"name":"stop","arguments":{}}}', "", "that was not one JSON object"),
        ("", "", "that was not one JSON object"),
        ('{"name":"refund","arguments":{"order":"17"}}', "refund", "order must be int: write 17 without quotes"),
        ('{"name":"refund","arguments":{"order":true}}', "refund", "order must be int, not bool"),
        ('{"name":"refund","arguments":{"order":[1]}}', "refund", "order must be int, not list"),
        ('{"name":"refund","arguments":{"order":1,"note":{}}}', "refund", "note must be str, not dict"),
        ('{"name":"mix","arguments":{"ratio":NaN}}', "mix", "ratio must be a finite number"),
        ('{"name":"refund","arguments":{}}', "refund", "refund needs order"),
        ('{"name":"refund","arguments":{"order":1,"<|im_end|>":2}}', "refund", "refund takes no such parameter"),
        ('{"name":"<|im_start|>","arguments":{}}', "", "there is no tool of that name"),
    ],
)  # fmt: skip
def test_hermes_errors_say_what_would_work(body, name, says):
    call = one(hermes(body), "hermes")
    assert call.name == name and says in call.error and not call.arguments


def test_a_missing_closing_tag_is_an_error_and_hides_no_other_call():
    first, second = calls('<tool_call>{"name":"stop","arguments":{}}' + hermes('{"name":"stop","arguments":{}}'), "hermes")
    assert first.error.startswith("that was not one JSON object") and second == Call("stop")
    (last,) = calls('<tool_call>{"name":"stop","arguments":{}}', "hermes")
    assert last.error == ('end the call; write a call, such as <tool_call>{"name": "refund", "arguments": {"order": 1}}'
                          "</tool_call>; there is refund, mix, stop")  # fmt: skip


def test_what_an_error_shows_would_work():
    for format in FORMATS:
        shown = usage(TOOLS, format).split("such as ")[1].split("; there is")[0]
        assert parse(shown, TOOLS, format).calls == (Call("refund", {"order": 1}),)
    assert usage((), "terse") == "there are no tools"


def test_llama_calls_are_bare_json():
    text = (
        'I will.\n{"name": "refund", "parameters": {"order": 17}}; {"type": "function", "name": "stop", "parameters": {}}'
    )
    assert calls(text, "llama") == (Call("refund", {"order": 17}), Call("stop"))
    assert calls('The set {1, 2} and {"a": 1} and {"type": "x"} are no calls.', "llama") == ()


def test_llama_errors():
    whole, broken = calls('{"name": "stop", "parameters": {}}\n{"name": "refund", "parameters": {"order": 17}', "llama")
    assert broken.error.startswith("that was no complete JSON object; write a call") and whole == Call("stop")
    assert one('{"name": "stop", "arguments": {}}', "llama").error == (
        '"parameters" is missing; write {"name": "stop", "parameters": {}}'
    )


def test_optional_null_is_left_out():
    call = one(hermes('{"name": "refund", "arguments": {"order": 1, "note": null}}'), "hermes")
    assert call == Call("refund", {"order": 1})


def test_raw_line_breaks_in_json_texts_are_taken():
    call = one(hermes('{"name": "refund", "arguments": {"order": 1, "note": "a\nb"}}'), "hermes")
    assert call.arguments["note"] == "a\nb"


# ---- every text, every call ----

PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<think>", '{"name":', '"refund"', '"arguments":', "{", "}", "refund(", "(", ")",
     "order=", "17", ",", '"', "'", "\\", "\n", " ", "[", "null", "1e9", "9" * 400, "stop()", "\ud800", "\0", "#", "nope("]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=40)), st.sampled_from(FORMATS))
def test_no_text_raises_and_every_error_is_short_clean_text(text, format):
    action = parse(text, TOOLS, format)
    assert action.text == text
    for call in action.calls:
        if call.error is None:
            assert check_call(call.name, call.arguments, TOOLS) == call
        else:
            assert 0 < len(call.error.encode()) < 400 and "\n" not in call.error and not call.arguments
        call.name.encode()


@pytest.mark.parametrize(
    "text",
    ["refund(" * 5000, "refund(" + "-" * 50000 + "1)", "refund(" + "(" * 50000, 'refund("' + "\\" * 50000,
     "refund(" + "9" * 50000,
     "[" * 50000, '<tool_call>{"name":' * 3000, "<tool_call>" + "[" * 50000, '{"name":' * 5000, '{"name":\n' * 3000,
     "refund(1," * 5000, "refund(a=" * 5000, 'refund("a' + "'\"" * 20000],
)  # fmt: skip
def test_hostile_texts_are_read_in_time(text):
    for format in FORMATS:
        assert all(call.error for call in parse(text, TOOLS, format).calls)


VALUES = {int: st.integers(-(2**63), 2**63 - 1), float: st.floats(allow_nan=False, allow_infinity=False), str: st.text(),
          bool: st.booleans()}  # fmt: skip


@st.composite
def good_calls(draw):
    tool = draw(st.sampled_from(TOOLS))
    keys = [key for key, (_, required) in tool.parameters.items() if required or draw(st.booleans())]
    return tool, {key: draw(VALUES[tool.parameters[key][0]]) for key in draw(st.permutations(keys))}


@settings(max_examples=300, deadline=None)
@given(st.lists(good_calls(), max_size=3), st.sampled_from(FORMATS), st.booleans())
def test_parse_undoes_render(made, format, by_position):
    text = "\n".join(render_call(tool.name, given, format, tool if by_position else None) for tool, given in made)
    assert [(c.name, c.arguments, c.error) for c in calls(text, format)] == [(t.name, given, None) for t, given in made]


TAG = Tool("tag", {"names": (list, True), "extra": (dict, False), "at": (int, False)})
NESTED = st.recursive(
    st.one_of(st.none(), *VALUES.values()),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(), inside, max_size=3), max_leaves=6,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("tag([\"a\", 'b', 1.5, -2, true, None])", {"names": ["a", "b", 1.5, -2, True, None]}),
        ("tag( [ ] , at = 3)", {"names": [], "at": 3}),
        ('tag(["a",], {"k": {"l": [1]}, \'m\': "x"},)', {"names": ["a"], "extra": {"k": {"l": [1]}, "m": "x"}}),
        ('tag(names=["])", "}"], extra={})  # both', {"names": ["])", "}"], "extra": {}}),
    ],
)
def test_lists_and_maps_where_a_tool_takes_them(text, arguments):
    (call,) = parse(text, (TAG, REFUND)).calls
    assert call.error is None and call.arguments == arguments


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tag([1, 2)", "write a comma or ] behind item 2"),
        ("tag([1 2])", "write a comma or ] behind item 1"),
        ("tag([a])", 'write texts in quotes: "a"'),
        ("tag([f(1)])", "an item is no plain value"),
        ("tag({1: 2})", 'write a map as {"key": "text"}'),
        ('tag({"a"})', 'write a map as {"key": "text"}'),
        ("tag([", "an item is no plain value"),
        ("tag(" + "[" * 7 + "]" * 7 + ")", "nested too deeply"),
        ("tag(" + "[" * 50000, "nested too deeply"),
        ('tag("a")', 'names must be list: write a list, such as ["text"]'),
        ("tag([], [])", "extra must be dict, not list"),
        ("tag([9223372036854775808])", "an item of names is too large"),
        ("tag([1e999])", "an item of names must be a finite number"),
        ("refund([1])", "argument 1 is no plain value"),
    ],
)
def test_lists_and_maps_that_cannot_be_read(text, error):
    (call,) = parse(text, (TAG, REFUND)).calls
    assert error in call.error and not call.arguments


def test_json_lists_are_checked_inside():
    deep = json.dumps({"name": "tag", "arguments": {"names": [[[[[[[1]]]]]]]}})
    assert "names is nested too deeply" in parse(f"<tool_call>{deep}</tool_call>", (TAG,), "hermes").calls[0].error
    half = '{"name": "tag", "parameters": {"names": [{"\\ud800": 1}]}}'
    assert "holds half a character" in parse(half, (TAG,), "llama").calls[0].error


@settings(max_examples=200, deadline=None)
@given(st.lists(NESTED, max_size=3), st.dictionaries(st.text(), NESTED, max_size=3), st.sampled_from(FORMATS))
def test_parse_undoes_render_of_lists_and_maps(names, extra, format):
    (call,) = parse(render_call("tag", {"names": names, "extra": extra}, format, TAG), (TAG,), format).calls
    assert call.error is None and call.arguments == {"names": names, "extra": extra}


def test_render_by_hand():
    given = {"order": 17, "note": "</tool_call>\n"}
    assert render_call("refund", given) == r'refund(order=17, note="</tool_call>\n")'
    assert render_call("refund", given, tool=REFUND) == r'refund(17, "</tool_call>\n")'
    assert render_call("mix", {"ratio": 1.0, "label": "é"}, tool=MIX) == 'mix(1.0, label="é")'
    assert render_call("stop", {}, "hermes") == '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    assert render_call("refund", {"order": 1}, "llama") == '{"name": "refund", "parameters": {"order": 1}}'
    assert one(render_call("refund", given, "hermes"), "hermes").arguments == given
    for format in FORMATS:
        with pytest.raises(ValueError):
            render_call("mix", {"ratio": math.nan}, format)


# ---- ToolEnv ----


class Shop(ToolEnv):
    tools = (
        Tool("refund", {"order": (int, True), "note": (str, False)}),
        Tool("close", {}),
        Tool("delete", {"order": (int, True)}),
        Tool("broken", {}),
        Tool("number", {}),
    )

    def reset(self, task, seed):  # never calls super: permissions must hold all the same
        self.orders, self.seed = {1: "paid", 2: "paid"}, seed
        return Observation(({"role": "user", "content": task.prompt},))

    def state(self):
        return {"orders": {str(k): v for k, v in self.orders.items()}}

    def do_refund(self, order, note=""):
        if order not in self.orders:
            raise Refused(f"there is no order {order}")
        self.orders[order] = note or "refunded"
        return "ok"

    def do_close(self):
        self.over = True
        return "closed"

    def do_delete(self, order):
        del self.orders[order]
        return "gone"

    def do_broken(self):
        raise KeyError("a bug")

    def do_number(self):
        return 3


def shop(**columns) -> Shop:
    env = Shop()
    env.reset(Task("k", "Refund order 1.", columns=columns), 0)
    return env


def act(env, text):
    return env.step(parse(text, env.tools))


def test_calls_are_carried_out_in_order_until_the_world_is_over():
    env = shop()
    seen = act(env, 'refund(1)\nrefund(2, "late")\nclose()\nrefund(1, "again")')
    assert isinstance(env, Environment)
    assert seen.ended and seen.num_invalid == 0
    assert [dict(m) for m in seen.messages] == [
        {"role": "tool", "name": "refund", "content": "ok"},
        {"role": "tool", "name": "refund", "content": "ok"},
        {"role": "tool", "name": "close", "content": "closed"},
    ]
    assert env.state() == {"orders": {"1": "refunded", "2": "late"}}
    with pytest.raises(RuntimeError, match="the world was over"):
        act(env, "close()")


def test_mistakes_are_answered_counted_and_change_nothing():
    env = shop()
    before = env.state()
    seen = act(env, 'refund(9)\nrefund("1")\nrefnd(1)')
    assert [m["content"] for m in seen.messages] == [
        "error: there is no order 9",
        "error: order must be int: write 1 without quotes",
        "error: there is no tool refnd; use refund, close, delete, broken, number",
    ]
    assert seen.num_invalid == 3 and not seen.ended and env.state() == before
    assert act(env, "refund(9)\nrefund(1)").num_invalid == 1 and env.state() != before


def test_no_call_is_told_what_would_work():
    env = shop(allowed=["refund", "close"])
    seen = act(env, "Order 1 was refunded. Task complete.")
    assert [dict(m) for m in seen.messages] == [
        {"role": "user", "content": "error: no tool was called; write a call, one per line, such as refund(order=1); "
                                    "there is refund, close"}
    ]  # fmt: skip
    assert seen.num_invalid == 1
    hint = env.step(parse("done", env.tools, "hermes")).messages[0]["content"]
    assert '<tool_call>{"name": "refund"' in hint


@pytest.mark.parametrize("columns", [{"forbidden": ["delete", "close"]}, {"allowed": ["refund", "broken", "number"]}])
@pytest.mark.parametrize("call", [Call("delete", {"order": 1}), Call("close")])
def test_a_forbidden_tool_is_refused_before_any_change(columns, call):
    env = shop(**columns)
    before = env.state()
    seen = env.step(Action("", (call,)))
    assert seen.num_invalid == 1 and not seen.ended and env.state() == before
    assert seen.messages[0]["content"] == f"error: {call.name} is not allowed in this task; use refund, broken, number"


def test_permissions_are_those_of_the_last_reset():
    env = shop(forbidden=["delete"])
    env.reset(Task("k2", "Delete order 1."), 0)
    assert act(env, "delete(1)").num_invalid == 0 and env.state() == {"orders": {"2": "paid"}}


def test_permitted():
    names = lambda **columns: [tool.name for tool in permitted(TOOLS, columns)]  # noqa: E731
    assert names() == ["refund", "mix", "stop"] and names(allowed=None, forbidden=None) == names()
    assert names(allowed=["stop", "refund"], forbidden=["stop"]) == ["refund"] and names(allowed=[]) == []


@pytest.mark.parametrize("held", ["delete", ["delet"], {"delete": 1}, [["delete"]]])
def test_a_lock_with_a_slip_in_it_is_refused(held):
    with pytest.raises(DataError, match=r"'forbidden' .* must be a list of tool names out of refund, close, delete"):
        shop(forbidden=held)


def test_calls_that_were_not_parsed_are_checked_too():
    env = shop()
    seen = env.step(Action("", (Call("refund", {"order": True}), Call("refund", {"x": 1}), Call("do_refund"))))
    assert seen.num_invalid == 3 and env.state() == {"orders": {"1": "paid", "2": "paid"}}


def test_a_fault_of_the_environment_is_no_mistake_of_the_policy():
    with pytest.raises(KeyError, match="a bug"):
        act(shop(), "broken()")
    with pytest.raises(TypeError, match="do_number returned int"):
        act(shop(), "number()")
    with pytest.raises(RuntimeError, match="before reset"):
        act(Shop(), "close()")


def test_the_base_reset_shows_the_prompt():
    class Bell(ToolEnv):
        tools = (Tool("ring", {}),)

        def state(self):
            return {}

        def do_ring(self):
            return "ding"

    bell = Bell()
    assert bell.reset(Task("k", "Ring."), 0).messages == ({"role": "user", "content": "Ring."},)
    turns = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    assert bell.reset(Task("k", turns), 0).messages == turns
    assert act(bell, "ring()").messages[0]["content"] == "ding"
    bell.close()


def define(tools, **methods):
    return type("Odd", (ToolEnv,), {"tools": tools, **methods})


def test_tools_without_their_methods_are_refused_at_definition():
    one = (Tool("f", {"a": (int, True), "b": (str, False)}),)
    define(one, do_f=lambda self, a, b="": "")

    async def waits(self, a, b=""):
        return ""

    for wrong in (
        None,
        lambda self, a, b: "",
        lambda self, b="", a=1: "",
        lambda self, a, **b: "",
        lambda self, a: "",
        waits,
    ):
        with pytest.raises(TypeError, match=r"Odd must have a method do_f\(self, a, b=…\), not async"):
            define(one, **({"do_f": wrong} if wrong else {}))
    with pytest.raises(TypeError, match="do_g has no tool"):
        define(one, do_f=lambda self, a, b="": "", do_g=lambda self: "")
    with pytest.raises(TypeError, match="names f twice"):
        define(one * 2, do_f=lambda self, a, b="": "")
    with pytest.raises(TypeError, match="must be identifiers"):
        define((Tool("a b", {}),))
    with pytest.raises(TypeError, match="use int, float, str, bool, list or dict"):
        define((Tool("f", {"a": (set, True)}),), do_f=lambda self, a: "")


def test_observations_are_plain_json():
    messages = [dict(m) for m in act(shop(), 'refund(1)\nrefund("x")').messages]
    assert len(messages) == 2 and json.loads(json.dumps(messages)) == messages
