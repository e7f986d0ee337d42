"""Where rows come from: JSONL files, data sets, Python functions and reasoning-gym families. Torch-free.

A source is read into `SourceRows`: mappings with their line numbers, and the lines that were no rows at all.
`shape.py` makes a task of each row.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from milepost.families import Draw, derived_seed, draw_families, unpack
from milepost.sections import SourceSection
from milepost.types import RecipeError

Generate = Callable[..., Iterator[Mapping[str, Any]]]


@dataclass(frozen=True)
class BadRow:
    """A row that gave no task. `line` counts from 1: lines of a JSONL file, rows of anything else."""

    source: str
    line: int
    cause: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.source} line {self.line}: {self.cause}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class SourceRows:
    """What one source held. `prompt_column` and `answer_column` override the recipe's where the source knows better."""

    name: str
    weight: float
    rows: Sequence[tuple[int, Mapping[str, Any]]]
    bad: Sequence[BadRow]
    prompt_column: str | None = None
    answer_column: str | None = None
    gold_optional: bool = False
    by_row: bool = False
    """Two rows are the same task only if all columns agree, not just their prompts (environments)."""
    num_repeated: int = 0
    """Draws that repeated an earlier one (generated sources)."""
    note: str = ""


def source_name(source: SourceSection) -> str:
    """The name in keys and metrics: `name`, else the file's stem, the data set's path or the function's spec."""
    if source.kind == "environment":
        return source.name or "environment"
    return source.name or (Path(source.path).stem if source.kind == "jsonl" else source.path)


def read_sources(sources: Sequence[SourceSection], seed: int, generate: Generate | None = None) -> list[SourceRows]:
    """Reads every `tasks.sources` entry, in order. Raises RecipeError when a source itself is unusable.

    `generate(size, seed, **params)` makes the rows of sources of the kind "environment".
    """
    for position, source in enumerate(sources):
        if source.kind == "environment":
            _check_environment(source, f"tasks.sources[{position}]", generate)
        elif not source.path and not (source.kind == "reasoning_gym" and source.name):
            raise RecipeError(f"tasks.sources[{position}].path is empty; {_WANTED[source.kind]}")
    families = _read_families({i: source for i, source in enumerate(sources) if source.kind == "reasoning_gym"}, seed)
    readers = _READERS | {"environment": partial(_read_environment, generate)}
    return [families[i] if i in families else readers[source.kind](source, seed, f"tasks.sources[{i}]")
            for i, source in enumerate(sources)]  # fmt: skip


_WANTED = {
    "jsonl": "give the JSONL file, for example path = \"tasks.jsonl\"",
    "datasets": "give a data set that load_dataset or load_from_disk can read, or pass rows= from Python",
    "environment": "",
    "function": 'give module:function or file.py:function, for example path = "my_tasks.py:rows"',
    "reasoning_gym": 'name the family, for example name = "chain_sum"',
}  # fmt: skip


def _read_jsonl(source: SourceSection, seed: int, setting: str) -> SourceRows:
    if source.params:
        raise RecipeError(f"{setting}.params does nothing for a JSONL file; remove it")
    name = source_name(source)
    rows: list[tuple[int, Mapping[str, Any]]] = []
    bad: list[BadRow] = []
    try:
        with open(source.path, "rb") as file:
            for line, raw in enumerate(file, start=1):
                if source.size and len(rows) >= source.size:
                    break
                row = _parse_line(raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw, name, line)
                if isinstance(row, BadRow):
                    bad.append(row)
                elif row is not None:
                    rows.append((line, row))
    except OSError as error:
        raise RecipeError(f"{setting}.path = {source.path!r}: {error.strerror or error}; give a JSONL file that can be "
                          f"read from {Path.cwd()}") from error  # fmt: skip
    if not rows and bad and bad[0].detail.startswith("["):
        raise RecipeError(f"{setting}.path = {source.path!r} holds one JSON array; write one object per line instead")
    return SourceRows(name, source.weight, rows, bad)


