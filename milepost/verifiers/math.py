"""Mathematics: is the answer the same value as the gold, whatever way it is written?

    score(answer="So it is \\\\boxed{1 1/4}.", gold="5/4")["score"]   -> 1.0
    score(answer="\\\\boxed{4 or 5}", gold="5")["score"]              -> 0.0

`extract` finds the answer, `math_parse` reads it, `math_compare` compares: fractions exactly, all else to 500 digits.
What the grammar does not know (integrals, sums, limits, determinants) goes to math-verify, if it is small; its verdict on
numbers counts only if 50 digits agree. Call it in a killable worker: nothing here is known to hang, and nothing must.

    extract    where the answer is: "boxed", "tag", "marker", "line", "whole", or several; the first that is there decides
    tag, marker, opened, stops   as in `extract`
    percent    "lenient" (28% and 28 are the same, and 28% and 0.28; 0.28 and 28 are not), "strict" (28% is 0.28 only)
    units      "lenient" (one side may lack the unit), "strict", "ignore"
    rounding   "exact" (0.33 is not 1/3), "gold" (right if it rounds to the gold's decimals); a gold with ≈ is always so
    rel_tol, abs_tol   the larger bound counts; both 0
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from milepost.verifiers.extract import extract as find
from milepost.verifiers.extract import places_of
from milepost.verifiers.math_choices import Choice, is_list_of_options, labelled, read_choice, verdict
from milepost.verifiers.math_compare import Policy, same
from milepost.verifiers.math_foreign import is_foreign, read_foreign, same_foreign, separators
from milepost.verifiers.math_forms import with_constants_of
from milepost.verifiers.math_parse import parse
from milepost.verifiers.math_scan import Node, Unreadable, as_word
from milepost.verifiers.math_text import MAX_ANSWER_CHARACTERS, plain, unwrap
from milepost.verifiers.math_value import NoValue, TooLarge, exact, numeric, symbols
from milepost.verifiers.prose import after_lead_in, led_in

DEFAULT_EXTRACT = ("boxed", "tag", "marker", "line")
SETTINGS = ("extract", "tag", "marker", "opened", "stops", "percent", "units", "rounding", "rel_tol", "abs_tol")


@dataclass(frozen=True)
class Gold:
    text: str
    tree: Node | None
    """None: only math-verify can read it."""
    alternative: Node | None
    """With the commas of (12,345) as separators, where that can be meant."""
    choice: Choice | None
    """What it chooses, if it is letters or a word such as yes."""


def score(*, answer: str, gold: Any, **params: Any) -> dict[str, Any]:
    """1 if the answer is the gold, else 0; None with cause "bad_gold" if the gold cannot be read."""
    if problem := check_gold(gold, **params):
        return _result(None, "bad_gold", None, False, problem)
    known = _read_gold(_gold_text(gold))
    text, where = find(answer, **_found_by(params)) if isinstance(answer, str) else (None, "no text")
    prose = where in ("the last line", "the whole text")
    text = after_lead_in(text) if text and prose else text
    if not text:
        return _result(0.0, None, None, False, f"no answer found: {where}")
    if known.choice and prose and is_list_of_options(answer):
        return _result(0.0, None, None, False, "no answer found: a list of options chooses none")
    try:
        right, readable = _judge(known, text, _policy(known, params))
    except (TooLarge, RecursionError):
        return _result(0.0, None, text, True, f"{text[:200]!r} or the gold is too large to compute, and not written alike")
    if not right and not readable and prose:
        return _result(0.0, None, None, False, f"not an answer: {text[:100]!r}")
    how = "is" if right else "is not" if readable else "cannot be read, and is not"
    return _result(float(right), None, text, True, f"{text[:200]!r} {how} {known.text[:200]!r}")


def _result(value: float | None, cause: str | None, extracted: str | None, found: bool, compared: str) -> dict[str, Any]:
    parts = {} if value is None else {"correct": value, "extractable": float(found)}
    return {
        "score": value,
        "cause": cause,
        "extracted": extracted,
        "extractable": found,
        "compared": compared,
        "parts": parts,
    }


def _judge(gold: Gold, text: str, policy: Policy) -> tuple[bool, bool]:
    """Whether the text is the gold, and whether it could be read."""
    if gold.choice and (chosen := verdict(gold.choice, text)) is not None:
        value = labelled(text, words=True) if chosen and gold.choice.rest else None  # (E) 13 is not (E) 12
        return (chosen, True) if value is None else _judge(replace(gold, choice=None), value, policy)
    if gold.choice and (rest := led_in(text)) and (chosen := verdict(gold.choice, rest)) is not None:
        return chosen, True  # The answer is C
    if len(text) > MAX_ANSWER_CHARACTERS:
        return False, False
    text = _apart(text, gold.tree)
    if gold.tree is not None and gold.tree[0] == "word" and as_word(rf"\text{{{unwrap(plain(text))}}}") == gold.tree[1]:
        return True, True  # March 3
    if gold.tree is not None and gold.tree[0] == "base" and re.sub(r"\\text|[{}]", "", plain(text)).upper() == gold.tree[1]:
        return True, True  # 1A2 for 1A2_{16}
    try:
        answer = parse(text)
    except Unreadable:
        if (rest := led_in(text)) is not None:
            return _judge(gold, rest, policy)
        if (value := labelled(text)) is not None:  # (E) 27, for the gold 27
            return _judge(gold, value, policy)
        if gold.tree is not None and not is_foreign(text):
            return False, False
        return _judge_foreign(gold, text)
    if gold.tree is None:
        return _judge_foreign(gold, text)
    if answer[0] == "colon" and answer[1][0][0] == "word" and (rest := led_in(text)) is not None:  # Total: 12 apples
        return _judge(gold, rest, policy)
    other = _alternative(text, answer, ("num",) if gold.tree[0] in ("list", "set") else ())
    answers = [other] if other is not None and _one(answer) else [answer, *([other] if other is not None else [])]
    golds = [gold.tree, *([gold.alternative] if gold.alternative is not None else [])]
    # The separators of one side are read in two ways at a time, never those of both.
    pairs = [(one, answers[0]) for one in golds] + [(golds[0], one) for one in answers[1:]]
    right = any(same(one, with_constants_of(one, another), policy) for one, another in pairs)
    return right, answer[0] != "word" or gold.tree[0] in ("word", "sym")


_RUN = re.compile(r"\\text\w*\s*\{[^{}]*\}|\\[A-Za-z]+|(?<![A-Za-z])[A-Za-z]{3,4}(?![A-Za-z])")


def _apart(text: str, tree: Node | None) -> str:
    """With the letters of mgh apart, where the gold is made of these symbols: else it is a word."""
    if tree is None or tree[0] in ("word", "sym") or len(names := symbols(tree)) < 3:
        return text
    return _RUN.sub(lambda run: " ".join(run[0]) if run[0].isalpha() and {*run[0]} <= names else run[0], text)


def _judge_foreign(gold: Gold, text: str) -> tuple[bool, bool]:
    try:
        right = separators(gold.text) == separators(text) and same_foreign(read_foreign(gold.text), read_foreign(text))
        return right, True
    except Unreadable:
        return False, False


# --- the gold and the settings --------------------------------------------------------------------------------------


def check_gold(gold: Any, **params: Any) -> str | None:
    """What is wrong with this gold, in one sentence; None if it can be compared with. Raises ValueError for bad params."""
    _check(params)
    if isinstance(gold, bool) or not isinstance(gold, (str, int, float, Fraction)):
        return f"the gold is a {type(gold).__name__}, not text or a number"
    if isinstance(gold, float) and not math.isfinite(gold):
        return f"the gold is {gold}, which is no number to compare with"
    text, raw = _gold_text(gold), str(gold).rstrip()
    if eaten := re.search(r"[\x00-\x09\x0b-\x1f\x7f]|\n(?=(?:e|eq|u|abla|ot|i)\b)", raw):
        return (
            f"the gold {text[:80]!r} holds the control character {eaten[0]!r}, most likely a backslash that was eaten; "
            "write the backslashes twice, or use a raw string"
        )
    if text == raw.strip() and r"\boxed" in text and not (found := find(text, "boxed"))[0]:
        return f"the gold {text[:80]!r} has no answer in a box: {found[1]}"
    try:
        known = _read_gold(text)
        if known.tree is not None and not same(known.tree, known.tree, Policy()):
            return f"the gold {text[:80]!r} has no value"
        if known.tree is not None:
            _evaluate(known.tree)
    except Unreadable as error:
        return f"the gold {text[:80]!r} cannot be read: {error}"
    except TooLarge:
        return None  # what is written in the same way is right
    except RecursionError:
        return f"the gold {text[:80]!r} is nested too deep"
    except NoValue as error:
        return f"the gold {text[:80]!r} has no value: {error}"
    return None


def _evaluate(node: Any) -> None:
    """Raises what the scalars of a gold raise, so that this shows at load and not at the first answer."""
    if not isinstance(node, tuple) or not node:
        return
    if node[0] in ("+", "-", "*", "/", "^", "!", "fn", "abs", "pct") and not _holds(node, ("pm", "const", "unit")):
        if exact(node) is None and not symbols(node):
            numeric(node, 50, {})
        return
    for part in node[1:]:
        _evaluate(part)


def _holds(node: Any, kinds: Sequence[str]) -> bool:
    return isinstance(node, tuple) and ((node[:1] and node[0] in kinds) or any(_holds(part, kinds) for part in node))


def _gold_text(gold: Any) -> str:
    """A gold may be a whole solution that ends in a box or in ####, as in MATH and GSM8K."""
    text = repr(gold) if isinstance(gold, float) else str(gold).strip()
    if r"\boxed" in text or "####" in text:
        return find(text, ("boxed", "marker"))[0] or text
    return text


