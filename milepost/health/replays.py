"""The checks of `env_check.py` that play recorded actions again: alone, side by side, half way, with another seed.

A check returns a sentence for people, or raises Failed with the counter-example, or Skipped with the reason. Torch-free.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from milepost.env import State, canonical
from milepost.health.contract import Bench, Failed, Skipped, blame, needs_tasks
from milepost.health.leftovers import leftovers
from milepost.health.tapes import Tape, Watch, act, changed, difference, record, replay, unlike, watched
from milepost.host_main import Instance
from milepost.hosts import Fault, Host, Hosts, HostsDown, Seen

NUM_AT_ONCE = 8
NUM_SEEDS = 5


def state_check(bench: Bench) -> str:
    needs_tasks(bench)
    blame(bench, ["garbage"], lambda detail: "state()" in detail)
    tapes = bench.base()
    for key in bench.spec.volatile:
        if not any(key in state for tape in tapes for state in tape.states()):
            raise Failed(f"volatile names {key!r}, which no state has")
    for tape in tapes[:3]:
        _look_twice(bench, tape)
    return "plain JSON, a copy: later steps and writing into it change nothing"


def _look_twice(bench: Bench, tape: Tape) -> None:
    def work(watch: Watch) -> None:
        instance = Instance(bench.spec.make)
        try:
            watch.ask(instance, "open", copy.deepcopy(tape.task), tape.seed, None)
            assert instance.env is not None
            seen: list[tuple[State, str]] = []
            for i, text in enumerate([*tape.texts[:20], None]):
                state = instance._settled(instance.env.state())
                seen.append((state, canonical(dict(state))))
                again = canonical(dict(instance._settled(instance.env.state())))
                if again != seen[-1][1]:
                    raise Failed(f"{tape.where(i)}: state() asked twice gave two answers: {_first(seen[-1][1], again)}")
                if text is not None:
                    watch.ask(instance, "step", act(text, bench.spec))
            for i, (state, text) in enumerate(seen):
                if canonical(dict(state)) != text:
                    raise Failed(f"{tape.where(i)}: the state that was returned is no copy; later steps changed it: "
                                 f"{_first(text, canonical(dict(state)))}")  # fmt: skip
            _scribble(seen[-1][0])
            now = canonical(dict(instance._settled(instance.env.state())))
            if now != seen[-1][1]:
                raise Failed(f"{tape.where()}: the state that was returned is no copy; writing into it changed the world: "
                             f"{_first(seen[-1][1], now)}")  # fmt: skip
        finally:
            instance.shut()

    watched(work, bench.limits)


def _first(one: str, other: str) -> str:
    return difference(json.loads(one), json.loads(other)) or "the order of its keys"


def _scribble(value: Any) -> None:
    """Empties every container, innermost first."""
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _scribble(item)
        value.clear()


# --- the same again -------------------------------------------------------------------------------------------------


def determinism_check(bench: Bench) -> str:
    tapes = bench.base()
    for tape in tapes:
        again = record(bench.spec, tape.task, tape.seed, tape.policy, replay(tape.texts), bench.limits)
        _same(bench, tape, again, "played again")
    if bench.name is None:
        return f"{len(tapes)} tasks played twice, in this process only (it was not given by name)"
    try:
        with _hosts(bench, 2, isolated=True) as hosts:
            if found := asyncio.run(_all_alike(bench, hosts, tapes)):
                raise Failed(f"in another process, with another hash seed: {found}")
    except HostsDown as error:
        raise Failed(str(error)) from None
    return f"{len(tapes)} tasks played twice, and in another process"


def _same(bench: Bench, tape: Tape, again: Tape, how: str) -> None:
    if again.fault is not None:
        raise Failed(f"{how}: {again.where()}: {again.fault.detail}")
    assert again.start is not None and again.start_state is not None
    found = unlike(bench.spec, tape, 0, again.start, again.start_state)
    for i, turn in enumerate(again.turns, 1):
        found = found or unlike(bench.spec, tape, i, turn.observation, turn.state)
    if found:
        raise Failed(f"{how}: {found}")
    if len(again.turns) != len(tape.turns):
        raise Failed(f"{how}: {again.where()}: ended after {len(again.turns)} turns, before after {len(tape.turns)}")


def isolation_check(bench: Bench) -> str:
    tapes = bench.base()
    for tape in bench.all_tapes:
        if tape.wrote:
            raise Failed(f"{tape.where()}: the environment wrote into its task: {tape.wrote}; others play it too")
    jobs = [tapes[i % len(tapes)] for i in range(bench.num_episodes)]
    with _hosts(bench, NUM_AT_ONCE) as hosts:
        if found := asyncio.run(_all_alike(bench, hosts, jobs)):
            raise Failed(f"{NUM_AT_ONCE} at once: {found}")
    return f"{len(jobs)} episodes, {NUM_AT_ONCE} at once, as if each were alone"


def _hosts(bench: Bench, num: int, isolated: bool = False) -> Hosts:
    given: Any = bench.name if isolated else bench.spec
    return Hosts(given, num, isolated=isolated, step_seconds=bench.limits.step_seconds, num_retries=0, hash_seed=1,
                 reset_seconds=bench.limits.reset_seconds)  # fmt: skip


async def _all_alike(bench: Bench, hosts: Hosts, tapes: Sequence[Tape]) -> str | None:
    """What differs from the tapes when they are played side by side."""
    waiting = iter(tapes)

    async def lane() -> str | None:
        for tape in waiting:
            if found := await _alike(bench, hosts, tape):
                return found
        return None

    found = await asyncio.gather(*(lane() for _ in range(hosts.num)))
    return next((text for text in found if text), None)


async def _alike(bench: Bench, hosts: Hosts, tape: Tape) -> str | None:
    host = await hosts.open(tape.task, tape.seed)
    if isinstance(host, Fault):
        return f"{tape.where(0)}: {host.detail.splitlines()[0]}"
    async with host:
        found = unlike(bench.spec, tape, 0, host.start.observation, host.start.state)
        for i, turn in enumerate(tape.turns, 1):
            if found:
                return found
            seen = await host.step(turn.action)
            if isinstance(seen, Fault):
                return f"{tape.where(i)}: {seen.detail.splitlines()[0]}"
            found = unlike(bench.spec, tape, i, seen.observation, seen.state)
    return found


def seed_check(bench: Bench) -> str:
    """What `EnvSpec.seeded` says of reset's seed is so. Where it says nothing, nothing is called ok."""
    tapes, said = bench.base(), bench.spec.seeded
    found = [difference for tape in tapes if (difference := _seeded(bench, tape))]
    told = (f"{len(found)} of {len(tapes)} tasks are another under {NUM_SEEDS} seeds" if found else
            f"no task is another under {NUM_SEEDS} seeds")  # fmt: skip
    if said is None:
        raise Skipped(f"not declared: {told}; say so with EnvSpec(seeded={bool(found)}), if that is meant")
    if said and not found:
        raise Failed(f"EnvSpec.seeded is True, but {told}: reset does not use its seed")
    if found and not said:
        raise Failed(f"EnvSpec.seeded is False, but {found[0]}")
    return told if said else f"{told}: the task alone decides"


