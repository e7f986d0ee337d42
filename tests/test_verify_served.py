"""Judges and reward models in recipes: named as any verifier, tried before they are believed, behind a rule as a gate."""

from __future__ import annotations

import os
from dataclasses import fields

import pytest

from milepost.reward import Grader
from milepost.reward_sections import RewardSection
from milepost.types import Episode, EpisodeId, Group, RecipeError, Sampled, StopKind, StopReason, Task, Turn
from milepost.verifiers.judge import JudgeSettings, Question
from milepost.verifiers.kinds import KINDS, score_all
from milepost.verifiers.reward_model import ModelSettings
from milepost.verifiers.served import Served
from milepost.workers import WorkerPool
from tests.judges import Asked, judge_server
from tests.test_verify_reward_model import write_model

DONE = StopReason(StopKind.TERMINATED, "end_of_turn")


def honest(asked: Asked) -> str:
    return asked.line(asked.good)


def group(texts, answer="4", prompt="What?", key="g", **columns) -> Group:
    turns = [Turn([1], Sampled([5], [-0.1], 1.0, ((0, 0),), "stop"), text=text) for text in texts]  # type: ignore[arg-type]
    episodes = [Episode(EpisodeId("train", 0, key, i), key, (turn,), DONE) for i, turn in enumerate(turns)]
    return Group(key, Task(key, prompt, answer=answer, columns=columns), tuple(episodes))


def section(*functions, **settings) -> RewardSection:
    return RewardSection.model_validate({"functions": list(functions), **settings})


def judge(url: str, **changes) -> dict:
    params = {"url": url, "model": "m", "rubric": "The answer equals the reference.", "votes": 1, "retries": 0, "cache": ""}
    return {"name": "judge", "params": {**params, **changes}}


def test_what_a_recipe_may_set_is_what_there_is():
    assert list(KINDS["judge"].params) == [f.name for f in fields(JudgeSettings)]
    assert list(KINDS["reward_model"].params) == [f.name for f in fields(ModelSettings)]


def test_a_judge_in_a_recipe_is_tried_and_then_asked_with_the_prompt():
    with judge_server(honest) as server, Grader(section(judge(server.url))) as grader:
        tried = len(server.asked)
        assert tried > 40
        (rewards,) = grader.score([group(["4", "5", "", "4"])])
        assert [r.total for r in rewards] == [1, 0, 0, 1]
        assert [r.verdict for r in rewards] == ["correct", "wrong", "unextractable", "correct"]
        assert rewards[0].parts == {"judge": 1, "judge/votes_for": 1, "judge/votes_unreadable": 0}
        assert len(server.asked) == tried + 2
        assert "| What?" in server.asked[-1].body["messages"][1]["content"]
        # The same answer to another task is another question.
        (rewards,) = grader.score([group(["4"], answer="5", prompt="And now?")])
        assert rewards[0].total == 0
        assert grader.spent()["scorer/calls"] == tried + 3
    (rewards,) = grader.score([group(["7"])])
    assert (rewards[0].total, rewards[0].cause) == (None, "endpoint_error: no connection")


def test_a_judge_that_pays_phrases_is_refused_unless_told_otherwise():
    with judge_server(lambda asked: asked.line(True)) as server:
        with pytest.raises(RecipeError, match=r"passes .* answers that say nothing, such as ':'.* or set probe = false"):
            Grader(section(judge(server.url)))
        with Grader(section(judge(server.url, probe=False))) as grader:
            assert grader.score([group([":"])])[0][0].total == 1
    with pytest.raises(RecipeError, match="could not be asked about"):
        Grader(section(judge("http://127.0.0.1:9/v1")))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (judge("nowhere"), "reward.functions.0.params: the judge's url is no address"),
        (
            judge("http://h/v1", vote=3),
            "reward.functions.0.params.vote is not a parameter of judge; .* did you mean votes?",
        ),
        (judge("http://h/v1", api_key_env="NO_SUCH_KEY"), "'NO_SUCH_KEY' is not set here"),
        ({"name": "reward_model"}, "needs model, a folder"),
        ({"name": "reward_model", "params": {"model": "m", "low": 1}}, "low does nothing"),
        ({"name": "reward_model", "params": {"model": "m"}}, "never says quite 1.* set reward.success_at below 1"),
    ],
)
def test_settings_are_refused_before_anything_is_asked_or_loaded(function, told):
    with pytest.raises(RecipeError, match=told):
        Grader(section(function))


def test_rows_may_name_a_judge():
    with judge_server(honest) as server:
        by_row = {"name": "by_row", "params": {"judge": judge(server.url)["params"]}}
        rows = [group(["4", "5"], reward_type="judge", key="a"), group(["4", "5"], reward_type="exact", key="b")]
        with Grader(section(by_row), tasks=[row.task for row in rows]) as grader:
            assert [[r.total for r in row] for row in grader.score(rows)] == [[1, 0], [1, 0]]
        with pytest.raises(RecipeError, match="the judge needs url"):
            Grader(section({"name": "by_row"}), tasks=[rows[0].task])


def test_a_rule_as_gate_before_a_reward_model(tmp_path):
    folder = str(write_model(tmp_path / "scorer"))
    texts = ["4", "5", "4 ", ""]
    functions = [{"name": "exact", "weight": 0}, {"name": "reward_model", "params": {"model": folder}}]
    with Grader(section(*functions, combine="gate", gates=["exact"], success="exact")) as grader:
        (rewards,) = grader.score([group(texts)])
        raw = [r.parts["reward_model"] for r in rewards]
        scorer = grader._served.of("reward_model", {"model": folder})
        expected = [r["score"] for r in scorer.score_many([Question(text, "What?") for text in texts])]
        assert raw == pytest.approx(expected) and 0 < raw[0] < 1 and raw[3] == 0
        assert [r.total for r in rewards] == pytest.approx([raw[0], 0, raw[2], 0])  # paid behind an open gate only
        assert [r.success for r in rewards] == [True, False, True, False]
        assert grader.spent()["scorer/calls"] == 2 and grader.spent()["scorer/cpu_seconds"] > 0
        [pid] = scorer.pool.pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_by_hand_a_judge_is_asked_without_being_tried():
    with judge_server(honest) as server, WorkerPool(1) as pool:
        results = score_all("judge", [("4", "4"), ("5", "4")], judge(server.url)["params"], pool, 10)
        assert [r["score"] for r in results] == [1, 0] and len(server.asked) == 2


def test_one_judge_for_the_same_settings():
    with Served(tried=False) as served:
        params = judge("http://127.0.0.1:9/v1")["params"]
        assert served.of("judge", params) is served.of("judge", dict(reversed(params.items())))
        assert served.of("judge", {**params, "votes": 3}) is not served.of("judge", params)
        assert served.num_calls == 0 and served.cpu_seconds == 0
