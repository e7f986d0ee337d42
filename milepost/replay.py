"""`milepost replay RUN [EPISODE]`: one stored episode turn by turn on the terminal, or the list to choose from. Torch-free.

    ── turn 2 · 14 tokens read, 9 sampled · 0.21 s · advantage +0.53 ───
      │ 181714                          what was new in the policy's context
      ┃ answer(180809)<|im_end|>        what it sampled, coloured by advantage
        state: answer: – → 180809

Everything is read from the store; nothing is sampled or judged again. Milestones and costs are what the environment's own
predicates find in the stored states. Tokens are spelled by the run's tokenizer, if its tokenizer.json is found and agrees
with the stored text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from milepost.charts import short
from milepost.env import EnvSpec
from milepost.envs.find import find_env
from milepost.play import changes
from milepost.recipe import Recipe
from milepost.reward_combine import combination
from milepost.reward_spec import (
    NO_SCORES,
    RewardSpec,
    is_measure,
    make_reward,
    potentials,
    progress,
    states_of,
    turn_rewards,
    units_used,
)
from milepost.store import EpisodeLine, Run, StoredEpisode
from milepost.terminal import BOLD, DIM, cells, framed, shortened, table, visible
from milepost.turn_scorers import Scores
from milepost.types import Credit, Episode, EpisodeId, RecipeError, Reward, Task, Turn

READ, WROTE, NOTE = "  │ ", "  ┃ ", "    "
MOST_LINES, MOST_CHANGES = 30, 12
"""Of a context, and of the changes of the state after one turn, unless all is asked for."""
GREEN, RED = (22, 28, 34, 40), (52, 88, 124, 160)
"""Backgrounds of a 256-colour terminal, weak to strong."""
BRIGHT = (34, 40)
"""Backgrounds that need dark letters."""


def replay(
    run_path: str | Path, episode: str, *, phase: str | None = None, step: int | None = None, width: int = 100,
    color: bool = False, full: bool = False,
) -> Iterator[str]:  # fmt: skip
    """The timeline of one episode, line by line. `episode`: its row, or phase/step/task/member/attempt.

    `phase` and `step` choose among several of one name. `full`: contexts and changes in whole. Raises RecipeError and
    StoreError.
    """
    with Run.open(run_path) as run:
        stored = run.episode(chosen(run, episode, phase, step))
        yield from _Timeline(run, stored, max(40, width or 100), color, full).lines()


# ---- choosing --------------------------------------------------------------------------------------------------------


def chosen(run: Run, episode: str, phase: str | None = None, step: int | None = None) -> int:
    """The row of an episode. Raises RecipeError for a name that is none, or that several episodes share."""
    if episode.isdecimal() and episode.isascii():
        return int(episode[:18])
    name = _name_of(episode)
    found = run.episode_lines(name=name, phase=phase, step=step) if name else []
    if len(found) == 1:
        return found[0].row
    if not found:
        raise RecipeError(f"no episode is named {visible(episode)!r} here; give a row, or phase/step/task/member/attempt, "
                          "as `milepost replay RUN` lists them")  # fmt: skip
    rows = ", ".join(f"{line.row} ({_commit(line)})" for line in found[:6])
    raise RecipeError(f"{len(found)} episodes are named {visible(episode)}: give the row of one, {rows}"
                      f"{', …' if len(found) > 6 else ''}")  # fmt: skip


def _name_of(text: str) -> EpisodeId | None:
    """A task's key may hold slashes itself."""
    head, *tail = text.rsplit("/", 2)
    phase, _, rest = head.partition("/")
    step, _, key = rest.partition("/")
    numbers = (step, *tail)
    if len(tail) < 2 or not key or not all(n.isascii() and n.isdecimal() and len(n) < 18 for n in numbers):
        return None
    return EpisodeId(phase, int(step), key, int(tail[0]), int(tail[1]))


