"""One real store for all tests here; each finds it empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cerebro.kvs import KvsClient
from tests.kvs_api.real import Database, Service


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
