r"""Does a completion have the form that was asked for?

    gold = {"blocks": ["think", "answer"]}      each block once, in this order, nothing outside
    gold = {"boxes": 1}                         that many \boxed{…}
    gold = {"schema": {"type": "object", …}}    JSON that fits a schema, alone or as the one block of code
    score(answer="<think>2 and 2</think><answer>4</answer>", gold={"blocks": ["think", "answer"]})["score"]  -> 1.0

1 for the form, 0 for anything else; no part of it earns anything. A block needs something to read in it: spaces, signs and
placeholders are none, nor is one that repeats itself or another block. "Any valid JSON" is no form: {} and 42 have it.

How form and correctness go together is said in the recipe (reward_combine.py): by default form is a gate.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.verifiers.call_formats import FAULTS, fenced, json_alone
from milepost.verifiers.extract import MAX_CHARACTERS, blank, boxes, own_turn, spoken
from milepost.verifiers.json_schema import bad_schema, misfit
from milepost.verifiers.repetition import repeated, units_of

MAX_REPEATED = 0.5
_SIGNS = frozenset("<>=≤≥≠+−-×÷∞∅%√∈⊂⊆∪∩¬∧∨→↔")
_BLOCK_SIGNS = _SIGNS - frozenset("+−-=")
_DRESS = re.compile(
    r"<!--.*?(?:-->|\Z)|\\(?:(?:[hv]?phantom|hspace|vspace|label|color)\*?\s*\{[^{}]{0,80}\}|(?:text\w{0,6}|math\w{2,6}|boldsymbol|operatorname|boxed"
    r"|fbox|mbox|hbox|underline|quad|qquad|[lcv]?dots|left|right|displaystyle|null|strut|large|Large)(?![A-Za-z]))",
    re.DOTALL,
)
"""Comments, and LaTeX that shows nothing by itself."""
_NAME = re.compile(r"[A-Za-z][\w-]{0,39}", re.ASCII)
_REASONING = {"think", "thinking", "thought", "reasoning"}
_PLACEHOLDERS = {"answer", "your answer", "your answer here", "answer here", "final answer", "the answer", "my answer",
                 "the final answer", "your final answer", "reasoning", "reasoning here", "your reasoning", "thoughts",
                 "your reasoning here", "your thoughts", "your thoughts here", "thought", "thinking", "think", "content",
                 "reasoning process", "reasoning process here", "placeholder", "todo", "tbd", "lorem ipsum"}  # fmt: skip


class BadGold(ValueError):
    """The form asked for cannot be judged. The message is one sentence."""


@dataclass(frozen=True)
class Form:
    """Exactly one of `blocks`, `num_boxes` and `schema` is set."""

    blocks: tuple[str, ...] = ()
    num_boxes: int = 0
    schema: Any = None
    least: Mapping[str, int] | None = None
    """Block → the fewest words in it; 1 where it is not named."""


def read_gold(gold: Any, **params: Any) -> Form:
    """The form that is asked for: by the gold, a table or its JSON text, or by params where the gold is no such table."""
    if isinstance(gold, str) and gold.lstrip().startswith("{"):
        try:
            gold = json.loads(gold)
        except (ValueError, RecursionError):
            gold = None
    kinds = ("blocks", "boxes", "schema")
    table = gold if isinstance(gold, Mapping) and any(kind in gold for kind in kinds) else params
    asked = [kind for kind in kinds if table.get(kind) is not None]
    if len(asked) != 1:
        raise BadGold('a form has one of "blocks" (names of tags), "boxes" (their number) and "schema" (of JSON)')
    if asked == ["schema"]:
        return Form(schema=_schema(table["schema"]))
    if asked == ["boxes"]:
        number = table["boxes"]
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 100:
            raise BadGold(f"boxes = {number!r} must be a number from 1 to 100")
        return Form(num_boxes=number)
    blocks, least = table["blocks"], table.get("least") or {}
    if isinstance(blocks, str) or not isinstance(blocks, Sequence) or not 1 <= len(blocks) <= 20:
        raise BadGold("blocks must be a list of 1 to 20 names of tags")
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in blocks):
        raise BadGold("every block must have a name of ASCII letters, digits, - and _ that begins with a letter")
    if len({name.lower() for name in blocks}) < len(blocks):
        raise BadGold("a block is named twice; each one may stand only once")
    if not isinstance(least, Mapping) or not all(key in blocks and isinstance(least[key], int) for key in least):
        raise BadGold('"least" must give a number of words for blocks that are named')
    return Form(blocks=tuple(blocks), least=dict(least))


def _schema(schema: Any) -> Any:
    if problem := bad_schema(schema):
        raise BadGold(problem)
    nothing: tuple[Any, ...] = ({}, [], "", 42, None, True)
    for empty in nothing:
        if misfit(empty, schema) is None:
            raise BadGold(
                f"the schema accepts {json.dumps(empty)}, so nothing needs to be said; give it required properties"
            )
    return schema


# --- judging --------------------------------------------------------------------------------------------------------


def score(*, answer: str, gold: Any = None, opened: bool = False, **params: Any) -> dict[str, Any]:
    """1 if the completion has the form, 0 if not; extractable False if no complete block, box or JSON is in it at all.

    Only the own turn is looked at, and reasoning only where the form names a block for it. opened: the prompt opened the
    reasoning, which is the first block of such a form.
    """
    try:
        form = read_gold(gold, **params)
    except BadGold as error:
        return {"score": None, "cause": "bad_gold", "extracted": None, "extractable": False, "compared": str(error),
                "parts": {}}  # fmt: skip
    if len(answer) > MAX_CHARACTERS:
        return _verdict(None, f"longer than {MAX_CHARACTERS:,} characters")
    if form.blocks and any(name.lower() in _REASONING for name in form.blocks):
        before = f"<{form.blocks[0]}>" if opened and not answer.lstrip().startswith(f"<{form.blocks[0]}>") else ""
        return _verdict(*_blocks(before + own_turn(answer), form))
    said, why = spoken(answer, opened=opened)
    if said is None or blank(said):
        return _verdict(None, why or "nothing was said")
    if form.blocks:
        return _verdict(*_blocks(said, form))
    return _verdict(*(_boxes(said, form.num_boxes) if form.num_boxes else _json(said, form.schema)))


def _verdict(found: str | None, wrong: str) -> dict[str, Any]:
    """found: what was read last; wrong: what is wrong with the form, or ""."""
    value = float(found is not None and not wrong)
    return {"score": value, "cause": None, "extracted": None if found is None else found[:2000],
            "extractable": found is not None, "compared": wrong or "the form is as asked for",
            "parts": {"form": value}}  # fmt: skip


def _blocks(text: str, form: Form) -> tuple[str | None, str]:
    """(the last block, what is wrong): the tags in the order of the form and no others of these names, nothing outside."""
    names = "|".join(re.escape(name) for name in form.blocks)
    tags = list(re.finditer(rf"<(/?)({names})[ \t]*+>", text, re.IGNORECASE))
    expected = [f"<{slash}{name}>".lower() for name in form.blocks for slash in ("", "/")]
    written = [f"<{tag[1]}{tag[2]}>".lower() for tag in tags[: len(expected) + 1]]
    pairs = [i for i in range(len(written) - 1) if written[i][1] != "/" and written[i + 1] == f"</{written[i][1:]}"]
    found = text[tags[pairs[-1]].end() : tags[pairs[-1] + 1].start()].strip() if pairs else None
    if written != expected:
        return found, f"its tags are {' '.join(written) or 'none'}{' …' if len(tags) > len(written) else ''}"
    contents = [text[tags[2 * i].end() : tags[2 * i + 1].start()] for i in range(len(form.blocks))]
    outside = [text[: tags[0].start()], *(text[tags[2 * i + 1].end() : tags[2 * i + 2].start()]
                                          for i in range(len(contents) - 1)), text[tags[-1].end() :]]  # fmt: skip
    if not all(map(blank, outside)):
        return found, "there is text outside the blocks"
    for name, content in zip(form.blocks, contents):
        signs = frozenset() if name.lower() in _REASONING else _BLOCK_SIGNS
        if wrong := empty_of_content(content, max(1, (form.least or {}).get(name, 1)), signs=signs):
            return found, f"<{name}> {wrong}"
    folded = [" ".join(units_of(content)).rstrip(" .,;:!?") for content in contents]
    if len(set(folded)) < len(folded):
        return found, "two blocks say the same"
    return found, ""


def empty_of_content(text: str, least: int = 1, *, signs: frozenset[str] = frozenset()) -> str:
    """Why a text says nothing ("is empty", …), or "". Words begin with a letter or a digit, or are one of `signs`."""
    words = [unit for unit in units_of(html.unescape(_DRESS.sub(" ", text))) if unit[0].isalnum() or unit in signs]
    if not words:
        return "is empty"
    if " ".join(words) in _PLACEHOLDERS:
        return "holds a placeholder"
    if len(words) < least:
        return f"has {len(words)} words, of at least {least}"
    if len(words) >= 8 and repeated(words, 3) > MAX_REPEATED:
        return "repeats itself"
    return ""


def _boxes(said: str, number: int) -> tuple[str | None, str]:
    found = list(boxes(said))
    full = [content for content in found if not empty_of_content(content, signs=_SIGNS)]
    if not full:
        return None, "no complete \\boxed{…} has anything in it"
    if len(found) != number:
        return full[-1].strip(), f"{len(found)} boxes, not {number}"
    if len(full) < number:
        return full[-1].strip(), "a box is empty"
    return full[-1].strip(), ""


def _json(said: str, schema: Any) -> tuple[str | None, str]:
    text = said.strip()
    if text[:1] not in ("{", "["):
        blocks = fenced(text)
        if len(blocks) != 1:
            return (blocks[-1] if blocks else None), f"{len(blocks)} blocks of JSON, not 1"
        text = blocks[0]
    value, fault = json_alone(text)
    if fault:
        return None, f"{fault}: {FAULTS[fault].replace('call', 'answer')}"
    if wrong := misfit(value, schema):
        return text, wrong
    texts = list(_texts(value))
    if texts and all(empty_of_content(one) in ("is empty", "holds a placeholder", "repeats itself") for one in texts):
        return text, "none of its texts says anything"
    return text, ""


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value; numbers and booleans say something too, and count as one."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield value if isinstance(value, str) else "1"


# --- checks of the gold ---------------------------------------------------------------------------------------------


def check_gold(gold: Any = None, **params: Any) -> str | None:
    """What is wrong with the form asked for, or None."""
    try:
        read_gold(gold, **params)
    except BadGold as error:
        return str(error)
    return None


def right(gold: Any = None, **params: Any) -> list[str]:
    """Texts of the form; none for a schema, of which no example is known. Raises BadGold."""
    form = read_gold(gold, **params)
    if form.num_boxes:
        text = " and ".join(rf"\boxed{{{number + 1}}}" for number in range(form.num_boxes))
        return [text, f"<think>It is small.</think>\nSo {text}."]
    if form.blocks:
        blocks = _examples(form)
        return ["".join(blocks), "\n".join(blocks) + "\n"]
    return []


def wrong(gold: Any = None, **params: Any) -> list[str]:
    """Texts that must score 0. Raises BadGold."""
    form = read_gold(gold, **params)
    texts = ["", " \n", "The answer is 4.", "{}", "42", "\u200b"]
    if form.num_boxes:
        one = r"\boxed{4}"
        return [
            *texts,
            r"\boxed{}" * form.num_boxes,
            one * (form.num_boxes + 1),
            r"\boxed{4",
            f"<think>{one * form.num_boxes}",
        ]
    if form.blocks:
        blocks = _examples(form)
        whole, empty = "".join(blocks), "".join(f"<{name}></{name}>" for name in form.blocks)
        texts += [empty, empty.replace("><", "> \n<"), empty.replace("></", ">...</"), whole * 2, whole + blocks[-1]]
        texts += [whole[: -len(form.blocks[-1]) - 3], whole + " And so on.", "So: " + whole]
        return [*texts, "".join(blocks[::-1])] if len(blocks) > 1 else texts
    return [*texts, "[]", "null", '""', "```json\n{}\n```"]


def _examples(form: Form) -> list[str]:
    least = form.least or {}
    return [f"<{name}>{' '.join(f'part{i}of{number}' for number in range(max(2, least.get(name, 1))))}</{name}>"
            for i, name in enumerate(form.blocks)]  # fmt: skip
