"""Mending a function: tasks whose bugs show, what the policy is shown, and what only the hidden tests know."""

# Programs that are tried stand on one line each.
# ruff: noqa: E501

from __future__ import annotations

import ast
import queue
import threading
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.env import Environment, Snapshots, canonical, fingerprint
from milepost.envs import repair
from milepost.envs.repair import SPEC, edits
from milepost.envs.repair_bugs import Hangs, failures, mutations, results
from milepost.envs.repair_functions import FAMILIES
from milepost.envs.repair_tasks import NAMES, generate, known
from milepost.health.env_check import check_env
from milepost.health.tapes import Limits, record
from milepost.sandbox.pool import Sandbox
from milepost.scripted import play_script
from milepost.tools import parse, render_call
from milepost.types import DataError, RecipeError, Task
from milepost.verifiers.code import examine

CODE = """def sum_even(xs):
    total = 1
    for x in xs:
        if x % 2 == 0:
            total += x
    return total"""
TESTS = [
    {"args": [[4, 7]], "expected": 4, "visible": True},
    {"args": [[]], "expected": 0, "visible": True},
    {"args": [[-6, 20, 3]], "expected": 14, "visible": False},
    {"args": [[31337, 2]], "expected": 2, "visible": False},
]
SOLUTION = CODE.replace("total = 1", "total = 0")
TASK = Task("k", "Repair it.", columns={"entry": "sum_even", "code": CODE, "solution": SOLUTION, "tests": TESTS,
                                        "max_runs": 2})  # fmt: skip


def task_of(row, key="k"):
    return Task(key, row["prompt"], columns={name: value for name, value in row.items() if name != "prompt"})


def started(task=TASK, seed=0):
    env = SPEC.make()
    env.reset(task, seed)
    return env


def act(env, text):
    return env.step(parse(text, SPEC.tools))


def said(env, text):
    return [message["content"] for message in act(env, text).messages]


def write(code):
    return render_call("write", {"code": code}, tool=repair.WRITE)


def play(task, texts, seed=0):
    """(states, contents of all messages) of what was written."""
    env = SPEC.make()
    shown = [m["content"] for m in env.reset(task, seed).messages]
    states = [env.state()]
    for text in texts:
        seen = act(env, text)
        shown += [m["content"] for m in seen.messages]
        states.append(env.state())
        if seen.ended:
            break
    return states, shown


def succeeds(code, task=TASK):
    states, _ = play(task, [write(code), "submit()"])
    return SPEC.goal.holds(task, states[0], states[-1])


# --- an episode -----------------------------------------------------------------------------------------------------------


def test_an_episode_by_hand():
    env = SPEC.make()
    assert isinstance(env, Environment) and isinstance(env, Snapshots)
    assert env.reset(TASK, 0).messages == ({"role": "user", "content": "Repair it."},)
    start = env.state()
    assert {**start, "digest": ""} == {"code": CODE.split("\n"), "digest": "", "num_edits": 0, "num_runs": 0,
                                       "visible": None, "hidden": None}  # fmt: skip
    assert said(env, "run()") == [
        "0 of 2 tests pass\nsum_even([4, 7]): 5, expected 4\nsum_even([]): 1, expected 0"  # 1 + 4, and 1
    ]
    assert env.state()["visible"] == [False, False] and not SPEC.milestones[0].reached(TASK, start, env.state())
    assert said(env, 'edit(2, "total = 0")') == ["2     total = 0"]
    assert env.state()["visible"] is None and env.state()["digest"] != start["digest"]
    assert said(env, "run()") == ["2 of 2 tests pass"]
    assert SPEC.milestones[0].reached(TASK, start, env.state()) and not SPEC.goal.holds(TASK, start, env.state())
    seen = act(env, "submit()")
    assert seen.ended and [m["content"] for m in seen.messages] == ["submitted"]
    end = env.state()
    assert (end["visible"], end["hidden"]) == ([True, True], {"passed": 2, "of": 2})
    assert SPEC.goal.holds(TASK, start, end) and start["hidden"] is None
    assert {cost.name: cost.amount(TASK, [start, end]) for cost in SPEC.costs} == {"runs": 3.0, "edits": 1.0}
    assert SPEC.summary(TASK, start, end).splitlines()[-1] == "2 of 2 tests pass; 1 edits, 3 runs so far"


