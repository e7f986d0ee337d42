"""The preflight: values worked by hand, predictions against enumeration, verdicts by rule, and one real run."""

import json
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.cli import main
from milepost.credit import assign
from milepost.health.preflight import dead_share, examine, judge
from milepost.policy import new_policy
from milepost.recipe import make_recipe
from milepost.store import Run
from milepost.types import Episode, EpisodeId, Group, Reward, Sampled, StopKind, StopReason, Task, Turn

END, CUT = StopReason(StopKind.TERMINATED, "end_of_turn"), StopReason(StopKind.TRUNCATED, "tokens")


def group(key, completions, stops=None):
    """One group whose member m sampled completions[m] (ids)."""
    episodes = []
    for m, ids in enumerate(completions):
        turn = Turn(np.array([1]), Sampled(np.array(ids), np.zeros(len(ids)), 1.0, ((0, 0),), "stop"))
        episodes.append(Episode(EpisodeId("preflight", 1, key, m), key, (turn,), (stops or {}).get(m, END)))
    return Group(key, Task(key, "?"), tuple(episodes))


def scored(values, readable=True):
    return [Reward.unscorable("timeout") if v is None else Reward(v, {"exact": v}, v >= 1, readable) for v in values]


RECIPE = make_recipe({"rollout": {"group_size": 4, "max_new_tokens": 8}})


def examined(groups, rewards, recipe=RECIPE):
    return examine(groups, rewards, assign(groups, rewards, recipe.credit, recipe.rollout), recipe)


def test_tokens_of_an_episode_are_held_against_what_all_its_actions_may_use():
    groups, rewards = [group("a", [[5] * 8, [6, 2], [7, 2], [8, 2]])], [scored([1.0, 0.0, 0.0, 0.0])]
    assert "max 8 of 8 allowed" in examined(groups, rewards).text()
    agent = make_recipe({"env": {"name": "calc", "max_turns": 6}, "rollout": {"group_size": 4, "max_new_tokens": 8}})
    assert "max 8 of 6 × 8 allowed" in examined(groups, rewards, agent).text()


def test_numbers_by_hand():
    groups = [
        group("a", [[5, 2], [5, 2], [6, 2], [7, 8, 2]]),
        group("b", [[5, 2], [5, 2], [5, 2], [5, 2]]),
        group("c", [[5] * 8, [6, 2], [7, 2], [8, 2]], {0: CUT}),
    ]
    rewards = [scored([1.0, 1.0, 0.0, 0.0]), scored([1.0] * 4), scored([0.0, 0.0, None, 0.0])]
    found = examined(groups, rewards)
    assert (found.num_tasks, found.group_size, found.num_episodes) == (3, 4, 12)
    assert found.success == pytest.approx((0.5 + 1 + 0) / 3)
    assert found.success_low <= found.success <= found.success_high
    assert found.pass_histogram == (1, 0, 1, 0, 1)
    # Only a has two different rewards.
    assert found.dead_groups == pytest.approx(2 / 3)
    assert found.reward.num == 11
    assert found.reward.mean == pytest.approx(6 / 11)
    assert (found.reward.quantiles["p0"], found.reward.quantiles["p50"], found.reward.quantiles["p100"]) == (0, 1, 1)
    assert found.parts["exact"].mean == pytest.approx(6 / 11)
    assert (found.truncated, found.faults, found.unscorable) == ({"tokens": 1}, {}, {"timeout": 1})
    # 10 completions of 2 tokens, one of 3, one of 8
    assert found.length_mean == pytest.approx(31 / 12)
    assert found.length_max == 8
    assert found.distinct_completions == pytest.approx((3 + 1 + 4) / 3)
    assert found.identical_groups == pytest.approx(1 / 3)
    assert found.extractable == 1.0


def test_without_a_success_metric_or_an_answer_to_read():
    groups = [group("a", [[5], [6], [7], [8]])]
    found = examined(groups, [[Reward(float(i)) for i in range(4)]])
    assert (found.success, found.extractable, found.dead_predicted) == (None, None, {})
    assert found.dead_groups == 0
    assert "not measured" in found.text()


