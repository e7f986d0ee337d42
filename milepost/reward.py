"""Judges episodes: reward functions, their weights, and typed absence. A missing verdict is never a zero.

    grader = Grader(recipe.reward, tasks=tasks.train)       # RecipeError here, before any model is loaded
    rewards = grader.score(groups)                           # rewards[g][i] belongs to groups[g].episodes[i]
    grader.counts                                            # correct, wrong, unextractable, unscorable; unscorable/<cause>

`docs/rewards.md` is the contract for people who write reward functions. Only facts of the episode (its text and ids)
and its task are read, so stored episodes can be scored again offline. Everything that can hang runs in `workers.py`.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from milepost import scorers
from milepost.length_terms import LengthController, length_bounds, length_term, with_length
from milepost.reward_canary import BAD_ANSWER, CanaryCheck, CanaryReport, canary_problem, episode_of, good_problem
from milepost.reward_checks import (
    GIVEN,
    LOAD_SECONDS,
    Scorer,
    accepts_unsound,
    allows_plain,
    check_section,
    check_signature,
    label_of,
    load_scorer,
    row_scorer,
    short,
    task_problem,
)
from milepost.reward_combine import combination
from milepost.reward_sections import RewardFunctionSection, RewardSection
from milepost.types import Episode, Group, RecipeError, Reward, StopKind, Task
from milepost.verifiers.gym import Ask, GymScorers
from milepost.verifiers.judge import Question
from milepost.verifiers.kinds import BY_ROW, KINDS, SERVED, gold_problem, module_of, right_answer, score_all
from milepost.verifiers.served import Served
from milepost.workers import Answer, Call, WorkerPool, spent_by

log = logging.getLogger("milepost.reward")

_SAID_ALREADY = ("correct", "form", "extractable")
"""Parts of a verifier that repeat its score, or what the reward says elsewhere."""


@dataclass(frozen=True)
class Verdict:
    """What one scorer says about one episode: a finite raw value, or the cause why there is none."""

    value: float | None
    cause: str | None = None
    extractable: bool | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the value is made of; stored beside it, under LABEL/NAME."""


@dataclass(frozen=True)
class Sample:
    """One episode to be judged, beside its task."""

    task: Task
    episode: Episode
    opened: str = ""
    """What the prompt had begun of the answer."""

    @property
    def text(self) -> str:
        return self.episode.completion

    @property
    def said(self) -> str:
        """For verifiers that read reasoning as such."""
        return self.opened + self.text


