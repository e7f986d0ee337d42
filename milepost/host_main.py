"""The side of a host that touches the environment: one instance, asked one thing at a time, every answer checked.

`Instance` runs in a thread of the trainer or in a process of its own. `main` is the program that starts such processes: it
imports the environment once and forks, so that a new process is there in milliseconds. `hosts.py` starts it, nobody else.
Requests arrive pickled from the parent; answers go back as JSON, so nothing an environment wrote is ever unpickled.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import json
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from milepost.env import Environment, EnvSpec, Observation, Script, Snapshots, State, canonical
from milepost.kept import die_with, keep
from milepost.types import Message, MilepostError
from milepost.worker_main import FRAME, resolve

MAX_STATE_CHARS = 4_000_000

ALARM_GRACE_SECONDS = 5.0
_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Reply:
    """What one request came to. Without a fault, `state` is a plain copy of all facts after it."""

    observation: Observation = field(default_factory=Observation)
    state: State | None = None
    saved: bytes | None = None
    can_snapshot: bool = False
    seconds: float = 0.0
    """Spent in the environment's own methods."""
    text: str | None = None
    """What the script writes next; None: nothing more."""
    fault: str | None = None
    """"crash" or "garbage"; `hosts.py` adds "hang" and "dead", which cannot be seen from in here."""
    detail: str = ""
    """First line: one sentence. Then the traceback."""
    interrupt: bool = False
    """The environment raised KeyboardInterrupt: whoever asked must stop too."""


