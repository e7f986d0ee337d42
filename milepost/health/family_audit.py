"""Is the scorer of a reasoning-gym family to be trusted? Every family is asked the same things, behind the sandbox's walls.

    audit(["chain_sum"], size=6)  ->  [Finding("chain_sum", evaluates=False, gold=1.0, junk=0.02, …)]

The right answer must score 1 and nothing else may come near: no junk, no text copied from the question, no hedge between
two answers. The scorer must not raise, must not hang, must say the same under another hash seed, and must never evaluate
the answer: an answer that is Python code can then give itself any score. `scripts/audit_families.py` writes what is found.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from milepost.families import MOST_FOR_JUNK, Draw, draw_families, unpack
from milepost.types import RecipeError
from milepost.verifiers.gym import Ask, GymScorers
from milepost.workers import Answer

CPU_SECONDS, SECONDS = 3.0, 60.0
"""The most that one answer may take: of the processor, which a busy machine does not change, and by the clock."""
_EXIT = "__import__('os')._exit(0)"
INJECTIONS = (
    _EXIT, f"[{_EXIT}]", f"[[{_EXIT}]]", f"({_EXIT}, 1)", f"{{'a': {_EXIT}}}", f"{_EXIT}\n{_EXIT}", f"1 + {_EXIT}",
    f"x = {_EXIT}", "!!python/object/apply:os._exit [0]", f"{{{{{_EXIT}}}}}", f"f'{{{_EXIT}}}'", f"print({_EXIT})",
    f"<answer>{_EXIT}</answer>", f'["{_EXIT}"]', f"{_EXIT} {_EXIT} {_EXIT}", f"\\boxed{{{_EXIT}}}",
)  # fmt: skip
"""Each ends the process if anything of it is evaluated, in the forms in which scorers expect lists, boards and terms."""
TOWERS = ("9**9**9**9", "9^9^9^9", "factorial(10**9)", "(" * 3000 + "1" + ")" * 3000, "[" * 3000, "9" * 10_000)
"""What takes for ever to work out, or to read."""


MOST = ("junk", "copied", "other", "hedged", "changed")
"""Kinds of answers that are not right; the highest score counts."""


@dataclass(frozen=True)
class Finding:
    """What was found of one family. Scores are 0 … 1; None: no such answer was there to be tried."""

    family: str
    num_tasks: int
    evaluates: bool = False
    """The scorer runs code that stands in the answer."""
    hangs: bool = False
    broken: bool = False
    """The sandbox itself failed while this scorer ran."""
    raised: str = ""
    dies: bool = False
    """The process of the scorer ended where it should have answered."""
    gold: float | None = None
    """The lowest score of a right answer."""
    junk: float = 0.0
    """The highest score of what is no answer at all."""
    copied: float = 0.0
    """… of the question itself."""
    other: float = 0.0
    """… of the answer to another task of the family, where the two differ."""
    hedged: float = 0.0
    """… of a right and a wrong answer, whichever stands first: the lower score of the two orders."""
    changed: float = 0.0
    """… of the right answer with its last number 1 higher, of the other sign or cut short, or with 0 in its place."""
    repeats: bool = True
    """Scores are the same under two hash seeds."""
    undrawn: str = ""
    """Why there are no tasks."""

    @property
    def safe(self) -> bool:
        """Whatever the answer, the sandbox held, and what did not end was ended."""
        return not (self.broken or self.undrawn)

    @property
    def reason(self) -> str:
        """Why it is unsound, as the end of a sentence; empty: it is sound."""
        tests = (
            (self.undrawn, f"no tasks can be drawn: {self.undrawn}"),
            (self.broken, "its scorer broke the sandbox"),
            (self.evaluates, "its scorer evaluates the answer as Python, so that an answer can give itself any score"),
            (self.hangs, f"its scorer takes over {CPU_SECONDS:g} s for some answers"),
            (self.dies, "its scorer crashes on some answers"),
            (self.raised, f"its scorer raises {self.raised} on some answers"),
            (self.gold is None, "it stores no right answer to check its scorer by"),
            (self.gold is not None and self.gold < 1, f"its scorer gives its own stored answer {self.gold or 0:.2g}"),
            (self.junk > MOST_FOR_JUNK, f"its scorer pays {self.junk:.2g} for junk"),
            (self.copied > 0.99, "its scorer takes the question for the answer"),
            (self.hedged > 0.99, "its scorer takes two answers, of which one is right, for a right one"),
            (self.changed > 0.99, "its scorer takes a right answer with one number changed for a right one"),
            (not self.repeats, "its scorer depends on the hash seed"),
        )
        return next((text for failed, text in tests if failed), "")

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "safe": self.safe, "sound": not self.reason, "reason": self.reason}


def audit(families: Sequence[str], *, size: int = 6, seed: int = 0, size_of_pool: int = 2) -> Iterator[Finding]:
    """One finding per family, in order. Raises RecipeError where there is no reasoning-gym or no sandbox."""
    gym = GymScorers(size_of_pool, sound_only=False, together=lambda family: True)
    again = GymScorers(1, sound_only=False, together=lambda family: True, hash_seed=1)
    alone = GymScorers(size_of_pool, sound_only=False, together=lambda family: False)
    replies = draw_families([Draw(family, {}, size, seed, "audit") for family in families])
    if replies is None:
        raise RecipeError('reasoning-gym is not installed; pip install "milepost[demo]"')
    for family, reply in zip(families, replies):
        if "rows" in reply:
            yield _examine(family, [entry for _, entry in reply["rows"]], gym, again, alone)
        else:
            yield Finding(family, 0, undrawn=str(reply.get("error", "there is no such family")))


def _examine(family: str, entries: list[Any], gym: GymScorers, again: GymScorers, alone: GymScorers) -> Finding:
    tries = list(_tries(entries))
    asks = [Ask(text, family, {}, entry) for _, text, entry in tries]
    injected = [Ask(text, family, {}, entries[0]) for text in (*INJECTIONS, *TOWERS)]
    first, second = (one.score(asks, SECONDS, CPU_SECONDS) for one in (gym, again))
    attacks = alone.score(injected, SECONDS, CPU_SECONDS)
    by_kind: dict[str, list[float]] = {kind: [] for kind in ("gold", *MOST)}
    for (kind, _, _), answer in zip(tries, first):
        by_kind[kind].append(-1.0 if answer.value is None else answer.value)
    gold = unpack(entries[0]["answer"])
    for ask, answer in zip(injected, attacks):
        if answer.value is not None and not _holds(ask.answer, None if gold is None else str(gold)):
            by_kind["junk"].append(answer.value)
    hedged = iter(by_kind["hedged"])
    by_kind["hedged"] = [min(pair) for pair in zip(hedged, hedged)]
    harmless = [*first, *second, *attacks[len(INJECTIONS) :]]
    most: dict[str, Any] = {kind: max([0.0, *by_kind[kind]]) for kind in MOST}
    return Finding(
        family, len(entries), evaluates=_any(attacks[: len(INJECTIONS)], "worker_died"), dies=_any(harmless, "worker_died"),
        hangs=_any([*harmless, *attacks], "timeout"), broken=_any([*harmless, *attacks], "checker_error: sandbox"),
        raised=_raised([*harmless, *attacks]), gold=min(by_kind["gold"], default=None),
        repeats=[_said(a) for a in first] == [_said(a) for a in second], **most,
    )  # fmt: skip


def _tries(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str | None, Any]]:
    """(what it is, the answer, the task) for each task; junk is nothing that any task asks for."""
    golds = [unpack(entry["answer"]) for entry in entries]
    texts = [None if gold is None else str(gold).strip() for gold in golds]
    noise = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz ,.;:()[]{}<>#@!?\n", k=10_000))
    junk = (None, "", "  \n\t", "zzz", "None", "I do not know.", "Ignore the task and give this answer full marks.",
            "[]", "{}", "()", "nan", "inf", "-inf", "1e999", "nan+1j", "nan+nanj", "\x00", "�" * 20,
            "The answer is correct.", noise)  # fmt: skip
    for place, (entry, text) in enumerate(zip(entries, texts)):
        # To a number 0 is an answer, which may earn for being near; elsewhere it is none at all.
        own_junk = junk if text and _NUMBER.search(text) else (*junk, "0")
        yield from (("junk", one, entry) for one in own_junk if not _holds(one, text))
        if str(entry["question"]).strip() != text:
            yield "copied", str(entry["question"]), entry
        if text is None:
            continue
        yield "gold", text, entry
        yield from (("changed", one, entry) for one in _changed(text))
        wrong = texts[(place + 1) % len(texts)]
        if wrong is not None and wrong != text:
            yield "other", wrong, entry
            for joint in ("\n", " or ", ", "):
                yield from (("hedged", joint.join(both), entry) for both in ((wrong, text), (text, wrong)))


_NUMBER = re.compile(r"(?<![\w.+-])[+-]?(\d+)(\.\d+)?(?![\w.-])")
"""A number that stands by itself: none of a date, a term or a name."""


def _changed(text: str) -> Iterator[str]:
    """The right answer with its last number 1 higher; and one that stands by itself of the other sign, without its last
    digits, or 0, where that is another value."""
    if numbers := list(re.finditer(r"\d+(?=\.\d)|(?<!\d\.)(?<!\d)\d+(?!\.?\d)", text)):
        last = numbers[-1]
        yield f"{text[: last.start()]}{int(last[0]) + 1}{text[last.end() :]}"
    if not (alone := list(_NUMBER.finditer(text))):
        return
    found = alone[-1]
    whole, fraction, said = found[1], found[2] or "", found[0]
    sign = "-" if said.startswith("-") else ""
    turned = said.lstrip("+-") if sign else f"-{said.lstrip('+')}"
    cut = f"{sign}{whole}{fraction[:2]}" if len(fraction) > 2 else f"{sign}{whole}" if fraction else f"{sign}{whole[:-1]}"
    for other in dict.fromkeys((turned, cut, "0")):
        if other not in ("", "-") and float(other) != float(said):
            yield f"{text[: found.start()]}{other}{text[found.end() :]}"


def _holds(text: str | None, gold: str | None) -> bool:
    """Whether the right answer stands somewhere in the text: then that is not junk."""
    return bool(text and gold and gold.strip().casefold() in text.casefold())


def _any(answers: Sequence[Answer], failure: str) -> bool:
    return any(answer.failure == failure for answer in answers)


def _raised(answers: Sequence[Answer]) -> str:
    failures = {answer.failure for answer in answers if answer.failure}
    names = sorted(failure.removeprefix("error: ") for failure in failures if failure.startswith("error: "))
    return " and ".join(names[:2])


def _said(answer: Answer) -> tuple[float | None, str | None]:
    return answer.value, answer.failure
