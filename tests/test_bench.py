"""The step benchmark, its gauges, traces and the process settings. The big step runs once, on a two-layer model."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from milepost.bench import STAGES, bench_step
from milepost.cli import main
from milepost.cost import model_cost
from milepost.info import info
from milepost.meter import StageClock, gemm_peak, only_new_objects, tensor_mb
from milepost.policy import new_policy
from milepost.profile import mark_step, profiled, span
from milepost.tune import tune_allocator, tune_process
from milepost.types import RecipeError

SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "narrow"
    new_policy(path, layers=2, width=32, heads=2)
    return str(path)


@pytest.fixture(scope="module")
def result(folder):
    """N = 8, G = 8, P = 256, C = 64. What is counted does not depend on the model's width, depth or vocabulary."""
    return bench_step(folder, 8, 8, 256, 64, 1)


def test_work_ratio_of_smollm2(result):
    cost = model_cost(SMOLLM2)
    assert 1 < result.work_ratio(cost) <= 1.3
    ideal = result.ideal.by_part(cost)
    # The reference's table; an accidental repetition among first tokens may make the forest a little smaller.
    for part, wanted in {"prefill": 454, "decode": 1165, "blocks": 4168, "head": 696}.items():
        assert ideal[part] / 1e9 == pytest.approx(wanted, rel=0.01), part


def test_where_the_excess_comes_from(result):
    ideal, executed = result.ideal, result.executed
    for name in ("prefill", "decode"):
        for unit in ("linear_tokens", "attention_pairs", "head_positions"):
            assert getattr(getattr(executed, name), unit) == getattr(getattr(ideal, name), unit), (name, unit)
    assert ideal.prefill.linear_tokens == 8 * 256
    assert ideal.decode.linear_tokens == 64 * 63
    # No trunk is run twice; rows pad to the widest of their call.
    assert 1 <= executed.blocks.linear_tokens / ideal.blocks.linear_tokens < 1.01
    # The dense tree mask computes L² pairs of each group's L = 256 + 8·63 nodes, of which 178,048 are visible.
    assert executed.blocks.attention_pairs / ideal.blocks.attention_pairs == pytest.approx(760**2 / 178_048, rel=0.02)
    # The head's tiles are computed again in the backward pass; the prompt's last node serves eight events at once.
    assert executed.head.head_positions / ideal.head.head_positions == pytest.approx(4 / 3 * 505 / 512, rel=0.01)


def test_fast_paths_are_taken_and_leave_nothing_behind(result):
    assert (result.facts["decoding"], result.facts["executor"]) == ("lean", "packed")
    # 2 layers · 2 · 32 values · 4 bytes for each of 8·(256 + 8·63) tokens
    assert result.memory.kv_mb == pytest.approx(8 * (256 + 8 * 63) * 512 / 1e6)
    assert result.memory.kept_mb < 0.02 * result.memory.kv_mb
    assert result.memory.peak_mb >= result.memory.before_update_mb > 50


def test_result_for_programs_and_people(result):
    found = json.loads(result.json())
    assert list(found["stages"]) == list(STAGES)
    assert found["work_ratio"] == pytest.approx(sum(found["executed_flops"].values()) / sum(found["ideal_flops"].values()))
    assert found["cpu_seconds"] == pytest.approx(sum(s["cpu_seconds"] for s in found["stages"].values()))
    peak = found["gemm_peak_flops"]["float32"]["per_cpu_second"]
    train = found["ideal_flops"]["blocks"] + found["ideal_flops"]["head"]
    assert found["time_ratio"]["train"] == pytest.approx(found["stages"]["train"]["cpu_seconds"] * peak / train)
    assert found["time_ratio"]["step"] == pytest.approx(found["cpu_seconds"] * peak / sum(found["ideal_flops"].values()))
    text = result.text()
    assert f"work_ratio {found['work_ratio']:.3f}" in text
    assert all(stage in text for stage in STAGES)


def test_several_steps_are_averaged(folder):
    one, two = bench_step(folder, 2, 2, 8, 4, 1), bench_step(folder, 2, 2, 8, 4, 2)
    assert two.ideal.decode.linear_tokens == 2 * one.ideal.decode.linear_tokens == 2 * 4 * 3
    assert two.to_json()["ideal_flops"]["decode"] == pytest.approx(one.to_json()["ideal_flops"]["decode"])


def test_one_sampled_token_needs_no_decoding(folder):
    found = bench_step(folder, 1, 2, 1, 1, 1).to_json()
    assert found["ideal_flops"]["decode"] == 0
    assert "decode" not in found["time_ratio"]


@pytest.mark.parametrize(
    ("sizes", "names"),
    [((0, 8, 8, 8), "--prompts 0"), ((1, 1, 8, 8), "--group 1"), ((1, 2, 0, 8), "--prompt-tokens 0"),
     ((1, 2, 8, 0), "--completion-tokens 0"), ((1, 2, 2000, 60), "at most 2048 tokens in all"),
     ((97, 2, 8, 8), "--prompts 97")],
)  # fmt: skip
def test_impossible_sizes_are_refused_in_a_sentence(folder, sizes, names):
    with pytest.raises(RecipeError, match=names):
        bench_step(folder, *sizes, 1)