class Instance:
    """At most one environment at a time. Everything happens in the thread that calls `ask`, `make` included, since some
    libraries (sqlite3) insist on it. Async methods run on an event loop of this instance's own, which runs on between
    requests; sync ones never run inside a loop, since some libraries insist on that."""

    def __init__(
        self, make: Callable[[], Environment], *, home: str | None = None, alone: bool = False,
        find_script: Callable[[str], Script] = resolve,
    ) -> None:  # fmt: skip
        """`home`: the working directory, which only environments that have a process `alone` may change; by default the
        present one. `find_script`: what a script's name stands for, where only names can be sent."""
        self.make, self.home, self.alone, self.find_script = make, home or working_directory(), alone, find_script
        self.env: Environment | None = None
        self._given: Any = None
        self._texts: Iterator[str] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task | None = None

    def ask(self, method: str, *arguments: Any) -> Reply:
        """ "open" (task, seed, saved bytes or None), "step" (action), "write" (script, or its name), "snapshot" (),
        "restore" (bytes) or "close" (). The first "write" after "open" starts the script; each asks for its next text.

        Never raises. A fault leaves the instance as it is; only "close" and another "open" are of use then.
        """
        began = time.perf_counter()
        name = {"open": "reset", "write": "script"}.get(method, method)  # as the author of the environment knows it
        if self.alone and method == "open":
            self._go_home()
        try:
            reply = getattr(self, f"_{method}")(*arguments)
            if not self.alone and (where := self._go_home()):
                raise Garbage(f"changed the working directory to {where}, which all episodes and the training share; "
                              "change it back, use whole paths, or set env.isolated = true")  # fmt: skip
        except Garbage as error:
            reply = Reply(fault="garbage", detail=f"{name}: {error}")
        except BaseException as error:  # SystemExit included: it must end the episode, not the host
            what = "".join(traceback.format_exception_only(error)).strip().replace("\n", " ")
            lines = traceback.format_exception(type(error), error, error.__traceback__)
            detail = f"{name}: {what}\n{''.join(lines)[-8000:]}"
            reply = Reply(fault="crash", detail=detail, interrupt=isinstance(error, KeyboardInterrupt))
        return replace(reply, seconds=time.perf_counter() - began)

    def _go_home(self) -> str | None:
        """Back to the working directory; where this process was instead, if it was elsewhere."""
        where = working_directory()
        if where == self.home or self.home is None:
            return None
        with contextlib.suppress(OSError):
            os.chdir(self.home)
        return where or "a folder that is gone"

    def _open(self, task: Any, seed: int, saved: bytes | None) -> Reply:
        self._close()
        self.env, self._given = self.make(), task
        if saved is not None:
            return self._restore(saved)
        observation = checked_observation(self._settled(self.env.reset(task, seed)))
        return self._facts(observation)

    def _step(self, action: Any) -> Reply:
        assert self.env is not None, "step comes after open"
        return self._facts(checked_observation(self._settled(self.env.step(action))))

    def _write(self, script: Script | str) -> Reply:
        assert self.env is not None, "write comes after open"
        if self._texts is None:
            found = self.find_script(script) if isinstance(script, str) else script
            self._texts = iter(found(self._given, self.env))
        text = next(self._texts, None)
        if not isinstance(text, str | None):
            raise Garbage(f"it yielded {type(text).__name__}, not text")
        return Reply(text=text)

    def _snapshot(self) -> Reply:
        if not isinstance(self.env, Snapshots):
            raise TypeError(f"{type(self.env).__name__} has no snapshot() and restore()")
        saved = self._settled(self.env.snapshot())  # type: ignore[attr-defined]
        if not isinstance(saved, bytes):
            raise Garbage(f"snapshot() returned {type(saved).__name__}, not bytes")
        return Reply(saved=saved)

    def _restore(self, saved: bytes) -> Reply:
        if not isinstance(self.env, Snapshots):
            raise TypeError(f"{type(self.env).__name__} has no snapshot() and restore()")
        self._settled(self.env.restore(saved))  # type: ignore[attr-defined]
        return self._facts(Observation())

    def _close(self) -> Reply:
        env, self.env, self._texts = self.env, None, None
        if env is not None:
            self._settled(env.close())  # type: ignore[func-returns-value]  # which may be async as well
        return Reply()

    def _facts(self, observation: Observation) -> Reply:
        assert self.env is not None
        state = plain_copy(self._settled(self.env.state()))
        return Reply(observation, state, can_snapshot=isinstance(self.env, Snapshots))

    def _settled(self, value: Any) -> Any:
        """The value itself, or what comes of it if it is to be awaited."""
        if not inspect.isawaitable(value):
            return value
        if self.loop is None:
            self.loop = asyncio.new_event_loop()

        async def wait() -> Any:
            return await value

        self._task = self.loop.create_task(wait())
        try:
            return self.loop.run_until_complete(self._task)
        finally:
            self._task = None

    def cancel(self) -> None:
        """From another thread: ends an async method that is being waited for."""
        loop, task = self.loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(task.cancel)

    def shut(self) -> None:
        """Closes the environment and the event loop, whatever they say."""
        self.ask("close")
        if self.loop is not None:
            with contextlib.suppress(Exception):
                for task in asyncio.all_tasks(self.loop):
                    task.cancel()
                self.loop.run_until_complete(asyncio.sleep(0))
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
            self.loop = None


