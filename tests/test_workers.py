"""Killable workers: a call that hangs, dies or eats memory costs only itself, and nothing is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from gauges import counts, resident_mb

from milepost.workers import Call, WorkerPool, spent_by

FUNCTIONS = """
import json, os, signal, socket, subprocess, sys, time

def double(x): return 2 * x
def sleep(seconds): time.sleep(seconds); return "awake"
def stop_hard(): os._exit(0)
def stop_soft(): sys.exit(0)
def crash(): os.kill(os.getpid(), signal.SIGSEGV)
def fail(): raise ValueError("seven\\nlines")
def stubborn():
    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM): signal.signal(s, signal.SIG_IGN)
    while True: pass
def hoard(): return len([bytearray(1 << 24) for _ in range(1 << 16)])
def chatty(): print("x" * 3_000_000); print("noise", file=sys.stderr); return 5
def last_words(): print("I am going"); os._exit(3)
def forever_regex(): import re; return bool(re.fullmatch("(a+)+b", "a" * 60))
def child(): return subprocess.Popen(["/bin/sleep", "600"]).pid
def child_then_hang(path):
    with open(path, "w") as f: f.write(str(subprocess.Popen(["/bin/sleep", "600"]).pid))
    time.sleep(600)
def environment(): return dict(os.environ)
def read_input(): return sys.stdin.read()
def hash_of(text): return hash(text)
def not_json(): return {1, 2}
def nan(): return [float("nan"), float("inf")]
def core_limit(): import resource; return resource.getrlimit(resource.RLIMIT_CORE)[0]
def pid(): return os.getpid()
def fork_twice(): os.fork(); return os.getpid()
def forge():
    "Writes a second answer behind its own, for the next call to find."
    fd = int(open("/proc/self/cmdline").read().split("\\0")[-2])
    import struct, threading
    data = json.dumps({"token": "guess", "failure": None, "value": 1}).encode()
    threading.Timer(0.1, lambda: os.write(fd, struct.pack(">QQ", len(data), 0) + data)).start()
    return 0
def connect(port):
    try: socket.create_connection(("127.0.0.1", port), 2).close(); return True
    except OSError: return False
def burn(seconds):
    begin = time.process_time()
    while time.process_time() - begin < seconds: pass
def burn_and_die(seconds): burn(seconds); os._exit(0)
def burn_and_hang(seconds): burn(seconds); time.sleep(600)
def burn_in_child(seconds):
    pid = os.fork()
    if pid == 0: burn(seconds); os._exit(0)
    os.waitpid(pid, 0)
def slow_setup(): time.sleep(1.5); return "up"
def broken_setup(): raise RuntimeError("no model here")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("functions") / "functions.py"
    path.write_text(FUNCTIONS)
    return str(path)


@pytest.fixture
def pool():
    with WorkerPool(2) as pool:
        yield pool


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone_soon(pid: int) -> bool:
    end = time.monotonic() + 5
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_calls_return_values_in_order_and_reuse_the_process(pool, file):
    assert pool.pids == []  # lazy
    answers = pool.map([Call(f"{file}:double", {"x": x}) for x in range(20)])
    assert [a.value for a in answers] == [2 * x for x in range(20)]
    assert len(pool.pids) == 1  # twenty quick calls need no second process
    assert pool.call(f"{file}:pid").value == pool.call(f"{file}:pid").value == pool.pids[0]
    assert pool.call("os.path:basename", {"p": "/a/b"}).value == "b"  # module:function
    assert pool.map([]) == []


@pytest.mark.parametrize(
    ("name", "failure"),
    [("stop_hard", "worker_died"), ("crash", "worker_died"), ("stop_soft", "error: SystemExit"),
     ("fail", "error: ValueError"), ("not_json", "error: TypeError"), ("missing", "error: AttributeError")],
)  # fmt: skip
def test_each_failure_has_its_type_and_the_next_call_works(pool, file, name, failure):  # cases D38, D44
    first, second = pool.map([Call(f"{file}:{name}", timeout=20), Call(f"{file}:double", {"x": 4})])
    assert first.failure == failure
    assert first.value is None
    assert (second.value, second.failure) == (8, None)


def test_memory_is_capped(file):  # case D44
    with WorkerPool(1, memory_mb=256) as pool:
        assert pool.call(f"{file}:hoard", timeout=20).failure == "error: MemoryError"
        assert pool.call(f"{file}:double", {"x": 4}).value == 8


def test_failures_carry_traceback_exit_status_and_printed_tail(pool, file):
    answer = pool.call(f"{file}:fail")
    assert "functions.py" in answer.detail
    assert "ValueError: seven" in answer.detail
    answer = pool.call(f"{file}:last_words")
    assert "exit status 3" in answer.detail
    assert "I am going" in answer.detail
    assert "signal 11" in pool.call(f"{file}:crash").detail


