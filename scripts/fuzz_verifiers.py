"""Throws mutated answers at every verifier that reads text, and tells what raised, hung, or ran as Python.

    python scripts/fuzz_verifiers.py --minutes 60

Case number n is the same on every machine: labelled answers (milepost/verifiers/labelled.py) cut, doubled, spliced and
strewn with what parsers stumble over, now and then the gold as well. Cases are judged in killable workers, in which an
audit hook sees whether Python compiles, executes, opens or starts anything. Ends with exit code 1 if anything was found.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from milepost.verifiers import broken
from milepost.verifiers.code import check_gold as check_tests
from milepost.verifiers.code_gold import extract_code
from milepost.verifiers.judge_prompt import asked, neutral, read_vote
from milepost.verifiers.kinds import module_of
from milepost.verifiers.labelled import KINDS, Pair, labelled_pairs
from milepost.workers import Call, WorkerPool

BATCH = 100
LIMIT = 5.0
"""Seconds that one answer may take."""
PIECES = (
    *"0123456789.,;:+-*/^_=!%<>|&$#~'\"`()[]{}\\\n\t", " ", "\u202f", "\u200b", "\u202e", "\x00", "\x0c", "\ud800", "½",
    "²", "−", "３", "٣", "𝟘", "°", "e", "i", "x", "nan", "inf", "1e999", "9**9**9", "9^{9^{9}}", "!" * 40, "(" * 60,
    "{" * 200, "[" * 200, "-" * 99, "\\frac", "\\dfrac{1}{", "\\sqrt[3]{", "\\boxed{", "\\text{", "\\begin{pmatrix}",
    "\\end{pmatrix}", "\\\\", "\\left(", "\\right)", "\\cup", "\\infty", "\\pm", "\\int_0^1", "\\sum_{k=1}^{9}", "\\log_",
    "\\sin", "\\{", "\\}", " or ", " and ", "####", "Answer:", "<think>", "</think>", "<answer>", "</answer>", "<|im_end|>",
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "Action:", "Action Input:", "Final Answer:", "```",
    "```python\n", "```json\n", '{"name": "', '"arguments": ', '"arguments": "{', "\\u0000", "\\ud800", "null", "NaN",
    "__import__('os')", "exec(", "eval(", ".__class__", "lambda: 0", "%s", "{0.__class__}", "VERDICT-", ": PASS", "1" * 400,
    "a" * 400,
)  # fmt: skip
READERS = ("code", "judge")
WATCHED = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "subprocess.Popen", "socket.", "shutil.",
           "os.remove", "os.rename", "ctypes.", "pty.", "webbrowser.")  # fmt: skip
OWN = re.compile(
    r"from sympy import \*|{0}(?: ?[-+*/] ?{0})*|def monomial_\w+\([A-Za-z, ]*\):\n.*"
    r"|def __create_fn__\(.*|lambda _cls(?:, \w+)*: _tuple_new\(_cls, \([\w, ]*\)\)|[A-Z]\w+".replace(
        "{0}", r"(?:Integer|Float) \('?[\d.]+'? \)"
    ),
    re.DOTALL,
)
"""What sympy compiles of its own, also for modules that it imports late, and their named tuples; of an
answer, only digits get there."""


@dataclass(frozen=True)
class Case:
    number: int
    kind: str
    gold: Any
    answer: str
    params: dict[str, Any]
    whole: bool
    """Whether the gold is one that was labelled, and not mutated as well."""


@dataclass
class Found:
    """What `num_cases` cases from `first` on did that they must not do."""

    first: int
    num_cases: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    slowest: float = 0.0
    findings: list[str] = field(default_factory=list)

    def text(self) -> str:
        rate = self.num_cases / self.seconds if self.seconds else 0.0
        head = (f"{self.num_cases} cases from {self.first} on, {self.cpu_seconds:.0f} CPU-seconds, {rate:.0f} a second, "
                f"the slowest {self.slowest:.2f} s: {len(self.findings)} findings")  # fmt: skip
        return "\n".join((head, *self.findings[:50]))


# --- cases ------------------------------------------------------------------------------------------------------------

_PAIRS: list[Pair] = []


def case(number: int) -> Case:
    """The same for the same number."""
    if not _PAIRS:
        _PAIRS.extend(pair for kind in KINDS for pair in labelled_pairs(kind))
    draw = random.Random(number)
    kind = draw.choice(("math", "math", "tool_calls", "format", "repetition", *READERS))
    pair = draw.choice([p for p in _PAIRS if p.kind == kind] or _PAIRS)
    answer, gold, whole = mutated(pair.answer, draw), pair.gold, True
    if draw.random() < 0.1 and isinstance(gold, (str, dict, list)):
        gold, whole = _mutated_gold(gold, draw), False
    params = pair.params if kind == pair.kind else {}
    return Case(number, kind, gold, answer, params, whole)


def mutated(text: str, draw: random.Random) -> str:
    """One to six changes. At most some 20,000 characters."""
    for _ in range(draw.randint(1, 6)):
        at, to = sorted(draw.choices(range(len(text) + 1), k=2))
        change = draw.randrange(7)
        if change == 0:
            text = text[:at] + text[to:]
        elif change == 1:
            text = text[:to] + text[at:to] * draw.choice((1, 2, 5, 50)) + text[to:]
        elif change in (2, 3):
            text = text[:at] + "".join(draw.choices(PIECES, k=draw.randint(1, 4))) + text[at:]
        elif change == 4:
            other = draw.choice(_PAIRS).answer
            text = text[:at] + other[draw.randrange(len(other) + 1) :]
        elif change == 5:
            text = (
                text[:at]
                + "".join(chr(draw.choice((draw.randrange(128), draw.randrange(0x110000)))) for _ in range(3))
                + text[to:]
            )
        else:
            text = text[at:] + text[:at]
        text = text[:20_000]
    return text


def _mutated_gold(gold: Any, draw: random.Random) -> Any:
    if isinstance(gold, str):
        return mutated(gold, draw)
    text = json.dumps(gold)
    text = mutated(text, draw)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# --- in a worker ------------------------------------------------------------------------------------------------------

_SEEN: list[str] = []
_LISTENING = [False]


def _listen(event: str, arguments: tuple) -> None:
    if not _LISTENING[0]:
        return
    if event == "compile":
        source = arguments[0].decode("utf-8", "replace") if isinstance(arguments[0], bytes) else str(arguments[0])
        if str(arguments[1]).startswith("<") and "frozen" not in str(arguments[1]) and not OWN.fullmatch(source):
            _SEEN.append(f"compile {source[:80]!r}")
    elif event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        _SEEN.append(f"open {arguments[0]!r} {arguments[1]}")
    elif event.startswith(WATCHED):
        _SEEN.append(f"{event} {str(arguments)[:80]}")


def prepare() -> None:
    """Once in each worker: everything is imported before anything is listened to."""
    for number in range(300):
        judge(case(number))
    sys.addaudithook(_listen)


def play(*, numbers: list[int]) -> dict[str, Any]:
    """What these cases did, and how long the slowest took."""
    import sympy.physics.units  # noqa: F401  (compiles the names of its prefixes when it is first imported)

    findings, slowest = [], 0.0
    for number in numbers:
        one = case(number)
        began, problem = time.process_time(), None  # a starved process is not a slow verifier
        _SEEN.clear()
        _LISTENING[0] = True
        try:
            problem = judge(one)
        except BaseException as error:
            problem = f"raised {type(error).__name__}: {str(error)[:200]}"
        finally:
            _LISTENING[0] = False
        spent = time.process_time() - began
        slowest = max(slowest, spent)
        if spent > LIMIT:
            problem = problem or f"took {spent:.1f} s"
        ran = [seen for seen in _SEEN if one.kind != "code" or not seen.startswith("compile")]  # tests are parsed, not run
        if ran:
            problem = f"did {ran[0]}"
        if problem:
            findings.append(_told(one, problem))
    return {"findings": findings, "slowest": slowest}


def _told(one: Case, problem: str) -> str:
    return f"case {one.number} ({one.kind}): {problem}; gold {str(one.gold)[:120]!r}, answer {one.answer[:300]!r}"


def judge(one: Case) -> str | None:
    """What is wrong with what the verifier made of it, or None."""
    if one.kind == "code":
        return _read_code(one)
    if one.kind == "judge":
        return _read_judge(one)
    module = module_of(one.kind)
    if one.kind == "math" or one.kind == "tool_calls":
        problem = module.check_gold(one.gold, **one.params)
        if not isinstance(problem, (str, type(None))):
            return f"check_gold returned {problem!r}"
    params = one.params
    result = module.score(answer=one.answer, gold=one.gold, **params)
    return _contract(result, one)


def _contract(result: dict[str, Any], one: Case) -> str | None:
    if problem := broken(result, reads=one.kind != "repetition"):
        return problem
    if result["score"] is None and (one.whole or result["cause"] != "bad_gold"):
        return f"no score for a good gold: {result['cause']}: {result['compared'][:200]}"
    return None


def _read_code(one: Case) -> str | None:
    found = extract_code(one.answer, "add")
    check_tests(one.gold if not one.whole else {"entry_point": "add", "tests": [one.answer]})
    return None if found is None or isinstance(found, str) else f"extract_code returned {found!r}"


def _read_judge(one: Case) -> str | None:
    nonce = "4f1c9a2b7d3e8051"
    asked("Right?", "?", str(one.gold), one.answer, nonce)
    vote = read_vote(neutral(one.answer), nonce)
    return None if vote == "unreadable" else f"read a verdict without its number: {vote}"


# --- the hunt ---------------------------------------------------------------------------------------------------------


def hunt(
    seconds: float, first: int = 0, *, num_workers: int = 1, told: Callable[[str], None] = print, most: int = 0
) -> Found:
    """Plays cases from `first` on, for so long, or `most` of them."""
    found, began = Found(first), time.monotonic()
    with WorkerPool(num_workers, setup=Call(f"{__file__}:prepare", timeout=300)) as pool:
        if (up := pool.start()).failure:
            raise SystemExit(f"no worker started: {up.failure}\n{up.detail}")
        at = first
        while time.monotonic() - began < seconds and not (most and found.num_cases >= most):
            batches = [list(range(at + i * BATCH, at + (i + 1) * BATCH)) for i in range(num_workers)]
            for batch, answer in zip(batches, pool.map([_call(batch) for batch in batches])):
                reports = [answer.value] if answer.failure is None else list(_one_by_one(batch, pool))
                for report in reports:
                    found.slowest = max(found.slowest, report["slowest"])
                    for finding in report["findings"]:
                        found.findings.append(finding)
                        told(finding)
                found.num_cases += len(batch)
            at += BATCH * num_workers
        found.cpu_seconds = pool.cpu_seconds
    found.seconds = time.monotonic() - began
    return found


def _call(numbers: list[int]) -> Call:
    return Call(f"{__file__}:play", {"numbers": numbers}, timeout=LIMIT * 4 + 0.2 * len(numbers))


def _one_by_one(batch: list[int], pool: WorkerPool) -> Iterator[dict[str, Any]]:
    """After a batch in which something hung or died: which of it was to blame."""
    for number in batch:
        answer = pool.map([_call([number])])[0]
        yield answer.value if answer.failure is None else {
            "findings": [_told(case(number), f"ended its process: {answer.failure}")], "slowest": LIMIT * 4,
        }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="fuzzes the verifiers")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    quiet = (lambda text: None) if given.json else print
    found = hunt(60 * given.minutes, given.first, num_workers=given.workers, told=quiet)
    print(json.dumps(asdict(found), indent=2) if given.json else found.text().split("\n")[0])
    return 1 if found.findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