@functools.lru_cache(maxsize=4096)
def _read_gold(text: str) -> Gold:
    choice = read_choice(text)
    if choice and choice.kind == "letter" and not choice.rest:
        return Gold(text, ("sym", choice.value), None, choice)
    if choice:
        try:
            return replace(_read_value(choice.rest or text), text=text, choice=choice)
        except Unreadable:
            if choice.kind != "letter":
                return Gold(text, ("word", choice.value), None, choice)
    return _read_value(text)


def _read_value(text: str) -> Gold:
    try:
        tree = parse(text)
    except Unreadable as error:
        if not is_foreign(text):
            raise Unreadable(_instead(text, str(error))) from None
        try:
            is_read = same_foreign(read_foreign(text), read_foreign(text))
        except Unreadable:
            raise Unreadable(_instead(text, f"{error}, and math-verify cannot read it either")) from None
        if not is_read:
            raise Unreadable(_instead(text, "math-verify does not find it equal to itself")) from None
        return Gold(text, None, None, None)
    other = _alternative(text, tree)
    return Gold(text, other, None, None) if other and _one(tree) else Gold(text, tree, other, None)


_SET = re.compile(r"\\\{|\\mid(?![A-Za-z])|\\in(?![A-Za-z])|\\mathbb")


def _instead(text: str, why: str) -> str:
    """Why a gold cannot be read, and what would be."""
    if len(text) > MAX_ANSWER_CHARACTERS or not _SET.search(plain(text)):
        return why
    return (
        f"{why}; write a set as an interval, a union of intervals, a list of its members or, with a member for every whole "
        r"number k, as their formula alone: \frac{\pi}{6}+2k\pi"
    )


