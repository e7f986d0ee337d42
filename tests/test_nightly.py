"""The nightly script's evidence: nothing is skipped or broken without being listed, and why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "test_whole.py": "import pytest\npytest.importorskip('no_such_package')\ndef test_it(): pass\n",
    "test_broken.py": "import no_such_package\n",
    "test_some.py": "import pytest\n"
    "def test_good(record_property): record_property('rate', 0.5)\n"
    "def test_bad(): assert 1 == 2\n"
    "def test_left(): pytest.skip('no accelerator here')\n",
}
RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
import nightly, pytest
outcomes = nightly.Outcomes()
pytest.main(["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", sys.argv[2]], plugins=[outcomes])
print("\\n" + json.dumps([outcomes.tests, outcomes.skipped]))
"""


def test_what_is_skipped_is_listed_with_its_reason(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", RUN, str(ROOT / "scripts"), str(tmp_path)], text=True, capture_output=True,
                          cwd=tmp_path)  # fmt: skip
    tests, skipped = json.loads(done.stdout.splitlines()[-1])
    assert {name: test["outcome"] for name, test in tests.items()} == {
        "test_whole.py": "skipped", "test_broken.py": "error", "test_some.py::test_good": "passed",
        "test_some.py::test_bad": "failed", "test_some.py::test_left": "skipped"}  # fmt: skip
    assert skipped == {
        "test_whole.py": "Skipped: could not import 'no_such_package': No module named 'no_such_package'",
        "test_some.py::test_left": "Skipped: no accelerator here",
    }
    assert "No module named 'no_such_package'" in tests["test_broken.py"]["message"]
    assert "assert 1 == 2" in tests["test_some.py::test_bad"]["message"]
    assert tests["test_some.py::test_good"]["figures"] == {"rate": 0.5}
