"""What every stage shares: the parts of one run, and one `state()` for all that the future depends on."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from milepost import profile
from milepost.batch_signal import signal_report
from milepost.checkpoint import load_checkpoint, save_checkpoint
from milepost.engines.base import Sampler, SamplingSettings
from milepost.evaluate import EvalReport, evaluate
from milepost.executors import Executor
from milepost.forest import Batch, build_batch
from milepost.health.canary import Finding, drift, weights_arrived
from milepost.learner import Learner
from milepost.loss import top_covariance, top_entropy
from milepost.models import Policy, load_model, save_policy
from milepost.progress import say
from milepost.recipe import Recipe
from milepost.reward import Grader
from milepost.reward_spec import EnvGrader
from milepost.rollout import Codec, play
from milepost.sections import LossSection, ModelSection
from milepost.store import Run
from milepost.tasks import TaskSet
from milepost.types import (
    Credit,
    Episode,
    EpisodeId,
    Group,
    MilepostError,
    Reward,
    Sampled,
    StopKind,
    StopReason,
    Task,
    Turn,
)
from milepost.world import World, play_world

PANEL_TEXTS = 16
PROBES = 2
"""Panel texts scored after every update; all of them are scored every `grpo.panel_every` steps."""


class RunStopped(MilepostError):
    """Training stopped itself because going on would be pointless. The run is valid."""


@dataclass
class Session:
    """One run's parts. The cli builds it; stages use it and know no concrete engine."""

    recipe: Recipe
    policy: Policy
    codec: Codec
    sampler: Sampler
    tasks: TaskSet
    grader: Grader | EnvGrader
    run: Run
    world: World | None = None
    """What tasks are played in; None: single answers."""
    clock: dict[str, float] = field(default_factory=dict)

    def play(self, tasks: Sequence[Task], *, phase: str, step: int, num_samples: int, greedy: bool = False) -> list[Group]:
        """Episodes for measurement, under the evaluation's decoding settings."""
        section = self.recipe.eval
        settings = SamplingSettings(temperature=0.0) if greedy else SamplingSettings(section.temperature, section.top_p)
        return self.roll(tasks, phase=phase, step=step, num_samples=1 if greedy else num_samples, settings=settings)

    def roll(
        self, tasks: Sequence[Task], *, phase: str, step: int, num_samples: int | Sequence[int],
        settings: SamplingSettings, max_turns: int = 0,
    ) -> list[Group]:  # fmt: skip
        """Episodes of each task by the sampler's current weights: single answers, or many turns in the run's world.

        `num_samples` is one number for all tasks, or one each; `max_turns` other than 0 replaces env.max_turns.
        """
        budget, world = self.recipe.rollout.max_new_tokens, self.world
        if world is not None:
            if max_turns:
                world = replace(world, limits=world.limits.model_copy(update={"max_turns": max_turns}))
            if phase == "train" and self.recipe.credit.rule == "branch":
                world = replace(world, branches=self.recipe.credit.branches)
            return play_world(tasks, self.sampler, self.codec, world, phase=phase, step=step, num_samples=num_samples,
                              max_new_tokens=budget, settings=settings)  # fmt: skip
        return play(tasks, self.sampler, self.codec, phase=phase, step=step, num_samples=num_samples,
                    max_new_tokens=budget, settings=settings)  # fmt: skip

    def per_turn(self, groups: Sequence[Group], rewards: Sequence[Sequence[Reward]]) -> dict[str, Any]:
        """What credit needs to know of an environment's reward besides the total."""
        by_turn = isinstance(self.grader, EnvGrader) and self.recipe.credit.by_turn
        turn_rewards = self.grader.turn_rewards(groups, rewards) if by_turn else None  # type: ignore[union-attr]
        return {"part_weights": self.grader.part_weights, "turn_rewards": turn_rewards}

    def cpu_seconds(self) -> float:
        """Used so far by this process and by those that judge for it: what comparisons at equal cost count."""
        return time.process_time() + self.grader.spent().get("scorer/cpu_seconds", 0.0)

    def evaluate(self, split: str, step: int, *, stage: str, greedy: bool | None = None, samples: int = 0) -> EvalReport:
        """Held-out success of the current weights, stored with its episodes as an evaluation of `stage` after `step`.

        `greedy` asks for greedy success too; by default the test does. `samples` overrides the recipe's.
        """
        test, section = split == "test", self.recipe.eval
        seen: dict[bool, tuple[Any, Any]] = {}
        with self.timed("eval"):
            report = evaluate(
                self.tasks.test if test else self.tasks.validation,
                # The phase does not name stage or step: before and after are compared under the same noise.
                lambda tasks, num_samples, greedy: self.play(
                    tasks, phase=split, step=0, num_samples=num_samples, greedy=greedy
                ),
                self.grader.score,
                split=split,
                samples=samples or (section.test_samples if test else section.samples),
                greedy=test if greedy is None else greedy,
                step=step,
                settings={
                    "temperature": section.temperature,
                    "top_p": section.top_p,
                    "max_new_tokens": self.recipe.rollout.max_new_tokens,
                },
                collect=lambda groups, rewards, greedy: seen.update({greedy: (groups, rewards)}),
            )
        self.run.add_eval(stage, step, report, *seen[False], *seen.get(True, ()))
        return report

    def find(self, findings: Sequence[Finding], stage: str, step: int) -> None:
        """Records findings; says warnings; raises RunStopped on a stop."""
        for finding in findings:
            self.run.add_event(finding.level, finding.name, finding.message, phase=stage, step=step)
            if finding.level != "info":
                say(f"{finding.level}: {finding.message}")
        for finding in findings:
            if finding.level == "stop":
                raise RunStopped(f"step {step}: {finding.message}")

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the block's wall seconds to `clock[name]`, and names it in a trace."""
        began = time.perf_counter()
        try:
            with profile.span(name):
                yield
        finally:
            self.clock[name] = self.clock.get(name, 0.0) + time.perf_counter() - began

    def take_clock(self) -> dict[str, float]:
        taken, self.clock = self.clock, {}
        return {f"seconds/{name}": seconds for name, seconds in taken.items()}

    def save(self, stage: str, step: int, learner: Learner, state: dict[str, Any], *, best: int | None = None) -> Path:
        """An atomic checkpoint after `step` steps of `stage`: a Hugging Face folder, and all that resuming needs."""
        return save_checkpoint(
            self.run.checkpoints / stage,
            step,
            write_policy=lambda folder: save_policy(folder, learner.masters, self.policy),
            tensors=learner.state(),
            state={**state, "stage": stage, "step": step},
            keep=self.recipe.save.keep,
            best=best,
        )

    def load(self, folder: Path, learner: Learner) -> dict[str, Any]:
        tensors, state = load_checkpoint(folder)
        learner.load_state(tensors)
        self.sampler.load(learner.num_steps)
        return state


