"""Where what is kept between runs lies."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """$MILEPOST_CACHE, else $XDG_CACHE_HOME/milepost, else ~/.cache/milepost."""
    if os.environ.get("MILEPOST_CACHE"):
        return Path(os.environ["MILEPOST_CACHE"]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "milepost"
