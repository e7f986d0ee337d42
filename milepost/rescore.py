"""`milepost rescore RUN`: judges the stored episodes of a run again, under another reward. Torch-free; plays nothing.

The new reward is the `[reward]` of a file, dotted overrides of the run's own, or both; `[credit]` comes along where the
file has one, because some rewards are only valid beside it. Everything else stays the run's. The verdicts of the run are
never touched: the comparison is printed, and `--write NAME` keeps the new ones beside them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from milepost.charts import short
from milepost.envs.find import find_env
from milepost.recipe import Recipe, apply_override, make_recipe, read_toml
from milepost.reward import Grader
from milepost.reward_spec import EnvGrader, is_measure
from milepost.store import Run, StoredEpisode
from milepost.terminal import table, visible
from milepost.types import DataError, Group, RecipeError, Reward

SLACK = 1e-9
"""Rewards that differ by less are equal: a sum in another order."""
SECTIONS = ("reward", "credit")


@dataclass(frozen=True)
class Change:
    """One stored episode with both verdicts. `old` is None if it was never judged."""

    row: int
    name: str
    place: tuple[str, str]
    """(phase, split) of its commit."""
    group: tuple[Any, ...]
    old: Reward | None
    new: Reward

    @property
    def verdict(self) -> bool:
        """Whether success, or whether there is a reward at all, is judged otherwise now."""
        return self.old is None or (self.old.success, self.old.scorable) != (self.new.success, self.new.scorable)

    @property
    def size(self) -> float:
        """|new − old|; ∞ where only one of them is a number."""
        before, after = None if self.old is None else self.old.total, self.new.total
        if before is None or after is None:
            return 0.0 if before is after else math.inf
        return abs(after - before)


@dataclass
class Rescored:
    """All that was judged again, in the order in which it is stored."""

    changes: list[Change] = field(default_factory=list)
    unscored: Counter[str] = field(default_factory=Counter)
    """LABEL/CAUSE → turns that a turn scorer of the new reward gave no score."""

    def places(self) -> dict[tuple[str, str], list[Change]]:
        found = defaultdict(list)
        for change in self.changes:
            found[change.place].append(change)
        return dict(found)


def rescore(
    run_path: str | Path, reward: str | None = None, overrides: Sequence[str] = (), *, phase: str | None = None,
    step: int | None = None, write: str | None = None, width: int = 100,
) -> str:  # fmt: skip
    """The comparison as text. `reward`: a TOML file with a [reward] section. `write`: keeps the new verdicts by this name.

    Raises RecipeError, DataError or StoreError, before anything is judged wherever it can be told then.
    """
    with Run.open(run_path, write=write is not None) as run:
        if write is not None:
            _check_name(run, write)
        recipe = new_recipe(run.recipe, reward, overrides)
        found = judge_again(run, recipe, phase=phase, step=step)
        if write is not None:
            run.add_rescore(write, recipe.reward.model_dump_json(), {c.row: c.new for c in found.changes})
        lines = list(report(found, str(run.path), width))
        if write is not None:
            lines.append(f"kept as {write!r} beside the run's own verdicts, which are as they were")
    return "\n".join(lines)


def _check_name(run: Run, name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > 100:
        raise RecipeError(f"--write {name[:40]!r} must be a short plain name, such as lower-cap")
    if name in run.rescores():
        raise RecipeError(f"--write {name}: scores of that name are there already; choose another")


# ---- the new reward --------------------------------------------------------------------------------------------------


def new_recipe(old: Recipe, reward: str | None, overrides: Sequence[str] = ()) -> Recipe:
    """The run's recipe with the new reward. Raises RecipeError, naming the file or the override."""
    values = old.model_dump(mode="json")
    if reward is not None:
        given, _ = read_toml(reward)
        if "reward" not in given:
            raise RecipeError(f"--reward {reward} has no [reward] section; give one, or a recipe")
        values |= {section: given[section] for section in SECTIONS if section in given}
    for override in overrides:
        if override.partition(".")[0].strip() not in SECTIONS:
            raise RecipeError(f"override {override!r}: stored episodes can be given another reward, and nothing else; "
                              "use reward.…, such as reward.milestone_cap=0.2")  # fmt: skip
        apply_override(values, override)
    try:
        return make_recipe(values)
    except RecipeError as error:
        raise RecipeError(f"{error} ({Path(reward).name})" if reward is not None else str(error)) from None


