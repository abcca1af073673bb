"""Tests of charts, images and scripts; most run helm, kubectl or a shell."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def run_commands(commands: None) -> None:
    """Mark all tests here, since any test may be the first to run helm for the shared cache."""
