"""Ranks that are kept for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.techniques.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Up to three, each with one thread."""
    with Ranks() as started:
        yield started
