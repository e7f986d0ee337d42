"""An instance that crashes, hangs or talks nonsense costs one episode; nothing is lost, nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from odd_envs import PATIENT, SPEC, task

from milepost.env import Action, Observation, fingerprint
from milepost.host_main import Garbage, checked_observation, decode, plain_copy
from milepost.hosts import Fault, Hosts, HostsDown, Seen
from milepost.types import RecipeError

ACT = Action("count on")
BOTH = pytest.mark.parametrize("isolated", [False, True], ids=["thread", "process"])


def hosts(isolated: bool, num: int = 2, spec=SPEC, **settings) -> Hosts:
    name = f"odd_envs:{'SPEC' if spec is SPEC else 'PATIENT'}"
    settings = {"step_seconds": 20.0, "reset_seconds": 20.0, **settings}
    return Hosts(name if isolated else spec, num, isolated=isolated, **settings)


async def episode(pool: Hosts, job, seed: int = 0) -> list[Seen | Fault]:
    """Everything one episode saw: the start, then a step for each entry of the plan until a fault."""
    host = await pool.open(job, seed)
    if isinstance(host, Fault):
        return [host]
    seen: list[Seen | Fault] = [host.start]
    async with host:
        for _ in job.columns["plan"]:
            seen.append(await host.step(ACT))
            if isinstance(seen[-1], Fault):
                break
    return seen


def play(pool: Hosts, *jobs) -> list[list[Seen | Fault]]:
    async def all_of_them():
        return await asyncio.gather(*(episode(pool, job, seed) for seed, job in enumerate(jobs)))

    return asyncio.run(all_of_them())


def descendants() -> set[int]:
    """Living processes below this one."""
    parents = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(parent)
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in found | {os.getpid()}} - found:
        found |= more
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True, scope="module")
def temporary_folder():
    """One of its own: other runs on this machine make folders of the same names. Its path is short, for sockets."""
    usual, folder = tempfile.tempdir, tempfile.mkdtemp()
    tempfile.tempdir = folder
    yield
    tempfile.tempdir = usual
    shutil.rmtree(folder, ignore_errors=True)


def counts() -> dict[str, int]:
    gc.collect()
    folders = len(list(Path(tempfile.gettempdir()).glob("milepost-hosts-*")))
    return {"processes": len(descendants()), "threads": threading.active_count(), "fds": len(os.listdir("/proc/self/fd")),
            "folders": folders}  # fmt: skip


def settle(before: dict[str, int]) -> dict[str, int]:
    """The counts now; those above `before` get 20 s to come down (abandoned threads end when their sleep does)."""
    deadline = time.monotonic() + 20
    while (now := counts()) != before and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


# --- one episode ----------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("spec", [SPEC, PATIENT], ids=["sync", "async"])
def test_an_episode(isolated, spec):
    before = counts()
    with hosts(isolated, spec=spec) as pool:
        (seen,) = play(pool, task("fine", "fine"))
        assert [s.state["count"] for s in seen] == [0, 1, 2]
        assert [s.observation.messages[0]["content"] for s in seen] == ["0", "1", "2"]
        assert [s.observation.ended for s in seen] == [False, False, True]
        assert all(s.seconds > 0 for s in seen)
        assert (seen[0].state["pid"] != os.getpid()) is isolated
        assert pool.counts == {}
    assert settle(before) == before


# case E6: a slot serves many episodes, each with an instance that starts at 0
@BOTH
def test_every_episode_gets_a_fresh_instance_in_a_used_slot(isolated):
    with hosts(isolated, num=1) as pool:
        first, second = play(pool, task("fine", "fine"), task("fine"))
        assert [s.state["count"] for s in second] == [0, 1]
        assert first[0].state["pid"] == second[0].state["pid"]
        (third,) = play(pool, task("fine"))  # another event loop, the same slots
        assert third[0].state["pid"] == first[0].state["pid"]
        assert third[0].state["seed"] == 0 and second[0].state["seed"] == 1


@BOTH
def test_no_more_than_num_at_once_and_first_come_first_served(isolated):
    async def main(pool):
        first = [await pool.open(task("fine"), i) for i in range(2)]
        order: list[int] = []

        async def one(i):
            async with await pool.open(task("fine", key=str(i)), i):
                order.append(i)

        waiting = [asyncio.create_task(one(i)) for i in range(6)]
        await asyncio.sleep(0.2)
        assert order == []
        await first[0].close()
        await asyncio.gather(*waiting)
        await first[1].close()
        return order

    with hosts(isolated, num=2) as pool:
        assert asyncio.run(main(pool)) == list(range(6))


def test_sync_environments_do_not_wait_for_each_other():
    """Twenty episodes of one 1.2 s step each: one after the other they would take 24 s."""
    with hosts(False, num=20) as pool:
        began = time.monotonic()
        play(pool, *[task("doze")] * 20)
        assert time.monotonic() - began < 12


def test_an_async_environment_lives_on_between_its_steps():
    async def main(pool):
        async with await pool.open(task("fine", "fine"), 0) as host:
            before = (await host.step(ACT)).state["ticks"]
            await asyncio.sleep(0.5)
            return (await host.step(ACT)).state["ticks"] - before

    for isolated in (False, True):
        with hosts(isolated, spec=PATIENT) as pool:
            assert asyncio.run(main(pool)) >= 5, isolated


@BOTH
def test_snapshots_pass_through(isolated):
    async def main(pool):
        host = await pool.open(task("fine", "fine", "fine"), 7)
        assert host.can_snapshot
        await host.step(ACT)
        saved = await host.snapshot()
        await host.step(ACT)
        back = await host.restore(saved)
        other = await pool.open(task("fine"), 0, saved)  # a fresh instance, never reset
        onward = await other.step(ACT)
        await host.close()
        await other.close()
        return back.state["count"], back.observation, other.start.state["seed"], onward.state["count"]

    with hosts(isolated) as pool:
        assert asyncio.run(main(pool)) == (1, Observation(), 7, 2)


# --- faults ---------------------------------------------------------------------------------------------------------

FAULTS = [
    ("raise", "crash", "step: RuntimeError: the tool broke", True),
    ("stop", "crash", "step: SystemExit: 0", True),
    ("set", "garbage", "state()['odd'] is {1, 2} (set), which is not plain JSON", False),
    ("nan", "garbage", "state()['odd'] is nan, which JSON cannot hold", False),
    ("tuple", "garbage", "state()['odd'] is (1,) (tuple), which is not plain JSON", False),
    ("number as key", "garbage", "state()['odd'] has the key 1; keys must be text", False),
    ("huge", "garbage", "state() takes 5.0 million characters of JSON, 4 are allowed", False),
    ("surrogate", "garbage", "not valid Unicode", False),
    ("not an observation", "garbage", "returned dict, not an Observation", False),
    ("bad message", "garbage", "Observation.messages[0] is no message", False),
    ("bad flag", "garbage", "Observation.num_invalid = -1", False),
]  # fmt: skip


@BOTH
def test_faults_are_typed_and_cost_one_episode(isolated):
    with hosts(isolated, num=3) as pool:
        bad = [task("fine", kind, "fine") for kind, *_ in FAULTS]
        played = play(pool, *bad, task("fine", "fine"))
        for (plan, kind, sentence, retryable), seen in zip(FAULTS, played):
            assert [type(s) for s in seen] == [Seen, Seen, Fault], plan
            assert seen[-1].kind == kind and seen[-1].retryable is retryable, plan
            assert sentence in seen[-1].detail.splitlines()[0], plan
        assert "in behave" in played[0][-1].detail  # the traceback, for people
        assert [s.state["count"] for s in played[-1]] == [0, 1, 2]
        assert pool.counts == {"crash": 2, "garbage": 9}


@BOTH
def test_a_hang_is_ended_and_the_slot_replaced(isolated, tmp_path):
    before = counts()
    child = tmp_path / "child"
    kinds = ["spin", "sleep", "sleep with child"] if isolated else ["spin", "doze"]
    with hosts(isolated, num=2, step_seconds=0.5) as pool:
        played = play(pool, *[task(kind, path=str(child)) for kind in kinds], task("fine", "fine"))
        assert [(seen[-1].kind, seen[-1].retryable) for seen in played[:-1]] == [("hang", True)] * len(kinds)
        assert "no answer within 0.5 s" in played[0][-1].detail
        assert played[-1][-1].state["count"] == 2
    if isolated:
        assert not alive(int(child.read_text()))  # what it started went with it
    assert settle(before) == before


@pytest.mark.parametrize("kind", ["daemon and sleep", "daemon and exit", "daemon"])
def test_what_left_for_a_session_of_its_own_is_ended_too(kind, tmp_path):
    """At a hang, at the end of the process itself, and when the hosts close."""
    left = tmp_path / "daemon"
    with hosts(True, num=1, step_seconds=1.0) as pool:
        ((*_, last),) = play(pool, task(kind, path=str(left)))
        pid = int(left.read_text())
        if kind == "daemon":
            assert alive(pid) and last.state["count"] == 1
        else:
            assert last.kind == ("hang" if kind == "daemon and sleep" else "crash") and not alive(pid)
    assert not alive(pid)


def test_a_hanging_async_method_is_cancelled():
    before = counts()
    with hosts(False, num=1, spec=PATIENT, step_seconds=0.3) as pool:
        hung, fine = play(pool, task("wait"), task("fine"))
        assert hung[-1].kind == "hang" and fine[-1].state["count"] == 1
        deadline = time.monotonic() + 20  # its thread ends while the hosts go on
        while threading.active_count() > before["threads"] + 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert threading.active_count() == before["threads"] + 1
    assert settle(before) == before


# case E5: an instance whose process died is not given out again, and what was played up to then stays
def test_a_process_that_dies_is_replaced():
    async def main(pool):
        host = await pool.open(task("fine", "fine"), 0)
        seen = [host.start, await host.step(ACT)]
        os.kill(seen[0].state["pid"], signal.SIGKILL)
        seen += [await host.step(ACT), await host.step(ACT)]
        await host.close()
        return seen, await episode(pool, task("exit")), await episode(pool, task("fine"))

    with hosts(True, num=1) as pool:
        seen, left, after = asyncio.run(main(pool))
        assert [s.state["count"] for s in seen[:2]] == [0, 1]
        assert seen[2].kind == "crash" and "signal 9" in seen[2].detail
        assert seen[3].kind == "dead" and "signal 9" in seen[3].detail and seen[3].retryable
        assert left[-1].kind == "crash" and "exit status 3" in left[-1].detail
        assert len({seen[0].state["pid"], left[0].state["pid"], after[0].state["pid"]}) == 3
        assert after[-1].state["count"] == 1


def test_the_program_that_forks_may_die_too():
    with hosts(True, num=1) as pool:
        ((start, _),) = play(pool, task("fine"))
        os.kill(pool._server._process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while alive(start.state["pid"]) and time.monotonic() < deadline:  # its processes go with it
            time.sleep(0.02)
        assert not alive(start.state["pid"])
        first, second = play(pool, task("fine"), task("fine"))
        assert second[-1].state["count"] == 1 and isinstance(first[-1], Seen)


@BOTH
def test_temporary_files_of_a_killed_process_go_with_it(isolated):
    before = {*Path(tempfile.gettempdir()).glob("odd-*")}
    with hosts(isolated) as pool:
        play(pool, task("temporary", "raise"))
    left = {*Path(tempfile.gettempdir()).glob("odd-*")} - before
    assert len(left) == (0 if isolated else 1)  # in-process nobody can know whose they are
    for path in left:
        path.unlink()


@BOTH
def test_a_close_that_fails_costs_nothing_else(isolated):
    with hosts(isolated, num=1) as pool:
        first, second = play(pool, task("fine", "close fails"), task("fine"))
        assert first[-1].state["count"] == 2 and second[-1].state["count"] == 1
        assert pool.counts == {"close": 1}


# --- starts ---------------------------------------------------------------------------------------------------------


# case E2: retried at most k times, each try with a fresh instance
@BOTH
def test_starts_are_retried(isolated, tmp_path):
    async def main(pool):
        async with await pool.open(task("fine", start="flaky", path=str(tmp_path / "tries")), 0) as host:
            return host.num_attempts

    with hosts(isolated) as pool:
        assert asyncio.run(main(pool)) == 3
        assert pool.counts == {"retries": 2}
    with hosts(isolated, num_retries=1) as pool:
        ((fault,),) = play(pool, task(start="raise"))
        assert (fault.kind, fault.num_attempts, fault.retryable) == ("reset", 2, False)
        assert "RuntimeError: the tool broke" in fault.detail.splitlines()[0]
        ((fault,),) = play(pool, task(start="set"))
        assert (fault.kind, fault.num_attempts) == ("garbage", 1)  # a bug stays one: not tried again
        assert pool.counts == {"retries": 1, "reset": 1, "garbage": 1}


# case E2: server down -> one clear message, not endless rescheduling
@BOTH
def test_when_nothing_starts_there_is_one_message(isolated):
    async def main(pool):
        faults = [await pool.open(task(start="raise", key=str(i % 2)), i) for i in range(4)]
        with pytest.raises(HostsDown) as raised:
            await pool.open(task("fine"), 0)
        return faults, str(raised.value)

    with hosts(isolated, num=2, num_retries=0) as pool:
        faults, message = asyncio.run(main(pool))
        assert [fault.kind for fault in faults] == ["reset"] * 4
        assert "'odd" in message and "4 starts in a row failed" in message and "RuntimeError: the tool broke" in message
        assert "\n" not in message


def test_those_who_wait_hear_it_too():
    async def main(pool):
        return await asyncio.gather(
            *(pool.open(task(start="raise", key=str(i)), i) for i in range(30)), return_exceptions=True
        )

    with hosts(False, num=5, num_retries=0) as pool:
        kinds = Counter(type(outcome) for outcome in asyncio.run(main(pool)))
        assert kinds[Fault] >= 5 and kinds[HostsDown] == 30 - kinds[Fault] and kinds[HostsDown] >= 20


def test_one_task_that_cannot_start_does_not_end_the_run():
    with hosts(False, num=2, num_retries=0) as pool:
        play(pool, task("fine"))
        faults = play(pool, *[task(start="raise", key="always the same")] * 12)
        assert [fault.kind for (fault,) in faults] == ["reset"] * 12
        assert pool.down is None
        assert isinstance(play(pool, task("fine"))[0][-1], Seen)


def test_imports_that_leave_threads_behind_are_not_forked(tmp_path):
    """A lock that such a thread holds at the fork would stay locked; those processes import anew."""
    threaded = tmp_path / "threaded.py"
    threaded.write_text(
        "import os, threading, time\nfrom odd_envs import SPEC, Counter\nfrom dataclasses import replace\n"
        "imported_in = os.getpid()\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "class Threaded(Counter):\n"
        "    def state(self): return {**super().state(), 'imported_in': imported_in}\n"
        "SPEC = replace(SPEC, make=Threaded)\n"
    )
    before = counts()
    with Hosts(f"{threaded}:SPEC", 2, isolated=True, step_seconds=30, reset_seconds=30) as pool:
        for seen in play(pool, task("fine"), task("fine", "fine")):
            assert seen[-1].observation.ended and seen[-1].state["imported_in"] == seen[-1].state["pid"]
    assert settle(before) == before


# case E12: an unknown name is refused at the start
def test_what_cannot_be_found_is_refused_at_once(capfd, tmp_path):
    for isolated in (False, True):
        with pytest.raises(RecipeError, match="no_such"):
            Hosts("no_such", 2, isolated=isolated)
    with pytest.raises(RecipeError, match="by name"):
        Hosts(SPEC, 2, isolated=True)
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('half written')")
    with pytest.raises((HostsDown, RecipeError), match="half written"):
        Hosts(f"{broken}:SPEC", 2, isolated=True)


# --- stopping -------------------------------------------------------------------------------------------------------


# case E1: KeyboardInterrupt still stops everything
@BOTH
def test_keyboard_interrupt_is_no_fault(isolated):
    before = counts()
    with pytest.raises(KeyboardInterrupt), hosts(isolated) as pool:
        play(pool, task("interrupt"), task("fine"))
    assert settle(before) == before


@BOTH
def test_a_cancelled_episode_gives_its_slot_back(isolated):
    async def main(pool):
        running = asyncio.create_task(episode(pool, task("doze", "doze")))
        waiting = asyncio.create_task(episode(pool, task("fine")))
        await asyncio.sleep(0.5)
        waiting.cancel()
        running.cancel()
        await asyncio.wait({running, waiting})
        assert running.cancelled() and waiting.cancelled()
        return await episode(pool, task("fine"))

    before = counts()
    with hosts(isolated, num=1) as pool:
        assert asyncio.run(main(pool))[-1].state["count"] == 1
    assert settle(before) == before


@BOTH
def test_closing_ends_what_runs(isolated):
    async def main(pool):
        host = await pool.open(task("sleep" if isolated else "spin"), 0)
        step = asyncio.create_task(host.step(ACT))
        await asyncio.sleep(0.3)
        pool.close()
        fault = await step
        await host.close()
        with pytest.raises(RuntimeError, match="closed"):
            await pool.open(task("fine"), 0)
        return fault

    before = counts()
    fault = asyncio.run(main(hosts(isolated)))
    assert isinstance(fault, Fault) and fault.kind == "crash"
    assert settle(before) == before


# --- what an answer must look like ----------------------------------------------------------------------------------


def test_a_copy_shares_nothing_with_the_state():
    rows = [{"id": 1}]
    copy = plain_copy({"rows": rows, "none": None, "yes": True, "half": 0.5})
    rows[0]["id"] = 2
    assert copy == {"rows": [{"id": 1}], "none": None, "yes": True, "half": 0.5}
    assert fingerprint(copy) != fingerprint({**copy, "rows": rows})


def test_observations_are_checked():
    good = {"role": "tool", "name": "ring", "content": "ding"}
    assert checked_observation(Observation([good])).messages == (good,)
    for bad in (
        Observation("text"),
        Observation(({"role": "robot", "content": ""},)),
        Observation(ended=1),
        Observation(({"role": "user", "content": "\udc80"},)),
        Observation(history=({},)),
        Observation(num_invalid=True),
    ):
        with pytest.raises(Garbage):
            checked_observation(bad)


def test_foreign_bytes_are_no_reply():
    for data in (b"", b"[]", b"{}", b'{"observation": {"messages": 3}, "saved": null}', b"\xff" * 9):
        with pytest.raises(Garbage):
            decode(data)


# --- many -----------------------------------------------------------------------------------------------------------

INJECTED = {"raise": "crash", "exit": "crash", "spin": "hang", "set": "garbage", "bad message": "garbage", "slow": None}


def many(num: int, isolated: bool) -> None:
    """`num` episodes of 1 to 5 steps, a tenth of them with an injected fault or a slow tool: none is lost, each ends as it
    must, and nothing is left. The deadline is short, but not so short that a busy machine misses it."""
    rng = random.Random(num)
    kinds = [kind for kind in INJECTED if isolated or kind != "exit"]  # in-process it would end this very process
    jobs = []
    for i in range(num):
        plan = ["fine"] * rng.randint(1, 5)
        if i % 10 == 0:
            plan[rng.randrange(len(plan))] = kinds[i // 10 % len(kinds)]
        jobs.append(task(*plan, key=str(i)))
    before = counts()
    with hosts(isolated, num=16, step_seconds=1.0) as pool:
        played = play(pool, *jobs)
        assert len(played) == num
        for job, seen in zip(jobs, played):
            plan = job.columns["plan"]
            odd = next((kind for kind in plan if INJECTED.get(kind)), None)
            if odd is None:
                assert [s.state["count"] for s in seen] == list(range(len(plan) + 1))
                assert seen[-1].observation.ended
            else:
                assert len(seen) == plan.index(odd) + 2 and seen[-1].kind == INJECTED[odd]
        expected = Counter(INJECTED[k] for job in jobs for k in job.columns["plan"] if INJECTED.get(k))
        assert pool.counts == expected and sum(expected.values()) >= num // 10 * 4 // 6
    assert settle(before) == before


@BOTH
def test_a_hundred_episodes(isolated):
    many(100, isolated)


@pytest.mark.nightly
@BOTH
def test_a_thousand_episodes(isolated):
    many(1000, isolated)