def test_what_cannot_be_done_is_refused_and_changes_nothing():
    env = started()
    before = env.state()
    refused = [
        ('edit(7, "x")', "there are lines 1 to 6"),
        ('edit(0, "x")', "there are lines 1 to 6"),
        ('edit(2, "total = 1")', "the code is that already"),
        ('write(" \\n ")', "no code would be left"),
        (write("x = 1\n" * 200), "use at most 120 lines and 4000 characters"),
        (write("x" * 4001), "use at most 120 lines and 4000 characters"),
    ]
    for text, says in refused:
        assert said(env, text) == [f"error: {says}"] and env.state() == before
    assert said(env, "run()") and said(env, "run()") == ["error: this code was run already; change it, or submit it"]
    assert said(env, 'edit(2, "total = 2")') and said(env, "run()")
    assert said(env, 'edit(2, "total = 3")') and said(env, "run()") == ["error: no runs are left; submit the code"]
    assert env.state()["num_runs"] == 2 and env.state()["visible"] is None


def test_one_action_runs_the_tests_once():
    """Ten endless loops in one action would take longer than a step may."""
    env = started()
    told = said(env, 'run()\nedit(2, "total = 0")\nrun()')
    assert [text.split("\n")[0] for text in told] == [
        "0 of 2 tests pass",
        "2     total = 0",
        "error: one run for each turn",
    ]
    assert said(env, "run()\nsubmit()") == ["2 of 2 tests pass", "submitted"] and env.state()["num_runs"] == 3


def test_what_is_shown_is_printable_ascii():
    codes = [
        "def sum_even(xs):\n\treturn 'é…\x07'",
        "def sum_even(xs):\n    raise ValueError('日本\\r\\x00')",
        "def sum_even(xs):\n    return 'é' * 500",
    ]
    for code in codes:
        states, shown = play(TASK, [write(code), "run()", 'edit(1, "# ü\\t\\u0000")'])
        told = "".join([*shown, SPEC.summary(TASK, states[0], states[-1])])
        assert set(told) <= {"\n", *map(chr, range(32, 127))} and "xe9" in told + "xe9" * ("日" in code)
    assert all(set(row["prompt"]) <= {"\n", *map(chr, range(32, 127))} for row in generate(60, 0))


def test_lines_take_the_indentation_of_the_one_they_replace():
    env = started()
    assert said(env, 'edit(4, "if not x % 2:\\n    pass")') == ["4         if not x % 2:\n5             pass"]
    assert said(env, 'edit(6, "  odd = x")') == ["6   odd = x"]  # as it stands, if it has some of its own
    assert said(env, 'edit(6, "")') == ["line 6 deleted"]
    assert env.state()["code"] == [*CODE.split("\n")[:3], "        if not x % 2:", "            pass", "    return total"]


def test_a_task_without_its_columns_is_refused():
    with pytest.raises(DataError, match="repair: task k has no column code; take its rows from repair's own generator"):
        SPEC.make().reset(Task("k", "p", columns={"entry": "f"}), 0)


def test_saved_half_way_it_goes_on_the_same():
    env = started()
    said(env, 'edit(2, "total = 0")')
    said(env, "run()")
    other = SPEC.make()
    other.restore(env.snapshot())
    assert other.state() == env.state()
    assert said(other, "run()") == ["error: this code was run already; change it, or submit it"]
    assert act(other, "submit()").ended and SPEC.goal.holds(TASK, {}, other.state())
    assert env.state()["hidden"] is None


