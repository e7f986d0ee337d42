"""What of this machine a sandboxed program gets to see: the Python runtime, read-only, and nothing else."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from milepost.types import RecipeError

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_THIRD_PARTY = ("site-packages", "dist-packages")


def runtime(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Paths, all absolute. Raises RecipeError for a package that is not installed.

    folders: mounted read-only. links: {path: target} besides. covers: folders within these that stay hidden: what is
    installed beside the standard library, which may hold data sets with their answers. package_parts: shown all the same.
    readable, listable: the same without mounts: paths to read whole, folders of which the names alone may be seen.
    """
    library = os.path.dirname(os.__file__)  # a virtual environment's own scheme names another place
    wanted = {library, sysconfig.get_config_var("DESTSHARED") or library, "/usr/share/zoneinfo"}
    if os.path.realpath(sys.base_prefix) not in ("/usr", "/"):
        wanted.add(os.path.join(sys.base_prefix, "lib"))
    triplet = sysconfig.get_config_var("MULTIARCH") or ""
    links = {}
    for place in ("/lib", "/usr/lib", "/lib64", "/usr/lib64"):
        if os.path.islink(place):
            links[place] = os.readlink(place)
        own = os.path.join(place, triplet)
        wanted.add(own if triplet and os.path.isdir(own) else place)
    folders = _outermost(path for path in wanted if os.path.isdir(path) and not _below_link(path, links))
    covers = sorted({path for folder in folders for path in _third_party(folder, library)})
    parts, homes = _package_parts(packages)
    readable: list[str] = []
    listable: list[str] = []
    for folder in folders:
        _without(folder, covers, readable, listable)
    devices = [path for path in DEVICES if os.path.exists(path)]
    return {"folders": folders, "links": links, "covers": covers, "devices": devices, "packages": list(packages),
            "package_parts": parts, "package_folders": homes, "readable": [*readable, *parts],
            "listable": [*listable, *homes]}  # fmt: skip


def _below_link(path: str, links: dict[str, str]) -> bool:
    return any(path == link or path.startswith(link + "/") for link in links)


def _outermost(paths: Any) -> list[str]:
    found: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(outer + "/") for outer in found):
            found.append(path)
    return found


def _third_party(folder: str, library: str) -> list[str]:
    inside = [os.path.join(library, name) for name in _THIRD_PARTY if library.startswith(folder)]
    for name in _THIRD_PARTY:
        inside += glob.glob(f"{folder}/{name}") + glob.glob(f"{folder}/python3*/{name}")
    return [path for path in inside if os.path.isdir(path)]


def _without(folder: str, covers: list[str], readable: list[str], listable: list[str]) -> None:
    """Splits a folder so that its covered parts stay out."""
    if folder in covers:
        return
    if not any(cover.startswith(folder + "/") for cover in covers):
        readable.append(folder)
        return
    listable.append(folder)
    for entry in os.scandir(folder):
        _without(entry.path, covers, readable, listable)


def _package_parts(packages: Sequence[str]) -> tuple[list[str], list[str]]:
    """The folders and files of packages and of what these need, with shared libraries; and the folders above."""
    parts: dict[str, None] = {}
    homes: list[str] = []
    for name in packages:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None or not spec.origin:
            raise RecipeError(f"sandbox: package {name!r} is not installed here; install it or leave it out")
        path = os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin
        homes.append(os.path.dirname(path))
        parts |= dict.fromkeys([path, *filter(os.path.isdir, (f"{path}.libs",)), *_needed(name)])
    return list(parts), list(dict.fromkeys(homes))


def _needed(package: str) -> list[str]:
    """What the package's distribution installed, and those that it requires; nothing where no distribution is known."""
    names = metadata.packages_distributions().get(package, [])
    found: dict[str, metadata.Distribution] = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            held = metadata.distribution(name)
            if (known := held.metadata["Name"].lower()) not in found:
                found[known] = held
                required = (re.match(r"[\w.-]+", line) for line in held.requires or () if "extra ==" not in line)
                names += [match[0] for match in required if match]
    tops = {str(held.locate_file(file.parts[0])) for held in found.values() for file in held.files or ()}
    return sorted(path for path in tops if os.path.exists(path) and os.path.basename(path) not in ("..", "__pycache__"))
