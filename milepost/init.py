"""`milepost init`: a recipe that runs as it stands, with every other setting in it as a comment that says why.

The file is generated from the recipe's own table of settings, so it cannot name a key that does not exist.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from milepost.recipe import defaults_table
from milepost.types import RecipeError

TASKS_FILE = "tasks.jsonl"
NUM_EXAMPLES = 600
LISTS = ("tasks.sources", "reward.functions")
UNSHOWN = ("reward.costs", "reward.turn_scorers", "sft.lessons")
"""Lists that are empty by default: their own line says what an entry looks like, whose first key has no default."""

# The settings that a person decides on for every run; all others stand as comments with their defaults.
CHOSEN = {
    "model.path": '"smollm2-135m"',
    "tasks.validation": "64",
    "tasks.test": "200",
    "tasks.sources.kind": '"jsonl"',
    "reward.functions.name": '"exact"',
    "rollout.prompts_per_step": "8",
    "rollout.group_size": "8",
    "rollout.max_new_tokens": "16",
    "sft.steps": "20",
    "sft.demonstrations": '"{answer}"',
    "grpo.steps": "40",
}

NOTES = {
    "model": "What is trained.",
    "model.new": "A small policy of random weights, made for this run, instead of a pretrained one.",
    "tasks": "What it is trained on: rows with a prompt, an answer the policy never sees, and any other columns.",
    "tasks.sources": "One table for each source. A line of the file: {\"prompt\": \"17 + 5 =\", \"answer\": \"22\"}",
    "reward": "What is a success. See docs/rewards.md.",
    "reward.functions": "One table for each function; summed by weight. Your own: name = \"my_rewards.py:function\"",
    "env": "The world that tasks are played in, turn by turn; without a name nothing here matters.",
    "reward.length": "A length term; only forms that never pay a wrong answer.",
    "rollout": "How the policy is sampled while it learns.",
    "credit": "How rewards become advantages.",
    "credit.branches": "Where further episodes continue from, if credit.rule is branch.",
    "levers": "What the field adds to plain GRPO, all of it off.",
    "loss": "The objective. `milepost explain loss` computes it by hand.",
    "kl": "A leash to the policy that GRPO started from; off by default.",
    "correction": "For a sampler and a learner that round differently.",
    "optimizer": "AdamW on float32 weights.",
    "update": "How one batch of episodes becomes optimizer steps.",
    "sft": "The warm start: GRPO can only strengthen what the policy already does now and then.",
    "grpo": "The main stage.",
    "eval": "Held-out success.",
    "save": "Checkpoints.",
}  # fmt: skip

HEADER = """\
# A Milepost recipe. One file describes a whole run:
#
#   milepost preflight {name}     is there anything to learn from?
#   milepost run {name}           warm start, GRPO, test, report
#   milepost run {name} grpo.steps=5 name=short      any setting, for once
#
# A setting behind `#` stands at its default; take the `#` away to change it.
"""


def write_recipe(path: str | Path) -> str:
    """Writes a commented recipe to `path`, and example tasks beside it unless there are tasks already.

    Returns a sentence that says what was written. Raises RecipeError rather than overwrite a recipe.
    """
    path = Path(path)
    tasks = path.parent / TASKS_FILE
    if path.is_dir():
        raise RecipeError(f"init: {path} is a folder; name a file in it, such as {path / 'recipe.toml'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(recipe_text(path, tasks))
        example = not tasks.exists()
        if example:
            tasks.write_text("".join(json.dumps(row) + "\n" for row in example_tasks()), encoding="utf-8")
    except FileExistsError as error:
        raise RecipeError(f"init: {path} exists already; name another file, or delete it first") from error
    what = f"{NUM_EXAMPLES} example sums in {tasks}" if example else f"the tasks that lie in {tasks}"
    return f"wrote {path}, which trains on {what}; next: milepost preflight {path}"


def example_tasks() -> Iterator[dict[str, str]]:
    """Different sums of two numbers from 11 to 40, in a fixed mixed order."""
    for index in range(NUM_EXAMPLES):
        first, second = divmod(index * 271 % 900, 30)  # 271 has no factor in common with 900: no pair comes twice
        yield {"prompt": f"{first + 11} + {second + 11} =", "answer": str(first + second + 22)}


def recipe_text(path: Path, tasks: Path) -> str:
    """The recipe as TOML. Tables come in reading order; a list of tables stands behind its section's own keys."""
    chosen = CHOSEN | {"tasks.sources.path": json.dumps(tasks.as_posix(), ensure_ascii=False)}
    sections: dict[str, list[str]] = {}
    for row in defaults_table():
        section, _, key = row["key"].rpartition(".")
        if row["key"] not in LISTS and section not in UNSHOWN:
            sections.setdefault(section, []).append(_setting(row, key, chosen.get(row["key"])))
    blocks = [HEADER.format(name=path.as_posix()), "\n".join(sections.pop(""))]
    order = list(sections)
    for section in sorted(sections, key=lambda s: (order.index(s.split(".")[0]), "." in s)):
        head = f"[[{section}]]" if section in LISTS else f"[{section}]"
        blocks.append("\n".join([f"{head}    # {NOTES[section]}", *sections[section]]))
    return "\n\n".join(block.rstrip() for block in blocks) + "\n"


def _setting(row: dict[str, str], key: str, value: str | None) -> str:
    """The reason as comment lines, then the key: set if `value` is given, else as a comment with its default."""
    why = row["why"] + f" (tutorials: {row['seeds']})" * bool(row["seeds"])
    why += f". One of: {row['choices']}" * bool(row["choices"])
    why += f". Look here when: {row['symptom']}" * bool(row["symptom"])
    lines = textwrap.wrap(why, 110, initial_indent="# ", subsequent_indent="# ", break_long_words=False)
    default = row["default"]
    if value is not None:
        lines.append(f"{key} = {value}")
    elif default == "null":  # TOML has no word for nothing
        lines.append(f"# {key} is not set")
    else:
        lines.append(f"#{key} = {default}")
    return "\n".join(lines)
