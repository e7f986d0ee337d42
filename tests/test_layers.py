"""Imports point down the list of layers in docs/design.md, and cheap modules load nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "milepost"

# A module may import from layers above its own, and within its layer from modules named before it.
LAYERS = [
    ["types", "folders", "kept"],
    ["env", "tools", "unsafe_rewards", "sections", "credit_sections", "reward_sections", "lever_sections", "recipe",
     "length_terms", "streams", "families", "sources", "shape",
     "worker_main", "host_main", "host_slots", "hosts", "scripted",
     "tasks", "demonstrations", "scorers", "workers",
     "sandbox.plain", "sandbox.walls", "sandbox.filter", "sandbox.child",
     "sandbox.keeper", "sandbox.main", "sandbox.runs", "sandbox.runtime", "sandbox.probe", "sandbox.cell", "sandbox.pool",
     "verifiers.code_same", "verifiers.code_gold", "verifiers.code",
     "verifiers.around", "verifiers.prose", "verifiers.extract", "verifiers.json_schema", "verifiers.call_formats",
     "verifiers.call_golds", "verifiers.call_foreign", "verifiers.toolcalls",
     "verifiers.countdown", "verifiers.repetition", "verifiers.format",
     "verifiers.math_text", "verifiers.math_units", "verifiers.math_names", "verifiers.math_domain",
     "verifiers.math_scan", "verifiers.math_value",
     "verifiers.math_intervals", "verifiers.math_parse", "verifiers.gym",
     "verifiers.math_forms", "verifiers.math_compare", "verifiers.math_foreign", "verifiers.math_choices", "verifiers.math",
     "verifiers.judge_http", "verifiers.judge_prompt", "verifiers.judge_cache", "verifiers.judge",
     "verifiers.reward_model_child", "verifiers.reward_model", "verifiers.served",
     "verifiers.kinds", "verifiers.labelled_math", "verifiers.labelled_other", "verifiers.labelled",
     "reward_checks", "reward_combine", "reward_canary",
     "reward", "turn_scorers", "reward_spec", "advantages", "anchor", "tree", "credit", "batch_signal", "forest", "loss",
     "formula", "envs.find", "envs.calc", "envs.desk_tasks", "envs.desk", "envs.maze_tasks", "envs.maze",
     "envs.corridor", "envs.repair_functions", "envs.repair_bugs", "envs.repair_tasks", "envs.repair", "envs.hasty",
     "envs.foreign", "envs.toy_text", "envs.frozen_lake", "envs.taxi", "envs.cliff_walking",
     "envs.babyai_view", "envs.babyai_bot", "envs.babyai", "envs.babyai_hasty", "envs.bfcl_apis", "envs.bfcl", "arms"],
    ["disk", "rows", "charts", "terminal", "progress", "profile", "tune"],
    ["engines.base", "render", "call_style", "embedded", "models", "policy", "store", "checkpoint", "health.canary",
     "health.order_played", "health.order"],
    ["engines.draw", "engines.full", "engines.forked", "engines.lean", "engines.talk", "engines.local", "pieces",
     "executors",
     "levers", "rollout", "information", "history", "branching", "pump",
     "envs.textworld_game", "envs.textworld", "world",
     "learner", "critics", "cost", "meter"],
    ["evaluate", "pairs"],
    ["stages.session", "stages.sft", "stages.step_metrics", "stages.grpo", "stages.pipeline", "health.preflight",
     "health.near_misses", "health.attacks", "health.audit_report", "health.verifier_audit",
     "health.tapes", "health.leftovers", "health.elsewhere", "health.contract", "health.told",
     "health.family_audit", "health.replays", "health.env_check"],
    ["launch"],
    ["stages.compare", "stages.controls", "stages.trials", "stages.sweep", "stages.ablate"],
    ["lab.panels", "lab.arms", "lab.runs", "lab.credit", "lab.table"],
    ["report", "ablation_report", "lab.page", "lab.command", "bench", "bench_sandbox", "bench_verify",
     "info", "init", "explain", "demo", "play",
     "replay", "rescore", "verify"],
    ["cli", "__main__"],
]  # fmt: skip
ORDER = {name: (depth, place) for depth, names in enumerate(LAYERS) for place, name in enumerate(names)}
TORCH_FREE = [
    "types", "env", "tools", "unsafe_rewards", "length_terms", "reward_spec", "scripted", "history", "world", "hosts",
    "recipe", "levers", "streams", "tasks", "demonstrations", "reward", "advantages", "credit", "batch_signal",
    "forest", "formula", "store", "evaluate",
    "explain", "cost", "pairs", "arms",
    "health.canary", "health.order", "health.verifier_audit", "health.preflight", "health.env_check", "profile", "tune",
    "report", "rollout",
    "engines.base", "play", "replay", "rescore", "terminal", "cli", "envs.find", "envs.calc", "envs.desk_tasks",
    "envs.desk", "envs.maze_tasks", "envs.maze", "envs.corridor", "envs.repair", "sandbox.pool",
    "verifiers.code", "verifiers.math", "verifiers.toolcalls", "verifiers.format", "verifiers.judge",
    "verifiers.reward_model",
    "turn_scorers",
]  # fmt: skip


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if not name.endswith("__init__"):
            yield name, path


def imported(path: Path, only_top: bool = False) -> set[str]:
    """Milepost's own modules that a file imports; `only_top` leaves out imports inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in tree.body if only_top else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "milepost":
            base = node.module.removeprefix("milepost").lstrip(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".lstrip(".")
                found.add(full if full in ORDER else base)
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("milepost.") for a in node.names if a.name.startswith("milepost.")}
    return found - {""}


def test_every_module_has_a_layer_and_every_layer_exists():
    assert {name for name, _ in modules()} == set(ORDER)


@pytest.mark.parametrize("name", list(ORDER))
def test_imports_point_down(name):
    path = PACKAGE / f"{name.replace('.', '/')}.py"
    upward = {target for target in imported(path, only_top=True) if ORDER[target] >= ORDER[name]}
    assert not upward, f"{name} imports {upward}, which stand at or above it"


def test_the_design_page_names_every_module():
    page = (PACKAGE.parent / "docs/design.md").read_text(encoding="utf-8")
    missing = [name for name, _ in modules() if name.split(".")[-1] not in page]
    assert not missing


def loaded(code: str) -> str:
    script = f"{code}\nimport sys; print([m for m in ('torch', 'transformers', 'ray', 'vllm') if m in sys.modules])"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("name", TORCH_FREE)
def test_cheap_modules_stay_cheap(name):
    assert loaded(f"import milepost.{name}") == "[]"


def test_help_loads_nothing_heavy():
    code = "import milepost.cli\ntry: milepost.cli.main(['--help'])\nexcept SystemExit: pass"
    assert loaded(code).splitlines()[-1] == "[]"
