"""Fixtures for kvs_api as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forking import Forks
from tests.kvs_api.real import Database, Replica


@pytest.fixture(scope="session")
def services(processes: None) -> Iterator[Forks]:
    """A forkserver with kvs_api imported."""
    with Forks("kvs_api.__main__") as forks:
        yield forks


@pytest.fixture
def replica(tmp_path: Path, services: Forks) -> Iterator[Replica]:
    with Database(tmp_path) as database, Replica(database, services) as replica:
        yield replica
