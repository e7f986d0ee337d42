r"""Which part of a completion is its answer. One explicit policy, the same for every verifier that reads text.

    extract("<think>\boxed{3}?</think> So \boxed{4}, no: \boxed{5}.", "boxed")  ->  ("5", "box 2 of 2")
    extract("<think>it may be \boxed{5}", "boxed")                              ->  (None, "the reasoning never ends")

Before anything is looked for, `spoken` drops what the policy did not say as its answer: everything from the first end of
turn on, and all reasoning. Reasoning that does not end leaves nothing at all, since what it would have said is not known.
Then the last complete box, tag or marker that has something in it counts, and only that one. A box right behind a "not" is
none, nor is one that "is wrong": "\boxed{5}, not \boxed{6}" answers 5. Where the last box is a part of what is said, as in
-\boxed{5}, \boxed{5} + 1 or x > \boxed{5}, there is no answer, since what the box holds is not it (`around`). Every
function reads its text a constant number of times, from left to right, whatever stands in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from milepost.types import RecipeError
from milepost.verifiers.around import REACH, is_denied, is_one_of_two, is_part
from milepost.verifiers.prose import without_courtesy

Policy = Literal["boxed", "tag", "marker", "line", "whole"]
POLICIES: tuple[Policy, ...] = ("boxed", "tag", "marker", "line", "whole")
MAX_CHARACTERS = 500_000

_ENDS = re.compile(
    r"<\|(?:im_end|im_start|eot_id|eom_id|endoftext|end_of_text|end_of_turn|end|return|user|assistant|start_header_id)\|>"
    r"|<(?:end|start)_of_turn>|</s>|<｜(?:end▁of▁sentence|User|Assistant)｜>|\[/?INST\]"
)
_REASONING = re.compile(
    r"</?(?:think|thinking|thoughts?|reasoning|reflection|analysis|scratchpad|seed:think)[ \t]*+>|\[/?THINK\]|◁/?think▷"
    r"|<\|(?:begin|end)_of_thought\|>|<\|(?:start|end)_thinking\|>",
    re.IGNORECASE,
)
_FINAL = re.compile(r"<\|channel\|>\s*final\b[^<]{0,40}(?:<\|constrain\|>[^<]{0,40})?<\|message\|>")
"""The answer of a turn whose thoughts stand in channels of their own."""
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]+"
)
"""What Unicode calls ignorable (selectors, tags, fillers of Hangul, which count as letters), controls, blank patterns."""


def are_places(value: Any) -> bool:
    places = [value] if isinstance(value, str) else value
    return isinstance(places, (list, tuple)) and bool(places) and all(place in POLICIES for place in places)


def places_of(value: Any, what: str = "extract") -> tuple[Policy, ...]:
    """One policy or several, as a tuple. Raises RecipeError, whose sentence calls the setting `what`."""
    if not are_places(value):
        raise RecipeError(f"{what} must name places among {', '.join(POLICIES)}, not {value!r}")
    return tuple([value] if isinstance(value, str) else value)


def spoken(text: str, *, opened: bool = False, stops: Sequence[str] = ()) -> tuple[str | None, str]:
    """(what counts of a completion, ""), or (None, why nothing does).

    opened: the prompt itself opened the reasoning, so that a completion that never closes it has not answered.
    stops: further texts that end the turn, such as "\\nHuman:" for a model that knows no end of turn.
    A closing tag without an opening one ends reasoning that the prompt opened: what stands before it is no answer.
    """
    if len(text) > MAX_CHARACTERS:
        return None, f"longer than {MAX_CHARACTERS:,} characters"
    if "<|channel|>" in text:
        if not (final := _FINAL.search(text)):
            return None, "the reasoning never ends"
        text = text[final.end() :]
    text = own_turn(text, stops)
    kept: list[str] = []
    inside, at = "any" if opened else "", 0
    for tag in _REASONING.finditer(text):
        closing, name = _tag(tag)
        if inside:
            if closing and inside in ("any", name):
                inside, at = "", tag.end()
        elif closing:
            kept, at = [], tag.end()
        else:
            kept.append(text[at : tag.start()])
            inside, at = name, tag.end()
    if inside:
        return None, "the reasoning never ends"
    return "\n".join([*kept, text[at:]]), ""


def own_turn(text: str, stops: Sequence[str] = ()) -> str:
    """The text up to its first end of turn, reasoning included."""
    text = _ENDS.split(text, maxsplit=1)[0]
    for stop in stops:
        text = text.partition(stop)[0] if stop else text
    return text


def _tag(found: re.Match[str]) -> tuple[bool, str]:
    """(whether it closes, a name that opening and closing tag share)."""
    text = found[0].lower()
    name = re.sub(r"begin_of_|end_of_|start_|end_|[^a-z]", "", text)
    return text[1] == "/" or text.startswith("<|end"), text[0] + name


def extract(
    text: str,
    policy: Policy | Sequence[Policy] = "boxed",
    *,
    tag: str = "answer",
    marker: str = "####",
    opened: bool = False,
    stops: Sequence[str] = (),
) -> tuple[str | None, str]:
    r"""(the answer, where it stood), or (None, why there is none).

    boxed: the last complete \boxed{…} or \fbox{…}, braces balanced, or \boxed 5; a box within a box is that answer too.
    tag: the last complete <answer>…</answer>; of several openings the last one counts.
    marker: what follows the last #### on its line; the number alone where prose without any other digit follows it.
    line: the last line that is not blank, without courtesies behind its answer ("I hope it is correct."); a line that is
    nothing else is passed over. whole: all that was said.
    A sequence of policies is tried in order: the first that finds anything decides. Raises ValueError for unknown ones.
    """
    policies = places_of(policy)
    if not tag or not marker:
        raise ValueError("the tag and the marker of an extraction policy must not be empty")
    said, why = spoken(text, opened=opened, stops=stops)
    if said is None:
        return None, why
    reasons = []
    for name in policies:
        found, where = _find(said, name, tag, marker)
        if found is not None:
            return found, where
        if where in (_PART, _DENIED):
            return None, where
        reasons.append(where)
    return None, " and ".join(reasons)


def _find(said: str, policy: Policy, tag: str, marker: str) -> tuple[str | None, str]:
    if policy == "whole":
        return (said.strip(), "the whole text") if not blank(said) else (None, "nothing was said")
    if policy == "line":
        lines = [line for line in _displayed(said).splitlines() if not blank(line) and line.strip() != "```"]
        bare = (without_courtesy(line) for line in reversed(lines))
        last = next((line for line in bare if not blank(line)), lines[-1] if lines else "")
        return (last.strip(), "the last line") if last else (None, "nothing was said")
    if policy == "boxed":
        return _last_box(said)
    if policy == "tag":
        return _last(tagged(said, tag), f"<{tag}>", f"no complete <{tag}>…</{tag}>")
    return _last(_marked(said, marker), marker, f"no {marker}")


_DISPLAY = re.compile(r"\\\[(?:(?!\\[\[\]]).){0,1000}?\\\]|\$\$[^$]{0,1000}\$\$", re.DOTALL)


def _displayed(said: str) -> str:
    """With each display of several lines on one."""
    if said.count("$$") % 2:
        return said
    return _DISPLAY.sub(lambda display: " ".join(display[0].split()), said)


def _last(found: Sequence[str], name: str, missing: str) -> tuple[str | None, str]:
    for index in range(len(found) - 1, -1, -1):
        if not blank(found[index]):
            return found[index].strip(), f"{name} {index + 1} of {len(found)}"
    return None, f"{missing} with anything in it" if found else missing


def blank(text: str) -> bool:
    """Whether there is nothing to be seen: spaces, and characters that show nothing."""
    return not seen(text).strip()


def seen(text: str) -> str:
    """The text without characters that show nothing; spaces stay."""
    return _INVISIBLE.sub("", text)


_PART, _DENIED = "the last box is a part of what is said", "what stands in a box is said not to be the answer"


def _last_box(said: str) -> tuple[str | None, str]:
    found = list(_spans(said))
    for index in range(len(found) - 1, -1, -1):
        begin, start, end, behind = found[index]
        content = _peeled(said[start:end])
        before, after = said[max(0, begin - REACH) : begin], said[behind : behind + REACH]
        if blank(content) or is_denied(before, after, content):
            continue
        if is_part(before, after) or is_one_of_two(before, after, content):
            return None, _PART
        return content.strip(), f"box {index + 1} of {len(found)}"
    if any(not blank(said[start:end]) for _, start, end, _ in found):
        return None, _DENIED
    return None, "no complete \\boxed{…}" + (" with anything in it" if found else "")


# --- boxes ----------------------------------------------------------------------------------------------------------

# A command may be written with two backslashes where the policy thinks of itself as writing a string. Without braces TeX
# boxes what follows; \\boxed 15 would be a 1 in a box beside a 5.
_BRACES = re.compile(
    r"(\\{1,2}(?:boxed|fbox)\s*+\{)|\\{1,2}boxed\s*+(\d(?![\d.,/^]*\d)|[A-Za-z](?=\s*(?:[.$*]|\\[)\]]|\Z)))|\\.|[{}]",
    re.DOTALL,
)


def boxes(text: str) -> Iterator[str]:
    r"""The contents of every outermost complete box, in order. `\{` and `\}` are no braces; an unclosed box is none."""
    for _, start, end, _ in _spans(text):
        yield _peeled(text[start:end])


def _spans(text: str) -> list[tuple[int, int, int, int]]:
    """Of every outermost complete box: where it begins, where its content does, where that ends, and where it does."""
    open_: list[tuple[int, int]] = []  # where each brace begins, and its content; -1 for a brace that is no box
    spans: list[tuple[int, int, int, int]] = []
    for token in _BRACES.finditer(text):
        if token[1]:
            open_.append((token.start(), token.end()))
        elif token[2]:
            spans.append((token.start(), token.start(2), token.end(), token.end()))
        elif token[0] == "{":
            open_.append((token.start(), -1))
        elif token[0] == "}" and open_:
            begin, start = open_.pop()
            if start < 0:
                continue
            while spans and spans[-1][1] >= start:  # each span is pushed and popped once
                spans.pop()
            spans.append((begin, start, token.start(), token.end()))
    return spans


def _peeled(content: str) -> str:
    for _ in range(3):
        begun = _BRACES.match(content.strip())
        if not begun or not begun[1]:
            break
        inner, depth = content.strip(), 0
        for token in _BRACES.finditer(inner):
            depth += 1 if token[1] or token[0] == "{" else -1 if token[0] == "}" else 0
            if depth == 0:
                break
        if depth or token.end() != len(inner):
            break
        content = inner[begun.end() : -1]
    return content


# --- tags and markers -----------------------------------------------------------------------------------------------


def tagged(text: str, tag: str) -> list[str]:
    """The contents of every complete <tag>…</tag>, in order, from the last opening before each closing one."""
    found: list[str] = []
    start = -1
    for mark in re.finditer(rf"<(/?){re.escape(tag)}[ \t]*+>", text, re.IGNORECASE):
        if not mark[1]:
            start = mark.end()
        elif start >= 0:
            found.append(text[start : mark.start()])
            start = -1
    return found


_NUMBER = re.compile(r"\s*([$€£]?\s?[-+−]?\d[\d,]*+(?:\.\d++)?(?:/\d++)?%?)(?:[.;:!,]?\s+(?=\S+\s+\S+\s+\S)|[.;:!]?\s*$)")


_HEADING = re.compile(
    r"[\s*_]*(?:(?:final |the )?(?:answer|result)|solution|conclusion|summary|explanation|verification|check|step \d{1,2})"
    r"[\s*_:.]*",
    re.IGNORECASE,
)
"""Behind a #### that begins a heading and no answer."""


