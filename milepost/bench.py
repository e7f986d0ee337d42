"""What one GRPO step costs on this machine, against the least it could cost. docs/bench.md explains every number.

The step is the real one: the engine samples, rewards become credit, credit becomes a prefix forest, the learner updates.
Only the tasks are artificial: random prompts of exactly P tokens, completions of exactly C tokens because no token ends
a turn, and rewards that alternate within each group, so that no group is without signal.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from milepost.cost import ModelCost, StepWork, executed_step, ideal_step, model_cost, no_work, work_ratio
from milepost.credit import assign
from milepost.engines.base import SamplingSettings, WorkCounters
from milepost.engines.local import LocalEngine
from milepost.forest import Batch
from milepost.learner import Learner, default_lr
from milepost.meter import (
    GemmPeak,
    StageClock,
    StageCost,
    gemm_peak,
    only_new_objects,
    resident_mb,
    take_peak_mb,
    tensor_mb,
)
from milepost.models import Policy, load_model
from milepost.recipe import make_recipe
from milepost.rollout import Codec, play
from milepost.sections import ModelSection
from milepost.stages.grpo import corrects
from milepost.stages.session import group_batch
from milepost.streams import generator, shuffled
from milepost.types import Group, RecipeError, Reward, Task

STAGES = ("prefill", "decode", "score", "train", "optimizer", "refresh")
"""In the order of a step. score: rewards, credit and the forest; train: forward and backward of the update."""
IDEAL_OF_STAGE = {"prefill": ("prefill",), "decode": ("decode",), "train": ("blocks", "head")}


# --- the step --------------------------------------------------------------------------------------------------------


class _TimedEngine(LocalEngine):
    """The engine, with its prefill told apart from its decoding."""

    clock: StageClock
    prefill_work: WorkCounters

    def prefill(self, prompts: list[np.ndarray]) -> tuple[Tensor, Any]:
        before = self.counters.copy()
        with self.clock("prefill"):
            result = super().prefill(prompts)
        self.prefill_work += self.counters - before
        return result


class _TimedLearner(Learner):
    """The learner, with forward and backward told apart from the optimizer and the refresh of the working copy."""

    clock: StageClock

    def _step(self) -> tuple[float, float]:
        with self.clock("optimizer"):
            return super()._step()

    def _refresh(self) -> None:
        with self.clock("refresh"):
            super()._refresh()


@dataclass(frozen=True)
class Shape:
    """N prompts of P tokens, each continued G times by C tokens."""

    num_prompts: int
    group_size: int
    prompt_tokens: int
    completion_tokens: int

    def check(self, policy: Policy | None = None) -> None:
        """Raises RecipeError. Without a policy, what can be wrong before a model is loaded."""
        flags = {"--prompts": 1, "--group": 2, "--prompt-tokens": 1, "--completion-tokens": 1}
        for (flag, least), value in zip(flags.items(), asdict(self).values()):
            if value < least:
                raise RecipeError(f"bench step: {flag} {value} must be at least {least}")
        if policy is None:
            return
        config: Any = policy.model.config
        context = getattr(config.get_text_config(), "max_position_embeddings", None)
        if context and self.prompt_tokens + self.completion_tokens > context:
            raise RecipeError(
                f"bench step: --prompt-tokens {self.prompt_tokens} and --completion-tokens {self.completion_tokens} exceed "
                f"the model's context of {context}; use at most {context} tokens in all"
            )


class _Bench:
    """The parts of the loop, and what they measured so far."""

    def __init__(self, policy: Policy, num_steps: int) -> None:
        self.policy, self.device = policy, next(policy.model.parameters()).device
        self.recipe = make_recipe({"rollout": {"truncated": "score"}})
        self.engine = _TimedEngine(policy.model, (), seed=0)
        lr = default_lr(policy.num_parameters, "grpo")
        self.learner = _TimedLearner(policy, self.recipe.optimizer, self.recipe.update, lr=lr, total_steps=num_steps + 1)
        self.reset()

    def reset(self) -> None:
        take_peak_mb(self.device.type == "cuda")
        self.clock = self.engine.clock = self.learner.clock = StageClock(self.device)
        self.ideal = self.executed = no_work()
        self.memory: list[tuple[float, float, float]] = []

    def step(self, step: int, shape: Shape) -> None:
        prompts = random_prompts(self.policy, shape, step)
        before = tensor_mb()
        self.engine.prefill_work = WorkCounters()
        sampler, learner = self.engine.counters.copy(), self.learner.counters.copy()
        with self.clock("decode"):
            groups = self.sample(step, prompts, shape)
        self.memory.append((before, tensor_mb(), resident_mb()))
        batch = self.update(groups)
        self.engine.load(self.learner.num_steps)
        self.executed += executed_step(
            self.engine.prefill_work, self.engine.counters - sampler, self.learner.counters - learner
        )
        self.ideal += ideal_step([e for g in groups for e in g.episodes], batch)

    def sample(self, step: int, prompts: dict[str, np.ndarray], shape: Shape) -> list[Group]:
        codec = Codec(lambda task: prompts[task.key], lambda ids: "", _no_ids, _no_ids, _no_ids, _no_ids)
        groups = play(
            [Task(key, "") for key in prompts], self.engine, codec, phase="bench", step=step, num_samples=shape.group_size,
            max_new_tokens=shape.completion_tokens, settings=SamplingSettings(),
        )  # fmt: skip
        short = [e for g in groups for e in g.episodes if e.num_sampled != shape.completion_tokens]
        assert not short, "without end tokens every completion has its full length"
        return groups

    def update(self, groups: list[Group]) -> Batch | None:
        recipe = self.recipe
        with self.clock("score"):
            rewards = [[Reward(float(m % 2), success=bool(m % 2)) for m, _ in enumerate(g.episodes)] for g in groups]
            credits = assign(groups, rewards, recipe.credit, recipe.rollout)
            batch = group_batch(groups, credits, recipe, keep_constant=False)
        with self.clock("train"):
            correct = corrects(recipe, self.policy.precision)
            self.learner.update(batch, recipe.loss, recipe.kl, recipe.correction, correct=correct)
        return batch


def _no_ids(*_: Any) -> np.ndarray:
    return np.zeros(0, np.int32)


def random_prompts(policy: Policy, shape: Shape, step: int) -> dict[str, np.ndarray]:
    """N prompts of P ordinary ids that differ from the first id on, so that nothing is shared by accident."""
    special = policy.eos_ids | set(policy.tokenizer.all_special_ids)
    usable = np.array([i for i in range(len(policy.tokenizer)) if i not in special])
    if len(usable) < shape.num_prompts:
        raise RecipeError(f"bench step: --prompts {shape.num_prompts} exceeds the {len(usable)} ordinary tokens of the "
                          f"model; use at most {len(usable)}")  # fmt: skip
    label = f"bench/{step}"
    ids = usable[generator(0, label).integers(0, len(usable), (shape.num_prompts, shape.prompt_tokens))]
    ids[:, 0] = usable[shuffled(0, label, len(usable))[: shape.num_prompts]]
    return {f"prompt/{i}": row.astype(np.int32) for i, row in enumerate(ids)}


def counted_cost(policy: Policy) -> ModelCost:
    """Costs by the config's formula, with λ counted on the real matrices: exact also where the formula guesses."""
    model: Any = policy.model
    cost = model_cost(model.config, value_bytes=model.dtype.itemsize)
    head = model.get_output_embeddings()
    matrices = [m for m in model.modules() if isinstance(m, (nn.Linear, Conv1D)) and m is not head]
    return replace(cost, per_token=2.0 * sum(m.weight.numel() for m in matrices))