def _one(tree: Node) -> bool:
    """Whether brackets hold one thing: of a point, an interval or a set nobody would write that, if two can be meant."""
    return tree[0] == "paren" or (tree[0] in ("group", "set") and len(tree[-1]) == 1)


def _alternative(text: str, tree: Node, more: Sequence[str] = ()) -> Node | None:
    """(12,345) is a point, and \\{12,345\\} may be two numbers. (1,000) is not: no second number begins with a zero."""
    if tree[0] not in ("paren", "group", "set", "matrix", "list", *more) or not re.search(r"\d,[1-9]\d\d(?!\d)", text):
        return None
    if re.search(r",0\d", text):
        return None
    try:
        return parse(text, grouped=False)
    except Unreadable:
        return None


def _found_by(params: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `extract.extract`, without its text."""
    others: dict[str, Any] = {name: params[name] for name in ("tag", "marker", "opened", "stops") if name in params}
    return others | {"policy": params.get("extract", DEFAULT_EXTRACT)}


def _check(params: dict[str, Any]) -> None:
    """Raises ValueError with a sentence that names the setting."""
    for name in params:
        if name not in SETTINGS:
            raise ValueError(f"the math verifier has no setting {name!r}; it has {', '.join(SETTINGS)}")
    places_of(params.get("extract", DEFAULT_EXTRACT))
    for name, choices in (("percent", "lenient strict"), ("units", "lenient strict ignore"), ("rounding", "exact gold")):
        if params.get(name, choices.split()[0]) not in choices.split():
            raise ValueError(f"{name} must be one of {', '.join(choices.split())}, not {params[name]!r}")
    for name in ("rel_tol", "abs_tol"):
        value = params.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)) or not 0 <= value < 1e300:
            raise ValueError(f"{name} must be a number from 0 on, not {value!r}")


def _policy(gold: Gold, params: dict[str, Any]) -> Policy:
    rel_tol, abs_tol = (Fraction(str(params.get(name, 0))) for name in ("rel_tol", "abs_tol"))
    stated = r"\approx" in gold.text or "≈" in gold.text
    if stated or params.get("rounding") == "gold":
        decimals = re.search(r"\.(\d+)", plain(gold.text))
        if decimals or stated:
            abs_tol = max(abs_tol, Fraction(1, 2 * 10 ** len(decimals[1] if decimals else "")))
    return Policy(params.get("percent", "lenient"), params.get("units", "lenient"), rel_tol, abs_tol)


# --- for the audit --------------------------------------------------------------------------------------------------


def _wrap(text: str, params: dict[str, Any]) -> str:
    place = params.get("extract", DEFAULT_EXTRACT)
    place, tag = place if isinstance(place, str) else place[0], params.get("tag", "answer")
    marked = f"{params.get('marker', '####')} {text}"
    forms = {"boxed": rf"\boxed{{{text}}}", "tag": f"<{tag}>{text}</{tag}>", "marker": marked}
    return forms.get(place, text)


def _exact(tree: Node) -> Fraction | None:
    try:
        return exact(tree)
    except TooLarge:
        return None


def right(gold: Any, **params: Any) -> list[str]:
    """Completions that say the gold in other ways and must score 1. Empty for a gold that cannot be read."""
    if check_gold(gold, **params):
        return []
    text = _gold_text(gold)
    known = _read_gold(text)
    value = _exact(known.tree) if known.tree is not None and known.tree[0] not in ("pct", "base") else None
    forms = [text, f" {text} ", f"${text}$" if "$" not in text else text]
    if value is not None and max(value.numerator.bit_length(), value.denominator.bit_length()) < 1000:
        sign, top, bottom = "-" if value < 0 else "", abs(value.numerator), value.denominator
        forms += [
            rf"{sign}\frac{{{top}}}{{{bottom}}}",
            f"{sign}{3 * top}/{3 * bottom}",
            f"{sign}{top}/{bottom}".replace("-", "−"),
        ]
        if bottom == 1:
            forms += [f"{value}.0", f"{int(value):,}", str(value).translate({48 + d: 0xFF10 + d for d in range(10)})]
        elif top > bottom:
            forms += [f"{sign}{top // bottom} {top % bottom}/{bottom}"]
    thought = "<think>Perhaps " + _wrap("-987654321", params) + ".</think>\n" if text != "-987654321" else ""
    return [*(_wrap(form, params) for form in forms), thought + _wrap(text, params)]


def wrong(gold: Any, **params: Any) -> list[str]:
    """Completions that must score 0: the gold changed a little, the gold among others, the gold where nothing counts."""
    if check_gold(gold, **params):
        return []
    text = _gold_text(gold)
    known = _read_gold(text)
    value = _exact(known.tree) if known.tree is not None else None
    near: list[str] = []
    if value is not None and max(value.numerator.bit_length(), value.denominator.bit_length()) < 1000:
        for other in (value + 1, value - 1, -value, 10 * value, value + Fraction(1, 1000), 2 * value + 3):
            near += [f"{other.numerator}/{other.denominator}"] if other != value else []
    elif known.tree is not None and known.tree[0] in (
        "group",
        "matrix",
        "set",
        "list",
        "union",
        "except",
        "rel",
        "word",
        "colon",
        "unit",
    ):
        near += [re.sub(r"\d+", lambda m: str(int(m[0]) + 1), text, count=1)] if re.search(r"\d", text) else []
        near += [f"not {text}"] if known.tree[0] == "word" else []
    elif known.tree is not None:
        near += [f"{text} + 1", f"2({text}) + 3"]
    plain_text = text.replace("$", "")
    near += [
        f"{plain_text}, 987654321",
        f"987654321 or {plain_text}",
        f"{plain_text} or 987654321",
        f"{plain_text}, {plain_text}",
    ]
    policy = _policy(known, params)
    kept = [form for form in near if form != text and not _equal(known, form, policy)]
    hidden = f"<think>It is {_wrap(text, params)}"
    return [*(_wrap(form, params) for form in kept), hidden, "", _wrap("", params), _wrap("987654321987654321", params)]


def _equal(gold: Gold, text: str, policy: Policy) -> bool:
    """Leaves out what the policy itself allows (±x for a symmetric set, a number within the stated tolerance, however it is
    written), never what the parser cannot read."""
    try:
        other, tolerant = parse(text), bool(policy.rel_tol or policy.abs_tol)
        return gold.tree is not None and (tolerant or other[0] == gold.tree[0]) and same(gold.tree, other, policy)
    except (Unreadable, TooLarge, RecursionError):
        return False
