"""Refuses what cannot work in [reward], in one sentence each, before any model is loaded."""

from __future__ import annotations

import difflib
import importlib.util
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from milepost.families import refusal
from milepost.reward_sections import RewardFunctionSection, RewardSection
from milepost.scorers import BUILTINS
from milepost.types import RecipeError, Task
from milepost.unsafe_rewards import unsafe_function
from milepost.verifiers.kinds import BY_ROW, KINDS, named_by, param_problem
from milepost.workers import Call, WorkerPool

LOAD_SECONDS = 300.0
"""A user's function may take as long to import."""
BUILT_IN = (*BUILTINS, *KINDS, BY_ROW)
ROW_KINDS = (*BUILTINS, *KINDS)
"""What a row may name."""
GIVEN = ("completions", "prompts", "completion_ids", "episodes", "log_metric", "log_extra")


@dataclass(frozen=True)
class Scorer:
    """One entry of reward.functions or reward.turn_scorers, checked and loaded."""

    label: str
    weight: float
    name: str
    params: Mapping[str, Any]
    pool: WorkerPool | None = None
    parameters: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    takes_all: bool = False

    @property
    def builtin(self) -> bool:
        return self.name in BUILT_IN

    @property
    def extracts(self) -> bool:
        """Whether it judges what reward.extract finds; the verifiers by rule find their answers themselves."""
        return self.name in ("exact", "numeric", "reasoning_gym", BY_ROW)

    def accepts(self, keyword: str) -> bool:
        return keyword in self.parameters or (self.takes_all and keyword != "episodes")


def load_scorer(
    label: str, weight: float, name: str, params: Mapping[str, Any], where: str, num_workers: int
) -> Scorer:  # fmt: skip
    """A user's function, with up to `num_workers` processes of its own, one of which is up. Raises RecipeError."""
    name = locate(name, where)
    setup = Call("milepost.scorers:describe", {"name": name}, timeout=LOAD_SECONDS)
    pool = WorkerPool(num_workers, isolated=False, setup=setup)
    answer = pool.start()
    wrong = f"loading it ended with {answer.failure}: {answer.detail.strip()[-500:]}" if answer.failure else ""
    if wrong or "error" in answer.value:
        pool.close()
        raise RecipeError(f"{where}: {wrong or answer.value['error']}")
    found = answer.value
    return Scorer(
        label, weight, name, params, pool, tuple(found["parameters"]), tuple(found["required"]), found["keywords"]
    )


def label_of(function: RewardFunctionSection) -> str:
    return function.resolved_label


def short(name: str) -> str:
    """The function's name as people write it: without the folders."""
    return name.rpartition("/")[2]


def check_section(section: RewardSection) -> None:
    if not section.functions:
        raise RecipeError('reward.functions is empty; add one, for example [[reward.functions]] with name = "numeric"')
    labels = [label_of(f) for f in section.functions]
    if twice := [label for label, n in Counter(labels).items() if n > 1]:
        raise RecipeError(f"reward.functions: two parts are called {twice[0]!r}; give one of them another `label`")
    if section.length.form != "none" and "length" in labels:
        raise RecipeError(
            'reward.functions: a part is called "length", as is that of reward.length; give it another `label`'
        )
    if section.success and section.success not in labels:
        near = difflib.get_close_matches(section.success, labels, n=1) or labels[:1]
        raise RecipeError(
            f"reward.success = {section.success!r} is no label; there are {', '.join(labels)}: use {near[0]!r}"
        )
    _compile(section.extract, "reward.extract")
    used = any(Scorer("", 0, f.name, {}).extracts for f in section.functions)
    if section.extract and not used:
        named = next((f.name for f in section.functions if f.name in KINDS), section.functions[0].name)
        can = named in KINDS and "extract" in KINDS[named].params
        raise RecipeError(
            f"reward.extract does nothing for {short(named)}, which finds its answer itself; remove it"
            + (", or say where the answer stands with params.extract" if can else "")
        )
    for index, function in enumerate(section.functions):
        where = f"reward.functions.{index}"
        check_function_params(function.name, function.params, f"{where}.params")
        if function.name == BY_ROW:
            for kind, params in function.params.items():
                if kind not in ROW_KINDS or not isinstance(params, Mapping):
                    raise RecipeError(f"{where}.params.{kind} must be a table for one of {', '.join(ROW_KINDS)}")
                check_function_params(kind, params, f"{where}.params.{kind}")
        seldom = function.name == "reward_model" and function.params.get("output", "sigmoid") != "clip"
        if seldom and section.success_at >= 1 and section.resolved_success == labels[index]:
            raise RecipeError(f"{where}: a reward model never says quite 1, so nothing would be a success; set "
                              "reward.success_at below 1, or name another part in reward.success")  # fmt: skip
        if function.name == "reasoning_gym" and importlib.util.find_spec("reasoning_gym") is None:
            raise RecipeError(f'{where}: the package reasoning-gym is missing; pip install "milepost[demo]"')


