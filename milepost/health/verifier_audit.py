"""Attacks a recipe's own reward before any model is loaded: right answers must be paid, and nothing else. Torch-free.

    report = audit_recipe(recipe, num_tasks=200)           # section "verifier" of `milepost check reward`
    report.ok, report.text()
    check_before(recipe, grader, tasks, env_spec)          # the short form that `milepost run` begins with

The whole reward is asked, extraction, gates and combination included, in the killable processes in which it judges
training. What an answer is worth is known from how it was made (`attacks.py`): from the gold, from the gold spoilt, or from
no gold at all. What cannot be known so, such as how many answers a person's own function calls right, is only told.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from milepost.env import EnvSpec
from milepost.health.attacks import (
    GOLD,
    STYLED,
    SWAPPED,
    Attack,
    Known,
    Phrasing,
    attacks,
    core_of,
    forms_of,
    in_every_form,
    phrasings,
    rendered,
)
from milepost.health.audit_report import AuditReport, Finding, Tried, findings_of, rows_of
from milepost.health.order import check_functions, prove
from milepost.recipe import Recipe
from milepost.reward import Grader
from milepost.reward_checks import Scorer, row_scorer
from milepost.reward_spec import EnvGrader
from milepost.tasks import TaskSet, load_tasks, rank
from milepost.types import RecipeError, Reward, Task
from milepost.verifiers import labelled
from milepost.verifiers.kinds import BY_ROW, KINDS, SERVED, module_of
from milepost.workers import Call, WorkerPool

SECONDS = 600.0
"""Most that a whole audit takes."""
SHORT_TASKS, SHORT_SECONDS = 4, 2.0
NUM_LED = 3
"""Tasks on which ways to write a right answer are tried."""
NUM_OTHERS = 2
NUM_FORMS = 8
"""Tasks of each source and verifier that are answered in every form: what a form is worth does not change with the task."""
GIVEN_UP = 2
"""Attacks of one name that may end or stop the verifier before that name is left out."""
LEAST_SECONDS = 2.0
"""A batch of attacks is given so much, or four times what it should take; never more than reward.timeout_seconds."""
LEAST_TRIED = 12
SLOW = 0.1
ENDED = ("timeout", "worker_died")
Judged = tuple[Task, Scorer]


# --- a whole audit ----------------------------------------------------------------------------------------------------


def audit_recipe(recipe: Recipe, *, num_tasks: int = 200, with_labelled: bool = True) -> AuditReport:
    """Of a recipe of single answers, on up to `num_tasks` of its tasks, of all splits. Raises RecipeError, DataError."""
    found = load_tasks(recipe.tasks, recipe.seed)
    tasks = sorted([*found.train, *found.validation, *found.test], key=lambda task: rank(recipe.seed, task.key))[:num_tasks]
    with Grader(recipe.reward, tasks=tasks) as grader:
        report = audit(grader, recipe, tasks, seconds=SECONDS)
    if not with_labelled:
        return report
    measured = {kind: labelled.measure(kind) for kind in report.kinds if kind in labelled.KINDS}
    facts = {kind: rates.facts() for kind, rates in measured.items()}
    return replace(report, labelled=facts, words=tuple(f"{kind}: {rates.words()}" for kind, rates in measured.items()))


def audit(grader: Grader, recipe: Recipe, tasks: Sequence[Task], *, seconds: float) -> AuditReport:
    """Attacks the reward as `grader` has it, for about `seconds` at most; what is left undone is told."""
    main = recipe.reward.resolved_success
    judge = next(Scorer(main, f.weight, f.name, f.params) for f in recipe.reward.functions if f.resolved_label == main)
    judged = [(task, row_scorer(judge, task)) for task in tasks]
    audit_ = _Audit(grader, recipe, seconds)
    with _on_trial(grader):
        audit_.run(judged, _rendered(judged, grader.section.timeout_seconds))
    audit_.notes += _unjudged(judged[: max(1, audit_.num_tasks)], audit_.tried, grader.section.timeout_seconds)
    if all(one.name in STYLED and task.answer is None for task, one in judged):
        text = f"success depends on no gold: {_short(judge)} judges how an answer is written, and the tasks have none"
        audit_.notes.append(Finding("note", SWAPPED, text))
    kinds = tuple(dict.fromkeys(_short(one) for _, one in judged))
    found = findings_of(audit_.tried, several=recipe.reward.several_answers)
    return AuditReport(kinds, audit_.num_tasks, tuple(rows_of(audit_.tried)), (*found, *audit_.notes))


def _unjudged(judged: Sequence[Judged], tried: Sequence[Tried], seconds: float) -> Iterator[Finding]:
    """Golds by which no answer can be judged: that they pay for none is no proof. Of code the tests are run."""
    refused = {one.task for one in tried if one.reward.cause == "bad_gold" and one.attack.name != SWAPPED}
    found: defaultdict[str, list[Judged]] = defaultdict(list)
    causes: dict[str, str] = {}
    for task, judge in judged:
        name = _short(judge)
        problem = module_of("code").check_tests(task.answer, **judge.params) if judge.name == "code" else None
        if problem or task.key in refused:
            found[name].append((task, judge))
            if name not in causes:
                causes[name] = " ".join((problem or _why(task, judge, seconds)).split())
    for name, some in found.items():
        num = sum(_short(judge) == name for _, judge in judged)
        level: Literal["fault", "warning"] = "fault" if len(some) == num else "warning"
        said = f"{name}: by {len(some)} of {num} golds no answer can be judged"
        yield Finding(level, "bad gold", said, f"task {some[0][0].key}: {causes[name]}")


def _why(task: Task, judge: Scorer, seconds: float) -> str:
    asked = {"kind": judge.name, "gold": task.answer, "params": dict(judge.params)}
    with WorkerPool(1) as pool:
        [answer] = pool.map([Call("milepost.verifiers.kinds:examine_gold", asked, seconds)])
    return str(answer.value or answer.failure or "bad_gold")


def _short(judge: Scorer) -> str:
    return judge.name.rpartition("/")[2]


@contextmanager
def _on_trial(grader: Grader) -> Iterator[None]:
    """Attacks have time limits of their own; and what a reward raises for one is counted here, and no news for the log."""
    section, logger = grader.section, logging.getLogger("milepost.reward")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        grader.section, logger.disabled = section, disabled


def _rendered(judged: Sequence[Judged], seconds: float) -> list[Known]:
    """What each task's verifier itself calls right and wrong. In a worker, but for code, of which nothing is run."""
    asked = [{"kind": judge.name, "gold": task.answer, "params": dict(judge.params)} for task, judge in judged]
    calls = {i: Call("milepost.health.attacks:rendered", one, seconds) for i, one in enumerate(asked)
             if one["kind"] in KINDS and one["kind"] not in ("code", *SERVED)}  # fmt: skip
    with WorkerPool(1) as pool:
        answers = dict(zip(calls, pool.map(list(calls.values())))) if calls else {}
    told = [answers[i].value if i in answers else rendered(**one) if one["kind"] == "code" else None
            for i, one in enumerate(asked)]  # fmt: skip
    return [one or {"right": [], "wrong": []} for one in told]