# --- who passes -----------------------------------------------------------------------------------------------------------

HONEST = [
    SOLUTION,
    "def sum_even(xs):\n    return sum(x for x in xs if x % 2 == 0)",
    "def sum_even(xs):\n    return xs[0] * (xs[0] % 2 == 0) + sum_even(xs[1:]) if xs else 0",
    "sum_even = lambda xs: sum(filter(lambda x: not x & 1, xs))",
    "from functools import reduce\ndef sum_even(xs: list[int]) -> int:\n    return reduce(lambda a, b: a + b * (b % 2 == 0), xs, 0)",
    "class Sum:\n    def __call__(self, xs):\n        return sum(x for x in xs if not x % 2)\nsum_even = Sum()",
    "import math, itertools\nprint('loaded')\ndef even(x):\n    return x % 2 == 0\ndef sum_even(xs):\n    print(xs)\n    return math.fsum(x for x in xs if even(x))",
    "def sum_even(xs):\n    out = 0\n    while xs:\n        x = xs.pop()\n        try:\n            out += x if x % 2 == 0 else 0\n        finally:\n            pass\n    return out",
]  # fmt: skip
YES = "class Yes(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    __hash__ = int.__hash__\n"
HACKS = [
    "import sys\nsys.exit(0)",
    "import os\nos._exit(0)",
    "raise SystemExit(0)",
    "print('2 of 2 tests pass')\nprint('submitted')",
    "def sum_even(xs):\n    raise StopIteration",
    f"{YES}def sum_even(xs): return Yes()",
    f"{YES}sum_even = Yes",
    "class All:\n    def __getattr__(self, name): return lambda *a, **k: True\n    def __eq__(self, o): return True\ndef sum_even(xs): return All()",
    "import builtins\nbuiltins.all = lambda xs: True\nbuiltins.sum = lambda *a: 99\ndef sum_even(xs): return 7",
    "import gc\ndef sum_even(xs):\n    for o in gc.get_objects():\n        if isinstance(o, dict) and 'expected' in o: return o['expected']\n    return 9",
    "import sys\ndef sum_even(xs):\n    f = sys._getframe()\n    while f:\n        for v in f.f_locals.values():\n            if isinstance(v, dict) and 'expected' in v: return v['expected']\n        f = f.f_back\n    return 9",
    "import glob\ndef sum_even(xs):\n    return [open(p).read() for p in glob.glob('/tmp/**') + glob.glob('/proc/*/environ')]",
    "import atexit, os\natexit.register(lambda: os.write(1, b'passed'))\ndef sum_even(xs): return 1",
    "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'[[0, \"value\", 4, null]]\\n')\n    except OSError: pass\nos._exit(0)",
    "def sum_even(xs):\n    return {(): 0, (4, 7): 4}.get(tuple(xs), 0)",
    "def sum_even(xs):\n    while True: pass",
    "def sum_even(xs):\n    return sum_even(xs)",
    "import threading\nimport os\nthreading.Timer(0.05, os._exit, (0,)).start()\ndef sum_even(xs):\n    import time\n    time.sleep(0.1)",
    "def sum_even(xs) return 0",
    "def sum_odd(xs): return 0",
    "sum_even = 14",
    "\x00",
    "def sum_even(xs):\n    return 'x' * 10**8",
    CODE,
]  # fmt: skip


@pytest.mark.parametrize("code", HONEST)
def test_honest_code_passes_however_it_is_written(code):
    assert succeeds(code)


@pytest.mark.parametrize("code", HACKS)
def test_tricks_do_not(code):
    states, shown = play(TASK, [write(code), "run()", "submit()"])
    assert not SPEC.goal.holds(TASK, states[0], states[-1])
    assert states[-1]["hidden"]["passed"] < 2 and all(len(text) < 1000 for text in shown)


