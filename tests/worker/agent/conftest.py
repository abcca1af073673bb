"""Workers as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.runtime.kvs import KvsClient
from tests.kvs_api.real import Service
from tests.worker.agent.crew import Crew


@pytest.fixture
def crew(service: Service, kvs: KvsClient, tmp_path: Path) -> Iterator[Crew]:
    """No worker yet: `start` starts it."""
    made = Crew(service, kvs, tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
