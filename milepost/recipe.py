"""One TOML file per run, typed. Unknown or contradictory keys are refused in a sentence that names a working value.

`load_recipe(path, overrides)` is the only way in. Every setting carries its reason, the range that tutorials give and
the symptom that moves it; `defaults_table()` generates the documentation page from them. The settings themselves stand
in `sections` and `reward_sections`.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, model_validator

from milepost.credit_sections import CreditSection
from milepost.lever_sections import LeversSection, check_levers
from milepost.reward_sections import RewardSection
from milepost.sections import (
    CorrectionSection,
    EnvSection,
    EvalSection,
    GrpoSection,
    KlSection,
    LossSection,
    ModelSection,
    OptimizerSection,
    RolloutSection,
    SaveSection,
    Section,
    SftSection,
    TasksSection,
    UpdateSection,
    as_toml,
    setting,
)
from milepost.types import RecipeError


class Recipe(Section):
    """A whole run."""

    name: str = setting("run", "names the run directory")
    seed: int = setting(0, "everything random derives from it", ge=0)
    out: str = setting("runs", "where run directories go")
    preset: Literal[
        "",
        "grpo",
        "dr_grpo",
        "dapo",
        "trl",
        "deepseek_r1",
        "rloo",
        "gspo",
        "cispo",
        "sapo",
        "mt_grpo",
        "gigpo",
        "hgpo",
        "vineppo",
        "tree_grpo",
    ] = setting("", "expands into credit, loss and kl settings and prints them")
    model: ModelSection = Field(default_factory=ModelSection)
    tasks: TasksSection = Field(default_factory=TasksSection)
    reward: RewardSection = Field(default_factory=RewardSection)
    rollout: RolloutSection = Field(default_factory=RolloutSection)
    env: EnvSection = Field(default_factory=EnvSection)
    credit: CreditSection = Field(default_factory=CreditSection)
    loss: LossSection = Field(default_factory=LossSection)
    kl: KlSection = Field(default_factory=KlSection)
    correction: CorrectionSection = Field(default_factory=CorrectionSection)
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    update: UpdateSection = Field(default_factory=UpdateSection)
    levers: LeversSection = Field(default_factory=LeversSection)
    sft: SftSection = Field(default_factory=SftSection)
    grpo: GrpoSection = Field(default_factory=GrpoSection)
    eval: EvalSection = Field(default_factory=EvalSection)
    save: SaveSection = Field(default_factory=SaveSection)

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        if self.update.minibatches > self.rollout.prompts_per_step:
            raise ValueError(
                f"update.minibatches = {self.update.minibatches} deals out whole groups, but there are only "
                f"rollout.prompts_per_step = {self.rollout.prompts_per_step}; use at most that"
            )
        if self.loss.objective == "cross_entropy" and self.grpo.steps:
            raise ValueError('loss.objective = "cross_entropy" ignores rewards; use "clip" for grpo')
        if self.loss.objective == "dppo_tv" and self.correction.kind not in ("auto", "none"):
            raise ValueError(
                f'correction.kind = "{self.correction.kind}" does nothing while loss.objective = "dppo_tv", whose '
                'ratio is to the sampler already; remove it, or set loss.objective = "clip"'
            )
        _check_credit_of_reward(self)
        _check_stop_rules(self)
        check_levers(self)
        if self.env.name and self.reward.functions:
            raise ValueError(
                f'reward.functions does nothing while env.name = "{self.env.name}", whose own goal judges; remove it, and '
                "say what else counts with reward.milestones and reward.costs"
            )
        if self.env.tool_format == "model" and self.tasks.format == "text":
            raise ValueError(
                'env.tool_format = "model" hands the tools to the chat template, which tasks.format = "text" leaves out; '
                'set tasks.format = "chat", or env.tool_format = "terse"'
            )
        if not self.env.name and any(lesson.size for lesson in self.sft.lessons):
            raise ValueError('sft.lessons.size has an environment make tasks, but env.name is empty; name one, for example '
                             'env.name = "desk", or leave size out to show the training tasks')  # fmt: skip
        if not self.env.name and any(source.kind == "environment" for source in self.tasks.sources):
            raise ValueError('tasks.sources: kind = "environment" needs env.name, for example "calc"')
        names = [s.name or s.path for s in self.tasks.sources]
        if len(set(names)) != len(names):
            raise ValueError("tasks.sources: two sources share a name; give each its own `name`")
        return self

    @property
    def eval_every(self) -> int:
        return self.eval.every or max(1, min(100, self.grpo.steps // 10 or 1))

    @property
    def save_every(self) -> int:
        return self.save.every or self.eval_every


def _check_stop_rules(recipe: Recipe) -> None:
    """Refuses a rule for a reason that ends no episode of this recipe."""
    env, rules = recipe.env, recipe.rollout.stop_rules
    for reason, rule in rules.items():
        if rule == recipe.rollout.model_copy(update={"stop_rules": {}}).stop_rule(reason):
            continue  # what holds anyway may be said
        if not env.name and reason not in ("tokens", "context"):
            raise ValueError(f"rollout.stop_rules.{reason} does nothing while env.name is empty: single answers are cut by "
                             "tokens or context alone; remove it")  # fmt: skip
        for own, key in (("tool_calls", "max_tool_calls"), ("time", "max_seconds")):
            if reason == own and not getattr(env, key):
                raise ValueError(f"rollout.stop_rules.{reason} does nothing while env.{key} = 0, for no episode ends by "
                                 f"it; set env.{key}, or remove it")  # fmt: skip


def _check_credit_of_reward(recipe: Recipe) -> None:
    """Refuses rewards that the credit rule would drop, and credit settings that GDPO would drop."""
    reward, credit = recipe.reward, recipe.credit
    if credit.rule in ("anchor", "branch") and not recipe.env.name:
        raise ValueError(f'credit.rule = "{credit.rule}" needs states to come back to, and single answers have none; set '
                         'env.name, or credit.rule = "episode"')  # fmt: skip
    if credit.rule == "branch":
        _check_branch_points(recipe)
    if credit.rule == "value" and 0 < recipe.grpo.steps <= credit.value_warmup:
        raise ValueError(
            f"credit.value_warmup = {credit.value_warmup} lasts for all of grpo.steps = {recipe.grpo.steps}, so that "
            'credit.rule = "value" never has a say and every step follows episode credit; set credit.value_warmup to at '
            f"most {recipe.grpo.steps - 1}, or raise grpo.steps"
        )
    if (reward.milestone_form == "potential" or reward.potential) and not credit.by_turn:
        instead = 'reward.milestone_form = "bonus"' if reward.milestone_form == "potential" else "reward.potential = 0"
        form = ' of anchor = "graph"' if credit.anchor == "graph" else ""
        raise ValueError(
            f"potential shaping with `{credit.rule}` credit{form} has no effect: Φ is 0 at every end, so that it adds the "
            f'same to each member of a group; set credit.rule = "turn", or {instead}'
        )
    if reward.combine != "gdpo":
        return
    others = (
        ("credit.scale", credit.scale, "none"),
        ("credit.baseline", credit.baseline, "auto"),
        ("credit.rule", credit.rule, "episode"),
        ("kl.place", recipe.kl.place, "loss"),
    )
    for key, value, needed in others:
        if value != needed:
            raise ValueError(
                f'{key} = "{value}" has no place beside reward.combine = "gdpo", which normalises each part of an '
                f'episode\'s reward by itself; set {key} = "{needed}", or reward.combine = "sum"'
            )
    if reward.length.form in ("gr3", "l1_max"):
        raise ValueError(
            f'reward.length.form = "{reward.length.form}" multiplies success and is no part that reward.combine = "gdpo" '
            'could normalise; use reward.length.form = "kimi" or "overlong"'
        )
    if recipe.rollout.truncated == "soft":
        raise ValueError(
            'rollout.truncated = "soft" is no part that reward.combine = "gdpo" could normalise; use reward.length.form = '
            '"overlong"'
        )


def _check_branch_points(recipe: Recipe) -> None:
    """Refuses branch points that no episode comes to: the start is none, nor is the end."""
    branches, turns = recipe.credit.branches, recipe.env.max_turns
    if turns == 1:
        raise ValueError(
            'credit.rule = "branch" branches behind the first turn, but env.max_turns = 1 allows no other; raise '
            'env.max_turns, or set credit.rule = "episode"'
        )
    if branches.at == "every" and branches.every >= turns:
        raise ValueError(
            f"credit.branches.every = {branches.every} is never reached, for env.max_turns = {turns} ends every episode "
            f"before; use at most {turns - 1}"
        )


# What each preset expands into. Sources: DeepSeekMath 2402.03300, Dr. GRPO 2503.20783, DAPO 2503.14476, TRL 1.16
# defaults, DeepSeek-R1 (ε = 10, β = .001), RLOO 2402.14740, GSPO 2507.18071, CISPO 2506.13585, SAPO 2511.20347.
# Credit over turns: MT-GRPO 2505.11821, GiGPO 2505.10978 (without std), HGPO 2602.22817, VinePPO 2410.01679, Tree-GRPO
# 2509.21240.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "grpo": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "clip", "aggregate": "sequence_mean"},
        "kl": {"beta": 0.04, "estimator": "k3"},
    },
    "dr_grpo": {
        "credit": {"baseline": "mean", "scale": "none"},
        "loss": {"objective": "clip", "aggregate": "constant"},
    },
    "dapo": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "clip", "clip_low": 0.2, "clip_high": 0.28, "aggregate": "token_mean"},
    },
    "trl": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "clip", "aggregate": "token_mean"},
    },
    "deepseek_r1": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "clip", "clip_low": 10.0, "clip_high": 10.0, "aggregate": "sequence_mean"},
        "kl": {"beta": 0.001, "estimator": "k3"},
    },
    "rloo": {
        "credit": {"baseline": "loo", "scale": "none"},
        "loss": {"objective": "clip", "aggregate": "sequence_mean"},
    },
    "gspo": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "aggregate": "sequence_mean"},
    },
    "cispo": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "cispo_cap", "cispo_cap": 5.0, "aggregate": "token_mean"},
    },
    "sapo": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "sapo", "aggregate": "sequence_mean"},
    },
    "mt_grpo": {
        "credit": {"rule": "turn", "turns": "first", "baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
    },
    "gigpo": {"credit": {"rule": "anchor", "gamma": 0.95, "baseline": "mean"}},
    "hgpo": {"credit": {"rule": "anchor", "gamma": 0.95, "history": 2, "baseline": "mean", "scale": "group"}},
    "vineppo": {"credit": {"rule": "branch", "branches": {"form": "vine"}}},
    "tree_grpo": {
        "credit": {"rule": "branch", "baseline": "mean", "scale": "group", "std": "sample", "branches": {"form": "tree"}},
    },
}


ANY = ("any but empty",)
IDLE_UNLESS: tuple[tuple[str, tuple[str, ...], str, tuple[str, ...]], ...] = (
    ("credit", ("std", "delta"), "scale", ("group", "batch", "source")),
    ("loss", ("clip_low", "clip_high"), "objective", ("clip", "gspo", "gspo_token", "cispo_clip")),
    ("loss", ("dual_clip",), "objective", ("clip", "gspo", "gspo_token")),
    ("loss", ("ratio",), "objective", ("clip",)),
    ("loss", ("cispo_cap",), "objective", ("cispo_cap",)),
    ("loss", ("sapo_tau_positive", "sapo_tau_negative"), "objective", ("sapo",)),
    ("loss", ("gmpo_clip",), "objective", ("gmpo",)),
    ("loss", ("dppo_delta",), "objective", ("dppo_tv",)),
    ("loss", ("constant",), "aggregate", ("constant",)),
    ("correction", ("cap",), "kind", ("tis", "auto")),
    ("correction", ("low", "high"), "kind", ("mis",)),
    ("correction", ("sequence_low", "sequence_high"), "kind", ("geometric_mask",)),
    ("env", tuple(key for key in EnvSection.model_fields if key != "name"), "env.name", ANY),
    ("reward", ("outcome", "milestones", "potential", "costs", "turn_scorers"), "env.name", ANY),
    ("reward", ("success", "success_at", "extract", "canary_good", "several_answers"), "env.name", ("",)),
)
"""(section, settings, the switch they depend on, the values of it with which they do something). A switch of another
section has a dot."""


def load_recipe(path: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a TOML recipe and applies dotted `key=value` overrides. Raises RecipeError with one sentence."""
    values, text = ({}, "") if path is None else read_toml(path)
    for override in overrides:
        apply_override(values, override)
    try:
        return make_recipe(values)
    except RecipeError as error:
        there = _line_of_first(str(error), text, [override.partition("=")[0].strip() for override in overrides])
        raise RecipeError(f"{error} ({Path(path).name}, line {there})" if path and there else str(error)) from None