def _parse_line(raw: bytes, name: str, line: int) -> dict[str, Any] | BadRow | None:
    """A row, a bad row, or None for a blank line."""
    if not raw.strip():
        return None
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRow(name, line, "not JSON", f"not UTF-8 at byte {error.start}")
    except (ValueError, RecursionError):  # not JSON, a number of thousands of digits, nested too deeply
        return BadRow(name, line, "not JSON", _short(raw.decode("utf-8").strip()))
    return row if isinstance(row, dict) else BadRow(name, line, "not an object", _short(json.dumps(row)))


def texts_of(path: str | Path) -> list[str]:
    """Every text of a JSONL file's prompts (text or messages), answers and completions, in order, for a vocabulary.

    Answers that are numbers count as they are printed. Raises RecipeError if there is none.
    """
    try:
        held = _read_jsonl(SourceSection(kind="jsonl", path=str(path)), 0, "--texts")
    except RecipeError as error:
        raise RecipeError(str(error).replace("--texts.path", "--texts")) from error
    fields = ("prompt", "answer", "expected_answer", "completion")
    texts = [text for _, row in held.rows for field in fields for text in _texts(row.get(field))]
    if not texts:
        raise RecipeError(f"--texts = {str(path)!r} holds no prompt, answer or completion; give a JSONL file of tasks or "
                          "demonstrations")  # fmt: skip
    return texts


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return _texts(value.get("content"))
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [] if value is None else [str(value)]


def _read_datasets(source: SourceSection, seed: int, setting: str) -> SourceRows:
    try:
        import datasets
    except ImportError as error:
        raise RecipeError(
            f'{setting}.kind = "datasets" needs the package datasets; pip install "milepost[datasets]"'
        ) from error
    path = os.path.expanduser(source.path)
    _refuse_missing(path, setting)
    folder = Path(path)
    saved = any((folder / marker).is_file() for marker in ("dataset_info.json", "dataset_dict.json"))
    if saved and source.params:
        raise RecipeError(f"{setting}.params does nothing for a data set saved to disk; remove it")
    try:
        held = datasets.load_from_disk(path) if saved else datasets.load_dataset(path, **source.params)
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{setting}.path = {source.path!r} cannot be loaded as a data set: {_short(error)}; check the "
                          "path, its params and the network") from error  # fmt: skip
    return rows_in_memory(held, source_name(source), source.weight, source.size)


_BUILDERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".txt": "text", ".parquet": "parquet",
             ".arrow": "arrow"}  # fmt: skip


def _refuse_missing(path: str, setting: str) -> None:
    """load_dataset asks the hub for whatever is no folder here, and asks again: half a minute for a misspelt file."""
    first, *rest = path.split("/")
    builder = _BUILDERS.get(Path(path).suffix.lower())
    on_hub = "://" in path or path.startswith("buckets/")
    local = path.startswith(("/", ".", "~")) or builder or len(rest) > 1 or (rest and Path(first).is_dir())
    if on_hub or not local or Path(path).is_dir():
        return
    if Path(path).is_file():
        raise RecipeError(f"{setting}.path = {path!r} is a file, which load_dataset takes by its kind: set path = "
                          f'"{builder or "json"}" and params = {{ data_files = "{path}" }}')  # fmt: skip
    named = f', or write "hf://datasets/{path}" if it is meant on the hub' if len(rest) == 1 and first not in "~.." else ""
    raise RecipeError(f"{setting}.path = {path!r}: there is no such file or folder in {Path.cwd()}; correct it{named}")


def rows_in_memory(held: Any, name: str, weight: float = 1.0, size: int = 0) -> SourceRows:
    """Rows of a datasets object, a list of mappings, or a mapping from split names to either (adds a split column)."""
    parts = held.items() if isinstance(held, Mapping) else [(None, held)]
    flat = ({**row, "split": row.get("split") or label} if label and isinstance(row, Mapping) else row
            for label, part in parts for row in part)  # fmt: skip
    rows, bad = _number(itertools.islice(flat, size) if size else flat, name)
    return SourceRows(name, weight, rows, bad)