def working_directory() -> str | None:
    """None: it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


# --- what an answer must look like ----------------------------------------------------------------------------------


class Garbage(Exception):
    """An environment returned something that is not what the protocol says. The message is one sentence."""


def checked_observation(value: Any) -> Observation:
    """`value` with its messages as tuples. Raises Garbage."""
    if not isinstance(value, Observation):
        raise Garbage(f"returned {type(value).__name__}, not an Observation")
    for name in ("ended", "truncated"):
        if not isinstance(getattr(value, name), bool):
            raise Garbage(f"Observation.{name} = {getattr(value, name)!r}, not True or False")
    if not isinstance(value.num_invalid, int) or isinstance(value.num_invalid, bool) or value.num_invalid < 0:
        raise Garbage(f"Observation.num_invalid = {value.num_invalid!r}, not a count")
    history = None if value.history is None else _checked_messages(value.history, "history")
    return replace(value, messages=_checked_messages(value.messages, "messages"), history=history)


def _checked_messages(messages: Any, name: str) -> tuple[Message, ...]:
    if not isinstance(messages, (tuple, list)):
        raise Garbage(f"Observation.{name} is {type(messages).__name__}, not a tuple of messages")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise Garbage(f'Observation.{name}[{i}] is no message {{"role": ..., "content": text}}: {message!r:.200}')
        if message.get("role") not in _ROLES:
            raise Garbage(f"Observation.{name}[{i}] has the role {message.get('role')!r}, not one of {', '.join(_ROLES)}")
    return tuple(plain_copy(message, f"Observation.{name}[{i}]") for i, message in enumerate(messages))


def plain_copy(state: Any, name: str = "state()") -> dict[str, Any]:
    """A copy that shares nothing with `state`. Raises Garbage for anything but plain JSON with str keys (NaN is none), and
    for what is too large to be kept after every turn."""
    if not isinstance(state, Mapping):
        raise Garbage(f"{name} is {type(state).__name__}, not a mapping of facts")
    state = dict(state)
    try:
        text = canonical(state)
        text.encode()
        if len(text) > MAX_STATE_CHARS:
            raise Garbage(
                f"{name} takes {len(text) / 1e6:.1f} million characters of JSON, {MAX_STATE_CHARS / 1e6:.0f} are allowed, "
                "since every turn keeps a copy: leave out what no goal, milestone or cost reads"
            )
        copy = json.loads(text)
    except UnicodeEncodeError:
        raise Garbage(f"{name} holds text that is not valid Unicode (a lone surrogate)") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise Garbage(_not_plain(state, name) or f"{name} is not plain JSON: {error}") from None
    if copy != state:  # JSON turned a tuple into a list or a number into a key
        raise Garbage(_not_plain(state, name) or f"{name} does not survive the way through JSON")
    return copy


def _not_plain(value: Any, where: str) -> str | None:
    """The first place that is not plain JSON, as a sentence."""
    if value is None or isinstance(value, (str, bool, int)):
        return None
    if isinstance(value, float):
        return None if abs(value) < float("inf") else f"{where} is {value}, which JSON cannot hold"
    if isinstance(value, dict):
        strange = [key for key in value if not isinstance(key, str)]
        if strange:
            return f"{where} has the key {strange[0]!r:.80}; keys must be text"
        found = (_not_plain(item, f"{where}[{key!r}]") for key, item in value.items())
    elif isinstance(value, list):
        found = (_not_plain(item, f"{where}[{i}]") for i, item in enumerate(value))
    else:
        return f"{where} is {value!r:.80} ({type(value).__name__}), which is not plain JSON"
    return next((text for text in found if text), None)


# --- across the pipe ------------------------------------------------------------------------------------------------


def encode(reply: Reply) -> bytes:
    saved = None if reply.saved is None else base64.b64encode(reply.saved).decode()
    return json.dumps({**vars(reply), "observation": vars(reply.observation), "saved": saved}).encode()


def decode(data: bytes) -> Reply:
    """Raises Garbage for anything that is no reply: the process may have been tampered with by what it ran."""
    try:
        body = json.loads(data)
        seen: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in body["observation"].items()
        }
        saved = None if body["saved"] is None else base64.b64decode(body["saved"])
        if not isinstance(body["text"], str | None):
            raise TypeError(f"a text that is {type(body['text']).__name__}")
        return Reply(**{**body, "observation": checked_observation(Observation(**seen)), "saved": saved})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Garbage(f"the process of the environment broke the protocol: {error}") from None


# --- the process of one slot ----------------------------------------------------------------------------------------


def _serve(connection: socket.socket, spec: EnvSpec) -> NoReturn:
    """Answers requests until the parent closes its end. Never returns, so that a fork never runs its parent's code."""
    instance = Instance(spec.make, alone=True, find_script=partial(_script, spec))
    me = os.getpid()
    with contextlib.suppress(OSError, EOFError):
        _send(connection, encode(Reply()))
        while True:
            _wait(connection, instance.loop)
            size, seconds = FRAME.unpack(_read(connection, FRAME.size))
            method, *arguments = pickle.loads(_read(connection, size))
            # The backstop in case the parent is gone: the kernel ends this process, whatever the code does or locks.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds + ALARM_GRACE_SECONDS)
            reply = instance.ask(method, *arguments)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if os.getpid() != me:  # the environment forked and came back twice
                os._exit(1)
            _send(connection, encode(reply))
    os._exit(0)  # threads that an environment left behind must not keep the process alive


GOLD, KNOWN_BAD = "gold", "known-bad/"