def test_nothing_scorable_is_still_reported():
    found = examined([group("a", [[5], [6], [7], [8]])], [scored([None] * 4)])
    assert (found.reward, found.parts, found.success, found.dead_groups) == (None, {}, None, 1.0)
    assert not found.go
    assert "100% of the episodes, mostly “timeout”" in found.verdict
    json.loads(found.json())


# --- prediction


def test_dead_share_by_hand():
    # 4 of 8 without replacement: c = 4 agrees in 2 of C(8,4) = 70 ways; c = 0 and c = 8 always
    assert dead_share([(0, 8), (4, 8), (8, 8)], 4) == pytest.approx((1 + 2 / 70 + 1) / 3)
    # At the sampled size it is the share that was seen.
    assert dead_share([(0, 8), (4, 8), (8, 8), (1, 8)], 8) == pytest.approx(0.5)
    # Every count once is what uniform pass rates give: Beta(1, 1), so 2 · 1/(G + 1)
    assert dead_share([(c, 8) for c in range(9)], 16) == pytest.approx(2 / 17)
    # c = 1 of 2 for all: every task at p = ½ at most as spread as chance allows: 2 · ½^16
    assert dead_share([(1, 2)] * 5, 16) == pytest.approx(2 * 0.5**16)
    assert dead_share([(0, 8)] * 5, 16) == 1.0
    assert dead_share([(0, 8), (8, 8)], 16) == 1.0


@given(st.lists(st.tuples(st.integers(0, 6), st.just(6)), min_size=1, max_size=6), st.integers(2, 6))
def test_dead_share_equals_enumeration(counts, size):
    shares = []
    for c, n in counts:
        chosen = [sum(pick) for pick in combinations([1] * c + [0] * (n - c), size)]
        shares.append(np.mean([s in (0, size) for s in chosen]))
    assert dead_share(counts, size) == pytest.approx(np.mean(shares))


def test_dead_share_is_unbiased():
    """One task at p = .3, all outcomes of six episodes weighed by their chance: p⁴ + (1 − p)⁴."""
    p, n = 0.3, 6
    expected = sum(p ** sum(o) * (1 - p) ** (n - sum(o)) * dead_share([(sum(o), n)], 4) for o in product((0, 1), repeat=n))
    assert expected == pytest.approx(p**4 + (1 - p) ** 4)


@given(st.lists(st.tuples(st.integers(0, 4), st.just(4)), min_size=1, max_size=12))
def test_dead_share_is_a_share_and_falls_with_the_group(counts):
    shares = [dead_share(counts, size) for size in (5, 8, 16, 32)]
    assert all(-1e-12 <= s <= 1 + 1e-12 for s in shares)
    assert all(a >= b - 1e-12 for a, b in pairwise(shares))


# --- verdicts


@pytest.fixture(scope="module")
def healthy():
    groups = [group(f"t{i}", [[5, 2], [6, 2], [7, 2], [8, 2]]) for i in range(20)]
    rewards = [scored([1.0, 0.0, 0.0, 1.0]) for _ in groups]
    found = examined(groups, rewards)
    assert (found.go, found.verdict) == (True, "go: 100% of the groups carry signal, and no rule is broken")
    return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unscorable": {"timeout": 5}}, "gives no value for 6%"),
        ({"truncated": {"tokens": 48}}, "raise rollout.max_new_tokens = 8, or warm-start"),
        ({"success": 0.09}, "success is 9.0%, below 10%; warm-start with sft.steps"),
        ({"extractable": 0.94}, "94.0% of the answers can be read, below 95%"),
        ({"truncated": {"tokens": 9}}, "11% of the episodes are cut short (tokens 9)"),
        (
            {"truncated": {"tokens": 4, "time": 8}},
            "15% of the episodes are cut short (tokens 4, time 8); raise env.max_seconds",
        ),
        ({"success": 0.95}, "success is already 95%"),
        ({"identical_groups": 0.6}, "raise rollout.temperature = 1"),
        ({"dead_groups": 0.85, "dead_predicted": {16: 0.4}}, "with rollout.group_size = 16 it would be 40%"),
    ],
)
def test_the_broken_rule_is_named(healthy, change, words):
    go, verdict = judge(replace(healthy, **change), RECIPE)
    assert not go
    assert verdict.startswith("change this first: ")
    assert words in verdict
    assert "(rule: " in verdict


