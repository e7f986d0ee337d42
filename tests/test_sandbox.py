"""The sandbox: what a program sees, may use and leaves; which walls are chosen; what becomes of cells that die."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gauges import counts, resident_mb
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.bench_sandbox import SandboxBench
from milepost.cli import main
from milepost.kept import descendants
from milepost.sandbox.pool import LEVELS, Sandbox
from milepost.sandbox.probe import probe
from milepost.sandbox.runs import Limits, Ran, _records, calls, checks, program
from milepost.sandbox.runtime import runtime
from milepost.types import RecipeError

LIMITS = Limits(seconds=5.0, cpu_seconds=2, memory_mb=96, processes=16, tmp_mb=8, file_mb=2)
ROOT = Path(__file__).resolve().parent.parent
linux = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(1, limits=LIMITS) as sandbox:
        yield sandbox


def run(box: Sandbox, code: str, stdin: str = "", **limits) -> Ran:
    [ran] = box.run([program(textwrap.dedent(code), stdin, Limits(**{**vars(LIMITS), **limits}))])
    return ran


# --- what comes back ------------------------------------------------------------------------------------------------


def test_a_program_reads_and_writes(box: Sandbox) -> None:
    ran = run(
        box, "import sys\nprint(input()[::-1])\nprint('aside', file=sys.stderr)\nprint(sys.stdin.read() == '')", "añb\n"
    )
    assert (ran.ended, ran.exit_code, ran.out, ran.err) == ("exit", 0, "bña\nTrue\n", "aside\n")
    assert 0 < ran.cpu_seconds < 2 and ran.peak_mb > 1


@pytest.mark.parametrize(
    "code",
    [
        "print(open('/dev/stdin').read())",
        "import sys\nsys.stdin = open('/dev/stdin', encoding='utf-8')\nprint(input())\nprint(input())",
        "import os\nprint(os.read(os.open('/dev/stdin', os.O_RDONLY), 99).decode())",
        "import pathlib\npathlib.Path('/dev/stdout').write_text(pathlib.Path('/dev/stdin').read_text())",
        "import io\nsource, sink = io.open('/dev/fd/0', 'rb'), open(b'/proc/self/fd/1', 'wb')\nsink.write(source.read())",
        "import fileinput, sys\nfor line in fileinput.input('/dev/stdin'): sys.stdout.write(line)",
    ],
)
@pytest.mark.parametrize("levels", [LEVELS[:2], ("landlock",)], ids=" or ".join)
def test_the_three_streams_can_be_opened_by_name(code: str, levels: tuple[str, ...]) -> None:
    """as many solutions of contests do; /proc is not needed for it."""
    try:
        with Sandbox(1, limits=LIMITS, levels=levels) as box:
            ran = run(box, code, "añb\nc\n")
            assert (ran.ended, ran.exit_code, ran.out.strip()) == ("exit", 0, "añb\nc"), ran.err
            failed = run(box, "open('/dev/stderr', 'w').write('aside\\n')\nopen('/dev/fd/77')")
    except RecipeError as error:
        pytest.skip(str(error))
    assert failed.err.startswith("aside\n") and failed.err.endswith("OSError: [Errno 9] Bad file descriptor\n")
    assert "child.py" not in failed.err


def test_the_order_of_results_is_that_of_the_runs() -> None:
    with Sandbox(2, limits=LIMITS) as box:
        ran = box.run([program(f"print({number})", limits=LIMITS) for number in range(12)])
        assert [int(one.out) for one in ran] == list(range(12))
        assert len(box.pids) == 2
        assert box.run([]) == []


@pytest.mark.parametrize(
    ("code", "ended", "exit_code", "name", "said"),
    [
        ("raise ValueError('seven')", "exit", 1, None, 'File "solution.py", line 1'),
        ("import sys; sys.exit(3)", "exit", 3, None, ""),
        ("raise SystemExit('no')", "exit", 1, None, "no"),
        ("import os; os.abort()", "signal", None, "SIGABRT", ""),
        ("import os; os._exit(0)", "exit", 0, None, ""),
        ("1 +", "exit", 1, None, "SyntaxError"),
        ("x = '\\0'; exec(compile(x, '', 'exec'))", "exit", 1, None, "null bytes"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "signal", None, "SIGTERM", ""),
    ],
)
def test_endings(box: Sandbox, code: str, ended: str, exit_code: int | None, name: str | None, said: str) -> None:
    ran = run(box, code)
    assert (ran.ended, ran.exit_code, ran.signal) == (ended, exit_code, name)
    assert said in ran.err and "sandbox" not in ran.err and ran.why


def test_a_script_ends_as_the_interpreter_would(box: Sandbox) -> None:
    code = """
        import atexit, sys, threading, time
        atexit.register(print, "at exit")
        def late():
            time.sleep(0.05)
            print("thread")
        threading.Thread(target=late).start()
        sys.stdout.write("main" + __name__ + sys.argv[0] + "\\n")
    """
    assert run(box, code).out == "main__main__solution.py\nthread\nat exit\n"


def test_calls_give_one_record_each(box: Sandbox) -> None:
    code = "def f(a, *, b=1):\n    a.append(b)\n    if b == 3: raise KeyError('x')\n    return {'a': tuple(a)}"
    [ran] = box.run([calls(code, "f", [(([1],), {}), (([],), {"b": 2}), (([],), {"b": 3})], LIMITS, first=5)])
    loaded, one, two, three = ran.records
    assert loaded == [4, "loaded", None, None]
    assert one == [5, "value", ["dict", "a", ["tuple", 1, 1]], ["list", ["list", 1, 1]]]
    assert two == [6, "value", ["dict", "a", ["tuple", 2]], ["list", ["list", 2]]]
    assert three[:2] == [7, "error"] and three[2][:2] == ["KeyError", "LookupError"] and "line 3" in three[3]


def test_methods_are_called_on_a_new_instance(box: Sandbox) -> None:
    code = "class S:\n    seen = 0\n    def f(self, x):\n        self.seen += x\n        return self.seen"
    [ran] = box.run([calls(code, "S.f", [((2,), {}), ((3,), {})], LIMITS)])
    assert [record[2] for record in ran.records[1:]] == [2, 3]


@pytest.mark.parametrize("code", ["def g(): pass", "f = 1", "class f: pass", "f"])
def test_a_function_that_is_not_there(box: Sandbox, code: str) -> None:
    [ran] = box.run([calls(code, "f", [((1,), {})], LIMITS)])
    assert all(record[1] != "value" or record[2][0] == "object" for record in ran.records[1:])
    assert ran.ended == "exit"


def test_trusted_tests_call_the_function_in_another_process(box: Sandbox) -> None:
    code = textwrap.dedent("""
        import os
        print("mine", flush=True)
        def f(x):
            if x is None:
                raise ValueError("none")
            return [os.getpid(), x]
    """)
    tests = [
        "assert f((1, {2}))[1] == (1, {2})",
        "try:\n    f(None)\nexcept ValueError as e:\n    assert 'none' in str(e)",
        "assert f(1) == 1",
        "def check(candidate):\n    assert candidate('a')[1] == 'a'",
        "assert helper() == 3",
    ]
    [ran] = box.run([checks(code, "f", tests, "def helper(): return f(3)[1]", LIMITS)])
    assert [record[1] for record in ran.records] == ["pass", "pass", "fail", "pass", "pass"]
    assert [record[3] for record in ran.records] == [1, 1, 1, 1, 1]
    assert ran.out == "" and ran.other is not None and ran.other.out == "mine\n"


def test_arguments_change_only_where_that_is_asked_for(box: Sandbox) -> None:
    code = "def f(xs):\n    xs.clear()\n    return []"
    test = "xs = [3, 1]\nassert f(xs) == sorted(xs)"  # an expectation computed from what the function may empty
    for in_place, verdict in ((False, "fail"), (True, "pass")):
        [ran] = box.run([checks(code, "f", [test], "", LIMITS, in_place=in_place)])
        assert ran.records[0][1] == verdict


PIECES = [b"[0,", b'"value"', b",1,1]", b"\n", b"{", b"[[", b"NaN", b'[1,"value",null,null]\n']


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)))
def test_whatever_is_written_as_records_is_read_or_left(data: bytes) -> None:
    found = _records(data)
    assert all(len(record) == 4 and type(record[0]) is int for record in found)
    assert [record[0] for record in found] == list(range(found[0][0], found[0][0] + len(found))) if found else True


# --- what a program may use -----------------------------------------------------------------------------------------


def test_time_is_limited_by_clock_and_processor(box: Sandbox) -> None:  # case D44
    began = time.monotonic()
    assert run(box, "import time; time.sleep(60)", seconds=0.3).ended == "time"
    assert run(box, "while True: pass", cpu_seconds=1).ended == "time"
    assert time.monotonic() - began < 12
    [ran] = box.run([calls("import time\ndef f(x): time.sleep(x)", "f", [((0.0,), {}), ((60,), {})],
                           Limits(**{**vars(LIMITS), "idle_seconds": 0.3}))])  # fmt: skip
    assert ran.ended == "time" and len(ran.records) == 2


def test_memory_is_limited(box: Sandbox) -> None:  # case D44
    assert "MemoryError" in run(box, "x = [bytearray(1 << 20) for _ in range(10_000)]").err
    assert run(box, "x = bytearray(40 << 20); print(len(x))").out == f"{40 << 20}\n"


def test_output_is_limited(box: Sandbox) -> None:
    ran = run(box, "while True: print('x' * 1000)", out_bytes=50_000)
    assert ran.ended == "output" and len(ran.out) == 50_000
    ran = run(box, "import sys; sys.stderr.write('x' * 500_000); print('done')")
    assert ran.ended == "exit" and len(ran.err) == 1 << 16 and ran.out == "done\n"


@linux
def test_files_are_limited_and_vanish(box: Sandbox) -> None:  # case D44
    fill = """
        sizes = []
        for name in "abcdefghij":
            try:
                with open(name, "wb") as file:
                    sizes.append(file.write(bytes(1 << 20)))
            except OSError as error:
                print(len(sizes), error.errno)
                break
    """
    if box.isolation.level == "namespaces":
        count, number = run(box, fill).out.split()
        assert int(count) < 9 and number == "28"  # ENOSPC
    assert "Errno 27" in run(box, "open('big', 'wb').write(bytes(3 << 20))").err or box.isolation.level != "namespaces"
    assert run(box, "import os; print(os.listdir('/tmp'))").out in ("[]\n", "")


@linux
def test_processes_are_limited_and_none_is_left(box: Sandbox) -> None:  # case D44
    before = len(descendants(box.pids[0]))
    forks = """
        import os, time
        count = 0
        try:
            while count < 40:
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(60)
                    os._exit(0)
                count += 1
        except OSError:
            pass
        print(count)
    """
    assert int(run(box, forks).out) <= LIMITS.processes
    assert len(descendants(box.pids[0])) == before
    threads = """
        import threading, time
        for _ in range(200):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    """
    assert "can't start new thread" in run(box, threads).err


@linux
def test_packages_that_are_installed_below_tmp_are_there_to_the_last_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        Path(home).chmod(0o755)
        package = Path(home, "inventory")
        package.mkdir()
        code = "import pathlib\n\ndef read():\n    return pathlib.Path(__file__).with_name('data').read_text()\n"
        Path(package, "__init__.py").write_text(code)
        Path(package, "late.py").write_text("word = 'late'\n")
        Path(package, "data").write_text("seven")
        monkeypatch.syspath_prepend(home)
        with Sandbox(1, limits=LIMITS, packages=("inventory",)) as box:
            ran = run(box, "import inventory\nprint(inventory.read())\nfrom inventory import late\nprint(late.word)")
            assert ran.out == "seven\nlate\n", ran.err
            spoil = f"import os\nopen('/tmp/mine', 'w').write('x')\nopen({str(package / 'data')!r}, 'w').write('nine')"
            assert "Error" in run(box, spoil).err and Path(package, "data").read_text() == "seven"
            assert run(box, "import os; print(os.path.exists('/tmp/mine'))").out == "False\n"


ENVIRONMENT = {"PATH", "HOME", "LANG", "LC_ALL", "USER", "TMPDIR", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
               "PYTHONHASHSEED", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE", "MALLOC_ARENA_MAX",
               "LD_LIBRARY_PATH"}  # fmt: skip


@linux
def test_a_program_sees_a_runtime_and_nothing_else(box: Sandbox, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "secret").write_text("42")
    code = f"""
        import colorsys, json, os, socket, sys
        seen = {{}}
        project = {str(ROOT)!r} + "/pyproject.toml"
        for path in ({str(tmp_path)!r} + "/secret", project, "/etc/shadow", "/proc/self/status", "/sys/kernel"):
            try:
                seen[path] = os.path.isdir(path) and os.listdir(path) or open(path).read()
            except OSError:
                pass
        try:
            socket.socket()
            seen["socket"] = True
        except OSError:
            pass
        hidden = [path for path in sys.path if "-packages" in path]
        seen["third party"] = [path for path in hidden if os.path.isdir(path) and os.listdir(path)]
        print(json.dumps([seen, os.getuid(), dict(os.environ)]))
    """
    seen, uid, environment = json.loads(run(box, code).out)
    assert seen == {"third party": []}
    assert uid != 0 or box.isolation.facts["uid"] is None
    assert set(environment) <= ENVIRONMENT


def test_useful_things_work(box: Sandbox) -> None:
    ran = run(box, """
        import asyncio, concurrent.futures, decimal, sqlite3, ssl, tempfile, zoneinfo, random
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            print(sum(pool.map(abs, range(-3, 3))))
        async def three():
            await asyncio.sleep(0.001)
            return 3
        print(asyncio.run(three()))
        print(sqlite3.connect(":memory:").execute("select 1 + 1").fetchone())
        import sys
        sys.setrecursionlimit(20_000)
        def deep(n): return n and 1 + deep(n - 1)
        print(deep(15_000))
    """)  # fmt: skip
    assert ran.out == "9\n3\n(2,)\n15000\n", ran.err


def test_two_runs_do_not_share_hashes_or_random_numbers_by_chance(box: Sandbox) -> None:
    hashes = {run(box, "print(hash('abc'), {'b', 'a', 'c'})").out for _ in range(2)}
    assert len(hashes) == 1  # the same code gives the same set order in every run
    with Sandbox(1, limits=LIMITS, hash_seed=1) as other:
        assert {run(other, "print(hash('abc'), {'b', 'a', 'c'})").out} != hashes
    assert run(box, "import random; print(random.random())").out != run(box, "import random; print(random.random())").out


def test_packages_are_there_where_they_are_named() -> None:
    with Sandbox(1, limits=Limits(memory_mb=512), packages=("numpy",)) as box:
        assert box.run([program("import numpy; print(numpy.arange(3).sum())")])[0].out == "3\n"
        assert "ModuleNotFoundError" in box.run([program("import pytest")])[0].err
    with Sandbox(1, limits=LIMITS, packages=("sympy",)) as box:  # and what it needs
        assert box.run([program("import mpmath, sympy; print(sympy.Integer(2) + 1)")])[0].out == "3\n"
    with Sandbox(1, limits=LIMITS) as box:
        assert "ModuleNotFoundError" in run(box, "import numpy").err
    with pytest.raises(RecipeError, match="package 'no_such_thing' is not installed here"):
        Sandbox(packages=("no_such_thing",))


def test_nothing_that_is_shown_holds_third_party_packages() -> None:
    shown = runtime()
    assert shown["folders"] and shown["readable"]
    assert not [path for path in shown["readable"] if "-packages" in path]
    for folder in shown["folders"]:
        for hidden in (*Path(folder).glob("*-packages"), *Path(folder).glob("python3*/*-packages")):
            assert str(hidden) in shown["covers"] or not hidden.is_dir()


# --- which walls ----------------------------------------------------------------------------------------------------


def test_the_isolation_is_told_in_words(box: Sandbox) -> None:
    assert str(box.isolation).startswith(f"{box.isolation.level}: ")
    assert box.isolation.level in ("namespaces", "landlock")
    assert "no sockets" in str(box.isolation)


@linux
def test_landlock_alone_keeps_files_network_and_processes_away(tmp_path: Path) -> None:
    try:
        box = Sandbox(1, limits=LIMITS, levels=("landlock",))
    except RecipeError as error:
        pytest.skip(str(error))
    secret = tmp_path / "secret"
    tmp_path.chmod(0o777)
    secret.write_text("42")
    secret.chmod(0o666)
    attempts = {
        "read": "open(secret).read()", "write": "open(folder + '/new', 'w')", "mode": "os.chmod(secret, 0)",
        "remove": "os.remove(secret)", "cut": "os.truncate(secret, 0)", "times": "os.utime(secret, (0, 0))",
        "list": "os.listdir(folder)", "fork": "os.fork() or os._exit(0)", "run": "os.execv('/bin/true', ['true'])",
        "socket": "socket.socket()", "kill": "os.kill(judge, 0)", "limit": "resource.prlimit(judge, 7, (3, 3))",
        "nice": "os.setpriority(os.PRIO_PROCESS, judge, 19)",
    }  # fmt: skip
    known = f"folder, secret, judge = {str(tmp_path)!r}, {str(secret)!r}, {os.getpid()}"
    lines = "\n".join(f"try:\n    {code}\n    print({name!r})\nexcept OSError: pass" for name, code in attempts.items())
    with box:
        ran = run(box, f"import os, resource, socket\n{known}\n{lines}")
        assert (ran.ended, ran.exit_code, ran.out) == ("exit", 0, ""), ran.err
        assert "2" in run(box, "import colorsys, threading\nthreading.Thread(target=print, args=(2,)).start()").out
    assert secret.read_text() == "42" and [path.name for path in tmp_path.iterdir()] == ["secret"]


@linux
def test_limits_without_isolation_must_be_asked_for_and_warn(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RecipeError, match="no isolation for untrusted code works on this machine"):
        Sandbox(levels=())
    try:
        box = Sandbox(1, limits=LIMITS, levels=(), allow_plain=True)
    except RecipeError as error:  # a root whose Python lies in its own home cannot give it to another user
        pytest.skip(str(error))
    with box:
        assert "NO ISOLATION" in caplog.text
        assert run(box, "print(1)").out == "1\n"


def test_a_door_that_is_open_is_told() -> None:
    """Whatever the attack brings back counts; so does an attack that never ran."""
    config = {"level": "namespaces", "limits": vars(LIMITS)}

    def attacked(out: str, may_fork: bool = True) -> str | None:
        return probe(lambda code: Ran("exit", 0, out=out), facts={"may_fork": may_fork}, config=config, pid=os.getpid())

    assert attacked(json.dumps({"processes": 16, "traces": None})) is None
    assert attacked(json.dumps({"processes": 17, "traces": None})) == "a program starts more processes than allowed"
    assert attacked(json.dumps({"processes": 1, "traces": None}), may_fork=False) is not None
    found = {"reads a file of this machine": "expected output", "traces": True, "processes": 0}
    assert attacked(json.dumps(found)) == "a program reads a file of this machine, traces"
    for out in ("", "[]", '{"traces": null}', "PASS"):
        assert "did not run" in (attacked(out) or "")


BLOCKED = """
import errno, struct
from milepost.sandbox.filter import MACHINE, install_filter
# This process may not make namespaces any more, nor may its children: load the number, refuse unshare, allow the rest.
lines = (0x20, 0, 0, 0), (0x15, 0, 1, (272, 97)[MACHINE]), (0x06, 0, 0, 0x50000 | errno.EPERM), (0x06, 0, 0, 0x7FFF0000)
install_filter(b"".join(struct.pack("=HBBI", *line) for line in lines))
from milepost.bench_sandbox import SandboxBench
from milepost.cli import main
from milepost.sandbox.pool import LEVELS, Sandbox
from milepost.sandbox.runs import program
from milepost.types import RecipeError
with Sandbox(1) as box:
    print(box.isolation.level, *box.isolation.refused, sep="\\n")
    print(box.run([program("print(input())", "weaker")])[0].out)