def read_toml(path: str | Path) -> tuple[dict[str, Any], str]:
    """(what a TOML file says, its text), unchecked. Raises RecipeError with one sentence."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        return tomllib.loads(text), text
    except OSError as error:
        raise RecipeError(f"recipe {path}: {error.strerror or error}; `milepost init` writes one") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path} is not valid TOML: {error}") from error


def make_recipe(values: Mapping[str, Any], *, idle: bool = False) -> Recipe:
    """Validates a nested mapping over its preset. Settings without effect beside the others are refused unless `idle`."""
    merged = json.loads(json.dumps(values, default=str))  # a date in TOML is the text it was written as
    preset = merged.get("preset", "")
    expanded: dict[str, Any] = {}
    for section, defaults in PRESETS.get(preset if isinstance(preset, str) else "", {}).items():
        own = merged.setdefault(section, {})
        if not isinstance(own, dict) or (section == "kl" and own.get("beta") == 0):
            continue  # without KL, the estimator that the preset names goes with it
        expanded |= {f"{section}.{key}": value for key, value in defaults.items() if key not in own}
        merged[section] = _over(defaults, own)
    try:
        recipe = Recipe.model_validate(merged)
    except ValidationError as error:
        sentence = _sentence(error)
        named = [f"{k} = {as_toml(v)}" for k, v in expanded.items() if re.search(rf"\b{re.escape(k)}\b", sentence)]
        raise RecipeError(sentence + (f'; preset = "{preset}" sets {", ".join(named)}' if named else "")) from None
    if not idle:
        _refuse_idle(recipe)
    return recipe


def _over(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own`, and what it leaves out from `defaults`, within tables too."""
    both = {key: _over(defaults[key], value) for key, value in own.items()
            if isinstance(value, dict) and isinstance(defaults.get(key), dict)}  # fmt: skip
    return {**defaults, **own, **both}


