"""Tests of what is deployed: most run helm, kubectl or scripts."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def run_commands(processes: None) -> None:
    """What helm renders is kept for all tests of a process, so it may be any of them that runs it."""
