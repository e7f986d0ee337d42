"""Facts as database columns and back, exactly: ids and log-probs as bytes, everything else as JSON that loses nothing."""

from __future__ import annotations

import base64
import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from milepost.types import Credit, DataError, Episode, EpisodeId, Reward, Sampled, StopKind, StopReason, Turn

TURN_SCORES = "turn_scores"
"""Stands among the parts of a stored reward: label → one number or null per turn."""


def episode_row(episode: Episode) -> dict[str, Any]:
    name, branch = episode.id, episode.branch_of
    return {
        "id_phase": name.phase, "id_step": int(name.step), "task_key": name.task_key, "member": int(name.member),
        "attempt": int(name.attempt), "group_id": episode.group_id, "stop_kind": str(episode.stop.kind),
        "stop_reason": episode.stop.reason, "facts": dumps(episode.facts), "seconds": float(episode.seconds),
        "branch_of": dumps([*id_fields(branch[0]), int(branch[1])]) if branch else None,
        "start_fingerprint": episode.start_fingerprint, "num_sampled": episode.num_sampled,
    }  # fmt: skip


def id_fields(name: EpisodeId) -> list[Any]:
    return [name.phase, int(name.step), name.task_key, int(name.member), int(name.attempt)]


def episode(row: sqlite3.Row, turns: tuple[Turn, ...]) -> Episode:
    branch = loads(row["branch_of"]) if row["branch_of"] else None
    return Episode(
        id=EpisodeId(row["id_phase"], row["id_step"], row["task_key"], row["member"], row["attempt"]),
        group_id=row["group_id"],
        turns=turns,
        stop=StopReason(StopKind(row["stop_kind"]), row["stop_reason"]),
        branch_of=(EpisodeId(*branch[:5]), branch[5]) if branch else None,
        facts=loads(row["facts"]),
        start_fingerprint=row["start_fingerprint"],
        seconds=row["seconds"],
    )


def turn_row(turn: Turn, before: Any = None) -> tuple[Any, ...]:
    """`before`: the state before the turn; where there is one, only what the turn changed of it is written."""
    drawn, facts = turn.sampled, turn.facts
    if before is not None and "state" in facts:
        facts = {**facts, CHANGE: change(before, facts["state"])}
        del facts["state"]
    return (
        turn.context_ids.astype("<i4").tobytes(),
        drawn.ids.astype("<i4").tobytes(),
        drawn.logprobs.astype("<f4").tobytes(),
        float(drawn.temperature),
        dumps([[int(start), int(version)] for start, version in drawn.versions]),
        drawn.finish,
        text_to_column(turn.text),
        int(turn.new_segment),
        dumps(facts),
        turn.state_key,
        dumps(list(turn.events)),
        float(turn.seconds),
        turn.agent,
    )


def turn(row: Sequence[Any], blobs: Mapping[str, bytes], before: Any = None) -> Turn:
    """The inverse of `turn_row`, given the same state."""
    context, ids, logprobs, temperature, versions, finish, text, new_segment, facts, state_key, events, seconds, agent = row
    spans, facts = tuple((start, version) for start, version in loads(versions)), loads(facts)
    if before is not None and CHANGE in facts:
        facts["state"] = changed(before, facts.pop(CHANGE))
    drawn = Sampled(np.frombuffer(ids, "<i4"), np.frombuffer(logprobs, "<f4"), temperature, spans, finish)
    return Turn(np.frombuffer(context, "<i4"), drawn, text_from_column(text), bool(new_segment), facts, state_key,
                tuple(loads(events)), seconds, agent, blobs)  # fmt: skip


def reward_row(name: str, reward: Reward | None) -> dict[str, Any]:
    if reward is None:
        return {}
    if reward.total is not None and math.isnan(reward.total):
        raise DataError(f"the reward of {name} is NaN; a reward that cannot be judged carries a cause instead")
    flags = {name: None if flag is None else int(flag) for name, flag in
             (("success", reward.success), ("extractable", reward.extractable))}  # fmt: skip
    total = None if reward.total is None else float(reward.total)
    parts: dict[str, Any] = dict(reward.parts)
    if reward.turn_scores:
        parts[TURN_SCORES] = {label: list(scores) for label, scores in reward.turn_scores.items()}
    return {"reward": total, "parts": dumps(parts), "cause": reward.cause, **flags}


