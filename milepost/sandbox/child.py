"""What runs beside untrusted code in its own process: loads it, calls it, and writes down what it returns, as data.

    program    the code as a script: standard input and output, exit status
    calls      the code as a module; one record per call: [index, "value", encoded value, encoded arguments afterwards],
               or [index, "error", [class names], text]; before the first one [index − 1, "loaded", None, None]
    solution   the code as a module, called by another process: one answer of the same form per request
    tests      that other process: runs trusted tests on a stand-in for the function: [index, "pass" | "fail", text, calls]

Untrusted code shares this process and may change all of it. That is no way to a reward: nothing here knows what is
expected, and a record is only a claim about a value. Standard library only.
"""

from __future__ import annotations

import atexit
import builtins
import io
import json
import linecache
import os
import re
import struct
import sys
import threading
import traceback
import types
import weakref
from typing import Any

from milepost.sandbox.plain import NotPlain, decode, encode

RESULTS, FROM_PEER, TO_PEER = 3, 4, 5
FILE = "solution.py"
MAX_MESSAGE = 8 << 20
_SIZE = struct.Struct(">I")
_NAME, _MODULE, _MRO = (type.__dict__[name].__get__ for name in ("__name__", "__module__", "__mro__"))
"""Of a class, past what its metaclass may say."""
_BUILTIN = {name: kind for name, kind in vars(builtins).items()
            if isinstance(kind, type) and issubclass(kind, BaseException)}  # fmt: skip
_OPENED: list[weakref.ref] = []
"""What was opened on a descriptor: it is written out at the end, as the interpreter would."""
_STREAM = re.compile(r"/dev/(?:(stdin)|(stdout)|(stderr))|/(?:dev|proc/self)/fd/(\d{1,3})", re.ASCII)


def run(job: dict[str, Any]) -> int:
    """Plays the job's role; returns the exit status."""
    _offer_streams()
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        errors = "backslashreplace" if name == "stderr" else "surrogateescape" if name == "stdin" else "surrogatepass"
        raw: Any = open(fd, mode + "b", closefd=False)  # noqa: SIM115
        raw.raw.name = f"<{name}>"
        stream = io.TextIOWrapper(
            raw, "utf-8", errors, newline=None if mode == "r" else "\n", line_buffering=name == "stderr"
        )
        stream.mode = mode  # type: ignore[misc]  # as the interpreter does; headers for fast input read it
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    role = {"program": _program, "calls": _calls, "solution": _solution, "tests": _tests}[job["role"]]
    return _finish(role(job))


