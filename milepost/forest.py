"""The batch as a prefix forest and its flat events.

Every distinct prefix of the batch's token sequences stands once, as a node. Every sampled token of every trained
episode is an *event*: it points at the node whose hidden state predicts it. Several events may point at one node, each
with its own old log-prob, advantage and weight; losses see the flat event vectors and never the tree.

    prompt  a b        nodes   a ─ b ─┬─ c ─ d        events  (b→c) (c→d) (d→e)   episode 0 sampled  c d e
    sampled c d e                     └─ f                    (b→f) (f→g)         episode 1 sampled  f g
    sampled f g

The last sampled token of a sequence predicts nothing, so it needs no node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from milepost.types import Credit, Episode, EpisodeId, Turn


@dataclass(frozen=True, eq=False)
class Forest:
    """U unique nodes. A parent stands before its children; roots have parent −1."""

    ids_U: np.ndarray
    parent_U: np.ndarray
    position_U: np.ndarray
    """Distance from the root: the position id."""

    def __len__(self) -> int:
        return len(self.ids_U)


@dataclass(frozen=True, eq=False)
class Batch:
    """What one optimizer step sees. Event vectors [E] are episode-major, in token order.

    `weight_E` already holds the denominator of the whole update batch, so micro-batch losses simply add up.
    """

    forest: Forest
    paths: tuple[np.ndarray, ...]
    """One per segment (a token sequence without rewritten history): its nodes from the root down."""
    segment_E: np.ndarray
    node_E: np.ndarray
    token_E: np.ndarray
    episode_E: np.ndarray
    """Index into `episodes`."""
    turn_E: np.ndarray
    advantage_E: np.ndarray
    weight_E: np.ndarray
    temperature_E: np.ndarray
    sampler_E: np.ndarray
    """Log-probs as the sampler recorded them."""
    episodes: tuple[EpisodeId, ...]
    groups: tuple[str, ...]
    """Group id of each episode."""
    old_E: np.ndarray | None = None
    """Learner log-probs before the first update on these episodes; None on the only update."""
    ref_E: np.ndarray | None = None
    masked_E: np.ndarray | None = None
    """bool: chosen to have no surrogate; None: no event is."""
    restrained_E: np.ndarray | None = None
    """bool: chosen to be held near the old policy; None: no event is."""

    @property
    def num_events(self) -> int:
        return len(self.token_E)

    def with_logprobs(self, *, old: np.ndarray | None = None, ref: np.ndarray | None = None) -> Batch:
        """Copies of the batch with old or reference log-probs set; each [E]."""
        return replace(self, old_E=self.old_E if old is None else old, ref_E=self.ref_E if ref is None else ref)


def grow(sequences: Sequence[np.ndarray]) -> tuple[Forest, tuple[np.ndarray, ...]]:
    """The prefix forest of token sequences, and each sequence's path of nodes from the root down.

    Sorted neighbours share their longest common prefix, so one pass over the sorted order finds every node.
    """
    order = sorted(range(len(sequences)), key=lambda i: sequences[i].tobytes())
    # tobytes of big-endian ids sorts like the ids; any total order on prefixes would do, as long as it is one.
    paths: list[np.ndarray] = [np.empty(0, np.int64)] * len(sequences)
    ids: list[np.ndarray] = []
    parents: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    count, last = 0, -1
    for index in order:
        sequence = sequences[index]
        shared = 0 if last < 0 else _common_prefix(sequences[last], sequence)
        fresh = np.arange(count, count + len(sequence) - shared)
        trunk = paths[last][:shared] if last >= 0 else np.empty(0, np.int64)
        path = np.concatenate([trunk, fresh]).astype(np.int64)
        ids.append(sequence[shared:])
        parents.append(np.concatenate([[-1], path])[shared : len(path)])
        positions.append(np.arange(shared, len(sequence)))
        paths[index] = path
        count, last = count + len(fresh), index
    join = lambda parts: np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)  # noqa: E731
    return Forest(join(ids), join(parents), join(positions)), tuple(paths)


def _common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


def aggregation_weights(
    lengths: Sequence[float], groups: Sequence[str], aggregate: str, constant: int = 0, times: Sequence[int] | None = None
) -> np.ndarray:  # fmt: skip
    """The weight of each token of episode i, over the whole update batch; float64 [number of episodes].

    N episodes of |o_i| trained tokens: sequence_mean 1/(N·|o_i|) · token_mean 1/Σ|o| · constant 1/(N·constant) ·
    prompt_mean 1/(number of groups · Σ|o| within the group). Sources: algorithms.md 1.3 names the papers.
    `times`: how often each episode is repeated; its weight is that of all its copies together.
    """
    length = np.asarray(lengths, np.float64)
    if len(length) == 0:
        return length
    n = np.ones(len(length)) if times is None else np.asarray(times, np.float64)
    if aggregate == "sequence_mean":
        return n / (n.sum() * np.maximum(length, 1.0))
    if aggregate == "token_mean":
        return n / max((n * length).sum(), 1.0)
    if aggregate == "constant":
        return n / (n.sum() * constant)
    if aggregate == "prompt_mean":
        names, index = np.unique(np.asarray(groups), return_inverse=True)
        tokens = np.bincount(index, weights=n * length)
        return n / (len(names) * np.maximum(tokens[index], 1.0))
    raise ValueError(f"unknown aggregation {aggregate!r}")


def build_batch(
    episodes: Sequence[Episode],
    credits: Sequence[Credit],
    *,
    aggregate: str = "token_mean",
    constant: int = 0,
    drop_constant_groups: bool = True,
    repeats: Mapping[EpisodeId, int] | None = None,
) -> Batch | None:
    """Forest and events of the trained episodes. None if no token would be trained.

    Weights count every trained episode, also those of constant groups, whose advantages are exactly 0: dropping them
    from the forest (exact only while nothing but the advantage has a gradient) changes no other token's weight.
    `repeats`: episodes that count more than once, in weight alone; each of their tokens still is one event.
    """
    trained = [(e, c) for e, c in zip(episodes, credits, strict=True) if c.trained]
    nothing = [str(e.id) for e, _ in trained if not e.num_sampled]
    if nothing:
        raise ValueError(f"episode {nothing[0]} is to be trained, but the policy sampled no token of it")
    per_token = _weights(trained, aggregate, constant, repeats or {})
    kept = [(e, c, w) for (e, c), w in zip(trained, per_token) if not (drop_constant_groups and c.constant_group)]
    if not kept:
        return None
    sequences: list[np.ndarray] = []
    columns: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
    predicted_at: list[np.ndarray] = []
    for index, (episode, credit, weight) in enumerate(kept):
        if len(credit.advantages) != episode.num_sampled:
            raise ValueError(
                f"episode {episode.id}: {len(credit.advantages)} advantages for {episode.num_sampled} sampled tokens"
            )
        first = 0
        for segment, at, turns in _segments(episode):
            n = sum(len(t.sampled.ids) for _, t in turns)
            share = np.ones(n) if credit.weights is None else credit.weights[first : first + n]
            own = np.flatnonzero(share)  # what a trunk is trained on is no event of those that continue it
            advantage = np.asarray(credit.advantages, np.float64)[first : first + n]
            first += n
            if not len(own):
                continue
            columns["segment"].append(np.full(len(own), len(sequences)))
            columns["episode"].append(np.full(len(own), index))
            columns["weight"].append(weight * share[own])
            columns["advantage"].append(advantage[own])
            for name, values in _sampled_columns(turns).items():
                columns[name].append(values[own])
            predicted_at.append(at[own])
            sequences.append(segment)
    forest, paths = grow(sequences)
    column: dict[str, np.ndarray] = {name: np.concatenate(parts).astype(_COLUMNS[name]) for name, parts in columns.items()}
    node = np.concatenate([paths[s][at] for s, at in enumerate(predicted_at)])
    return Batch(
        forest, paths, column["segment"], node, column["token"], column["episode"], column["turn"], column["advantage"],
        column["weight"], column["temperature"], column["sampler"],
        tuple(e.id for e, _, _ in kept), tuple(e.group_id for e, _, _ in kept),
    )  # fmt: skip


def _sampled_columns(turns: Sequence[tuple[int, Turn]]) -> dict[str, np.ndarray]:
    """Of each sampled token of numbered turns."""
    sizes = [len(turn.sampled.ids) for _, turn in turns]
    return {
        "token": np.concatenate([turn.sampled.ids for _, turn in turns]),
        "sampler": np.concatenate([turn.sampled.logprobs for _, turn in turns]),
        "temperature": np.repeat([turn.sampled.temperature for _, turn in turns], sizes),
        "turn": np.repeat([number for number, _ in turns], sizes),
    }


def _weights(
    trained: Sequence[tuple[Episode, Credit]], aggregate: str, constant: int, repeats: Mapping[EpisodeId, int]
) -> list[float]:
    """What a token of each episode weighs. An episode and those that continue it are one: their tokens, each as much as it
    weighs, are its length."""
    sizes: dict[EpisodeId, float] = {}
    groups: dict[EpisodeId, str] = {}
    whole = [e.branch_of[0] if e.branch_of else e.id for e, _ in trained]
    for name, (episode, credit) in zip(whole, trained):
        own = episode.num_sampled if credit.weights is None else float(credit.weights.sum())
        sizes[name], groups[name] = sizes.get(name, 0.0) + own, episode.group_id
    times = [repeats.get(name, 1) for name in sizes] if repeats else None
    weights = aggregation_weights(list(sizes.values()), list(groups.values()), aggregate, constant, times)
    of = dict(zip(sizes, weights))
    return [float(of[name]) for name in whole]


_COLUMNS: dict[str, type] = {"segment": np.int64, "token": np.int64, "episode": np.int64, "turn": np.int64,
                             "advantage": np.float64, "weight": np.float64, "temperature": np.float64,
                             "sampler": np.float64}  # fmt: skip


def _segments(episode: Episode) -> Iterator[tuple[np.ndarray, np.ndarray, list]]:
    """(ids without the last one, index that predicts each sampled token, numbered turns) per unbroken history."""
    start = 0
    turns = list(enumerate(episode.turns))
    for k in range(1, len(turns) + 1):
        if k < len(turns) and not turns[k][1].new_segment:
            continue
        part, start = turns[start:k], k
        ids: list[np.ndarray] = []
        at: list[np.ndarray] = []
        length = 0
        for _, turn in part:
            length += len(turn.context_ids)
            if length == 0:
                raise ValueError(f"episode {episode.id}: the first sampled token has no context to be predicted from")
            at.append(np.arange(length - 1, length - 1 + len(turn.sampled.ids)))
            ids += [turn.context_ids, turn.sampled.ids]
            length += len(turn.sampled.ids)
        if any(len(a) for a in at):
            last = np.concatenate(at).max()
            yield np.concatenate(ids)[: last + 1].astype(">i4"), np.concatenate(at), part


@dataclass(frozen=True, eq=False)
class Call:
    """One forward: R rows of at most L nodes, and the events read from it.

    Row r holds the union of its segments' paths; parents stand before children, so slot order is a valid causal order.
    """

    rows: tuple[np.ndarray, ...]
    """Forest nodes of each row, ascending."""
    segments: tuple[tuple[int, ...], ...]
    """Segments of each row."""
    event: np.ndarray
    """Indices into the batch's event vectors."""
    row_e: np.ndarray
    slot_e: np.ndarray
    """Row and slot whose hidden state predicts each of those events."""

    @property
    def width(self) -> int:
        return max(len(row) for row in self.rows)

    @property
    def padded_tokens(self) -> int:
        return len(self.rows) * self.width