def reward(row: sqlite3.Row) -> Reward | None:
    if row["reward"] is None and row["cause"] is None:
        return None
    success, extractable = (None if row[name] is None else bool(row[name]) for name in ("success", "extractable"))
    parts = loads(row["parts"])
    scores = parts.pop(TURN_SCORES, {})
    turn_scores = {label: tuple(some) for label, some in scores.items()}
    return Reward(row["reward"], parts, success, extractable, row["cause"], turn_scores)


def credit_row(credit: Credit | None) -> dict[str, Any]:
    """One number where all tokens share it, which is nearly always; the whole array otherwise, weights behind it if any."""
    if credit is None:
        return {}
    values = np.asarray(credit.advantages, dtype="<f8")
    weights = np.ones(len(values)) if credit.weights is None else np.asarray(credit.weights, dtype="<f8")
    weighed = bool((weights != 1).any())
    shared = not weighed and (len(values) == 0 or bool((values == values[0]).all()))
    return {"advantage": float(values[0] if shared and len(values) else values.mean() if len(values) else 0.0),
            "advantages": None if shared else values.tobytes() + weights.tobytes() * weighed,
            "trained": int(credit.trained), "in_baseline": int(credit.in_baseline),
            "constant_group": int(credit.constant_group)}  # fmt: skip


def credit(row: sqlite3.Row) -> Credit | None:
    if row["trained"] is None:
        return None
    blob, num = row["advantages"], row["num_sampled"]
    values = np.full(num, row["advantage"]) if blob is None else np.frombuffer(blob, "<f8")
    weights = values[num:] if len(values) > num else None
    name = EpisodeId(row["id_phase"], row["id_step"], row["task_key"], row["member"], row["attempt"])
    flags = bool(row["trained"]), bool(row["in_baseline"]), bool(row["constant_group"])
    return Credit(name, values[:num], *flags, weights)


# States, as what became of the one before: an episode would otherwise take as many copies of its world as it has turns

CHANGE = "state_change"


def change(before: Any, after: Any) -> Any:
    """What makes `after` of `before`: {"=": {key: change}} of a mapping, where an empty change ([]) takes the key out,
    {"+": [items]} at the end of a list, else [value]."""
    if type(before) is type(after) is dict:
        parts: dict[str, Any] = {key: [] for key in before if key not in after}
        for key, value in after.items():
            if key not in before or not _alike(before[key], value):
                parts[key] = change(before[key], value) if key in before else [value]
        return {"=": parts}
    if type(before) is type(after) is list and len(before) <= len(after) and all(map(_alike, before, after)):
        return {"+": after[len(before) :]}
    return [after]


def changed(before: Any, change: Any) -> Any:
    """`before` after a change; what did not change is shared."""
    if isinstance(change, list):
        return change[0]
    if "+" in change:
        return [*before, *change["+"]] if change["+"] else before
    made = dict(before)
    for key, part in change["="].items():
        if part == []:
            del made[key]
        else:
            made[key] = changed(before.get(key), part)
    return made


def _alike(one: Any, other: Any) -> bool:
    """Exactly: 1 is not 1.0 and not True, 0.0 is not −0.0."""
    return one is other or (type(one) is type(other) and one == other and dumps(one) == dumps(other))


# JSON in which tuples, bytes, arrays and non-text keys survive


def dumps(value: Any) -> str:
    """Raises DataError, naming the place, for values of other types than plain ones, bytes, sets and numpy's."""
    return json.dumps(_encode(value, "value"))


def loads(text: str) -> Any:
    return json.loads(text, object_hook=_decode)


def _encode(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [_encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [_encode(item, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(item, f"{where}.{key}") for key, item in value.items()}
        return {"$dict": [[_encode(key, where), _encode(item, f"{where}.{key}")] for key, item in value.items()]}
    if isinstance(value, (set, frozenset)):
        return {"$set": [_encode(item, where) for item in sorted(value, key=repr)]}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"$array": [value.dtype.str, list(value.shape), data]}
    raise DataError(f"{where} is a {type(value).__name__}, which cannot be stored; use text, numbers, lists or mappings")


def _decode(found: dict[str, Any]) -> Any:
    if len(found) != 1:
        return found
    ((tag, value),) = found.items()
    match tag:
        case "$tuple":
            return tuple(value)
        case "$dict":
            return {key: item for key, item in value}
        case "$set":
            return set(value)
        case "$bytes":
            return base64.b64decode(value)
        case "$array":
            dtype, shape, data = value
            return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape)
        case _:
            return found


def text_to_column(text: str) -> str | bytes:
    """SQLite takes valid Unicode only; lone surrogates travel as bytes."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def text_from_column(column: str | bytes) -> str:
    return column.decode("utf-8", "surrogatepass") if isinstance(column, bytes) else column
