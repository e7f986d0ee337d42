"""Hypothesis looks for a failure that outscores a success in the worlds that ship, through their real predicates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import Any

import pytest
from hypothesis import HealthCheck, find
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from milepost.advantages import discounted_returns
from milepost.envs.find import find_env
from milepost.envs.maze_tasks import STEPS
from milepost.health.order import prove
from milepost.recipe import make_recipe
from milepost.reward_spec import judge, make_reward, turn_rewards
from milepost.scripted import episode_of, play_script
from milepost.tools import render_call
from milepost.types import Task


def calculations(task: Task, state: Any) -> list[str]:
    """Everything the task's own numbers and results can be made into, right steps among it, and answers."""
    known = list(dict.fromkeys([*task.columns["numbers"], *state["results"][:4]]))
    made = [render_call("calc", {"expression": f"{a}{op}{b}"}) for a in known for b in known for op in "+-*"]
    values = dict.fromkeys([*known, *task.columns["results"], -1])
    return [*made, "calc(1+", *(render_call("answer", {"value": value}) for value in values)]


def desk_calls(task: Task, state: Any) -> list[str]:
    """What the plan does, the same to other records, and what nobody asked for."""
    ids = {table: [int(number) for number in rows] for table, rows in state["tables"].items()}
    wanted = [int(change["id"] or 0) for change in task.columns["wanted"]]
    calls = [render_call(name, arguments) for name, arguments in task.columns["plan"]]
    for number in (*wanted, *(numbers[0] for numbers in ids.values() if numbers)):
        calls += [render_call("read", {"id": number}), render_call("delete", {"id": number})]
        calls += [render_call("refund", {"order": number}), render_call("close", {"ticket": number})]
        for name, value in (
            ("priority", "low"),
            ("priority", "high"),
            ("status", "open"),
            ("phone", "9999"),
            ("name", "x"),
        ):
            calls.append(render_call("update", {"id": number, "field": name, "value": value}))
    customer = {"customer": (ids["customers"] or [1])[0], "subject": "login", "priority": "high"}
    return [*calls, render_call("create", customer), 'search("late order")', "done()"]


def maze_words(task: Task, state: Any) -> list[str]:
    """Every word there is, into walls and for keys that are not here as well."""
    colours = tuple(task.columns["maze"]["keys"])
    return [*STEPS, *(f"{verb} {colour}" for verb in ("take", "drop") for colour in colours), *(f"open {d}" for d in STEPS)]


def bump(task: Task) -> str:
    maze = task.columns["maze"]
    return next((way for way in STEPS if way not in maze["rooms"][maze["start"]]), "take nothing")


@dataclass(frozen=True)
class World:
    actions: Callable[[Task, Any], list[str]]
    idle: Callable[[Task], str]
    """An action that costs and changes nothing."""
    reward: dict[str, Any]
    unsafe: dict[str, Any]
    """A reward by which some success earns no more than some failure."""
    difficulty: dict[str, Any] = field(default_factory=dict)
    max_turns: int = 14


def cost(name: str, cap: float) -> dict[str, Any]:
    return {"name": name, "weight": 0.05, "cap": cap}


WORLDS = {
    "calc": World(calculations, lambda task: 'calc("1+1")',
                  {"milestones": {"step": 0.1, "result": 0.2}, "costs": [cost("calls", 0.2)]},
                  {"milestones": {"step": 0.6, "result": 0.6}, "milestone_cap": 1.2}, {"max_steps": 2}),
    "desk": World(desk_calls, lambda task: 'search("late order")',
                  {"milestones": {"read": 0.1, "change_1": 0.1, "change_2": 0.1}, "milestone_cap": 0.3,
                   "costs": [cost("calls", 0.1), cost("damage", 0.1)]},
                  {"milestones": {"change_1": 0.2}, "costs": [{"name": "calls", "weight": 0.2, "cap": 1.5}]}),
    "maze": World(maze_words, bump,
                  {"milestones": {"took green": 0.1, "opened green": 0.2, "took blue": 0.1, "opened blue": 0.2},
                   "milestone_cap": 0.3, "costs": [cost("moves", 0.2), cost("bumps", 0.2)]},
                  {"costs": [{"name": "moves", "weight": 0.2, "cap": 1.5}]}, {"rooms": 9, "max_length": 8}, 20),
}  # fmt: skip
CREDIT = {"episode": {}, "turn": {"credit": {"rule": "turn"}}, "discounted": {"credit": {"rule": "turn", "gamma": 0.99}}}