@contextmanager
def _grader(recipe: Recipe, opened: str) -> Iterator[Grader | EnvGrader]:
    """`opened`: what the run's prompts had begun of each answer."""
    if recipe.env.name:
        with EnvGrader.of(recipe, find_env(recipe.env.name, "env.name")) as grader:
            yield grader
    else:
        with Grader(recipe.reward) as functions:
            functions.opened = opened
            yield functions


# ---- judging ---------------------------------------------------------------------------------------------------------


def judge_again(run: Run, recipe: Recipe, *, phase: str | None = None, step: int | None = None) -> Rescored:
    """Every stored episode of the chosen commits, one commit after the other. A length controller sees training steps in
    their order, as it did then."""
    chosen = [(p, s, split) for p, s, split in run.commits() if phase in (None, p, split) and step in (None, s)]
    if not chosen:
        raise RecipeError(_nothing(run, phase, step))
    found = Rescored()
    with _grader(recipe, run.meta().get("opened_thought", "")) as grader:
        for place in chosen:
            groups = run.groups(*place)
            _check(grader, [group for group, _ in groups])
            verdicts = grader.score([group for group, _ in groups])
            for (group, members), judged in zip(groups, verdicts):
                found.changes += [_change(m, group, new) for m, new in zip(members, judged)]
            if not place[2] and place[0] != "preflight":
                grader.observe([group for group, _ in groups])
        for name, num in grader.counts.items():
            if name.startswith("unscored/"):
                found.unscored[name.removeprefix("unscored/")] += num
    return found


def _nothing(run: Run, phase: str | None, step: int | None) -> str:
    commits = run.commits()
    if not commits:
        return f"{run.path} holds no episode yet, so there is nothing to judge again; train first"
    names = ", ".join(dict.fromkeys(name for p, _, split in commits for name in (p, split) if name))
    steps = [s for p, s, split in commits if phase in (None, p, split)]
    if not steps:
        return f"--phase {phase}: no episode belongs to it; there are {names}"
    return f"--step {step}: no episode is stored of it; there are steps {min(steps)} to {max(steps)}"


def _check(grader: Grader | EnvGrader, groups: Sequence[Group]) -> None:
    """Refuses columns that are missing, and episodes of another environment, whose states mean something else."""
    grader.check_columns([group.task for group in groups])
    if not isinstance(grader, EnvGrader):
        return
    spec = grader.env_spec
    for group in groups:
        for episode in group.episodes:
            played = episode.facts.get("env", spec.name), episode.facts.get("version", spec.version)
            if played != (spec.name, spec.version):
                raise DataError(
                    f"episode {episode.id} was played in {played[0]} version {played[1]}, but this is {spec.name} version "
                    f"{spec.version}; judge it with the version it was played in"
                )


def _change(stored: StoredEpisode, group: Group, new: Reward) -> Change:
    place = (stored.phase, stored.split)
    return Change(stored.row, str(stored.episode.id), place, (*place, stored.step, group.id), stored.reward, new)


def reranked(members: Sequence[Change]) -> bool:
    """Whether some two members of a group stand otherwise to each other: ahead, equal or behind. Members without a total
    before or after say nothing."""
    both = [(c.old.total, c.new.total) for c in members
            if c.old is not None and c.old.total is not None and c.new.total is not None]  # fmt: skip
    return any(_order(a[0], b[0]) != _order(a[1], b[1]) for a, b in combinations(both, 2))


def constant(totals: Sequence[float | None]) -> bool:
    """A group without signal: no two totals that differ."""
    there = [total for total in totals if total is not None]
    return not there or max(there) - min(there) <= SLACK


def _order(a: float, b: float) -> int:
    return 0 if abs(a - b) <= SLACK else 1 if a > b else -1


# ---- the comparison --------------------------------------------------------------------------------------------------