class _Audit:
    """What was tried so far, how long an answer takes, and what is left out for it."""

    def __init__(self, grader: Grader, recipe: Recipe, seconds: float) -> None:
        self.grader, self.recipe, self.seconds = grader, recipe, seconds
        self.until = 0.0
        self.tried: list[Tried] = []
        self.notes: list[Finding] = []
        self.num_tasks = 0
        self._per_answer = 0.0
        """Seconds, in the latest batch; 0: none was judged yet."""
        self._limit = grader.section.timeout_seconds
        self._ended: Counter[str] = Counter()
        self._ways: dict[tuple[str, str], Phrasing | None] = {}

    @property
    def room(self) -> int:
        """Answers that there is time for."""
        return int((self.until - time.monotonic()) / max(self._per_answer, 1e-6))

    def run(self, judged: Sequence[Judged], known: Sequence[Known]) -> None:
        """The first task gets `LEAST_TRIED` attacks however long they take; its clock starts when it is known how long."""
        cores = [core_of(task, judge, texts) for (task, judge), texts in zip(judged, known)]
        for place, (task, judge) in enumerate(judged):
            if not self._per_answer and (cause := self._time(task, [cores[place] or "", ""])):
                text = f"{_short(judge)} judges nothing: {cause} for {GOLD} and for an empty answer to task {task.key}"
                self.notes.append(Finding("fault", GOLD, text))
                return
            self.until = self.until or time.monotonic() + self.seconds
            way = self._way(judge, task.source, judged, cores) if self.room > 0 else None
            found = attacks(task, judge, way, _others(place, judged, cores), known[place])
            found = [attack for attack in found if self._ended[attack.name] < GIVEN_UP]
            room = max(self.room, 0 if place else LEAST_TRIED)
            if room < min(2, len(found)):
                break
            self._try(task, judge, found[:room])
            self._swap(place, judged)
            self.num_tasks += 1
        self._widen(judged, known, cores)
        if self.num_tasks < len(judged):
            self.notes.append(Finding("note", "not tried", f"{self.num_tasks} of {len(judged)} tasks were tried within "
                                      f"{self.seconds:g} s: an answer takes {self._per_answer:.2g} s"))  # fmt: skip

    def _time(self, task: Task, texts: Sequence[str]) -> str | None:
        """How long an answer takes; the first ones may wait for processes that start. Returns what ended all of them."""
        causes = [reward.cause for reward in self._score(task, texts)]
        if all(cause in ENDED for cause in causes):
            return causes[0]
        if self._per_answer > SLOW:
            self._score(task, texts)
        return None

    def _try(self, task: Task, judge: Scorer, found: Sequence[Attack]) -> None:
        for attack, reward in zip(found, self._score(task, [attack.text for attack in found])):
            self.tried.append(Tried(task.key, attack, reward, task.source, judge.name))
            self._ended[attack.name] += reward.cause in ENDED

    def _swap(self, place: int, judged: Sequence[Judged]) -> None:
        """The right answer again, by the gold of another task. Not of what keeps its golds elsewhere, or costs a call."""
        task, judge = judged[place]
        right = next((one for one in reversed(self.tried)
                      if one.task == task.key and one.attack.name == GOLD and one.reward.success), None)  # fmt: skip
        other = next((one.answer for one, by in (*judged[place + 1 :], *judged[:place])
                      if (by.name, one.source) == (judge.name, task.source) and one.answer not in (None, task.answer)),
                     None)  # fmt: skip
        if right and other is not None and judge.name not in ("reasoning_gym", *SERVED) and self.room > 0:
            columns = {key: other if value == task.answer else value for key, value in task.columns.items()}
            attack = Attack(SWAPPED, right.attack.text, "mostly_fail")
            self._try(replace(task, answer=other, columns=columns), judge, [attack])

    def _widen(self, judged: Sequence[Judged], known: Sequence[Known], cores: Sequence[str | None]) -> None:
        """Some tasks in every form, once the others are done."""
        forms = forms_of(self.recipe.reward, self.recipe.sft.demonstrations)
        done: Counter[tuple[str, str]] = Counter()
        for place, (task, judge) in enumerate(judged[: self.num_tasks]):
            key = (judge.name, task.source)
            if done[key] == NUM_FORMS or self.room < 1:
                continue
            found = in_every_form(task, judge, self._ways.get(key), forms, _others(place, judged, cores), known[place])
            found = [attack for attack in found if self._ended[attack.name] < GIVEN_UP]
            self._try(task, judge, found[: self.room])
            done[key] += 1

    def _score(self, task: Task, texts: Sequence[str]) -> list[Reward]:
        if not texts:
            return []
        if self._per_answer:
            seconds = min(self._limit, max(LEAST_SECONDS, 4 * self._per_answer * len(texts)))
            self.grader.section = self.grader.section.model_copy(update={"timeout_seconds": seconds})
        began = time.monotonic()
        rewards = self.grader.score_texts(task, texts)
        self._per_answer = (time.monotonic() - began) / len(texts)
        return rewards

    def _way(
        self, judge: Scorer, source: str, judged: Sequence[Judged], cores: Sequence[str | None]
    ) -> Phrasing | None:  # fmt: skip
        """The first way to write a right answer that is a success on a task of this source; None if none is."""
        key = (judge.name, source)
        if key not in self._ways:
            ways = phrasings(self.recipe.reward, self.recipe.sft.demonstrations, judge)
            mine = [(task, core) for (task, one), core in zip(judged, cores)
                    if core is not None and (one.name, task.source) == key]  # fmt: skip
            self._ways[key] = ways[0] if len(ways) == 1 else self._found(judge, ways, mine[:NUM_LED])
        return self._ways[key]

    def _found(self, judge: Scorer, ways: Sequence[Phrasing], mine: Sequence[tuple[Task, str]]) -> Phrasing | None:
        causes: Counter[str | None] = Counter()
        for task, core in mine:
            tried = ways[: max(1, self.room // 2)]
            rewards = self._score(task, [way.fill(core) for way in tried])
            if right := next((way for way, reward in zip(tried, rewards) if reward.success), None):
                return right
            causes.update(reward.cause for reward in rewards)
            if causes["timeout"] or self.room < 2:
                break
        if mine or judge.name not in ("format", "repetition", "regex"):
            self.notes.append(_unknown(judge, mine, len(ways), causes))
        return None


def _others(place: int, judged: Sequence[Judged], cores: Sequence[str | None]) -> list[str]:
    """Golds of other tasks of the same verifier and source, two at most and no two alike."""
    task, judge = judged[place]
    found: dict[str, None] = {}
    for at in (*range(place + 1, len(judged)), *range(place)):
        core, alike = cores[at], judged[at][1].name == judge.name and judged[at][0].source == task.source
        if core is not None and core != cores[place] and alike:
            found[core] = None
        if len(found) == NUM_OTHERS:
            break
    return list(found)


def _unknown(judge: Scorer, mine: Sequence[tuple[Task, str]], num_ways: int, causes: Counter[str | None]) -> Finding:
    if not mine:
        text = (f"{_short(judge)}: no right answer is known, so only what is no answer at all was tried; give the tasks an "
                "answer, or set reward.canary_good to a completion that must succeed")  # fmt: skip
        return Finding("note", GOLD, text)
    cause = causes.most_common(1)[0][0] if causes else None
    why = f" ({cause})" if cause else ""
    text = (f"{_short(judge)}: the gold {mine[0][1][:60]!r} is no success{why} in any of {num_ways} ways to write it; set "
            "reward.canary_good to a completion that must succeed, with {answer} for the gold")  # fmt: skip
    return Finding("fault", GOLD, text)


# --- before a run -----------------------------------------------------------------------------------------------------


def check_before(
    recipe: Recipe, grader: Grader | EnvGrader, tasks: TaskSet, env_spec: EnvSpec | None
) -> list[tuple[str, str]]:  # fmt: skip
    """What is to be said of the reward before a run, as (level, sentence). Raises RecipeError where reward.audit refuses.

    Of an environment the proof alone: `milepost check reward` also plays its scripts.
    """
    if recipe.reward.audit == "off" or recipe.grpo.random_reward:
        return []
    if isinstance(grader, EnvGrader):
        assert env_spec is not None
        order, report = prove(grader.spec, env_spec, recipe), AuditReport((), 0)
    else:
        order = check_functions(recipe)
        report = audit(grader, recipe, _some(recipe, tasks), seconds=SHORT_SECONDS)
    problems = [f"the reward lets a failure outscore a success: {example.text}" for example in order.counter_examples]
    problems += [f"the reward accepts a bad answer: {finding.sentence()}" for finding in report.refused]
    if problems and recipe.reward.audit == "refuse":
        more = f" ({len(problems) - 1} more are told by `milepost check reward`)" if len(problems) > 1 else ""
        raise RecipeError(f'{problems[0]}{more}; mend [reward], or train with it all the same by reward.audit = "warn"')
    told = [("warning", text) for text in problems]
    told += [("warning", one.sentence()) for one in report.findings if one.level in ("fault", "warning")]
    num, of = report.rate(right=False)
    if of:
        told.append(("info", f"audit of the reward: {num} of {of} bad answers to {report.num_tasks} tasks accepted"))
    return told


def _some(recipe: Recipe, tasks: TaskSet) -> list[Task]:
    """A few training tasks, of every source in turn; none of a family that the recipe accepts although it is unsound."""
    accepted = {family for f in recipe.reward.functions if f.name in ("reasoning_gym", BY_ROW)
                for family in f.params.get("reasoning_gym", f.params).get("accept_unsound", ())}  # fmt: skip
    sources: defaultdict[str, list[Task]] = defaultdict(list)
    for task in tasks.train:
        if task.columns.get("family") not in accepted and len(sources[task.source]) < SHORT_TASKS:
            sources[task.source].append(task)
    longest = max(map(len, sources.values()), default=0)
    turns = [some[at] for at in range(longest) for some in sources.values() if at < len(some)]
    return turns[: max(SHORT_TASKS, len(sources))]