def _script(spec: EnvSpec, name: str) -> Script:
    """ "gold", "known-bad/NAME", or module:function."""
    if name.startswith(KNOWN_BAD):
        return spec.known_bad[name.removeprefix(KNOWN_BAD)]
    found: Any = spec.gold if name == GOLD else resolve(name)
    return found


def _wait(connection: socket.socket, loop: asyncio.AbstractEventLoop | None) -> None:
    """Until there is something to read. What an async environment does in the background goes on meanwhile."""
    if loop is None:
        return

    async def readable() -> None:
        there = asyncio.Event()
        loop.add_reader(connection, there.set)
        await there.wait()
        loop.remove_reader(connection)

    loop.run_until_complete(readable())


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(FRAME.pack(len(data), 0) + data)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def _settle_in(folder: str, parent: int) -> None:
    """A fresh process: its own group, and its own folder for temporary files."""
    with contextlib.suppress(PermissionError):
        os.setsid()
    die_with(parent, signal.SIGKILL)
    os.makedirs(folder, exist_ok=True)
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None


# --- the program that starts them -----------------------------------------------------------------------------------


def main() -> None:
    """argv: descriptor of the control socket, name of the environment, and for a process on its own its folder."""
    descriptor, name, *rest = sys.argv[1:]
    sys.argv = ["milepost-host"]
    control = socket.socket(fileno=int(descriptor))
    if rest:
        _settle_in(rest[0], os.getppid())
        _serve(control, _find(name))
    try:
        spec = _find(name)
    except BaseException as error:
        ours = isinstance(error, MilepostError)
        what = str(error) if ours else " ".join("".join(traceback.format_exception_only(error)).split())
        if not ours:
            traceback.print_exc()
        _send(control, json.dumps({"failure": what, "ours": ours}).encode())
        raise SystemExit(1) from None
    _send(control, json.dumps({"failure": None}).encode())
    with contextlib.suppress(OSError, EOFError):
        _serve_starts(control, name, spec)


def _find(name: str) -> EnvSpec:
    """As `find_env`, which loads much that is only needed to say what is wrong with a name."""
    if ":" in name:
        with contextlib.suppress(Exception):
            found: Any = resolve(name)
            if isinstance(found, EnvSpec):
                return found
    from milepost.envs.find import find_env

    return find_env(name)


def _serve_starts(control: socket.socket, name: str, spec: EnvSpec) -> None:
    """Each request is one JSON object: {"fork": folder} with the new process's socket, or {"kill": pid}."""
    children: set[int] = set()
    try:
        while True:
            data, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 1)
            if not data:
                return
            request = json.loads(data)
            if "fork" in request:
                pid = _fork(socket.socket(fileno=descriptors[0]), control, name, spec, request["fork"])
                children.add(pid)
                _send(control, json.dumps(pid).encode())
            else:
                children.discard(request["kill"])
                _send(control, json.dumps(_kill(request["kill"])).encode())
    finally:
        for pid in children:
            _kill(pid)


def _fork(theirs: socket.socket, control: socket.socket, name: str, spec: EnvSpec, folder: str) -> int:
    """Starts the keeper of one slot's process. Where imports left threads behind, forking alone would copy their locks."""
    me = os.getpid()
    alone = threading.active_count() == 1 and _num_threads() == 1
    pid = os.fork()
    if pid:
        theirs.close()
        return pid

    def work() -> None:
        if not alone:
            theirs.set_inheritable(True)
            boot = ["-c", BOOT, json.dumps(sys.path), str(theirs.fileno()), name, folder]
            os.execv(sys.executable, [sys.executable, "-s", "-P", "-u", *boot])
        _settle_in(folder, os.getppid())
        _serve(theirs, spec)

    try:
        control.close()
        keep(work, me)
    finally:
        os._exit(1)


BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); from milepost.host_main import main; main()"
"""How the program is started: with its parent's search path."""


def _num_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def _kill(pid: int) -> str:
    """Ends a slot's process and all it started; how it had ended if it was dead already. Only here are keepers waited for,
    so that the id cannot have gone to somebody else."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return "was not there"
    return f"exit status {code}" if code >= 0 else f"signal {-code}"
