"""An environment by its name: one of those that ship, or the user's own. Torch-free."""

from __future__ import annotations

import difflib
import importlib
import importlib.util

from milepost.env import EnvSpec
from milepost.sources import load_named
from milepost.types import RecipeError

SHIPPED = ("calc", "desk", "maze", "repair", "corridor")
FOREIGN = {"frozen_lake": ("gymnasium", "gymnasium"), "taxi": ("gymnasium", "gymnasium"),
           "cliff_walking": ("gymnasium", "gymnasium"), "babyai": ("minigrid", "minigrid"),
           "textworld": ("textworld", "textworld"), "bfcl": ("bfcl_eval", "")}  # fmt: skip
"""Worlds of other packages: the package they need, and the extra that installs it."""
WITHOUT_EXTRA = {"bfcl": "pip install --no-deps 'bfcl-eval>=2026.3.23'"}
"""Where an extra would not do: BFCL's wheel pins numpy 1.26 and dozens of packages that its data and APIs do not need."""


def find_env(name: str, setting: str = "env") -> EnvSpec:
    """The environment called `name`, or the EnvSpec at "module:object" or "file.py:object". Case E12: asked at the start.

    Raises RecipeError naming `setting`.
    """
    if name in FOREIGN:
        package, extra = FOREIGN[name]
        if importlib.util.find_spec(package) is None:
            how = WITHOUT_EXTRA.get(name, f"pip install 'milepost[{extra}]'")
            raise RecipeError(f"{setting} = {name!r} needs the package {package}; install it with {how}")
    if name in SHIPPED or name in FOREIGN:
        spec: EnvSpec = importlib.import_module(f"milepost.envs.{name}").SPEC
        return spec
    if ":" in name:
        found: EnvSpec = load_named(name, setting, "EnvSpec", _is_spec, _is_spec)
        return found
    known = (*SHIPPED, *FOREIGN)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise RecipeError(f"{setting} = {name!r} is no environment; {hint}there are {', '.join(known)}, or name your own as "
                      "module:object or file.py:object")  # fmt: skip


def _is_spec(value: object) -> bool:
    return isinstance(value, EnvSpec)
