"""reasoning-gym as a source: whose scorers may be used, what the audit finds, and that rows are the same everywhere."""

from __future__ import annotations

import ast
import inspect
import json
import random
import subprocess
import sys
import textwrap
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.families import OFFERED, Draw, _draw, audited, pack, refusal, shares_a_process, unpack
from milepost.sections import SourceSection, TasksSection
from milepost.sources import _family_rows
from milepost.tasks import TaskSet, load_tasks
from milepost.types import RecipeError, Task

factory = pytest.importorskip("reasoning_gym.factory")

# Their scorers evaluate an expression of the data set's own making, never the model's text (read in 0.1.25).
EVALUATES_OWN_DATA = {"bitwise_arithmetic": "metadata['problem']", "number_sorting": "entry['answer']"}
ALWAYS = {"eval", "exec", "parse_expr", "sympify", "__import__"}
EXECUTORS = ALWAYS | {"simplify", "solve", "compile", "system", "popen", "Popen", "check_output", "run"}
ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def gym(name: str, **values: Any) -> SourceSection:
    return SourceSection(kind="reasoning_gym", **{"name": name, "size": 2, **values})


def load(*sources: SourceSection, seed: int = 0) -> TaskSet:
    return load_tasks(TasksSection(sources=list(sources), validation=0, test=0), seed)


SHARED = (
    gym("sums", path="chain_sum", size=8, params=ONE_DIGIT),
    gym("ransom_note", size=4),
    gym("isomorphic_strings", size=4),
    gym("list_functions", size=4),
    gym("gcd", size=30),
    gym("lcm", size=5, params={"seed": 7}),
)


@pytest.fixture(scope="module")
def many() -> TaskSet:
    """One load for most tests here: the child that draws takes seconds to import its families."""
    random.seed(1)
    state = random.getstate()
    loaded = load(
        *SHARED, *map(gym, ("arc_agi", "graph_color", "gsm_symbolic", "rubiks_cube", "codeio", "acre")),
        gym("few", path="count_bits", size=5, params={"min_n": 1, "max_n": 3}),
    )  # fmt: skip
    assert random.getstate() == state
    return loaded


def of(loaded: TaskSet, name: str) -> list[Task]:
    return [task for task in loaded.train if task.source == name]


def executed_names(family: type) -> set[str]:
    """Names of executors reachable from score_answer through the package's own functions and methods."""
    found: set[str] = set()
    done: set[Any] = set()
    todo: list[tuple[Any, type]] = [(family.score_answer, family)]  # type: ignore[attr-defined]
    while todo:
        function, owner = todo.pop()
        function = getattr(function, "__func__", function)
        if function in done or not inspect.isfunction(function):
            continue
        done.add(function)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            if not isinstance(node, ast.Call):
                continue
            name, target = callee(node.func, function.__globals__, owner)
            if inspect.isclass(target) and target.__module__.startswith("reasoning_gym"):
                todo += [(member, target) for _, member in inspect.getmembers(target, callable)]
            elif (getattr(target, "__module__", None) or "").startswith("reasoning_gym"):
                todo.append((target, owner))
            elif (name in EXECUTORS if target else name in ALWAYS) and getattr(target, "__module__", None) != "re":
                found.add(name)
    return found


def callee(node: ast.expr, scope: dict[str, Any], owner: type) -> tuple[str, Any]:
    if isinstance(node, ast.Name):
        return node.id, scope.get(node.id)
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name):
            base = owner if node.value.id in ("self", "cls") else scope.get(node.value.id)
            return node.attr, getattr(base, node.attr, None)
        return node.attr, None
    return "", None


def test_every_family_whose_scorer_can_execute_text_was_found_to_evaluate_it() -> None:
    """What reading the scorers finds, and what attacking them found, are the same."""
    families = {name: cls for name, (cls, _) in factory.DATASETS.items()}
    executing = {name: names for name, cls in families.items() if (names := executed_names(cls))}
    assert {"string_insertion", "countdown"} <= set(executing)  # the scan itself sees both kinds
    evaluating = {name for name, found in audited().items() if found["evaluates"]}
    assert set(executing) - set(EVALUATES_OWN_DATA) == evaluating
    assert all(refusal(name) for name in evaluating)
    assert not any(shares_a_process(name) for name in evaluating)


def test_every_family_was_audited_and_those_known_to_be_bad_are_refused() -> None:  # case D27
    found = audited()
    assert set(found) == set(factory.DATASETS) - {"composite"}
    assert "pays 1 for junk" in str(refusal("game_of_life_halting"))
    assert "raises" in str(refusal("prime_factorization"))
    for family in ("graph_color", "boxnet", "propositional_logic", "rubiks_cube", "rush_hour"):
        assert not found[family]["sound"] and refusal(family, [family]) is None
    assert all(row["sound"] == (refusal(name) is None) == (not row["reason"]) for name, row in found.items())
    assert set(OFFERED) <= {name for name, row in found.items() if row["sound"]} and len(OFFERED) >= 20


def test_what_the_sandbox_does_not_hold_cannot_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {**audited()["countdown"], "safe": False, "reason": "its scorer broke the sandbox"}
    monkeypatch.setattr("milepost.families.audited", lambda: {"countdown": row})
    assert refusal("countdown", ["countdown"]) == (
        "countdown is refused: its scorer broke the sandbox; use another family, for example chain_sum"
    )
    assert "has not been audited" in str(refusal("gcd"))


