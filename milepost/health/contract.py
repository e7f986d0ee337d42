"""What an environment has to keep, read from recordings of many policies: the checks of `env_check.py` that play nothing.

A check returns a sentence for people, or raises Failed with the counter-example, or Skipped with the reason. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import Any

from milepost.env import EnvSpec, Milestone, Script, State
from milepost.health.tapes import Limits, Tape, at_random, changed, claim, difference, empty, junk, loop, record
from milepost.host_main import Garbage, plain_copy
from milepost.reward_spec import OutOfBounds, potentials
from milepost.types import MilepostError, Task
from milepost.verifiers.labelled import wilson

KNOWN_BAD = "known-bad "
Z95 = 1.96


class Failed(Exception):
    """The counter-example."""


class Skipped(Exception):
    """The reason."""


@dataclass
class Bench:
    """What the checks look at."""

    spec: EnvSpec
    name: str | None
    """By which another process can import it."""
    seed: int
    num_tasks: int
    num_episodes: int
    difficulty: Mapping[str, Any]
    limits: Limits
    tasks: list[Task] = field(default_factory=list)
    tapes: dict[str, list[Tape]] = field(default_factory=dict)

    @property
    def all_tapes(self) -> list[Tape]:
        return [tape for tapes in self.tapes.values() for tape in tapes]

    def whole(self, policy: str) -> list[Tape]:
        """The policy's tapes without a fault. Raises Skipped if there are none."""
        tapes = self.tapes.get(policy, [])
        whole = [tape for tape in tapes if tape.fault is None]
        if tapes and not whole:
            raise Skipped(f"the {policy} policy could not be played: {tapes[0].fault.detail}")  # type: ignore[union-attr]
        if not tapes:
            raise Skipped(f"there is no {policy} policy" if self.tasks else "there are no tasks")
        return whole

    def base(self) -> list[Tape]:
        """What the others are compared with: the gold policy, or without one the random policy."""
        return self.whole("gold" if self.spec.gold else "random")

    def fresh(self, size: int, seed: int) -> list[Task]:
        return make_tasks(self.spec, size, seed, self.difficulty)


def make_tasks(spec: EnvSpec, size: int, seed: int, difficulty: Mapping[str, Any]) -> list[Task]:
    """`size` rows of the generator as tasks. Raises Failed for rows that are none."""
    tasks = []
    for i, row in enumerate(islice(spec.generate(size, seed, **difficulty), size)):
        try:
            columns = plain_copy(row, f"row {i}")
        except Garbage as error:
            raise Failed(str(error)) from None
        prompt, answer = columns.pop("prompt", None), columns.pop("answer", None)
        if not isinstance(prompt, (str, list)):
            raise Failed(f"row {i} has no prompt; it has {', '.join(row)}")
        prompt = prompt if isinstance(prompt, str) else tuple(prompt)
        tasks.append(Task(f"{spec.name}/{i}", prompt, answer=answer, columns=columns))
    return tasks


def play_all(bench: Bench) -> None:
    """Records every policy at every task. A hang ends its policy: one counter-example will do, each costs a deadline."""
    spec = bench.spec

    def tape(policy: str, script: Callable[[Task], Script], tasks: Sequence[Task] = bench.tasks) -> None:
        bench.tapes[policy] = made = []
        for task in tasks:
            made.append(record(spec, task, bench.seed, policy, script(task), bench.limits))
            if made[-1].fault is not None and made[-1].fault.kind == "hang":
                break

    if spec.gold:
        tape("gold", lambda task: spec.gold)  # type: ignore[arg-type, return-value]
    gold = {t.task.key: t.texts for t in bench.tapes.get("gold", []) if t.fault is None}
    turns = {task.key: len(gold.get(task.key, ())) or 8 for task in bench.tasks}
    tape("empty", lambda task: empty)
    tape("claim", lambda task: claim)
    tape("random", lambda task: at_random(spec, _others(gold, task), f"{bench.seed}/{task.key}", turns[task.key]))
    tape("junk", lambda task: junk(spec), bench.tasks[:3])
    several = [task for task in bench.tasks if len(set(gold.get(task.key, ()))) > 1]
    if several:
        tape("loop", lambda task: loop(gold[task.key][0], min(60, 2 * turns[task.key] + 10)), several)
    for name, script in spec.known_bad.items():
        tape(KNOWN_BAD + name, lambda task, script=script: script)  # type: ignore[misc]


