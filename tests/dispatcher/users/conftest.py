"""A store with users and a dispatcher over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dispatcher.users.signed import Signed, signed
from tests.kvs_api.real import Database, Service
from tests.kvs_api.users.people import OPERATOR, SERVICES


@pytest.fixture(scope="session")
def users_service(commands: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Shared by all tests of a process."""
    with (
        Database(tmp_path_factory.mktemp("users")) as database,
        Service(database, has_users=True, service_tokens=SERVICES, token=OPERATOR) as service,
    ):
        yield service


@pytest.fixture
def place(users_service: Service) -> Iterator[Signed]:
    users_service.database.empty()
    with signed(users_service) as signed_place:
        yield signed_place