def _marked(text: str, marker: str) -> list[str]:
    edge = re.escape(marker[0])
    whole = rf"(?<!{edge}){re.escape(marker)}(?!{edge})" if len(set(marker)) == 1 else re.escape(marker)
    found = []
    for line in text.splitlines():
        parts = re.split(whole, line)[1:]
        found += [_number_first(part) for part in parts if not _HEADING.fullmatch(part)]
    return found


def _number_first(rest: str) -> str:
    """ "42 is what remains of it" is 42; "42 or 43 are left" is not: whoever lists numbers has given all of them."""
    number = _NUMBER.match(rest)
    return number[1] if number and not any(c.isdecimal() for c in rest[number.end() :]) else rest


# --- choices --------------------------------------------------------------------------------------------------------

_WRAPPED = re.compile(
    r"\s*(?:\\(?:text|textbf|textit|mathrm|mathbf|boldsymbol|rm|operatorname)\s*\{(?P<text>[^{}]*)\}"
    r"|\$\$?(?P<math>[^$]+)\$\$?|\\\((?P<round>(?:(?!\\\)).)+)\\\)|\\\[(?P<square>(?:(?!\\\]).)+)\\\]"
    r"|\*\*(?P<bold>[^*]+)\*\*|\*(?P<thin>[^*]+)\*|`(?P<code>[^`]+)`|\{(?P<braces>[^{}]*)\})\s*[.]?\s*",
    re.DOTALL,
)
_LETTER = re.compile(
    r"(?:(?:option|choice|answer)\b[\s:]*+)?(?:\(\s*([A-Za-z])\s*\)|\[\s*([A-Za-z])\s*\]|([A-Za-z]))\s*(.*)",
    re.DOTALL | re.IGNORECASE,
)


