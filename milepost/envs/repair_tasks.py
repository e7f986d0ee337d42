"""Tasks for `repair`: right functions, broken in one to three places, and tests that notice. Torch-free."""

from __future__ import annotations

import ast
import difflib
import inspect
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, islice, pairwise
from typing import Any, TypedDict

from milepost.envs.repair_bugs import Hangs, failures, mutations, results
from milepost.envs.repair_functions import FAMILIES
from milepost.types import RecipeError

POOL = 60
"""Arguments that are drawn for each function; tests are taken from them."""
MIN_FAILURES = 3
"""Of them, at how many a bug must show."""

# --- functions with the arguments at which they are tried -----------------------------------------------------------------

_WORDS = ("ant", "bee", "cow", "crab", "dog", "duck", "eel", "emu", "fox", "frog", "gnu", "hen")


def _nested(rng: random.Random, depth: int) -> list[Any]:
    return [
        _nested(rng, depth - 1) if depth and rng.random() < 0.4 else rng.randint(-5, 9) for _ in range(rng.randint(0, 3))
    ]


def _word(rng: random.Random) -> str:
    half = "".join(rng.choice("ab") for _ in range(rng.randint(0, 4)))
    return half + half[::-1] if rng.random() < 0.3 else half


DRAWN: dict[str, Callable[[random.Random], Any]] = {
    "Int": lambda rng: rng.randint(-9, 9),
    "Count": lambda rng: rng.choice((0, rng.randint(1, 9), rng.randint(10, 99), rng.randint(100, 2000))),
    "Positive": lambda rng: rng.choice((rng.randint(1, 12), rng.randint(1, 40))),
    "Small": lambda rng: rng.randint(1, 8),
    "Few": lambda rng: rng.randint(1, 14),
    "Ints": lambda rng: [rng.randint(-9, 9) for _ in range(rng.randint(0, 6))],
    "Ordered": lambda rng: sorted(rng.randint(-9, 9) for _ in range(rng.randint(0, 5))),
    "Word": _word,
    "Phrase": lambda rng: " ".join(rng.choice(_WORDS) for _ in range(rng.randint(0, 4))),
    "Brackets": lambda rng: "".join(rng.choice(("()", "(())", "(", ")", "")) for _ in range(3)),
    "Words": lambda rng: [rng.choice(_WORDS[:5]) for _ in range(rng.randint(0, 6))],
    "Table": lambda rng: {rng.choice(_WORDS[:6]): rng.randint(-5, 9) for _ in range(rng.randint(0, 4))},
    "Nested": lambda rng: _nested(rng, 3),
}


@dataclass(frozen=True)
class Known:
    """A function of ours, with what it returns and the bugs that its arguments show."""

    name: str
    family: str
    says: str
    text: str
    arguments: tuple[tuple[Any, ...], ...]
    expected: tuple[Any, ...]
    bugs: tuple[tuple[str, str, frozenset[int]], ...]
    """(kind, text, places of the arguments at which it is wrong)."""