try:
    Sandbox(levels=("namespaces",))
except RecipeError as error:
    print(error)
"""


@linux
def test_where_namespaces_are_forbidden_the_next_wall_is_used_or_it_is_said() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=120)
    if "landlock" not in done.stdout:
        assert "no isolation for untrusted code works" in done.stderr
        return
    level, *refused = done.stdout.splitlines()
    assert level == "landlock" and "weaker" in refused
    assert refused[0].startswith("namespaces: ") and "not permitted" in refused[0]
    assert "no isolation for untrusted code works on this machine (namespaces: " in done.stdout


UNPRIVILEGED = """
from milepost.bench_sandbox import SandboxBench
from milepost.cli import main
from milepost.sandbox.pool import LEVELS, Sandbox
from milepost.sandbox.runs import Limits, program
with Sandbox(1, limits=Limits(processes=8)) as box:
    code = "import os\\nprint(os.getuid())\\ntry:\\n    os.fork()\\nexcept OSError:\\n    print('refused')"
    print(box.isolation)
    print(box.run([program(code)])[0].out)
"""


@linux
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_an_unprivileged_user_has_walls_too() -> None:
    """The interpreter of the system, which any user may read, with this one's packages."""
    system = shutil.which("python3", path="/usr/bin")
    ask = "import sys; print(sys.version_info[:2])"
    found = subprocess.run([system, "-c", ask], capture_output=True, text=True).stdout if system else ""
    if not system or found.strip() != str(sys.version_info[:2]):
        pytest.skip("no system interpreter of this version")
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    done = subprocess.run([system, "-c", UNPRIVILEGED], capture_output=True, text=True, timeout=120, cwd="/", user=54321,
                          group=54321, extra_groups=[], env={"PYTHONPATH": f"{ROOT}:{packages}"})  # fmt: skip
    if "No module named" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip("this checkout is closed to other users")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("namespaces: ", "landlock: "))
    assert "refused" in done.stdout  # nobody limits how many processes there are, so there are none


