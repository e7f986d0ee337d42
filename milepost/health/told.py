"""What an environment tells the policy: the checks of `env_check.py` for what would give the solution away. Torch-free."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from milepost.env import EnvSpec, State, canonical
from milepost.health.contract import Bench, Failed, Skipped, needs_tasks
from milepost.health.tapes import Tape, changed

Secrets = Mapping[str, Sequence[Sequence[str]]]
"""What it is, and of each task the texts that would give it away."""


def leak_check(bench: Bench) -> str:
    """What the policy is shown first, against what it must find: answer, columns, what only this gold script writes.

    What other tasks' first messages show as well, such as the choices of a question, gives nothing away.
    """
    tapes = bench.base()
    if found := _told(_secrets(bench, tapes), [_first_words(bench, tape) for tape in tapes]):
        num, at, what = found
        raise Failed(f"in {num} of {len(tapes)} tasks the first messages give it away; task {tapes[at].task.key} shows "
                     f"{what}")  # fmt: skip
    return f"no answer, columns or gold action in the first messages of {len(tapes)} tasks"


def summary_check(bench: Bench) -> str:
    """What the environment sums up of every state that was met; where nothing was done, also what it tells."""
    needs_tasks(bench)
    if bench.spec.summary is None:
        raise Skipped("there is no summary")
    num, untouched = 0, dict[str, str]()
    for tape in bench.all_tapes:
        for turn, state in enumerate(tape.states() if tape.start_state is not None else ()):
            text, num = _summed_up(bench.spec, tape, turn, state), num + 1
            if changed(bench.spec, tape.states()[0], state) is None:
                untouched[tape.task.key] = text
    tapes = [tape for tape in bench.base() if tape.task.key in untouched]
    secrets = {**_secrets(bench, tapes), **_columns(bench, tapes)}
    if found := _told(secrets, [untouched[tape.task.key] for tape in tapes]):
        raise Failed(f"in {found[0]} of {len(tapes)} tasks it gives away what nobody has found out yet; of task "
                     f"{tapes[found[1]].task.key} it tells {found[2]}")  # fmt: skip
    return f"{num} states summed up, the same again; no answer, columns or gold action before anything was done"


def _summed_up(spec: EnvSpec, tape: Tape, turn: int, state: State) -> str:
    """The summary, asked twice. Raises Failed."""
    assert spec.summary is not None
    shown = tape.states()[0], state, tape.task.columns
    before = [canonical(facts) for facts in shown]
    try:
        texts = [spec.summary(tape.task, shown[0], state) for _ in range(2)]
    except Exception as error:
        raise Failed(f"{tape.where(turn)}: the summary raised {type(error).__name__}: {error}") from None
    if not isinstance(texts[0], str) or not texts[0].strip():
        raise Failed(f"{tape.where(turn)}: the summary is {texts[0]!r:.80}, not a text")
    if texts[0] != texts[1]:
        raise Failed(f"{tape.where(turn)}: asked twice, the summary is {texts[0]!r:.80} and {texts[1]!r:.80}")
    if [canonical(facts) for facts in shown] != before:
        raise Failed(f"{tape.where(turn)}: the summary changed what it was shown")
    return texts[0]


def _secrets(bench: Bench, tapes: Sequence[Tape]) -> Secrets:
    return {
        "the answer": [[_plain_text(tape.task.answer)] for tape in tapes],
        "its columns": [[canonical(tape.task.columns)[1:-1]] for tape in tapes],
        "its gold action": [_own(tape, tapes) if bench.spec.gold else [] for tape in tapes],
    }


def _columns(bench: Bench, tapes: Sequence[Tape]) -> Secrets:
    """Single columns that the first messages do not show."""

    def texts(tape: Tape, name: str) -> list[str]:
        value = tape.task.columns.get(name)
        found = {_plain_text(value), str(value), canonical({"": value})[4:-1]}
        return sorted(text for text in found if len(text) >= 4 and not _inside(text, _first_words(bench, tape)))

    names = sorted({name for tape in tapes for name in tape.task.columns})
    return {f"its column {name}": [texts(tape, name) for tape in tapes] for name in names}


def _told(secrets: Secrets, shown: Sequence[str]) -> tuple[int, int, str] | None:
    """(number of tasks whose text tells a secret, one of them, the secret in words) if they are more than half of all,
    those left out whose text tells another task's as well."""
    for what, held in secrets.items():
        own = [next((s for s in texts if _inside(s, text)), "") for texts, text in zip(held, shown)]
        others = [any(_inside(s, text) for s in texts) for texts, text in zip([*held[1:], *held[:1]], shown)]
        num = sum(map(bool, own))
        if 2 * (num - sum(others)) > len(shown):
            at = next(i for i, secret in enumerate(own) if secret)
            return num, at, f"{what}: {own[at]!r:.120}"
    return None


def _first_words(bench: Bench, tape: Tape) -> str:
    messages = tape.start.messages if tape.start is not None else ()
    return "\n".join([bench.spec.system, *(str(message["content"]) for message in messages)])


def _own(tape: Tape, tapes: Sequence[Tape]) -> list[str]:
    """What the gold script writes at this task and no other."""
    others = {text for other in tapes if other is not tape for text in other.texts}
    return [text for text in dict.fromkeys(tape.texts) if len(text) >= 6 and text not in others]


def _plain_text(answer: Any) -> str:
    return answer if isinstance(answer, str) else "" if answer is None else json.dumps(answer, ensure_ascii=False)


def _inside(secret: str, shown: str) -> bool:
    """As a whole: 12 is not inside 4123."""
    return bool(secret.strip()) and re.search(rf"(?<!\w){re.escape(secret.strip())}(?!\w)", shown) is not None
