"""What judges an answer by rule, one module per kind. Each has the same four functions.

    score(*, answer, gold, **params) -> {"score": 0 … 1 or None, "cause", "extracted", "extractable", "compared", "parts"}
    check_gold(gold, **params) -> None, or one sentence: what is wrong with this gold
    right(gold, **params) -> texts that must score 1;  wrong(gold, **params) -> texts that must score 0

Correct, wrong, unextractable (score 0, extractable False) and unscorable (score None, with a cause) are four things.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

KEYS = ("score", "cause", "extracted", "extractable", "compared", "parts")


def broken(result: Mapping[str, Any], *, reads: bool = True) -> str | None:
    """How a verdict breaks what all of them keep; None if it does not. `reads`: nothing is paid that could not be read."""
    if missing := [key for key in KEYS if key not in result]:
        return f"lacks {missing}"
    json.dumps(result)
    score, cause = result["score"], result["cause"]
    if score is None:
        return None if isinstance(cause, str) and cause else "neither a score nor a cause"
    if cause is not None or not 0 <= score <= 1:
        return f"score {score!r} with cause {cause!r}"
    if reads and score > 0 and not result["extractable"]:
        return f"pays {score:g} for what it could not read"
    return None
