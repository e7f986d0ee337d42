"""Supervised warm start: demonstrations become episodes whose every completion token has weight and advantage 1.

The forest, the executor and the learner are those of GRPO; only the objective differs (plain cross-entropy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path

import numpy as np

from milepost import streams
from milepost.demonstrations import demonstrations, some
from milepost.forest import Batch, build_batch
from milepost.learner import Learner, default_lr
from milepost.profile import mark_step
from milepost.progress import Progress
from milepost.scripted import demonstrator
from milepost.sections import LossSection, SftSection
from milepost.stages.session import Session, peak_memory_gb
from milepost.types import Credit, Episode, EpisodeId, Sampled, StopKind, StopReason, Task, Turn
from milepost.world import demonstrate

CROSS_ENTROPY = LossSection(objective="cross_entropy", aggregate="token_mean")


def run_sft(session: Session, resume: Path | None = None, *, stage: str = "sft", cpu_seconds: float = 0.0) -> Learner:
    """Trains on demonstrations for `sft.steps`, or until `cpu_seconds` are used if that is given."""
    section = session.recipe.sft
    optimizer = session.recipe.optimizer.model_copy(
        update={"schedule": "constant" if cpu_seconds else section.schedule, "warmup_steps": section.warmup_steps}
    )
    lr = section.lr or default_lr(session.policy.num_parameters, "sft")
    learner = Learner(session.policy, optimizer, session.recipe.update, lr=lr, total_steps=section.steps)
    start = 0
    if resume:
        start = session.load(resume, learner)["step"]
        session.run.truncate_after(start, stage)
    lessons = lessons_of(session, start, only_last=bool(cpu_seconds))
    began = mark = session.cpu_seconds()
    last = section.steps
    progress = Progress(count(start + 1) if cpu_seconds else range(start + 1, last + 1), stage.upper())
    for step in progress:
        with session.timed("update"):
            report = learner.update(batch_at(lessons, step - 1, session.recipe.seed), CROSS_ENTROPY)
        metrics = {"loss": report.loss, "grad_norm": report.grad_norm, "lr": report.lr, "peak_memory_gb": peak_memory_gb()}
        before, mark = mark, session.cpu_seconds()
        metrics["cpu_seconds"] = mark - before
        session.run.commit_step(step, stage, metrics=metrics | session.take_clock())
        mark_step()
        progress.note(f"loss {report.loss:.3f}")
        done = mark - began >= cpu_seconds if cpu_seconds else step == last
        if done or (session.recipe.save.every and step % session.recipe.save.every == 0):
            session.save(stage, step, learner, {})
        if done:
            break
    session.sampler.load(learner.num_steps)
    return learner


@dataclass(frozen=True)
class Lesson:
    """What the warm start shows from one step on."""

    examples: Sequence[Episode]
    batch_size: int
    first: int
    """Steps that came before it."""


def lessons_of(session: Session, start: int = 0, *, only_last: bool = False) -> list[Lesson]:
    """`sft.lessons` in order, each for its own steps, and for the rest what `sft` itself says (alone if `only_last`).

    Those that were over after `start` steps are left out: demonstrations take time to play.
    """
    section, first, lessons = session.recipe.sft, 0, []
    for lesson, tasks in zip(() if only_last else section.lessons, session.tasks.lessons):
        if start < first + lesson.steps:
            own = {"demonstrations": lesson.demonstrations or section.demonstrations, "num_demonstrations": 0}
            shown = demonstrated(session, section.model_copy(update=own), tasks)
            lessons.append(Lesson(shown, lesson.batch_size or section.batch_size, first))
        first += lesson.steps
    lessons.append(Lesson(demonstrated(session, section, session.tasks.train), section.batch_size, first))
    if section.loss_on == "actions":
        return lessons
    return [replace(one, examples=[with_contexts_trained(e) for e in one.examples]) for one in lessons]


def demonstrated(session: Session, section: SftSection, tasks: Sequence[Task]) -> list[Episode]:
    """The warm start's examples: completions of single answers, or whole episodes that a script plays in the world."""
    recipe, world = session.recipe, session.world
    if world is None:
        held_out = [*session.tasks.validation, *session.tasks.test]
        return as_episodes(session, demonstrations(section, tasks, seed=recipe.seed, shape=recipe.tasks, held_out=held_out))
    return demonstrate(
        some(tasks, section, recipe.seed), demonstrator(section.demonstrations, world.spec), session.codec, world,
        max_new_tokens=recipe.rollout.max_new_tokens,
    )  # fmt: skip


def with_contexts_trained(episode: Episode) -> Episode:
    """The same tokens, but for the first of each segment all of them as if they had been sampled."""
    segments: list[list[Turn]] = []
    for turn in episode.turns:
        if turn.new_segment or not segments:
            segments.append([])
        segments[-1].append(turn)
    turns = []
    for k, segment in enumerate(segments):
        ids = np.concatenate([part for turn in segment for part in (turn.context_ids, turn.sampled.ids)])
        sampled = Sampled(ids[1:], np.zeros(len(ids) - 1), 1.0, ((0, 0),), "stop")
        turns.append(Turn(ids[:1], sampled, text=segment[-1].text, new_segment=k > 0))
    return replace(episode, turns=tuple(turns))


def as_episodes(session: Session, examples: Sequence[tuple[Task, str]]) -> list[Episode]:
    """Demonstrations in the shape of sampled episodes; nothing sampled them, so their log-probs are 0 and unused."""
    done = StopReason(StopKind.TERMINATED, "end_of_turn")
    episodes = []
    for index, (task, text) in enumerate(examples):
        ids = session.codec.complete(text)
        sampled = Sampled(ids, np.zeros(len(ids)), 1.0, ((0, 0),), "stop")
        name = f"sft/{index}/{task.key}"
        turn = Turn(session.codec.encode(task), sampled, text=text)
        episodes.append(Episode(EpisodeId("sft", index, task.key, 0), name, (turn,), done))
    return episodes


def batch_at(lessons: Sequence[Lesson], step: int, seed: int) -> Batch | None:
    """Step k's examples: epochs of keyed permutations, cut into batches; the last one of an epoch may span two."""
    lesson = next(one for one in reversed(lessons) if one.first <= step)
    examples, number = lesson.examples, step - lesson.first
    size = min(lesson.batch_size, len(examples))
    chosen: list[Episode] = []
    for position in range(number * size, (number + 1) * size):
        epoch, offset = divmod(position, len(examples))
        chosen.append(examples[order(seed, epoch, len(examples))[offset]])
    chosen = list({e.id: e for e in chosen}.values())
    return build_batch(chosen, [Credit(e.id, np.ones(e.num_sampled), True, True) for e in chosen])


@lru_cache(maxsize=4)
def order(seed: int, epoch: int, n: int) -> np.ndarray:
    """One epoch's permutation of n examples."""
    return streams.shuffled(seed, f"sft/epoch/{epoch}", n)