def row_scorer(scorer: Scorer, task: Task) -> Scorer:
    """The scorer itself; of by_row, the one that the task names, which may be unknown or ""."""
    if scorer.name != BY_ROW:
        return scorer
    kind = named_by(task.columns)
    params = scorer.params.get(kind, {})
    return Scorer(scorer.label, scorer.weight, kind, params if isinstance(params, Mapping) else {})


def check_function_params(name: str, params: Mapping[str, Any], where: str) -> None:
    """Refuses settings that a built-in function does not have, or cannot take. `where` names them."""
    if name in KINDS:
        if problem := param_problem(name, params, where):
            raise RecipeError(problem)
        return
    if name not in BUILTINS:
        return
    for key, value in params.items():
        if key not in BUILTINS[name]:
            raise RecipeError(f"{where}.{key} is not a parameter of {name}; it takes {', '.join(BUILTINS[name]) or 'none'}")
        flag = key in ("case_sensitive", "collapse_spaces", "allow_plain")
        if flag and not isinstance(value, bool):
            raise RecipeError(f"{where}.{key} = {value!r} must be true or false")
        if key.endswith("_tol") and (
            isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf
        ):
            raise RecipeError(f"{where}.{key} = {value!r} must be a number ≥ 0; 0.001 works")
    if name == "reasoning_gym":
        _check_accepted(params.get("accept_unsound", []), f"{where}.accept_unsound")
        if params.get("allow_plain") and params.get("accept_unsound"):
            raise RecipeError(f"{where}.allow_plain = true would let families of accept_unsound run answers as Python "
                              "without isolation; remove one of the two")  # fmt: skip
    if name == "regex":
        if not params.get("pattern"):
            raise RecipeError(
                f"{where.removesuffix('.params')}: regex needs params.pattern, for example '<answer>.*</answer>'"
            )
        _compile(params["pattern"], f"{where}.pattern")
        if params.get("mode", "search") not in ("search", "full"):
            raise RecipeError(f"{where}.mode = {params['mode']!r} must be 'search' or 'full'")


def _check_accepted(families: Any, where: str) -> None:
    if not isinstance(families, list) or not all(isinstance(family, str) for family in families):
        raise RecipeError(f'{where} = {families!r} must be a list of families, for example ["rush_hour"]')
    for family in families:
        if problem := refusal(family, families):
            raise RecipeError(f"{where}: {problem}")
        if refusal(family) is None:
            raise RecipeError(f"{where}: {family} is sound and needs no acceptance; remove it")


def accepts_unsound(section: RewardSection) -> bool:
    """Whether a reward function may be given a family whose scorer is unsound."""
    return any(params.get("accept_unsound") for params in _gym_params(section))


def allows_plain(section: RewardSection) -> bool:
    """Whether reasoning-gym's scorers may run within limits alone where nothing isolates."""
    return any(params.get("allow_plain") for params in _gym_params(section))


def _gym_params(section: RewardSection) -> Iterator[Mapping[str, Any]]:
    for function in section.functions:
        if function.name == BY_ROW:
            yield function.params.get("reasoning_gym", {})
        elif function.name == "reasoning_gym":
            yield function.params


def _compile(pattern: Any, where: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError) as error:
        raise RecipeError(f"{where} = {pattern!r} is not a regular expression: {error}") from None