def plan(batch: Batch, *, shared: bool, tokens_per_call: int, together: bool = True) -> list[Call]:
    """Rows and calls. `shared`: one row per group, each prefix once in it; else one row per segment.

    Rows of similar length travel together. A group that exceeds the budget alone is split, its trunk repeated: by episodes
    if each has to stay `together` in one call, because a sequence-level ratio needs all of it, else by segments. So a call
    exceeds the budget only by what cannot be split: one segment, or all segments of one episode.
    """
    rows = _rows(batch, shared, tokens_per_call, together)
    rows.sort(key=lambda segments: -len(_union(batch, segments)))
    calls: list[list[tuple[int, ...]]] = []
    width = 0
    unit = _episode_units(batch, rows) if together and not shared else [[r] for r in rows]
    for rows_together in unit:
        size = max(len(_union(batch, r)) for r in rows_together)
        if calls and (len(calls[-1]) + len(rows_together)) * max(width, size) <= tokens_per_call:
            calls[-1] += rows_together
            width = max(width, size)
        else:
            calls.append(list(rows_together))
            width = size
    return [_call(batch, rows_of_call) for rows_of_call in calls]


def _rows(batch: Batch, shared: bool, budget: int, together: bool) -> list[tuple[int, ...]]:
    episode_of = _episode_of_segment(batch)
    if not shared:
        return [(s,) for s in range(len(batch.paths))]
    by_group: dict[str, dict[int, list[int]]] = {}
    for s in range(len(batch.paths)):
        pieces = by_group.setdefault(batch.groups[episode_of[s]], {})
        pieces.setdefault(int(episode_of[s]) if together else s, []).append(s)
    rows: list[tuple[int, ...]] = []
    for pieces in by_group.values():
        part: list[int] = []
        for own in pieces.values():
            if part and len(_union(batch, part + own)) > budget:
                rows.append(tuple(part))
                part = []
            part += own
        rows.append(tuple(part))
    return rows


