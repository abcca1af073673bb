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
    with agent_forks() as fork_server:
        yield fork_server


@pytest.fixture
def agents(service: Service, kvs: KvsClient, tmp_path: Path, forks: Forks) -> Iterator[Agents]:
    """Agents without a running worker; `start` starts one."""
    agents = Agents(service, kvs, tmp_path, forks)
    yield agents
    for process in agents.processes:
        process.kill()
        process.wait()
