"""What every fuzzed verdict must keep, and how many of them are drawn."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import HealthCheck, settings

from milepost.verifiers import broken

MOST_SECONDS = 2.0
FEW = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))


def judged(module: Any, **given_: Any) -> dict[str, Any]:
    """The verdict, after the contract that every verdict keeps."""
    began = time.process_time()
    result = module.score(**given_)
    assert time.process_time() - began < MOST_SECONDS, given_
    assert broken(result) is None, (broken(result), given_)
    assert result["score"] is not None or (result["cause"] == "bad_gold" and module.check_gold(given_["gold"]))
    return result