@pytest.mark.parametrize("name", ["stubborn", "forever_regex"])
def test_a_call_that_hangs_is_killed_at_its_deadline_and_others_go_on(file, name):  # case D20
    with WorkerPool(2) as pool:
        begin = time.monotonic()
        calls = [Call(f"{file}:{name}", timeout=1.0)] + [Call(f"{file}:double", {"x": x}) for x in range(5)]
        hung, *others = pool.map(calls)
        assert hung.failure == "timeout"
        assert [a.value for a in others] == [0, 2, 4, 6, 8]
        assert time.monotonic() - begin < 8  # the deadline is 1 s; the rest is room for a busy machine
        assert pool.call(f"{file}:double", {"x": 1}).value == 2


@pytest.mark.parametrize("num", [40, pytest.param(1000, marks=pytest.mark.nightly)])
def test_many_answers_with_endless_ones_among_them_leave_counts_as_they_were(file, num):
    """Of every ten answers nine are judged, and the tenth is an endless loop that heeds no signal."""
    bare = counts()
    with WorkerPool(2) as pool:
        nap = [Call(f"{file}:sleep", {"seconds": 0.5}, timeout=60)] * 2  # two at once: both workers are up
        warm = Call("milepost.verifiers.math:score", {"answer": "1", "gold": "1"}, timeout=60)
        while len(pool.pids) < 2:  # on a busy machine the first may be through with both before the second has come up
            pool.map(nap)
        pool.map([warm] * 40)
        before, megabytes = counts(), resident_mb()
        calls = [Call(f"{file}:stubborn", timeout=0.3) if i % 10 == 0 else
                 Call("milepost.verifiers.math:score", {"answer": f"\\boxed{{{i}/7}}", "gold": f"{i}/7"}, timeout=60)
                 for i in range(num)]  # fmt: skip
        answers = pool.map(calls)
        assert [a.failure for a in answers] == ["timeout" if i % 10 == 0 else None for i in range(num)]
        assert all(a.value["score"] == 1.0 for a in answers if a.failure is None)
        while len(pool.pids) < 2:
            pool.map(nap)
        assert counts() == before
        assert resident_mb() < megabytes + 40  # new workers have imported what the old ones had
    assert counts() == bare


def test_others_do_not_wait_behind_a_hung_call(file):
    with WorkerPool(2) as pool:
        begin = time.monotonic()
        answers = pool.map([Call(f"{file}:sleep", {"seconds": 600}, timeout=4)] * 2 + [Call(f"{file}:double", {"x": 1})])
        assert [a.failure for a in answers] == ["timeout", "timeout", None]
        assert len(pool.pids) <= 2
        assert time.monotonic() - begin < 7.5  # in one process the two would have taken 8 s


def test_the_whole_process_group_is_killed(file, tmp_path):
    with WorkerPool(1) as pool:
        note = tmp_path / "pid"
        os.chmod(tmp_path, 0o777)
        assert pool.call(f"{file}:child_then_hang", {"path": str(note)}, timeout=1.0).failure == "timeout"
        assert gone_soon(int(note.read_text()))
        grandchild = pool.call(f"{file}:child").value
        assert alive(grandchild)
        worker = pool.pids[0]
    assert gone_soon(grandchild)
    assert gone_soon(worker)


def test_a_second_answer_is_never_taken_for_the_next_calls(pool, file):
    assert pool.call(f"{file}:forge").value == 0
    time.sleep(0.4)
    assert pool.call(f"{file}:double", {"x": 21}).value == 42  # not the forged 1
    pids = {pool.call(f"{file}:fork_twice").value, pool.pids[0]}
    assert len(pids) == 1  # the fork that came back too was stopped
    assert pool.call(f"{file}:double", {"x": 3}).value == 6


def test_prints_and_large_values_do_no_harm(pool, file):
    assert pool.call(f"{file}:chatty").value == 5
    text = "é\ud800" + "y" * 5_000_000
    assert pool.call("builtins:sorted", {}).failure == "error: TypeError"
    assert pool.call(f"{file}:double", {"x": text}).value == text * 2
    nan, inf = pool.call(f"{file}:nan").value
    assert nan != nan
    assert inf == float("inf")