# --- the pool -------------------------------------------------------------------------------------------------------


@linux
def test_a_cell_that_dies_is_replaced_and_its_run_tried_again() -> None:
    with Sandbox(1, limits=LIMITS) as box:
        run(box, "pass")
        victim = box.pids[0]
        os.kill(victim, signal.SIGKILL)
        assert run(box, "print('alive')").out == "alive\n"
        assert victim not in box.pids
        victim = box.pids[0]
        timer = threading.Timer(0.4, os.kill, (victim, signal.SIGKILL))
        timer.start()
        assert run(box, "import time; time.sleep(1.5); print('again')").out == "again\n"
        timer.join()


@linux
def test_a_run_that_takes_two_cells_with_it_is_a_crash_of_its_own() -> None:
    with Sandbox(1, limits=LIMITS) as box:
        done = threading.Event()

        def assassin() -> None:
            while not done.wait(0.15):
                for pid in box.pids:
                    os.kill(pid, signal.SIGKILL)

        thread = threading.Thread(target=assassin)
        thread.start()
        ran = run(box, "import time; time.sleep(3)")
        done.set()
        thread.join()
        assert ran.ended in ("crash", "broken")
        assert run(box, "print(1)").out == "1\n"


def test_a_sandbox_works_from_any_thread(box: Sandbox) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda n=n: found.append(int(run(box, f"print({n})").out))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == list(range(6))