def episode_list(
    run_path: str | Path, *, phase: str | None = None, step: int | None = None, success: bool | None = None,
    stop: str | None = None, limit: int = 20, width: int = 100,
) -> Iterator[str]:  # fmt: skip
    """One line for each episode that fits, `limit` of them (0: all). Raises RecipeError if a filter leaves none."""
    with Run.open(run_path) as run:
        every = run.episode_lines(phase=phase)
        if not every:
            phases = ", ".join(dict.fromkeys(name for p, _, split in run.commits() for name in (p, split) if name))
            raise RecipeError(f"--phase {phase}: no episode belongs to it; there are {phases}" if phases else
                              f"{run.path} holds no episode yet; `milepost show` tells how far it is")  # fmt: skip
        found = run.episode_lines(phase=phase, step=step, success=success, stop=stop)
        if not found:
            raise RecipeError(_why_none(every, step, stop, success))
        shown = found[: limit or None]
        header = ("row", "episode", "commit", "reward", "success", "stop", "turns", "tokens")
        yield from table([header, *map(_row, shown)], left=3, width=width)
        rest = "" if len(shown) == len(found) else f"{len(shown)} of {len(found)} episodes, --limit 0 lists all; "
        yield f"{rest}one of them turn by turn: milepost replay {visible(str(run.path))} {shown[-1].row}"


def _why_none(every: Sequence[EpisodeLine], step: int | None, stop: str | None, success: bool | None) -> str:
    stops, steps = sorted({line.stop.reason for line in every}), sorted({line.step for line in every})
    if stop is not None and stop not in stops:
        return f"--stop {stop}: no episode ended so; they ended by {', '.join(stops)}"
    if step is not None and step not in steps:
        there = f"{steps[0]} to {steps[-1]}" if len(steps) > 1 else f"{steps[0]} alone"
        return f"--step {step}: no episode is stored of it; there are steps {there}"
    asked = {"--step": step, "--stop": stop, "--success": success or None, "--failed": success is False or None}
    given = [flag for flag, value in asked.items() if value is not None]
    return f"none of {len(every)} episodes fits {' with '.join(given)}; leave out {given[-1]}"


def _row(line: EpisodeLine) -> tuple[str, ...]:
    reward = line.reward
    return (str(line.row), str(line.id), _commit(line), _total(reward), _success(reward), line.stop.reason,
            str(line.num_turns), str(line.num_sampled))  # fmt: skip


def _commit(place: EpisodeLine | StoredEpisode) -> str:
    return f"{place.phase} {place.step}{f' {place.split}' if place.split else ''}"


def _total(reward: Reward | None) -> str:
    return "–" if reward is None or reward.total is None else short(reward.total)


def _success(reward: Reward | None) -> str:
    if reward is None:
        return "–"
    return {True: "yes", False: "no", None: reward.cause or "–"}[reward.success]


# ---- the timeline ----------------------------------------------------------------------------------------------------


