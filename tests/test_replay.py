"""Stored episodes on the terminal: which tokens get which colour, what is told of each turn, and that no text is obeyed."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from milepost.cli import main
from milepost.envs.calc import SPEC
from milepost.evaluate import EvalReport
from milepost.recipe import make_recipe
from milepost.replay import chosen, episode_list, replay, spelled, style_of
from milepost.scripted import episode_of, play_script
from milepost.store import Run, StoreError
from milepost.terminal import cells, framed, screen, table, visible
from milepost.types import (
    Credit,
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

END = StopReason(StopKind.TERMINATED, "end_of_turn")
CUT = StopReason(StopKind.TRUNCATED, "tokens")
SUM = Task("sums/1", "1+1=", answer="2", source="sums")
COLUMNS = {"numbers": [482, 377, 905], "ops": ["*", "-"], "results": [181714, 180809], "gold": 180809, "num_steps": 2}
CALC = Task("calc/0/3", "Start with 482. Times 377. Minus 905. Result?", columns=COLUMNS, source="calc")
SGR = re.compile(r"\x1b\[[0-9;]*m")


def byte_tokenizer() -> Tokenizer:
    """One token per byte, and <end>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


BYTES = byte_tokenizer()


def ids_of(text: str) -> list[int]:
    return BYTES.encode(text).ids


def turn_of(context: str, text: str, **more) -> Turn:
    ids = ids_of(text)
    said = BYTES.decode(ids)
    return Turn(ids_of(context), Sampled(ids, np.zeros(len(ids)), 1.0, ((0, 0),), "stop"), text=said, **more)


def episode(*turns: Turn, task: Task = SUM, member: int = 0, stop: StopReason = END, step: int = 1, **more) -> Episode:
    name = EpisodeId("train", step, task.key, member)
    return Episode(name, f"train/{step}/{task.key}", tuple(turns), stop, **more)


def new_run(folder: Path, values: dict | None = None, tokenizer: Tokenizer | None = BYTES) -> Run:
    recipe = {"model": {"path": str(folder / "gone")}, "reward": {"functions": [{"name": "exact"}]}} | (values or {})
    run = Run.create(folder, make_recipe(recipe))
    if tokenizer is not None:
        place = run.checkpoints / "grpo" / "step-000001" / "model"
        place.mkdir(parents=True)
        tokenizer.save(str(place / "tokenizer.json"))
    return run


def committed(run: Run, episodes: list[Episode], rewards: list[Reward | None], advantages: list, *, task: Task = SUM,
              trained: bool = True, step: int = 1, phase: str = "grpo") -> None:  # fmt: skip
    group = Group(episodes[0].group_id, task, tuple(episodes))
    credits = [[Credit(e.id, np.broadcast_to(np.asarray(a, float), e.num_sampled), trained, True)
                for e, a in zip(episodes, advantages)]]  # fmt: skip
    run.commit_step(step, phase, [group], [rewards], credits)


RIGHT = Reward(1.0, {"exact": 1.0}, True, True)
WRONG = Reward(0.0, {"exact": 0.0}, False, True)


def shown(run: Run, row: int = 1, **options) -> list[str]:
    return list(replay(run.path, str(row), **options))


# ---- colours ---------------------------------------------------------------------------------------------------------


