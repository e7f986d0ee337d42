"""From a recipe to a ready session: the one place that picks the concrete engine, and the order in which things can fail.

Cheap checks come first: reward functions, then rows, then the tokenizer's view of the prompts, then weights; a run
directory appears only when everything else is ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from milepost.call_style import style_of
from milepost.critics import check_teacher
from milepost.demonstrations import demonstrations, fill, some
from milepost.disk import StoreError
from milepost.engines.local import LocalEngine
from milepost.env import EnvSpec
from milepost.envs.find import find_env
from milepost.formula import describe
from milepost.health.verifier_audit import check_before
from milepost.hosts import Hosts
from milepost.levers import check_tasks
from milepost.models import Policy, Reader, context_of, load_model, load_reader
from milepost.policy import made_policy
from milepost.progress import say
from milepost.recipe import Recipe
from milepost.render import (
    check_format,
    completion_ids,
    decode,
    length,
    observation_ids,
    opened_thought,
    opening_ids,
    prompt_ids,
    resumed_ids,
    unopened_ids,
)
from milepost.reward import Grader
from milepost.reward_spec import EnvGrader
from milepost.rollout import Codec
from milepost.scripted import Texts, demonstrator
from milepost.sections import ModelSection, NewPolicySection
from milepost.stages.session import RunStopped, Session
from milepost.store import Run, check_place
from milepost.tasks import TaskSet, load_tasks
from milepost.tools import TERSE, Style
from milepost.types import RecipeError, Task
from milepost.world import World, check_world


@contextmanager
def open_session(
    recipe: Recipe, *, toml: str = "", rows: Any = None, resume: Path | None = None, quiet: bool = False,
    stages: Sequence[str] = ("sft", "grpo"),
) -> Iterator[Session]:  # fmt: skip
    """A session of a new run, or of the run directory `resume`. On the way out the run's status is set and it is closed.

    `rows` replaces the recipe's sources (the Python API); `stages` are those the session is for. Raises RecipeError,
    DataError or StoreError, each with one sentence, before anything is trained.
    """
    tell = (lambda text: None) if quiet else say
    with ExitStack() as stack:
        existing = stack.enter_context(Run.open(resume, write=True)) if resume else None
        if existing is None:
            check_place(recipe.out, recipe.name)
        recipe = existing.recipe if existing else recipe
        spec = find_env(recipe.env.name, "env.name") if recipe.env.name else None
        if spec:
            check_world(recipe, spec)
        if existing and spec:
            check_version(existing, spec)
        grader: Grader | EnvGrader = EnvGrader.of(recipe, spec) if spec else Grader(recipe.reward)
        stack.enter_context(grader)
        # The tokenizer is fetched when the first row is ready to be counted: unreadable rows are told before.
        model = model_of(recipe)
        reader = lru_cache(maxsize=1)(lambda: load_reader(model))
        tasks = load_tasks(
            recipe.tasks, recipe.seed, rows=rows, check=grader.check_golds if isinstance(grader, Grader) else None,
            generate=spec.generate if spec else None, lessons=recipe.sft.lessons,
            length=lambda task: length(task.prompt, reader().tokenizer, recipe.tasks),
        )  # fmt: skip
        tell(str(tasks.report))
        grader.check_columns([*tasks.train, *tasks.validation, *tasks.test])
        check_plan(tasks, recipe, stages, reader().tokenizer, spec)
        style = style_of(reader().tokenizer, spec, recipe.env, recipe.tasks) if spec else TERSE
        # A judge that does not work is told now, and not when the model is loaded and has sampled.
        grader.try_out(tasks.train[0])
        check_room(tasks, grader, reader(), recipe, style)
        trains = existing is None and "grpo" in stages and recipe.grpo.steps > 0
        told = check_before(recipe, grader, tasks, spec) if trains else []
        for _, sentence in told:
            tell(sentence)
        policy = load_model(model)
        tell(f"{policy.name}: {policy.num_parameters / 1e6:.1f} M parameters, {policy.precision}; "
             f"{check_format(policy.tokenizer, recipe.tasks)}")  # fmt: skip
        sampler = LocalEngine(policy.model, policy.eos_ids, seed=recipe.seed)
        meta = facts(policy, recipe, grader, spec)
        if isinstance(grader, Grader):
            grader.opened = meta["opened_thought"]
        if "sandbox" in meta:
            tell(f"code is judged behind {meta['sandbox']}")
        formula = "\n".join(describe(recipe))
        tell(formula)
        run = existing or Run.create(recipe.out, recipe, toml=toml, formula=formula, meta=meta)
        for level, sentence in told:
            run.add_event(level, "audit", sentence)
        world = stack.enter_context(world_of(recipe, spec, policy, style)) if spec else None
        session = Session(recipe, policy, codec_of(policy, recipe, style), sampler, tasks, grader, run, world)
        tell(f"run directory: {run.path}")
        with closing(run):
            yield session


def model_of(recipe: Recipe) -> ModelSection:
    """Where the model is: `model.path`, or the policy that `[model.new]` describes, made if it is not there."""
    section = recipe.model
    if not section.new.size:
        return section
    return section.model_copy(update={"path": str(made_policy(section.new)), "new": NewPolicySection()})


def check_version(run: Run, spec: EnvSpec) -> None:
    """Another grammar of actions is another environment. Raises RecipeError."""
    played, now = run.meta().get("environment"), f"{spec.name} {spec.version}"
    if played != now:
        raise RecipeError(
            f"the run {run.path} was played in {played}, but env.name now gives {now}; resume it with the version it began "
            "with, or start a new run"
        )


@contextmanager
def world_of(recipe: Recipe, spec: EnvSpec, policy: Policy, style: Style) -> Iterator[World]:
    """The world that the recipe's tasks are played in; its instances end with the session."""
    section = recipe.env
    context = section.max_context_tokens or context_of(policy.model.config) or NO_LIMIT
    with Hosts(
        section.name if section.isolated else spec, section.max_concurrent, isolated=section.isolated,
        step_seconds=section.step_seconds, reset_seconds=section.reset_seconds,
    ) as hosts:  # fmt: skip
        yield World(spec, hosts, section, context, recipe.seed, asked=style)


