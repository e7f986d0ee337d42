"""Breaks functions: mutations of their syntax tree, and where they show. Torch-free.

Nothing of a policy's is ever run here, only functions of `repair_functions` and their mutants, each with a budget of steps.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from milepost.sandbox.plain import NotPlain, encode
from milepost.verifiers.code_same import Rule, same

MAX_TICKS, MAX_DEPTH = 2000, 60
"""Turns of loops and calls of one run, and calls within calls; more is a loop or a recursion without end."""

# --- changes that break a function ----------------------------------------------------------------------------------------

Change = Callable[[Any], ast.AST | None]
"""The node → what stands in its place; None: nothing."""

_COMPARED = {ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
             ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,)}  # fmt: skip
_COMPUTED = {ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Add,), ast.FloorDiv: (ast.Mod,),
             ast.Mod: (ast.FloorDiv,)}  # fmt: skip
_NAMED = {"min": "max", "max": "min", "upper": "lower"}


def _changes(node: ast.AST, last: ast.stmt) -> Iterator[tuple[str, Change]]:
    """(what kind of bug, change) for each way to break `node`; `last`: the function's last statement."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in _COMPARED.get(type(node.ops[0]), ()):
            yield "wrong comparison", partial(_with, "ops", [other()])
    elif isinstance(node, ast.BinOp):
        for op in _COMPUTED.get(type(node.op), ()):
            yield "wrong operator", partial(_with, "op", op())
        if isinstance(node.right, ast.Constant) and node.right.value == 1:
            yield "off by one", lambda n: n.left
    elif isinstance(node, ast.AugAssign):
        for op in _COMPUTED.get(type(node.op), ()):
            yield "wrong operator", partial(_with, "op", op())
        yield "missing line", lambda n: None
    elif isinstance(node, ast.BoolOp):
        yield "wrong operator", partial(_with, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        for value in sorted({node.value + 1, abs(node.value - 1)} - {node.value}):
            yield "off by one", partial(_with, "value", value)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "wrong result", partial(_with, "value", not node.value)
    elif isinstance(node, ast.Call):
        yield from _changed_calls(node)
    elif isinstance(node, ast.Return) and node is last:
        yield "missing return", lambda n: ast.Expr(n.value)
    elif isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Return):
        yield "missing case", lambda n: None
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "missing line", lambda n: None


def _with(field: str, value: Any, node: Any) -> Any:
    setattr(node, field, value)
    return node


def _changed_calls(node: ast.Call) -> Iterator[tuple[str, Change]]:
    if len(node.args) == 2 and ast.dump(node.args[0]) != ast.dump(node.args[1]):
        yield "swapped arguments", lambda n: _with("args", n.args[::-1], n)
    name = ast.unparse(node.func).rpartition(".")[2]
    if name in _NAMED:
        field = "id" if isinstance(node.func, ast.Name) else "attr"
        yield "wrong function", lambda n: ast.Call(_with(field, _NAMED[name], n.func), n.args, [])
    if name == "range" and len(node.args) == 1:
        one = ast.Constant(1)
        yield "off by one", lambda n: _with("args", [one, *n.args], n)
        yield "off by one", lambda n: _with("args", [ast.BinOp(n.args[0], ast.Sub(), one)], n)


class _Put(ast.NodeTransformer):
    def __init__(self, target: ast.AST, made: ast.AST | None) -> None:
        self.target, self.made = target, made

    def visit(self, node: ast.AST) -> Any:
        return self.made if node is self.target else self.generic_visit(node)


_UNNATURAL = re.compile(r"[-+] 0\b|[*/%] [01]\b|-0\b|range\(0,")
"""What no person writes, not even by mistake."""


def mutations(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """(kind of bug, text) of every function that differs from `function` in one place. Some may do the same as it."""
    right = ast.unparse(function)
    for at, node in enumerate(ast.walk(function)):
        for kind, change in _changes(node, function.body[-1]):
            tree = copy.deepcopy(function)
            target = list(ast.walk(tree))[at]
            made = change(target)
            if made is not target:
                _Put(target, made).visit(tree)
            text = ast.unparse(ast.fix_missing_locations(tree)) if _has_bodies(tree) else right
            if text != right and len(_UNNATURAL.findall(text)) <= len(_UNNATURAL.findall(right)):
                yield kind, text


def _has_bodies(tree: ast.AST) -> bool:
    return all(node.body for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.For, ast.While, ast.If)))


# --- running our own functions --------------------------------------------------------------------------------------------


class Hangs(Exception):
    """A loop without end: a policy would only wait for its run."""


class _Ticks(ast.NodeTransformer):
    """Counts every turn of a loop."""

    def _ticked(self, node: Any) -> Any:
        self.generic_visit(node)
        node.body.insert(0, ast.parse("_tick()").body[0])
        return node

    visit_For = visit_While = _ticked


def results(text: str, entry: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
    """What a function of ours returns for each of the arguments, or the type of its exception. Raises Hangs."""
    num_ticks = depth = 0

    def tick() -> None:
        nonlocal num_ticks
        num_ticks += 1
        if num_ticks > MAX_TICKS:
            raise Hangs

    def counted(*args: Any) -> Any:
        nonlocal depth
        tick()
        if depth >= MAX_DEPTH:
            raise RecursionError
        depth += 1
        try:
            return function(*args)
        finally:
            depth -= 1

    space: dict[str, Any] = {"_tick": tick}
    exec(compile(ast.fix_missing_locations(_Ticks().visit(ast.parse(text))), "<repair>", "exec"), space)
    function, space[entry] = space[entry], counted
    found = []
    for one in arguments:
        num_ticks = 0
        try:
            found.append(counted(*one))
        except Hangs:
            raise
        except Exception as error:
            found.append(type(error))
    return found


def failures(text: str, entry: str, arguments: Sequence[Sequence[Any]], expected: Sequence[Any]) -> frozenset[int]:
    """The places of the arguments at which `text` is wrong, as the verifier compares. Raises Hangs."""
    pairs = zip(results(text, entry, arguments), expected)
    return frozenset(i for i, (got, want) in enumerate(pairs) if not _agree(got, want))


def _agree(got: Any, want: Any) -> bool:
    if isinstance(got, type):
        return False
    try:
        return (type(got) is type(want) and got == want) or same(encode(got), want, Rule())
    except NotPlain:
        return False
