"""What can be run in the sandbox, within which limits, and what comes back."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from milepost.sandbox.plain import encode

WARDEN_KILLED = "its warden was killed"


@dataclass(frozen=True)
class Limits:
    """What one run may use at most. Sizes in megabytes (2**20 bytes)."""

    seconds: float = 10.0
    """Wall clock, from the start of the run."""
    idle_seconds: float | None = None
    """Longest wait for the next record of `calls`; None: no such limit."""
    cpu_seconds: int = 10
    """Of each process."""
    memory_mb: int = 256
    """Of each process; where there is a control group, of all together."""
    processes: int = 32
    """Threads included. Without a memory control group a program has threads only."""
    tmp_mb: int = 32
    """All files together."""
    file_mb: int = 16
    """One file."""
    out_bytes: int = 1 << 20
    """Standard output; a run that prints more is ended, unless `stop_at_output` is off: then the rest is thrown away."""
    err_bytes: int = 1 << 16
    """Standard error; what is beyond is thrown away."""
    results_bytes: int = 8 << 20
    """All records together; a run that writes more is ended."""
    stop_at_output: bool = True


@dataclass(frozen=True)
class Run:
    """What to run: made by `program`, `calls` and `checks`. The first job is the one that reports."""

    jobs: tuple[dict[str, Any], ...]
    limits: Limits = Limits()


def program(code: str, stdin: str = "", limits: Limits = Limits()) -> Run:
    """A script with its standard input."""
    return Run(({"role": "program", "code": code, "stdin": stdin},), limits)


def calls(
    code: str, entry: str, arguments: Sequence[tuple[Sequence, dict]], limits: Limits = Limits(), first: int = 0,
    after: bool = True,
) -> Run:  # fmt: skip
    """The function `entry` of the code, called once per (args, kwargs) in one process. "Class.method" makes an instance for
    each call. Records: [index, "value", encoded value, encoded args afterwards if `after`] or [index, "error", class names,
    text]; `first` is the first index, and before it stands [first − 1, "loaded", None, None].
    """
    sent = [[encode(list(args)), encode(dict(kwargs))] for args, kwargs in arguments]
    job = {"role": "calls", "code": code, "entry": entry, "calls": sent, "first": first, "after": after}
    return Run((job,), limits)


def checks(
    code: str, entry: str, tests: Sequence[str], setup: str = "", limits: Limits = Limits(), in_place: bool = False
) -> Run:
    """Trusted test code, run in one process against the untrusted function in another. Records: [index, "pass" | "fail" |
    "bad", text, number of calls of the function]. `in_place`: tests look at what the function did to its arguments.
    """
    judge = {"role": "tests", "entry": entry, "tests": list(tests), "setup": setup, "in_place": in_place}
    return Run((judge, {"role": "solution", "code": code, "entry": entry, "after": in_place}), limits)


@dataclass(frozen=True)
class Ran:
    """What came of a run.

    `ended` says how: "exit" (see `exit_code`), "signal" (see `signal`), "time", "memory", "output", "crash" (it took two
    cells with it), or "broken": the sandbox itself failed, which says nothing about the program.
    """

    ended: str
    exit_code: int | None = None
    signal: str | None = None
    out: str = ""
    err: str = ""
    records: tuple[list, ...] = ()
    """The complete, well-formed records with indices in order; nothing after the first that is not."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    detail: str = ""
    other: Ran | None = None
    """Of `checks`: what came of the process with the untrusted code."""

    @property
    def why(self) -> str:
        """A few words for people."""
        words = {"exit": f"exit status {self.exit_code}", "signal": f"ended by {self.signal}",
                 "time": "over the time limit", "memory": "over the memory limit", "output": "printed too much",
                 "crash": "took its sandbox down twice", "broken": f"the sandbox failed: {self.detail}"}  # fmt: skip
        return words[self.ended]


# --- results --------------------------------------------------------------------------------------------------------


def read_result(message: dict[str, Any], data: list[dict[str, bytearray]], stopped: str) -> Ran:
    """From the keeper's message and what came through the pipes; `stopped` is why the caller ended it, if it did.

    Raises KeyError or TypeError if the message is malformed.
    """
    sides = [_read_side(side, channels, message["seconds"], stopped) for side, channels in zip(message["sides"], data)]
    return replace(sides[0], other=sides[1]) if len(sides) > 1 else sides[0]


def _read_side(side: dict[str, Any], data: dict[str, bytearray], seconds: float, stopped: str) -> Ran:
    number = side.get("signal")
    if side["stopped"] == "asked":
        side["stopped"] = stopped
    ended, detail = "exit", ""
    if "broken" in side:
        ended, detail = "broken", side["broken"]
    elif side["stopped"] in ("time", "output"):
        ended = side["stopped"]
    elif number == signal.SIGXCPU:
        ended = "time"
    elif side["starved"] and (number or side.get("exit_code") is None):
        ended = "memory"
    elif number is not None:
        ended = "signal"
    elif side.get("exit_code") is None and side["stopped"] is None:
        ended, detail = "broken", WARDEN_KILLED
    out, err = (bytes(data[name]).decode("utf-8", "replace") for name in ("out", "err"))
    return Ran(
        ended, side.get("exit_code"), _signal_name(number), out, err, tuple(_records(bytes(data["results"]))), seconds,
        side.get("cpu_seconds", 0.0), side.get("peak_kb", 0) / 1024, detail,
    )  # fmt: skip


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _records(results: bytes) -> list[list]:
    """The lines that are records, in order, up to the first that is not the next one. A program may have written them."""
    found: list[list] = []
    for line in results.split(b"\n")[:-1]:
        try:
            record = json.loads(line, object_pairs_hook=_no_objects, parse_constant=_no_constants)
        except (ValueError, RecursionError):
            break
        expected = found[-1][0] + 1 if found else None
        shaped = isinstance(record, list) and len(record) == 4 and type(record[0]) is int and isinstance(record[1], str)
        if not shaped or (expected is not None and record[0] != expected):
            break
        found.append(record)
    return found


def _no_objects(pairs: Any) -> Any:
    raise ValueError("objects are no records")


def _no_constants(text: str) -> Any:
    raise ValueError("NaN and infinity are written another way")