@dataclass
class _Timeline:
    run: Run
    stored: StoredEpisode
    width: int
    color: bool
    full: bool
    task: Task = field(init=False)
    spell: Speller | None = field(init=False)
    largest: float = field(init=False)

    def lines(self) -> Iterator[str]:
        episode, credit = self.stored.episode, self.stored.credit
        self.task = self.run.task(episode.id.task_key)
        self.spell = speller(self.run)
        self.largest = max(self.run.largest_advantage(self.stored.phase, self.stored.step), largest_of(credit))
        reward = self.stored.reward
        scores = reward.turn_scores if reward else {}
        notes, problem = turn_notes(self.run.recipe, self.task, episode, scores, full=self.full)
        yield from self._head()
        if problem:
            yield from self._note(problem)
        at = 0
        for index, turn in enumerate(episode.turns):
            num_tokens = len(turn.sampled.ids)
            advantages = credit.advantages[at : at + num_tokens] if credit is not None else np.zeros(0)
            weights = credit.weights[at : at + num_tokens] if credit is not None and credit.weights is not None else None
            at += num_tokens
            yield from self._turn(index, turn, advantages, weights)
            for line in notes[index]:
                yield from self._note(line)
        yield from self._end()

    def _head(self) -> Iterator[str]:
        episode, task = self.stored.episode, self.task
        name = f"{episode.id} · row {self.stored.row} of {self.run.name}, {_commit(self.stored)}"
        yield from framed([(name.replace("\n", "␊"), BOLD)], "", self.width, color=self.color)
        facts = [f"task {task.key}", *([f"source {task.source}"] if task.source else [])]
        facts += [f"gold {_inline(task.answer)}"] if task.answer is not None else []
        facts += [f"in {episode.facts['env']}"] if "env" in episode.facts else []
        yield from self._note(" · ".join(facts), "")
        if episode.branch_of:
            parent, turn = episode.branch_of
            yield from self._note(f"continues {parent} after its turn {turn}", "")
        yield from self._note(f"{outcome(self.stored.reward)} · {_stop(episode)} · {_size(episode)}", "")
        if doubt := self._unspelled():
            yield from self._note(doubt, "")
        if self.color and self.largest:
            yield from self._note(f"colour: advantage, green above 0, red below; strongest at ±{short(self.largest)}, the "
                                  "commit's largest", "")  # fmt: skip

    def _unspelled(self) -> str:
        if self.spell is None:
            return "texts are as the store holds them, turn by turn: no tokenizer.json of this run is found"
        others = [str(i + 1) for i, turn in enumerate(self.stored.episode.turns) if self.spell.pieces(turn) is None]
        if not others:
            return ""
        return f"the tokenizer.json found reads turn {', '.join(others)} otherwise than the store, whose text is shown"

    def _turn(self, index: int, turn: Turn, advantages: np.ndarray, weights: np.ndarray | None) -> Iterator[str]:
        parts = [f"turn {index + 1}", f"{len(turn.context_ids)} tokens read, {len(turn.sampled.ids)} sampled"]
        parts += [f"{turn.seconds:.2f} s"] if turn.seconds else []
        parts += [f"advantage {_span_of(advantages)}"] if len(advantages) else []
        if weights is not None and len(weights):
            parts += [f"weight {weights[0]:.3g}" if weights.any() else "weight 0: trained elsewhere, or not at all"]
        parts += [turn.agent] if turn.agent != "policy" else []
        yield self._rule(" · ".join(parts))
        if turn.new_segment:
            yield from self._note("the history was rewritten; from here on it is:")
        yield from self._clipped(framed([(self._read(index, turn), DIM)], READ, self.width, color=self.color))
        spans = [(text.replace("\n", "⏎\n"), self._style(advantage)) for text, advantage in self._wrote(turn, advantages)]
        yield from framed(spans, WROTE, self.width, color=self.color)
        for name, data in turn.blobs.items():
            yield from self._note(f"attached: {name}, {len(data)} bytes")
        for event in turn.events:
            yield from self._note(f"event: {event}")

    def _read(self, index: int, turn: Turn) -> str:
        """What was new to the policy: the very ids where they can be spelled, else the messages as the store holds them."""
        text = self.spell.text(turn.context_ids) if self.spell else None
        if text is not None:
            return text
        if index == 0:
            return self.task.prompt if isinstance(self.task.prompt, str) else _messages(self.task.prompt)
        return _messages(self.stored.episode.turns[index - 1].facts.get("messages", ()))

    def _wrote(self, turn: Turn, advantages: np.ndarray) -> list[tuple[str, float | None]]:
        """(piece, advantage); the advantage is None where nothing was credited or the episode is not in the loss."""
        credit = self.stored.credit
        values = advantages if credit is not None and credit.trained and len(advantages) else None
        pieces = self.spell.pieces(turn) if self.spell else None
        if pieces is None:
            return [(turn.text, None if values is None else float(values.mean()))]
        return [(text, None if values is None else float(values[start:end].mean())) for text, start, end in pieces]

    def _style(self, advantage: float | None) -> str:
        return "" if advantage is None else style_of(advantage, self.largest)

    def _clipped(self, lines: list[str]) -> list[str]:
        if self.full or len(lines) <= MOST_LINES:
            return lines
        half = MOST_LINES // 2
        left_out = f"{READ}… {len(lines) - 2 * half} lines, --full shows them"
        return [*lines[:half], left_out, *lines[-half:]]

    def _end(self) -> Iterator[str]:
        episode, credit, reward = self.stored.episode, self.stored.credit, self.stored.reward
        yield self._rule(f"end · {_stop(episode)}")
        if detail := episode.facts.get("fault"):
            yield from self._note(f"fault: {detail}")
        yield from self._note(f"{outcome(reward)}{_sum(reward, self.run.recipe)}")
        paid = _weights(reward, self.run.recipe)
        measured = {k: v for k, v in (reward.parts if reward else {}).items() if k not in paid}
        if measured:
            yield from self._note("measured: " + ", ".join(f"{name} {short(value)}" for name, value in measured.items()))
        if credit is not None:
            yield from self._note(f"advantage {_span_of(credit.advantages)}{_place_in_loss(credit)}")
        for line in self._siblings():
            yield from self._note(line)
        for name, verdict in self.run.rescored(self.stored.row).items():
            yield from self._note(f"judged again as {name}: {outcome(verdict)}{_sum(verdict, None)}")

    def _siblings(self) -> Iterator[str]:
        mine = self.stored
        found = self.run.episode_lines(phase=mine.phase, step=mine.step, group_id=mine.episode.group_id)
        members = [line for line in found if (line.phase, line.split) == (mine.phase, mine.split)]
        if len(members) > 1:
            shown = (f"[{_total(m.reward)}]" if m.row == self.stored.row else _total(m.reward) for m in members)
            yield f"rewards of its group: {'  '.join(shown)}"

    def _rule(self, text: str) -> str:
        line = shortened(f"── {visible(text)} ".replace("\n", "␊"), self.width)
        line += "─" * (self.width - cells(line))
        return f"\x1b[{BOLD}m{line}\x1b[0m" if self.color else line

    def _note(self, text: str, gutter: str = NOTE) -> list[str]:
        return framed([(text.replace("\n", "␊"), "")], gutter, self.width, color=False)


