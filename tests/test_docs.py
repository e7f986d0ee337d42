"""The documentation says what is so: commands parse, TOML is a recipe, links lead somewhere, the tutorial runs."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from milepost.cli import main, make_parser
from milepost.recipe import iter_settings, make_recipe

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def commands(text: str) -> list[str]:
    """Every `milepost …` command line of a text: in shell blocks, and in code spans of the prose."""
    shell = "".join(body for language, body in FENCE.findall(text) if language in ("sh", "", "console"))
    lines = [line.split("  #")[0].split(" || ")[0].removeprefix("$ ").removeprefix(".venv/bin/").strip()
             for line in re.sub(r"\\\n\s*", "", shell).splitlines()]  # fmt: skip
    spans = re.findall(r"`(milepost [^`]+)`", FENCE.sub("", text))
    return [line for line in [*lines, *spans] if line.startswith("milepost ")]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_parse(page: Path, capsys: pytest.CaptureFixture) -> None:
    for command in commands(page.read_text(encoding="utf-8")):
        words = shlex.split(command)[1:]
        if "COMMAND" in words or "--version" in words or "--help" in words:
            continue
        try:
            make_parser().parse_args(words)
        except SystemExit:
            named = [
                w for w in words if not w.isupper()
            ]  # `milepost explain`, `milepost policy new`: names, not whole calls
            reason = capsys.readouterr().err.splitlines()[-1]
            assert len(named) <= 2 and "arguments are required" in reason, f"{page.name}: {command}: {reason}"


def test_wrong_commands_would_be_noticed(capsys: pytest.CaptureFixture) -> None:
    assert commands("```sh\nmilepost run r.toml --nonsense  # why\n```\n and `milepost fly`") == [
        "milepost run r.toml --nonsense", "milepost fly",
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        make_parser().parse_args(["run", "r.toml", "--nonsense"])
    assert "unrecognized arguments" in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_toml_is_a_recipe(page: Path) -> None:
    for block in blocks(page, "toml"):
        make_recipe(tomllib.loads(block))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_headings_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{page.name} links to {target}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in map(anchor, titles), f"{page.name} links to {target}"


def anchor(title: str) -> str:
    """A heading's anchor, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    missing = [page.name for page in PAGES if page.parent.name == "docs" and f"({page.name})" not in index]
    assert missing == ["index.md"]


def test_every_guard_on_the_page_of_known_failures_exists_and_names_its_case() -> None:
    """The tests named for a case are there, and the case's number stands in the tests' files."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py")}
    page = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-L]\d+\S*(?:, [A-L]\d+)*) \|.*\| (`test_.*`) \|$", page, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| [A-L]\d", page, re.MULTILINE)) > 50
    for case, guards in rows:
        name = ""
        for guard in re.findall(r"`([^`]*)`", guards):
            file, _, test = guard.partition("::")
            name = file or name
            assert f"def {test}(" in sources[name], guard
        for first in re.findall(r"[A-L]\d+", case):
            assert any(re.search(rf"\b{first}\b", text) for text in sources.values()), case


def test_the_page_of_settings_is_up_to_date() -> None:
    found = importlib.util.spec_from_file_location("make_defaults", ROOT / "scripts" / "make_defaults.py")
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "run `python scripts/make_defaults.py`"
    assert all(f"| `{key.rpartition('.')[2]}` |" in script.page() for key, _ in iter_settings() if key.count(".") == 1
               and key not in script.LISTS)  # fmt: skip


def test_svg_pictures_need_no_network() -> None:
    for picture in (ROOT / "docs").glob("*.svg"):
        text = picture.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text and "<script" not in text, picture.name


# --- the tutorial ---------------------------------------------------------------------------------------------------

SHORTER = (("range(2000)", "range(120)"), ("steps = 150", "steps = 2"), ("prompts_per_step = 16", "prompts_per_step = 4"),
           ("sft.steps=100 grpo.steps=20", "sft.steps=2 grpo.steps=1"), ("--seeds 0,1", "--seeds 0"),
           ("--paired runs/run\n", "--paired runs/run || true\n"))  # fmt: skip


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of docs/start.md in order, with fewer tasks and steps."""
    text = (ROOT / "docs" / "start.md").read_text(encoding="utf-8").partition("## A pretrained model")[0]
    for long, short in SHORTER:
        assert long in text, long
        text = text.replace(long, short)
    monkeypatch.chdir(tmp_path)
    said = ""
    for language, body in FENCE.findall(text):
        if language == "python":
            Path(body.splitlines()[0].removeprefix("# ")).write_text(body)
        elif language == "toml":
            recipe = Path("recipe.toml").read_text(encoding="utf-8")
            few = "[tasks]\nvalidation = 4\ntest = 4\n"
            Path("recipe.toml").write_text(edited(recipe, few + body), encoding="utf-8")
        elif language == "sh":
            said += "".join(map(execute, body.splitlines()))
    assert "no signal    100% of the groups" in said  # what the page says preflight finds
    assert "After GRPO" in said and "did best" in said
    runs = sorted(path.name for path in Path("runs").iterdir())
    assert runs == ["lr-1e-3-s0", "lr-1e-4-s0", "run", "run-preflight"]
    assert Path("runs/run/report.html").is_file()


def execute(line: str) -> str:
    """Runs one line of the tutorial and returns what it printed. `milepost` runs in this process, so torch loads once."""
    line, _, alternative = line.partition(" || ")
    line, _, target = line.partition(" > ")
    words, out = shlex.split(line), io.StringIO()
    if words[0] == "milepost":
        with contextlib.redirect_stdout(out):
            code = main(words[1:])
    else:
        assert words[0] == "python"
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=True)
        code, _ = done.returncode, out.write(done.stdout)
    assert code == 0 or alternative == "true", f"{line}: exit code {code}"
    if target:
        Path(target).write_text(out.getvalue())
    return out.getvalue()


def edited(recipe: str, changes: str) -> str:
    """The recipe with each key of `changes` set in its section, as a reader would do it."""
    heading = ""
    for line in changes.splitlines():
        if line.startswith("["):
            heading = line
        elif "=" in line and not line.startswith("#"):
            key = line.split(" = ")[0]
            start = recipe.index(f"\n{heading} ")
            end = recipe.find("\n[", start + 1) if "\n[" in recipe[start + 1 :] else len(recipe)
            section, count = re.subn(rf"^#?{key} = .*$", lambda _, to=line: to, recipe[start:end], flags=re.MULTILINE)
            assert count == 1, f"{heading} {key}"
            recipe = recipe[:start] + section + recipe[end:]
    return recipe
