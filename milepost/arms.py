"""The two arms of an ablation: a recipe, and the same recipe without something, or with something else. Torch-free.

    arms(read_toml(path)[0], without=["milestones"])        with: as it is       without: its milestones removed
    arms(read_toml(path)[0], with_=["kl.beta=0.02"])        with: beta is set    without: as it is

What is removed stands at its default afterwards, also where the recipe's preset would set it, and what does nothing
without it goes with it.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.envs.find import find_env
from milepost.recipe import PRESETS, Recipe, apply_override, iter_settings, make_recipe
from milepost.types import RecipeError

Values = dict[str, Any]
FIXED = ("name", "out", "seed")
"""Settings that belong to the ablation itself."""
TESTED = ("tasks.test", "tasks.sources", "tasks.prompt_column", "tasks.answer_column", "tasks.max_prompt_tokens",
          "tasks.overlong", "env.name", "reward.canary_good", "reward.timeout_seconds", "eval.temperature", "eval.top_p",
          "eval.test_samples", "rollout.max_new_tokens")  # fmt: skip
"""Settings without which the arms would not be tested alike: which rows there are, which of them are left out as too long
or for a gold answer that is judged wrong, and how they are tested. Test tasks are drawn before those of validation, and by
the bare prompt: `validation`, `order`, `system`, `template` and `format` leave them the same."""


@dataclass(frozen=True)
class Change:
    """One setting that the arms do not share, as TOML-like text; "" where it is not there."""

    key: str
    with_: str
    without: str

    def __str__(self) -> str:
        return f"{self.key}: with {self.with_ or 'nothing'}, without {self.without or 'nothing'}"


@dataclass(frozen=True)
class Arms:
    """Both recipes, still without a seed of their own, and what they do not share."""

    what: str
    """The named thing, for sentences and folders."""
    form: str
    """"without" where it was taken out of the recipe, "with" where it was put in."""
    with_: Recipe
    without: Recipe
    changes: tuple[Change, ...]
    went_along: tuple[str, ...] = ()
    """Settings that did nothing any more and were removed with it."""

    @property
    def slug(self) -> str:
        """For folders: without-reward.milestones."""
        return f"{self.form}-" + re.sub(r"[^\w.+]+", "-", self.what).strip("-")

    @property
    def played_apart(self) -> list[str]:
        """Settings that shape the tests too: each arm is tested as it was trained."""
        return [change.key for change in self.changes if change.key.split(".")[0] in ("env", "tasks", "model")]


def arms(values: Mapping[str, Any], *, without: Sequence[str] = (), with_: Sequence[str] = ()) -> Arms:
    """The arms of a recipe's `values` (with overrides applied). Raises RecipeError with one sentence."""
    if bool(without) == bool(with_):
        how = "not both" if without else "one of the two"
        raise RecipeError(
            f"name what the other arm lacks (--without milestones) or has (--with kl.beta=0.02), {how}; the recipe as it "
            "is makes one arm"
        )
    plain = make_recipe(values)
    if with_:
        return _with(values, plain, with_)
    other = copy.deepcopy(dict(values))
    found = [_resolve(name, values, plain) for name in without]
    for path in sorted((path for _, path in found), key=lambda path: (len(path), str(path)), reverse=True):
        _remove(other, path)
    flags = " ".join(f"--without {name}" for name in without)
    recipe, went_along = _made(other, flags)
    return _arms(", ".join(full for full, _ in found), "without", plain, recipe, flags, tuple(went_along))


def _with(values: Mapping[str, Any], plain: Recipe, overrides: Sequence[str]) -> Arms:
    other = copy.deepcopy(dict(values))
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key.split(".")[0] in FIXED:
            raise RecipeError(f"--with {override}: {key} is set by the ablation itself; name another key")
        try:
            apply_override(other, override)
        except RecipeError as error:
            raise RecipeError(f"--with {override}: {error}") from None
    flags = " ".join(f"--with {override}" for override in overrides)
    try:
        recipe = make_recipe(other)
    except RecipeError as error:
        raise RecipeError(f"{flags}: {error}") from None
    return _arms(", ".join(overrides), "with", recipe, plain, flags, ())


