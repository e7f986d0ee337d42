"""Tool calls judged by name and arguments: against the tools' JSON schemas and against the calls that were expected.

    gold = {"tools": [{"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}],
            "calls": [{"name": "add", "arguments": {"a": 1}}]}
    score(answer='<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', gold=gold)["score"]  -> 1.0

Calls of one answer are a multiset: order does not matter (unless ordered), number does. Whatever was called beyond what was
expected costs, so nothing is earned by calling more; a call at fault counts as one that was made. Expected values are
JSON: 2 equals 2.0, true does not equal 1, texts must be the same. A call of the gold may list other values that do as
well, {"name", "arguments", "any": {"city": ["Paris", "Paris, France"]}}; parameters that a schema gives a default have it
where they are left out, and null for an optional parameter means that it is left out. `call_golds` reads golds.

Three named rules: "all" pays 1 if the calls are the expected ones and nothing else; "name" pays 1 if the tools called are
the expected ones, whatever they were given; "fraction" pays the matched calls divided by the expected or the made ones,
whichever are more. All three stand in the parts, beside fault/KIND, the number of calls with each fault.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from milepost.verifiers.call_foreign import called
from milepost.verifiers.call_formats import FAULTS, FORMATS, UNREADABLE, Made, read_calls, render_calls
from milepost.verifiers.call_golds import BadGold, Problem, Wanted, meets, read_gold, settled
from milepost.verifiers.extract import blank, spoken
from milepost.verifiers.json_schema import misfit

Credit = Literal["all", "name", "fraction"]
CREDITS: tuple[Credit, ...] = ("all", "name", "fraction")


# --- judging --------------------------------------------------------------------------------------------------------


def score(
    *, answer: str, gold: Any, format: str = "hermes", credit: Credit = "all", ordered: bool = False,
    decode_twice: bool = False, opened: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The verdict on one answer.

    format: hermes, llama, mistral, json or react. ordered: the calls must come in the gold's order. decode_twice: arguments
    that are a text holding an object are taken for it. opened: the prompt opened the reasoning. Nothing that can be read as
    a call is score 0 with extractable False, unless none was expected: then it is right, if anything was said at all and
    none of the gold's tools is called in another format.
    Raises ValueError for an unknown format or credit.
    """
    if format not in FORMATS or credit not in CREDITS:
        wrong, known = (format, FORMATS) if format not in FORMATS else (credit, CREDITS)
        raise ValueError(f"{wrong!r} is unknown for tool calls; use {', '.join(known)}")
    try:
        problem = read_gold(gold)
    except BadGold as error:
        return {"score": None, "cause": "bad_gold", "extracted": None, "extractable": False, "compared": str(error),
                "parts": {}}  # fmt: skip
    said, why = spoken(answer, opened=opened)
    if said is None or blank(said):
        return _verdict(0.0, [], why or "nothing was said", {})
    made = [_checked(call, problem) for call in read_calls(said, format, problem.lone, decode_twice=decode_twice)]
    if not (made or problem.wanted) and (name := called(said, problem.schemas or ())):
        made = [Made(name, fault="other_format")]
    parts = _parts(made, problem.wanted, ordered)
    return _verdict(parts[credit], made, _compared(made, problem.wanted, parts), parts, none_wanted=not problem.wanted)


def _checked(call: Made, problem: Problem) -> Made:
    """With its arguments settled, or the fault that the tools' schemas show."""
    if call.fault or problem.schemas is None:
        return call
    schema = problem.schemas.get(call.name)
    if schema is None:
        return replace(call, fault="unknown_tool")
    arguments = settled(call.arguments or {}, schema)
    wrong = misfit(arguments, schema)
    return replace(call, fault="schema", detail=wrong) if wrong else replace(call, arguments=arguments)


def _fits(call: Made, wanted: Wanted) -> bool:
    return not call.fault and call.name == wanted.name and meets(call.arguments, wanted.table)


def _parts(made: Sequence[Made], wanted: Sequence[Wanted], ordered: bool) -> dict[str, float]:
    if ordered:
        num_matched = sum(_fits(call, want) for call, want in zip(made, wanted))
    else:
        num_matched = _num_matched([[_fits(call, want) for want in wanted] for call in made])
    most = max(len(made), len(wanted))
    names = [call.name for call in made if call.arguments is not None and call.fault != "unknown_tool"]
    expected = [want.name for want in wanted]
    right_names = len(names) == len(made) and (names == expected if ordered else Counter(names) == Counter(expected))
    faults = Counter(f"fault/{call.fault}" for call in made if call.fault)
    fraction = num_matched / most if most else 1.0
    return {"all": float(fraction == 1.0), "name": float(right_names), "fraction": fraction,
            **{kind: float(number) for kind, number in faults.items()}}  # fmt: skip


