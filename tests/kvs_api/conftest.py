"""One real store for all tests here; each finds it empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.runtime.kvs import KvsClient
from tests.kvs_api.real import Database, Replica, Service


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    database = Database(tmp_path_factory.mktemp("kvs"))
    service = Service(database)
    yield service
    service.close()
    database.kill()


@pytest.fixture
def service(shared_service: Service) -> Service:
    shared_service.database.empty()
    return shared_service


@pytest.fixture
def kvs(service: Service) -> Iterator[KvsClient]:
    client = service.client()
    yield client
    client.close()


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    database = Database(tmp_path)
    made = Replica(database)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
    database.kill()