def _others(gold: Mapping[str, list[str]], task: Task) -> list[str]:
    """What gold scripts write at other tasks: the words of this world, and nothing that only this task's script writes."""
    return [text for key, texts in gold.items() if key != task.key for text in texts]


# --- description and tasks ------------------------------------------------------------------------------------------


def spec_check(bench: Bench) -> str:
    spec = bench.spec
    for key in ("name", "version"):
        if not isinstance(getattr(spec, key), str) or not getattr(spec, key):
            raise Failed(f"EnvSpec.{key} is empty; it is stored with every run")
    for what, names in (("tool", [t.name for t in spec.tools]), ("milestone", [m.name for m in spec.milestones]),
                        ("cost", [c.name for c in spec.costs])):  # fmt: skip
        if len(set(names)) < len(names):
            raise Failed(f"two of its {what}s are called {max(names, key=names.count)!r}")
    if not 0 <= spec.luck < 1:
        raise Failed(f"EnvSpec.luck = {spec.luck!r} is no share of tasks below 1")
    before: dict[str, tuple[str, ...]] = {m.name: m.after for m in spec.milestones}
    for name, after in before.items():
        if missing := [other for other in after if other not in before]:
            raise Failed(f"milestone {name!r} comes after {missing[0]!r}, which does not exist")
        if name in _ancestors(name, before):
            raise Failed(f"milestone {name!r} comes after itself")
    counts = {"tool": len(spec.tools), "milestone": len(spec.milestones), "cost": len(spec.costs)}
    return ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items())


def _ancestors(name: str, before: Mapping[str, tuple[str, ...]]) -> set[str]:
    found: set[str] = set()
    while more := {b for a in found | {name} for b in before.get(a, ())} - found:
        found |= more
    return found


def tasks_check(bench: Bench) -> str:
    try:
        tasks, again = (bench.fresh(bench.num_tasks, bench.seed) for _ in range(2))
        other = bench.fresh(bench.num_tasks, bench.seed + 1)
    except (Failed, MilepostError):
        raise
    except Exception as error:
        raise Failed(f"generate raised {type(error).__name__}: {error}") from None
    if not tasks:
        raise Failed(f"generate({bench.num_tasks}, {bench.seed}) gave no row")
    if found := difference([_row(t) for t in tasks], [_row(t) for t in again], "rows"):
        raise Failed(f"generate gave other rows when asked again with the same size and seed: {found}")
    bench.tasks = tasks
    play_all(bench)
    num_same = sum(_row(a) == _row(b) for a, b in zip(tasks, other))
    told = "the same whatever its seed" if num_same == len(tasks) else "others with another seed"
    return f"{len(tasks)} rows, the same again, {told}"


def _row(task: Task) -> dict[str, Any]:
    return {"prompt": task.prompt, "answer": task.answer, **task.columns}


# --- what was played ------------------------------------------------------------------------------------------------


def blame(bench: Bench, kinds: Sequence[str], fits: Callable[[str], bool] = lambda detail: True) -> None:
    for tape in bench.all_tapes:
        if tape.fault is not None and tape.fault.kind in kinds and fits(tape.fault.detail):
            raise Failed(f"after {tape.where()}: {tape.fault.detail}")


def needs_tasks(bench: Bench) -> None:
    if not bench.tasks:
        raise Skipped("there are no tasks")


def exceptions_check(bench: Bench) -> str:
    needs_tasks(bench)
    blame(bench, ["crash"])
    return f"none in {len(bench.all_tapes)} episodes, whatever the policy wrote"


