"""Progress with an estimate of the time left: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized

LINE_EVERY_SECONDS = 10.0


def say(text: str) -> None:
    """One line for people, on standard error, so that standard output stays data."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """`for step in Progress(range(9), "GRPO")` shows count, time, time left and what `note` was given last."""

    def __init__(self, items: Iterable, label: str, total: int | None = None) -> None:
        self.items = items
        self.label = label
        self.total = len(items) if total is None and isinstance(items, Sized) else total
        self.text = ""

    def note(self, text: str) -> None:
        self.text = text

    def __iter__(self) -> Iterator:
        began = shown = time.monotonic()
        on_terminal = sys.stderr.isatty()
        done = 0
        for item in self.items:
            yield item
            done += 1
            now = time.monotonic()
            if on_terminal:
                print("\r\x1b[2K" + self._line(done, now - began), end="", file=sys.stderr, flush=True)
            elif now - shown >= LINE_EVERY_SECONDS or done == self.total:
                say(self._line(done, now - began))
                shown = now
        if on_terminal and done:
            print(file=sys.stderr, flush=True)

    def _line(self, done: int, seconds: float) -> str:
        left = "" if not self.total else f", {clock((self.total - done) * seconds / done)} left"
        count = f"{done}/{self.total}" if self.total else f"{done}"
        return f"{self.label} {count} ({clock(seconds)}{left})" + (f"  {self.text}" if self.text else "")


def clock(seconds: float) -> str:
    """75 → "1:15"."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