def _number(values: Iterable[Any], name: str) -> tuple[list[tuple[int, Mapping[str, Any]]], list[BadRow]]:
    rows: list[tuple[int, Mapping[str, Any]]] = []
    bad: list[BadRow] = []
    for line, row in enumerate(values, start=1):
        if isinstance(row, Mapping):
            rows.append((line, row))
        else:
            bad.append(BadRow(name, line, "not an object", _short(row)))
    return rows, bad


def _read_function(source: SourceSection, seed: int, setting: str) -> SourceRows:
    function = load_function(source.path, f"{setting}.path")
    name = source_name(source)
    arguments = accepted(function, {"size": source.size, "seed": seed}) | dict(source.params)
    try:
        with isolated_random(seed, name):
            made = function(**arguments)
            rows, bad = _number(itertools.islice(made, source.size) if source.size else made, name)
    except (Exception, SystemExit) as error:
        given = ", ".join(sorted(arguments)) or "nothing"
        raise RecipeError(f"{setting}.path = {source.path!r}: the function raised {type(error).__name__}: {_short(error)}; "
                          f"it was called with {given} and must return rows") from error  # fmt: skip
    return SourceRows(name, source.weight, rows, bad)


def accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Of the keywords offered, those that the function takes."""
    known = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
    return {key: value for key, value in offered.items() if takes_any or key in known}


def _check_environment(source: SourceSection, setting: str, generate: Generate | None) -> None:
    if generate is None:
        raise RecipeError(f'{setting}.kind = "environment" needs env.name, for example "calc"')
    if source.path:
        raise RecipeError(f"{setting}.path does nothing for an environment's own tasks; remove it (env.name says which)")
    if source.size < 1:
        raise RecipeError(f"{setting}.size = {source.size}: a generated source needs to know how many rows; 1000 works")


def _read_environment(generate: Generate | None, source: SourceSection, seed: int, setting: str) -> SourceRows:
    assert generate is not None
    name = source_name(source)
    told = f"{setting}.params = {source.params}" if source.params else setting
    found = generated(generate, source.size, seed, source.params, told)
    rows, bad = _number(found, name)
    return SourceRows(name, source.weight, rows, bad, prompt_column="prompt", answer_column="none", by_row=True)


def generated(generate: Generate, size: int, seed: int, params: Mapping[str, Any], setting: str) -> list[Any]:
    """At most `size` rows of an environment's generator. Raises RecipeError, beginning with `setting`, if it takes no such
    difficulty, refuses it, or breaks."""
    signature = inspect.signature(generate)
    known = ", ".join(k for k in signature.parameters if k not in ("size", "seed")) or "no difficulty"
    try:
        signature.bind(size, seed, **params)
        return list(itertools.islice(generate(size, seed, **params), size))
    except (Exception, SystemExit) as error:
        where = _line_of(error, getattr(generate, "__code__", None))
        if where is None or isinstance(error, RecipeError):  # it never began, or says itself what is wrong
            raise RecipeError(f"{setting}: {_short(error)}; the environment takes {known}") from error
        raise RecipeError(
            f"{setting}: the environment's generate(size={size}, seed={seed}) raised {type(error).__name__}: "
            f"{_short(error)}, in {where}; it takes {known}"
        ) from error


def _line_of(error: BaseException, code: CodeType | None) -> str | None:
    """The innermost line of the function's own file that the error went through; without one, the innermost of all. None
    where nothing of the function ran."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    for frame in (own or frames)[-1:]:
        return None if frame.filename == inspect.__file__ else f"{frame.filename}, line {frame.lineno}"
    return None


def load_function(spec: str, setting: str) -> Callable[..., Any]:
    """The function named by "module:function" or "file.py:function". Raises RecipeError naming `setting`."""
    return load_named(spec, setting, "function", callable, inspect.isfunction)