def test_sizes_are_checked_before_the_model_is_loaded():
    with pytest.raises(RecipeError, match="--group 1"):
        bench_step("no/such-model", 1, 1, 8, 8, 1)
    with pytest.raises(RecipeError, match="--steps 0"):
        bench_step("no/such-model", 1, 2, 8, 8, 0)


def test_command_line(folder, capsys):
    sizes = ["--prompts", "2", "--group", "2", "--prompt-tokens", "8", "--completion-tokens", "4"]
    assert main(["bench", "step", "--model", folder, *sizes, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shape"]["group_size"] == 2
    assert main(["bench", "step", "--model", folder, "--group", "1"]) == 2
    assert "--group 1 must be at least 2" in capsys.readouterr().err


# --- gauges


def burn(seconds):
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass


def fail_after(function, *arguments):
    function(*arguments)
    raise RuntimeError


def test_nested_stages_charge_the_innermost():
    clock = StageClock(torch.device("cpu"))
    with clock("outer"):
        burn(0.02)
        with clock("inner"):
            burn(0.1)
        burn(0.02)
    burn(0.1)
    assert 0.1 <= clock.costs["inner"].cpu_seconds < 0.15
    assert 0.04 <= clock.costs["outer"].cpu_seconds < 0.09


def test_a_stage_ends_with_an_error_too():
    clock = StageClock(torch.device("cpu"))
    with pytest.raises(RuntimeError), clock("broken"):
        fail_after(burn, 0.01)
    with clock("next"):
        burn(0.01)
    assert 0.01 <= clock.costs["broken"].cpu_seconds < 0.03


@pytest.mark.skipif(sys.platform != "linux", reason="peaks by stage need Linux")
def test_peak_memory_belongs_to_its_stage():
    clock = StageClock(torch.device("cpu"))
    with clock("small"):
        pass
    with clock("large"):
        len(b"x" * 400_000_000)  # well above what freed heap could serve without growing
    assert clock.costs["large"].peak_mb - clock.costs["small"].peak_mb > 200


def test_tensor_memory_counts_storages_once():
    with only_new_objects():
        before = tensor_mb()
        kept = torch.zeros(2_000_000)
        views = [kept[:10], kept.view(2, -1)]
        assert tensor_mb() - before == pytest.approx(8, abs=0.1)
        del kept, views
        assert tensor_mb() - before == pytest.approx(0, abs=0.1)


def test_gemm_peak_is_a_rate():
    peak = gemm_peak(torch.float32, torch.device("cpu"), seconds=0.05)
    assert 1e8 < peak.per_cpu_second < 1e13
    assert 1e7 < peak.per_wall_second < 1e14


# --- traces


def names_in(path):
    return {event["name"] for event in json.loads(path.read_text())["traceEvents"]}


def test_a_trace_holds_the_first_steps(tmp_path):
    with profiled(tmp_path / "trace.json", num_steps=2):
        for step in range(4):
            with span(f"step {step}"):
                torch.ones(3).cosh()
            mark_step()
    names = names_in(tmp_path / "trace.json")
    assert {"step 0", "step 1", "aten::cosh"} <= names
    assert not {"step 2", "step 3"} & names


def test_a_trace_survives_an_error(tmp_path):
    with pytest.raises(RuntimeError), profiled(tmp_path / "trace.json"):
        fail_after(torch.cosh, torch.ones(3))
    assert "aten::cosh" in names_in(tmp_path / "trace.json")


def test_no_trace_without_a_path(tmp_path):
    with profiled(None), span("quiet"):
        mark_step()
    with pytest.raises(RecipeError, match="--profile"), profiled(tmp_path / "absent" / "trace.json"):
        pytest.fail("the block must not start")


# --- process settings

FAULTS = """
import resource
from milepost.tune import tune_allocator
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def cycle():
    before = faults()
    for _ in range(3):  # touched by C, without the huge pages that numpy asks for
        len(bytes([1]) * 40_000_000)
    return faults() - before
plain = cycle()
done = tune_allocator()
cycle()
print(plain, cycle(), done)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_memory_is_kept_for_the_next_allocation():
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    done = subprocess.run([sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True)
    plain, tuned, applied = done.stdout.split()
    if applied != "True":
        pytest.skip("not glibc")
    assert int(plain) > 10_000  # 3 blocks of 40 MB in pages of 4 KB, each mapped anew: 29,297
    assert int(tuned) < int(plain) / 20


def test_process_settings_respect_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "0")
    assert not tune_allocator()
    tune_process()
    assert (os.environ["OMP_WAIT_POLICY"], os.environ["TOKENIZERS_PARALLELISM"]) == ("ACTIVE", "false")


def test_info_says_where_things_are(monkeypatch, tmp_path):
    monkeypatch.setenv("MILEPOST_CACHE", str(tmp_path))
    text = info()
    assert f"torch {torch.__version__}" in text
    assert str(tmp_path) in text
    assert "not here yet" in text
    (tmp_path / "smollm2-135m").mkdir()
    (tmp_path / "smollm2-135m" / "model.safetensors").touch()
    assert "not here yet" not in info()
