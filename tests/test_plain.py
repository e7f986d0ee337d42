"""Values as data: what encode writes decode reads, nothing pretends, and comparing never asks the object."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.sandbox.plain import NotPlain, Opaque, decode, encode
from milepost.verifiers.code_same import Rule, same, same_text, spelt

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(),
    st.complex_numbers(allow_nan=False, allow_infinity=False), st.fractions(),
    st.decimals(allow_nan=False, allow_infinity=False),
)  # fmt: skip
KEYS = st.one_of(st.integers(), st.text(), st.booleans(), st.tuples(st.integers(), st.text()))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(KEYS, inner), st.sets(KEYS)),
    max_leaves=8,
)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=15)


def wire(value: Any) -> Any:
    return json.loads(json.dumps(encode(value)))


@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_there_and_back(value: Any) -> None:
    assert decode(wire(value)) == value
    assert same(wire(value), value, Rule(exact=True))


@settings(max_examples=40, deadline=None)
@given(JSON, VALUES)
def test_whatever_arrives_comparing_gives_an_answer(junk: Any, want: Any) -> None:
    assert same(junk, want, Rule()) in (True, False)
    with contextlib.suppress(NotPlain):
        decode(junk)


@settings(max_examples=40, deadline=None)
@given(VALUES, VALUES)
def test_same_agrees_with_python_on_plain_values(left: Any, right: Any) -> None:
    """Exactly equal values are the same; unequal ones only if a list stands for a tuple or within a float's tolerance."""
    if left == right and type(left) is type(right):
        assert same(wire(left), right, Rule())
    if type(left) is type(right) and isinstance(left, (int, str, bytes, bool)) and left != right:
        assert not same(wire(left), right, Rule())


@pytest.mark.parametrize(
    ("got", "want", "loose", "exact"),
    [(2, 2.0, True, False), (2.0, 2, True, False), (True, 1, True, False), (1, True, True, False),
     ((1, 2), [1, 2], True, False), ([1, 2], (1, 2), True, False), ({1}, frozenset({1}), True, False),
     ({1}, [1], False, False), ("1", 1, False, False), (None, False, False, False), (0, None, False, False),
     ([1], [1, 2], False, False), ([], [], True, True), ({1: 2}, {1: 2}, True, True),
     ({"1": 2}, {1: 2}, False, False), ({1: 2, 3: 4}, {1: 2}, False, False),
     ({(1, 2): [3]}, {(1, 2): [3]}, True, True), (b"x", "x", False, False), (10**18 + 1, float(10**18), True, False),
     (10**18, 10**18 + 1, False, False), (float("nan"), float("nan"), True, True),
     (float("inf"), float("inf"), True, True), (float("inf"), 1e308, False, False),
     (float("-inf"), float("inf"), False, False), (float("nan"), 0.0, False, False),
     (Fraction(1, 2), 0.5, True, False), (Decimal("0.5"), 0.5, True, False), (1 + 0j, 1, True, False),
     (range(2), [0, 1], False, False), (deque([1]), [1], False, False)],
)  # fmt: skip
def test_pairs(got: Any, want: Any, loose: bool, exact: bool) -> None:  # case D38
    assert same(wire(got), want, Rule()) is loose
    assert same(wire(got), want, Rule(exact=True)) is exact


def test_tolerance_holds_for_expected_floats_or_where_it_is_asked_for() -> None:
    assert same(0.30000000000000004, 0.3, Rule())
    assert same(1.0000009, 1.0, Rule())  # 9e-7 < 1e-6 · 1
    assert not same(1.0000011, 1.0, Rule())
    assert not same(2.0**-98, 2.0**-99, Rule())  # case D8: tiny is not zero
    assert same(1e-16, 0.0, Rule()) and not same(1e-8, 0.0, Rule()) and not same(0.0, 1e-12, Rule())
    assert same(0.0, 1e-12, Rule(0.0, 1e-9, stated=True))
    assert not same(1.0000011, 1, Rule())
    assert not same(2.9999999, 3, Rule())  # an integer was expected
    assert same(2.9999999, 3, Rule(stated=True))
    assert not same(3000001, 3000000, Rule(stated=True))  # two integers are never close, only equal
    assert same(105.0, 100.0, Rule(0.05, 0.0, stated=True))
    assert not same(105.1, 100.0, Rule(0.05, 0.0, stated=True))
    assert same(["list", 0.1, ["dict", "a", 1e-12]], [0.1, {"a": 0.0}], Rule())


def test_integers_of_any_length() -> None:
    """Decimal digits are limited to 4,300 by the interpreter."""
    assert same(wire(10**5000), 10**5000, Rule())
    assert not same(wire(10**5000), 10**5000 + 1, Rule())
    assert not same(wire(10**5000), 1e300, Rule())


def test_subclasses_are_the_data_they_hold() -> None:
    point = namedtuple("point", "x y")

    class Liar(list):
        def __iter__(self) -> Any:
            return iter([1, 2])

        def __len__(self) -> int:
            return 2

        def __eq__(self, other: object) -> bool:
            return True

    assert wire(point(1, 2)) == ["tuple", 1, 2]
    assert wire(Counter("aab")) == ["dict", "a", 2, "b", 1]
    assert wire(defaultdict(int, x=1)) == wire(OrderedDict(x=1)) == ["dict", "x", 1]
    assert wire(Liar([5])) == ["list", 5]


def test_what_is_no_data_equals_nothing() -> None:  # case D39
    class Yes:
        def __eq__(self, other: object) -> bool:
            return True

    tree = wire(Yes())
    assert tree[0] == "object" and tree[1].endswith("Yes")
    assert not any(same(tree, want, Rule()) for want in (1, "x", None, [], {}, True, tree))
    stand_in = decode(tree)
    assert isinstance(stand_in, Opaque) and stand_in != stand_in
    with pytest.raises(TypeError):
        bool(stand_in)