def test_isolated_workers_see_an_empty_world(pool, file, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    seen = pool.call(f"{file}:environment").value
    assert "SECRET_KEY" not in seen
    assert seen["PYTHONHASHSEED"] == "0"
    assert len(seen) <= 10
    assert pool.call(f"{file}:read_input").value == ""
    assert pool.call(f"{file}:core_limit").value == 0
    with WorkerPool(1) as other:  # the same hash in every process
        assert other.call(f"{file}:hash_of", {"text": "abc"}).value == pool.call(f"{file}:hash_of", {"text": "abc"}).value


def test_the_network_is_really_cut_where_the_pool_says_so(pool, file):
    with socket.create_server(("127.0.0.1", 0)) as server, WorkerPool(1, isolated=False) as trusted:
        port = server.getsockname()[1]
        assert trusted.call(f"{file}:connect", {"port": port}).value is True
        reached = pool.call(f"{file}:connect", {"port": port}).value
    assert pool.isolation is not None
    assert reached is not pool.isolation.network
    assert pool.isolation.memory


def test_the_users_own_functions_keep_their_environment(file, monkeypatch):
    monkeypatch.setenv("JUDGE_URL", "http://judge")
    with WorkerPool(1, isolated=False) as pool:
        seen = pool.call(f"{file}:environment").value
    assert seen["JUDGE_URL"] == "http://judge"
    assert seen["PYTHONHASHSEED"] == "0"


def test_setup_runs_once_per_process_outside_the_calls_deadline(file):
    with WorkerPool(1, setup=Call(f"{file}:slow_setup", timeout=60)) as pool:
        assert pool.call(f"{file}:double", {"x": 1}, timeout=1.0).value == 2  # setup alone takes 1.5 s
        assert pool.start().value == "up"
    with WorkerPool(2, setup=Call(f"{file}:broken_setup")) as pool:
        answers = pool.map([Call(f"{file}:double", {"x": 1})] * 3)
        assert {a.failure for a in answers} == {"error: RuntimeError"}
        assert "no model here" in answers[0].detail
        assert pool.start().failure == "error: RuntimeError"


@pytest.mark.parametrize(
    ("name", "timeout", "failure"),
    [("burn", 60, None), ("burn_and_die", 60, "worker_died"), ("burn_and_hang", 3, "timeout"), ("burn_in_child", 60, None)],
)
def test_the_cpu_seconds_of_its_processes_are_counted_however_they_end(pool, file, name, timeout, failure):
    assert (pool.cpu_seconds, pool.num_calls) == (0, 0)
    pool.call(f"{file}:double", {"x": 1})
    began = pool.cpu_seconds
    assert began > 0  # starting costs too
    assert pool.call(f"{file}:{name}", {"seconds": 0.3}, timeout).failure == failure
    assert 0.3 <= pool.cpu_seconds - began < 1.5
    assert pool.num_calls == 2
    spent = pool.cpu_seconds
    pool.close()
    assert spent <= pool.cpu_seconds < spent + 0.5  # known after the end too
    assert spent_by([pool]) == {"scorer/calls": 2, "scorer/cpu_seconds": pool.cpu_seconds}


def test_arguments_that_cannot_travel_fail_alone(pool, file):
    answers = pool.map([Call(f"{file}:double", {"x": lambda: 0}), Call(f"{file}:double", {"x": 1})])
    assert answers[0].failure is not None
    assert answers[0].failure.startswith("error: ")
    assert answers[1].value == 2


def test_a_pool_works_from_any_thread(pool, file):  # case D18
    values = []
    threads = [
        threading.Thread(target=lambda x=x: values.append(pool.call(f"{file}:double", {"x": x}).value)) for x in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(values) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_worker_killed_while_idle_is_replaced(pool, file):
    pool.call(f"{file}:double", {"x": 1})
    victim = pool.pids[0]
    os.kill(victim, 9)
    time.sleep(0.1)
    assert pool.call(f"{file}:double", {"x": 5}).value == 10
    assert victim not in pool.pids


def test_a_closed_pool_refuses_and_a_size_of_zero_too(file):
    pool = WorkerPool(1)
    pool.call(f"{file}:double", {"x": 1})
    pid = pool.pids[0]
    pool.close()
    pool.close()
    assert gone_soon(pid)
    with pytest.raises(RuntimeError, match="closed"):
        pool.call(f"{file}:double", {"x": 1})
    with pytest.raises(ValueError, match="at least one"):
        WorkerPool(0)


@pytest.mark.parametrize("ending", ["normal", "kill -9"])
def test_nothing_is_left_behind_when_the_parent_ends(file, ending):
    script = f"""
        import os, signal, sys
        from milepost.workers import WorkerPool
        pool = WorkerPool(1)
        pool.call({file + ":double"!r}, {{"x": 1}})
        print(pool.pids[0], flush=True)
        if {ending!r} == "kill -9":
            os.kill(os.getpid(), signal.SIGKILL)
    """
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, env=env, timeout=60
    )
    assert gone_soon(int(done.stdout))