def outcome(reward: Reward | None) -> str:
    """In words: success, and what was paid."""
    if reward is None:
        return "not judged"
    if reward.total is None:
        return f"unscorable ({reward.cause})"
    said = {True: "success", False: "no success", None: "success not judged"}[reward.success]
    unread = ", no readable answer" if reward.extractable is False else ""
    return f"{said}{unread}, reward {short(reward.total)}"


def _weights(reward: Reward | None, recipe: Recipe | None) -> dict[str, float]:
    """The parts that the total is made of, with what each earns per unit; all others are only measured."""
    parts = reward.parts if reward else {}
    if recipe is None or recipe.env.name or not recipe.reward.functions:
        return {name: 1.0 for name in parts if not is_measure(name)}
    weights = {name: weight for name, weight in combination(recipe.reward).weights.items() if weight} | {"length": 1.0}
    return {name: weights[name] for name in parts if name in weights}


def _sum(reward: Reward | None, recipe: Recipe | None) -> str:
    """What the total is made of; parts of reward functions are stored raw, so their weights stand beside them."""
    if reward is None:
        return ""
    mixed = combination(recipe.reward) if recipe and recipe.reward.functions else None
    terms = []
    for name, weight in _weights(reward, recipe).items():
        term = f"{name} {short(reward.parts[name])}"
        term = f"(1 − {term})" if mixed and name in mixed.malus else term
        terms.append(term + ("" if weight == 1 else f" × {weight:.3g}"))
    shut = [gate for gate in mixed.gates if reward.parts.get(gate, 1.0) < 1] if mixed else []
    closed = f", but gate {shut[0]} is closed: nothing is paid" if shut else ""
    return f" = {' + '.join(terms)}{closed}" if terms else ""


def _place_in_loss(credit: Credit) -> str:
    parts = ["in the loss" if credit.trained else "kept out of the loss"]
    parts += [] if credit.in_baseline else ["not in the baseline"]
    parts += ["its group is constant"] if credit.constant_group else []
    return f", {', '.join(parts)}"


def _stop(episode: Episode) -> str:
    return f"{episode.stop.kind}: {episode.stop.reason}"


def _size(episode: Episode) -> str:
    turns = len(episode.turns)
    seconds = f", {episode.seconds:.1f} s" if episode.seconds else ""
    return f"{turns} turn{'' if turns == 1 else 's'}, {episode.num_sampled} sampled tokens{seconds}"


def _span_of(advantages: np.ndarray) -> str:
    if not len(advantages):
        return "none"
    low, high = float(advantages.min()), float(advantages.max())
    return f"{low:+.3g}" if math.isclose(low, high, abs_tol=1e-12) else f"{low:+.3g} to {high:+.3g}"