def load_weights(policy: Policy, folder: Path) -> None:
    """Puts the weights of a saved Hugging Face folder into the policy: float32 masters and working copy."""
    stored = load_model(ModelSection(path=str(folder), precision="float32")).masters
    with torch.no_grad():
        working = dict(policy.model.named_parameters())
        for name, master in policy.masters.items():
            master.copy_(stored[name])
            working[name].copy_(master)


def group_batch(groups: Sequence[Group], credits: Sequence[Sequence[Credit]], recipe: Recipe, only: set[str] | None = None,
                *, keep_constant: bool, repeats: Mapping[EpisodeId, int] | None = None) -> Batch | None:  # fmt: skip
    """The update batch of whole groups (those in `only`); `repeats` says which episodes count more than once."""
    rows = [(e, c) for g, cs in zip(groups, credits) if only is None or g.id in only for e, c in zip(g.episodes, cs)]
    return build_batch(
        [e for e, _ in rows], [c for _, c in rows], aggregate=recipe.loss.aggregate,
        constant=recipe.loss.constant or recipe.rollout.max_new_tokens, drop_constant_groups=not keep_constant,
        repeats=repeats,
    )  # fmt: skip


def with_chosen(batch: Batch, logprobs: np.ndarray, entropy: np.ndarray | None, loss: LossSection) -> Batch:
    """The batch with the tokens that the levers of [loss] choose over all of it, and so alike in every split.

    They choose among the tokens that have an advantage: those of constant groups are in some batches and not in others.
    """
    among = batch.advantage_E != 0
    if entropy is not None:
        batch = replace(batch, masked_E=among & ~top_entropy(entropy, among, loss.top_entropy))
    if loss.kl_cov_share:
        chosen = top_covariance(batch.advantage_E, logprobs, among, loss.kl_cov_share)
        batch = replace(batch, restrained_E=chosen)
    return batch


