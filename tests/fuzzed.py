"""What every fuzzed verdict must keep, and how many of them are drawn."""

from __future__ import annotations

import json
import time
from typing import Any

from hypothesis import HealthCheck, settings

MOST_SECONDS = 2.0
FEW = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))


def judged(module: Any, **given_: Any) -> dict[str, Any]:
    """The verdict, after the contract that every verdict keeps."""
    began = time.process_time()
    result = module.score(**given_)
    assert time.process_time() - began < MOST_SECONDS, given_
    assert {"score", "cause", "extracted", "extractable", "compared", "parts"} <= set(result)
    json.dumps(result)
    if result["score"] is None:
        assert result["cause"] == "bad_gold" and module.check_gold(given_["gold"])
    else:
        assert (
            result["cause"] is None and 0 <= result["score"] <= 1 and (result["extractable"] or result["score"] in (0, 1))
        )
    return result