def deadline_check(bench: Bench) -> str:
    needs_tasks(bench)
    blame(bench, ["hang"])
    most = {where: max((t.slowest.get(where, 0.0) for t in bench.all_tapes), default=0.0) for where in ("reset", "step")}
    for where, limit in (("reset", bench.limits.reset_seconds), ("step", bench.limits.step_seconds)):
        if most[where] > limit:
            raise Failed(f"a {where} took {most[where]:.2f} s; the deadline is {limit:g} s")
    return f"slowest reset {most['reset']:.4f} s, slowest step {most['step']:.4f} s"


def messages_check(bench: Bench) -> str:
    needs_tasks(bench)
    blame(bench, ["garbage"], lambda detail: "state()" not in detail)
    for tape in bench.all_tapes:
        if tape.start is not None and not tape.start.messages:
            raise Failed(f"{tape.where(0)}: reset shows the policy no message; show it the task's prompt")
        for i, turn in enumerate(tape.turns[:-1], 1):
            if not turn.observation.messages and turn.observation.history is None:
                raise Failed(f"{tape.where(i)}: the policy is shown nothing, and has to go on")
    return "every observation is made of messages"


def invalid_check(bench: Bench) -> str:
    """A step all of whose actions were refused left everything as it was, clocks and counters aside."""
    needs_tasks(bench)
    num = 0
    for tape in bench.all_tapes:
        for i, turn in enumerate(tape.turns):
            if turn.observation.num_invalid < max(1, len(turn.action.calls)):
                continue
            num += 1
            before = tape.states()[i]
            if found := changed(bench.spec, before, turn.state):
                raise Failed(f"{tape.where(i + 1)}: counted as invalid, but it changed {found}")
    return f"{num} refused actions changed nothing"


# --- success --------------------------------------------------------------------------------------------------------


def goal_check(bench: Bench) -> str:
    needs_tasks(bench)
    blame(bench, ["goal"])
    said: dict[bool, Tape] = {}
    for tape in bench.all_tapes:
        if tape.start_holds:
            raise Failed(f"{tape.where(0)}: the goal holds before anything was done")
        if bench.spec.goal.ends and tape.fault is None and tape.success:
            said.setdefault(tape.turns[-1].observation.ended, tape)
    if len(said) == 2:
        raise Failed(f"the goal is reached in {said[True].where()}, where the environment ends, and in "
                     f"{said[False].where()}, where it does not: termination and outcome disagree")  # fmt: skip
    ends = "as soon as it holds" if bench.spec.goal.ends else "when the policy says so"
    return f"one predicate, false at every start, asked twice without effect; the episode ends {ends}"


def predicates_check(bench: Bench) -> str:
    needs_tasks(bench)
    spec = bench.spec
    if not spec.milestones and not spec.costs and not spec.potential:
        raise Skipped("there are no milestones, no costs and no potential")
    reached: set[str] = set()
    for tape in bench.all_tapes:
        states = tape.states()
        if tape.start_state is None:
            continue
        for name, judge in _judges(spec, tape.task, states):
            try:
                value = judge()
            except Exception as error:
                raise Failed(f"{name} raised {type(error).__name__} in {tape.where()}: {error}") from None
            if name.startswith("cost") and not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
                raise Failed(f"{name} is {value!r} in {tape.where()}; it must be a number that is not negative")
            if isinstance(value, OutOfBounds):
                raise Failed(f"{tape.where()}: {value.args[1]}")
            if tape.policy == "gold" and value is True:
                reached.add(name)
    unused = [m.name for m in spec.milestones if f"milestone {m.name!r}" not in reached]
    more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
    told = f"; the gold policy never reaches {', '.join(unused[:3])}{more}" if unused and spec.gold else ""
    read = [name for name, there in (("milestones", spec.milestones), ("costs", spec.costs),
                                     ("a potential from 0 to 1", spec.potential)) if there]  # fmt: skip
    return f"{' and '.join(filter(None, [', '.join(read[:-1]), read[-1]]))} can be read from every state{told}"