def locate(name: str, where: str) -> str:
    """The name as a worker can load it: file paths made absolute. Raises RecipeError for what cannot exist."""
    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        if refused := unsafe_function(name):
            raise RecipeError(f"{where} {refused}")
        near = difflib.get_close_matches(name, BUILT_IN, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use {', '.join(BUILT_IN)}, module:function or file.py:function"
        raise RecipeError(f"{where} is neither built in nor a module:function; {hint}")
    if not module.endswith(".py"):
        return name
    path = os.path.abspath(os.path.expanduser(module))
    if not os.path.isfile(path):
        raise RecipeError(f"{where}: there is no file {path}")
    return f"{path}:{attribute}"


def check_signature(scorer: Scorer, where: str) -> None:
    if not scorer.accepts("completions"):
        shown = ", ".join(scorer.parameters) or "nothing"
        raise RecipeError(f"{where} takes ({shown}) but is given the keyword `completions`; add it, or **kwargs")
    check_params(scorer, GIVEN, where)


def check_params(scorer: Scorer, given: Collection[str], where: str) -> None:
    """Refuses params that take the name of something `given`, and those that the function has no place for."""
    for key in scorer.params:
        if key in given:
            raise RecipeError(f"{where}: params.{key} is a name that Milepost fills in itself; rename the parameter")
        if not scorer.accepts(key):
            shown = ", ".join(scorer.parameters) or "nothing"
            raise RecipeError(f"{where} has no parameter {key!r}, which params sets; it takes {shown}")


def task_problem(scorer: Scorer, task: Task, present: Mapping[str, Any]) -> str | None:
    shown = ", ".join(sorted(present)) or "none"
    if scorer.name == BY_ROW:
        scorer = row_scorer(scorer, task)
        if problem := _row_problem(scorer, task, present):
            return problem
    needs_gold = scorer.name in ("exact", "numeric") or (scorer.name in KINDS and KINDS[scorer.name].needs_gold)
    if needs_gold and task.answer is None:
        return f"reward function {scorer.label} needs a gold answer, but task {task.key} has none; its columns are {shown}"
    if scorer.name == "reasoning_gym":
        if "family" not in present or "entry" not in present:
            return (f"reward function reasoning_gym needs the columns family and entry, but task {task.key} has {shown}; "
                    'take the tasks from a source of kind = "reasoning_gym"')  # fmt: skip
        problem = refusal(str(task.columns["family"]), scorer.params.get("accept_unsound", ()))
        return problem and f"task {task.key}: reasoning-gym's {problem}"
    if scorer.builtin:
        return None
    for key in scorer.required:
        if key not in present and key not in GIVEN and key not in scorer.params:
            return (f"reward function {short(scorer.name)} needs the column {key!r}, but task {task.key} has none; its "
                    f"columns are {shown}: rename the parameter, give it a default, or set it under params")  # fmt: skip
    for key in scorer.params:
        if key in present:
            return f"reward function {short(scorer.name)}: params.{key} hides the task column of that name; rename one"
    return None


def _row_problem(scorer: Scorer, task: Task, present: Mapping[str, Any]) -> str | None:
    """`scorer`: what the row asks for."""
    which = f"task {task.key} ({str(task.prompt)[:40]!r})"
    known = ", ".join(ROW_KINDS)
    if not scorer.name:
        return (f"{which} names no verifier, as reward function {BY_ROW} needs; its columns are "
                f"{', '.join(sorted(present)) or 'none'}: add reward_type, one of {known}")  # fmt: skip
    if scorer.name not in ROW_KINDS:
        near = difflib.get_close_matches(scorer.name, ROW_KINDS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        if " and " in scorer.name:
            return f"{which} has reward_type and verifier, which name two verifiers, {scorer.name}; keep one"
        return f"{which} has reward_type = {scorer.name!r}, which is unknown; {hint}known are {known}"
    if scorer.name == "regex" and not scorer.params.get("pattern"):
        return f"{which} has reward_type = 'regex', which needs params.regex.pattern; set it, or use one of {known}"
    return None
