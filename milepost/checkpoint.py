"""Weights and state on disk: all of a checkpoint or none of it.

    checkpoints/step-000120/  model/          a plain Hugging Face folder
                              masters.pt      optimizer.pt …: one file per state dict, read with weights_only=True
                              state.json      everything that is not a tensor: {"state": …, "values": …}
                              manifest.json   step, and size and SHA-256 of every file; written last

A checkpoint is written beside its final place, flushed to the disk and renamed, so its name alone says that it is whole.
The manifest finds what happened to it later. Old ones go only after the new one stands.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from milepost.disk import StoreError, disk_problem

MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d+)(\.replaced)?")


def save_checkpoint(
    folder: str | Path,
    step: int,
    *,
    write_policy: Callable[[Path], None],
    tensors: Mapping[str, Any],
    state: Mapping[str, Any],
    keep: int = 1,
    best: int | None = None,
) -> Path:
    """Writes `folder/step-NNNNNN` and then removes all complete ones but the `keep` latest and the one of step `best`.

    `write_policy(path)` creates the folder `path`. `tensors` holds state dicts and plain values beside them, as a
    learner's `state()` gives them; `state` plain values with text keys. Raises StoreError when the disk is full; older
    checkpoints stay as they were.
    """
    folder = Path(folder)
    values = {name: value for name, value in tensors.items() if not isinstance(value, Mapping)}
    dicts = {name: value for name, value in tensors.items() if isinstance(value, Mapping)}
    for name, value in dicts.items():
        _check_tensors(value, name)
    _check_json(values, "tensors")
    _check_json(state, "state")
    draft, final = folder / f".step-{step:06d}.tmp", folder / f"step-{step:06d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        draft.mkdir()
        write_policy(draft / "model")
        for name, value in dicts.items():
            torch.save(value, draft / f"{name}.pt")
        (draft / "state.json").write_text(json.dumps({"state": state, "values": values}), encoding="utf-8")
        _write_manifest(draft, step)
        _put_in_place(draft, final)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        problem = disk_problem(error)
        if problem is None:
            raise
        raise StoreError(_sentence(folder, step, problem)) from error
    prune(folder, keep=keep, best=best)
    return final


def latest(folder: str | Path, warn: Callable[[str], None] = warnings.warn) -> Path | None:
    """The newest checkpoint that is whole, or None. Damaged ones are passed over, each with a warning that says why."""
    for path in reversed(_candidates(Path(folder))):
        problem = damage(path, thorough=True)
        if problem is None:
            return path
        warn(f"checkpoint {path} is ignored: {problem}; an older one is used if there is one")
    return None


def load_checkpoint(path: str | Path, *, map_location: Any = "cpu") -> tuple[dict[str, Any], dict[str, Any]]:
    """(tensors, state) as they were saved. Raises StoreError if the checkpoint is incomplete or damaged."""
    path = Path(path)
    problem = damage(path, thorough=True)
    if problem is not None:
        raise StoreError(f"checkpoint {path} cannot be used: {problem}; give another one of {path.parent}")
    tensors = {
        file.stem: torch.load(file, map_location=map_location, weights_only=True) for file in sorted(path.glob("*.pt"))
    }
    values, state = read_plain(path)
    return {**tensors, **values}, state


def read_plain(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the values that stood beside the tensors, the state) of a checkpoint: what it says without its tensors."""
    plain = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return plain["values"], plain["state"]


def steps(folder: str | Path) -> list[int]:
    """Steps with a checkpoint that looks whole by its manifest's sizes, ascending."""
    return sorted({_step(path) for path in _candidates(Path(folder)) if damage(path) is None})


def path_of(folder: str | Path, step: int) -> Path:
    """The checkpoint of one step. Raises StoreError, naming those that exist."""
    for path in reversed(_candidates(Path(folder))):
        if _step(path) == step and damage(path) is None:
            return path
    have = ", ".join(map(str, steps(folder))) or "none"
    raise StoreError(f"{folder} holds no complete checkpoint of step {step}; it has: {have}")