def bench_step(
    model: str,
    num_prompts: int = 8,
    group_size: int = 8,
    prompt_tokens: int = 256,
    completion_tokens: int = 64,
    steps: int = 1,
    *,
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
) -> BenchResult:
    """Runs `steps` whole GRPO steps on `model` (a name or folder) and measures them. Weights on disk stay as they are.

    One small unmeasured step goes first: it allocates the optimizer's moments and lets the fast paths prove themselves.
    Raises RecipeError.
    """
    shape = Shape(num_prompts, group_size, prompt_tokens, completion_tokens)
    shape.check()
    if steps < 1:
        raise RecipeError(f"bench step: --steps {steps} must be at least 1")
    policy = load_model(ModelSection(path=model, precision=precision))
    shape.check(policy)
    cost = counted_cost(policy)
    bench = _Bench(policy, steps)
    with only_new_objects():
        bench.step(0, Shape(min(2, num_prompts), 2, min(16, prompt_tokens), min(4, completion_tokens)))
        bench.reset()
        for step in range(1, steps + 1):
            bench.step(step, shape)
    peaks = {name: gemm_peak(getattr(torch, name), bench.device) for name in ("bfloat16", "float32")}
    return _result(bench, shape, steps, cost, peaks)


def _result(bench: _Bench, shape: Shape, steps: int, cost: ModelCost, peaks: dict[str, GemmPeak]) -> BenchResult:
    policy, costs = bench.policy, bench.clock.costs
    stages = {
        name: StageCost(costs[name].cpu_seconds / steps, costs[name].wall_seconds / steps, costs[name].peak_mb)
        for name in STAGES
        if name in costs
    }
    kv_tokens = shape.num_prompts * (shape.prompt_tokens + shape.group_size * (shape.completion_tokens - 1))
    memory = Memory(
        peak_mb=max(stage.peak_mb for stage in stages.values()),
        before_update_mb=max(resident for _, _, resident in bench.memory),
        kv_mb=kv_tokens * cost.kv_bytes_per_token / 1e6,
        kept_mb=max(after - before for before, after, _ in bench.memory),
    )
    facts = {
        "model": policy.name, "num_parameters": policy.num_parameters, "precision": policy.precision,
        "device": policy.device, "threads": torch.get_num_threads(), "decoding": bench.engine.way,
        "executor": bench.learner.executor.kind,
    }  # fmt: skip
    return BenchResult(shape, steps, facts, stages, memory, cost, bench.ideal, bench.executed, peaks)