def _messages(messages: Sequence[Any]) -> str:
    return "\n".join(f"{m.get('role', '')}: {m.get('content', '')}" for m in messages)


def _inline(value: Any) -> str:
    return " ".join(str(value).split())[:200]


# ---- colours ---------------------------------------------------------------------------------------------------------


def style_of(advantage: float, largest: float) -> str:
    """Green above 0 and red below, in four strengths by its share of `largest`; no colour at 0."""
    if not advantage or not largest:
        return ""
    level = min(4, max(1, math.ceil(4 * abs(advantage) / largest - 1e-9))) - 1
    background = (GREEN if advantage > 0 else RED)[level]
    return f"38;5;{16 if background in BRIGHT else 231};48;5;{background}"


def largest_of(credit: Credit | None) -> float:
    return float(np.abs(credit.advantages).max()) if credit is not None and len(credit.advantages) else 0.0


# ---- tokens ----------------------------------------------------------------------------------------------------------


def speller(run: Run) -> Speller | None:
    """The run's tokenizer, without torch: of a checkpoint, else of the folder or the cached model it started from."""
    places = sorted(run.checkpoints.rglob("tokenizer.json"))
    model = str(run.meta().get("model", {}).get("path", run.recipe.model.path))
    places.append(Path(model).expanduser() / "tokenizer.json")
    if "/" in model and not places[-1].exists():
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(model, "tokenizer.json") if model.count("/") == 1 else None
        places += [Path(cached)] if isinstance(cached, str) else []
    for place in places:
        try:
            return Speller(Tokenizer.from_file(str(place)))
        except Exception:  # the library raises bare exceptions for files that are gone or not its own
            continue
    return None


@dataclass(frozen=True)
class Speller:
    """Ids as text, special tokens included; None for ids that this tokenizer does not have."""

    tokenizer: Tokenizer

    def text(self, ids: np.ndarray) -> str | None:
        known = len(ids) == 0 or 0 <= int(ids.min()) <= int(ids.max()) < self.tokenizer.get_vocab_size()
        return str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=False)) if known else None

    def pieces(self, turn: Turn) -> list[tuple[str, int, int]] | None:
        """(text, first token, behind the last one): one token each, but for characters that several tokens spell.

        None if this tokenizer reads the ids otherwise than the store: it is not the one that sampled them.
        """
        ids = turn.sampled.ids.tolist()
        if self.text(turn.sampled.ids) is None or self.tokenizer.decode(ids, skip_special_tokens=True) != turn.text:
            return None
        before = [int(i) for i in turn.context_ids[-1:] if 0 <= i < self.tokenizer.get_vocab_size()]
        return spelled(lambda some: str(self.tokenizer.decode(some, skip_special_tokens=False)), ids, before)


def spelled(decode: Callable[[list[int]], str], ids: list[int], before: list[int]) -> list[tuple[str, int, int]]:
    """What each token adds to the text behind `before`. A token that ends within a character waits for the next ones, up to
    four together: UTF-8 has no longer characters, so what is still broken then is no character."""
    pieces: list[tuple[str, int, int]] = []
    window, start = list(before), 0
    for end in range(1, len(ids) + 1):
        so_far, grown = decode(window), decode(window + ids[start:end])
        waits = grown.endswith("\ufffd") and end - start < 4 and end < len(ids)
        if waits:
            continue
        new = grown[len(so_far) :] if grown.startswith(so_far) else decode(ids[start:end])
        pieces.append((new, start, end))
        window, start = ids[start:end], end
    return pieces


# ---- what the environment's predicates find --------------------------------------------------------------------------


