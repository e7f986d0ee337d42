"""The votes of a judge, kept by the content of the question, so that the same thing is asked once and reruns are equal."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from milepost.types import RecipeError
from milepost.verifiers.judge_prompt import PROTOCOL, Vote

log = logging.getLogger("milepost.reward")


@dataclass(frozen=True)
class Cast:
    """One vote: what was read, and the end of what was said; or why there is none."""

    vote: Vote | None
    reply: str = ""
    cause: str = ""


def name_of(parts: Sequence[Any]) -> str:
    """Of one vote: a hash of everything that it depends on, `parts` and the words that a judge is asked in."""
    return hashlib.sha256(json.dumps([PROTOCOL, *parts], sort_keys=True).encode()).hexdigest()


class Cache:
    """Votes by name: in memory, or a file each, which several processes may share. A file that is not whole is none."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser() if folder else None
        self._votes: dict[str, Cast] = {}
        if self._folder:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RecipeError(f"the judge's cache = {folder!r} cannot be made ({error.strerror}); give a folder that "
                                  "can be written to") from None  # fmt: skip

    def get(self, name: str) -> Cast | None:
        if self._folder is None:
            return self._votes.get(name)
        try:
            kept = json.loads(self._path(self._folder, name).read_text(encoding="utf-8"))
            if kept["name"] == name and kept["vote"] in get_args(Vote):
                return Cast(kept["vote"], str(kept["reply"]))
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            pass
        return None

    def put(self, name: str, cast: Cast) -> None:
        if self._folder is None:
            self._votes[name] = cast
            return
        path = self._path(self._folder, name)
        try:
            path.parent.mkdir(exist_ok=True)
            handle, work = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with open(handle, "w", encoding="utf-8") as file:
                    json.dump({"name": name, **asdict(cast)}, file)
                os.replace(work, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(work)
                raise
        except OSError as error:
            log.warning("a judge's vote could not be kept in %s (%s); it will be asked again", path, error.strerror)

    @staticmethod
    def _path(folder: Path, name: str) -> Path:
        return folder / name[:2] / f"{name[2:]}.json"
