"""The side of `reward_model` that holds the model: loaded once in a process of its own, then asked for raw outputs.

Nothing in an answer is a token of control here. A chat template is rendered with marks in the place of the texts, so that
it cannot look at them; special tokens spelt out in a text are broken by a space; and the ids are counted: a text that adds
a special id all the same is not scored by the model.
"""

from __future__ import annotations

import inspect
import re
import resource
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

TOO_LONG, CONTROL = "too long", "control tokens"
CHARACTERS_PER_TOKEN = 64
"""A text with more of them is too long without being encoded."""
_PROBES = ("A few words.", "Some more words than those, so that a batch of both is padded on one of its sides.")
_held: dict[str, Any] = {}

Row = dict[str, list[int]]
"""The ids of a task and its answer, with what else the model takes by position."""


def load(*, memory_mb: int, **how: Any) -> dict[str, Any]:
    """Bounds what this process may allocate and loads the model, as `hold` does."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = memory_mb << 20 if hard == resource.RLIM_INFINITY else min(memory_mb << 20, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return hold(**how)


def hold(*, model: str, form: str, text: str, output: str, label: int | str | None, max_tokens: int, batch_tokens: int,
         device: str, dtype: str) -> dict[str, Any]:  # fmt: skip
    """{"max_tokens": the limit of task and answer, "padded": whether rows go together}, or {"error": a sentence's end}."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, padding_side="right")
        loaded, report = AutoModelForSequenceClassification.from_pretrained(
            model, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True
        )
        loaded = loaded.to(device).eval()
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, ImportError, … for a broken folder
        words = " ".join(str(error).split())[:300] or type(error).__name__
        return {"error": f"cannot be read as a sequence classification model with safetensors ({words})"}
    if missing := sorted(report["missing_keys"]):
        return {"error": f"lacks {len(missing)} of the model's weights, {missing[0]} among them, which would be random; "
                         "give a checkpoint that was trained to score"}  # fmt: skip
    if problem := _unfit(tokenizer, loaded, form, output, label):
        return {"error": problem}
    limits = [
        max_tokens,
        getattr(loaded.config.get_text_config(), "max_position_embeddings", 0),
        tokenizer.model_max_length,
    ]
    bound = min(int(limit) for limit in limits if limit and limit < 1e9)
    specials = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} | set(tokenizer.all_special_ids)
    spelt = {str(tokenizer.convert_ids_to_tokens(i)) for i in specials} | set(tokenizer.all_special_tokens)
    longest_first = sorted(filter(None, spelt), key=len, reverse=True)
    _held.clear()
    _held.update(
        model=loaded, tokenizer=tokenizer, form=form, text=text, output=output, label=_index(loaded, label), device=device,
        max_tokens=bound, batch_tokens=batch_tokens, specials=specials - {tokenizer.unk_token_id},
        spelt=re.compile("|".join(map(re.escape, longest_first)) or r"(?!)"),
        typed="token_type_ids" in inspect.signature(loaded.forward).parameters,
    )  # fmt: skip
    _held["padded"] = _rows_may_go_together()
    return {"max_tokens": bound, "padded": _held["padded"]}


def _unfit(tokenizer: Any, model: Any, form: str, output: str, label: int | str | None) -> str | None:
    if form == "chat" and not tokenizer.chat_template:
        return 'has no chat template; use form = "text" or "pair"'
    if max(tokenizer.get_vocab().values()) >= model.get_input_embeddings().num_embeddings:
        return "has a tokenizer with more ids than the model knows; give the tokenizer that it was trained with"
    num = model.config.num_labels
    if output != "softmax" and num != 1:
        return f'has {num} outputs; use output = "softmax" and name one of them in label'
    if output == "softmax" and num < 2:
        return 'has one output; use output = "sigmoid" or "clip"'
    if output == "softmax" and _index(model, label) is None:
        names = ", ".join(f"{i} ({name})" for i, name in list(model.config.id2label.items())[:20])
        return f"has no label {label!r}; it has {names}"
    return None


def _index(model: Any, label: int | str | None) -> int | None:
    names = {str(name): int(i) for i, name in model.config.id2label.items()}
    index = names.get(label) if isinstance(label, str) else label
    return index if isinstance(index, int) and 0 <= index < model.config.num_labels else None


def _rows_may_go_together() -> bool:
    """Whether a batch with padding gives what its rows give alone; if not, or without padding, each row goes alone."""
    if _held["model"].config.get_text_config().pad_token_id is None or _held["tokenizer"].pad_token_id is None:
        return False
    rows = [_row(_held["tokenizer"](text)) for text in _PROBES]
    together, alone = _forward(rows), [_forward([row])[0] for row in rows]
    return all(abs(a - b) <= 1e-3 * max(1.0, abs(a)) for one, other in zip(together, alone) for a, b in zip(one, other))