def damage(path: Path, *, thorough: bool = False) -> str | None:
    """What is wrong with a checkpoint: None if every file has its size (and, if `thorough`, its SHA-256)."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        for name, (size, digest) in manifest["files"].items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} bytes instead of {size}"
            if thorough and _sha256(file) != digest:
                return f"{name} differs from what was written"
    except FileNotFoundError:
        return f"it has no {MANIFEST}, so it was not finished"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its {MANIFEST} is unreadable ({error})"
    return None


def prune(folder: str | Path, *, keep: int, best: int | None = None) -> None:
    """Removes complete checkpoints except the `keep` latest and that of step `best`, and damaged ones older than those."""
    paths = _candidates(Path(folder))
    whole = [path for path in paths if damage(path) is None]
    kept = {_step(path) for path in whole[-max(1, keep) :]} | {best}
    for path in paths:
        if _step(path) not in kept and whole and _step(path) < _step(whole[-1]):
            _remove(path)


# Private


def _candidates(folder: Path) -> list[Path]:
    """By step; at the same step the one being replaced comes first, so that the last whole one is the newest."""
    found = (
        [path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and path.is_dir()] if folder.is_dir() else []
    )
    return sorted(found, key=lambda path: (_step(path), not path.name.endswith(".replaced")))


def _step(path: Path) -> int:
    match = NAME.fullmatch(path.name)
    assert match
    return int(match[1])


def _put_in_place(draft: Path, final: Path) -> None:
    """A folder cannot be renamed over another, so an old one of this step stays readable as .replaced meanwhile."""
    replaced = final.with_name(final.name + ".replaced")
    if final.exists():
        os.rename(final, replaced)
    os.rename(draft, final)
    _sync(final.parent)
    if replaced.exists():
        _remove(replaced)


def _remove_leftovers(folder: Path) -> None:
    """What a killed save left behind. Safe because a run has one writer."""
    for path in folder.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob("step-*.replaced"):
        final = path.with_name(path.name.removesuffix(".replaced"))
        if final.exists() and damage(final) is None:
            _remove(path)
        elif not final.exists():
            os.rename(path, final)


def _remove(path: Path) -> None:
    """Renamed first: a removal that is killed half-way must not look like a checkpoint."""
    trash = path.with_name(f".{path.name}.gone")
    shutil.rmtree(trash, ignore_errors=True)
    os.rename(path, trash)
    shutil.rmtree(trash, ignore_errors=True)


def _write_manifest(draft: Path, step: int) -> None:
    files = {}
    for file in sorted(path for path in draft.rglob("*") if path.is_file()):
        _sync(file)
        files[file.relative_to(draft).as_posix()] = [file.stat().st_size, _sha256(file)]
    manifest = draft / MANIFEST
    manifest.write_text(json.dumps({"step": step, "files": files}, indent=1), encoding="utf-8")
    _sync(manifest)
    for path in [*(path for path in draft.rglob("*") if path.is_dir()), draft]:
        _sync(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sentence(folder: Path, step: int, problem: str) -> str:
    have = steps(folder)
    before = f"the one of step {have[-1]} is intact" if have else "there is no earlier one"
    free = shutil.disk_usage(folder if folder.is_dir() else folder.parent).free / 1e9
    return (
        f"the checkpoint of step {step} could not be written to {folder} ({problem}; {free:.1f} GB free); {before}; free "
        "some space there and `milepost resume` the run"
    )


def _check_tensors(value: Any, where: str) -> None:
    """What weights_only would refuse to load must be refused while there is still something to save."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_tensors(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check_tensors(item, f"{where}[{i}]")
    elif value is not None and type(value) not in (bool, int, float, str) and not isinstance(value, torch.Tensor):
        raise TypeError(f"{where} is a {type(value).__name__}; a checkpoint holds tensors and plain values only")


def _check_json(value: Any, where: str) -> None:
    """JSON would turn other keys into text and tuples into lists without a word, and a resumed run would differ."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; a checkpoint's state has text keys only")
            _check_json(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check_json(item, f"{where}[{i}]")
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"{where} is a {type(value).__name__}; a checkpoint's state holds plain values only")