def _offer_streams() -> None:
    """/dev/stdin and its like are there for whoever opens them in Python. As files they would need /proc, which stays out;
    what is opened so is another descriptor of a stream that this process has already."""
    open_: Any = io.open
    os_open = os.open

    def stream(file: Any) -> int | None:
        path = os.fspath(file) if isinstance(file, os.PathLike) else file
        found = _STREAM.fullmatch(os.fsdecode(path)) if isinstance(path, (str, bytes)) else None
        return None if found is None else os.dup(int(found[4]) if found[4] else (found.lastindex or 1) - 1)

    def open(file: Any, *args: Any, opener: Any = None, **named: Any) -> Any:
        fd = stream(file) if opener is None else None
        opened = open_(file if fd is None else fd, *args, opener=opener, **named)
        if fd is not None or isinstance(file, int):
            _OPENED.append(weakref.ref(opened))
        return opened

    def open_low(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd = stream(path)
        return os_open(path, flags, mode, dir_fd=dir_fd) if fd is None else fd

    builtins.open = io.open = open  # type: ignore[assignment]
    os.open = open_low  # type: ignore[assignment]
    os.supports_dir_fd.add(open_low)


def _finish(code: int) -> int:
    """As the interpreter ends: other threads, atexit, buffers."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for opened in _OPENED:
            if (file := opened()) is not None and not file.closed:
                file.flush()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        return code or 120
    return code


def _load(code: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = FILE
    sys.modules[name] = module
    linecache.cache[FILE] = (len(code), None, code.splitlines(keepends=True), FILE)  # for tracebacks and inspect
    exec(compile(code, FILE, "exec", dont_inherit=True), module.__dict__)
    return module


def _program(job: dict[str, Any]) -> int:
    sys.argv = [FILE]
    try:
        _load(job["code"], "__main__")
    except SystemExit as ending:
        return _exit_code(ending)
    except BaseException as error:
        _complain(error)
        return 1
    return 0


def _exit_code(ending: SystemExit) -> int:
    if ending.code is None or isinstance(ending.code, int):
        return (ending.code or 0) & 0xFF
    print(ending.code, file=sys.stderr)
    return 1


def _complain(error: BaseException) -> str:
    """The traceback below the code's first frame, also to standard error; frames of this file are left out at both ends."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    last, at = trace, trace
    while at is not None:
        last = at if at.tb_frame.f_code.co_filename != __file__ else last
        at = at.tb_next
    if last is not None:
        last.tb_next = None
    text = "".join(traceback.format_exception(type(error), error, trace, limit=20))
    print(text, end="", file=sys.stderr, flush=True)
    return text


# --- a function, called with given arguments ------------------------------------------------------------------------


def _find(module: types.ModuleType, path: str) -> Any:
    """The function; of a class the method of a new instance, so that no call sees another's state. Raises KeyError and
    AttributeError.
    """
    first, *rest = path.split(".")
    if first not in module.__dict__ and hasattr(module.__dict__.get("Solution"), first):
        first, rest = "Solution", [first]  # as on the sites where such tasks come from
    found = module.__dict__[first]
    if rest and isinstance(found, type):
        found = found()
    for name in rest:
        found = getattr(found, name)
    return found


def _answer(module: types.ModuleType, entry: str, args: Any, kwargs: Any, after: bool) -> list[Any]:
    try:
        function = _find(module, entry)
    except (KeyError, AttributeError):
        return ["error", ["NameError"], f"the code defines no {entry}"]
    except BaseException as error:
        return _failure(error)
    try:
        value = function(*args, **kwargs)
        return ["value", encode(value), encode(list(args)) if after else None]
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> list[Any]:
    text = _complain(error)
    return ["error", [name for kind in _MRO(type(error)) for name in _names_of(kind)], text[-2000:]]


def _names_of(kind: type) -> list[str]:
    """What a class of exceptions may be asked for by: ValueError is the built-in one alone, json.JSONDecodeError also
    JSONDecodeError and json.decoder.JSONDecodeError."""
    name, module = str(_NAME(kind)), str(_MODULE(kind))
    if name in _BUILTIN:  # OSError goes by EnvironmentError and IOError too
        return [known for known, one in _BUILTIN.items() if one is kind] or [f"{module}.{name}"]
    parts = module.split(".")
    homes = [".".join(parts[:size]) for size in range(1, len(parts) + 1)]
    return [name, *(f"{home}.{name}" for home in homes if getattr(sys.modules.get(home), name, None) is kind)]


def _calls(job: dict[str, Any]) -> int:
    """One record per call, after one that says that the code is loaded."""
    try:
        module = _load(job["code"], "solution")
    except BaseException as error:
        _complain(error)
        return 1
    _write_all(RESULTS, (json.dumps([job["first"] - 1, "loaded", None, None]) + "\n").encode())
    for index, (args, kwargs) in enumerate(job["calls"], job["first"]):
        record = [index, *_answer(module, job["entry"], decode(args), decode(kwargs), job["after"])]
        _write_all(RESULTS, (json.dumps(record) + "\n").encode())
    return 0


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


# --- trusted tests in one process, the untrusted function in another ------------------------------------------------


def _send(message: list[Any]) -> None:
    data = json.dumps(message).encode()
    if len(data) > MAX_MESSAGE:
        raise NotPlain("a value too large to be a result")
    _write_all(TO_PEER, _SIZE.pack(len(data)) + data)


def _receive() -> list[Any]:
    """Raises EOFError when the other side is gone or talks nonsense."""
    size = _SIZE.unpack(_read(_SIZE.size))[0]
    if size > MAX_MESSAGE:
        raise EOFError("a message too large")
    try:
        return json.loads(_read(size), object_pairs_hook=_no_objects)
    except (ValueError, RecursionError) as error:
        raise EOFError(f"not a message: {error}") from None


def _no_objects(pairs: list) -> Any:
    raise ValueError("objects are no encoded values")


def _read(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(FROM_PEER, min(size - len(data), 1 << 16))
        if not chunk:
            raise EOFError("the other process has ended")
        data += chunk
    return bytes(data)


def _solution(job: dict[str, Any]) -> int:
    """Answers requests until the other side closes. The first message says whether the code could be loaded."""
    try:
        module = _load(job["code"], "solution")
        try:
            _find(module, job["entry"])
        except (KeyError, AttributeError):
            raise NameError(f"the code defines no {job['entry']}") from None
    except BaseException as error:
        _send(["broken", _complain(error)[-2000:]])
        return 1
    _send(["ready"])
    while True:
        try:
            args, kwargs = _receive()
        except EOFError:
            return 0
        _send(_answer(module, job["entry"], decode(args), decode(kwargs), job["after"]))


class SolutionDied(BaseException):
    """The process of the function is gone. No `except Exception` of a test catches it."""


class _StandIn:
    """What tests call in place of the function: arguments travel there as data, the value comes back as data.

    What the function does to its arguments is copied back only `in_place`: else it could empty a list that the test goes on
    to compute its expectation from.
    """

    def __init__(self, name: str, in_place: bool) -> None:
        self.__name__, self.in_place, self.num_calls, self.died = name, in_place, 0, ""
        self.open()

    def open(self) -> None:
        try:
            first = _receive()
            self.died = "" if first == ["ready"] else str(first[1])
        except (EOFError, IndexError, TypeError):
            self.died = "the code ended its process while it was loaded"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        if self.died:
            raise SolutionDied(self.died)
        try:
            _send([encode(list(args)), encode(kwargs)])
            kind, *rest = _receive()
            if kind == "value":
                value, after = decode(rest[0]), decode(rest[1]) if self.in_place else ()
                for mine, theirs in zip(args, after if isinstance(after, list) else ()):
                    _copy_back(mine, theirs)
                return value
            names, text = rest
        except (EOFError, OSError, ValueError, TypeError) as error:
            self.died = f"the code ended its process: {error}"
            raise SolutionDied(self.died) from None
        raise _exception(names, str(text))


def _copy_back(mine: Any, theirs: Any) -> None:
    """What the function did to its arguments in place."""
    if type(mine) is type(theirs) and isinstance(mine, list):
        mine[:] = theirs
    elif type(mine) is type(theirs) and isinstance(mine, (dict, set)):
        mine.clear()
        mine.update(theirs)


def _exception(names: Any, text: str) -> Exception:
    """The built-in exception closest to what was raised there: tests may ask for a ValueError."""
    for name in names if isinstance(names, list) else ():
        kind = getattr(builtins, str(name), None)
        # One that ends an iteration would end the loop of a test that maps the function over its cases.
        if isinstance(kind, type) and issubclass(kind, Exception) and kind not in (StopIteration, StopAsyncIteration):
            try:
                return kind(text)
            except TypeError:  # some want more arguments
                continue
    return RuntimeError(text)


def _tests(job: dict[str, Any]) -> int:
    """Each test is run by itself; `check(candidate)` is called where a test defines it. A test that cannot be compiled
    or raises before it calls the function is "bad". Without a record: the setup failed."""
    stand_in = _StandIn(job["entry"], job["in_place"])
    space: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(compile(job["setup"], "setup.py", "exec", dont_inherit=True), space)
    except BaseException as error:
        _complain(error)
        return 1
    for index, test in enumerate(job["tests"]):
        space |= {job["entry"].rpartition(".")[2]: stand_in, "candidate": stand_in, "check": None}
        before = stand_in.num_calls
        verdict, text = "pass", ""
        try:
            exec(compile(test, "test.py", "exec", dont_inherit=True), space)
            if callable(space["check"]):
                space["check"](stand_in)
        except SolutionDied as error:
            verdict, text = "fail", str(error)
        except BaseException as error:
            verdict = "fail" if stand_in.num_calls > before else "bad"
            text = _complain(error)
        if stand_in.died and verdict == "pass":
            verdict, text = "fail", stand_in.died
        record = [index, verdict, text[-2000:], stand_in.num_calls - before]
        _write_all(RESULTS, (json.dumps(record) + "\n").encode())
    return 0
