"""Tests on a real GPU."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def gpu() -> torch.device:
    """The first GPU; without one the test is skipped."""
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that torch can use")
    return torch.device("cuda:0")
