"""Runs environments so that one that hangs, crashes or talks nonsense costs one episode, never the step. Torch-free.

    with Hosts("desk", 16, isolated=True, step_seconds=30) as hosts:
        host = await hosts.open(task, seed)         # Host, or a Fault after a bounded number of tries
        seen = await host.step(action)              # Seen(observation, state, seconds), or a Fault
        await host.close()                          # always, whatever came before

In-process: each slot is a thread; for trusted, cheap environments. A deadline that passes abandons the thread, which is
asked to end; code that never comes back to Python, or holds the interpreter's lock, cannot be stopped there. isolated: each
slot is a process that is killed, with all it started. A slot serves many episodes, each with an instance of its own; after
a fault it is replaced. `host_main.py` is the side that touches the environment.

An environment's failures are facts (`Fault`), never exceptions. Exceptions are: HostsDown, when nothing starts any more;
KeyboardInterrupt; the caller's own mistakes. A `Hosts` serves one event loop at a time, any number of them in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from milepost.env import Action, EnvSpec, Observation, Script, State
from milepost.host_main import Reply, working_directory
from milepost.host_slots import CLOSE_SECONDS, START_SECONDS, HostsDown, Server, Slot, ThreadSlot
from milepost.types import RecipeError, Task


@dataclass(frozen=True)
class Fault:
    """What went wrong with an instance. Says nothing about the policy; the episode is in no statistic.

    crash: an exception, or the process ended. hang: no answer before the deadline. garbage: an answer that breaks the
    protocol (state not plain JSON, no Observation, messages that are none). reset: it could not be started, all tries
    included. dead: asked of an instance that had a fault before.
    """

    kind: Literal["crash", "hang", "garbage", "dead", "reset"]
    detail: str
    """First line: one sentence. Below it the traceback, if there is one."""
    retryable: bool
    """Whether playing the episode anew may help: not after `garbage`, which is a bug, nor after `reset`, tried already."""
    seconds: float = 0.0
    num_attempts: int = 1
    """Tries that were made; more than 1 only for `reset`."""


class Seen(NamedTuple):
    """What one step came to. `state` shares nothing with the environment; `seconds` were spent in the environment."""

    observation: Observation
    state: State
    seconds: float


class Hosts:
    """At most `num` instances at once; `open` waits for a free slot, first come, first served.

    `environment`: an EnvSpec or its name; isolated ones must be named ("desk", "module:object", "file.py:object"), since
    other processes import them. Deadlines are per request: `reset_seconds` for make and reset, `step_seconds` for the rest,
    the reading of the state included. A start that crashes or hangs is tried `num_retries` times again, on a fresh slot.
    `counts`: faults by kind, "retries" of starts, and "close" for a close() that failed, which costs nothing else.
    """

    def __init__(
        self, environment: EnvSpec | str, num: int, *, isolated: bool = False, step_seconds: float = 30.0,
        reset_seconds: float = 60.0, num_retries: int = 2, hash_seed: int = 0,
    ) -> None:  # fmt: skip
        if num < 1 or num_retries < 0 or min(step_seconds, reset_seconds) <= 0:
            raise ValueError("hosts need num >= 1, num_retries >= 0 and deadlines above 0 seconds")
        if isolated and not isinstance(environment, str):
            raise RecipeError(
                "an isolated environment is given by name, such as 'desk' or 'file.py:SPEC': processes import it"
            )
        self.name = environment if isinstance(environment, str) else environment.name
        self.num, self.step_seconds, self.reset_seconds, self.num_retries = num, step_seconds, reset_seconds, num_retries
        self.counts: Counter[str] = Counter()
        self.down: str | None = None
        """Why nothing can be opened any more."""
        self._slots: list[Slot] = []
        self._idle: list[Slot] = []
        self._num_busy, self._waiting = 0, deque[asyncio.Future[None]]()
        self._failed_tasks: list[str] = []
        self._num_started = 0
        self.isolated, self._home = isolated, working_directory()
        self._server = Server(_absolute(self.name), hash_seed) if isolated else None
        self._make = None if isolated else _find(environment).make
        # Runs at close(), at garbage collection and at interpreter exit, whichever comes first.
        self._finalizer = weakref.finalize(self, _end, self._slots, self._server, os.getpid())

    async def open(self, task: Task, seed: int, saved: bytes | None = None) -> Host | Fault:
        """A fresh instance, reset to (task, seed), or put into a saved state. Raises HostsDown."""
        await self._take_seat()
        slot, began = None, time.perf_counter()
        try:
            self._require_up()
            for attempt in range(1, self.num_retries + 2):
                slot, reply = await self._start(task, seed, saved)
                if slot is not None and reply.fault is None:
                    self._num_started += 1
                    self._failed_tasks.clear()
                    return Host(self, slot, task, seed, reply, attempt)
                if slot is not None:
                    await self._discard(slot, reply)
                if reply.fault == "garbage" or attempt > self.num_retries:
                    break
                self.counts["retries"] += 1
                await asyncio.sleep(min(0.05 * 4 ** (attempt - 1), 2.0))
        except BaseException:
            if slot is not None:
                self._drop(slot)
            self._give_seat()
            raise
        self._give_seat()
        kind: Literal["garbage", "reset"] = "garbage" if reply.fault == "garbage" else "reset"
        detail = reply.detail if kind == "garbage" else f"{reply.fault}: {reply.detail}"
        fault = Fault(kind, detail, False, time.perf_counter() - began, attempt)
        self.counts[kind] += 1
        self._note_failure(task, fault)
        return fault

    async def _start(self, task: Task, seed: int, saved: bytes | None) -> tuple[Slot | None, Reply]:
        """One try. No slot: not even its process came up."""
        slot: Slot | None = None
        try:
            if self._idle:
                slot = self._idle.pop()
            elif self._server is None:
                assert self._make is not None
                slot = ThreadSlot(self._make, self._home)
                self._slots.append(slot)
            else:
                slot = self._server.fork()
                self._slots.append(slot)
                reply = await slot.ask("", (), START_SECONDS)
                if reply.fault:
                    return slot, reply
            return slot, await slot.ask("open", (task, seed, saved), self.reset_seconds)
        except (OSError, HostsDown) as error:
            return slot, Reply(fault="crash", detail=f"the process of the environment does not start: {error}")
        except BaseException:
            if slot is not None:
                self._drop(slot)
            raise

    def _note_failure(self, task: Task, fault: Fault) -> None:
        """A task that cannot be reset is one thing, a world that never starts another: then more of the same is no use."""
        self._failed_tasks.append(task.key)
        same_cause = not self._num_started or len(set(self._failed_tasks)) > 1
        if len(self._failed_tasks) >= max(self.num, 4) and same_cause:
            num, cause = len(self._failed_tasks), fault.detail.splitlines()[0]
            self.down = (
                f"environment {self.name!r} does not start: {num} starts in a row failed, each tried up to "
                f"{self.num_retries + 1} times; the last: {cause}; is what it needs up and reachable?"
            )

    def _require_up(self) -> None:
        if not self._finalizer.alive:
            raise RuntimeError("these hosts are closed")
        if self.down is not None:
            raise HostsDown(self.down)

    async def _take_seat(self) -> None:
        self._require_up()
        if self._num_busy < self.num:
            self._num_busy += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._give_seat()
            raise

    def _give_seat(self) -> None:
        """To whoever has waited longest, if there is one."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done() and not turn.get_loop().is_closed():
                turn.set_result(None)
                return
        self._num_busy -= 1

    def _drop(self, slot: Slot) -> None:
        slot.discard()
        with contextlib.suppress(ValueError):
            self._slots.remove(slot)

    async def _discard(self, slot: Slot, reply: Reply) -> None:
        """After a fault: lets the environment free what it holds, if it still answers, and replaces the slot."""
        try:
            if slot.healthy and (await slot.ask("close", (), min(CLOSE_SECONDS, self.step_seconds))).fault:
                self.counts["close"] += 1
        finally:
            self._drop(slot)
        if reply.interrupt:
            raise KeyboardInterrupt(reply.detail)

    def close(self) -> None:
        """Ends every slot, those in use included; what still runs then gets Faults. Idempotent."""
        self._finalizer()
        self._idle.clear()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Host:
    """One instance for one episode. One request at a time."""

    def __init__(self, hosts: Hosts, slot: Slot, task: Task, seed: int, reply: Reply, num_attempts: int) -> None:
        assert reply.state is not None
        self.task, self.seed, self.num_attempts = task, seed, num_attempts
        self.start = Seen(reply.observation, reply.state, reply.seconds)
        self.can_snapshot = reply.can_snapshot
        self.fault: Fault | None = None
        """The first one; from then on every request is answered with kind "dead"."""
        self.unclosed: str | None = None
        """Why close() came to nothing."""
        self._hosts, self._slot = hosts, slot
        self._closed = False

    async def step(self, action: Action) -> Seen | Fault:
        return self._seen(await self._ask("step", action))

    async def write(self, script: Script | str) -> str | Fault | None:
        """What the script writes next, beside the environment that it may look into; None: nothing more.

        To another process only a name can be sent: "gold", "known-bad/NAME", module:function or file.py:function.
        """
        given = _absolute(script) if isinstance(script, str) else script
        answer = await self._ask("write", given, seconds=self._hosts.reset_seconds)  # its first turn may plan them all
        return answer if isinstance(answer, Fault) else answer.text

    async def snapshot(self) -> bytes | Fault:
        answer = await self._ask("snapshot")
        if isinstance(answer, Fault):
            return answer
        return answer.saved or b""

    async def restore(self, saved: bytes) -> Seen | Fault:
        """The state after it; the observation is empty."""
        return self._seen(await self._ask("restore", saved))

    async def close(self) -> None:
        """Frees the instance and gives the slot to the next episode. Idempotent; never fails."""
        if self._closed:
            return
        self._closed = True
        hosts = self._hosts
        try:
            if self.fault is None:
                reply = await self._slot.ask("close", (), min(CLOSE_SECONDS, hosts.step_seconds))
                if reply.fault:
                    self.unclosed = reply.detail
                    hosts.counts["close"] += 1
                    await hosts._discard(self._slot, reply)
                elif hosts._finalizer.alive:
                    hosts._idle.append(self._slot)
        except BaseException:
            hosts._drop(self._slot)
            raise
        finally:
            hosts._give_seat()

    async def __aenter__(self) -> Host:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, method: str, *arguments: Any, seconds: float | None = None) -> Reply | Fault:
        if self.fault is not None or self._closed:
            why = f"it had a fault before: {self.fault.detail.splitlines()[0]}" if self.fault else "it was closed"
            return Fault("dead", f"{method} was asked of an instance that is gone; {why}", True)
        try:
            reply = await self._slot.ask(method, arguments, seconds or self._hosts.step_seconds)
            if reply.fault is None:
                return reply
            kind: Any = reply.fault
            self.fault = Fault(kind, reply.detail, kind != "garbage", reply.seconds)
            self._hosts.counts[kind] += 1
            await self._hosts._discard(self._slot, reply)
        except BaseException as error:  # the caller is being cancelled, or stopped: the slot is in the middle of something
            self.fault = self.fault or Fault("dead", f"{method} was given up: {type(error).__name__}", True)
            self._hosts._drop(self._slot)
            raise
        return self.fault

    def _seen(self, answer: Reply | Fault) -> Seen | Fault:
        if isinstance(answer, Fault):
            return answer
        assert answer.state is not None
        return Seen(answer.observation, answer.state, answer.seconds)


def _find(environment: EnvSpec | str) -> EnvSpec:
    if isinstance(environment, EnvSpec):
        return environment
    from milepost.envs.find import find_env

    return find_env(environment)


def _absolute(name: str) -> str:
    """A file's name must mean the same wherever it is read."""
    where, colon, attribute = name.rpartition(":")
    return f"{os.path.abspath(where)}:{attribute}" if colon and where.endswith(".py") else name


def _end(slots: list[Slot], server: Server | None, owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the trainer must not end the hosts of the original
        return
    ending = list(slots)
    slots.clear()
    for slot in ending:
        slot.discard()
    deadline = time.monotonic() + CLOSE_SECONDS
    for slot in ending:
        slot.join(max(0.0, deadline - time.monotonic()))
    if server is not None:
        server.close()