def _seeded(bench: Bench, tape: Tape) -> str | None:
    """How the task differs under the first other seed that makes it another, if any does."""
    for seed in range(bench.seed + 1, bench.seed + NUM_SEEDS):
        other = record(bench.spec, tape.task, seed, tape.policy, replay(tape.texts), bench.limits)
        try:
            _same(bench, tape, other, f"with the seed {seed}")
        except Failed as error:
            return str(error)
    return None


def snapshot_check(bench: Bench) -> str:
    tapes = bench.base()
    if not tapes[0].can_snapshot:
        raise Skipped("the environment has no snapshot() and restore()")
    with _hosts(bench, 2) as hosts:
        for tape in tapes[:5]:
            if found := asyncio.run(_there_and_back(bench, hosts, tape)):
                raise Failed(found)
    return f"{min(5, len(tapes))} tasks saved half way, continued in the same and in a fresh instance"


async def _there_and_back(bench: Bench, hosts: Hosts, tape: Tape) -> str | None:
    half = len(tape.turns) // 2
    host = await hosts.open(tape.task, tape.seed)
    if isinstance(host, Fault):
        return host.detail.splitlines()[0]
    async with host:
        for turn in tape.turns[:half]:
            await host.step(turn.action)
        saved = await host.snapshot()
        if isinstance(saved, Fault):
            return f"{tape.where(half)}: {saved.detail.splitlines()[0]}"
        if found := await _onward(bench, host, tape, half):
            return f"after a snapshot: {found}"
        back = await host.restore(saved)
        if found := _as_saved(bench, tape, half, back) or await _onward(bench, host, tape, half):
            return f"restored in the same instance: {found}"
    other = await hosts.open(tape.task, tape.seed, saved)
    if isinstance(other, Fault):
        return f"restored in a fresh instance: {other.detail.splitlines()[0]}"
    async with other:
        found = _as_saved(bench, tape, half, other.start) or await _onward(bench, other, tape, half)
        return f"restored in a fresh instance: {found}" if found else None