def outputs(*, items: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """[raw output, None] for each {"messages", "answer"}, or [None, why not]. Rows of like length go together."""
    rows: dict[int, Row] = {}
    found: list[list[Any]] = []
    for i, item in enumerate(items):
        row = _encode(item["messages"], item["answer"])
        found.append([None, row if isinstance(row, str) else None])
        if not isinstance(row, str):
            rows[i] = row
    order = sorted(rows, key=lambda i: (len(rows[i]["input_ids"]), rows[i]["input_ids"]))
    while order:
        width = len(rows[order[-1]]["input_ids"])  # the longest first: if the memory is too small, that shows at once
        num = max(1, _held["batch_tokens"] // width) if _held["padded"] else 1
        batch, order = order[-num:], order[:-num]
        for i, values in zip(batch, _forward([rows[i] for i in batch])):
            found[i] = [_one(values), None]
    return found


def _one(values: Sequence[float]) -> float | None:
    """The output, or with several of them the probability of the label that was named. None: not finite."""
    raw = torch.tensor(values, dtype=torch.float64)
    value = float(raw.softmax(0)[_held["label"]] if _held["output"] == "softmax" else raw[0])
    return value if bool(torch.isfinite(raw).all()) else None


@torch.inference_mode()
def _forward(rows: Sequence[Row]) -> list[list[float]]:
    """The logits of each row."""
    given = {name: [row[name] for row in rows] for name in rows[0]}
    if len(rows) > 1:
        given = _held["tokenizer"].pad(given, padding=True)
    tensors = {name: torch.tensor(values, device=_held["device"]) for name, values in given.items()}
    return _held["model"](**tensors).logits.float().cpu().tolist()


# --- ids ------------------------------------------------------------------------------------------------------------


def _row(encoding: Mapping[str, Any]) -> Row:
    names = ("input_ids", "attention_mask", *(["token_type_ids"] if _held["typed"] else []))
    return {name: list(encoding[name]) for name in names if name in encoding}


def _encode(messages: Sequence[Mapping[str, str]], answer: str) -> Row | str:
    """The row of a task and its answer, or why there is none."""
    if len(answer) > CHARACTERS_PER_TOKEN * _held["max_tokens"]:
        return TOO_LONG
    texts = [_broken(text) for text in (*(message["content"] for message in messages), answer)]
    roles = [*(message["role"] for message in messages), "assistant"]
    row = _joined(roles, texts)
    if _num_special(row) != _num_special(_joined(roles, ["x"] * len(texts))):
        return CONTROL
    return row if 0 < len(row["input_ids"]) <= _held["max_tokens"] else TOO_LONG


def _num_special(row: Row) -> int:
    return sum(i in _held["specials"] for i in row["input_ids"])


def _broken(text: str) -> str:
    """The text with a space in every special token that is spelt out in it."""
    for _ in range(10):
        broken = _held["spelt"].sub(lambda found: f"{found[0][0]} {found[0][1:]}" if len(found[0]) > 1 else " ", text)
        if broken == text:
            break
        text = broken
    return text


def _joined(roles: Sequence[str], texts: Sequence[str]) -> Row:
    """Task and answer as one row, in the form that was chosen."""
    tokenizer, form = _held["tokenizer"], _held["form"]
    prompt = texts[0] if len(texts) == 2 else "\n\n".join(f"{role}: {text}" for role, text in zip(roles[:-1], texts))
    if form == "pair":
        return _row(tokenizer(prompt, texts[-1], truncation=False))
    if form == "text":
        parts = re.split(r"(\{prompt\}|\{answer\})", _held["text"])
        whole = "".join({"{prompt}": prompt, "{answer}": texts[-1]}.get(part, part) for part in parts)
        return _row(tokenizer(whole, truncation=False))
    marks = [f"milepost{secrets.token_hex(8)}" for _ in texts]
    told = [{"role": role, "content": mark} for role, mark in zip(roles, marks)]
    rendered = tokenizer.apply_chat_template(told, tokenize=False)
    if rendered.count(marks[-1]) != 1:
        raise ValueError("the chat template does not show the answer once")
    fill = dict(zip(marks, texts))
    whole = re.sub("|".join(marks), lambda found: fill[found[0]], rendered)
    return _row(tokenizer(whole, add_special_tokens=False, truncation=False))
