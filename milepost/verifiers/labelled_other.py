r"""Tool calls, forms and code, labelled by hand: the other part of the labelled set (`labelled.py`).

Each entry is (kind, gold, settings, right answers, wrong answers). Of code, answers are programs; they are put into blocks.
"""
# Answers stand on one line each.
# ruff: noqa: E501

from __future__ import annotations

from typing import Any

Entry = tuple[str, Any, dict[str, Any], tuple[str, ...], tuple[str, ...]]

_CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
         "required": ["city"]}  # fmt: skip
_ADD = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
_TOOLS = [{"name": "weather", "parameters": _CITY}, {"name": "add", "parameters": _ADD}]


def _call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


_OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
_OSLO_3 = '{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}'
_ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'
_SUM = '{"name": "add", "arguments": {"a": 1.5, "b": 2}}'

TOOL_CALLS: tuple[Entry, ...] = (
    ("tool_calls", {"tools": _TOOLS, "calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}, {}, (
        _call(_OSLO),
        f"I will look it up.\n{_call(_OSLO)}",
        f"<think>Which city? {_call(_ROME)} No.</think>{_call(_OSLO)}",
        _call('{"arguments": {"city": "Oslo"}, "name": "weather"}'),
        _call('{"name": "weather", "arguments": {"city": "Oslo", "days": 1}}'),
        _call('{"name": "weather", "arguments": {"city": "Oslo", "days": null}}'),
        f"<tool_call>{_OSLO}</tool_call>",
    ), (
        "", "The weather in Oslo is fine.", _call(_ROME), _call(_OSLO_3), _call("{}"), _call("weather(Oslo)"),
        f"{_call(_OSLO)}\n{_call(_OSLO)}",
        f"{_call(_OSLO)}\n{_call(_ROME)}",
        f"<think>{_call(_OSLO)}</think>",
        f"<tool_call>\n{_OSLO}",
        f"<tool_call>\n{_OSLO[:-2]}\n</tool_call>",
        _call('{"name": "weather", "arguments": {"city": "oslo"}}'),
        _call('{"name": "weather", "arguments": {"city": ["Oslo"]}}'),
        _call('{"name": "weather", "arguments": {"city": "Oslo", "unit": "C"}}'),
        _call('{"name": "weather", "arguments": {"town": "Oslo"}}'),
        _call('{"name": "weather", "arguments": {}}'),
        _call('{"name": "weather"}'),
        _call('{"name": "Weather", "arguments": {"city": "Oslo"}}'),
        _call('{"name": "forecast", "arguments": {"city": "Oslo"}}'),
        _call('{"name": "weather", "arguments": "Oslo"}'),
        _call('{"name": "weather", "arguments": {"city": "Oslo", "city": "Rome"}}'),
        _call('{"name": "weather", "arguments": {"city": "Oslo"}} {"name": "weather", "arguments": {"city": "Oslo"}}'),
    )),
    ("tool_calls", {"tools": _TOOLS, "calls": [{"name": "add", "arguments": {"a": 1.5, "b": 2}}]}, {}, (
        _call(_SUM),
        _call('{"name": "add", "arguments": {"b": 2, "a": 1.5}}'),
        _call('{"name": "add", "arguments": {"a": 1.5, "b": 2.0}}'),
        _call('{"name": "add", "arguments": {"a": 15e-1, "b": 2}}'),
    ), (
        _call('{"name": "add", "arguments": {"a": 2, "b": 1.5}}'),
        _call('{"name": "add", "arguments": {"a": "1.5", "b": "2"}}'),
        _call('{"name": "add", "arguments": {"a": 1.5}}'),
        _call('{"name": "add", "arguments": {"a": 1.5, "b": true}}'),
        _call('{"name": "add", "arguments": {"a": 1.5, "b": 2, "c": 0}}'),
        _call('{"name": "add", "arguments": [1.5, 2]}'),
        "3.5", f"```json\n{_SUM}",
    )),
    ("tool_calls", {"tools": _TOOLS, "calls": [{"name": "weather", "arguments": {"city": "Oslo"}},
                                               {"name": "weather", "arguments": {"city": "Rome"}}]}, {}, (
        f"{_call(_OSLO)}\n{_call(_ROME)}",
        f"{_call(_ROME)}\n{_call(_OSLO)}",
        f"First Rome.\n{_call(_ROME)}\nThen Oslo.\n{_call(_OSLO)}",
    ), (
        _call(_OSLO), _call(_ROME),
        f"{_call(_OSLO)}\n{_call(_OSLO)}",
        f"{_call(_OSLO)}\n{_call(_ROME)}\n{_call(_SUM)}",
        f"{_call(_OSLO)}\n{_call(_OSLO_3)}",
        f"{_call(_OSLO)}\n{_call(_ROME)}\n{_call(_ROME)}",
    )),
    ("tool_calls", {"tools": _TOOLS, "calls": [{"name": "weather", "arguments": {"city": "Oslo"}},
                                               {"name": "weather", "arguments": {"city": "Rome"}}]}, {"ordered": True}, (
        f"{_call(_OSLO)}\n{_call(_ROME)}",
    ), (
        f"{_call(_ROME)}\n{_call(_OSLO)}",
    )),
    ("tool_calls", {"tools": _TOOLS, "calls": []}, {}, (
        "No tool is needed: 4.", "It is sunny.",
    ), (
        _call(_OSLO), f"It is sunny.\n{_call(_SUM)}", _call("{}"),
    )),
    ("tool_calls", {"tools": _TOOLS, "calls": [{"name": "weather", "any": {"city": ["Oslo", "Oslo, Norway"]}}]}, {}, (
        _call(_OSLO), _call('{"name": "weather", "arguments": {"city": "Oslo, Norway"}}'),
    ), (
        _call(_ROME), _call('{"name": "weather", "arguments": {"city": "Norway"}}'),
    )),
    ("tool_calls", {"tools": _TOOLS, "calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}, {"format": "json"}, (
        _OSLO, f"[{_OSLO}]", f"```json\n{_OSLO}\n```",
    ), (
        _ROME, f"[{_OSLO}, {_OSLO}]", "[]", "{}", '{"city": "Oslo"}',
    )),
    ("tool_calls", {"tools": _TOOLS, "calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}, {"format": "llama"}, (
        '{"name": "weather", "parameters": {"city": "Oslo"}}',
        '{"type": "function", "name": "weather", "parameters": {"city": "Oslo"}}',
    ), (
        '{"name": "weather", "parameters": {"city": "Rome"}}',
        '{"name": "weather", "parameters": "{}"}',
    )),
    ("tool_calls", {"tools": _TOOLS, "calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}, {"format": "mistral"}, (
        f"[TOOL_CALLS][{_OSLO}]", f"[TOOL_CALLS] [{_OSLO}]",
    ), (
        f"[TOOL_CALLS][{_ROME}]", f"[TOOL_CALLS][{_OSLO}, {_ROME}]",
    )),
    ("tool_calls", {"tools": _TOOLS, "calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}, {"format": "react"}, (
        'Thought: I need the weather.\nAction: weather\nAction Input: {"city": "Oslo"}',
    ), (
        'Thought: I need the weather.\nAction: weather\nAction Input: {"city": "Rome"}',
        "Thought: I need the weather.\nFinal Answer: fine",
    )),
)  # fmt: skip