def scoring_batch(episodes: Sequence[Episode]) -> Batch | None:
    """A batch for reading log-probs of all sampled tokens; weights and advantages carry no meaning."""
    some = [e for e in episodes if e.num_sampled]
    return build_batch(some, [Credit(e.id, np.ones(e.num_sampled), True, True) for e in some])


class Reference:
    """The frozen policy that KL is measured against: the one GRPO started from. Exists only while β > 0."""

    def __init__(self, policy: Policy, learner: Learner) -> None:
        self.model = copy.deepcopy(policy.model).requires_grad_(False)
        self.executor = Executor(self.model, learner.executor.kind, learner.executor.tokens_per_call, learner.counters)

    def score(self, batch: Batch) -> np.ndarray:
        return self.executor.score(batch)


class Panel:
    """A fixed panel of texts that the first policy sampled, with its log-probs: how far has the policy gone?"""

    def __init__(self, texts: Sequence[tuple[list[int], list[int]]], learner: Learner) -> None:
        """`texts`: (prompt ids, completion ids) each."""
        self.texts = [(list(map(int, p)), list(map(int, c))) for p, c in texts]
        self.learner = learner
        episodes = [_panel_episode(i, *text) for i, text in enumerate(self.texts)]
        self.whole, self.probes = scoring_batch(episodes), scoring_batch(episodes[:PROBES])
        self.first = self.before = np.empty(0)
        if self.whole is not None and self.probes is not None:
            self.first, self.before = learner.score(self.whole), learner.score(self.probes)

    @classmethod
    def sample(cls, session: Session, learner: Learner) -> Panel:
        """One completion of each of the first tasks, by the weights as they are now."""
        tasks = (session.tasks.validation or session.tasks.train)[:PANEL_TEXTS]
        groups = session.play(tasks, phase="panel", step=0, num_samples=1)
        turns = [turn for g in groups for turn in g.episodes[0].turns[:1]]
        return cls([(t.context_ids.tolist(), t.sampled.ids.tolist()) for t in turns], learner)

    def measure(self, whole: bool) -> dict[str, float]:
        """update_kl: nats per token between the last and the new weights; drift: between the first and the new."""
        if self.whole is None or self.probes is None:
            return {}
        now = self.learner.score(self.probes)
        metrics = {"update_kl": drift(self.before, now)}
        self.before = now
        if whole:
            metrics["drift/nats_per_token"] = drift(self.first, self.learner.score(self.whole))
        return metrics

    def state(self) -> dict[str, Any]:
        return {"texts": self.texts, "first": self.first.tolist(), "before": self.before.tolist()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], learner: Learner) -> Panel:
        panel = cls(state["texts"], learner)
        panel.first, panel.before = np.array(state["first"]), np.array(state["before"])
        return panel


def _panel_episode(index: int, prompt: list[int], completion: list[int]) -> Episode:
    sampled = Sampled(np.array(completion), np.zeros(len(completion)), 1.0, ((0, 0),), "stop")
    name = f"panel/{index}"
    done = StopReason(StopKind.TERMINATED, "end_of_turn")
    return Episode(EpisodeId("panel", 0, name, 0), name, (Turn(np.array(prompt), sampled),), done)


def probe_weights(session: Session, learner: Learner, step: int) -> list[Finding]:
    """Samples a few tokens with the engine's new weights and compares their log-probs with the learner's."""
    task = (session.tasks.validation or session.tasks.train)[0]
    settings = SamplingSettings(temperature=session.recipe.rollout.temperature)
    (group,) = play(
        [task],
        session.sampler,
        session.codec,
        phase="canary",
        step=step,
        num_samples=1,
        max_new_tokens=4,
        settings=settings,
    )
    batch = scoring_batch(group.episodes)
    return [] if batch is None else weights_arrived(batch.sampler_E, learner.score(batch), session.policy.precision)


def no_signal_findings(groups: Sequence[Group], rewards: Any, credits: Any, recipe: Recipe) -> tuple[list[Finding], dict]:
    """Warn or stop, as the recipe says, when a batch cannot teach anything or every completion was cut."""
    report = signal_report(groups, rewards, credits)
    found = []
    if report.truncation:
        found.append(Finding(_level(recipe.grpo.truncated_batch), "all_truncated", report.truncation))
    if report.cause and not report.truncation:
        found.append(Finding(_level(recipe.grpo.no_signal), "no_signal", report.cause))
    return found, report.metrics()


def _level(choice: str) -> Any:
    return "stop" if choice == "stop" else "warning"


def peak_memory_gb() -> float:
    """Largest resident size of this process so far; on a GPU the largest allocation."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
