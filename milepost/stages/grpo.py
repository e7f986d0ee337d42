"""The GRPO loop: take → score → credit → update → load → commit, with held-out evaluation beside it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from milepost import streams
from milepost.batch_signal import reward_metrics
from milepost.checkpoint import path_of
from milepost.credit import assign, returns_of_turns
from milepost.critics import Critic, Teacher
from milepost.demonstrations import fill
from milepost.evaluate import EvalReport
from milepost.forest import Batch
from milepost.health.canary import Finding, first_update, one_policy
from milepost.information import added, gains_of, probes
from milepost.learner import Learner, UpdateReport, deal, default_lr
from milepost.levers import Levers, Replayed, all_fail, assign_counted, counted, joined, refill, repeats, replayed
from milepost.models import save_policy
from milepost.profile import mark_step
from milepost.progress import Progress, say
from milepost.recipe import Recipe
from milepost.rollout import Rollouts
from milepost.stages.session import (
    Panel,
    Reference,
    Session,
    group_batch,
    load_weights,
    no_signal_findings,
    peak_memory_gb,
    probe_weights,
    scoring_batch,
    with_chosen,
)  # fmt: skip
from milepost.stages.step_metrics import episode_metrics, update_metrics
from milepost.types import Credit, EpisodeId, Group, Reward


def run_grpo(
    session: Session, resume: Path | None = None, *, stage: str = "grpo", cpu_seconds: float = float("inf"),
    random_reward: bool | None = None,
) -> None:  # fmt: skip
    """Trains for `grpo.steps`, `grpo.tokens` or `cpu_seconds`, and leaves the policy on the best validation checkpoint.

    `random_reward` makes it the control that is rewarded by coin; None: as `grpo.random_reward` says.
    """
    loop = Loop(session, stage, resume, random_reward=random_reward)
    most = loop.step if loop.is_spent(cpu_seconds) else session.recipe.grpo.steps
    progress = Progress(range(loop.step + 1, most + 1), "GRPO")
    for step in progress:
        with session.timed("sample"):
            groups = loop.rollouts.take(step)
        with session.timed("score"):
            rewards, judging = loop.score(groups)
        groups, rewards, spent = loop.refill(step, groups, rewards, judging)
        with session.timed("update"):
            credits, reports = loop.update(step, groups, rewards)
        session.sampler.load(loop.learner.num_steps)
        metrics, findings = loop.measure(step, groups, rewards, credits, reports)
        metrics |= spent
        session.run.commit_step(step, stage, groups, rewards, credits, metrics)
        session.find(findings, stage, step)  # may stop the run, whose last step can then be looked at
        spent_all = loop.is_spent(cpu_seconds)
        loop.after(step, last=step == most or spent_all)
        mark_step()
        progress.note(f"reward {metrics.get('reward/mean', float('nan')):.3f}, best held-out {loop.best}")
        if spent_all:
            break
    loop.finish()


@dataclass(frozen=True)
class Best:
    """The best validation so far: by success, never by loss or reward; of equals the earliest."""

    step: int = -1
    success: float = -1.0

    def __str__(self) -> str:
        return "not measured" if self.step < 0 else f"{self.success:.1%} at step {self.step}"


class Loop:
    """Everything of GRPO that has a memory. `step` counts completed steps."""

    def __init__(
        self, session: Session, stage: str, resume: Path | None, *, random_reward: bool | None = None
    ) -> None:  # fmt: skip
        recipe = session.recipe
        self.session, self.recipe, self.stage = session, recipe, stage
        self.random_reward = recipe.grpo.random_reward if random_reward is None else random_reward
        self.step, self.best, self.cpu_seconds, self.cpu_mark = 0, Best(), 0.0, session.cpu_seconds()
        self.num_tokens, self.value_cpu = 0, 0.0
        lr = recipe.optimizer.lr or default_lr(session.policy.num_parameters, "grpo")
        updates = recipe.grpo.steps * recipe.update.num_iterations * recipe.update.minibatches
        self.learner = Learner(session.policy, recipe.optimizer, recipe.update, lr=lr, total_steps=updates)
        self.levers, self.num_replayed = Levers(recipe, session.tasks.train), 0
        self.rollouts = Rollouts(self.levers, session.tasks.sources, session.roll, recipe.rollout)
        self.reference: Reference | None = None
        self.teacher: Teacher | None = None
        self.valued: dict[str, float] = {}
        if recipe.credit.rule == "value" and not self.random_reward:
            self.learner.critic = Critic(session.policy, self.learner, recipe.credit, recipe.seed)
        elif recipe.credit.rule == "distill":
            self.teacher = Teacher(session.policy, self.learner, recipe.credit.teacher)
        if resume:
            self.restore(resume)
        else:
            self.begin()

    def begin(self) -> None:
        """The start: what is measured before any update, and kept for a resumed run."""
        self.session.sampler.load(self.learner.num_steps)
        if self.has_reference:
            self.reference = Reference(self.session.policy, self.learner)
            save_policy(self.reference_folder, self.learner.masters, self.session.policy)
        self.panel = Panel.sample(self.session, self.learner)
        if self.session.tasks.validation:
            self.validate(0, self.warm_start_report())
        self.save()

    def warm_start_report(self) -> EvalReport | None:
        """The validation after this run's warm start: the same weights under the same noise, so not to be played again."""
        found = self.session.run.evals("validation", "sft")
        return replace(EvalReport.from_json(found[-1].report), step=0) if found else None

    def restore(self, checkpoint: Path) -> None:
        """Puts everything back as it was after the checkpoint's step; later rows of the store are written again."""
        if self.has_reference:
            load_weights(self.session.policy, self.reference_folder)
            self.reference = Reference(self.session.policy, self.learner)
        state = self.session.load(checkpoint, self.learner)
        self.step = state["step"]
        self.rollouts.load_state(state["tasks"])
        self.levers.load_state(state["levers"])
        self.best, self.cpu_seconds = Best(*state["best"]), state["cpu_seconds"]
        self.num_tokens = state.get("num_tokens", 0)
        self.panel = Panel.from_state(state["panel"], self.learner)
        self.session.grader.load_state(state.get("grader", {}))
        self.session.run.truncate_after(self.step, self.stage)

    def is_spent(self, cpu_seconds: float) -> bool:
        """Whether a budget is used up: of CPU time, or of sampled tokens."""
        tokens = self.recipe.grpo.tokens
        return self.cpu_seconds >= cpu_seconds or 0 < tokens <= self.num_tokens

    @property
    def has_reference(self) -> bool:
        return self.recipe.kl.beta > 0 or bool(self.recipe.kl.beta_end)

    @property
    def reference_folder(self) -> Path:
        return self.session.run.checkpoints / "reference"

    def beta(self, step: int) -> float:
        kl = self.recipe.kl
        if kl.beta_end is None:
            return kl.beta
        return kl.beta + (kl.beta_end - kl.beta) * (step - 1) / max(1, self.recipe.grpo.steps - 1)

    def score(self, groups: Sequence[Group]) -> tuple[list[list[Reward]], dict[str, float]]:
        """Rewards, and what judging cost beside this process: scorer/calls, scorer/cpu_seconds; nothing without workers."""
        grader = self.session.grader
        before = grader.spent()
        rewards = grader.score(groups)
        return rewards, {name: used - before.get(name, 0.0) for name, used in grader.spent().items()}

    def refill(
        self, step: int, groups: Sequence[Group], rewards: Sequence[Sequence[Reward]], judging: dict[str, float]
    ) -> tuple[list[Group], list[list[Reward]], dict[str, float]]:
        """Dynamic sampling: groups without signal make room for new ones, as often as `levers.refills` allows.

        Also what sampling and judging cost, replaced groups included.
        """
        spent = Counter[str](judging)
        self.num_tokens += _num_sampled(groups)
        self.levers.observe(groups, rewards)

        def more(num: int, seen: Sequence[Group]) -> tuple[list[Group], list[list[Reward]]]:
            with self.session.timed("sample"):
                new = self.rollouts.more(step, num, seen)
            self.num_tokens += _num_sampled(new)
            with self.session.timed("score"):
                judged, cost = self.score(new)
            spent.update(cost)
            self.levers.observe(new, judged)
            return new, judged

        def alive(group: Group, row: Sequence[Reward]) -> bool:
            judged, details = self.judged([group], [row])
            tell = partial(assign, section=self.recipe.credit, rollout=self.recipe.rollout, **details)
            return self.levers.alive(group, judged[0], tell)

        filled = refill(groups, rewards, self.recipe.levers.refills, alive, more)
        return filled.groups, filled.rewards, {**filled.metrics, **spent}

    def judged(
        self, groups: Sequence[Group], rewards: Sequence[Sequence[Reward]]
    ) -> tuple[Sequence[Sequence[Reward]], dict[str, Any]]:  # fmt: skip
        """Rewards as credit sees them, and what it sees besides. The control's coin is one number for the episode: it must
        not see turns and parts as they really were."""
        if self.random_reward:
            coins = [[_coin(self.recipe.seed, e.id, r) for e, r in zip(g.episodes, rs)] for g, rs in zip(groups, rewards)]
            return coins, {}
        return rewards, self.session.per_turn(groups, rewards)

    def update(
        self, step: int, groups: Sequence[Group], rewards: Sequence[Sequence[Reward]]
    ) -> tuple[list[list[Credit]], list[UpdateReport]]:
        """Credit, then `num_iterations` passes of `minibatches` optimizer steps over the batch."""
        recipe, beta = self.recipe, self.beta(step)
        rewards, details = self.judged(groups, rewards)
        if recipe.credit.turns == "information" and not self.random_reward:
            details["turn_rewards"] = self.informed(groups, rewards, details["turn_rewards"])
        penalty = self.kl_penalty(groups, beta) if beta and recipe.kl.place == "reward" else None
        advice = self.advised(step, groups)
        tell = partial(assign, section=recipe.credit, rollout=recipe.rollout, kl_penalty=penalty, **details, **advice)
        credits = assign_counted(groups, rewards, recipe.levers, tell)
        old = self.replays(groups, rewards)
        trained, told = joined(groups, credits, old)
        often = repeats(groups, rewards, recipe.levers)
        in_loss = beta > 0 and recipe.kl.place == "loss"
        parts = deal([g.id for g in groups], recipe.update.minibatches)
        batches = [group_batch(trained, told, recipe, set(part), keep_constant=in_loss, repeats=often) for part in parts]
        several = len(batches) * recipe.update.num_iterations > 1
        batches = [b and self.prepared(b, several, {one.episode.id for one in old}) for b in batches]
        if in_loss and self.reference:
            batches = [b and b.with_logprobs(ref=self.reference.score(b)) for b in batches]
        reports = [
            self.learner.update(b, recipe.loss, recipe.kl, recipe.correction, beta=beta if in_loss else 0.0,
                                correct=corrects(recipe, self.session.policy.precision))
            for _ in range(recipe.update.num_iterations)
            for b in batches
        ]  # fmt: skip
        self.value(groups, rewards, penalty, details)
        return credits, reports

    def advised(self, step: int, groups: Sequence[Group]) -> dict[str, Any]:
        """What credit asks of models: the values of turns once they are learned, or a teacher's log-probs."""
        batch = scoring_batch([e for g in groups for e in g.episodes])
        if batch is not None and self.teacher is not None:
            return {"teacher_gaps": self.teacher.gaps(batch)}
        if batch is None or self.learner.critic is None or step <= self.recipe.credit.value_warmup:
            return {}
        began = time.process_time()
        values = self.learner.critic.values(batch)
        self.value_cpu = time.process_time() - began
        return {"turn_values": values}

    def informed(self, groups: Sequence[Group], rewards: Sequence[Sequence[Reward]], given: Any) -> dict[EpisodeId, Any]:
        """Rewards of turns with what each told the policy about the right answer on top."""
        section, codec = self.recipe.credit, self.session.codec
        asked = probes(groups, lambda task: codec.complete(fill(section.answer, task, "credit.answer")))
        batch = scoring_batch(asked)
        gained = gains_of(groups, batch, self.learner.score(batch) if batch is not None else np.zeros(0))
        totals = {e.id: r.total for g, rs in zip(groups, rewards) for e, r in zip(g.episodes, rs) if r.total is not None}
        return added(given, totals, gained, section.gain_weight)

    def value(self, groups: Sequence[Group], rewards: Sequence[Sequence[Reward]], penalty: Any, details: Any) -> None:
        """Teaches the critic what this batch returned."""
        self.valued = {}
        if self.learner.critic is None:
            return
        returns = returns_of_turns(groups, rewards, self.recipe.credit, self.recipe.rollout, penalty, **details)
        batch = scoring_batch([e for g in groups for e in g.episodes if e.id in returns])
        if batch is not None:
            began = time.process_time()
            self.valued = self.learner.critic.update(batch, returns)
            self.valued["value/cpu_seconds"] = self.value_cpu + time.process_time() - began

    def replays(self, groups: Sequence[Group], rewards: Sequence[Sequence[Reward]]) -> list[Replayed]:
        """Stored successes that join the groups in which all fail."""
        recipe, credit, found = self.recipe, self.recipe.credit, []
        baseline = "none" if credit.resolved_baseline == "none" else "loo"
        tell = partial(assign, section=credit.model_copy(update={"baseline": baseline}), rollout=recipe.rollout)
        for group, row in zip(groups, rewards):
            known = self.levers.success_of(group.task.key)
            if known is None or not all_fail(row):
                continue
            at, name = known
            episode, reward = next((s.episode, s.reward) for s in self.session.run.episodes(self.stage, at)
                                   if s.episode.id == name)  # fmt: skip
            assert reward is not None, "it was stored as a success"
            reward = _coin(recipe.seed, name, reward) if self.random_reward else reward
            joins = replayed(*counted(group, row, recipe.levers), episode, reward, tell)
            found += [joins] if joins else []
        self.num_replayed = len(found)
        return found

    def prepared(self, batch: Batch, several: bool, old: set[EpisodeId]) -> Batch:
        """Old log-probs, frozen before the first of several updates, and the tokens that the levers of [loss] choose.

        With a single update old log-probs are the current ones. Episodes in `old` have those of the policy that sampled
        them, whatever has become of it since.
        """
        loss, entropy = self.recipe.loss, None
        stale = np.isin(batch.episode_E, [i for i, name in enumerate(batch.episodes) if name in old])
        if loss.top_entropy < 1:
            logprobs, entropy = self.learner.read(batch)
        elif several or stale.any():
            logprobs = self.learner.score(batch)
        else:
            return batch
        if several or stale.any():
            batch = batch.with_logprobs(old=np.where(stale, batch.sampler_E, logprobs))
        return with_chosen(batch, logprobs, entropy, loss)

    def kl_penalty(self, groups: Sequence[Group], beta: float) -> dict:
        """β·Σ_t (log π − log π_ref) per episode: k1 in the reward, detached."""
        batch = scoring_batch([e for g in groups for e in g.episodes])
        if batch is None or self.reference is None:
            return {}
        gap = self.learner.score(batch) - self.reference.score(batch)
        return {e: beta * float(gap[batch.episode_E == i].sum()) for i, e in enumerate(batch.episodes)}

    def measure(
        self, step: int, groups: Sequence[Group], rewards: Any, credits: Any, reports: Sequence[UpdateReport]
    ) -> tuple[dict[str, float], list[Finding]]:
        """All metrics of the step, and what its canaries found."""
        session, recipe = self.session, self.recipe
        findings, metrics = no_signal_findings(groups, rewards, credits, recipe)
        findings = [f for f in findings if f.name != "no_signal" or not self.num_replayed]
        metrics |= reward_metrics(groups, rewards) | episode_metrics(groups, rewards) | update_metrics(reports)
        first = next((r for r in reports if r.stepped), None)
        if first:
            findings += one_policy(first.metrics, session.policy.precision)
            findings += first_update(first.metrics) if self.learner.num_steps == sum(r.stepped for r in reports) else []
        whole = step % recipe.grpo.panel_every == 0
        if first:
            metrics |= self.panel.measure(whole)
            findings += probe_weights(session, self.learner, step)
        if whole or step == 1:
            findings += [Finding("stop", "verifier", text) for text in session.grader.canary(session.tasks.train)]
        if (weight := session.grader.length_weight) is not None:
            metrics["length/weight"] = weight  # with which this step was judged
        if changed := session.grader.observe(groups):
            findings.append(Finding("info", "reward", changed))
        metrics |= self.levers.metrics(groups, rewards, self.num_replayed) | self.valued
        findings += [Finding("info", "levers", text) for text in self.levers.end_step(step, groups, rewards)]
        metrics |= self.take_cpu() | session.take_clock() | {"peak_memory_gb": peak_memory_gb(), "kl/beta": self.beta(step)}
        return metrics, findings

    def validate(self, step: int, known: EvalReport | None = None) -> None:
        report = known or self.session.evaluate("validation", step, stage=self.stage)
        if known:
            self.session.run.add_eval(self.stage, step, known)
        if report.success > self.best.success:
            self.best = Best(step, report.success)
        say(f"step {step}: held-out success {report.success:.1%} of {report.num_tasks} tasks × {report.samples}")

    def take_cpu(self) -> dict[str, float]:
        """CPU-seconds since the last step, worker processes included: what controls of equal cost are given."""
        now = self.session.cpu_seconds()
        used, self.cpu_mark = now - self.cpu_mark, now
        self.cpu_seconds += used
        return {"cpu_seconds": used}

    def after(self, step: int, *, last: bool) -> None:
        """Evaluates and saves when due; always at the end."""
        self.step = step
        if self.session.tasks.validation and (step % self.recipe.eval_every == 0 or last):
            self.validate(step)
        if step % self.recipe.save_every == 0 or last or self.best.step == step:
            self.save()

    def save(self) -> None:
        """A checkpoint of the state after `step` steps; the best one is kept beside the latest."""
        state = {
            "tasks": self.rollouts.state(),
            "levers": self.levers.state(),
            "best": [self.best.step, self.best.success],
            "panel": self.panel.state(),
            "cpu_seconds": self.cpu_seconds,
            "num_tokens": self.num_tokens,
            "grader": self.session.grader.state(),
        }
        self.session.save(self.stage, self.step, self.learner, state, best=self.best.step if self.best.step >= 0 else None)

    def finish(self) -> None:
        """Leaves the policy on the best validation checkpoint."""
        if self.best.step >= 0 and self.best.step != self.step:
            self.session.load(path_of(self.session.run.checkpoints / self.stage, self.best.step), self.learner)


def corrects(recipe: Recipe, precision: str) -> bool:
    """Whether importance weights for sampler–learner mismatch apply: always where asked, else below float32."""
    kind = recipe.correction.kind
    return kind not in ("auto", "none") or (kind == "auto" and precision != "float32")


def _num_sampled(groups: Sequence[Group]) -> int:
    """Tokens; those that continuations share with their trunks once."""
    return sum(e.num_own for g in groups for e in g.episodes)


def _coin(seed: int, episode: Any, reward: Reward) -> Reward:
    """The control's reward: a coin keyed by the episode; success stays what it is."""
    return replace(reward, total=float(streams.coin(seed, f"random-reward/{episode}"))) if reward.scorable else reward
