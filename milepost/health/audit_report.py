"""What attacks on a reward found: rates, findings with examples, one text and one JSON. Torch-free."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from milepost.health.attacks import (
    ANOTHER,
    CHANGED,
    ELSEWHERE,
    GOLD,
    JUNK,
    PLAINLY_WRONG,
    STYLED,
    SWAPPED,
    WRONG_ELSEWHERE,
    Attack,
    Must,
)
from milepost.health.near_misses import READ_THROUGH
from milepost.terminal import table, visible
from milepost.types import Reward
from milepost.verifiers.labelled import wilson

MARGIN = 0.1
"""Junk may earn as much more than a plainly wrong answer, as a share of what lies between that and a right one."""
SLACK = 1e-9
NEAR_MISS, FORM_ALONE = "near miss", "form alone"
UNTOLD, LEAST_UNTOLD = "no reward", 5
FEW = 2
"""Answers of which more than half can be right by chance."""
NEARLY = 0.8
"""Of what lies between a plainly wrong answer, in whatever form it earns least, and the gold: a wrong one that earns so
much leaves little to be learnt."""
_LONGEST = 100


@dataclass(frozen=True)
class Tried:
    """One answer of known worth, and what the reward made of it."""

    task: str
    attack: Attack
    reward: Reward
    source: str = ""
    """Of the task."""
    judge: str = ""
    """The name of the function that success is measured by."""

    def text(self) -> str:
        text = visible(" ".join(self.attack.text.split())) or self.attack.text
        return f"{text[:_LONGEST]!r}{' …' * (len(text) > _LONGEST)}"

    def shown(self) -> str:
        return f"task {self.task}: {self.text()} {self.worth()}"

    def worth(self) -> str:
        if self.reward.total is None:
            return f"has no reward ({self.reward.cause})"
        return f"{'is a success' if self.reward.success else 'is no success'} and earns {self.reward.total:.4g}"


@dataclass(frozen=True)
class Finding:
    """refused: it would teach something wrong. fault: what is right is not paid. Warnings and notes are only told."""

    level: Literal["refused", "fault", "warning", "note"]
    name: str
    text: str
    example: str = ""

    def sentence(self) -> str:
        return f"{self.text}{': ' * bool(self.example)}{self.example}"


@dataclass(frozen=True)
class Row:
    """What became of one kind of answer."""

    name: str
    must: Must
    num: int
    num_wrong: int
    """Right ones that are no success, or others that are."""
    num_unscorable: int

    @property
    def counts(self) -> bool:
        """Whether it takes part in the rates."""
        by_chance = self.name in (ANOTHER, CHANGED, SWAPPED)
        return self.must in ("succeed", "fail") or (self.must == "mostly_fail" and not by_chance)


@dataclass(frozen=True)
class AuditReport:
    """Of answers to `num_tasks` tasks. Rates have 99 % bounds; answers without a reward are in no rate."""

    kinds: tuple[str, ...]
    num_tasks: int
    rows: tuple[Row, ...] = ()
    findings: tuple[Finding, ...] = ()
    labelled: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """kind → how often its verifier is wrong on answers labelled by hand."""
    words: tuple[str, ...] = ()
    """The same, for people."""

    @property
    def refused(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "refused")

    @property
    def ok(self) -> bool:
        return not any(finding.level in ("refused", "fault") for finding in self.findings)

    def rate(self, *, right: bool) -> tuple[int, int]:
        """(wrong verdicts, verdicts) on right answers, or on answers that must not succeed."""
        rows = [row for row in self.rows if row.counts and (row.must == "succeed") is right]
        return sum(row.num_wrong for row in rows), sum(row.num - row.num_unscorable for row in rows)

    def text(self) -> str:
        verdict = "REFUSED, it pays for bad answers" if self.refused else "it holds" if self.ok else "right answers fail"
        names = {finding.name: finding.level for finding in self.findings}
        if not self.refused and UNTOLD in names:
            verdict = "it tells no bad answer that it is one"
        if self.ok:
            verdict += self._unless(names)
        num = sum(row.num for row in self.rows)
        lines = [f"verifier: {verdict} ({', '.join(self.kinds)}; {num} answers to {self.num_tasks} tasks)"]
        for name, right in (("false accepts", False), ("false rejects", True)):
            num, of = self.rate(right=right)
            low, high = wilson(num, of)
            elsewhere = bool(self.refused) and not (num or right)
            paid = "; what is refused is paid without success, or in brackets" * elsewhere
            lines.append(f"  {name}  {num} of {of}" + (f" (99 %: {low:.1%} to {high:.1%})" if of else "") + paid)
        lines += [f"  {finding.level:<8}  {finding.sentence()}" for finding in self.findings]
        lines += ["", *self._table()] if self.rows else []
        lines += ["", "on answers labelled by hand:", *(f"  {words}" for words in self.words)] if self.words else []
        return "\n".join(lines)

    def _unless(self, names: Mapping[str, str]) -> str:
        """What must be true beside for the reward to hold."""
        if names.get(CHANGED) == "warning":
            example = next(one.example for one in self.findings if one.name == CHANGED)
            return f" only if several answers are right: {example.rpartition(' (task ')[0]}"
        if names.get(SWAPPED) == "warning":
            return ", but success does not depend on the gold"
        if names.get(FORM_ALONE) == "warning":
            return ", but a wrong answer in a form that is paid earns nearly as much as the gold"
        return ", but a near miss earns nearly as much as the gold" if names.get(NEAR_MISS) == "warning" else ""

    def _table(self) -> list[str]:
        heads = ("answer", "must", "tried", "judged wrongly", "no reward")
        shown = [(row.name, row.must.replace("_", " "), str(row.num),
                  str(row.num_wrong) if row.counts else "" if row.must == "either" else f"({row.num_wrong})",
                  str(row.num_unscorable)) for row in self.rows]  # fmt: skip
        return [f"  {line}" for line in table([heads, *shown], left=2)]

    def facts(self) -> dict[str, Any]:
        rates = {}
        for name, right in (("false_accept", False), ("false_reject", True)):
            num, of = self.rate(right=right)
            rates[name] = {"num": num, "of": of, "bounds_99": wilson(num, of)}
        return {
            "section": "verifier", "ok": self.ok, "kinds": self.kinds, "num_tasks": self.num_tasks, "rates": rates,
            "answers": [asdict(row) for row in self.rows], "findings": [asdict(one) for one in self.findings],
            "labelled": dict(self.labelled),
        }  # fmt: skip

    def json(self) -> str:
        return json.dumps(self.facts(), ensure_ascii=False)


# --- from verdicts to findings ----------------------------------------------------------------------------------------


def rows_of(tried: Sequence[Tried]) -> Iterator[Row]:
    groups: defaultdict[tuple[str, Must], list[Tried]] = defaultdict(list)
    for one in tried:
        groups[one.attack.name, one.attack.must].append(one)
    for (name, must), ones in sorted(groups.items(), key=lambda item: item[0][1] != "succeed"):
        scored = [one for one in ones if one.reward.total is not None]
        num_wrong = sum(bool(one.reward.success) != (must == "succeed") for one in scored)
        yield Row(name, must, len(ones), num_wrong, len(ones) - len(scored))


def findings_of(tried: Sequence[Tried], *, several: bool = False) -> Iterator[Finding]:
    """several: the recipe says that several answers are right."""
    by_name: defaultdict[tuple[str, str], list[Tried]] = defaultdict(list)
    for one in tried:
        by_name[one.attack.name, one.attack.must].append(one)
    golds = {one.task: one for one in tried if one.attack.name == GOLD and one.reward.success}
    for (name, must), ones in by_name.items():
        if (name, must) == (CHANGED, "open"):
            yield from _changed(ones, golds, several=several)
        elif name != SWAPPED:
            yield from _rejected(name, ones) if must == "succeed" else _accepted(name, must, ones)
    yield from _blind(tried)
    yield from _nearly(tried, golds, several=several)
    yield from _form_alone(tried, golds)
    yield from _order(tried, {task: one.reward.total for task, one in golds.items()})
    yield from _absent(tried)


def _rejected(name: str, ones: Sequence[Tried]) -> Iterator[Finding]:
    if bad := [one for one in ones if not one.reward.success]:
        yield Finding("fault", name, f"{name} is no success {len(bad)} times of {len(ones)}", bad[0].shown())


def _accepted(name: str, must: str, ones: Sequence[Tried]) -> Iterator[Finding]:
    bad = [one for one in ones if one.reward.success]
    if not bad or must in ("pay_once", "either"):
        return
    said = f"{name}: accepted {len(bad)} times of {len(ones)}"
    if must == "open":
        yield Finding("note", name, f"{said}, which is right only if several answers are", bad[0].shown())
    elif must == "mostly_fail" and not _mostly(ones):
        yield Finding("note", name, f"{said}, as can happen by chance", bad[0].shown())
    else:
        yield Finding("refused", name, said, bad[0].shown())


def _changed(ones: Sequence[Tried], golds: Mapping[str, Tried], *, several: bool) -> Iterator[Finding]:
    """Changed golds that are a success where nobody knows how many answers are right.

    A share of all of them would hide a rule: without its sign a number is one change in fifteen. So more than half of one
    kind is what counts: a rule that pays more often than not. Less of every kind is what some golds allow by chance.
    """
    bad = [one for one in ones if one.reward.success]
    if not bad:
        return
    ruled = [] if several else _ruled([one for one in ones if one.attack.form not in READ_THROUGH])
    text = f"{CHANGED}: accepted {len(bad)} times of {len(ones)}, which is right only if several answers are"
    if ruled:
        text += f" ({_kinds(ruled, ones, bad)}); if so, set reward.several_answers = true"
    one = next((one for one in bad if one.attack.form in ruled), bad[0])
    yield Finding("warning" if ruled else "note", CHANGED, text, _instead(one, golds))


def _kinds(ruled: Sequence[str], ones: Sequence[Tried], bad: Sequence[Tried]) -> str:
    """How many of the first three kinds of change."""
    count = {kind: [sum(one.attack.form == kind for one in some) for some in (bad, ones)] for kind in ruled[:3]}
    return ", ".join(f"{kind}: {num} of {of}" for kind, (num, of) in count.items()) + ", …" * (len(ruled) > 3)


def _instead(one: Tried, golds: Mapping[str, Tried]) -> str:
    gold = golds.get(one.task)
    return f"{one.text()} is paid where the gold is {gold.text()} (task {one.task})" if gold else one.shown()


def _nearly(tried: Sequence[Tried], golds: Mapping[str, Tried], *, several: bool) -> Iterator[Finding]:
    """A changed gold that is no success and earns most of what one earns. What reasoning-gym gives in part is its own."""
    plain = {one.task: one.reward.total for one in tried if one.attack.name == PLAINLY_WRONG}
    near: dict[int, Tried] = {}
    ones = [one for one in tried if one.attack.name == CHANGED and one.task in golds]
    for place, one in enumerate(ones):
        gold, wrong, total = golds[one.task].reward.total, plain.get(one.task), one.reward.total
        if one.reward.success or gold is None or wrong is None or total is None or one.attack.form in READ_THROUGH:
            continue
        if gold > total >= wrong + NEARLY * (gold - wrong):
            near[place] = one
    if near:
        ruled = _ruled(ones, [place in near for place in range(len(ones))])
        told = several or not ruled or all(one.judge == "reasoning_gym" for one in near.values())
        one = next((one for one in near.values() if one.attack.form in ruled), next(iter(near.values())))
        gold, wrong = golds[one.task].reward.total, plain[one.task]
        text = (f"{NEAR_MISS}: {len(near)} of {len(ones)} changed golds are no success and earn most of what one earns: "
                f"{one.reward.total:.4g} where the gold earns {gold:.4g} and a wrong answer {wrong:.4g}")  # fmt: skip
        yield Finding("note" if told else "warning", NEAR_MISS, text, one.shown())


def _form_alone(tried: Sequence[Tried], golds: Mapping[str, Tried]) -> Iterator[Finding]:
    """A wrong answer that earns most of what the gold earns (in the same form, where it is a success in it), for its form
    alone: in another it earns little."""
    rights = {(one.task, one.attack.form): one for one in tried if one.attack.name == ELSEWHERE and one.reward.success}
    ones = [one for one in tried if one.attack.name in (PLAINLY_WRONG, WRONG_ELSEWHERE)
            and one.task in golds and one.reward.total is not None and not one.reward.success]  # fmt: skip
    least: dict[str, float] = {}
    for one in ones:
        least[one.task] = min(one.reward.total or 0.0, least.get(one.task, one.reward.total or 0.0))
    paid = [rights.get((one.task, one.attack.form), golds[one.task]).reward.total for one in ones]
    held = [gold is not None and gold > (one.reward.total or 0.0) >= least[one.task] + NEARLY * (gold - least[one.task])
            for one, gold in zip(ones, paid)]  # fmt: skip
    if ruled := _ruled(ones, held):
        place = next(place for place, one in enumerate(ones) if held[place] and one.attack.form in ruled)
        one = ones[place]
        text = (f"{FORM_ALONE}: a wrong answer earns {one.reward.total:.4g} for how it is written, and "
                f"{least[one.task]:.4g} written otherwise; the gold earns {paid[place]:.4g}")  # fmt: skip
        yield Finding("note" if one.judge == "reasoning_gym" else "warning", FORM_ALONE, text, one.shown())


def _blind(tried: Sequence[Tried]) -> Iterator[Finding]:
    """What stays a success whatever the gold. That may be meant: form has no gold, and a function may read the prompt."""
    swapped = [one for one in tried if one.attack.name == SWAPPED]
    bad = [one for one in swapped if one.reward.success]
    if not bad or not _mostly(swapped):
        return
    text = (f"success does not depend on the gold: a right answer stays one {len(bad)} times of {len(swapped)} when the "
            "gold of another task takes the place of its own")  # fmt: skip
    kinds = {one.judge for one in bad}
    if kinds <= set(STYLED):
        names = ", ".join(sorted(kinds))
        text = f"{text}; {names} looks at none, and says how an answer is written, not whether it is right"
        yield Finding("warning", SWAPPED, text)
    elif _mostly([one for one in tried if one.attack.name == ANOTHER]):
        yield Finding("refused", SWAPPED, f"{text}, and so does that of another task", bad[0].shown())
    else:
        text = f"{text}; answers of other tasks fail, so it judges by the prompt or by other columns"
        yield Finding("note", SWAPPED, text)


def _mostly(ones: Sequence[Tried]) -> bool:
    """Whether more than half are successes, of all in one form or of those of one source; of too few nothing is said."""
    return bool(_ruled(ones))


def _ruled(ones: Sequence[Tried], held: Sequence[bool] | None = None) -> list[str]:
    """The forms of which more than half are `held`, None: successes; of all of a form or of those of one source."""
    forms: defaultdict[str, list[bool]] = defaultdict(list)
    sources: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
    for one, is_held in zip(ones, held if held is not None else [bool(one.reward.success) for one in ones]):
        forms[one.attack.form].append(is_held)
        sources[one.attack.form, one.source].append(is_held)
    enough = {form for form, some in forms.items() if len(some) >= FEW and 2 * sum(some) > len(some)}
    enough |= {form for (form, _), some in sources.items() if len(some) > FEW and 2 * sum(some) > len(some)}
    return [form for form in forms if form in enough]


def _order(tried: Sequence[Tried], golds: Mapping[str, float | None]) -> Iterator[Finding]:
    """What is no success must earn less than the gold, in whatever form that is one; junk no more than an answer; saying it
    twice no more than once."""
    least: dict[str, float] = {}
    for one in tried:
        if one.attack.must in ("succeed", "either") and one.reward.success and one.reward.total is not None:
            least[one.task] = min(one.reward.total, least.get(one.task, one.reward.total))
    plain = {one.task: one.reward.total for one in tried if one.attack.name == PLAINLY_WRONG}
    seen: set[str] = set()
    for one in tried:
        gold, total, name = golds.get(one.task), one.reward.total, one.attack.name
        if gold is None or total is None or one.attack.must in ("succeed", "either") or name in seen:
            continue
        wrong = plain.get(one.task)
        if one.attack.must == "pay_once" and total > gold + SLACK:
            text = f"{name} earns {total:.4g}, and the gold said once {gold:.4g}"
        elif not one.reward.success and total >= least[one.task] - SLACK:
            right = "the gold" if total >= gold - SLACK else "the gold in the form that is paid least"
            paid = gold if total >= gold - SLACK else least[one.task]
            text = f"{name}: a failure earns {total:.4g}, and {right} {paid:.4g}"
        elif name in JUNK and wrong is not None and total > wrong + MARGIN * (gold - wrong) + SLACK:
            text = f"{name} earns {total:.4g}, and an answer that is merely wrong {wrong:.4g}: it pays to say nothing"
        else:
            continue
        seen.add(name)
        if not one.reward.success or one.attack.must == "pay_once":  # a success that must not be one is told already
            yield Finding("refused", name, text, one.shown())


def _absent(tried: Sequence[Tried]) -> Iterator[Finding]:
    """Answers without a reward teach nothing, however bad they are."""
    gone: defaultdict[str, list[Tried]] = defaultdict(list)
    for one in tried:
        if one.attack.must not in ("succeed", "either") and one.reward.cause not in (None, "bad_gold"):
            gone[str(one.reward.cause)].append(one)
    bad = [one for one in tried if one.attack.must in ("fail", "mostly_fail")]
    if len(bad) >= LEAST_UNTOLD and all(one.reward.total is None for one in bad):
        yield Finding("fault", UNTOLD, f"none of {len(bad)} bad answers has a reward, so that no answer is ever told to be "
                      "wrong; a function should return 0 for a wrong one", bad[0].shown())  # fmt: skip
    for cause, ones in gone.items():
        names = list(dict.fromkeys(one.attack.name for one in ones))
        if cause == "worker_died" and names == ["code that exits early"]:
            text = f"{names[0]}: ended the process of the verifier {len(ones)} times, so it runs what stands in an answer"
            yield Finding("refused", names[0], text, ones[0].shown())
        else:
            said = "None returned" if cause == "none" else cause
            text = f"{said}: no reward for {len(ones)} bad answers ({', '.join(names)}), which are never told to be wrong"
            yield Finding("warning", cause, text, ones[0].shown())