def test_size_and_depth_are_limited() -> None:
    deep: list = []
    for _ in range(200):
        deep = [deep]
    endless: list = []
    endless.append(endless)
    for value in (deep, endless, iter([0] * 300_001), (x for x in iter(int, 1))):
        with pytest.raises(NotPlain):
            encode(value)


def test_values_made_to_collide_are_looked_up_never_stored() -> None:
    """400,000 integers with one hash would take hours to put into a set."""
    collide = ["set", *range(0, (2**61 - 1) * 400_000, 2**61 - 1)]
    assert not same(collide, {1, 2}, Rule())
    assert not same(["set", ["frozenset", *collide[1:]], 2], {frozenset({1}), 2}, Rule())
    assert not same(["dict", ["frozenset", *collide[1:]], 1], {1: 1}, Rule())


def test_iterators_and_ranges_come_back_as_such() -> None:
    assert list(decode(wire(map(abs, [-1, 2])))) == [1, 2]
    assert list(decode(wire(x for x in "ab"))) == ["a", "b"]
    assert list(decode(wire({"a": 1}.keys()))) == ["a"]
    assert decode(wire(range(5, 1, -2))) == range(5, 1, -2)
    assert decode(wire(deque([1, 2]))) == deque([1, 2])


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [("1 2\n", "1 2", True), ("1 2  \n\n", "1 2", True), ("1\r\n2\r\n", "1\n2", True), ("1\n2", "1 2", False),
     ("1 2", "1\n2", False), ("1\n\n2", "1\n2", False), ("", "", True), ("", "0", False), ("a b", "a  b", False),
     ("  *\n ***", "  *\n ***", True), ("*", "  *", False), ("2", "2.0", True), ("2.0", "2", True),
     ("0.1", ".10", True), ("1e3", "1000", True), ("12", "13", False), ("007", "7", False),
     ("3 3", "3.0000001 2.9999999", True), ("3.0000001 2.9999999", "3 3", False), ("3.1 x", "3.1 y", False),
     ("x=2", "x=2.0", False), ("nan", "nan", True), ("nan", "1.0", False), ("1" * 1000, "1" * 1000 + ".0", False),
     ("YES", "yes", False), ("7.0", "007", False), ("007", "7.0", False), ("007.0", "7.0", False), ("007", "007", True),
     ("-07.5", "-7.5", False), ("0.5", ".5", True), ("0", "0.0", True), ("1e-05", "0.00001", True)],
)  # fmt: skip
def test_outputs(got: str, want: str, equal: bool) -> None:  # case D42
    assert same_text(got, want, Rule()) is equal


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [("0.016666666666666666", "0.016667", True), ("0.3333333333333333", "0.333333", True), ("-0.66667", "-0.6667", True),
     ("1.66667e-05", "0.000016667", True), ("0.33335", "0.3333", True), ("10", "10.0000", True),
     ("0.01667", "0.016667", False), ("0.0166655", "0.016667", False), ("0.3333", "0.333333", False),
     ("0.33336", "0.3333", False), ("0.6667", "-0.6667", False), ("0.3333333", "0.333", False), ("3.14159", "3.14", False),
     ("1e300", "0.0000", False), ("0.33333", "3.333e-1", False)],
)  # fmt: skip
def test_outputs_of_at_least_four_decimals_are_met_by_what_rounds_to_them(got: str, want: str, equal: bool) -> None:
    assert same_text(f"{got} x", f"{want} x", Rule()) is equal
    assert not same(0.016666666666666666, 0.016667, Rule())  # not so what a function returns
    assert not same_text("0.016666666666666666", "0.016667", Rule(1e-9, 0.0, stated=True))


def test_outputs_within_a_stated_tolerance_or_with_any_blanks() -> None:  # case D42
    assert same_text("3.0000001 2.9999999", "3 3", Rule(1e-6, 0.0, stated=True))
    assert not same_text("3.0000001\n2.9999999", "3 3", Rule(1e-6, 0.0, stated=True))  # the number of lines still matters
    assert not same_text("4", "3", Rule(1.0, 0.0, stated=True))  # integers are equal or not
    assert same_text(" a   b", "a b", Rule(), blanks="any")
    assert not same_text("ab", "a b", Rule(), blanks="any")


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="0123456789.-+e \nx", max_size=40), st.text(alphabet="0123456789.-+e \nx", max_size=40))
def test_outputs_of_any_kind(got: str, want: str) -> None:
    assert same_text(got, got, Rule())
    assert same_text(got + " \n\n", got, Rule())
    if same_text(got, want, Rule()):
        assert len(got.rstrip().split("\n")) == len(want.rstrip().split("\n"))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2.5,
        "a\"b'c",
        [],
        [1, [2, "x"]],
        (),
        (1,),
        (1, 2),
        {},
        {"a": [1], 2: None},
        set(),
        {1},
        frozenset({2}),
    ],
)
def test_values_are_spelt_as_python_writes_them(value: Any) -> None:
    shown = spelt(encode(value))
    assert shown == repr(set(value) if isinstance(value, frozenset) else value)


def test_what_is_spelt_is_bounded_and_never_raises() -> None:
    assert spelt(encode([0] * 1000)) == f"[{', '.join(['0'] * 40)}, …]"
    assert spelt(encode([[[[[[[[1]]]]]]]])) == "[[[[[[…]]]]]]"
    assert spelt(encode(object())) == "<builtins.object object>" and spelt(encode(float("inf"))) == "<inf float>"
    assert [spelt(junk) for junk in ([], [["list"]], [7], ["dict", 1])] == ["< None>", "< ['list']>", "< 7>", "{1}"]
