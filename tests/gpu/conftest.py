"""Tests on a real GPU."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def gpu() -> torch.device:
    """The first GPU."""
    return torch.device("cuda:0")
