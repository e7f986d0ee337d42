"""What credit asks of models: the value of the state before each turn, and a teacher's opinion of each token.

A value is read where a turn begins: at the node that predicts its first token, from the last hidden state, by a small head.
`critic = "head"` reads the policy's own hidden state and leaves it alone; `"model"` trains a second model of equal size,
as PPO does. Targets are the returns of whole episodes, so that a value has no bias of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from milepost import streams
from milepost.credit_sections import CreditSection
from milepost.executors import Executor
from milepost.forest import Batch
from milepost.learner import Learner
from milepost.models import Policy, load_model, load_reader
from milepost.sections import ModelSection
from milepost.types import EpisodeId, RecipeError

HIDDEN = 64
"""Units of the head's only layer."""
PASSES = {"head": 32, "model": 2}
"""Updates on one batch: a head's cost nothing, since the states it reads are computed once."""
HEAD_LR, MODEL_LR_FACTOR = 1e-3, 5.0


def turn_starts(batch: Batch) -> Batch:
    """The batch with the first event of each turn alone."""
    first = np.ones(batch.num_events, bool)
    first[1:] = (np.diff(batch.episode_E) != 0) | (np.diff(batch.turn_E) != 0)
    names = [name for name in vars(batch) if name.endswith("_E") and getattr(batch, name) is not None]
    return replace(batch, **{name: getattr(batch, name)[first] for name in names})


class Critic:
    """V of states, learned beside the policy. `state()` is what the future depends on."""

    def __init__(self, policy: Policy, learner: Learner, section: CreditSection, seed: int) -> None:
        own = section.critic == "model"
        self.section, self.own = section, own
        # A model of its own starts as the policy does, and reads what it reads.
        self.model = _copy(policy.model) if own else policy.model
        self.executor = Executor(self.model, learner.executor.kind, learner.executor.tokens_per_call, learner.counters)
        config: Any = policy.model.config
        self.head = _head(int(config.get_text_config().hidden_size), seed).to(next(policy.model.parameters()).device)
        groups: list[dict[str, Any]] = [{"params": list(self.head.parameters()), "lr": section.value_lr or HEAD_LR}]
        if own:
            rate = section.value_lr or MODEL_LR_FACTOR * learner.base_lr
            groups.append({"params": list(self.model.parameters()), "lr": rate})
        self.optimizer = torch.optim.Adam(groups)

    def values(self, batch: Batch) -> dict[EpisodeId, np.ndarray]:
        """V of each turn's start; float64 [turns with a sampled token] per episode."""
        starts = turn_starts(batch)
        found = np.empty(starts.num_events)
        with torch.no_grad():
            for call in self.executor.calls(starts, together=False):
                found[call.event] = self.head(self.executor.hidden(starts, call).float())[:, 0].double().cpu().numpy()
        return {name: found[starts.episode_E == i] for i, name in enumerate(starts.episodes)}

    def update(self, batch: Batch, targets: Mapping[EpisodeId, np.ndarray]) -> dict[str, float]:
        """Regression on the returns of these episodes; {"value/loss", "value/explained"}, before the update."""
        starts = turn_starts(batch)
        wanted = np.concatenate([targets[name] for name in starts.episodes])
        told = torch.from_numpy(wanted).float().to(next(self.head.parameters()).device)
        states = None if self.own else self._states(starts)
        losses = [self._pass(starts, told, states) for _ in range(PASSES["model" if self.own else "head"])]
        variance = float(wanted.var())
        return {"value/loss": losses[0], **({"value/explained": 1 - losses[0] / variance} if variance > 1e-12 else {})}

    def _states(self, starts: Batch) -> Tensor:
        parts = []
        order = []
        with torch.no_grad():
            for call in self.executor.calls(starts, together=False):
                parts.append(self.executor.hidden(starts, call).float())
                order.append(call.event)
        back = np.argsort(np.concatenate(order))
        return torch.cat(parts)[torch.from_numpy(back)]

    def _pass(self, starts: Batch, told: Tensor, states: Tensor | None) -> float:
        """One optimizer step over the whole batch → its mean squared error."""
        self.optimizer.zero_grad(set_to_none=True)
        if states is not None:
            loss = (self.head(states)[:, 0] - told).square().mean()
            loss.backward()
            total = float(loss.detach())
        else:
            total = 0.0
            for call in self.executor.calls(starts, together=False):
                index = torch.from_numpy(call.event).to(told.device)
                value = self.head(self.executor.hidden(starts, call).float())[:, 0]
                loss = (value - told[index]).square().sum() / starts.num_events
                loss.backward()
                total += float(loss.detach())
        for group in self.optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)
        self.optimizer.step()
        return total

    def state(self) -> dict[str, Any]:
        return {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict(),
                **({"model": self.model.state_dict()} if self.own else {})}  # fmt: skip

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.head.load_state_dict(state["head"])
        if self.own:
            self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def _copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).float().requires_grad_(True)


def _head(width: int, seed: int) -> nn.Sequential:
    """Starts at V = 0, whatever it reads."""
    first, last = nn.Linear(width, HIDDEN), nn.Linear(HIDDEN, 1)
    noise = streams.generator(seed, "value head").normal(size=(HIDDEN, width)) / width**0.5
    with torch.no_grad():
        first.weight.copy_(torch.from_numpy(noise))
        for tensor in (first.bias, last.weight, last.bias):
            tensor.zero_()
    return nn.Sequential(first, nn.Tanh(), last)


class Teacher:
    """A frozen model that reads what the policy wrote (`credit.teacher`)."""

    def __init__(self, policy: Policy, learner: Learner, name: str) -> None:
        check_teacher(policy.tokenizer, name)
        self.model = load_model(teacher_section(name)).model.requires_grad_(False)
        self.executor = Executor(self.model, learner.executor.kind, learner.executor.tokens_per_call, learner.counters)

    def gaps(self, batch: Batch) -> dict[EpisodeId, np.ndarray]:
        """log π_teacher − log π of each sampled token; π as it was sampled from, at the temperature it was sampled with."""
        gap = self.executor.score(batch) - batch.sampler_E
        return {name: gap[batch.episode_E == i] for i, name in enumerate(batch.episodes)}


def teacher_section(name: str) -> ModelSection:
    return ModelSection(path=name)


def check_teacher(tokenizer: Any, name: str) -> None:
    """Raises RecipeError where the teacher would read other tokens than the policy writes."""
    theirs = load_reader(teacher_section(name)).tokenizer
    if theirs.get_vocab() != tokenizer.get_vocab():
        raise RecipeError(
            f"credit.teacher = {name!r} reads other tokens than the policy writes (another vocabulary); use a teacher of "
            "the policy's own family"
        )
