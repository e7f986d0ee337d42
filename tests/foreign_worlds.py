"""What the tests of foreign worlds share: tasks, scripts, and episodes that a small policy samples through the tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np

from milepost.env import Action, fingerprint
from milepost.launch import open_session
from milepost.policy import new_policy
from milepost.recipe import make_recipe
from milepost.scripted import play_script
from milepost.stages.pipeline import run_pipeline
from milepost.types import StopKind, Task


def tasks_of(spec, size, seed=0, **difficulty):
    rows = list(spec.generate(size, seed, **difficulty))
    assert len(rows) == size and rows == list(spec.generate(size, seed, **difficulty))
    return [Task(f"{i}", row["prompt"], columns=_columns(row)) for i, row in enumerate(rows)]


def _columns(row):
    return {name: value for name, value in row.items() if name != "prompt"}


def solves(spec, task, script, max_turns=300):
    played = play_script(spec, task, script, max_turns=max_turns)
    solved = spec.goal.holds(task, played.start_state, played.final_state)
    assert not solved or played.steps[-1].observation.ended  # one predicate for both
    return solved


def says(world, text):
    """(what is seen, number of invalid actions, over)"""
    seen = world.step(Action(text))
    return seen.messages[-1]["content"], seen.num_invalid, seen.ended


def assert_goes_on_alike_after_a_restore(spec, task, texts):
    """Saved half way, played on, put back into the same instance and into a fresh one: the same facts and words."""
    world, other = spec.make(), spec.make()
    world.reset(task, 0)
    half = len(texts) // 2
    for text in texts[:half]:
        world.step(Action(text))
    saved, state = world.snapshot(), fingerprint(world.state())
    expected = [(world.step(Action(text)), fingerprint(world.state())) for text in texts[half:]]
    for instance in (world, other):
        instance.restore(saved)
        assert fingerprint(instance.state()) == state
        assert [(instance.step(Action(text)), fingerprint(instance.state())) for text in texts[half:]] == expected


def sampled_episodes(folder, spec, words, *, params=None, max_turns=12, steps=12, num=50):
    """`num` episodes of as many held-out tasks by a policy of a few thousand weights, after a short warm start by the gold
    script, so that it does write actions. Checks the tokens of all of them."""
    new_policy(folder / "policy", texts=[words], tokens="words", layers=1, width=32, heads=2, context=1024)
    source = {"kind": "environment", "size": num + 40, "params": params or {}}
    recipe = make_recipe({
        "name": "sampled", "out": str(folder / "runs"), "model": {"path": str(folder / "policy"), "device": "cpu"},
        "env": {"name": spec.name, "max_turns": max_turns, "max_invalid": max_turns},
        "tasks": {"format": "text", "validation": 4, "test": num, "sources": [source]},
        "rollout": {"max_new_tokens": 4, "prompts_per_step": 2, "group_size": 2},
        "sft": {"demonstrations": "gold", "num_demonstrations": 36, "steps": steps, "batch_size": 12, "lr": 0.02},
        "grpo": {"steps": 0}, "eval": {"test_samples": 1},
    })  # fmt: skip
    with open_session(recipe, quiet=True) as session:
        run_pipeline(session, stages=("sft",))
        groups = session.play(session.tasks.test, phase="check", step=0, num_samples=1)
        episodes = [episode for group in groups for episode in group.episodes]
        check_tokens(session, episodes)
    assert len(episodes) == num and len({episode.id.task_key for episode in episodes}) == num
    assert not any(episode.stop.kind is StopKind.FAULT for episode in episodes)
    told = Counter(turn.facts["num_invalid"] == 0 for episode in episodes for turn in episode.turns)
    assert told[True] > num  # it does act, and not only by accident
    return episodes


def check_tokens(session, episodes):
    """The recorded log-probs of all sampled tokens are those of the stored histories: what was sampled is what would be
    trained. Each history is read once, whole."""
    histories = [history for episode in episodes for history in histories_of(episode)]
    sequences = [(np.concatenate(pieces), len(pieces[0]), 1.0) for pieces, _ in histories]
    num_checked = 0
    for (pieces, recorded), scored in zip(histories, session.sampler.score(sequences), strict=True):
        whole = np.concatenate([np.zeros(len(pieces[0]), np.float32), scored])
        ends = np.cumsum([len(piece) for piece in pieces])[1::2]  # of what was sampled: every other piece
        found = [whole[end - len(some) : end] for end, some in zip(ends, recorded, strict=True)]
        np.testing.assert_allclose(np.concatenate(found), np.concatenate(recorded), rtol=0, atol=3e-4)
        num_checked += sum(map(len, recorded))
    assert num_checked == sum(len(turn.sampled.ids) for episode in episodes for turn in episode.turns) >= len(episodes)


def histories_of(episode):
    """Of each history that it had: (context, sampled, context, sampled, …), log-probs of what was sampled."""
    found = []
    for turn in episode.turns:
        if turn.new_segment or not found:
            found.append(([], []))
        pieces, logprobs = found[-1]
        pieces += [turn.context_ids, turn.sampled.ids]
        logprobs.append(turn.sampled.logprobs)
    return found