def unwrap(text: str) -> str:
    r"""The text without what only dresses it: `$…$`, `\(…\)`, `\text{…}`, `**…**` and the like, three layers deep."""
    text = text.strip()
    for _ in range(3):
        dressed = _WRAPPED.fullmatch(text)
        if not dressed:
            break
        text = next(part for part in dressed.groups() if part is not None).strip()
    return text


def choice(text: str, letters: str = "ABCDEFGHIJ") -> str | None:
    r"""The one letter that an extracted text chooses, upper case: `\text{E}`, `(b)`, `E: because…`, `C) 12`. Else None.

    Several letters choose nothing ("A or B", "A, B"), nor does a word that begins with one ("A cat").
    """
    found = _LETTER.fullmatch(unwrap(text[:2000]))
    if not found:
        return None
    letter, rest = (found[1] or found[2] or found[3]).upper(), found[4].strip()
    closed = bool(found[1] or found[2])
    if letter not in letters or (rest and not closed and rest[0] not in ".:)-–—"):
        return None
    rest = rest.lstrip(".:)-–— ").strip()
    others = re.split(r"[\s,;/&+|()\[\].:]+|\b(?:or|and)\b", rest)
    if rest and all(not word or (len(word) == 1 and word.upper() in letters) for word in others):
        return None  # nothing but more letters
    return None if re.match(r"(?:or|and|[,/&|])(?:\W|$)", rest, re.IGNORECASE) else letter