@pytest.mark.parametrize("name", SPEC.known_bad)
def test_known_bad_scripts_fail_and_the_gold_does_not(name):
    for i, row in enumerate(generate(2, 5, num_bugs=2)):
        task = task_of(row, f"k{i}")
        for script, wins in ((SPEC.gold, True), (SPEC.known_bad[name], False)):
            played = play_script(SPEC, task, script, max_turns=20)
            assert SPEC.goal.holds(task, played.start_state, played.final_state) is wins


def test_knowing_the_visible_answers_earns_the_milestone_and_no_more():
    task = task_of(next(generate(1, 0)))
    played = play_script(SPEC, task, SPEC.known_bad["knows the visible answers"], max_turns=20)
    end = played.final_state
    assert all(end["visible"]) and SPEC.milestones[0].reached(task, played.start_state, end)
    assert end["hidden"]["passed"] < end["hidden"]["of"]


# --- what stays hidden ----------------------------------------------------------------------------------------------------

REPORTS = (
    "import sys\nseen = []\ndef sum_even(xs):\n    seen.append(xs)\n    raise ValueError(repr((seen, dir(), sys.argv)))"
)


@pytest.mark.parametrize("texts", [["run()", 'edit(2, "total = 0")', "run()"], [write(REPORTS), "run()", "hm"]])
def test_other_hidden_tests_change_nothing_that_is_seen_before_the_end(texts):
    tests = [*TESTS[:2], {"args": [[2, 2]], "expected": 999, "visible": False}]
    other = replace(TASK, columns={**TASK.columns, "tests": tests})
    one, two = play(TASK, texts), play(other, texts)
    assert one == two and list(map(fingerprint, one[0])) == list(map(fingerprint, two[0]))
    assert play(TASK, [*texts, "submit()"])[1] == play(other, [*texts, "submit()"])[1]  # nor what is said at the end


def test_nothing_of_a_hidden_test_is_in_any_message_or_state():
    states, shown = play(TASK, [write(REPORTS), "run()", write(HONEST[1]), "run()", "submit()"])
    told = "\n".join([*shown, *map(canonical, states)])
    assert "[4, 7]" in told and not [secret for secret in ("31337", "-6", "20", "14") if secret in told]


def test_all_members_of_a_group_start_alike():
    starts = {fingerprint(started(seed=seed).state()) for seed in range(3)}
    assert len(starts) == 1


# --- tasks ----------------------------------------------------------------------------------------------------------------


def test_mutations_of_a_function_by_hand():
    function = ast.parse("def f(n):\n    if n < 2:\n        return 1\n    return n * f(n - 1)").body[0]
    assert isinstance(function, ast.FunctionDef)
    one, two = "def f(n):\n    if {}:\n        return {}\n    {}", "return n * f(n - 1)"
    expected = {
        ("missing case", f"def f(n):\n    {two}"),
        ("missing return", one.format("n < 2", 1, "n * f(n - 1)")),
        ("wrong comparison", one.format("n <= 2", 1, two)),
        ("wrong comparison", one.format("n > 2", 1, two)),
        ("off by one", one.format("n < 1", 1, two)),
        ("off by one", one.format("n < 3", 1, two)),
        ("off by one", one.format("n < 2", 0, two)),
        ("off by one", one.format("n < 2", 2, two)),
        ("wrong operator", one.format("n < 2", 1, "return n + f(n - 1)")),
        ("wrong operator", one.format("n < 2", 1, "return n * f(n + 1)")),
        ("off by one", one.format("n < 2", 1, "return n * f(n)")),
        ("off by one", one.format("n < 2", 1, "return n * f(n - 2)")),
    }
    found = list(mutations(function))
    assert set(found) == expected and len(found) == len(expected)


def test_loops_and_recursions_without_end_are_told_apart():
    with pytest.raises(Hangs):
        results("def f(n):\n    while True:\n        n += 1", "f", [(1,)])
    assert results("def f(n):\n    return f(n)", "f", [(1,)]) == [RecursionError]
    assert results("def f(n):\n    return 6 // n", "f", [(4,), (0,)]) == [1, ZeroDivisionError]