def _arms(what: str, form: str, with_: Recipe, without: Recipe, flags: str, went_along: tuple[str, ...]) -> Arms:
    changes = tuple(_changes(with_, without))
    if not changes:
        raise RecipeError(f"{flags}: both arms would be the same, for the recipe has it so already; name something else")
    for change in changes:
        key = next((key for key in TESTED if change.key == key or change.key.startswith(f"{key}.")), "")
        if key:
            raise RecipeError(
                f"{flags}: the arms would differ in {change.key}, so that they would not be tested alike; set it for both "
                f"by an override, such as {key}=VALUE"
            )
    _check_success(with_, without, flags)
    return Arms(what, form, with_, without, changes, went_along)


def _check_success(with_: Recipe, without: Recipe, flags: str) -> None:
    """Final success must mean the same in both arms."""
    one, other = success_rule(with_), success_rule(without)
    if wrong := [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]:
        gate = "gates" in wrong and with_.reward.resolved_combine != without.reward.resolved_combine
        works = 'set reward.combine = "sum" for both, where form is a mere bonus' if gate else "name what is only paid"
        raise RecipeError(
            f"{flags}: it decides what counts as success ({', '.join(f'reward.{key}' for key in sorted(wrong))}), so that "
            f"the arms could not be compared; {works}"
        )


def success_rule(recipe: Recipe) -> dict[str, Any]:
    """Everything a verdict of success is made of, whatever else is paid. An environment's own goal decides alone."""
    reward = recipe.reward
    if recipe.env.name:
        return {}
    labels = {reward.resolved_success, *reward.resolved_gates}
    judges = {f.resolved_label: f.model_dump(exclude={"weight"}) for f in reward.functions if f.resolved_label in labels}
    return {"functions": judges, "success": reward.resolved_success, "success_at": reward.success_at,
            "extract": reward.extract, "gates": sorted(reward.resolved_gates)}  # fmt: skip


# --- what can be named ------------------------------------------------------------------------------------------------

Path = tuple[str | int, ...]


def _resolve(name: str, values: Mapping[str, Any], recipe: Recipe) -> tuple[str, Path]:
    """(full name, path) of what `name` means in this recipe. Raises RecipeError, saying what can be named."""
    if name.split(".")[0] in FIXED:
        raise RecipeError(f"--without {name}: {name} is set by the ablation itself; name another key")
    if "=" in name:
        raise RecipeError(f"--without {name}: only a name is needed, its value is removed; write --with {name} to set it")
    there = [*_walk(values), *_of_preset(recipe, values)]
    for wanted in (name, f"reward.{name}"):
        found = {path: names[-1] for names, path in there if wanted in names}
        if len(found) == 1:
            return next((full, path) for path, full in found.items())
    parts = {
        path: names[-1] for names, path in there for one in names if one.startswith("reward.") and one.endswith(f".{name}")
    }
    if len(parts) == 1:
        return next((full, path) for path, full in parts.items())
    if parts:
        listed = ", ".join(parts.values())
        raise RecipeError(f"--without {name}: several parts of the reward are called so; say which: {listed}")
    raise RecipeError(_nothing_called(name, recipe, [one for names, _ in there for one in names]))


def _walk(values: Mapping[str, Any], path: Path = (), names: Sequence[str] = ("",)) -> Iterator[tuple[list[str], Path]]:
    """(names, path) of everything that a recipe sets. Items of lists are called by number and by their name or label."""
    for key, value in values.items():
        full = [f"{name}.{key}".lstrip(".") for name in names]
        if not path and key in FIXED:
            continue
        yield full, (*path, key)
        if isinstance(value, Mapping):
            yield from _walk(value, (*path, key), full)
        for i, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(item, Mapping):
                own = str(item.get("label") or item.get("name") or item.get("path") or "").rpartition(":")[2]
                called = [f"{name}.{end}" for name in full for end in filter(None, (str(i), own))]
                yield called, (*path, key, i)
                yield from _walk(item, (*path, key, i), called)


def _of_preset(recipe: Recipe, values: Mapping[str, Any]) -> Iterator[tuple[list[str], Path]]:
    """What the preset sets and the recipe itself does not."""
    for section, settings in PRESETS.get(recipe.preset, {}).items():
        if section not in values:
            yield [section], (section,)
        for key in settings:
            if key not in values.get(section, {}):
                yield [f"{section}.{key}"], (section, key)