def test_each_token_has_the_colour_of_its_advantage(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:
        mine = episode(turn_of("1+1=", "abcd<end>"))
        committed(run, [mine], [RIGHT], [[1.0, -0.25, 0.5, 0.0, -1.0]])
        lines = shown(run, color=True, width=80)
    # Shares of the largest, 1: a is the strongest green (dark letters), b the weakest red, c the second of four greens.
    assert lines[-6:-3] == [
        "\x1b[1m── turn 1 · 4 tokens read, 5 sampled · advantage -1 to +1 ──────────────────────\x1b[0m",
        "  │ \x1b[2m1+1=\x1b[0m",
        "  ┃ \x1b[38;5;16;48;5;40ma\x1b[0m\x1b[38;5;231;48;5;52mb\x1b[0m\x1b[38;5;231;48;5;28mc\x1b[0md"
        "\x1b[38;5;231;48;5;160m<end>\x1b[0m",
    ]
    assert "".join(lines[3:5]) == "colour: advantage, green above 0, red below; strongest at ±1, the commit's largest"


def test_what_continues_an_episode_shows_what_its_turns_weigh(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:
        mine = episode(turn_of("1+1=", "a<end>"), turn_of("?", "b<end>"))
        weights = np.array([0.0, 0.0, 1 / 3, 1 / 3])
        credit = Credit(mine.id, np.full(4, 0.5), True, True, weights=weights)
        run.commit_step(1, "grpo", [Group(mine.group_id, SUM, (mine,))], [[RIGHT]], [[credit]])
        heads = [line for line in shown(run, width=120) if "turn" in line and "sampled ·" in line]
    assert "advantage +0.5 · weight 0: trained elsewhere, or not at all " in heads[0]
    assert "advantage +0.5 · weight 0.333 " in heads[1]


def test_strength_is_a_share_of_the_largest_advantage_of_the_commit(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:
        first, second = (episode(turn_of("1+1=", text), member=i) for i, text in enumerate(("2", "3")))
        committed(run, [first, second], [RIGHT, WRONG], [0.6, -2.4])  # 0.6 is a quarter of 2.4: the weakest green
        lines = shown(run, 1, color=True)
    assert "  ┃ \x1b[38;5;231;48;5;22m2\x1b[0m" in lines


@pytest.mark.parametrize(("advantage", "style"), [
    (0.0, ""), (1e-9, "38;5;231;48;5;22"), (0.26, "38;5;231;48;5;28"), (0.5, "38;5;231;48;5;28"),
    (0.51, "38;5;16;48;5;34"), (0.75, "38;5;16;48;5;34"), (1.0, "38;5;16;48;5;40"), (-0.2, "38;5;231;48;5;52"),
    (-0.3, "38;5;231;48;5;88"), (-0.6, "38;5;231;48;5;124"), (-1.0, "38;5;231;48;5;160"), (-9.0, "38;5;231;48;5;160"),
])  # fmt: skip
def test_four_strengths(advantage: float, style: str) -> None:
    assert style_of(advantage, 1.0) == style
    assert style_of(3 * advantage, 3.0) == style


def test_what_is_kept_out_of_the_loss_or_never_credited_has_no_colour(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:
        committed(run, [episode(turn_of("1+1=", "2"), stop=CUT)], [WRONG], [-1.0], trained=False)
        group = Group("g", SUM, (replace(episode(turn_of("1+1=", "2")), group_id="g"),))
        run.add_eval("grpo", 1, EvalReport.from_json(eval_json()), [group], [[RIGHT]])
        out, held_out = shown(run, 1, color=True), shown(run, 2, color=True)
    assert "  ┃ 2" in out and "    advantage -1, kept out of the loss" in out
    assert "  ┃ 2" in held_out and not any("advantage" in line for line in held_out if "colour" not in line)


def eval_json() -> dict:
    from milepost.evaluate import evaluate

    report = evaluate([SUM], lambda tasks, num_samples, greedy: [Group("g", SUM, (replace(
        episode(turn_of("1+1=", "2")), group_id="g"),))], lambda groups: [[RIGHT]], split="validation", samples=1,
        greedy=False, step=1)  # fmt: skip
    return report.to_json()


def test_a_character_of_several_tokens_is_one_piece_with_their_mean(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:  # é is 2 bytes, 漢 3: (0 + 0.5) / 2 = 0.25 and (1 + 1 − 0.5) / 3 = 0.5
        committed(run, [episode(turn_of("1+1=", "é漢"))], [RIGHT], [[0.0, 0.5, 1.0, 1.0, -0.5]])
        lines = shown(run, color=True)
    assert "  ┃ \x1b[38;5;231;48;5;22mé\x1b[0m\x1b[38;5;231;48;5;28m漢\x1b[0m" in lines


@given(st.text(max_size=12), st.text(max_size=3))
def test_pieces_are_the_whole_text_and_every_token(text: str, before: str) -> None:
    ids, earlier = ids_of(text), ids_of(before)[-1:] if before.isascii() else []
    pieces = spelled(lambda some: BYTES.decode(some, skip_special_tokens=False), ids, earlier)
    assert "".join(piece for piece, _, _ in pieces) == text
    assert [start for _, start, _ in pieces] == [0, *(end for _, _, end in pieces)][: len(pieces)]
    assert (pieces[-1][2] if pieces else 0) == len(ids)


def test_bytes_that_are_no_character_hold_nothing_back() -> None:
    broken = [ids_of("é")[0]] * 5 + ids_of("ab")
    pieces = spelled(lambda some: BYTES.decode(some, skip_special_tokens=False), broken, [])
    assert [end for _, _, end in pieces][-1] == 7 and max(end - start for _, start, end in pieces) <= 4
    assert pieces[-1][0] == "b"


# ---- an episode of many turns ----------------------------------------------------------------------------------------

REWARD = {"milestones": {"step": 0.1, "result": 0.2}, "costs": [{"name": "calls", "free": 1, "weight": 0.05, "cap": 0.1}]}


def calc_episode(script, member: int = 0, **more) -> Episode:
    played = play_script(SPEC, CALC, script)
    scripted = episode_of(played, CALC, member)
    seen = [played.start, *(step.observation for step in played.steps)]
    turns = []
    for i, (turn, observation) in enumerate(zip(scripted.turns, seen)):
        facts = {**turn.facts, "messages": [dict(m) for m in seen[i + 1].messages]}
        new = turn_of("".join(f"{m['content']}\n" for m in observation.messages), f"{turn.text}<end>", facts=facts)
        turns.append(replace(new, seconds=0.25))
    facts = {**scripted.facts, "env": "calc", "version": SPEC.version}
    return replace(episode(*turns, task=CALC, member=member), facts=facts, stop=scripted.stop, **more)


@pytest.fixture(scope="module")
def calc_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    values = {"env": {"name": "calc"}, "reward": REWARD}
    with new_run(tmp_path_factory.mktemp("calc"), values) as run:
        episodes = [calc_episode(SPEC.gold, 0), calc_episode(SPEC.known_bad["claims success"], 1)]
        # Two calls, one of them free: 1 + 0.1 + 0.2 − 0.05.
        paid = {"outcome": 1.0, "milestones": 0.3, "cost/calls": -0.05}
        measured = {"progress/step": 1.0, "progress/result": 1.0, "used/calls": 2.0}
        rewards = [Reward(1.25, {**paid, **measured}, True), Reward(0.0, {"outcome": 0.0}, False)]
        committed(run, episodes, rewards, [0.625, -0.625], task=CALC)
        yield run


def test_a_timeline_names_milestones_costs_and_changes_by_turn(calc_run: Run) -> None:
    assert shown(calc_run, 1, width=80) == [
        "train/1/calc/0/3/0/0 · row 1 of run, grpo 1",
        "task calc/0/3 · source calc · in calc",
        "success, reward 1.25 · terminated: ended · 3 turns, 50 sampled tokens",
        "── turn 1 · 46 tokens read, 16 sampled · 0.25 s · advantage +0.625 ─────────────",
        "  │ Start with 482. Times 377. Minus 905. Result?",
        "  │ ",
        '  ┃ calc("482*377")<end>',
        "    state: num_calls: 0 → 1",
        "    state: results: + 181714",
        "    milestone reached: step (weight 0.1)",
        "    costs so far: calls 1 (free)",
        "    earned +0.1",
        "── turn 2 · 7 tokens read, 19 sampled · 0.25 s · advantage +0.625 ──────────────",
        "  │ 181714",
        "  │ ",
        '  ┃ calc("181714-905")<end>',
        "    state: num_calls: 1 → 2",
        "    state: results: + 180809",
        "    milestone reached: result (weight 0.2)",
        "    costs so far: calls 2 (−0.05)",
        "    earned +0.15",
        "── turn 3 · 7 tokens read, 15 sampled · 0.25 s · advantage +0.625 ──────────────",
        "  │ 180809",
        "  │ ",
        "  ┃ answer(180809)<end>",
        "    state: answer: null → 180809",
        "    earned +1",
        "── end · terminated: ended ─────────────────────────────────────────────────────",
        "    success, reward 1.25 = outcome 1 + milestones 0.3 + cost/calls -0.05",
        "    measured: progress/step 1, progress/result 1, used/calls 2",
        "    advantage +0.625, in the loss",
        "    rewards of its group: [1.25]  0",
    ]


def test_claims_are_invalid_actions_and_no_milestones(calc_run: Run) -> None:
    lines = shown(calc_run, 2)
    turns = sum(line.startswith("── turn") for line in lines)
    assert turns == 12 and lines.count("    invalid actions: 1") == turns
    assert not any("milestone" in line or "earned" in line or "state:" in line for line in lines)


def test_an_environment_that_is_gone_costs_its_lines_alone(tmp_path: Path) -> None:
    with new_run(tmp_path, {"env": {"name": "no_such_module:SPEC"}, "reward": {}}) as run:
        committed(run, [calc_episode(SPEC.gold)], [None], [0.5], task=CALC)
        lines = shown(run, width=200)
    assert lines[3].startswith("    milestones and costs are not shown: RecipeError: env.name = 'no_such_module:SPEC'")
    assert '  ┃ calc("482*377")<end>' in lines and "    state: results: + 181714" in lines
    assert not any("milestone reached" in line for line in lines)


def test_states_of_another_version_are_not_read_with_this_one(tmp_path: Path) -> None:
    with new_run(tmp_path, {"env": {"name": "calc"}, "reward": REWARD}) as run:
        mine = calc_episode(SPEC.gold)
        committed(run, [replace(mine, facts={**mine.facts, "version": "0"})], [None], [0.5], task=CALC)
        lines = shown(run, width=200)
    assert "milestones and costs are not shown" in lines[3] and "played in version 0 of calc" in lines[3]


def test_cuts_faults_new_segments_and_branches_are_told(tmp_path: Path) -> None:
    state = {"x": 1}
    turns = [turn_of("start", "go<end>", facts={"state": state}, events=("saved",), blobs={"screen": b"123"}),
             turn_of("all anew", "on", new_segment=True, facts={"state": state, "cut": True, "num_surplus": 2}),
             turn_of("more", "off<end>", agent="critic", facts={"state": state, "fault": "hang"})]  # fmt: skip
    fault = StopReason(StopKind.FAULT, "hang")
    mine = episode(*turns, stop=fault, branch_of=(EpisodeId("train", 1, "sums/1", 7), 2),
                   facts={"start": state, "final": state, "fault": "no answer in 30 s"})  # fmt: skip
    with new_run(tmp_path) as run:
        committed(run, [mine], [Reward.unscorable("fault: hang")], [0.0])
        lines = shown(run, color=False)
    assert "continues train/1/sums/1/7/0 after its turn 2" in lines
    assert lines[lines.index("    the history was rewritten; from here on it is:") + 1] == "  │ all anew"
    for line in ("    event: saved", "    attached: screen, 3 bytes", "    the environment failed here: hang",
                 "    calls beyond env.max_tool_calls, not carried out: 2",
                 "    cut by a budget, so nothing of it was carried out", "    fault: no answer in 30 s",
                 "    unscorable (fault: hang)"):  # fmt: skip
        assert line in lines
    assert any("· critic" in line for line in lines if line.startswith("── turn 3"))
    assert any("end · fault: hang" in line for line in lines)


def test_weights_stand_beside_the_parts_of_reward_functions(tmp_path: Path) -> None:
    functions = [{"name": "exact"}, {"name": "regex", "weight": 0.5, "params": {"pattern": "x"}}]
    with new_run(tmp_path, {"reward": {"functions": functions}}) as run:
        reward = Reward(1.5, {"exact": 1.0, "regex": 1.0}, True, False)
        committed(run, [episode(turn_of("1+1=", "2"))], [reward], [0.0])
        lines = shown(run)
    assert "    success, no readable answer, reward 1.5 = exact 1 + regex 1 × 0.5" in lines


def test_long_contexts_and_long_changes_are_cut_unless_all_is_asked_for(tmp_path: Path) -> None:
    before, after = ({f"k{i}": n for i in range(20)} for n in (0, 1))
    long = "\n".join(f"line {i}" for i in range(100))
    mine = episode(turn_of(long, "x", facts={"state": after}), facts={"start": before, "final": after})
    with new_run(tmp_path) as run:
        committed(run, [mine], [WRONG], [0.0])
        short, whole = shown(run), shown(run, full=True)
    context = [line for line in short if line.startswith("  │ ")]
    assert (context[14], context[15], context[16]) == ("  │ line 14", "  │ … 70 lines, --full shows them", "  │ line 85")
    assert len(context) == 31 and "    state: … 8 more changes, --full shows them" in short
    assert sum(line.startswith("  │ line") for line in whole) == 100
    assert sum(line.startswith("    state: k") for line in whole) == 20


# ---- without a tokenizer ---------------------------------------------------------------------------------------------


def test_without_a_tokenizer_turns_are_shown_as_stored_with_their_mean(tmp_path: Path) -> None:
    chat = Task("sums/1", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}), answer="2")
    answer = {"messages": [{"role": "tool", "content": "seen"}]}
    turns = turn_of("<end>", "ab<end>", facts=answer), turn_of("<end>", "c<end>")
    with new_run(tmp_path, tokenizer=None) as run:
        committed(run, [episode(*turns)], [RIGHT], [[1.0, 0.5, 0.0, 1.0, 1.0]], task=chat)  # mean of the first: 0.5
        lines = shown(run, color=True)
    assert "texts are as the store holds them, turn by turn: no tokenizer.json of this run is found" in lines
    at = lines.index("  │ \x1b[2msystem: Be brief.\x1b[0m")
    assert lines[at + 1 : at + 3] == ["  │ \x1b[2muser: 1+1?\x1b[0m", "  ┃ \x1b[38;5;231;48;5;28mab\x1b[0m"]
    assert "  │ \x1b[2mtool: seen\x1b[0m" in lines


def test_a_tokenizer_that_reads_the_ids_otherwise_is_not_believed(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:
        other = replace(turn_of("1+1=", "2<end>"), text="two")
        far = Turn([10**6], Sampled([10**6], [0.0], 1.0, ((0, 0),), "stop"), text="far")
        committed(run, [episode(turn_of("a", "b"), other, far)], [RIGHT], [1.0])
        lines = shown(run, width=200)
    assert "the tokenizer.json found reads turn 2, 3 otherwise than the store, whose text is shown" in lines
    assert [line for line in lines if line.startswith("  ┃")] == ["  ┃ b", "  ┃ two", "  ┃ far"]


def test_the_model_folder_is_asked_when_no_checkpoint_was_kept(tmp_path: Path) -> None:
    BYTES.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "broken").mkdir()
    with new_run(tmp_path, {"model": {"path": str(tmp_path)}}, tokenizer=None) as run:
        committed(run, [episode(turn_of("1+1=", "2<end>"))], [RIGHT], [1.0])
        assert "  ┃ 2<end>" in shown(run)
        folder = run.checkpoints / "sft" / "step-000001" / "model"
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text("no tokenizer")
        assert "  ┃ 2<end>" in shown(run)


# ---- choosing --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with new_run(tmp_path_factory.mktemp("listed")) as run:
        for step in (1, 2):
            pair = [episode(turn_of("1+1=", "2<end>"), step=step),
                    episode(turn_of("1+1=", "33"), member=1, stop=CUT, step=step)]  # fmt: skip
            committed(run, pair, [RIGHT, WRONG], [0.5, -0.5], step=step)
        for step in (1, 2):
            held = replace(episode(turn_of("1+1=", "2<end>")), id=EpisodeId("validation", 0, "sums/1", 0), group_id="v")
            run.add_eval("grpo", step, EvalReport.from_json(eval_json()), [Group("v", SUM, (held,))], [[RIGHT]])
        yield run


def test_the_list(listed: Run) -> None:
    assert list(episode_list(listed.path, limit=2)) == [
        "row  episode             commit  reward  success         stop  turns  tokens",
        "1    train/1/sums/1/0/0  grpo 1       1      yes  end_of_turn      1       2",
        "2    train/1/sums/1/1/0  grpo 1       0       no       tokens      1       2",
        f"2 of 6 episodes, --limit 0 lists all; one of them turn by turn: milepost replay {listed.path} 2",
    ]


@pytest.mark.parametrize(("filters", "rows"), [
    ({}, [1, 2, 3, 4, 5, 6]), ({"phase": "train"}, [1, 2, 3, 4]), ({"phase": "validation"}, [5, 6]),
    ({"phase": "grpo"}, [1, 2, 3, 4, 5, 6]), ({"step": 2}, [3, 4, 6]), ({"success": True}, [1, 3, 5, 6]),
    ({"success": False, "step": 2}, [4]), ({"stop": "tokens"}, [2, 4]), ({"stop": "tokens", "limit": 1}, [2]),
])  # fmt: skip
def test_filters(listed: Run, filters: dict, rows: list[int]) -> None:
    lines = list(episode_list(listed.path, **{"limit": 0} | filters))
    assert [int(line.split()[0]) for line in lines[1:-1]] == rows


@pytest.mark.parametrize(("filters", "sentence"), [
    ({"phase": "sft"}, r"^--phase sft: no episode belongs to it; there are grpo, validation$"),
    ({"step": 7}, r"^--step 7: no episode is stored of it; there are steps 1 to 2$"),
    ({"stop": "time"}, r"^--stop time: no episode ended so; they ended by end_of_turn, tokens$"),
    ({"stop": "tokens", "success": True}, r"^none of 6 episodes fits --stop with --success; leave out --success$"),
])  # fmt: skip
def test_filters_that_leave_nothing_say_what_there_is(listed: Run, filters: dict, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        list(episode_list(listed.path, **filters))


def test_an_empty_run_says_so(tmp_path: Path) -> None:
    with new_run(tmp_path) as run, pytest.raises(RecipeError, match="holds no episode yet"):
        list(episode_list(run.path))
    with new_run(tmp_path) as run, pytest.raises(StoreError, match="has no episode in row 1; it holds none"):
        shown(run)


def test_an_episode_is_chosen_by_row_or_name(listed: Run) -> None:
    assert chosen(listed, "4") == 4
    assert chosen(listed, "train/2/sums/1/1/0") == 4  # the task's key holds a slash itself
    assert chosen(listed, "validation/0/sums/1/0/0", step=2) == 6
    with pytest.raises(RecipeError, match=r"^2 episodes are named validation/0/sums/1/0/0: give the row of one, 5 \(grpo 1 "
                                          r"validation\), 6 \(grpo 2 validation\)$"):  # fmt: skip
        chosen(listed, "validation/0/sums/1/0/0")


@pytest.mark.parametrize("name", ["", "x", "train/1/sums/1/9/0", "train/one/sums/1/0/0", "a/1/b/2", "-1", "٣", "1" * 5000])
def test_a_name_that_is_none_is_one_sentence(listed: Run, name: str) -> None:
    with pytest.raises((RecipeError, StoreError), match="no episode") as told:
        list(replay(listed.path, name))
    assert "\n" not in str(told.value)


def test_the_command_line(listed: Run, capsys: pytest.CaptureFixture) -> None:
    assert main(["replay", str(listed.path), "--failed", "--step", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["4", "train/2/sums/1/1/0"]
    assert main(["replay", str(listed.path), "1"]) == 0
    out = capsys.readouterr().out
    assert "  ┃ 2<end>\n" in out and "\x1b" not in out  # what is captured is no terminal
    assert main(["replay", str(listed.path), "99"]) == 2
    assert capsys.readouterr().err.endswith("has no episode in row 99; its rows are 1 to 6\n")
    assert main(["replay", str(listed.path.parent / "nothing")]) == 2


def test_it_loads_no_torch(listed: Run) -> None:
    code = (f"import sys; from milepost.cli import main; main(['replay', {str(listed.path)!r}, '1'])\n"
            "print([m for m in ('torch', 'transformers') if m in sys.modules])")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and "  ┃ 2<end>" in done.stdout


# ---- the terminal ----------------------------------------------------------------------------------------------------


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_on_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert screen(Screen()) == (90, True)
    assert screen(io.StringIO()) == (0, False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert screen(Screen()) == (90, False)
    monkeypatch.setenv("NO_COLOR", "")  # set, but empty: says nothing
    monkeypatch.setenv("TERM", "dumb")
    assert screen(Screen()) == (90, False)


def test_an_output_without_these_characters_takes_question_marks() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as out:
        screen(out)
        out.write("a ┃ b")
        out.flush()
        assert raw.getvalue() == b"a ? b"


@pytest.mark.parametrize(("text", "seen"), [
    ("\x1b[31mred\x1b]0;title\x07", "␛[31mred␛]0;title␇"), ("a\tb\rc\x00\x7f", "a␉b␍c␀␡"), ("\x9b2J", "⟨9b⟩2J"),
    ("ab\u202ecd\u200b", "ab⟨202e⟩cd⟨200b⟩"), ("\ud800x", "⟨d800⟩x"), ("two\nlines", "two\nlines"), ("漢é😀", "漢é😀"),
    ("e" + "\u0301" * 6, "e" + "\u0301" * 4 + "⟨301⟩⟨301⟩"),
])  # fmt: skip
def test_what_a_terminal_would_obey_is_spelled_out(text: str, seen: str) -> None:
    assert visible(text) == seen


ANY = st.text(
    st.one_of(st.characters(), st.sampled_from("\x1b[\x9b\x07\r\n\t\x00\u202e\u200d\u0301漢😀─│┃a ")), max_size=60
)


def is_safe(line: str) -> bool:
    return all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for c in line)


@given(
    st.lists(st.tuples(ANY, st.sampled_from(["", "1", "38;5;16;48;5;40"])), max_size=5), st.integers(12, 60), st.booleans()
)
def test_no_text_leaves_its_frame(spans: list, width: int, color: bool) -> None:
    lines = framed(spans, "  ┃ ", width, color=color)
    plain = [SGR.sub("", line) if color else line for line in lines]
    assert all(is_safe(line) and line.startswith("  ┃ ") and cells(line) <= width for line in plain)
    assert "".join(line[4:] for line in plain) == visible("".join(text for text, _ in spans)).replace("\n", "")


@given(st.lists(st.lists(ANY, min_size=3, max_size=3), min_size=1, max_size=4), st.integers(10, 80))
def test_no_text_leaves_its_row(rows: list, width: int) -> None:
    lines = table(rows, width=width)
    assert len(lines) == len(rows) and all(is_safe(line) and cells(line) <= width for line in lines)


STEPS = count(1)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with new_run(tmp_path_factory.mktemp("hostile"), {"env": {"name": "calc"}, "reward": REWARD}) as run:
        yield run


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking takes minutes
@example(("漢字", "漢字\n", "漢\x1b[2J", "漢", "漢", "漢/漢"), True)
@given(st.tuples(*[ANY] * 6), st.booleans())
def test_no_stored_text_breaks_the_timeline(hostile: Run, texts: tuple[str, ...], color: bool) -> None:
    """Whatever the policy, the task or the environment wrote: no control reaches the terminal, and no line is forged."""
    prompt, wrote, seen, *others = texts
    fact, cause, key = (text.encode("utf-8", "replace").decode() for text in others)  # columns take no lone surrogates
    start = {"results": [], "answer": None, "num_calls": 0, fact: 0}
    now = start | {"answer": 1, fact: wrote}
    facts = {"state": now, "messages": [{"role": seen, "content": seen}], "num_invalid": 1, "num_calls": 0, "fault": cause}
    raw = Turn([1], Sampled([10**6], [0.0], 1.0, ((0, 0),), "stop"), text=wrote, facts=facts, events=(seen,))
    task = Task(key or "k", prompt, answer=wrote, source=cause, columns={"gold": 2, "results": [2]})
    step = next(STEPS)
    ends = {"start": start, "final": now, "fault": seen, "env": "calc"}
    mine = episode(raw, raw, task=task, stop=StopReason(StopKind.TRUNCATED, cause), step=step, facts=ends)
    committed(hostile, [mine], [Reward(0.5, {fact: 0.5}, False)], [1.0], task=task, step=step)
    row = hostile.episode_lines(step=step)[0].row
    lines = [SGR.sub("", line) if color else line for line in shown(hostile, row, color=color, width=60)]
    assert all(is_safe(line) and cells(line) <= 60 for line in lines)
    assert sum(line.startswith("──") for line in lines) == 3  # two turns and the end, whatever the texts say
    listing = list(episode_list(hostile.path, step=step, width=0))
    assert len(listing) == 3 and all(map(is_safe, listing))


def test_escape_codes_of_a_policy_are_seen_and_not_obeyed(tmp_path: Path) -> None:
    with new_run(tmp_path) as run:
        committed(run, [episode(turn_of("1+1=", "\x1b[2Jgone\n── turn 9 ──"))], [WRONG], [-1.0])
        lines = shown(run)
    assert "  ┃ ␛[2Jgone⏎" in lines and "  ┃ ── turn 9 ──" in lines
    assert json.dumps(lines).count("\\u001b") == 0
