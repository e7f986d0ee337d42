"""The page and the terminal summary: honest verdicts, everything escaped, nothing missing when metrics are."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.charts import HEIGHT, WIDTH, Series, line_chart, nice_ticks, short, sparkline
from milepost.evaluate import EvalReport, summarise
from milepost.recipe import make_recipe
from milepost.report import judge, show, table_rows, write_report
from milepost.store import Run
from milepost.types import Credit, Episode, EpisodeId, Group, Reward, Sampled, StopKind, StopReason, Task, Turn

DECODING = {"temperature": 1.0, "max_new_tokens": 32}


def episode(key: str, member: int, *, phase: str = "train", step: int = 0, text: str = "4") -> Episode:
    turn = Turn([1, 2], Sampled([3, 4], [-0.1, -0.2], 1.0, ((0, step),), "stop"), text=text)
    return Episode(EpisodeId(phase, step, key, member), key, (turn,), StopReason(StopKind.TERMINATED, "end_of_turn"))


def report(rate: float, *, split: str = "test", step: int = 0, num: int = 200, samples: int = 4) -> EvalReport:
    """Exactly the given share of tasks succeeds, in all samples and greedily."""
    groups = [Group(str(i), Task(str(i), "?"), tuple(episode(str(i), m) for m in range(samples))) for i in range(num)]
    right = [i < round(rate * num) for i in range(num)]
    greedy = [Group(str(i), Task(str(i), "?"), (episode(str(i), 0),)) for i in range(num)]
    return summarise(groups, [[Reward(float(ok), {}, ok, True)] * samples for ok in right], split=split, step=step,
                     settings=DECODING, greedy=(greedy, [[Reward(float(ok), {}, ok, True)] for ok in right]))  # fmt: skip


@pytest.fixture
def run(tmp_path: Path):
    with Run.create(tmp_path, make_recipe({}), toml="seed = 0", formula="loss <= 1 & more", meta={"model": "tiny"}) as run:
        yield run


def train(run: Run, step: int, metrics: dict | None = None, prompt="2 + 2?", text: str = "4") -> None:
    groups = [
        Group(f"t{g}", Task(f"t{g}", prompt), tuple(episode(f"t{g}", m, step=step, text=text) for m in range(2)))
        for g in range(2)
    ]
    rewards = [[Reward(1.1, {"exact": 1.0, "format": 0.1}, True, True), Reward(0.25, {"exact": 0.25}, False, True)]] * 2
    credits = [[Credit(e.id, np.full(2, 0.5), True, True) for e in g.episodes] for g in groups]
    run.commit_step(step, "train", groups, rewards, credits, {"reward/mean": 0.5 + step, **(metrics or {})})


class Page(HTMLParser):
    """Checks that tags balance and that nothing is fetched or executed; collects the text."""

    VOID = ("meta", "br")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.count: dict[str, int] = {}
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "img", "iframe", "object"), tag
        assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attrs}
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def test_an_empty_run_has_a_page_and_a_summary(run: Run) -> None:
    page = Page(write_report(run.path))
    assert "No verdict yet" in page.words
    assert "svg" not in page.count
    assert "loss <= 1 & more" in page.words
    assert "No verdict yet" in show(run.path)


def test_the_page_is_self_contained_and_shows_the_run(run: Run) -> None:
    for step in range(30):
        train(run, step, {"grad_norm": 0.1 * step, "groups/constant": 0.5, "seconds/sample": 1.0, "seconds/update": 2.0})
    run.commit_step(0, "sft", metrics={"sft/loss": 2.0})
    run.commit_step(1, "sft", metrics={"sft/loss": 1.0})
    run.add_event("warning", "no_signal", "all groups are constant", step=3)
    run.add_event("warning", "no_signal", "all groups are constant again", step=9)
    run.add_event("info", "canary", "passed")
    (run.checkpoints / "train" / "step-000030").mkdir(parents=True)
    path = write_report(run.path)
    page = Page(path)
    assert path == run.path / "report.html"
    expected = """Reward|Gradient norm|Seconds per step|Warm start: loss|all groups are constant again|steps 3 to 9|best
        |worst|reward 1.1|reward 0.25|2 + 2?|exact 0.25|advantage +0.5|checkpoints/train/step-000030/|seed = 0|tiny"""
    for words in expected.replace("\n        ", "").split("|"):
        assert words in page.words, words
    assert page.count["svg"] == 5
    assert "passed" not in page.words
    assert not re.search(r"https?://", page.source)
    assert [p.name for p in run.path.glob("*.tmp")] == []


def test_what_the_policy_wrote_is_text_never_markup_or_commands(run: Run) -> None:
    nasty = "<script>alert(1)</script> {{ 7 * 7 }} \x1b[31m\0 \ud800 & 'quotes\""
    prompt = ({"role": "user", "content": "<img src=x onerror=alert(1)>"},)
    train(run, 0, prompt=prompt, text=nasty)
    run.add_event("warning", "odd", "\x1b]0;title\x07 [bold]<b>", step=0)
    page = Page(write_report(run.path))
    assert "<script>alert(1)</script> {{ 7 * 7 }} ␛[31m␀" in page.words
    assert "<img src=x onerror=alert(1)>" in page.words
    summary = show(run.path)
    assert "\x1b" not in summary
    assert "[bold]<b>" in summary


def test_values_that_are_not_finite_do_not_break_the_page(run: Run) -> None:
    for step, value in enumerate([1.0, float("inf"), float("nan"), 2.0]):
        train(run, step, {"grad_norm": value, "kl/k3": float("inf")})
    page = Page(write_report(run.path))
    assert "nan" not in "".join(re.findall(r'points="[^"]*"', page.source))
    assert "inf" not in "".join(re.findall(r'points="[^"]*"', page.source))
    assert "KL to the reference" not in page.words
    show(run.path)


def test_a_table_tells_that_no_step_was_better_than_the_start(run: Run) -> None:
    run.add_eval("grpo", 0, report(0.2))
    assert [row["name"] for row in table_rows(run)] == ["After GRPO (step 0, as it began)"]


def test_the_verdict_is_the_standard_bar_between_sft_and_grpo(run: Run) -> None:
    run.add_eval("base", 0, report(0.05))
    run.add_eval("sft", 0, report(0.2))
    run.add_eval("grpo", 2, report(0.5))
    run.add_eval("control_sft", 0, report(0.25))
    run.add_eval("control_random", 0, report(0.2))
    verdict = judge(run)
    assert (verdict.state, verdict.before, verdict.after) == ("met", "After SFT", "After GRPO")
    assert verdict.headline == "It got better: 20.0 % → 50.0 % on held-out tasks (+30.0 points)."
    assert "the control (25.0 %) is beaten" in verdict.bar.text  # the better one of the two
    page = Page(write_report(run.path))
    assert verdict.headline in page.words
    assert [row["name"] for row in table_rows(run)] == [
        "Base model", "After SFT", "After GRPO", "Control: sft", "Control: random"]  # fmt: skip
    assert table_rows(run)[2]["greedy"] == "50.0 %"
    assert verdict.headline in show(run.path)


def test_the_four_verdicts_stand_on_the_page_and_in_the_terminal(run: Run) -> None:
    rewards = [Reward(1.0, {}, True, True), Reward(0.0, {}, False, True), Reward(0.0, {}, False, False),
               Reward(None, {}, None, None, "timeout")]  # fmt: skip
    groups = [Group(str(i), Task(str(i), "?"), (episode(str(i), 0),)) for i in range(8)]
    told = summarise(groups, [[reward] for reward in rewards[:2] * 2 + rewards], split="test", step=0, settings=DECODING)
    run.add_eval("base", 0, told)
    train(run, 0, {"verdict/correct": 3.0, "verdict/wrong": 2.0, "verdict/unextractable": 4.0, "verdict/unscorable": 1.0})
    # 7 of 8 were judged; 3 + 3 of these 7 could be read, and 3 of those 6 are right
    row = table_rows(run)[0]
    assert row["answers"] == "3 correct, 3 wrong, 1 unextractable, 1 unscorable"
    assert (row["readable"], row["accuracy"], row["unscorable"]) == ("85.7 %", "50.0 %", "timeout 1")
    words = Page(write_report(run.path)).words
    assert row["answers"] in words and "Verdicts answers of one step" in words
    assert "Base model: 3 correct, 3 wrong, 1 unextractable, 1 unscorable" in show(run.path)


def test_a_gain_that_is_too_small_is_not_sold(run: Run) -> None:
    run.add_eval("sft", 0, report(0.2))
    run.add_eval("grpo", 0, report(0.28))
    verdict = judge(run)
    assert verdict.state == "unmet"
    assert verdict.headline.startswith("Not shown to be better by the standard bar: 20.0 % → 28.0 %")
    assert "✗" in show(run.path)


def test_evaluations_that_cannot_be_compared_give_no_verdict(run: Run) -> None:
    run.add_eval("sft", 0, report(0.2))
    run.add_eval("grpo", 0, report(0.9, num=100))
    assert judge(run).state == "open"
    assert "same tasks" in judge(run).headline
    write_report(run.path)


def test_validation_alone_is_called_what_it_is(run: Run) -> None:
    for step, rate in ((0, 0.25), (10, 0.5), (20, 0.5)):
        run.add_eval("validation", step, report(rate, split="validation", step=step, num=40, samples=2))
    verdict = judge(run)
    assert verdict.state == "open"
    assert "from 25.0 % to 50.0 % at step 10" in verdict.headline
    page = Page(write_report(run.path))
    assert "40 validation tasks × 2; band: 95 %" in page.words
    assert [row["name"] for row in table_rows(run)] == ["Validation, step 0", "Validation, step 10"]


def test_the_page_can_be_written_while_the_run_goes_on(run: Run) -> None:
    train(run, 0)
    write_report(run.path)
    train(run, 1)
    assert "running" in Page(write_report(run.path)).words


def test_a_full_disk_keeps_the_old_page(run: Run, tmp_path: Path) -> None:
    train(run, 0)
    before = write_report(run.path).read_bytes()
    said = tmp_path / "said"
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        try:
            write_report(run.path)
        except BaseException as error:
            said.write_text(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert re.match(r"StoreError: .*report.html cannot be written: file too large", said.read_text())
    assert (run.path / "report.html").read_bytes() == before


def test_imports_without_torch() -> None:
    code = "import milepost.report, sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Charts

values = st.floats(-1e6, 1e6)


@given(values, values)
def test_ticks_cover_the_range_and_stay_few(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 7
    assert ticks == sorted(set(ticks))


def test_ticks_by_value() -> None:
    assert nice_ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1.0]
    assert nice_ticks(0.13, 0.87) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nice_ticks(0, 120) == [0, 50, 100, 150]
    assert nice_ticks(1e-5, 1e-5)[0] <= 1e-5 <= nice_ticks(1e-5, 1e-5)[-1]


@given(st.lists(st.tuples(st.integers(0, 1000), values), min_size=1, max_size=300), st.booleans())
def test_lines_stay_inside_the_picture(points: list, smooth: bool) -> None:
    svg = line_chart([Series("x", sorted(points)), Series("y", sorted(points)[:3])], floor=0.0, smooth=smooth)
    for pair in re.findall(r"(-?[\d.]+),(-?[\d.]+)", " ".join(re.findall(r'points="([^"]*)"', svg))):
        assert -0.2 <= float(pair[0]) <= WIDTH + 0.2
        assert -0.2 <= float(pair[1]) <= HEIGHT + 0.2


def test_a_line_by_value() -> None:
    # x from 0 to 10 over pixels 44…350; y from 0 to 1 over pixels 154…8
    svg = line_chart([Series("r", [(0, 0.0), (10, 1.0)])])
    assert 'points="44.0,154.0 350.0,8.0"' in svg


def test_gaps_and_long_runs() -> None:
    assert line_chart([Series("x", [(0, float("nan"))]), Series("y", [])]) == ""
    svg = line_chart([Series("x", [(i, float(i)) for i in range(10_000)])], smooth=True)
    assert len(svg) < 12_000


def test_sparklines_by_value() -> None:
    assert sparkline([0, 7, 3.5, 1]) == "▁█▅▂"
    assert sparkline([2, 2]) == "▄▄"
    assert sparkline([float("nan")]) == ""
    assert len(sparkline(list(range(1000)), width=32)) == 32


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.123"), (0, "0"), (1234.5, "1,234"), (0.00001, "1e-5"), (2.5e6, "2.5e6"), (float("inf"), "inf")],
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert short(value) == text