class Search:
    """One reward in one world: what plays of its first tasks are worth by the resolved credit."""

    def __init__(self, name: str, reward: dict[str, Any], sections: dict[str, Any]) -> None:
        self.world, self.spec = WORLDS[name], find_env(name)
        env = {"name": name, "max_turns": self.world.max_turns}
        self.recipe = make_recipe({"env": env, "reward": reward, **sections})
        self.reward = make_reward(self.recipe, self.spec)
        rows = islice(self.spec.generate(4, 11, **self.world.difficulty), 4)
        self.tasks = [Task(f"t{i}", row["prompt"], columns={k: v for k, v in row.items() if k != "prompt"})
                      for i, row in enumerate(rows)]  # fmt: skip
        known = [self.value(task, script) for task in self.tasks for script in self.known(task)]
        self.floor = min(value for won, value in known if won)
        self.ceiling = max(value for won, value in known if not won)
        """The worst success and the best failure among what is known to be one."""

    def known(self, task: Task) -> Iterator[Callable]:
        gold = lambda task, env: self.spec.gold(task, env)  # noqa: E731
        texts = [step.text for step in play_script(self.spec, task, gold).steps]
        hasty = [text for text in texts if not text.startswith(("calc", "read"))]  # no tool is needed to be right
        for texts_ in (texts, hasty, texts[:-1]):
            yield lambda task, env, texts_=texts_: iter(texts_)
        spare = self.world.max_turns - len(texts)
        yield lambda task, env: iter([*repeat(self.world.idle(task), spare), *texts])
        yield from self.spec.known_bad.values()

    def value(self, task: Task, script: Callable) -> tuple[bool, float]:
        """(success, what its worst turn returns; of a failure the best). Faults and broken bounds are an error."""
        played = play_script(self.spec, task, script, max_turns=self.world.max_turns)
        episode = episode_of(played, task)
        if not episode.turns:
            return False, 0.0
        found = judge(self.reward, self.spec, task, episode)
        assert found.total is not None, found.cause
        if self.recipe.credit.rule != "turn":
            return bool(found.success), found.total
        returns = discounted_returns(turn_rewards(self.reward, self.spec, task, episode), self.recipe.credit.gamma)
        return bool(found.success), float(min(returns) if found.success else max(returns))

    def breaks(self, play: tuple[int, int, list[int], bool]) -> bool:
        """The gold script's first actions, then any of the world's own, then perhaps the rest of what gold would do."""
        which, num_gold, picks, to_the_end = play
        task = self.tasks[which % len(self.tasks)]

        def script(task: Task, env: Any) -> Iterator[str]:
            yield from islice(self.spec.gold(task, env), num_gold)
            for pick in picks:
                actions = self.world.actions(task, env.state())
                yield actions[pick % len(actions)]
            if to_the_end:
                rest = self.spec.gold(task, env)
                yield from rest if self.spec.name == "maze" else islice(rest, num_gold, None)

        won, value = self.value(task, script)
        return value <= self.ceiling if won else value >= self.floor

    def run(self, num: int) -> Any:
        few = hypothesis_settings(max_examples=num, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        return find(PLAYS, self.breaks, settings=few)


PLAYS = st.tuples(st.integers(0, 3), st.integers(0, 8), st.lists(st.integers(0, 999), max_size=6), st.booleans())
CASES = [(name, rule) for name in WORLDS for rule in CREDIT]


def search(name: str, rule: str, num: int) -> None:
    looking = Search(name, WORLDS[name].reward, CREDIT[rule])
    proof = prove(looking.reward, looking.spec, looking.recipe)
    assert proof.ok and not proof.unproven, proof.text()
    assert looking.ceiling < looking.floor
    with pytest.raises(NoSuchExample):
        looking.run(num)


@pytest.mark.parametrize(("name", "rule"), CASES)
def test_no_play_of_a_world_that_ships_breaks_the_order(name, rule):
    search(name, rule, 40)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "rule"), CASES)
def test_nor_does_any_of_two_thousand(name, rule):
    search(name, rule, 2000)


@pytest.mark.parametrize("name", WORLDS)
def test_the_search_finds_what_is_wrong_with_an_unsafe_reward(name):
    looking = Search(name, WORLDS[name].unsafe, {})
    assert not prove(looking.reward, looking.spec, looking.recipe).ok
    assert looking.run(300) is not None
