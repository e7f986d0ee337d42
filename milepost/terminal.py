"""Stored text on a terminal: shown, never obeyed, and always inside its frame. Torch-free.

What a policy or an environment wrote may hold escape sequences, controls that move the cursor, and characters that hide
others or turn them around. `visible` spells all of them out; `framed` breaks lines by the cells they take, so that each
carries its gutter and none can pass for a line of the program's own.
"""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from rich.cells import get_character_cell_size

Span = tuple[str, str]
"""(text, style); a style is the parameters of an SGR sequence, such as "1" for bold, or "" for none."""
BOLD, DIM = "1", "2"
MOST_MARKS = 4
"""Combining marks on one character; more of them would pile up over other lines."""


def screen(out: IO[str]) -> tuple[int, bool]:
    """(columns, whether colours are wanted) of an output. What its encoding lacks becomes a question mark from then on."""
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="replace")
    if not out.isatty():
        return 0, False
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return shutil.get_terminal_size((100, 24)).columns, not plain


def visible(text: str) -> str:
    """The text with everything spelled out that a terminal would obey or hide; line breaks stay.

    Controls become their pictures (␛), other invisible characters their code, such as ⟨200b⟩.
    """
    if text.isascii() and text.isprintable():
        return text
    out, marks = [], 0
    for c in text:
        marks = marks + 1 if unicodedata.category(c) in ("Mn", "Me") else 0
        shown = c == "\n" or (c.isprintable() and marks <= MOST_MARKS) or unicodedata.category(c) == "Zs"
        out.append(c if shown else _spelled(c))
    return "".join(out)


def _spelled(c: str) -> str:
    return chr(0x2400 + ord(c)) if c < " " else "␡" if c == "\x7f" else f"⟨{ord(c):x}⟩"


def cells(text: str) -> int:
    """Columns that a visible text without line breaks takes."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


def painted(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text


def framed(spans: Iterable[Span], gutter: str, width: int, *, color: bool) -> list[str]:
    """Lines of at most `width` columns, each behind the gutter. Texts of the spans may be anything."""
    lines: list[list[Span]] = [[]]
    room = full = max(8, width - cells(gutter))
    for text, style in spans:
        for i, piece in enumerate(visible(text).split("\n")):
            if i:
                lines.append([])
                room = full
            for part, size in _cut(piece, room, full):
                if size > room:
                    lines.append([])
                    room = full
                lines[-1].append((part, style if color else ""))
                room -= size
    return [gutter + "".join(painted(text, style) for text, style in line) for line in lines]


def _cut(text: str, room: int, full: int) -> Iterator[tuple[str, int]]:
    """(part, its columns): the first part fits into `room` columns, or is empty; the others into `full` each."""
    if text.isascii() and len(text) <= room:
        yield text, len(text)
        return
    start, size = 0, 0
    for i, c in enumerate(text):
        more = get_character_cell_size(c)
        if size + more > room:
            yield text[start:i], size
            start, size, room = i, 0, full
        size += more
    yield text[start:], size


def table(rows: Sequence[Sequence[str]], left: int = 1, width: int = 0) -> list[str]:
    """Columns side by side; the first `left` of them start at the left, the others end at the right. The first row names
    them. Lines longer than `width` (0: any) are cut with an ellipsis."""
    shown = [[visible(cell).replace("\n", "␊") for cell in row] for row in rows]
    sizes = [max(map(cells, column)) for column in zip(*shown)]
    lines = []
    for row in shown:
        padded = [cell + " " * (size - cells(cell)) if i < left else " " * (size - cells(cell)) + cell
                  for i, (cell, size) in enumerate(zip(row, sizes))]  # fmt: skip
        lines.append(shortened("  ".join(padded).rstrip(), width))
    return lines


def shortened(text: str, width: int) -> str:
    """A visible text of one line, at most `width` columns long (0: any)."""
    if not width or cells(text) <= width:
        return text
    size = 0
    for i, c in enumerate(text):
        size += get_character_cell_size(c)
        if size > width - 1:
            return text[:i] + "…"
    return text
