"""Reward forms that tutorials give and that teach the wrong thing: each refused with its counter-example. Torch-free.

Whoever writes one of these names under [reward] is told why it is refused and what does the same safely; every number in
a sentence is computed again by its test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAFE_LENGTHS = ("kimi", "gr3", "l1_max", "overlong")

UNSAFE_LENGTHS: dict[str, str] = {
    "linear": "reward − a·length pays a wrong answer for being short: with a = 0.001 a right one of 1,500 tokens earns "
    "−0.5 and a wrong one of 50 earns −0.05",
    "log": "reward / log(length) divides by zero at 1 token and pays a wrong answer worth −1 for being long: it earns "
    "−1.44 at 2 tokens and −0.22 at 100",
    "cosine": "the cosine form pays a wrong answer for being long: worth −10 when empty, it earns −5 at half the limit and "
    "0 at the limit",
    "l1_exact": "1[right] − a·|target − length| pays a wrong answer for its length: with a = 0.0003 and target 1,000 a "
    "wrong one of 1,000 tokens earns 0 and a right one of 5,000 earns −0.2",
}
"""Values of reward.length.form."""

_NO_ANSWER = (
    "a number for an answer that cannot be found teaches format instead of correctness: with −1 for a missing box and 0 "
    "for a wrong answer, one boxed wrong answer among seven unboxed gets the advantage +1 that one right answer among "
    "seven wrong gets; nothing found is worth 0 and counted apart as unextractable"
)
_ERROR = (
    "a number for whatever raises pays faults and empty lists of tests like crashes of the policy's own: with −0.5 eight "
    "broken graders look like eight bad answers; what cannot be judged is unscorable, with a cause and a counter"
)
_PER_CALL = (
    "a score summed over calls pays for calling: five identical right calls earn 5.0 where one earns 1.0, and wrong ones "
    "are free; pay a state once with reward.milestones"
)
_PER_VISIT = (
    "a bonus on every visit pays for going in circles: +0.1 a visit is 0.6 after six loops that reach nothing; pay a state "
    "once with reward.milestones"
)
_VALID = (
    "a bonus for what merely parses is earned by {} and by 42; make it a gate: what cannot be parsed cannot be right, and "
    "invalid calls can be a cost, [[reward.costs]] name = \"invalid\""
)  # fmt: skip
_LENGTH = "{UNSAFE}; set reward.length.form to one of " + ", ".join(f'"{name}"' for name in SAFE_LENGTHS)

UNSAFE_KEYS: dict[str, str] = {
    **dict.fromkeys(("missing", "missing_box", "no_answer", "unextractable", "format_penalty"), _NO_ANSWER),
    **dict.fromkeys(("on_error", "error_value", "exception", "on_exception", "error_penalty"), _ERROR),
    **dict.fromkeys(("per_call", "tool_score", "tool_success", "per_tool_call", "call_bonus"), _PER_CALL),
    **dict.fromkeys(("per_visit", "visit_bonus", "per_step", "step_bonus", "loop_bonus"), _PER_VISIT),
    **dict.fromkeys(("valid_json", "valid_action", "valid_call", "json_bonus", "legal_action"), _VALID),
    **dict.fromkeys(("length_penalty", "length_weight", "brevity"), _LENGTH.format(UNSAFE=UNSAFE_LENGTHS["linear"])),
    **dict.fromkeys(("log_length", "divide_by_log_length"), _LENGTH.format(UNSAFE=UNSAFE_LENGTHS["log"])),
}
"""Keys under [reward], of a function and of its params that would ask for such a form."""

UNSAFE_FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(("json", "any_json", "is_json", "parses", "valid"), _VALID),
    **dict.fromkeys(("length", "short", "brief", "linear_length"), _LENGTH.format(UNSAFE=UNSAFE_LENGTHS["linear"])),
    **dict.fromkeys(("tool_use", "num_calls", "calls", "tool_reward"), _PER_CALL),
    **dict.fromkeys(("has_box", "boxed", "has_answer"), _NO_ANSWER),
}
"""Names that tutorials give to functions of such a form."""


def refuse_unsafe_keys(section: Mapping[str, Any], where: str = "reward") -> None:
    """Raises ValueError with the counter-example of the first key that asks for an unsafe form."""
    for key in section:
        if key in UNSAFE_KEYS:
            raise ValueError(f"{where}.{key} = {section[key]!r} is refused: {UNSAFE_KEYS[key]}")


def unsafe_function(name: str) -> str | None:
    """Why no reward function of this name is built in, with its counter-example; None if there is nothing against it."""
    found = UNSAFE_KEYS.get(name) or UNSAFE_FUNCTIONS.get(name)
    return f"is refused: {found}" if found else None


def refuse_unsafe_length(form: Any) -> None:
    """Raises ValueError with the counter-example if `form` names an unsafe length term."""
    if isinstance(form, str) and form in UNSAFE_LENGTHS:
        safe = ", ".join(f'"{name}"' for name in SAFE_LENGTHS)
        raise ValueError(f'reward.length.form = "{form}" is refused: {UNSAFE_LENGTHS[form]}; use {safe}')
