"""An environment by its name: one of those that ship, or the user's own. Torch-free."""

from __future__ import annotations

import difflib
import importlib

from milepost.env import EnvSpec
from milepost.sources import load_named
from milepost.types import RecipeError

SHIPPED = ("calc", "desk", "maze", "repair")


def find_env(name: str, setting: str = "env") -> EnvSpec:
    """The environment called `name`, or the EnvSpec at "module:object" or "file.py:object". Case E12: asked at the start.

    Raises RecipeError naming `setting`.
    """
    if name in SHIPPED:
        spec: EnvSpec = importlib.import_module(f"milepost.envs.{name}").SPEC
        return spec
    if ":" in name:
        found: EnvSpec = load_named(name, setting, "EnvSpec", _is_spec, _is_spec)
        return found
    near = difflib.get_close_matches(name.lower(), SHIPPED, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise RecipeError(f"{setting} = {name!r} is no environment; {hint}there are {', '.join(SHIPPED)}, or name your own as "
                      "module:object or file.py:object")  # fmt: skip


def _is_spec(value: object) -> bool:
    return isinstance(value, EnvSpec)
