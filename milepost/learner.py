"""One optimizer step over an update batch: micro-batches, one denominator, clipping, float32 masters.

The working copy (`policy.model`, bfloat16 or float32) samples and computes gradients; the masters are float32 and belong
to the optimizer. Each micro-batch's gradients are added to the masters' as soon as autograd has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from milepost.engines.base import WorkCounters
from milepost.executors import Executor
from milepost.forest import Batch
from milepost.loss import Events, EventStats, needs_episodes, policy_loss, summarize
from milepost.models import Policy
from milepost.sections import CorrectionSection, KlSection, LossSection, OptimizerSection, UpdateSection

# Full fine-tuning, by parameters. Tutorials' 1e-6…5e-6 is for 7B; small models want more, by about the square root of size.
LR_BY_SIZE = (
    (5e9, 2e-6, 1e-5),
    (1e9, 3e-6, 2e-5),
    (3e8, 5e-6, 3e-5),
    (5e7, 1e-5, 5e-5),
    (1.5e7, 1e-4, 3e-4),
    (0, 1.5e-4, 1e-3),
)


def default_lr(num_parameters: int, stage: str) -> float:
    """The learning rate for `stage` ("grpo" or "sft") of full fine-tuning at this size."""
    for size, grpo, sft in LR_BY_SIZE:
        if num_parameters >= size:
            return sft if stage == "sft" else grpo
    raise AssertionError("the table ends at 0")


@dataclass(frozen=True)
class UpdateReport:
    """What one optimizer step did. `metrics` lacks what has no data."""

    stepped: bool
    loss: float
    grad_norm: float
    lr: float
    num_events: int
    metrics: Mapping[str, float] = field(default_factory=dict)


class Learner:
    """Owns the masters and the optimizer; turns batches into steps. `state()` holds all that the next step depends on."""

    def __init__(
        self,
        policy: Policy,
        optimizer: OptimizerSection,
        update: UpdateSection,
        *,
        lr: float,
        total_steps: int,
    ) -> None:
        self.policy, self.settings, self.base_lr, self.total_steps = policy, optimizer, lr, total_steps
        self.counters = WorkCounters()
        self.executor = Executor(policy.model, update.executor, update.tokens_per_call, self.counters)
        self.num_steps = 0
        self.warmup_steps = min(10, total_steps // 5) if optimizer.warmup_steps < 0 else optimizer.warmup_steps
        self.working = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
        self.masters = {name: policy.masters[name] for name in self.working}
        self.critic: Any = None
        """What learns beside the policy, if credit asks for it (critics.Critic); in the same state."""
        self.optimizer = torch.optim.AdamW(
            list(self.masters.values()),
            lr=lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self._shares_memory = all(self.masters[n].data_ptr() == p.data_ptr() for n, p in self.working.items())

    def score(self, batch: Batch) -> np.ndarray:
        """Current log-probs of the batch's events, float64 [E], without gradient."""
        return self.executor.score(batch)

    def read(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Current log-probs and entropies (nats, of the whole distribution) of the batch's events; float64 [E] each."""
        return self.executor.read(batch)

    def update(
        self,
        batch: Batch | None,
        loss: LossSection,
        kl: KlSection | None = None,
        correction: CorrectionSection | None = None,
        *,
        beta: float = 0.0,
        correct: bool = False,
    ) -> UpdateReport:
        """One optimizer step. A batch of None (nothing to learn) leaves weights, moments and schedule alone."""
        if batch is None:
            return UpdateReport(False, 0.0, 0.0, self.current_lr(), 0)
        correction = correction or CorrectionSection()
        together = needs_episodes(loss, correction, correct=correct)
        self.executor.prove(batch, together=together)
        stats: list[EventStats] = []
        total, entropy = 0.0, 0.0
        with self._gradients():
            for call in self.executor.calls(batch, together=together):
                readout = self.executor.run(batch, call)
                events = events_of(batch, call.event, readout.logprobs)
                value, stat = policy_loss(
                    readout.logprobs,
                    events,
                    loss,
                    kl or KlSection(),
                    correction,
                    beta=beta,
                    correct=correct,
                )
                value.backward()
                total += float(value.detach())
                entropy += float(readout.entropy.sum())
                stats.append(stat)
        norm, lr = self._step()
        metrics = {**summarize(stats), "entropy/mean": entropy / batch.num_events}
        metrics["tree/unique_ratio"] = len(batch.forest) / sum(map(len, batch.paths))
        return UpdateReport(True, total, norm, lr, batch.num_events, metrics)

    def current_lr(self) -> float:
        """Linear warm-up, then constant, linear or cosine to zero at `total_steps`."""
        step, warmup = self.num_steps, self.warmup_steps
        if step < warmup:
            return self.base_lr * (step + 1) / warmup
        progress = min(1.0, (step - warmup) / max(1, self.total_steps - warmup))
        factor = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}
        return self.base_lr * factor[self.settings.schedule]

    def state(self) -> dict[str, Any]:
        """Tensors and numbers; everything the future depends on besides the recipe."""
        return {
            "masters": dict(self.masters),
            "optimizer": self.optimizer.state_dict(),
            "num_steps": self.num_steps,
            "executor": self.executor.kind,
            "proven": self.executor.proven,
            **({} if self.critic is None else {"critic": self.critic.state()}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, master in self.masters.items():
                master.copy_(state["masters"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_steps = state["num_steps"]
        self.executor.kind, self.executor.proven = state["executor"], state["proven"]
        if self.critic is not None:
            self.critic.load_state(state["critic"])
        self._refresh()

    def _gradients(self) -> _MasterGradients:
        return _MasterGradients(self.working, self.masters)

    def _step(self) -> tuple[float, float]:
        norm = float(torch.nn.utils.clip_grad_norm_(self.masters.values(), self.settings.grad_clip))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise FloatingPointError(
                f"the gradient norm is {norm} at update {self.num_steps}: nothing was changed; lower optimizer.lr or look "
                "at this step's rewards and log-probs in the store"
            )
        lr = self.current_lr()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.num_steps += 1
        self._refresh()
        return norm, lr

    def _refresh(self) -> None:
        if self._shares_memory:
            return
        with torch.no_grad():
            for name, parameter in self.working.items():
                parameter.copy_(self.masters[name])


class _MasterGradients:
    """While active, every gradient that autograd finishes moves from the working copy to the float32 master."""

    def __init__(self, working: Mapping[str, Tensor], masters: Mapping[str, Tensor]) -> None:
        self.pairs = [(working[n], masters[n]) for n in working if working[n] is not masters[n]]
        self.handles: list[Any] = []

    def __enter__(self) -> None:
        for parameter, master in self.pairs:
            self.handles.append(parameter.register_post_accumulate_grad_hook(_mover(master)))

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()


def _mover(master: Tensor) -> Callable[[Tensor], None]:
    def move(parameter: Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.to(master.dtype)
        else:
            master.grad += parameter.grad
        parameter.grad = None

    return move


def events_of(batch: Batch, index: np.ndarray, like: Tensor) -> Events:
    """The flat event tensors of one call, episodes renumbered from 0."""
    present, episode = np.unique(batch.episode_E[index], return_inverse=True)
    number = batch.turn_E[index]
    _, turn = np.unique(episode * (number.max(initial=0) + 1) + number, return_inverse=True)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values[index]).to(like)

    return Events(
        advantages=tensor(batch.advantage_E),
        weights=tensor(batch.weight_E),
        episode=torch.from_numpy(episode).to(like.device),
        num_episodes=len(present),
        sampler_logprobs=tensor(batch.sampler_E),
        old_logprobs=None if batch.old_E is None else tensor(batch.old_E),
        ref_logprobs=None if batch.ref_E is None else tensor(batch.ref_E),
        turn=torch.from_numpy(turn).to(like.device),
        masked=None if batch.masked_E is None else torch.from_numpy(batch.masked_E[index]).to(like.device),
        restrained=None if batch.restrained_E is None else torch.from_numpy(batch.restrained_E[index]).to(like.device),
    )


def deal(groups: Sequence[str], parts: int) -> list[list[str]]:
    """Whole groups dealt out into mini-batches, as evenly as they go; uneven last parts are fine."""
    names = list(dict.fromkeys(groups))
    return [part for part in (names[i::parts] for i in range(parts)) if part]