def _judges(spec: EnvSpec, task: Task, states: Sequence[State]) -> Iterator[tuple[str, Callable[[], Any]]]:
    for milestone in spec.milestones:
        pairs = list(pairwise(states)) if milestone.kind == "event" else [(states[0], now) for now in states[1:]]
        yield f"milestone {milestone.name!r}", partial(_ever, milestone, task, pairs)
    for cost in spec.costs:
        yield f"cost {cost.name!r}", partial(cost.amount, task, states)
    if spec.potential:
        yield "the potential", partial(_potential, spec, task, states)


def _potential(spec: EnvSpec, task: Task, states: Sequence[State]) -> OutOfBounds | None:
    try:
        potentials(spec, task, states)
    except OutOfBounds as error:
        return error
    return None


def _ever(milestone: Milestone, task: Task, pairs: Sequence[tuple[State, State]]) -> bool:
    return any([milestone.reached(task, before, after) for before, after in pairs])  # all of them: none may raise


def gold_check(bench: Bench) -> str:
    needs_tasks(bench)
    _blame_policy(bench, "gold")
    if not bench.spec.gold:
        raise Skipped("there is no gold script")
    tapes = bench.whole("gold")
    failed = [tape for tape in tapes if not tape.success]
    if failed:
        raise Failed(f"{len(failed)} of {len(tapes)} tasks not solved; the first ends at {failed[0].where()}: "
                     f"{_last_words(failed[0])}")  # fmt: skip
    lengths = [len(tape.turns) for tape in tapes]
    return f"{len(tapes)} of {len(tapes)} tasks solved, in {min(lengths)} to {max(lengths)} turns"


def _blame_policy(bench: Bench, *names: str) -> None:
    for name in names:
        for tape in bench.tapes.get(name, []):
            if tape.fault is not None and tape.fault.kind == "script":
                raise Failed(f"the script raised {tape.fault.detail} after {tape.where()}")


def _last_words(tape: Tape) -> str:
    said = tape.turns[-1].observation.messages if tape.turns else ()
    return f"the last answer was {said[-1]['content']!r:.120}" if said else "there was no answer"


def fails(policy: str) -> Callable[[Bench], str]:
    def check(bench: Bench) -> str:
        if policy == "loop" and bench.tasks and policy not in bench.tapes:
            raise Skipped("no task takes two different actions of the gold policy")
        if policy == "random" and bench.spec.gold and len(bench.tapes.get("gold", ())) < len(bench.tasks):
            raise Skipped("the gold policy hung, and chance draws from what it writes")
        return _seldom_succeeds(bench, policy) if policy == "random" else _never_succeeds(bench, policy)

    return check


def _never_succeeds(bench: Bench, policy: str) -> str:
    won, num = _won(bench, policy)
    if won:
        raise Failed(f"{len(won)} of {num} tasks solved; the first ends at {won[0].where()}")
    return f"0 of {num} tasks solved"


def _seldom_succeeds(bench: Bench, policy: str) -> str:
    won, num = _won(bench, policy)
    low, high = wilson(len(won), num, Z95)
    told = f"{len(won)} of {num} tasks solved: {len(won) / num:.1%}, 95 % interval {low:.1%} to {high:.1%}"
    luck = bench.spec.luck
    if len(won) > luck * num:
        raise Failed(f"{told}; more than {luck:.0%} is no luck; the first ends at {won[0].where()}")
    return f"{told}; up to {luck:.0%} pass as luck"


def _won(bench: Bench, policy: str) -> tuple[list[Tape], int]:
    if any(tape.start_holds for tape in bench.tapes.get(policy, [])):
        raise Skipped("the goal holds before anything was done")
    tapes = bench.whole(policy)
    return [tape for tape in tapes if tape.success], len(tapes)


def known_bad_check(bench: Bench) -> str:
    needs_tasks(bench)
    if not bench.spec.known_bad:
        raise Skipped("there are no known-bad scripts")
    names = [KNOWN_BAD + name for name in bench.spec.known_bad]
    _blame_policy(bench, *names)
    for name in names:
        _never_succeeds(bench, name)
    return f"none of {', '.join(bench.spec.known_bad)} solves a task"
