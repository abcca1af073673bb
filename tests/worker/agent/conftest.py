"""Fixtures with worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.runtime.kvs.client import KvsClient
from tests.forking import Forks
from tests.kvs_api.real import Service
from tests.worker.agent.agents import Agents, agent_forks


@pytest.fixture(scope="session")
def forks(processes: None) -> Iterator[Forks]:
    """A forkserver with the agent imported, for all tests."""
    with agent_forks() as made:
        yield made


@pytest.fixture
def agents(service: Service, kvs: KvsClient, tmp_path: Path, forks: Forks) -> Iterator[Agents]:
    """Agents without a running worker; `start` starts one."""
    made = Agents(service, kvs, tmp_path, forks)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