class _Bare(ast.NodeTransformer):
    """Without annotations and docstring."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.Assign:
        return ast.Assign([node.target], node.value or ast.Constant(None))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns, node.body = None, node.body[1:]
        return self.generic_visit(node)


NAMES = tuple((family, function.__name__) for family, functions in FAMILIES.items() for function in functions)


@cache
def _read(family: str, name: str) -> tuple[str, tuple[str, ...], ast.FunctionDef]:
    """What one of our functions does, the kinds of its arguments, and its bare code."""
    function = next(function for function in FAMILIES[family] if function.__name__ == name)
    node = ast.parse(inspect.getsource(function)).body[0]
    assert isinstance(node, ast.FunctionDef)
    kinds = tuple(ast.unparse(arg.annotation) for arg in node.args.args if arg.annotation)
    says = (ast.get_docstring(node) or "").strip()
    return says, kinds, ast.fix_missing_locations(_Bare().visit(node))


def level(family: str, name: str) -> int:
    """1 to 3, by its length: up to 5 lines, up to 7, more."""
    num_lines = ast.unparse(_read(family, name)[2]).count("\n") + 1
    return 1 + (num_lines > 5) + (num_lines > 7)


@cache
def known(family: str, name: str) -> Known:
    """One of our functions, with all its bugs tried at all its arguments."""
    says, kinds, node = _read(family, name)
    rng = random.Random(f"repair/{name}")
    drawn = {repr(one): one for _ in range(4 * POOL) if (one := tuple(DRAWN[kind](rng) for kind in kinds))}
    arguments, text = tuple(islice(drawn.values(), POOL)), ast.unparse(node)
    expected = tuple(results(text, name, arguments))
    bugs = []
    for broken, kind in {text: kind for kind, text in mutations(node)}.items():
        try:
            wrong = failures(broken, name, arguments, expected)
        except Hangs:
            continue
        if len(wrong) >= MIN_FAILURES:
            bugs.append((kind, broken, wrong))
    return Known(name, family, says, text, arguments, expected, tuple(bugs))


# --- other names for variables --------------------------------------------------------------------------------------------

_STYLES: tuple[Mapping[str, str], ...] = (
    {},
    {"xs": "nums", "ys": "others", "x": "num", "s": "text", "c": "char", "out": "result", "total": "count", "k": "j"},
    {"xs": "items", "ys": "more", "x": "item", "s": "string", "c": "letter", "out": "res", "total": "acc", "i": "pos",
     "word": "w", "best": "top", "n": "number"},
)  # fmt: skip


def _renamed(text: str, names: Mapping[str, str]) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = names.get(node.arg, node.arg)
    return ast.unparse(tree)


def _says(one: Known, names: Mapping[str, str]) -> str:
    """What the function does, its parameters called as they are in the code; other words stay."""
    parameters = re.findall(r"\w+", one.text.partition(":")[0])[2:]
    return re.sub(r"\b\w+\b", lambda found: names.get(found[0], found[0]) if found[0] in parameters else found[0], one.says)


# --- tasks ----------------------------------------------------------------------------------------------------------------


class DrawnRow(TypedDict):
    prompt: str
    entry: str
    """Name of the function."""
    code: str
    """With its bugs."""
    solution: str
    tests: list[dict[str, Any]]
    """args, expected, visible."""
    bugs: list[str]
    family: str
    level: int


class RepairRow(DrawnRow):
    max_runs: int


def generate(
    size: int, seed: int, *, families: str | Sequence[str] = "all", min_level: int = 1, max_level: int = 3,
    num_bugs: int = 1, num_visible: int = 3, num_hidden: int = 8, max_runs: int = 4, part: str = "all",
) -> Iterator[RepairRow]:  # fmt: skip
    """`size` different tasks; row i depends on (seed, i, difficulty) and the rows before it alone.

    families: "all" or some of arithmetic, strings, lists, dicts, recursion. Levels: 1 (up to 5 lines), 2 (6, 7), 3.
    num_bugs: 1 to 3, on lines of their own. num_hidden: at least as many; more where it takes more to tell every mutation
    of the function from it. max_runs: how often the visible tests may be run. part: "train" and "test" have different
    functions. Raises RecipeError.
    """
    names = _chosen(families, min_level, max_level, num_bugs, num_visible, num_hidden, max_runs, part)
    seen: set[str] = set()
    for index in range(size):
        rng = random.Random(f"repair/{seed}/{index}")
        row: DrawnRow | None = None
        while row is None or row["prompt"] in seen:
            row = _draw(rng, known(*rng.choice(names)), num_bugs, num_visible, num_hidden)
        seen.add(row["prompt"])
        yield {**row, "max_runs": max_runs}


def _chosen(families: str | Sequence[str], min_level: int, max_level: int, num_bugs: int, num_visible: int, num_hidden: int,
            max_runs: int, part: str) -> list[tuple[str, str]]:  # fmt: skip
    """The functions that tasks are made of. Raises RecipeError."""
    for name, value, low, high in (
        ("min_level", min_level, 1, 3), ("max_level", max_level, min_level, 3), ("num_bugs", num_bugs, 1, 3),
        ("num_visible", num_visible, 1, 6), ("num_hidden", num_hidden, 3, 20), ("max_runs", max_runs, 0, 100),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise RecipeError(f"repair: {name} = {value!r} must be a whole number from {low} to {high}")
    if part not in ("all", "train", "test"):
        raise RecipeError(f'repair: part = {part!r} must be "all", "train" or "test"')
    asked = re.findall(r"\w+", families) if isinstance(families, str) else [*families]
    asked = list(FAMILIES) if asked == ["all"] else asked
    if not asked or any(name not in FAMILIES for name in asked):
        raise RecipeError(f'repair: families = {families!r} must be "all" or some of {", ".join(FAMILIES)}')
    parts = {pair: "test" if i % 4 == 3 else "train" for i, pair in enumerate(NAMES)}
    names = [pair for pair in NAMES if pair[0] in asked and part in ("all", parts[pair])]
    least = max(min_level, 1 + (num_bugs > 1))  # short ones have no room for several
    names = [pair for pair in names if least <= level(*pair) <= max_level]
    if not names:
        raise RecipeError(f"repair: no function of {', '.join(asked)} has {num_bugs} bugs and a level from {min_level} to "
                          f"{max_level} in the part {part!r}; raise max_level or ask for more families")  # fmt: skip
    return names


def _draw(rng: random.Random, one: Known, num_bugs: int, num_visible: int, num_hidden: int) -> DrawnRow | None:
    """A task, or None if these bugs do not go together, or do not show."""
    bugs = rng.sample(one.bugs, min(num_bugs, len(one.bugs)))
    subsets = [bugs, *(combinations(bugs, num_bugs - 1) if num_bugs > 1 else ())]
    codes = [_merged(one.text, [text for _, text, _ in some]) for some in subsets]
    if len(bugs) < num_bugs or None in codes:
        return None
    try:  # every bug has to be found: whatever is left of them shows
        left = [failures(text or "", one.name, one.arguments, one.expected) for text in codes]
    except (Hangs, SyntaxError):
        return None
    if min(map(len, left)) < MIN_FAILURES:
        return None
    visible = [rng.choice(sorted(left[0]))]
    visible += rng.sample([i for i in range(len(one.arguments)) if i not in visible], num_visible - 1)
    hidden = _telling(rng, one, [*left, *(wrong for _, _, wrong in one.bugs)], visible, num_hidden)
    if not left[0] & set(hidden) or len({repr(one.expected[i]) for i in hidden}) < 2:
        return None
    return _row(one, rng.choice(_STYLES), codes[0] or "", [kind for kind, _, _ in bugs], visible, hidden)


def _merged(text: str, broken: Sequence[str]) -> str | None:
    """`text` with all that the others change in it; None where two change the same lines."""
    lines, hunks = text.split("\n"), []
    for other in broken:
        theirs = other.split("\n")
        codes = difflib.SequenceMatcher(None, lines, theirs, autojunk=False).get_opcodes()
        hunks += [(i, j, theirs[k:m]) for tag, i, j, k, m in codes if tag != "equal"]
    hunks.sort()
    if any(max(i + 1, j) > after for (i, j, _), (after, _, _) in pairwise(hunks)):
        return None
    for i, j, new in reversed(hunks):
        lines[i:j] = new
    return "\n".join(lines)


def _telling(rng: random.Random, one: Known, wrong: Sequence[frozenset[int]], shown: Sequence[int], num: int) -> list[int]:
    """At least `num` arguments that were not shown (all, if there are fewer); every bug shows at one of them, if at any."""
    free = [i for i in range(len(one.arguments)) if i not in shown]
    rng.shuffle(free)
    chosen, open_ = list[int](), [places for places in wrong if places & set(free)]
    while open_:
        best = max(free, key=lambda i: sum(i in places for places in open_))
        chosen.append(best)
        free.remove(best)
        open_ = [places for places in open_ if best not in places]
    return chosen + free[: max(0, num - len(chosen))]


def _row(one: Known, names: Mapping[str, str], code: str, bugs: list[str], visible: Sequence[int],
         hidden: Sequence[int]) -> DrawnRow:  # fmt: skip
    code, solution = _renamed(code, names), _renamed(one.text, names)
    tests = [{"args": list(one.arguments[i]), "expected": one.expected[i], "visible": i in visible}
             for i in [*visible, *hidden]]  # fmt: skip
    shown = "\n".join(f"{call(one.name, test)} = {test['expected']!r}" for test in tests if test["visible"])
    prompt = f"{one.name}: {_says(one, names)}\n{numbered(code.split(chr(10)))}\n{shown}"
    return {"prompt": prompt, "entry": one.name, "code": code, "solution": solution, "tests": tests, "bugs": bugs,
            "family": one.family, "level": level(one.family, one.name)}  # fmt: skip


def call(entry: str, test: Mapping[str, Any]) -> str:
    return f"{entry}({', '.join(map(repr, test['args']))})"


def numbered(lines: Sequence[str]) -> str:
    return "\n".join(f"{number} {line}" for number, line in enumerate(lines, 1))