def _as_saved(bench: Bench, tape: Tape, turn: int, seen: Seen | Fault) -> str | None:
    if isinstance(seen, Fault):
        return seen.detail.splitlines()[0]
    found = changed(bench.spec, tape.states()[turn], seen.state)
    return f"{tape.where(turn)}: {found}" if found else None


async def _onward(bench: Bench, host: Host, tape: Tape, half: int) -> str | None:
    for i, turn in enumerate(tape.turns[half:], half + 1):
        seen = await host.step(turn.action)
        if isinstance(seen, Fault):
            return f"{tape.where(i)}: {seen.detail.splitlines()[0]}"
        if found := unlike(bench.spec, tape, i, seen.observation, seen.state):
            return found
    return None


def cleanup_check(bench: Bench) -> str:
    tapes = bench.base()
    problem, left = leftovers(bench.spec, tapes, bench.limits)
    if problem:
        raise Failed(problem)
    if left:
        raise Failed(f"10 episodes that were broken off and closed left {left}")
    return "episodes that were broken off left no process, thread, descriptor or temporary file"


# --- what the policy may do -------------------------------------------------------------------------------------------


def permissions_check(bench: Bench) -> str:
    """A tool that the task's column `forbidden` names is refused before anything changes."""
    if not bench.spec.tools:
        raise Skipped("there are no tools")
    tried: set[str] = set()
    for tape in bench.base():
        for i, turn in enumerate(tape.turns):
            names = {call.name for call in turn.action.calls if call.error is None}
            if names - tried and not turn.observation.num_invalid and _refuses(bench, tape, i, sorted(names)):
                tried |= names
    return f"{', '.join(sorted(tried)) or 'no tool'}: refused when the task forbids it"


def _refuses(bench: Bench, tape: Tape, at: int, names: list[str]) -> bool:
    """Plays up to that turn without the tools, then the turn. False if the episode does not get there. Raises Failed."""
    spec, turn = bench.spec, tape.turns[at]
    locked = replace(tape.task, columns={**tape.task.columns, "forbidden": names})
    before = [t.text for t in tape.turns[:at] if not {call.name for call in t.action.calls} & set(names)]
    again = record(spec, locked, tape.seed, "with forbidden tools", replay([*before, turn.text]), bench.limits)
    if again.fault is not None or len(again.turns) <= len(before):
        return False
    found = changed(spec, again.states()[-2], again.states()[-1])
    if found or again.turns[-1].observation.num_invalid < len(turn.action.calls):
        what = f"changed {found}" if found else "was not counted as invalid"
        raise Failed(f"{again.where()}: the task says forbidden = {names}, but the call {what}; ToolEnv refuses such calls")
    return True