def load_named(spec: str, setting: str, kind: str, fits: Callable[[Any], bool], listed: Callable[[Any], bool]) -> Any:
    """What "module:name" or "file.py:name" names, if `fits`; otherwise RecipeError with the names that are `listed`."""
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise RecipeError(f"{setting} = {spec!r} must look like module:{kind} or file.py:{kind}")
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{setting} = {spec!r}: {where} cannot be imported ({type(error).__name__}: {_short(error)}); "
                          "check the name and where it is run from") from error  # fmt: skip
    found = getattr(module, name, None)
    if not fits(found):
        public = sorted(key for key, value in vars(module).items() if listed(value) and not key.startswith("_"))
        raise RecipeError(f"{setting} = {spec!r}: {where} has no {kind} {name!r}; it has {', '.join(public) or 'none'}")
    return found


def _load_file(path: Path) -> Any:
    # The name holds the path's hash, so that two files called tasks.py do not replace each other.
    name = f"milepost_user_{path.stem}_{hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None or not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module


@contextlib.contextmanager
def isolated_random(seed: int, label: str) -> Iterator[None]:
    """Python's and numpy's global generators, seeded by (seed, label) inside and put back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(derived_seed(seed, label))
    np.random.seed(derived_seed(seed, label))
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _read_families(sources: Mapping[int, SourceSection], seed: int) -> dict[int, SourceRows]:
    """All reasoning-gym sources at once, by position: one child process draws them."""
    requests = []
    for position, source in sources.items():
        family = source.path or source.name
        _check_family(family, source, f"tasks.sources[{position}]")
        own = source.params.get("seed")
        requests.append(Draw(family, {k: v for k, v in source.params.items() if k != "seed"}, source.size,
                             seed if own is None else int(own), source_name(source)))  # fmt: skip
    if not requests:
        return {}
    replies = draw_families(requests)
    if replies is None:
        raise RecipeError(f'tasks.sources[{next(iter(sources))}].kind = "reasoning_gym" needs the package reasoning-gym; '
                          'pip install "milepost[demo]"')  # fmt: skip
    pairs = zip(requests, replies, strict=True)
    return {position: _family_rows(source, position, *pair) for (position, source), pair in zip(sources.items(), pairs)}


def _family_rows(source: SourceSection, position: int, request: Draw, reply: Mapping[str, Any]) -> SourceRows:
    setting, family, name = f"tasks.sources[{position}]", request.family, request.label
    if "known" in reply:
        near = difflib.get_close_matches(family, reply["known"], n=3, cutoff=0.5)
        hint = f"close: {', '.join(near)}" if near else f"there are {len(reply['known'])}, for example chain_sum and gcd"
        raise RecipeError(f"{setting}.name = {family!r} is no reasoning-gym family; {hint}")
    if "error" in reply:
        raise RecipeError(f"{setting}.params of {family} were refused: {reply['error']}; the family takes "
                          f"{', '.join(reply['fields']) or 'no parameters'}")  # fmt: skip
    rows = [(line, {"prompt": entry["question"], "answer": unpack(entry["answer"]), "family": family,
                    "params": dict(request.params), "entry": entry}) for line, entry in reply["rows"]]  # fmt: skip
    note = "" if len(rows) == source.size else (f"{name}: only {len(rows)} distinct tasks of size = {source.size} exist or "
                                                f"could be drawn in {reply['num_draws']} draws")  # fmt: skip
    return SourceRows(name, source.weight, rows, [], prompt_column="prompt", answer_column="answer", gold_optional=True,
                      num_repeated=reply["num_draws"] - len(rows), note=note)  # fmt: skip


def _check_family(family: str, source: SourceSection, setting: str) -> None:
    if family == "composite":
        raise RecipeError(
            f'{setting}.name = "composite" is refused; name its families as several tasks.sources with weights'
        )
    if source.size < 1:
        raise RecipeError(f"{setting}.size = {source.size}: a generated source needs to know how many rows; 1000 works")
    if "size" in source.params:
        raise RecipeError(f"{setting}.params.size does nothing; set {setting}.size instead")


def _short(value: Any, limit: int = 120) -> str:
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(str(value).split()))  # a terminal would obey
    return text if len(text) <= limit else text[: limit - 1] + "…"


_READERS: dict[str, Callable[[SourceSection, int, str], SourceRows]] = {
    "jsonl": _read_jsonl,
    "datasets": _read_datasets,
    "function": _read_function,
}