def _num_matched(fits: Sequence[Sequence[bool]]) -> int:
    """The most pairs of calls and expectations, each used once (augmenting paths): greedy would miss some of them."""
    taken: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in tried:
                tried.add(column)
                if column not in taken or place(taken[column], tried):
                    taken[column] = row
                    return True
        return False

    return sum(place(row, set()) for row in range(len(fits)))


def _verdict(
    value: float, made: Sequence[Made], compared: str, parts: dict[str, float], *, none_wanted: bool = False
) -> dict:
    readable = [call for call in made if call.fault not in (*UNREADABLE, "too_many")]
    shown = json.dumps([{"name": call.name[:80], "arguments": call.arguments} for call in readable], ensure_ascii=True)
    extracted = shown[:2000] if made and readable else None
    extractable = bool(readable) or (none_wanted and not made and bool(parts))
    return {"score": value, "cause": None, "extracted": extracted, "extractable": extractable, "compared": compared,
            "parts": parts}  # fmt: skip


def _compared(made: Sequence[Made], wanted: Sequence[Wanted], parts: Mapping[str, float]) -> str:
    if not made:
        return "no call was made" + (", as was right" if not wanted else f"; expected {_listed(wanted)}")
    if parts["all"] == 1.0:
        return f"{len(made)} of {len(wanted)} calls match"
    faulty = next((call for call in made if call.fault), None)
    if faulty is not None:
        what = f"{faulty.name[:40]}: " if faulty.name else ""
        return f"{faulty.fault}: {what}{faulty.detail or FAULTS[str(faulty.fault)]}"
    return f"made {len(made)}, expected {_listed(wanted)}; {round(parts['fraction'] * max(len(made), len(wanted)))} match"


def _listed(wanted: Sequence[Wanted]) -> str:
    texts = [f"{want.name}({json.dumps(want.arguments, ensure_ascii=True)[:80]})" for want in wanted[:3]]
    return f"{len(wanted)}: {', '.join(texts)}" if wanted else "none"


# --- checks of the gold ---------------------------------------------------------------------------------------------


def check_gold(gold: Any, *, format: str = "hermes", credit: str = "all", **params: Any) -> str | None:
    """What is wrong with a gold, with its tools, or with how it is to be judged; None if nothing is."""
    if format not in FORMATS or credit not in CREDITS:
        wrong, known = (format, FORMATS) if format not in FORMATS else (credit, CREDITS)
        return f"{wrong!r} is unknown for tool calls; use {', '.join(known)}"
    try:
        read_gold(gold)
    except BadGold as error:
        return str(error)
    return None


def right(gold: Any, *, format: str = "hermes", ordered: bool = False, **params: Any) -> list[str]:
    """The expected calls, written in the format; with their order turned round where it does not matter. Raises BadGold."""
    calls = [(want.name, want.arguments) for want in read_gold(gold).wanted]
    if not calls:
        return ["No tool is needed here."]
    prose = "" if format in ("json", "mistral") else "I call what is needed.\n"
    texts = [render_calls(calls, format), f"<think>Which?</think>\n{prose}{render_calls(calls, format)}"]
    return texts if ordered or len(calls) == 1 else [*texts, render_calls(calls[::-1], format)]


def wrong(gold: Any, *, format: str = "hermes", credit: str = "all", **params: Any) -> list[str]:
    """Texts that must score 0: none of the expected calls is in them, or, where all must match, one too few or too many."""
    problem = read_gold(gold)
    calls = [(want.name, want.arguments) for want in problem.wanted]
    if not calls:
        return ["", " \n", render_calls([("anything", {})], format)]
    other = render_calls([("no_such_tool", calls[0][1])], format)
    texts = ["", " \n", "Done. All tools were called.", "{}", "42", other, f"<think>{render_calls(calls, format)}"]
    bare = [_checked(Made(name, {}), problem) for name, _ in calls]
    if credit != "name" and not any(_fits(call, want) for call in bare for want in problem.wanted):
        texts.append(render_calls([(call.name, {}) for call in bare], format))
    if credit != "fraction":
        texts += [render_calls([*calls, calls[0]], format), render_calls([*calls, ("no_such_tool", {})], format)]
        texts.append(render_calls(calls * 5, format))
        if len(calls) > 1:
            texts.append(render_calls(calls[:-1], format))
    if credit == "all":
        name, arguments = calls[0]
        texts.append(render_calls([(name, {**arguments, "no_such_parameter": 1}), *calls[1:]], format))
    return texts