def turn_notes(
    recipe: Recipe, task: Task, episode: Episode, scores: Scores = NO_SCORES, *, full: bool = False
) -> tuple[list[list[str]], str]:  # fmt: skip
    """(lines about each turn, what kept the environment from being asked, or ""): milestones, costs so far, invalid calls,
    what turn scorers said, changes of the state, what the turn earned."""
    turns = len(episode.turns)
    notes: list[list[str]] = [[] for _ in range(turns)]
    states = _states(episode)
    for t, turn in enumerate(episode.turns):
        notes[t] += _marks(turn)
        if states:
            notes[t] += _changed(states[t], states[t + 1], full)
        notes[t] += [f"scored by {label}: {_said(row[t])}" for label, row in scores.items() if t < len(row)]
    if not states or not recipe.env.name:
        return notes, ""
    try:
        spec = find_env(recipe.env.name, "env.name")
        _refuse_other(spec, episode)
        for t, lines in enumerate(_found(recipe, spec, task, episode, scores)):
            notes[t] += lines
        return notes, ""
    except Exception as error:  # the user's own environment: the rest of the episode is there without it
        return notes, f"milestones and costs are not shown: {type(error).__name__}: {error}"


def _said(score: float | None) -> str:
    return "no score" if score is None else f"{score:.3g}"


def _states(episode: Episode) -> list[Any]:
    complete = episode.facts.get("start") is not None and all("state" in turn.facts for turn in episode.turns)
    return states_of(episode) if complete else []


def _refuse_other(spec: EnvSpec, episode: Episode) -> None:
    played = episode.facts.get("version", spec.version)
    if played != spec.version:
        raise RecipeError(f"the episode was played in version {played} of {spec.name}, and this is version {spec.version}")


def _marks(turn: Turn) -> Iterator[str]:
    if turn.facts.get("cut"):
        yield "cut by a budget, so nothing of it was carried out"
    if num := turn.facts.get("num_invalid"):
        yield f"invalid actions: {num}"
    if num := turn.facts.get("num_surplus"):
        yield f"calls beyond env.max_tool_calls, not carried out: {num}"
    if kind := turn.facts.get("fault"):
        yield f"the environment failed here: {kind}"


def _changed(before: Any, after: Any, full: bool) -> Iterator[str]:
    found = list(changes(before, after))
    shown = found if full else found[:MOST_CHANGES]
    yield from (f"state: {line}" for line in shown)
    if len(shown) < len(found):
        yield f"state: … {len(found) - len(shown)} more changes, --full shows them"


def _found(recipe: Recipe, spec: EnvSpec, task: Task, episode: Episode, scores: Scores) -> list[list[str]]:
    """Lines of each turn from the environment's predicates."""
    rewards = make_reward(recipe, spec)
    every = RewardSpec(milestones={m.name: 1.0 for m in spec.milestones})
    held = progress(every, spec, task, states_of(episode))
    earned = _earned(replace(rewards, length=None), spec, task, episode, scores)
    near = potentials(spec, task, states_of(episode)) if rewards.potential else np.zeros(0)
    lines: list[list[str]] = []
    costs: list[str] = []
    for t in range(len(episode.turns)):
        mine = []
        for name, row in held.items():
            if row[t] != row[t + 1]:
                pays = f" (weight {rewards.milestones[name]:g})" if name in rewards.milestones else ""
                mine.append(f"milestone {'reached' if row[t + 1] else 'taken back'}: {name}{pays}")
        if len(near) and near[t] != near[t + 1]:
            mine.append(f"potential: {near[t]:.3g} → {near[t + 1]:.3g} (weight {rewards.potential:g})")
        before, costs = costs, _costs(rewards, spec, task, replace(episode, turns=episode.turns[: t + 1]))
        mine += [f"costs so far: {', '.join(costs)}"] if costs != before else []
        mine += [f"earned {earned[t]:+.3g}"] if len(earned) > t and abs(earned[t]) > 1e-12 else []
        lines.append(mine)
    return lines


def _costs(rewards: RewardSpec, spec: EnvSpec, task: Task, episode: Episode) -> list[str]:
    terms = {cost.name: cost for cost in rewards.costs}
    found = []
    for name in dict.fromkeys([*terms, *(cost.name for cost in spec.costs)]):
        units = units_used(name, spec, task, episode)
        paid = terms[name].paid(units) if name in terms else None
        found.append(f"{name} {units:g}{'' if paid is None else f' (−{paid:.3g})' if paid else ' (free)'}")
    return found


def _earned(rewards: RewardSpec, spec: EnvSpec, task: Task, episode: Episode, scores: Scores) -> np.ndarray:
    try:
        return turn_rewards(rewards, spec, task, episode, scores=scores)
    except ValueError:  # unscorable: it earned nothing
        return np.zeros(0)