_PERSON = {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer"}},
           "required": ["name", "age"], "additionalProperties": False}  # fmt: skip

FORMS: tuple[Entry, ...] = (
    ("format", {"blocks": ["think", "answer"]}, {}, (
        "<think>Two and two are four.</think><answer>4</answer>",
        "<think>Two and two are four.</think>\n<answer>4</answer>\n",
        "<think>\nCount: 1, 2, 3, 4.\n</think>\n\n<answer>\nfour\n</answer>",
        "<think>If x < 3 then x^2 < 9.</think><answer>x^2 < 9</answer>",
    ), (
        "", "4", "<answer>4</answer>", "<think>Two and two are four.</think>",
        "<think></think><answer>4</answer>",
        "<think> </think><answer> </answer>",
        "<think>...</think><answer>...</answer>",
        "<think>Two and two are four.</think><answer></answer>",
        "<answer>4</answer><think>Two and two are four.</think>",
        "<think>Two and two are four.</think><answer>4</answer><answer>5</answer>",
        "<think>Two.</think><think>Four.</think><answer>4</answer>",
        "<think>Two and two are four.</think>The answer: <answer>4</answer>",
        "Well: <think>Two and two are four.</think><answer>4</answer>",
        "<think>Two and two are four.<answer>4</answer></think>",
        "<think>Two and two are four.</think><answer>4",
        "<think>Two and two are four.<answer>4</answer>",
        "<think>your reasoning here</think><answer>your answer here</answer>",
        "<think>so so so so so so so so so so so so so so so so so so so so so so so so</think><answer>4</answer>",
        "<think>4</think><answer>4</answer>",
        "<Think>Two and two are four.</Think>",
        "think: Two and two are four. answer: 4",
    )),
    ("format", {"boxes": 1}, {}, (
        "It is \\boxed{4}.", "\\boxed{4}", "Half: $\\boxed{\\frac{1}{2}}$", "<think>\\boxed{3}?</think>It is \\boxed{4}.",
    ), (
        "It is 4.", "\\boxed{}", "\\boxed{ }", "\\boxed{4} or \\boxed{5}", "\\boxed{4", "<think>\\boxed{4}</think>",
        "boxed{4}", "\\box{4}",
    )),
    ("format", {"schema": _PERSON}, {}, (
        '{"name": "Anna", "age": 30}', '{"age": 30, "name": "Anna"}', '```json\n{"name": "Anna", "age": 30}\n```',
        ' {"name": "Anna", "age": 30}\n',
    ), (
        "{}", "42", "[]", "", '{"name": "Anna"}', '{"name": "", "age": 30}', '{"name": "Anna", "age": "30"}',
        '{"name": "Anna", "age": 30.5}', '{"name": "Anna", "age": 30, "city": "Oslo"}',
        '{"name": "Anna", "age": 30', '[{"name": "Anna", "age": 30}]', '{"name": "Anna", "age": true}',
        '{"name": "Anna", "age": 30}{"name": "Anna", "age": 30}', "{'name': 'Anna', 'age': 30}",
    )),
)  # fmt: skip