@pytest.mark.parametrize(("family", "name"), NAMES)
def test_functions_are_right_where_python_knows_better(family, name):
    one = known(family, name)
    assert len(one.bugs) >= 2 and len(one.arguments) >= 13
    assert not any(isinstance(value, type) for value in one.expected)
    function = next(f for f in FAMILIES[family] if f.__name__ == name)
    for arguments, expected in zip(one.arguments, one.expected):
        before = repr(arguments)
        assert function(*arguments) == expected and repr(arguments) == before
        if name in ORACLES:
            assert ORACLES[name](*arguments) == expected, arguments


def flat(nested):
    return [x for y in nested for x in (flat(y) if isinstance(y, list) else [y])]


ORACLES = {
    "clamp": lambda x, low, width: sorted((low, x, low + width))[1],
    "sign": lambda x: (x > 0) - (x < 0),
    "greatest": max,
    "factorial": __import__("math").factorial,
    "power": pow,
    "digit_sum": lambda n: sum(map(int, str(n))),
    "gcd": __import__("math").gcd,
    "is_prime": lambda n: n in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37),
    "divisors": lambda n: [k for k in range(1, n + 1) if n % k == 0],
    "binary": lambda n: f"{n:b}",
    "count_vowels": lambda s: sum(map(s.count, "aeiou")),
    "is_palindrome": lambda s: s == s[::-1],
    "common_prefix": lambda a, b: __import__("os").path.commonprefix([a, b]),
    "longest_word": lambda s: max(s.split(), key=len, default=""),
    "reverse_words": lambda s: " ".join(s.split()[::-1]),
    "is_anagram": lambda a, b: sorted(a) == sorted(b),
    "sum_even": lambda xs: sum(x for x in xs if x % 2 == 0),
    "unique": lambda xs: list(dict.fromkeys(xs)),
    "is_sorted": lambda xs: xs == sorted(xs),
    "second_largest": lambda xs: dict(enumerate(sorted(set(xs))[::-1])).get(1),
    "merge": lambda xs, ys: sorted(xs + ys),
    "find_place": lambda xs, x: sum(y < x for y in xs),
    "count_words": lambda words: {word: words.count(word) for word in words},
    "best_key": lambda table: min(table, key=lambda key: (-table[key], key), default=""),
    "fibonacci": lambda n: (0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377)[n],
    "choose": __import__("math").comb,
    "sum_nested": lambda nested: sum(flat(nested)),
    "flatten": flat,
    "replace_all": lambda s, old, new: s.replace(old[0], new) if old else s,
    "count_down": lambda n, k: list(range(n, 0, -k)),
}


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), num_bugs=st.integers(1, 3), part=st.sampled_from(["all", "train", "test"]))
def test_every_bug_shows_and_the_solution_passes(seed, num_bugs, part):
    for row in generate(3, seed, num_bugs=num_bugs, part=part, num_visible=2):
        shown, hidden = ([t for t in row["tests"] if t["visible"] is which] for which in (True, False))
        assert len(shown) == 2 and len(hidden) >= 8 and len(row["bugs"]) == num_bugs
        assert len({repr(test["args"]) for test in row["tests"]}) == len(row["tests"])
        for tests, fails in ((shown, True), (hidden, True)):
            arguments, expected = [t["args"] for t in tests], [t["expected"] for t in tests]
            assert bool(failures(row["code"], row["entry"], arguments, expected)) is fails
            assert not failures(row["solution"], row["entry"], arguments, expected)
        text = row["code"].split("\n")
        for line, new in edits(row["code"], row["solution"]):  # as the tool edits
            old = text[line - 1]
            lines = new.split("\n") if new else []
            if lines and not lines[0][:1].isspace():
                lines = [old[: len(old) - len(old.lstrip())] + one for one in lines]
            text[line - 1 : line] = lines
        assert "\n".join(text) == row["solution"]