@pytest.mark.parametrize("change", [{"success": 0.1}, {"extractable": 0.95}, {"truncated": {"tokens": 8}},
                                    {"unscorable": {"timeout": 4}}, {"dead_groups": 0.8}])  # fmt: skip
def test_at_the_threshold_it_is_a_go(healthy, change):
    assert judge(replace(healthy, **change), RECIPE)[0]


def test_turns_used_up_are_failures_unless_a_rule_leaves_them_out(healthy):
    """Who runs into its own budget is scored; a world that ends at its goal alone would else never be a go."""
    looped = replace(healthy, truncated={"turns": 40})
    assert judge(looped, RECIPE)[0]
    values = {"env": {"name": "calc"}, "tasks": {"sources": [{"kind": "environment", "size": 9}]}}
    go, verdict = judge(looped, make_recipe({**values, "rollout": {"stop_rules": {"turns": "drop"}}}))
    assert not go and "50% of the episodes are cut short (turns 40); raise env.max_turns (rule: " in verdict


def test_a_recipe_with_a_warm_start_is_a_go_when_cold(healthy):
    warm = make_recipe({"sft": {"steps": 50}})
    go, verdict = judge(replace(healthy, success=0.0, truncated={"tokens": 80}), warm)
    assert go
    assert "warm-starts for sft.steps = 50" in verdict
    # A broken reward is not cured by a warm start.
    assert not judge(replace(healthy, success=0.0, unscorable={"error": 80}), warm)[0]


# --- a real run


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preflight")
    new_policy(folder / "policy", layers=1, width=32, heads=2)
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(40)]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "recipe.toml").write_text(f"""
name = "look"
out = "{folder}/runs"
[model]
path = "{folder}/policy"
[tasks]
validation = 4
test = 4
[[tasks.sources]]
path = "{folder}/rows.jsonl"
[[reward.functions]]
name = "exact"
[rollout]
prompts_per_step = 3
group_size = 4
max_new_tokens = 6
""")
    return folder / "recipe.toml"


def test_preflight_stores_what_it_played_and_trains_nothing(recipe_file, capsys):
    weights = (recipe_file.parent / "policy" / "model.safetensors").read_bytes()
    assert main(["preflight", str(recipe_file), "--tasks", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_tasks"], found["num_episodes"], found["go"]) == (20, 80, False)
    with Run.open(recipe_file.parent / "runs" / "look-preflight") as run:
        stored = list(run.episodes(phase="preflight"))
        # 64 // 4 = 16 tasks are committed at a time
        assert [len(run.groups("preflight", step)) for step in (1, 2)] == [16, 4]
        keys = {s.task.key for step in (1, 2) for s, _ in run.groups("preflight", step)}
        assert len(keys) == 20
        assert len(stored) == 80
        assert run.meta()["preflight"] == found
        (event,) = [e for e in run.events() if e.kind == "preflight"]
        assert event.message == found["verdict"]
        assert run.status == "finished"
    assert (recipe_file.parent / "policy" / "model.safetensors").read_bytes() == weights
    assert found["length_max"] <= 6
    # Members of a group are sampled apart: a random policy seldom repeats itself.
    assert found["distinct_completions"] > 3


def test_preflight_takes_all_tasks_when_there_are_fewer(recipe_file, capsys):
    assert main(["preflight", str(recipe_file), "--tasks", "1000", "rollout.group_size=2", "rollout.max_new_tokens=1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("preflight: 32 training tasks × 2, nothing trained")
    assert text.rstrip().splitlines()[-1].startswith("change this first: ")


def test_no_tasks_asked_for(recipe_file, capsys):
    assert main(["preflight", str(recipe_file), "--tasks", "0"]) == 2
    assert "--tasks 0 must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("strange", ["--nonsense", "steps", "--over=x"])
def test_what_is_no_override_is_refused(recipe_file, capsys, strange):
    with pytest.raises(SystemExit, match="2"):
        main(["preflight", str(recipe_file), "--tasks", "4", strange])
    assert f"unrecognized arguments: {strange}" in capsys.readouterr().err