def test_a_closed_sandbox_refuses() -> None:
    box = Sandbox(1, limits=LIMITS)
    run(box, "pass")
    [pid] = box.pids
    box.close()
    box.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(RuntimeError, match="closed"):
        box.run([program("pass")])
    with pytest.raises(ValueError, match="at least one"):
        Sandbox(0)


ABANDONED = """
import sys, threading
from milepost.bench_sandbox import SandboxBench
from milepost.cli import main
from milepost.sandbox.pool import LEVELS, Sandbox
from milepost.sandbox.runs import Limits, program
box = Sandbox(1, limits=Limits(seconds=60, memory_mb=64))
print(box.pids[0], *set(box.isolation.facts["groups"].values()), flush=True)
box.run([program("import os, time\\nos.setsid\\nprint(1, flush=True)\\ntime.sleep(60)", limits=Limits(seconds=60))])
"""


@linux
def test_nothing_is_left_when_the_caller_is_killed() -> None:
    caller = subprocess.Popen([sys.executable, "-c", ABANDONED], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    launcher, *groups = caller.stdout.readline().split()
    time.sleep(0.3)
    caller.kill()
    caller.wait()
    caller.stdout.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (Path(f"/proc/{launcher}").exists() or any(map(os.path.exists, groups))):
        time.sleep(0.05)
    assert not Path(f"/proc/{launcher}").exists()
    assert not any(map(os.path.exists, groups))


@linux
@pytest.mark.parametrize("num", [40, pytest.param(1000, marks=pytest.mark.nightly)])
def test_many_runs_with_endless_ones_among_them_leave_counts_as_they_were(box: Sandbox, num: int) -> None:
    run(box, "pass")
    before = counts()
    short = Limits(**{**vars(LIMITS), "seconds": 0.15})
    runs = [program("while True: pass" if number % 10 == 0 else "print(1)", limits=short if number % 10 == 0 else LIMITS)
            for number in range(num)]  # fmt: skip
    megabytes = resident_mb()
    ended = [ran.ended for ran in box.run(runs)]
    assert ended == ["time" if number % 10 == 0 else "exit" for number in range(num)]
    assert counts() == before
    assert resident_mb() < megabytes + 15


def test_the_bench_judges_right_and_compares(capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", "sandbox", "--runs", "10", "--cells", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_runs"] == 10 and found["num_cells"] == 1 and found["isolation"]
    assert found["ratio"] == pytest.approx(found["runs_per_second"] / found["bare_runs_per_second"])
    assert "test runs a second" in SandboxBench("plain", 10, 2, 80.0, 40.0, 0.5, 1.0).text()
    assert SandboxBench("plain", 10, 2, 80.0, 40.0, 0.5, 1.0).ratio == 2.0
    assert main(["bench", "sandbox", "--runs", "1"]) == 2