_YES = "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
_CALLS = {"entry_point": "last_word", "tests": [
    {"args": ["one two"], "expected": "two", "visible": True}, {"args": [""], "expected": ""},
    {"args": ["a"], "expected": "a"}, {"args": ["  to be  or not "], "expected": "not"},
]}  # fmt: skip
_FLOATS = {"entry_point": "mean", "tests": [
    {"args": [[1, 2]], "expected": 1.5}, {"args": [[0.1, 0.2, 0.3]], "expected": 0.2}, {"args": [[4]], "expected": 4.0},
]}  # fmt: skip
_TUPLES = {"entry_point": "bounds", "tests": [
    {"args": [[3, 1, 2]], "expected": [1, 3]}, {"args": [[5]], "expected": [5, 5]}, {"args": [[-1, -7]], "expected": [-7, -1]},
]}  # fmt: skip
_STDIN = {"tests": [{"input": "3\n1 2 3\n", "output": "6\n"}, {"input": "1\n-5\n", "output": "-5\n"},
                    {"input": "0\n\n", "output": "0\n"}]}  # fmt: skip
_ASSERTS = {"entry_point": "is_even", "tests": ["assert is_even(2)", "assert not is_even(3)", "assert is_even(0) == True"]}

CODE: tuple[Entry, ...] = (
    ("code", _CALLS, {}, (
        "def last_word(s):\n    return s.split()[-1] if s.split() else ''",
        "def last_word(s):\n    return (s.split() or [''])[-1]",
        "last_word = lambda s: s.rstrip().rpartition(' ')[2]",
        "def last_word(s: str) -> str:\n    out = ''\n    for word in s.split():\n        out = word\n    return out",
        "def last_word(s):\n    s = s.strip()\n    i = len(s)\n    while i and s[i - 1] != ' ':\n        i -= 1\n    return s[i:]",
        "import re\ndef last_word(s):\n    print('looking')\n    return (re.findall(r'\\S+', s) or [''])[-1]",
        "def helper(words):\n    return words[-1] if words else ''\ndef last_word(s):\n    return helper(s.split())",
        "class Last:\n    def __call__(self, s):\n        return ([''] + s.split())[-1]\nlast_word = Last()",
        "def last_word(s):\n    try:\n        return s.split()[-1]\n    except IndexError:\n        return ''",
        "def last_word(s, default=''):\n    words = s.split()\n    return words.pop() if words else default",
    ), (
        "def last_word(s):\n    return s.split()[-1]",
        "def last_word(s):\n    return s.split(' ')[-1]",
        "def last_word(s):\n    return s.split()[0] if s.split() else ''",
        "def last_word(s):\n    return 'two'",
        "def last_word(s):\n    return {'one two': 'two', 'a': 'a'}.get(s, '')",
        "def last_word(s):\n    print(s.split()[-1] if s.split() else '')",
        "def last_words(s):\n    return (s.split() or [''])[-1]",
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "raise SystemExit(0)",
        "print('all tests passed')",
        "def last_word(s):\n    raise StopIteration",
        "def last_word(s):\n    import os\n    os._exit(0)",
        "class Yes(str):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef last_word(s):\n    return Yes('x')",
        "class Any:\n    def __eq__(self, other): return True\ndef last_word(s):\n    return Any()",
        "def last_word(s):\n    return [*map(str, (s.split() or ['']))]",
        "def last_word(s):\n    return (s.split() or [''])[-1] + ' '",
        "def last_word(s):\n    while True: pass",
        "def last_word(s) return s",
        "",
        "last_word = None",
        "def last_word(s):\n    yield (s.split() or [''])[-1]",
        "async def last_word(s):\n    return (s.split() or [''])[-1]",
    )),
    ("code", _FLOATS, {}, (
        "def mean(xs):\n    return sum(xs) / len(xs)",
        "from statistics import mean",
        "import math\ndef mean(xs):\n    return math.fsum(xs) / len(xs)",
        "from fractions import Fraction\ndef mean(xs):\n    return float(sum(map(Fraction, xs)) / len(xs))",
        "def mean(xs):\n    m = 0.0\n    for n, x in enumerate(xs, 1):\n        m += (x - m) / n\n    return m",
    ), (
        "def mean(xs):\n    return sum(xs) // len(xs)",
        "def mean(xs):\n    return sum(xs)",
        "def mean(xs):\n    return sorted(xs)[len(xs) // 2]",
        "def mean(xs):\n    return sum(xs) / len(xs) + 0.001",
        "def mean(xs):\n    return str(sum(xs) / len(xs))",
        "def mean(xs):\n    return float('nan')",
        f"{_YES}def mean(xs):\n    return Yes(1)",
        "class F(float):\n    def __eq__(self, o): return True\n    def __sub__(self, o): return 0.0\n    __rsub__ = __sub__\n"
        "def mean(xs):\n    return F(9)",
    )),
    ("code", _TUPLES, {}, (
        "def bounds(xs):\n    return [min(xs), max(xs)]",
        "def bounds(xs):\n    return min(xs), max(xs)",
        "def bounds(xs):\n    xs = sorted(xs)\n    return xs[0], xs[-1]",
        "def bounds(xs):\n    xs.sort()\n    return [xs[0], xs[-1]]",
    ), (
        "def bounds(xs):\n    return [max(xs), min(xs)]",
        "def bounds(xs):\n    return {min(xs), max(xs)}",
        "def bounds(xs):\n    return min(xs)",
        "def bounds(xs):\n    return [xs[0], xs[-1]]",
        "def bounds(xs):\n    return [min(xs), max(xs), 0]",
        "def bounds(xs):\n    return str([min(xs), max(xs)])",
        "class L(list):\n    def __eq__(self, o): return True\n    def __len__(self): return 2\ndef bounds(xs):\n    return L()",
    )),
    ("code", _STDIN, {}, (
        "n = int(input())\nprint(sum(map(int, input().split())))",
        "import sys\ndata = sys.stdin.read().split()\nprint(sum(map(int, data[1:])))",
        "input()\ntotal = 0\nfor word in input().split():\n    total += int(word)\nprint(total, end='')",
        "def main():\n    n = int(input())\n    xs = list(map(int, input().split()))\n    print(sum(xs[:n]))\n\nif __name__ == '__main__':\n    main()",
        "import sys\ninput()\nsys.stdout.write(str(sum(map(int, input().split()))) + '  \\n\\n')",
    ), (
        "print(6)",
        "print(6)\nprint(-5)\nprint(0)",
        "n = int(input())\nprint(n)",
        "print(max(map(int, input().split())))",
        "n = int(input())\nprint('Sum:', sum(map(int, input().split())))",
        "input()\nprint(sum(map(int, input().split())))\nraise SystemExit(1)",
        "import sys\nprint(open('/dev/stdin').read())",
        "input()\nprint(sum(map(int, input().split())), file=__import__('sys').stderr)",
        "",
        "input()\nprint([sum(map(int, input().split()))])",
    )),
    ("code", _ASSERTS, {}, (
        "def is_even(n):\n    return n % 2 == 0",
        "is_even = lambda n: not n & 1",
        "def is_even(n):\n    if n in (0, 1):\n        return n == 0\n    return is_even(n - 2)",
    ), (
        "def is_even(n):\n    return n % 2 == 1",
        "def is_even(n):\n    return True",
        "def is_even(n):\n    return n == 2",
        "def is_even(n):\n    raise AssertionError",
        "def is_even(n):\n    raise SystemExit(0)",
        "def is_even(n):\n    import os\n    os._exit(0)",
        "import builtins\nbuiltins.AssertionError = Warning\ndef is_even(n):\n    return 3",
        "class Both:\n    n = 0\n    def __bool__(self):\n        Both.n += 1\n        return Both.n % 2 == 1\n    def __eq__(self, o): return True\n"
        "def is_even(n):\n    return Both()",
    )),
)  # fmt: skip