# --- the result ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """In MB. `kept_mb` shows whether the sampler's caches are gone before the update."""

    peak_mb: float
    before_update_mb: float
    """Held by the process after sampling; the allocator keeps freed memory for the update."""
    kv_mb: float
    """Keys and values at the end of sampling, if every row were still there."""
    kept_mb: float
    """Tensors that sampling left behind."""


@dataclass(frozen=True)
class BenchResult:
    """Means per step. `ideal` and `executed` are sums over all steps."""

    shape: Shape
    num_steps: int
    facts: dict[str, Any]
    stages: dict[str, StageCost]
    memory: Memory
    cost: ModelCost
    ideal: StepWork
    executed: StepWork
    peaks: dict[str, GemmPeak]

    def work_ratio(self, cost: ModelCost | None = None) -> float:
        """Executed over ideal FLOPs. With another model's `cost`: what the same counts would mean for that model."""
        return work_ratio(self.executed, self.ideal, cost or self.cost)

    def time_ratios(self) -> dict[str, float]:
        """Time spent over the time that the ideal FLOPs take at the measured GEMM rate, by stage and in total.

        On a CPU both are CPU time, so that a busy machine and the number of threads hardly matter; on a GPU wall clock.
        """
        peak, on_gpu = self.peaks[self.facts["precision"]], self.facts["device"] == "cuda"
        rate = peak.per_wall_second if on_gpu else peak.per_cpu_second
        spent = {name: s.wall_seconds if on_gpu else s.cpu_seconds for name, s in self.stages.items()}
        ideal = {part: flops / self.num_steps for part, flops in self.ideal.by_part(self.cost).items()}
        wanted = {stage: sum(ideal[part] for part in parts) for stage, parts in IDEAL_OF_STAGE.items()}
        ratios = {stage: spent[stage] * rate / flops for stage, flops in wanted.items() if flops and stage in spent}
        return ratios | {"step": sum(spent.values()) * rate / sum(ideal.values())}

    def to_json(self) -> dict[str, Any]:
        """Stable keys; FLOPs per step."""
        ideal, executed = self.ideal.by_part(self.cost), self.executed.by_part(self.cost)
        return {
            **self.facts,
            "shape": asdict(self.shape),
            "steps": self.num_steps,
            "stages": {name: asdict(stage) for name, stage in self.stages.items()},
            "cpu_seconds": sum(stage.cpu_seconds for stage in self.stages.values()),
            "wall_seconds": sum(stage.wall_seconds for stage in self.stages.values()),
            "memory": asdict(self.memory),
            "ideal_flops": {part: flops / self.num_steps for part, flops in ideal.items()},
            "executed_flops": {part: flops / self.num_steps for part, flops in executed.items()},
            "work_ratio": self.work_ratio(),
            "gemm_peak_flops": {name: asdict(peak) for name, peak in self.peaks.items()},
            "time_ratio": self.time_ratios(),
        }

    def json(self) -> str:
        return json.dumps(self.to_json(), indent=1)

    def text(self) -> str:
        """The same numbers for people."""
        found = self.to_json()
        s, f, times = self.shape, self.facts, found["time_ratio"]
        lines = [
            f"{f['model']}: {f['num_parameters'] / 1e6:.1f} M parameters, {f['precision']} on {f['device']}, "
            f"{f['threads']} threads, {f['decoding']} decoding, {f['executor']} executor",
            f"{s.num_prompts} prompts × {s.group_size}, {s.prompt_tokens} + {s.completion_tokens} tokens; mean of "
            f"{self.num_steps} step{'s' * (self.num_steps > 1)}",
            "",
            "stage        CPU s   wall s   peak MB   time ÷ ideal",
        ]
        for name, stage in self.stages.items():
            ratio = f"{times[name]:10.2f}" if name in times else ""
            lines.append(
                f"{name:10s}{stage.cpu_seconds:8.2f}{stage.wall_seconds:9.2f}{stage.peak_mb:10.0f}{ratio}".rstrip()
            )
        lines += [
            f"{'step':10s}{found['cpu_seconds']:8.2f}{found['wall_seconds']:9.2f}{self.memory.peak_mb:10.0f}{times['step']:10.2f}",
            "",
            "work        ideal GF  executed GF  ratio",
        ]
        parts = {**found["ideal_flops"]}
        rows = [(name, ideal, found["executed_flops"][name]) for name, ideal in parts.items()]
        rows.append(("step", sum(parts.values()), sum(found["executed_flops"].values())))
        for name, ideal, executed in rows:
            ratio = f"{executed / ideal:7.2f}" if ideal else "      –"
            lines.append(f"{name:10s}{ideal / 1e9:10.1f}{executed / 1e9:13.1f}{ratio}")
        m = self.memory
        rates = ", ".join(f"{name} {p.per_cpu_second / 1e9:.0f}" for name, p in self.peaks.items())
        wall = ", ".join(f"{name} {p.per_wall_second / 1e9:.0f}" for name, p in self.peaks.items())
        return "\n".join([
            *lines,
            "",
            f"work_ratio {found['work_ratio']:.3f} (executed over ideal FLOPs, no clock)",
            f"memory: peak {m.peak_mb:.0f} MB; {m.before_update_mb:.0f} MB before the update; sampling held "
            f"{m.kv_mb:.1f} MB of keys and values and left {m.kept_mb:+.1f} MB of tensors",
            f"GEMM peak, GFLOP per CPU-second: {rates}; per second of wall clock: {wall}",
        ])  # fmt: skip