def check_plan(tasks: TaskSet, recipe: Recipe, stages: Sequence[str], tokenizer: Any, spec: EnvSpec | None = None) -> None:
    """Refuses stages that these tasks cannot feed: too few for one batch, demonstrations that cannot be read or encoded."""

    def encode(task: Task, text: str) -> None:
        length(task.prompt, tokenizer, recipe.tasks)
        completion_ids(text, tokenizer, recipe.tasks)

    if "grpo" in stages and recipe.grpo.steps:
        check_tasks(recipe, tasks.train, tasks.sources)
        for task in tasks.train if recipe.credit.answer else ():
            fill(recipe.credit.answer, task, "credit.answer")
        if recipe.credit.teacher:
            check_teacher(tokenizer, recipe.credit.teacher)
    if "sft" in stages and recipe.sft.steps and spec:
        for named in (recipe.sft.demonstrations, *(lesson.demonstrations for lesson in recipe.sft.lessons)):
            if named:
                demonstrator(named, spec)
        some(tasks.train, recipe.sft, recipe.seed)
    elif "sft" in stages and recipe.sft.steps:
        held_out = [*tasks.validation, *tasks.test]
        demonstrations(recipe.sft, tasks.train, seed=recipe.seed, shape=recipe.tasks, held_out=held_out,
                       check=encode)  # fmt: skip


@contextmanager
def closing(run: Run) -> Iterator[None]:
    """Whatever happens inside, the run says how it ended."""
    run.set_status("running")
    try:
        yield
    except KeyboardInterrupt:
        run.set_status("stopped")
        say(f"stopped; `milepost resume {run.path}` continues")
        raise
    except RunStopped:  # the finding that stopped it is stored already
        run.set_status("stopped")
        raise
    except BaseException as error:
        with suppress(StoreError):  # the full disk that ended the run does not take this either
            run.add_event("error", type(error).__name__, str(error))
            run.set_status("failed")
        raise
    else:
        run.set_status("finished")
    finally:
        run.close()


def codec_of(policy: Policy, recipe: Recipe, style: Style = TERSE) -> Codec:
    """The one way this run's prompts become ids; each task is encoded once."""
    known: dict[str, np.ndarray] = {}
    tokenizer, section = policy.tokenizer, recipe.tasks

    def encode(task: Task) -> np.ndarray:
        if task.key not in known:
            known[task.key] = prompt_ids(task.prompt, tokenizer, section)
        return known[task.key]

    return Codec(
        encode,
        lambda ids: decode(ids, tokenizer),
        lambda text: completion_ids(text, tokenizer, section),
        lambda messages: opening_ids(messages, tokenizer, section, style.schemas),
        lambda messages, last: observation_ids(messages, last, tokenizer, section, style.schemas),
        lambda messages, text: resumed_ids(messages, text, tokenizer, section, style.schemas),
        opened_thought(tokenizer, section),
        lambda ids: unopened_ids(ids, tokenizer, section),
    )