def _nothing_called(name: str, recipe: Recipe, there: Sequence[str]) -> str:
    keys = {key[:end] for key, _ in iter_settings() for end in (*(m.start() for m in re.finditer(r"\.", key)), len(key))}
    known = next((key for key in (name, f"reward.{name}") if key in keys), "")
    can = ", ".join(_nameable(there))
    if known:
        return (f"--without {name}: the recipe does not set {known}, which is at its default: there is nothing to remove; "
                f"to see what it would do, use {_example(known, recipe)}; the recipe sets {can}")  # fmt: skip
    if recipe.env.name and name in (names := [one.name for one in find_env(recipe.env.name, "env.name").milestones]):
        return (f"--without {name}: the recipe pays no milestone {name}, though {recipe.env.name} has {', '.join(names)}; "
                f"to see what it would do, use --with reward.milestones.{name}=0.1")  # fmt: skip
    ends = {full.split(".")[-1]: full for full in there if full.startswith("reward.")}
    parts = [key.split(".")[1] for key in keys if key.startswith("reward.")]
    near = difflib.get_close_matches(name, [*there, *ends, *sorted(parts)], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"--without {name}: neither a key of this recipe nor a part of its reward; {hint}the recipe sets {can}"


def _nameable(there: Sequence[str]) -> list[str]:
    """A list that fits a sentence: whole sections, and all that the reward is made of."""
    shown = [name for name in there if "." not in name or (name.startswith("reward.") and not re.search(r"\.\d", name))]
    return shown if len(shown) <= 16 else [*shown[:16], "…"]


def _example(key: str, recipe: Recipe) -> str:
    if key != "reward.milestones" or not recipe.env.name:
        return f"--with {key}=VALUE"
    names = [one.name for one in find_env(recipe.env.name, "env.name").milestones]
    return f"--with reward.milestones='{{{names[0]} = 0.1}}'" if names else "--with KEY=VALUE"


# --- taking out -------------------------------------------------------------------------------------------------------


def _remove(values: Values, path: Path) -> None:
    """Takes one thing out of a recipe's values; what the preset would then set is set to its default instead."""
    node: Any = values
    for part in path[:-1]:
        node = node.setdefault(part, {}) if isinstance(node, dict) else node[part]
    if isinstance(node, list):
        del node[int(path[-1])]
    else:
        node.pop(path[-1], None)
    if path == ("preset",):
        return
    preset = PRESETS.get(values.get("preset", ""), {})
    known = dict(iter_settings())
    if len(path) <= 2 and (settings := preset.get(str(path[0]))):
        section = values.setdefault(str(path[0]), {})
        for key in settings if len(path) == 1 else (path[1],) if path[1] in settings else ():
            section[str(key)] = known[f"{path[0]}.{key}"].get_default(call_default_factory=True)


def _made(values: Values, flags: str) -> tuple[Recipe, list[str]]:
    """The recipe, rid of settings that do nothing any more, and which these were."""
    went_along: list[str] = []
    while True:
        try:
            return make_recipe(values), went_along
        except RecipeError as error:
            head = re.split(r" do(?:es)? nothing ", str(error))
            idle = re.findall(r"\b[a-z_]+(?:\.[a-z_0-9]+)+", head[0]) if len(head) > 1 else []
            gone = [key for key in idle if _pop(values, key.split("."))]
            if not gone:
                raise RecipeError(f"{flags}: {error}") from None
            went_along += gone


def _pop(values: Values, keys: Sequence[str]) -> bool:
    node: Any = values
    for key in keys[:-1]:
        node = node.get(key) if isinstance(node, dict) else None
    if not isinstance(node, dict) or keys[-1] not in node:
        return False
    del node[keys[-1]]
    return True


# --- what differs -----------------------------------------------------------------------------------------------------


def _changes(with_: Recipe, without: Recipe) -> Iterator[Change]:
    one, other = (_flat(recipe.model_dump(mode="json")) for recipe in (with_, without))
    for key in dict.fromkeys([*one, *other]):
        if one.get(key, "") != other.get(key, ""):
            yield Change(key, one.get(key, ""), other.get(key, ""))


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Dotted key → text of its value; lists of sections and mappings item by item, empty ones not at all."""
    items: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        items = enumerate(value)
    elif not isinstance(value, dict):
        return {path: "" if value in ([], None) else json.dumps(value, ensure_ascii=False)}
    flat: dict[str, str] = {}
    for key, item in items:
        flat |= _flat(item, f"{path}.{key}".lstrip("."))
    return flat