def _refuse_idle(recipe: Recipe) -> None:
    """Refuses a setting that was changed from what its preset or default says, and does nothing with the others."""
    whole, preset = recipe.model_dump(), PRESETS.get(recipe.preset, {})
    known = dict(iter_settings())
    for section, keys, switch, values in IDLE_UNLESS:
        where, key_of_switch = switch.split(".") if "." in switch else (section, switch)
        state = whole[where][key_of_switch]
        acts = bool(state) if values is ANY else state in values
        if acts or (section == "credit" and recipe.reward.combine == "gdpo"):
            continue
        for key in keys:
            default = known[f"{section}.{key}"].get_default(call_default_factory=True)
            value = whole[section][key]
            if value not in (preset.get(section, {}).get(key, default), default):
                raise RecipeError(_idle(f"{section}.{key}", value, f"{where}.{key_of_switch}", state, values))
    for i, function in enumerate(recipe.reward.functions):
        if function.weight == 0 and len(recipe.reward.functions) == 1:
            raise RecipeError(
                f"reward.functions.{i}.weight = 0 leaves no reward at all; use 1.0 (0 is for parts that are only measured)"
            )


def _idle(key: str, value: Any, switch: str, state: str, values: tuple[str, ...]) -> str:
    """The sentence that refuses a setting which does nothing."""
    shown = key if isinstance(value, (list, dict)) else f"{key} = {as_toml(value)}"
    if values is ANY:
        return (
            f"{shown} does nothing while {switch} is empty, for single answers have no turns and no world; remove it, or "
            f'name an environment, for example {switch} = "maze"'
        )
    works = f'remove it, or set {switch} = "{values[0]}"' if values[0] else "remove it"
    judges = "" if values[0] else ", whose own goal judges"
    return f'{shown} does nothing while {switch} = "{state}"{judges}; {works}'


