"""The run directory: exact round trips, whole steps only, one writer, a full disk in a sentence."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost import rows
from milepost.disk import writer_pid
from milepost.env import canonical
from milepost.recipe import make_recipe
from milepost.store import Run, StoreError, check_place
from milepost.types import (
    Credit,
    DataError,
    Episode,
    EpisodeId,
    Group,
    RecipeError,
    Reward,
    Sampled,
    StopKind,
    StopReason,
    Task,
    Turn,
)

TASK = Task("sum-1", ({"role": "user", "content": "1+1?"},), answer=(2, "two"), columns={"level": 3}, source="sums")


def make_episode(member: int, *, step: int = 1, ids=(5, 6, 7), key: str = "sum-1", text: str = "two") -> Episode:
    drawn = Sampled(ids, np.linspace(-3.3, -0.1, len(ids)), 1.0, ((0, step),), "stop")
    turn = Turn([1, 2, 3], drawn, text=text, facts={"n": member})
    return Episode(
        EpisodeId("train", step, key, member), f"g{step}", (turn,), StopReason(StopKind.TERMINATED, "end_of_turn")
    )


def make_step(step: int, size: int = 2) -> tuple[list[Group], list[list[Reward]], list[list[Credit]]]:
    episodes = tuple(make_episode(member, step=step) for member in range(size))
    rewards = [Reward(float(member), {"exact": float(member)}, member > 0, True) for member in range(size)]
    credits = [Credit(e.id, np.full(3, 0.1 * e.id.member), True, True) for e in episodes]
    return [Group(f"g{step}", TASK, episodes)], [rewards], [credits]


class Report:
    def __init__(self, split: str, **values: float) -> None:
        self.split, self.values = split, values

    def to_json(self) -> dict:
        return self.values


@pytest.fixture
def run(tmp_path: Path):
    with Run.create(
        tmp_path, make_recipe({"seed": 3}), toml="seed = 3\n", formula="loss = ...", meta={"model": "tiny"}
    ) as run:
        yield run


def test_create_writes_the_resolved_recipe_and_versions(run: Run) -> None:
    assert run.recipe == make_recipe({"seed": 3})
    assert (run.toml, run.formula) == ("seed = 3\n", "loss = ...")
    assert run.meta()["model"] == "tiny"
    assert {"milepost", "python", "torch", "transformers"} <= set(run.meta()["versions"])
    assert run.checkpoints.is_dir()


def test_a_preset_survives_the_way_through_the_store(tmp_path: Path) -> None:
    recipe = make_recipe({"preset": "grpo", "kl": {"beta": 0.0, "estimator": "k2"}})
    with Run.create(tmp_path, recipe) as run:
        assert run.recipe == recipe


def test_a_run_keeps_opening_when_a_setting_of_it_is_refused_today(run: Run) -> None:
    stored = json.loads((run.path / "recipe.json").read_text())
    stored["env"]["max_turns"] = 3  # does nothing without an environment
    with pytest.raises(RecipeError, match=r"env\.max_turns"):
        make_recipe(stored)
    (run.path / "recipe.json").write_text(json.dumps(stored))
    assert run.recipe.env.max_turns == 3


def test_names_are_never_reused(tmp_path: Path) -> None:
    runs = [Run.create(tmp_path, make_recipe({})) for _ in range(3)]
    assert [run.name for run in runs] == ["run", "run-2", "run-3"]
    for run in runs:
        run.close()


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_name_must_be_a_folder_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="must be a plain folder name"):
        Run.create(tmp_path, make_recipe({"name": name}))


def test_a_file_in_the_way_of_the_root_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(RecipeError, match="out = "):
        Run.create(tmp_path / "runs", make_recipe({}))


def test_a_place_that_cannot_hold_a_run_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for name in ("file", "file/deeper/runs", "gone/runs"):
        place, first = tmp_path / name, name.split("/")[0]
        with pytest.raises(RecipeError, match=rf'^out = "{place}": .*{first} is not a folder; .*"runs"'):
            check_place(place, "run")
    for out in ("", " "):
        with pytest.raises(RecipeError, match=r'^out = " ?" names no folder; use "runs"'):
            check_place(out, "run")
    with pytest.raises(RecipeError, match=r"^name = 'a/b' must be"):
        check_place(tmp_path / "new/runs", "a/b")
    check_place(tmp_path / "new/runs", "run")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "gone"}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    root = os.geteuid() == 0
    (tmp_path / "locked").mkdir(mode=0o500)
    if root:
        os.seteuid(65534)  # root may write everywhere
    try:
        with pytest.raises(RecipeError, match="cannot be written; name a folder"):
            check_place(tmp_path / "locked/runs", "run")
    finally:
        if root:
            os.seteuid(0)


def test_open_refuses_what_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        Run.open(tmp_path / "nothing")
    with pytest.raises(StoreError, match="is not a run"):
        Run.open(tmp_path)
    (tmp_path / "store.sqlite").write_bytes(b"no database, " * 100)
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(StoreError, match="cannot be read"):
        Run.open(tmp_path)
    with pytest.raises(StoreError, match="cannot be read"):
        Run.open(tmp_path, write=True)
    assert writer_pid(tmp_path) is None  # the refused writer let go


@pytest.mark.parametrize("weights", [None, [1.0, 1.0, 1.0], [0.0, 1 / 3, 1 / 3], [0.0, 0.0, 0.0]])
@pytest.mark.parametrize("advantages", [[0.5, 0.5, 0.5], [0.5, -0.25, 0.0]])
def test_what_tokens_weighed_comes_back(run: Run, advantages: list[float], weights: list[float] | None) -> None:
    turn = Turn([1], Sampled([1, 2, 3], [-0.5] * 3, 1.0, ((0, 0),), "stop"))
    mine = Episode(EpisodeId("train", 1, "sum-1", 0), "g", (turn,), StopReason(StopKind.TERMINATED, "end_of_turn"))
    credit = Credit(mine.id, np.array(advantages), True, True, weights=None if weights is None else np.array(weights))
    run.commit_step(1, "grpo", [Group("g", TASK, (mine,))], [[Reward(1.0)]], [[credit]])
    (stored,) = run.episodes("grpo", 1)
    assert stored.credit is not None and stored.credit.advantages.tolist() == advantages
    kept = stored.credit.weights
    assert (None if kept is None else kept.tolist()) == (None if weights == [1.0] * 3 else weights)  # None: 1 each


def test_episodes_come_back_exactly(run: Run) -> None:
    # case L6: stored transcript == trained transcript; case L7: raw rewards always kept
    rng = np.random.default_rng(0)
    first = Turn(
        rng.integers(0, 50_000, 9),
        Sampled(rng.integers(0, 50_000, 4), rng.normal(size=4), 0.7, ((0, 3), (2, 4)), "stop"),
        text="a\0b \ud800 \r\n é",
        state_key="s1",
        events=("paid", "paid"),
        seconds=0.25,
        blobs={"png": b"\x89\0"},
    )
    facts = {"tuple": (1, 2.5), "bytes": b"\xff", 3: None, "$tuple": [1], "deep": [{"x": float("inf")}]}
    second = Turn([], Sampled([], [], 1.0, (), "length"), new_segment=True, agent="helper", facts=facts)
    parent = EpisodeId("train", 0, "sum-1", 5, 1)
    odd = Episode(EpisodeId("train", 7, "sum-1", 0, 2), "g", (first, second), StopReason(StopKind.TRUNCATED, "tokens"),
                  branch_of=(parent, 3), facts={"done": True}, start_fingerprint="f", seconds=1.5)  # fmt: skip
    empty = Episode(EpisodeId("train", 7, "sum-1", 1), "g", (), StopReason(StopKind.FAULT, "engine"), start_fingerprint="f")
    rewards = [Reward(0.1 + 0.2, {"exact": 0.0, "format": 0.1}, False, None), Reward.unscorable("timeout")]
    credits = [
        Credit(odd.id, np.array([0.1, -0.2, 0.3, 0.4]), True, True),
        Credit(empty.id, np.zeros(0), False, False, True),
    ]
    group = Group("g", TASK, (odd, empty))
    run.commit_step(9, "grpo", [group], [rewards], [credits])

    stored = list(run.episodes("grpo", 9))
    assert [s.episode for s in stored] == [odd, empty]
    assert [s.reward for s in stored] == rewards
    for s, credit in zip(stored, credits):
        assert s.credit is not None
        assert np.array_equal(s.credit.advantages, credit.advantages)
        assert (s.credit.episode, s.credit.trained, s.credit.in_baseline, s.credit.constant_group) == (
            credit.episode, credit.trained, credit.in_baseline, credit.constant_group)  # fmt: skip
    drawn = stored[0].episode.turns[0].sampled
    assert drawn.ids.tobytes() == first.sampled.ids.tobytes()
    assert drawn.logprobs.tobytes() == first.sampled.logprobs.tobytes()
    assert stored[0].episode.turns[0].text == first.text
    ((again, _),) = run.groups("grpo", 9)
    assert again == group
    assert again.task.answer == (2, "two")


@given(st.lists(st.integers(0, 2**31 - 1), max_size=20), st.text(st.characters(codec=None), max_size=20))
def test_any_ids_and_any_text_survive_the_columns(ids: list[int], text: str) -> None:
    turn = Turn(ids, Sampled(ids, [-0.1 * i for i in range(len(ids))], 1.0, ((0, 1),), "stop"), text=text)
    assert rows.turn(rows.turn_row(turn), {}) == turn


STATES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, -0.0, 1.0, "", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(STATES, STATES)
def test_a_state_is_what_its_change_makes_of_the_one_before(before, after):
    stored = rows.loads(rows.dumps(rows.change(before, after)))
    made = rows.changed(before, stored)
    assert made == after and canonical(made) == canonical(after)  # 1 is not 1.0 and not True


def test_changes_by_hand():
    before = {"at": 1, "read": [3], "rows": {"7": {"a": 1, "b": 2}, "8": {"a": 0}}}
    after = {"at": 1, "read": [3, 5], "rows": {"7": {"a": 1, "b": 9}, "9": {}}}
    table = {"=": {"8": [], "7": {"=": {"b": [9]}}, "9": [{}]}}
    assert rows.change(before, after) == {"=": {"read": {"+": [5]}, "rows": table}}
    assert rows.change(before, before) == {"=": {}} and rows.changed(before, {"=": {}}) == before
    assert rows.change({"a": True}, {"a": 1}) == {"=": {"a": [1]}} and rows.change([1, 2], [1]) == [[1]]


def test_a_world_that_stays_as_it_is_is_stored_once(run: Run) -> None:
    """200 turns in a world of 4 kB: what the store holds of them is far below 200 worlds, and read back exactly."""
    world = {"n": 0, "rows": {str(i): {"name": f"record {i}", "open": True} for i in range(100)}}
    drawn, states = Sampled([5], [-0.5], 1.0, ((0, 0),), "stop"), [world]
    for n in range(1, 201):
        table = {**states[-1]["rows"], str(n % 100): {"name": f"record {n % 100}", "open": n % 3 == 0}}
        states.append({"n": n, "rows": table})
    turns = tuple(Turn([1, 2], drawn, facts={"state": state, "num_calls": 1}) for state in states[1:])
    facts = {"start": world, "final": states[-1], "env": "e"}
    long = Episode(EpisodeId("train", 1, "sum-1", 0), "g", turns, StopReason(StopKind.TRUNCATED, "turns"), facts=facts)
    run.commit_step(1, "grpo", [Group("g", TASK, (long,))])
    (stored,) = run.episodes("grpo", 1)
    assert stored.episode == long
    (size,) = run._db.execute("SELECT SUM(LENGTH(facts)) FROM turns").fetchone()
    assert size < 200 * 200 < 200 * len(rows.dumps(world)) / 10


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@given(plain)
def test_facts_survive_json(value) -> None:
    assert rows.loads(rows.dumps(value)) == value


def test_facts_that_cannot_be_stored_are_named() -> None:
    with pytest.raises(DataError, match=r"value\.page\[1\] is a object"):
        rows.dumps({"page": [1, object()]})


def test_reads_without_a_reward(run: Run) -> None:
    groups, _, _ = make_step(1)
    run.commit_step(1, "preflight", groups)
    assert [(s.reward, s.credit) for s in run.episodes("preflight")] == [(None, None)] * 2


def test_best_and_worst_leave_the_unscorable_out(run: Run) -> None:
    groups, rewards, _ = make_step(1, size=4)
    rewards[0][3] = Reward.unscorable("timeout")
    run.commit_step(1, "grpo", groups, rewards)
    assert [s.reward.total for s in run.episodes(order="best", limit=2)] == [2.0, 1.0]
    assert [s.reward.total for s in run.episodes(order="worst", limit=2)] == [0.0, 1.0]


def test_metrics_without_data_are_absent(run: Run) -> None:
    # case L5: KL [1, none, 1, none] averages to 1.0; a metric with no data is absent, not 0 or NaN
    for step, value in enumerate([1.0, None, 1.0, float("nan")]):
        run.commit_step(step, "grpo", metrics={"kl/k3": value, "lr": np.float32(0.5)})
    assert run.metrics("kl/k3") == [(0, 1.0), (2, 1.0)]
    assert np.mean([value for _, value in run.metrics("kl/k3")]) == 1.0
    assert run.metric_names() == ["kl/k3", "lr"]
    assert run.step_metrics(1, "grpo") == {"lr": 0.5}


def test_phases_keep_their_metrics_apart(run: Run) -> None:
    run.commit_step(1, "sft", metrics={"loss": 3.0})
    run.commit_step(2, "sft", metrics={"loss": 2.0})
    run.commit_step(1, "grpo", metrics={"loss": 0.0})
    assert run.phases() == ["sft", "grpo"]
    assert run.metrics("loss", "sft") == [(1, 3.0), (2, 2.0)]
    assert (run.last_step("sft"), run.last_step("grpo"), run.last_step()) == (2, 1, 1)


def test_a_replayed_step_replaces_its_rows(run: Run) -> None:
    groups, rewards, credits = make_step(1, size=3)
    run.commit_step(1, "grpo", groups, rewards, credits, {"loss": 1.0, "old": 1.0})
    run.add_eval("grpo", 1, Report("validation", success=0.5))
    groups, rewards, credits = make_step(1, size=2)
    run.commit_step(1, "grpo", groups, rewards, credits, {"loss": 2.0})
    assert run.step_metrics(1, "grpo") == {"loss": 2.0}
    assert len(list(run.episodes())) == 2
    assert [e.report for e in run.evals()] == [{"success": 0.5}]
    assert run._db.execute("SELECT count(*) FROM turns").fetchone() == (2,)  # none left behind


def test_truncate_after_forgets_later_steps_only(run: Run) -> None:
    run.commit_step(9, "sft", metrics={"loss": 1.0})
    for step in (1, 2, 3):
        run.commit_step(step, "grpo", *make_step(step), {"loss": float(step)})
        run.add_eval("grpo", step, Report("validation", step=step))
        run.add_event("warning", "canary", f"at {step}", phase="grpo", step=step)
    run.add_event("info", "resumed", "after a kill")
    run.truncate_after(1, "grpo")
    assert run.metrics("loss", "grpo") == [(1, 1.0)]
    assert run.metrics("loss", "sft") == [(9, 1.0)]
    assert {s.step for s in run.episodes(split=None)} == {1}
    assert [e.report["step"] for e in run.evals()] == [1]
    assert [e.message for e in run.events()] == ["at 1", "after a kill"]
    run.truncate_after(0)
    assert run.phases() == []


def test_evaluations_keep_their_episodes_beside_training(run: Run) -> None:
    groups, rewards, credits = make_step(1)
    run.commit_step(1, "grpo", groups, rewards, credits)
    run.add_eval("grpo", 1, Report("test", success=0.5), groups, rewards, groups, rewards)
    run.add_eval("sft", 1, Report("test", success=0.1), groups, rewards)  # the same tasks after another stage
    assert [len(list(run.episodes("grpo", split=s))) for s in ("", "test", "test/greedy", None)] == [2, 2, 2, 6]
    assert [(e.phase, e.report["success"]) for e in run.evals("test")] == [("grpo", 0.5), ("sft", 0.1)]


def test_a_failed_commit_leaves_nothing(run: Run) -> None:
    groups, rewards, _ = make_step(1)
    with pytest.raises(StoreError, match="two episodes of step 1 are named train/1/sum-1/0/0"):
        run.commit_step(1, "grpo", [groups[0], groups[0]], rewards * 2, metrics={"loss": 1.0})
    assert run.metrics("loss") == []
    assert list(run.episodes()) == []
    with pytest.raises(DataError, match="NaN"):
        run.commit_step(1, "grpo", groups, [[Reward(float("nan")), Reward(1.0)]])
    run.commit_step(1, "grpo", groups, rewards)
    assert len(list(run.episodes())) == 2


def test_one_writer_many_readers(run: Run) -> None:
    run.commit_step(1, "grpo", metrics={"loss": 1.0})
    with Run.open(run.path) as reader:
        assert reader.metrics("loss") == [(1, 1.0)]
        assert reader.status == "running"
        run.commit_step(2, "grpo", metrics={"loss": 2.0})
        assert reader.last_step("grpo") == 2
        with pytest.raises(StoreError, match="opened to read"):
            reader.commit_step(3, "grpo")
    with pytest.raises(StoreError, match=f"is being written by process {os.getpid()}"):
        Run.open(run.path, write=True)
    assert writer_pid(run.path) == os.getpid()
    run.set_status("finished")
    run.close()
    assert writer_pid(run.path) is None
    (run.path / "lock").write_text("999999999\n")  # as a dead process of long ago would leave it
    with Run.open(run.path, write=True) as again:
        assert again.status == "finished"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_reads_from_a_read_only_disk(run: Run, tmp_path: Path) -> None:
    run.commit_step(1, "grpo", metrics={"loss": 1.0})
    run.close()
    for path in [*run.path.iterdir(), run.path]:
        path.chmod(path.stat().st_mode & ~0o222)
    with Run.open(run.path) as reader:
        assert reader.metrics("loss") == [(1, 1.0)]
    run.path.chmod(0o755)


WRITER = """
    import sys, resource, os
    sys.path[:0] = [{tests!r}]
    from test_store import make_step
    from milepost.store import Run, StoreError
    from milepost.recipe import make_recipe
    run = Run.create({root!r}, make_recipe({{}}))
    {setup}
    for step in range(1, 10_000):
        run.commit_step(step, "grpo", *make_step(step, size=8), {{"loss": step, "lr": 1.0}})
        print(step, flush=True)
