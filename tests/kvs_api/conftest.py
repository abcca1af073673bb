"""kvs_api as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kvs_api.real import Database, Replica


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    with Database(tmp_path) as database, Replica(database) as made:
        yield made