class Grader:
    """Scores groups of episodes as [reward] says. Thread-safe; `close()` ends its worker processes.

    Raises RecipeError for what cannot work: functions that do not load, labels, parameters and patterns; and, if `tasks`
    are given, columns that they lack. Up to `num_workers` processes per function; 0: as many as cores, 4 to 8.
    """

    def __init__(self, section: RewardSection, *, tasks: Sequence[Task] = (), num_workers: int = 0) -> None:
        self.section = section
        self.opened = ""
        """ "<think>" where the chat template's header opens the thought itself: sampled answers then begin inside it."""
        self.counts: Counter[str] = Counter()
        self.logged: defaultdict[str, list[float]] = defaultdict(list)
        """What user functions reported through TRL's log_metric, and (as text) through log_extra below."""
        self.extra: defaultdict[str, list[str]] = defaultdict(list)
        self._num_workers = num_workers or max(4, min(8, os.cpu_count() or 1))
        self._reported: set[tuple[str, str]] = set()
        check_section(section)
        self._length = length_term(section.length)
        self._controller = LengthController(section.length) if section.length.max_mean else None
        self._mix = combination(section)
        names = {"math" if f.name == BY_ROW else f.name for f in section.functions} & {"math"}
        warm = Call("milepost.verifiers.kinds:warm", {"kinds": sorted(names)}, LOAD_SECONDS)
        setup = warm if names else None
        self._isolated = WorkerPool(self._num_workers, setup=setup)
        self._gym = GymScorers(min(4, os.cpu_count() or 1), sound_only=not accepts_unsound(section),
                               allow_plain=allows_plain(section))  # fmt: skip
        self._pools: list[WorkerPool | GymScorers] = [self._isolated, self._gym]
        self._served = Served()
        self._runs_code = any(function.name in ("code", BY_ROW) for function in section.functions)
        try:
            self._scorers = [self._load(index, function) for index, function in enumerate(section.functions)]
            self._success = self._mix.success
            if tasks:
                self.check_columns(tasks)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for pool in self._pools:
            pool.close()
        self._served.close()

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(s.label for s in self._scorers)

    @property
    def network_blocked(self) -> bool | None:
        """Whether foreign scorers really run without network; None while none has run."""
        return self._gym.network_blocked

    @property
    def isolation(self) -> str | None:
        """The walls around code that is judged, in words; None where none has to be run."""
        sandboxes = module_of("code").shared_sandboxes() if self._runs_code else []
        return str(sandboxes[0].isolation) if sandboxes else None

    @property
    def length_weight(self) -> float | None:
        """As the controller has it now; None without one."""
        return self._controller.weight if self._controller else None

    def spent(self) -> dict[str, float]:
        """What its worker processes did so far: scorer/calls, scorer/cpu_seconds. Empty if there was nothing for them."""
        sandboxes = module_of("code").shared_sandboxes() if self._runs_code else []
        return spent_by([*self._pools, self._served, *sandboxes])

    def _load(self, index: int, function: RewardFunctionSection) -> Scorer:
        label = label_of(function)
        if Scorer(label, 0.0, function.name, {}).builtin:
            if function.name == "code":
                module_of("code").warm(**function.params)  # where nothing isolates, this is the time to say so
            if function.name in SERVED:
                self._served.of(function.name, function.params)
            return Scorer(label, function.weight, function.name, function.params)
        where = f"reward.functions.{index}.name = {function.name!r}"
        scorer = load_scorer(label, function.weight, function.name, function.params, where, self._num_workers)
        assert scorer.pool is not None
        self._pools.append(scorer.pool)
        check_signature(scorer, where)
        return scorer

    def check_columns(self, tasks: Sequence[Task]) -> None:
        """Raises RecipeError if a scorer needs something that a task does not have. Names what is there."""
        for scorer in self._scorers:
            self._require(scorer, tasks)
            if scorer.name == BY_ROW and any(row_scorer(scorer, task).name == "code" for task in tasks):
                module_of("code").warm(**scorer.params.get("code", {}))
            for kind in {row_scorer(scorer, task).name for task in tasks if scorer.name == BY_ROW} & set(SERVED):
                self._served.of(kind, scorer.params.get(kind, {}))

    def _require(self, scorer: Scorer, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if problem := task_problem(scorer, task, self._columns(task)):
                raise RecipeError(problem)

    def _columns(self, task: Task) -> dict[str, Any]:
        """What a reward function can ask for by name. A column of the task's own wins over the gold's second names."""
        gold = {}
        if task.answer is not None:
            gold = {key: task.answer for key in ("answer", "expected_answer")}
        return {k: v for k, v in {**gold, **task.columns}.items() if k not in GIVEN}

    def score(self, groups: Sequence[Group]) -> list[list[Reward]]:
        """One reward per episode, nested as the episodes are. Raises RecipeError if a function breaks the contract."""
        samples = [Sample(group.task, episode, self.opened) for group in groups for episode in group.episodes]
        rewards = iter(self._judge(samples))
        nested = [self._with_length(group, [next(rewards) for _ in group.episodes]) for group in groups]
        for row in nested:
            for reward in row:
                self.counts.update(_tally(reward, self._success))
        return nested

    def _with_length(self, group: Group, rewards: list[Reward]) -> list[Reward]:
        if self._length is None:
            return rewards
        lengths = [episode.num_sampled for episode in group.episodes]
        there = [episode.stop.kind is not StopKind.FAULT for episode in group.episodes]
        return with_length(self._length, rewards, self._success, self._mix.weights[self._success], lengths, there)

    @property
    def part_weights(self) -> dict[str, float] | None:
        """For `credit.assign`: part → weight if reward.combine = "gdpo", else None."""
        if self.section.combine != "gdpo":
            return None
        weights = {label: weight for label, weight in self._mix.weights.items() if weight != 0}
        if self._length:
            low, high, low_failure = length_bounds(self._length, self._mix.weights[self._success], 0, 0)
            weights["length"] = max(high, 0.0) - min(low, low_failure)
        return weights

    def observe(self, groups: Sequence[Group]) -> str | None:
        """After a training step: the length controller's turn. The sentence to log if it changed the reward."""
        if self._controller is None or self._length is None:
            return None
        changed = self._controller.observe(
            [e.num_sampled for g in groups for e in g.episodes if e.stop.kind is not StopKind.FAULT]
        )
        self._length = replace(self._length, weight=self._controller.weight)
        return changed

    def state(self) -> dict[str, Any]:
        """What the future depends on."""
        return {"controller": self._controller.state()} if self._controller else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if self._controller and self._length:
            self._controller.load_state(state["controller"])
            self._length = replace(self._length, weight=self._controller.weight)

    def score_texts(self, task: Task, texts: Sequence[str]) -> list[Reward]:
        """Rewards of finished answers that nobody sampled: canaries, checks of the gold. Not counted in `counts`."""
        return self._judge([Sample(task, episode_of(task, text, i)) for i, text in enumerate(texts)])

    def try_out(self, task: Task) -> None:
        """Judges the gold twice over. Raises RecipeError if a function breaks its contract."""
        self.score_texts(task, [str(task.answer)] * 2)

    def check_golds(self, tasks: Sequence[Task]) -> list[str | None]:
        """What is wrong with each task's gold by the grader's own verdict; None if nothing is, or it cannot be told."""
        found = [next((p for s in self._scorers if (p := self._gold_problem(s, task))), None) for task in tasks]
        texts = {i: self._good_text(task) for i, task in enumerate(tasks) if found[i] is None}
        known = {i: good for i, good in texts.items() if good is not None}
        rewards = self._judge([Sample(tasks[i], episode_of(tasks[i], good, i)) for i, good in known.items()])
        for i, reward in zip(known, rewards):
            if not reward.success:
                found[i] = good_problem(tasks[i], reward, self.section.canary_good)
        return found

    def check_gold(self, task: Task) -> str | None:
        return self.check_golds([task])[0]

    def _gold_problem(self, scorer: Scorer, task: Task) -> str | None:
        """What the verifier itself says; None for others, and where the gold has nothing to do with the verdict."""
        scorer = row_scorer(scorer, task)
        by_gold = scorer.name == "format" and not {"blocks", "boxes", "schema"} & scorer.params.keys()
        if scorer.name not in KINDS or not (KINDS[scorer.name].needs_gold or by_gold):
            return None
        return gold_problem(scorer.name, task.answer, scorer.params, self._isolated, self.section.timeout_seconds)

    def canary(self, tasks: Sequence[Task]) -> CanaryReport:
        """Scores a right and a wrong answer for the first task of each source: they must be a success and a failure."""
        first: dict[str, Task] = {}
        for task in tasks:
            first.setdefault(task.source, task)
        checks = []
        for task in first.values():
            good = self._good_text(task) or self._known_right(task)
            if good is None:
                continue
            right, wrong = self.score_texts(task, [good, self._bad_text()])
            problem = canary_problem(task, right, wrong, self.section.canary_good)
            checks.append(CanaryCheck(task.key, task.source, right, wrong, problem))
        skipped = None if checks else "no right answer is known: set reward.canary_good, for example 'Answer: {answer}'"
        return CanaryReport(tuple(checks), skipped)

    def _good_text(self, task: Task) -> str | None:
        answer = task.answer
        if self.section.canary_good:
            return self.section.canary_good.replace("{answer}", str(answer))
        name = row_scorer(self._success_scorer, task).name
        direct = name in ("exact", "numeric", "reasoning_gym") and not self.section.extract and not self._mix.gates
        return str(answer) if direct and answer is not None else None

    def _known_right(self, task: Task) -> str | None:
        """A text that the verifier of success itself calls right, where no gate asks for more."""
        scorer = row_scorer(self._success_scorer, task)
        if scorer.name not in KINDS or self._mix.gates or self.section.canary_good:
            return None
        return right_answer(scorer.name, task.answer, scorer.params, self._isolated, self.section.timeout_seconds)

    def _bad_text(self) -> str:
        judges_answer = self._success_scorer.name != "regex" and "{answer}" in self.section.canary_good
        return self.section.canary_good.replace("{answer}", BAD_ANSWER) if judges_answer else BAD_ANSWER

    @property
    def _success_scorer(self) -> Scorer:
        return next(s for s in self._scorers if s.label == self._success)

    def _judge(self, samples: Sequence[Sample]) -> list[Reward]:
        absent = [_absent(sample.episode) for sample in samples]
        there = [sample for sample, cause in zip(samples, absent) if cause is None]
        judged = iter(self._judge_present(there) if there else [])
        return [next(judged) if cause is None else Reward.unscorable(cause) for cause in absent]

    def _judge_present(self, samples: Sequence[Sample]) -> list[Reward]:
        answers = self._answers(samples)

        def judge(scorer: Scorer) -> list[Verdict]:
            if scorer.name == BY_ROW:
                return self._by_row(scorer, samples, answers)
            return self._builtin(scorer, samples, answers) if scorer.builtin else self._user(scorer, samples)

        if len(self._scorers) > 1:  # slow ones (judges, foreign scorers) wait in their own processes: wait together
            with ThreadPoolExecutor(len(self._scorers)) as threads:
                verdicts = list(threads.map(judge, self._scorers))
        else:
            verdicts = [judge(self._scorers[0])]
        return [self._combine(column) for column in zip(*verdicts)]

    def _combine(self, verdicts: Sequence[Verdict]) -> Reward:
        by_label = {scorer.label: verdict for scorer, verdict in zip(self._scorers, verdicts)}
        parts = {label: v.value for label, v in by_label.items() if v.value is not None}
        total = None
        lacking = self._mix.lacking(parts)
        cause = None if lacking is None else by_label[lacking].cause
        if lacking is None:
            total, cause = self._mix.total(parts)
        success = self._mix.succeeded(parts)
        for label, verdict in by_label.items():
            parts |= {f"{label}/{name}": value for name, value in verdict.parts.items()}
        return Reward(total, parts, success, self._extractable(by_label), cause)

    def _extractable(self, verdicts: Mapping[str, Verdict]) -> bool | None:
        """Whether the part that success is measured by, and every gate, could be read; of other parts where these say
        nothing."""
        known = [verdicts[label].extractable for label in dict.fromkeys((self._success, *self._mix.gates))]
        known = [found for found in known if found is not None]
        known = known or [v.extractable for v in verdicts.values() if v.extractable is not None]
        return all(known) if known else None

    def _answers(self, samples: Sequence[Sample]) -> list[str | Verdict | None]:
        """The text each built-in judges; None where the pattern finds nothing; a verdict where the search itself failed."""
        if not self.section.extract or not any(s.extracts for s in self._scorers):
            return [sample.text for sample in samples]
        arguments = {"pattern": self.section.extract}
        return self._search("extract", "extract", arguments, samples)

    def _search(self, label: str, function: str, arguments: Mapping[str, Any], samples: Sequence[Sample]) -> list[Any]:
        def call(chosen: Sequence[Sample]) -> Call:
            texts = [sample.text for sample in chosen]
            return Call(f"milepost.scorers:{function}", {**arguments, "texts": texts}, self.section.timeout_seconds)

        answers = self._batch_then_singly(self._isolated, call, lambda value: value, label, samples)
        return [Verdict(None, a.failure) if a.failure else a.value for a in answers]

    def _builtin(
        self, scorer: Scorer, samples: Sequence[Sample], answers: Sequence[str | Verdict | None]
    ) -> list[Verdict]:  # fmt: skip
        if scorer.name == "regex":
            found = self._search(scorer.label, "matches", scorer.params, samples)
            return [v if isinstance(v, Verdict) else Verdict(v) for v in found]
        if scorer.name in KINDS:
            return self._verify(scorer, samples)
        verdicts: list[Verdict | None] = []
        for sample, answer in zip(samples, answers):
            if isinstance(answer, Verdict):
                verdicts.append(answer)
            elif answer is None:
                verdicts.append(Verdict(0.0, extractable=False))
            else:
                verdicts.append(self._direct(scorer, sample.task, answer))
        open_ = [i for i, verdict in enumerate(verdicts) if verdict is None]
        foreign = self._foreign(scorer, [samples[i] for i in open_], [str(answers[i]) for i in open_])
        for i, verdict in zip(open_, foreign):
            verdicts[i] = verdict
        return [v for v in verdicts if v is not None]

    def _by_row(
        self, scorer: Scorer, samples: Sequence[Sample], answers: Sequence[str | Verdict | None]
    ) -> list[Verdict]:  # fmt: skip
        """Each sample by the verifier that its task names; the value stands under that name too."""
        kinds: defaultdict[str, list[int]] = defaultdict(list)
        for index, sample in enumerate(samples):
            kinds[row_scorer(scorer, sample.task).name].append(index)
        verdicts: dict[int, Verdict] = {}
        for kind, chosen in kinds.items():
            one = Scorer(scorer.label, scorer.weight, kind, scorer.params.get(kind, {}))
            known = one.builtin and kind != BY_ROW
            judged = self._builtin(one, [samples[i] for i in chosen], [answers[i] for i in chosen]) if known else []
            for index, verdict in zip(chosen, judged or [Verdict(None, "unknown verifier")] * len(chosen)):
                parts = {} if verdict.value is None else {kind: verdict.value}
                verdicts[index] = replace(verdict, parts={**parts, **verdict.parts})
        return [verdicts[index] for index in range(len(samples))]

    def _verify(self, scorer: Scorer, samples: Sequence[Sample]) -> list[Verdict]:
        """Verifiers by rule find the answer in the text themselves."""
        needed = KINDS[scorer.name].needs_gold
        there = [sample for sample in samples if sample.task.answer is not None or not needed]
        if scorer.name in SERVED:
            asked = [Question(sample.said, sample.task.prompt, sample.task.answer) for sample in there]
            results = iter(self._served.score(scorer.name, scorer.params, asked))
        else:
            items = [(sample.said, sample.task.answer) for sample in there]
            results = iter(score_all(scorer.name, items, scorer.params, self._isolated, self.section.timeout_seconds))
        verdicts = []
        for sample in samples:
            if needed and sample.task.answer is None:
                verdicts.append(Verdict(None, "bad_gold"))
                continue
            result = next(results)
            if result["score"] is None:
                self._report(scorer.label, sample, Answer(failure=result["cause"], detail=result["compared"]))
                verdicts.append(Verdict(None, result["cause"]))
                continue
            parts = {name: value for name, value in result["parts"].items() if name not in _SAID_ALREADY}
            verdicts.append(Verdict(float(result["score"]), None, result["extractable"], parts))
        return verdicts

    def _direct(self, scorer: Scorer, task: Task, answer: str) -> Verdict | None:
        """exact and numeric, here and now; None for what must be asked of a worker."""
        extractable = True if self.section.extract else None
        if scorer.name == "exact":
            if task.answer is None:
                return Verdict(None, "bad_gold")
            return Verdict(scorers.exact(answer=answer, gold=task.answer, **scorer.params), extractable=extractable)
        if scorer.name == "numeric":
            gold = scorers.parse_number(task.answer)
            if gold is None:
                return Verdict(None, "bad_gold")
            value = scorers.numeric(answer=answer, gold=gold, **scorer.params)
            return Verdict(value or 0.0, extractable=value is not None)
        return None

    def _foreign(self, scorer: Scorer, samples: Sequence[Sample], answers: Sequence[str]) -> list[Verdict]:
        """reasoning-gym's own scorers, in the sandbox: an answer that hangs costs only itself."""
        self._require(scorer, list({sample.task.key: sample.task for sample in samples}.values()))
        asks = [
            Ask(answer.strip(), columns["family"], columns.get("params") or {}, columns["entry"])
            for answer, columns in zip(answers, (sample.task.columns for sample in samples))
        ]
        extractable = True if self.section.extract else None
        verdicts = []
        for sample, answer in zip(samples, self._gym.score(asks, self.section.timeout_seconds) if asks else []):
            if answer.failure:
                self._report(scorer.label, sample, answer)
            verdicts.append(_verdict(answer, extractable))
        return verdicts

    def _user(self, scorer: Scorer, samples: Sequence[Sample]) -> list[Verdict]:
        """The user's function, once for all text prompts and once for all message prompts (completions differ in form)."""
        verdicts: dict[int, Verdict] = {}
        for as_text in (True, False):
            chosen = [i for i, s in enumerate(samples) if isinstance(s.task.prompt, str) is as_text]
            if chosen:
                answers = self._call_user(scorer, [samples[i] for i in chosen])
                verdicts.update({i: _verdict(answer) for i, answer in zip(chosen, answers)})
        return [verdicts[i] for i in range(len(samples))]

    def _call_user(self, scorer: Scorer, samples: Sequence[Sample]) -> list[Answer]:
        assert scorer.pool is not None

        def call(chosen: Sequence[Sample]) -> Call:
            loggers = [k for k in ("log_metric", "log_extra") if scorer.accepts(k)]
            arguments = {"name": scorer.name, "num": len(chosen), "loggers": loggers,
                         "keywords": self._keywords(scorer, chosen)}  # fmt: skip
            return Call("milepost.scorers:invoke", arguments, self.section.timeout_seconds)

        def unpack(value: Mapping[str, Any]) -> list[float | None]:
            if "contract" in value:
                name = short(scorer.name)
                raise RecipeError(f"{value['contract']}, from {name}; return one number or None per completion")
            for key, number in value["metrics"]:
                self.logged[key].append(number)
            for key, texts in value["extra"]:
                self.extra[key].extend(texts)
            return value["values"]

        return self._batch_then_singly(scorer.pool, call, unpack, scorer.label, samples)

    def _keywords(self, scorer: Scorer, samples: Sequence[Sample]) -> dict[str, Any]:
        """What TRL passes, by the names the function accepts: one list entry per completion; params as they are."""
        rows = [self._columns(sample.task) for sample in samples]
        names = dict.fromkeys(key for row in rows for key in row)
        keywords: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
        keywords.update(scorer.params)
        keywords["completions"] = [_completion(sample) for sample in samples]
        keywords["prompts"] = [_prompt(sample.task) for sample in samples]
        keywords["completion_ids"] = [_completion_ids(sample.episode) for sample in samples]
        keywords["episodes"] = [sample.episode for sample in samples]
        return {key: value for key, value in keywords.items() if scorer.accepts(key)}

    def _batch_then_singly(
        self,
        pool: WorkerPool,
        call: Callable[[Sequence[Sample]], Call],
        unpack: Callable[[Any], Sequence[Any]],
        label: str,
        samples: Sequence[Sample],
    ) -> list[Answer]:
        """One call for all; if it fails, one call each, so that only the offending samples go without a value."""
        whole = pool.map([call(samples)])[0]
        if whole.failure is None:
            return [Answer(value=value) for value in unpack(whole.value)]
        if whole.failure == "timeout" and len(samples) > 1 and (label, "slow") not in self._reported:
            self._reported.add((label, "slow"))
            log.warning("reward function %s: %d completions took over %g s together, so they are scored one by one; "
                        "raise reward.timeout_seconds if it is merely slow",
                        label, len(samples), self.section.timeout_seconds)  # fmt: skip
        singles = pool.map([call([sample]) for sample in samples]) if len(samples) > 1 else [whole]
        answers = []
        for sample, answer in zip(samples, singles):
            if answer.failure:
                self._report(label, sample, answer)
                answers.append(answer)
            else:
                answers.append(Answer(value=unpack(answer.value)[0]))
        return answers

    def _report(self, label: str, sample: Sample, answer: Answer) -> None:
        """Logs the first failure of each kind with its traceback and sample; the rest are only counted."""
        key = (label, str(answer.failure))
        if key not in self._reported:
            self._reported.add(key)
            log.warning("reward function %s: %s for %s (further ones are only counted)\n%s",
                        label, answer.failure, sample.episode.id, answer.detail)  # fmt: skip


def _verdict(answer: Answer, extractable: bool | None = None) -> Verdict:
    if answer.failure:
        return Verdict(None, answer.failure)
    if answer.value is None:
        return Verdict(None, "none")
    return Verdict(answer.value, None, extractable) if math.isfinite(answer.value) else Verdict(None, "not finite")


def _tally(reward: Reward, success: str) -> list[str]:
    """The one of four classes an episode belongs to; unscorable ones also under their cause."""
    if reward.verdict != "unscorable":
        return [reward.verdict]
    return ["unscorable", f"unscorable/{reward.cause or f'no {success}'}"]


def _absent(episode: Episode) -> str | None:
    """Why there is nothing to judge: infrastructure failed, or the model was never called."""
    if episode.stop.kind is StopKind.FAULT:
        return f"fault: {episode.stop.reason}"
    return None if episode.turns else "no turns"


def _completion(sample: Sample) -> Any:
    """As TRL does: a string for text prompts, a list of one assistant message for message prompts."""
    if isinstance(sample.task.prompt, str):
        return sample.text
    return [{"role": "assistant", "content": sample.text}]


def _prompt(task: Task) -> Any:
    return task.prompt if isinstance(task.prompt, str) else [dict(message) for message in task.prompt]


def _completion_ids(episode: Episode) -> list[int]:
    return [int(token) for token in episode.turns[-1].sampled.ids]