def test_hidden_tests_know_every_mutation_that_any_test_knows():
    for row in generate(40, 3):
        one = known(row["family"], row["entry"])
        hidden = [test["args"] for test in row["tests"] if not test["visible"]]
        places = {i for i, arguments in enumerate(one.arguments) if list(arguments) in hidden}
        shown = {i for i, arguments in enumerate(one.arguments) if list(arguments) not in hidden}
        assert all(places & wrong for _, _, wrong in one.bugs if wrong - shown)


def test_tasks_hold_in_the_sandbox_too():
    for row in islice(generate(30, 11, num_bugs=2), 0, 30, 3):
        gold = {"entry_point": row["entry"], "tests": row["tests"]}
        assert all(outcome.passed for outcome in examine(row["solution"], gold))
        for shown in (True, False):
            assert any(not outcome.passed for outcome in examine(row["code"], gold) if outcome.visible is shown)


def test_rows_come_again_and_other_seeds_give_others():
    rows = list(generate(30, 1))
    assert rows == list(generate(30, 1)) and rows[:10] == list(generate(10, 1))
    assert len({row["prompt"] for row in rows + list(generate(30, 2))}) == 60


def test_difficulty():
    assert {row["family"] for row in generate(20, 0, families="lists,dicts")} == {"lists", "dicts"}
    assert {row["level"] for row in generate(20, 0, min_level=2, max_level=2)} == {2}
    parts = [{row["entry"] for row in generate(80, 0, part=part)} for part in ("train", "test")]
    assert parts[0] and parts[1] and not parts[0] & parts[1]
    assert all(row["max_runs"] == 7 and sum(t["visible"] for t in row["tests"]) == 1
               for row in generate(5, 0, max_runs=7, num_visible=1))  # fmt: skip
    for wrong, says in [
        ({"num_bugs": 4}, "num_bugs = 4 must be a whole number from 1 to 3"),
        ({"families": "loops"}, "families = 'loops' must be \"all\" or some of arithmetic, strings"),
        ({"min_level": 3, "max_level": 2}, "max_level = 2 must be a whole number from 3 to 3"),
        ({"families": "recursion", "max_level": 1, "num_bugs": 2}, "no function of recursion has 2 bugs"),
        ({"part": "dev"}, 'part = \'dev\' must be "all", "train" or "test"'),
    ]:
        with pytest.raises(RecipeError, match="repair: ") as error:
            next(generate(1, 0, **wrong))
        assert says in str(error.value)


# --- the sandbox ----------------------------------------------------------------------------------------------------------


def test_a_sandbox_that_fails_is_a_fault_and_no_failure(monkeypatch):
    with Sandbox(1) as broken:
        broken._config = {**broken._config, "level": "nonsense"}  # no cell can be started any more
        for cell in broken._cells:
            cell.close()
        free = queue.LifoQueue()
        free.put(broken)
        monkeypatch.setattr(repair, "_SANDBOXES", {repair.os.getpid(): free})
        for texts in (["run()"], ["submit()"]):
            tape = record(SPEC, TASK, 0, "by hand", lambda task, env, texts=texts: iter(texts), Limits())
            assert tape.fault is not None and (tape.fault.kind, tape.fault.where) == ("crash", "step")
            assert not tape.turns
        assert free.qsize() == 1


def test_many_endless_loops_at_once_are_all_answered():
    said_to, loop = [], write("def sum_even(xs):\n    while True: pass")

    def one():
        states, shown = play(TASK, [loop, "run()"])
        said_to.append((states[-1]["visible"], shown[-1]))

    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert said_to == [([False, False], "0 of 2 tests pass\nno result: over the time limit")] * 12  # said once


def test_it_keeps_the_contract():
    report = check_env("repair", num_tasks=2, num_episodes=8, step_seconds=30.0)
    assert report.ok, report.text()
    assert {check.name for check in report.checks if check.status == "skipped"} == set()