def _episode_units(batch: Batch, rows: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Plain rows that must stay in one call: the segments of one episode."""
    episode_of = _episode_of_segment(batch)
    units: dict[int, list[tuple[int, ...]]] = {}
    for row in rows:
        units.setdefault(episode_of[row[0]], []).append(row)
    return list(units.values())


def _episode_of_segment(batch: Batch) -> np.ndarray:
    owner = np.zeros(len(batch.paths), np.int64)
    owner[batch.segment_E] = batch.episode_E
    return owner


def _union(batch: Batch, segments: Sequence[int]) -> np.ndarray:
    if len(segments) == 1:
        return batch.paths[segments[0]]
    return np.unique(np.concatenate([batch.paths[s] for s in segments]))


def _call(batch: Batch, rows: list[tuple[int, ...]]) -> Call:
    nodes = tuple(_union(batch, segments) for segments in rows)
    row_of_segment = np.full(len(batch.paths), -1)
    for r, segments in enumerate(rows):
        row_of_segment[list(segments)] = r
    event = np.flatnonzero(row_of_segment[batch.segment_E] >= 0)
    row = row_of_segment[batch.segment_E[event]]
    slot = np.empty(len(event), np.int64)
    for r, members in enumerate(nodes):
        mine = row == r
        slot[mine] = np.searchsorted(members, batch.node_E[event][mine])
    return Call(nodes, tuple(rows), event, row, slot)


def tree_mask(batch: Batch, call: Call, first: int = 0, last: int | None = None) -> np.ndarray:
    """bool [R, last − first, last]: slot i of first … last − 1 may attend to slot j when j's node is i's ancestor or i's
    own. Padding sees itself only. `last` None: the call's width L, so that the whole mask is [R, L, L].
    """
    last = call.width if last is None else last
    mask = np.zeros((len(call.rows), last - first, last), bool)
    for r, (nodes, segments) in enumerate(zip(call.rows, call.segments, strict=True)):
        for s in segments:
            slots = np.searchsorted(nodes, batch.paths[s])
            seen = slots[slots < last]
            asking = seen[seen >= first]
            mask[r][np.ix_(asking - first, seen)] |= seen <= asking[:, None]
    diagonal = np.arange(last - first)
    mask[:, diagonal, first + diagonal] = True
    return mask