def report(found: Rescored, path: str, width: int = 100, most: int = 10) -> Iterator[str]:
    """Old beside new: one line for each phase and split, then the sums, then the biggest changes."""
    titles = ("", "episodes", "reward", "success", "unscorable", "verdicts changed", "groups reranked", "groups constant")
    yield from table([titles, *(_summary(place, some) for place, some in found.places().items())], width=width)
    yield ""
    yield _verdicts(found.changes)
    groups = _groups(found.changes)
    yield f"ranking changed within {sum(map(reranked, groups))} of {len(groups)} groups of two or more"
    for name, num in found.unscored.items():
        label, _, cause = name.partition("/")
        yield f"{num} turns have no score by {label}: {cause}"
    biggest = sorted((c for c in found.changes if c.size > SLACK or c.verdict), key=lambda c: (-c.size, c.row))
    if not biggest:
        yield "every reward and every verdict is as it was"
        return
    yield ""
    header = ("row", "episode", "reward", "success", "parts that changed")
    rows = [header, *((str(c.row), c.name, *_pair(c), _parts(c)) for c in biggest[:most])]
    yield from table(rows, left=len(header), width=width)
    left = f", and {len(biggest) - most} more episodes" if len(biggest) > most else ""
    yield f"the biggest changes{left}; one in full: milepost replay {visible(path)} {biggest[0].row}"


def _summary(place: tuple[str, str], changes: Sequence[Change]) -> tuple[str, ...]:
    groups = _groups(changes)
    judged = [c.old for c in changes if c.old is not None]
    new = [c.new for c in changes]
    still, now = (sum(constant([_total(c, old) for c in group]) for group in groups) for old in (True, False))
    return (
        " ".join(filter(None, place)), str(len(changes)), _arrow(_mean(judged), _mean(new)),
        _arrow(_rate(judged), _rate(new)), _arrow(str(_unscorable(judged)), str(_unscorable(new))),
        str(sum(c.verdict for c in changes)), f"{sum(map(reranked, groups))} of {len(groups)}" if groups else "–",
        _arrow(str(still), str(now)) if groups else "–",
    )  # fmt: skip


def _total(change: Change, old: bool) -> float | None:
    reward = change.old if old else change.new
    return None if reward is None else reward.total


def _groups(changes: Sequence[Change]) -> list[list[Change]]:
    """Those with members that can be compared."""
    found = defaultdict(list)
    for change in changes:
        found[change.group].append(change)
    return [members for members in found.values() if len(members) > 1]


def _mean(rewards: Sequence[Reward]) -> str:
    totals = [r.total for r in rewards if r.total is not None]
    return short(math.fsum(totals) / len(totals)) if totals else "–"


def _rate(rewards: Sequence[Reward]) -> str:
    judged = [r.success for r in rewards if r.success is not None]
    return f"{100 * sum(judged) / len(judged):.1f} %" if judged else "–"


def _unscorable(rewards: Sequence[Reward]) -> int:
    return sum(not r.scorable for r in rewards)


def _arrow(old: str, new: str) -> str:
    return old if old == new else f"{old} → {new}"


def _verdicts(changes: Sequence[Change]) -> str:
    changed = [c for c in changes if c.verdict]
    if not changed:
        return f"no verdict of {len(changes)} changed"
    kinds = {
        "to success": sum(c.new.success is True for c in changed),
        "to failure": sum(c.new.success is False and c.new.scorable for c in changed),
        "to unscorable": sum(not c.new.scorable and c.new.success is not True for c in changed),
    }
    said = ", ".join(f"{num} {kind}" for kind, num in kinds.items() if num)
    return f"{len(changed)} of {len(changes)} verdicts changed{f': {said}' if said else ''}"


def _pair(change: Change) -> tuple[str, str]:
    old, new = change.old, change.new
    return _arrow(_shown(old), _shown(new)), _arrow(_success(old), _success(new))


def _shown(reward: Reward | None) -> str:
    if reward is None:
        return "not judged"
    return f"{reward.total:.4g}" if reward.total is not None else f"({reward.cause})"


def _success(reward: Reward | None) -> str:
    return "–" if reward is None or reward.success is None else "yes" if reward.success else "no"


def _parts(change: Change) -> str:
    """Parts that count, where they differ; what is only measured says nothing new about a fact that stayed."""
    old, new = change.old.parts if change.old else {}, change.new.parts
    names = [n for n in dict.fromkeys([*old, *new]) if not is_measure(n)]
    shown = {n: [f"{p[n] + 0.0:.4g}" if n in p else "–" for p in (old, new)] for n in names}
    return ", ".join(f"{name} {a} → {b}" for name, (a, b) in shown.items() if a != b and {a, b} != {"–", "0"})
