"""Workers as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.runtime.kvs import KvsClient
from tests.kvs_api.real import Service
from tests.worker.agent.agents import Agents


@pytest.fixture
def agents(service: Service, kvs: KvsClient, tmp_path: Path) -> Iterator[Agents]:
    """No worker yet: `start` starts it."""
    made = Agents(service, kvs, tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