"""


def start_writer(root: Path, setup: str = "") -> subprocess.Popen[str]:
    code = textwrap.dedent(WRITER).format(tests=str(Path(__file__).parent), root=str(root), setup=setup)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_whole_steps(run: Run) -> int:
    assert run._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    steps = [step for step, _ in run.metrics("loss")]
    assert steps == list(range(1, len(steps) + 1))
    counts = run._db.execute("SELECT count(*), count(DISTINCT step) FROM episodes").fetchone()
    assert counts == (8 * len(steps), len(steps))
    assert run._db.execute("SELECT count(*) FROM turns").fetchone() == (8 * len(steps),)
    return len(steps)


@pytest.mark.parametrize("delay", [0.0, 0.013, 0.037])
def test_killed_at_any_time_whole_steps_remain(tmp_path: Path, delay: float) -> None:
    writer = start_writer(tmp_path)
    assert writer.stdout is not None
    for _ in range(5):
        last = int(writer.stdout.readline())
    time.sleep(delay)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    last = max([last, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    with Run.open(tmp_path / "run") as reader:
        assert reader.status == "interrupted"
    with Run.open(tmp_path / "run", write=True) as run:  # the dead writer's lock does not hold
        assert check_whole_steps(run) >= last
        run.truncate_after(3)
        run.commit_step(4, "grpo", *make_step(4, size=8), {"loss": 4.0})
        assert check_whole_steps(run) == 4


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path) -> None:
    # a limit on the file size stands for the full disk: the same write fails half-way
    limit = "import signal; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))"
    writer = start_writer(tmp_path, limit)
    out, err = writer.communicate(timeout=60)
    assert writer.returncode == 1
    message = err.strip().splitlines()[-1]
    assert "StoreError" in message
    assert "while writing step" in message
    assert "everything committed before is kept" in message
    assert "milepost resume" in message
    with Run.open(tmp_path / "run", write=True) as run:
        assert check_whole_steps(run) == int(out.split()[-1]) > 3


def test_a_full_disk_while_creating_leaves_no_half_run(tmp_path: Path) -> None:
    code = f"""
import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))
from milepost.store import Run
from milepost.recipe import make_recipe
Run.create({str(tmp_path)!r}, make_recipe({{}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "while creating the run" in done.stderr.strip().splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_forked_worker_does_not_keep_the_lock(run: Run) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        os._exit(0)
    run.close()
    with Run.open(run.path, write=True):
        pass
    os.write(writer, b"x")
    os.waitpid(child, 0)


def test_imports_without_torch() -> None:
    code = "import milepost.store, sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_people_can_query_it(run: Run) -> None:
    run.commit_step(1, "grpo", *make_step(1))
    with sqlite3.connect(run.path / "store.sqlite") as db:
        assert db.execute("SELECT task_key, completion, reward FROM samples WHERE reward > 0").fetchall() == [
            ("sum-1", "two", 1.0)
        ]