def check_room(tasks: TaskSet, grader: Grader | EnvGrader, reader: Reader, recipe: Recipe, style: Style) -> None:
    """Refuses budgets that the model's context has no room for. Raises RecipeError."""
    check_context(tasks, reader, recipe)
    if isinstance(grader, EnvGrader):
        check_openings(tasks, grader, reader, recipe, style)


def check_context(tasks: TaskSet, reader: Reader, recipe: Recipe) -> None:
    """Refuses a completion budget that the longest prompt would push out of the model's context."""
    tokenizer, context = reader
    every = (*tasks.train, *tasks.validation, *tasks.test)
    longest = max(length(task.prompt, tokenizer, recipe.tasks) for task in every)
    if context and longest + recipe.rollout.max_new_tokens > context:
        room = context - longest
        works = f"use at most {room}, or a smaller" if room > 0 else f"set at most {context // 2} for both it and"
        raise RecipeError(
            f"rollout.max_new_tokens = {recipe.rollout.max_new_tokens} and the longest prompt ({longest} tokens) exceed "
            f"the model's context of {context}; {works} tasks.max_prompt_tokens"
        )


NO_LIMIT = 1 << 40
"""Tokens of context where neither the model nor the recipe sets any."""
FIRST_STARTS, MOST_STARTS = 8, 64
"""Tasks that are started to see how long their first prompts are, for a start takes some environments a second: more than
the first only where those fill half of the room."""


def check_openings(tasks: TaskSet, grader: EnvGrader, reader: Reader, recipe: Recipe, style: Style) -> None:
    """Refuses a context in which no episode could act: beyond the model's own, or filled by a first prompt alone.

    Of more than MOST_STARTS tasks those with the longest texts and some of each split are started.
    """
    tokenizer, context = reader
    asked = recipe.env.max_context_tokens
    if context and asked > context:
        raise RecipeError(
            f"env.max_context_tokens = {asked} exceeds the model's context of {context}; use at most {context}, or 0 for "
            "all of it"
        )
    most = asked or context
    if not most:
        return
    world = World(grader.env_spec, grader.hosts, recipe.env, most, recipe.seed, asked=style)
    longest = 0
    for number, task in enumerate(_starts(tasks)):
        if number == FIRST_STARTS and 2 * longest < most:
            return
        start = grader.play(task, Texts(()), world.start_seed(task)).start
        ids = opening_ids(world.opening(start.messages), tokenizer, recipe.tasks, style.schemas)
        longest = max(longest, len(ids))
    if longest < most:
        return
    if asked:
        raise RecipeError(
            f"env.max_context_tokens = {asked} leaves no token to act in behind the longest first prompt of the tasks, "
            f"which has {longest}; use at least {longest + recipe.rollout.max_new_tokens}"
            + (f", or 0 for all of the model's {context}" if context and context > longest else "")
        )
    raise RecipeError(
        f"model.path: the model's context of {context} tokens leaves none to act in behind the longest first prompt of the "
        f"tasks, which has {longest}; take a model with a longer context, or easier tasks in tasks.sources"
    )


def _starts(tasks: TaskSet) -> list[Task]:
    """Those with the longest texts first."""
    splits = [split for split in (tasks.train, tasks.validation, tasks.test) if split]
    every = sorted((task for split in splits for task in split), key=lambda task: len(str(task.prompt)), reverse=True)
    if len(every) <= MOST_STARTS:
        return every
    share = MOST_STARTS // 2 // len(splits)
    some = (*every[: MOST_STARTS // 2], *(task for split in splits for task in split[:share]))
    return list({id(task): task for task in some}.values())


def facts(policy: Policy, recipe: Recipe, grader: Grader | EnvGrader, spec: EnvSpec | None) -> dict[str, Any]:
    """What identifies the model of a run, and what its episodes have to be read with later."""
    found = {"model": {"name": policy.name, "path": policy.path, "num_parameters": policy.num_parameters,
                       "precision": policy.precision, "device": policy.device},
             "opened_thought": opened_thought(policy.tokenizer, recipe.tasks),
             "sandbox": grader.isolation if isinstance(grader, Grader) else None,
             "environment": f"{spec.name} {spec.version}" if spec else None}  # fmt: skip
    return {name: fact for name, fact in found.items() if fact is not None}
