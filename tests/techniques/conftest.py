"""Fixtures with ranks that all tests of a process share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.rows import write_partition
from tests.techniques.ranks import Ranks, nothing


@pytest.fixture(scope="session")
def ranks(processes: None) -> Iterator[Ranks]:
    """Up to three ranks with one thread each."""
    with Ranks() as started:
        started.run(3, nothing)  # starts them here, not in the first test
        yield started


@pytest.fixture(scope="session")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """46 rows: batches of 8 leave 6, of 9 leave 1."""
    folder = tmp_path_factory.mktemp("partition")
    write_partition(folder, [20, 26])
    return folder