def _line_of_first(message: str, text: str, overridden: Sequence[str]) -> int:
    """The line of the recipe's text that sets the first setting named in `message`; 0 if none of them stands there."""
    lines: dict[str, int] = {}
    section, tables = "", Counter[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)\s*([\w.-]+)\s*\]", line):
            section = header[2]
            lines.setdefault(section, number)
            if header[1] == "[[":
                section = f"{section}.{tables[section]}"
                tables[header[2]] += 1
                lines.setdefault(section, number)
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            lines.setdefault(f"{section}.{key[1]}".lstrip("."), number)
    named = re.findall(r"\w+(?:\.\w+)+|^\w+", message)
    return next((lines[name] for name in named if name in lines and name not in overridden), 0)


def apply_override(values: dict[str, Any], override: str) -> None:
    """Sets what `section.key=value` names in a nested mapping. Raises RecipeError."""
    key, found, text = override.partition("=")
    key = key.strip()
    if not found or not all(key.split(".")):
        raise RecipeError(f"override {override!r} must look like section.key=value, for example grpo.steps=20")
    *sections, last = key.split(".")
    node: Any = values
    for part in sections:
        node = node.setdefault(part, {}) if isinstance(node, dict) else _item(node, part, key)
    if isinstance(node, list):
        _item(node, last, key)
        node[int(last)] = _override_value(key, text)
    elif isinstance(node, dict):
        node[last] = _override_value(key, text)
    else:
        raise RecipeError(f"override {key}: {sections[-1]} is a value, not a section")


