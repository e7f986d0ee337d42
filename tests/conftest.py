"""Fixtures that several test files share. Heavy imports happen inside: most test files need none of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy that sorts three letters right about half the time: every step has something to learn from."""
    from small import SHORT_ROWS, warm_policy

    return warm_policy(tmp_path_factory.mktemp("warm"), SHORT_ROWS)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums in another order end in other bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
