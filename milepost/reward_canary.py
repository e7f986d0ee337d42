"""Right and wrong answers that a reward must still tell apart: what is found, and in which words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from milepost.types import Episode, EpisodeId, Reward, Sampled, StopKind, StopReason, Task, Turn

BAD_ANSWER = "-987654321"


@dataclass(frozen=True)
class CanaryCheck:
    task_key: str
    source: str
    good: Reward
    bad: Reward
    problem: str | None
    """None if the good answer is a success and the bad one is not."""


@dataclass(frozen=True)
class CanaryReport:
    """Whether the reward still tells right from wrong. `skipped` says why nothing could be checked."""

    checks: tuple[CanaryCheck, ...]
    skipped: str | None = None

    def __iter__(self) -> Iterator[str]:
        """The problems found, one sentence each: empty if all is well."""
        return iter(self.problems)

    @property
    def ok(self) -> bool:
        return all(check.problem is None for check in self.checks)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(check.problem for check in self.checks if check.problem is not None)


def episode_of(task: Task, text: str, member: int) -> Episode:
    """A finished answer that nobody sampled."""
    turn = Turn(context_ids=[], sampled=Sampled([], [], 1.0, (), "stop"), text=text)  # type: ignore[arg-type]
    stop = StopReason(StopKind.TERMINATED, "end_of_turn")
    return Episode(EpisodeId("check", 0, task.key, member), f"check/{task.key}", (turn,), stop)


def good_problem(task: Task, reward: Reward, template: str) -> str:
    """`template`: reward.canary_good, where that is set; then it may be what is wrong."""
    found = f"is unscorable ({reward.cause})" if reward.cause else f"scores {dict(reward.parts)}"
    if not template:
        return f"the task's own answer {str(task.answer)[:60]!r} {found}"
    filled = template.replace("{answer}", str(task.answer))
    said = f"reward.canary_good with the task's own answer, {filled[:60]!r}, {found}"
    bare = template.replace("{answer}", "")
    if "{{" in bare or "}}" in bare:
        said += "; its braces are literal, so write each once: in sft.demonstrations alone they are doubled"
    return said


def canary_problem(task: Task, good: Reward, bad: Reward, template: str) -> str | None:
    if not good.success:
        return f"task {task.key}: {good_problem(task, good, template)}"
    if bad.success is not False and str(task.answer) != BAD_ANSWER:
        return f"task {task.key}: a wrong answer is not scored as wrong ({bad.cause or dict(bad.parts)})"
    return None
