"""Runs the nightly tests and keeps what they found: docs/evidence/DATE.json (DATE-HHMM.json if there is one).

Exits as pytest does. Extra arguments go to pytest, for example `-k demo`. What was skipped, whole files that miss a package
among it, is listed with its reason, in the evidence and at the end: a check that nobody sees skipped is taken for one that
passed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("milepost", "torch", "transformers", "numpy", "trl", "reasoning-gym", "pytest")


class Outcomes:
    """A pytest plugin that notes each test's outcome, seconds, and what it recorded with `record_property`; of a file that
    could not be collected, why."""

    def __init__(self) -> None:
        self.tests: dict[str, dict] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        test["seconds"] = round(test["seconds"] + report.duration, 2)
        if report.outcome != "passed":
            test["outcome"] = report.outcome if report.when == "call" or report.skipped else "error"
            test["message"] = reason(report)
        if report.when == "call" and report.user_properties:
            test["figures"] = dict(report.user_properties)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            outcome = "skipped" if report.skipped else "error"
            self.tests[report.nodeid] = {"outcome": outcome, "seconds": 0.0, "message": reason(report)}

    @property
    def skipped(self) -> dict[str, str]:
        return {name: test["message"] for name, test in self.tests.items() if test["outcome"] == "skipped"}


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """A skip's own words, which pytest keeps beside their place; of a failure the end of what it says."""
    told = report.longrepr
    return str(told[2] if isinstance(told, (tuple, list)) else told)[-2000:]


def main(arguments: list[str]) -> int:
    began, outcomes = time.time(), Outcomes()
    code = int(pytest.main(["-m", "nightly", *arguments, str(ROOT / "tests")], plugins=[outcomes]))
    evidence = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(began)),
        "exit_code": code,
        "seconds": round(time.time() - began, 1),
        "commit": commit(),
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        "versions": {name: version(name) for name in PACKAGES},
        "skipped": outcomes.skipped,
        "tests": outcomes.tests,
    }
    folder = ROOT / "docs" / "evidence"
    folder.mkdir(exist_ok=True)
    path = folder / f"{time.strftime('%Y-%m-%d', time.localtime(began))}.json"
    if path.exists():  # an earlier run of the day, or one of other tests
        path = path.with_stem(f"{path.stem}-{time.strftime('%H%M', time.localtime(began))}")
    path.write_text(json.dumps(evidence, indent=2) + "\n", encoding="utf-8")
    for name, why in outcomes.skipped.items():
        print(f"skipped: {name}: {why}")
    print(f"evidence: {path.relative_to(ROOT)}")
    return code


def commit() -> str:
    """The commit that was tested, with a mark if files differed from it; empty outside git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
