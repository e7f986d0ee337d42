"""Does an environment keep the contract? `milepost check env NAME` asks. Torch-free.

Each check is ok, FAILED with a counter-example, or skipped with a reason. All policies are played once and recorded; most
checks only read the recordings. Where something cannot be played, exactly one check fails for it, and those that would have
needed it are skipped. All of it happens in a process of its own, which the environment may end without ending this one.
"""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from milepost.env import EnvSpec
from milepost.envs.find import find_env
from milepost.health import contract, replays, told
from milepost.health.contract import Bench, Failed, Skipped
from milepost.health.elsewhere import BlackBox, Died, Tell, elsewhere
from milepost.health.tapes import Limits
from milepost.types import MilepostError, RecipeError

CHECKS: dict[str, Callable[[Bench], str]] = {
    "spec": contract.spec_check,
    "tasks": contract.tasks_check,
    "exceptions": contract.exceptions_check,
    "deadline": contract.deadline_check,
    "messages": contract.messages_check,
    "state": replays.state_check,
    "invalid": contract.invalid_check,
    "permissions": replays.permissions_check,
    "determinism": replays.determinism_check,
    "isolation": replays.isolation_check,
    "seed": replays.seed_check,
    "snapshot": replays.snapshot_check,
    "clean-up": replays.cleanup_check,
    "goal": contract.goal_check,
    "predicates": contract.predicates_check,
    "gold": contract.gold_check,
    "empty": contract.fails("empty"),
    "random": contract.fails("random"),
    "claim": contract.fails("claim"),
    "loop": contract.fails("loop"),
    "known-bad": contract.known_bad_check,
    "leak": told.leak_check,
    "summary": told.summary_check,
}
NEEDS = {
    "invalid": ("state",),
    "permissions": ("state", "invalid"),
    "determinism": ("state",),
    "isolation": ("state", "determinism"),
    "seed": ("state", "determinism"),
    "snapshot": ("state", "determinism"),
    "summary": ("state",),
}
"""Checks that would only say the same again if one of these had failed."""


@dataclass(frozen=True)
class Check:
    name: str
    status: Literal["ok", "FAILED", "skipped"]
    detail: str


@dataclass(frozen=True)
class EnvReport:
    env: str
    version: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.status != "FAILED" for check in self.checks)

    def text(self) -> str:
        lines = [f"{check.status:<8} {check.name:<12} {check.detail}" for check in self.checks]
        num = sum(check.status == "FAILED" for check in self.checks)
        return "\n".join(
            [f"environment {self.env}, version {self.version}", *lines, f"{num} failed" if num else "no check failed"]
        )

    def json(self) -> str:
        return json.dumps({"ok": self.ok, **asdict(self)}, indent=1)


def check_env(
    environment: EnvSpec | str, *, num_tasks: int = 20, num_episodes: int = 200, seed: int = 0,
    difficulty: Mapping[str, Any] | None = None, step_seconds: float = 10.0, reset_seconds: float = 60.0,
) -> EnvReport:  # fmt: skip
    """Runs every check. Raises RecipeError if there is no such environment, or it has no such difficulty."""
    if num_tasks < 1 or num_episodes < 1 or min(step_seconds, reset_seconds) <= 0:
        raise RecipeError("check env needs at least 1 task, 1 episode and deadlines above 0 seconds; 20 and 200 are usual")
    box = BlackBox()
    limits = Limits(step_seconds, reset_seconds, box.note)

    def work(tell: Tell) -> None:
        try:
            box.note(f"the import of {environment}")
            name = environment if isinstance(environment, str) else None
            spec = find_env(environment) if isinstance(environment, str) else environment
            _check_difficulty(spec, difficulty or {})
            tell({"env": spec.name, "version": spec.version})
            for check in _checks(Bench(spec, name, seed, num_tasks, num_episodes, difficulty or {}, limits)):
                tell({"check": asdict(check)})
        except MilepostError as error:
            tell({"refused": str(error)})
        except Exception:
            tell({"raised": traceback.format_exc()})

    return _report(environment if isinstance(environment, str) else environment.name, work, box)


def _checks(bench: Bench) -> Iterator[Check]:
    results: dict[str, Check] = {}
    for title, check in CHECKS.items():
        broken = [needed for needed in NEEDS.get(title, ()) if results[needed].status == "FAILED"]
        skipped = Check(title, "skipped", f"{' and '.join(broken)} failed")
        results[title] = skipped if broken else _run(bench, title, check)
        yield results[title]


def _report(name: str, work: Callable[[Tell], None], box: BlackBox) -> EnvReport:
    """What the work tells. Raises RecipeError where it was refused."""
    version, results = "?", dict[str, Check]()
    try:
        for message in elsewhere(work, box):
            if "check" in message:
                results[message["check"]["name"]] = Check(**message["check"])
            elif "refused" in message:
                raise RecipeError(message["refused"])
            elif "raised" in message:
                raise RuntimeError(f"a check of {name} broke:\n{message['raised']}")
            else:
                name, version = message["env"], message["version"]
    except Died as death:
        usual = "deadline" if death.how is None else "exceptions"
        blamed = usual if usual not in results else next(title for title in CHECKS if title not in results)
        results[blamed] = Check(blamed, "FAILED", _obituary(death))
        for title in CHECKS:
            results.setdefault(title, Check(title, "skipped", "the process of the environment had ended"))
    return EnvReport(name, version, tuple(results[title] for title in CHECKS))


def _obituary(death: Died) -> str:
    if death.how is None:
        return (f"{death.where}: no answer long after the deadline, and the whole process stands still; code that keeps "
                "Python's lock can only be ended with its process: set env.isolated = true")  # fmt: skip
    return (f"{death.where}: the process ended ({death.how}); an environment that ends its process ends the training with "
            "it: let it raise an exception instead, mend the native code that crashes, or set env.isolated = true, where "
            "it costs one episode")  # fmt: skip


def read_difficulty(overrides: Sequence[str]) -> dict[str, Any]:
    """key=value texts as arguments of the generator: JSON where it is JSON, else the text."""
    difficulty: dict[str, Any] = {}
    for text in overrides:
        key, _, value = text.partition("=")
        try:
            difficulty[key] = json.loads(value)
        except ValueError:
            difficulty[key] = value
    return difficulty


def _check_difficulty(spec: EnvSpec, difficulty: Mapping[str, Any]) -> None:
    signature = inspect.signature(spec.generate)
    try:
        signature.bind(1, 0, **difficulty)
    except TypeError as error:
        known = ", ".join(name for name in list(signature.parameters)[2:])
        raise RecipeError(
            f"check env: {spec.name} takes no such difficulty ({error}); it takes {known or 'none'}"
        ) from None


def _run(bench: Bench, name: str, check: Callable[[Bench], str]) -> Check:
    bench.limits.note(f"the check {name!r}", 0.0)
    try:
        return Check(name, "ok", check(bench))
    except Failed as error:
        return Check(name, "FAILED", str(error))
    except Skipped as error:
        return Check(name, "skipped", str(error))