def _override_value(key: str, text: str) -> Any:
    """TOML where the text is one TOML value and the setting is no text, else the text itself."""
    try:
        parsed = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    kinds = {k: f.annotation for k, f in iter_settings()}
    is_text = kinds.get(_no_index(key)) is str and not isinstance(parsed["v"], str)  # name=7, name=2026-01-01
    return text if is_text or len(parsed) > 1 else parsed["v"]


def _item(node: Any, part: str, key: str) -> Any:
    if not isinstance(node, list):
        raise RecipeError(f"override {key}: there is no {part!r} to set")
    if part.isdecimal() and int(part) < len(node):
        return node[int(part)]
    there = (
        f"entries are numbered 0 to {len(node) - 1}" if len(node) > 1 else "only entry 0 exists" if node else "none exists"
    )
    raise RecipeError(f"override {key}: there is no entry {part!r} to set; {there}")


def _sentence(error: ValidationError) -> str:
    """The first problem, as a sentence that names the key and something that works."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    given, kind = problem.get("input"), problem["type"]
    settings = dict(iter_settings())
    if kind == "extra_forbidden":
        return _unknown(where, given, settings)
    message = problem["msg"].removeprefix("Value error, ")
    if not where or kind == "value_error":
        return message
    if kind in ("missing", "tuple_type", "too_long") and where not in settings:
        where = next((k for k in (_no_index(where), where) if k in settings), where)
    known = settings.get(_no_index(where))
    if kind == "missing" and known is not None and known.is_required():
        return f"{where} is missing; it says: {known.description}"
    default = known.get_default(call_default_factory=True) if known is not None else None
    works = f"; the default {as_toml(default)} works" if default not in (None, "", [], {}) else ""
    if kind in ("model_type", "dict_type"):
        works, message = "", "a section with keys of its own is needed" + _example(_no_index(where), settings)
    elif kind == "list_type":
        works, message = "", f"a list is needed; in the file, each entry is a table [[{where}]]"
    elif kind in ("missing", "tuple_type", "too_long"):
        message = "two numbers are needed"
    else:
        message = _PLAIN.get(kind, message)
    shown = repr(given) if len(repr(given)) <= 120 else repr(given)[:119] + "…"
    return f"{where} = {shown}: {message[0].lower() + message[1:]}{works}"


_PLAIN = {
    "int_parsing": "a whole number is needed",
    "int_from_float": "a whole number is needed",
    "int_type": "a whole number is needed",
    "float_parsing": "a number is needed",
    "float_type": "a number is needed",
    "finite_number": "a finite number is needed",
    "bool_parsing": "true or false is needed",
    "bool_type": "true or false is needed",
    "string_type": "a text is needed",
}


def _unknown(where: str, given: Any, settings: Mapping[str, Any]) -> str:
    sections = {key.rpartition(".")[0] for key in settings}
    of_its_kind = sections if isinstance(given, dict) else set(settings) - sections
    near = difflib.get_close_matches(_no_index(where), sorted(of_its_kind), n=1, cutoff=0.5)
    if not near and not isinstance(given, dict):
        last = {k.split(".")[-1]: k for k in sorted(settings)}
        near = [last[m] for m in difflib.get_close_matches(where.split(".")[-1], list(last), n=1)]
    hint = f"did you mean {near[0]}?" if near else "`milepost explain defaults` lists every key"
    return f"{where} is not a {'section' if isinstance(given, dict) else 'setting'}; {hint}"


def _example(section: str, settings: Mapping[str, Any]) -> str:
    inside = next((key for key in settings if key.startswith(f"{section}.")), "")
    return f", for example {inside}" if inside else ""


def _no_index(where: str) -> str:
    return ".".join(part for part in where.split(".") if not part.isdigit())


def iter_settings(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, pydantic field) of every setting, in reading order."""
    for name, info in model.model_fields.items():
        kind: Any = info.annotation
        inner = getattr(kind, "__args__", (kind,))[0]
        if isinstance(inner, type) and issubclass(inner, Section):
            if kind is not inner:
                yield prefix + name, info
            yield from iter_settings(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, info


def defaults_table() -> list[dict[str, str]]:
    """One row per setting: key, default, choices, why, the range tutorials give, the symptom that moves it."""
    rows = []
    for key, info in iter_settings():
        extra = info.json_schema_extra or {}
        choices = filter(None, get_args(info.annotation)) if get_origin(info.annotation) is Literal else ()
        default = "required" if info.is_required() else json.dumps(info.get_default(call_default_factory=True), default=str)
        rows.append(
            {
                "key": key,
                "default": default,
                "choices": ", ".join(choices),
                "why": info.description or "",
                "seeds": extra.get("seeds", ""),
                "symptom": extra.get("symptom", ""),
            }
        )
    return rows
