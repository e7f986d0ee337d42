"""A reward model: any sequence classification model of Hugging Face as scorer, in a process of its own.

    with RewardModel(read_settings({"model": "folder", "output": "clip", "low": -4, "high": 4})) as scorer:
        scorer.score_many([Question(answer="Thanks!", prompt="Say thanks.")])[0]["score"]      -> 0 … 1

What it says is squashed into 0 … 1: by a sigmoid, by clipping to [low, high], or as the probability of a label. A learned
score can be talked up by whoever trains on it: use it behind a rule (reward.combine = "gate"), not alone.
`reward_model_child` holds the model; it is killed when it hangs or takes too much memory, and started again. What failed
is unscorable, never 0.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from milepost.types import RecipeError
from milepost.verifiers.extract import extract, places_of
from milepost.verifiers.judge import Question
from milepost.workers import Answer, Call, WorkerPool

CHUNK = 32
"""Answers in one call. Where a call fails they are asked by halves, so that only those to blame go without a score."""
GIVE_UP = 8
_CHILD = "milepost.verifiers.reward_model_child"


@dataclass(frozen=True)
class ModelSettings:
    model: str
    """A folder, or a name on huggingface.co."""
    form: str = "chat"
    """How task and answer become one text: "chat" (the template), "text" (as `text` says), "pair" (the tokenizer's own)."""
    text: str = "{prompt}\n\n{answer}"
    output: str = "sigmoid"
    """"sigmoid" of (output − center) / scale; "clip" to [low, high], mapped to 0 … 1; "softmax": the chance of `label`."""
    center: float = 0.0
    scale: float = 1.0
    low: float | None = None
    high: float | None = None
    label: int | str | None = None
    max_tokens: int = 8192
    """Of task and answer together; what is longer scores 0 unread. The model's own limit holds as well."""
    batch_tokens: int = 16_384
    """Padding included; a single longer row goes alone."""
    memory_mb: int = 16_384
    """What the process may allocate."""
    timeout_seconds: float = 120.0
    """For 32 answers."""
    load_seconds: float = 600.0
    deadline_seconds: float = 1800.0
    """For all that is asked at once."""
    device: str = "cpu"
    dtype: str = "float32"
    extract: str | tuple[str, ...] = "whole"
    tag: str = "answer"
    opened: bool = False


_CHOICES = {"form": ("chat", "text", "pair"), "output": ("sigmoid", "clip", "softmax"), "dtype": ("float32", "bfloat16")}
_WHOLE = {"max_tokens": 16, "batch_tokens": 16, "memory_mb": 512}
_SECONDS = ("timeout_seconds", "load_seconds", "deadline_seconds")
_ONLY_WITH = {"center": "sigmoid", "scale": "sigmoid", "low": "clip", "high": "clip", "label": "softmax"}


def read_settings(params: Mapping[str, Any]) -> ModelSettings:
    """Raises RecipeError: one sentence that names the setting. The model itself is read by `RewardModel.start`."""
    known = [f.name for f in fields(ModelSettings)]
    for name in params:
        if name not in known:
            raise RecipeError(f"the reward model has no setting {name!r}; it has {', '.join(known)}")
    if not isinstance(params.get("model"), str) or not params["model"].strip():
        raise RecipeError("the reward model needs model, a folder or a name on huggingface.co")
    for name, choices in _CHOICES.items():
        if params.get(name, choices[0]) not in choices:
            raise RecipeError(f"the reward model's {name} = {params[name]!r} must be one of {', '.join(choices)}")
    for name, low in _WHOLE.items():
        value = params.get(name, low)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise RecipeError(f"the reward model's {name} = {value!r} must be a whole number from {low} on")
    for name in (*_SECONDS, "scale"):
        if not _is_number(params.get(name, 1)) or not 0 < params.get(name, 1) < 1e6:
            raise RecipeError(f"the reward model's {name} = {params[name]!r} must be a number above 0")
    for name, kind, shown in (("tag", str, "a name"), ("opened", bool, "true or false"), ("device", str, "cpu or cuda")):
        if name in params and (not isinstance(params[name], kind) or params[name] == ""):
            raise RecipeError(f"the reward model's {name} = {params.get(name)!r} must be {shown}")
    places = places_of(params.get("extract", "whole"), "the reward model's extract")
    _check_range(params)
    _check_text(params)
    return ModelSettings(**{**params, **({"extract": places} if "extract" in params else {})})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_range(params: Mapping[str, Any]) -> None:
    output = params.get("output", "sigmoid")
    for name, owner in _ONLY_WITH.items():
        if name in params and output != owner:
            raise RecipeError(
                f'the reward model\'s {name} does nothing with output = "{output}"; remove it, or use "{owner}"'
            )
    low, high, label = params.get("low"), params.get("high"), params.get("label")
    if output == "clip" and not (_is_number(low) and _is_number(high) and low < high):  # type: ignore[operator]
        raise RecipeError('the reward model\'s output = "clip" needs low and high, two numbers with low < high')
    if output == "softmax" and (isinstance(label, bool) or not isinstance(label, (int, str))):
        raise RecipeError('the reward model\'s output = "softmax" needs label, the name or number of an output')
    if not _is_number(params.get("center", 0)):
        raise RecipeError(f"the reward model's center = {params['center']!r} must be a number")


def _check_text(params: Mapping[str, Any]) -> None:
    if "text" not in params:
        return
    if params.get("form", "chat") != "text":
        raise RecipeError('the reward model\'s text does nothing without form = "text"; remove it')
    if not isinstance(params["text"], str) or sorted(re.findall(r"\{(\w+)\}", params["text"])) != ["answer", "prompt"]:
        raise RecipeError("the reward model's text must hold {prompt} and {answer} once each, and nothing else in braces")


def squash(raw: float, settings: ModelSettings) -> float:
    """What the model said, in 0 … 1; it rises with `raw` and never leaves that range, whatever `raw` is."""
    if settings.output == "clip":
        assert settings.low is not None and settings.high is not None
        inside = min(max(raw, settings.low), settings.high)
        return (inside - settings.low) / (settings.high - settings.low)
    if settings.output == "softmax":
        return min(max(raw, 0.0), 1.0)
    x = (raw - settings.center) / settings.scale
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(max(x, -745.0)) / (1 + math.exp(max(x, -745.0)))


class RewardModel:
    """Scores texts with the model of `settings`. Starts with the first call, or with `start`; `close` ends its process."""

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        names = ("model", "form", "text", "output", "label", "max_tokens", "batch_tokens", "memory_mb", "device", "dtype")
        arguments = {name: getattr(settings, name) for name in names}
        setup = Call(f"{_CHILD}:load", arguments, settings.load_seconds)
        self.pool = WorkerPool(1, isolated=False, setup=setup)

    def start(self) -> dict[str, Any]:
        """Loads the model, if it is not. Raises RecipeError: one sentence, why it cannot."""
        answer = self.pool.start()
        wrong = f"could not be loaded ({answer.failure})" if answer.failure else answer.value.get("error")
        if wrong:
            self.close()
            raise RecipeError(f"the reward model {self.settings.model!r} {wrong}")
        return answer.value

    def close(self) -> None:
        self.pool.close()

    def __enter__(self) -> RewardModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def score_many(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        """One verdict each, within deadline_seconds. Never raises for an answer; RecipeError for a model that cannot load.

        The same text is scored once, and the batches do not depend on the order of the questions: the same questions get
        the same scores to the last bit, in other company to about 1e-6.
        """
        self.start()
        settings = self.settings
        found = [
            extract(q.answer, settings.extract, tag=settings.tag, opened=settings.opened)  # type: ignore[arg-type]
            if isinstance(q.answer, str)
            else (None, "no text")
            for q in questions
        ]
        items = [(_messages(q.prompt), text) for q, (text, _) in zip(questions, found) if text is not None]
        distinct = sorted({(len(text), text, messages) for messages, text in items})
        told = dict(zip(distinct, self._ask([(messages, text) for _, text, messages in distinct])))
        results = []
        for question, (text, where) in zip(questions, found):
            if text is None:
                results.append(_result(0.0, None, None, f"no answer found: {where}"))
            else:
                results.append(self._verdict(told[(len(text), text, _messages(question.prompt))], text))
        return results

    def _ask(self, items: Sequence[tuple[tuple[tuple[str, str], ...], str]]) -> list[list[Any]]:
        """[raw, None], or [None, why], for each; items that fail together are asked again by halves."""
        until, found, failures = time.monotonic() + self.settings.deadline_seconds, {}, 0
        waiting = [range(i, min(i + CHUNK, len(items))) for i in range(0, len(items), CHUNK)]
        last, died = "timeout", None
        while waiting:
            chunk, left = waiting.pop(0), until - time.monotonic()
            if left <= 0 or failures >= GIVE_UP:
                found.update({i: [None, "timeout" if left <= 0 else last] for i in chunk})
                continue
            asked = [{"messages": [{"role": role, "content": content} for role, content in items[i][0]],
                      "answer": items[i][1]} for i in chunk]  # fmt: skip
            seconds = min(self.settings.timeout_seconds, left)
            answer = self.pool.call(f"{_CHILD}:outputs", {"items": asked}, seconds)
            if answer.failure is None:
                found.update(zip(chunk, answer.value))
                failures = 0
            elif answer.failure == "worker_died" and chunk != died:  # perhaps nothing to do with these texts
                died = chunk
                waiting.insert(0, chunk)
            elif len(chunk) > 1:
                middle = chunk.start + len(chunk) // 2
                waiting[:0] = [range(chunk.start, middle), range(middle, chunk.stop)]
            else:
                last, failures = _cause(answer), failures + 1
                found[chunk.start] = [None, last]
        return [found[i] for i in range(len(items))]

    def _verdict(self, told: Sequence[Any], text: str) -> dict[str, Any]:
        raw, why = told
        if why in ("too long", "control tokens"):
            return _result(0.0, None, None, f"not shown to the model: {why}")
        if raw is None:
            return _result(None, why or "not finite", text, f"no output: {why or 'not finite'}")
        settings = self.settings
        shown = f"probability {raw:.4g} of {settings.label!r}" if settings.output == "softmax" else f"output {raw:.4g}"
        value = squash(raw, settings)
        return _result(value, None, text, f"{shown}, squashed to {value:.4f}", {"raw": raw})


def _messages(prompt: str | Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """((role, content), …): of a text, one message of the user."""
    if isinstance(prompt, str):
        return (("user", prompt),)
    return tuple((str(message.get("role", "user")), str(message.get("content") or "")) for message in prompt)


def _cause(answer: Answer) -> str:
    return str(answer.failure).replace("error: ", "checker_error: ", 1)


def _result(
    value: float | None, cause: str | None, text: str | None, compared: str, parts: Mapping[str, float] | None = None
) -> dict[str, Any]:
    return {"score": value, "cause": cause, "extracted": text, "extractable": text is not None, "compared": compared,
            "parts": dict(parts or {})}  # fmt: skip


# --- the verifier ---------------------------------------------------------------------------------------------------


def score(
    *, answer: str, gold: Any = None, prompt: str | Sequence[Mapping[str, Any]] = "", **params: Any
) -> dict[str, Any]:
    """The verdict on one answer; the model is loaded for it alone. `ModelSettings` has the parameters."""
    with RewardModel(read_settings(params)) as scorer:
        return scorer.score_many([Question(answer, prompt, gold)])[0]


def check_gold(gold: Any, **params: Any) -> str | None:
    """A reward model looks at no gold."""
    return None


def right(gold: Any = None, **params: Any) -> list[str]:
    """None is known."""
    return []


def wrong(gold: Any = None, **params: Any) -> list[str]:
    """What is worth 0 without being shown to the model."""
    return ["", " \n"]