def test_unknown_families_and_sizes_are_said_in_a_sentence() -> None:
    for source, match in [
        (gym("composite"), r"several tasks.sources with weights"),
        (gym("chain_sum", size=0), r"size = 0: a generated source needs"),
        (gym("chain_sum", params={"size": 3}), r"params.size does nothing"),
        (gym("chain_sums"), r"'chain_sums' is no reasoning-gym family; close: chain_sum"),
    ]:
        with pytest.raises(RecipeError, match=match):
            load(source)


def test_parameters_that_the_family_refuses_are_said() -> None:
    for params, match in [
        (
            {"colour": 1},
            r"sources\[4\].params of chain_sum were refused: .*colour.*; the family takes min_terms, max_terms",
        ),
        ({"min_terms": 9, "max_terms": 2}, r"refused: .*max_terms.*; the family takes"),
    ]:
        request = Draw("chain_sum", params, 3, 0, "x")
        with pytest.raises(RecipeError, match=match):
            _family_rows(gym("chain_sum"), 4, request, _draw(factory, request))


def test_rows_keep_what_their_scorer_needs(many: TaskSet) -> None:
    assert len(of(many, "sums")) == 8
    for task in of(many, "sums"):
        assert set(task.columns) == {"family", "params", "entry"}
        assert (task.columns["family"], task.columns["params"]) == ("chain_sum", ONE_DIGIT)
        scorer = factory.create_dataset("chain_sum", size=1, seed=0, **task.columns["params"])
        assert scorer.score_answer(task.answer, unpack(task.columns["entry"])) == 1.0
        assert task.prompt == task.columns["entry"]["question"]
        assert json.loads(json.dumps(task.columns)) == task.columns


def test_rows_are_the_same_in_another_process_hash_seed_and_mixture(many: TaskSet) -> None:
    code = (
        "import json, sys; from milepost.sections import SourceSection, TasksSection\n"
        "from milepost.tasks import load_tasks\n"
        "sources = [SourceSection.model_validate(s) for s in json.load(sys.stdin)]\n"
        "tasks = load_tasks(TasksSection(sources=sources, validation=0, test=0), 0).train\n"
        "print(json.dumps([[t.key, t.columns] for t in tasks]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": "1", "PYTHONPATH": "."}, capture_output=True,
                          input=json.dumps([s.model_dump() for s in SHARED]), text=True, check=True)  # fmt: skip
    names = {source.name for source in SHARED}
    assert json.loads(done.stdout) == [[t.key, t.columns] for t in many.train if t.source in names]
    assert len(json.loads(done.stdout)) == 8 + 4 + 4 + 4 + 30 + 5


def test_other_seeds_give_other_tasks_not_the_same_ones_shifted(many: TaskSet) -> None:
    other = load(gym("gcd", size=30), gym("lcm", size=5, params={"seed": 7}), seed=1)
    assert len({task.key for task in of(many, "gcd")} & {task.key for task in of(other, "gcd")}) <= 1
    assert of(many, "lcm") == of(other, "lcm")  # params.seed pins the rows whatever the run's seed
    assert of(other, "lcm")[0].columns["params"] == {}


def test_a_family_with_too_few_tasks_says_so() -> None:
    reply = _draw(factory, Draw("chain_sum", ONE_DIGIT, 500, 0, "x"))
    assert len(reply["rows"]) == 200  # 10 × 10 digits and two signs
    assert reply["num_draws"] >= 200 + 600  # it gave up after three times as many repeats in a row
    assert len({entry["question"] for _, entry in reply["rows"]}) == 200
    enough = _draw(factory, Draw("chain_sum", ONE_DIGIT, 120, 0, "x"))
    assert len(enough["rows"]) == 120
    assert enough["num_draws"] > 120


def test_repeats_and_shortfalls_reach_the_report(many: TaskSet) -> None:
    assert sorted(task.answer for task in of(many, "few")) == ["1", "1", "2"]  # ones in 1, 2 and 3
    assert many.report.num_repeated >= 100
    assert many.report.notes == (
        f"few: only 3 distinct tasks of size = 5 exist or could be drawn in {3 + many.report.num_repeated} draws",
    )
    assert "generated draws repeated an earlier one" in str(many.report)


@pytest.mark.parametrize("name", ["arc_agi", "graph_color", "gsm_symbolic", "rubiks_cube", "codeio", "acre"])
def test_entries_come_back_exactly_as_their_scorers_know_them(name: str, many: TaskSet) -> None:
    task = of(many, name)[0]
    entry = unpack(json.loads(json.dumps(task.columns["entry"])))
    scorer = factory.create_dataset(name, size=1, seed=0)
    if task.answer is not None:
        assert scorer.score_answer(task.answer, entry) == 1.0
    if name == "arc_agi":
        assert isinstance(entry["metadata"]["output"], tuple)
    if name == "graph_color":
        assert task.answer is None  # many colourings are right; its scorer knows
        assert all(isinstance(vertex, int) for vertex in entry["metadata"]["puzzle"]["vertices"])
        assert scorer.score_answer('{"1": 1}', entry) == 0.01  # parsed, not solved


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.fractions(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_packing_loses_nothing(value: Any) -> None:
    back = unpack(json.loads(json.dumps(pack(value))))
    assert back == value
    assert repr(back) == repr(value)


def test_packing_covers_sets_and_refuses_what_it_cannot_keep() -> None:
    assert unpack(pack({"a": {3, 1}, (1, 2): Fraction(1, 3), "c": 1 + 2j})) == {
        "a": {1, 3},
        (1, 2): Fraction(1, 3),
        "c": 1 + 2j,
    }
    with pytest.raises(TypeError, match="cannot be stored"):
        pack(object())
