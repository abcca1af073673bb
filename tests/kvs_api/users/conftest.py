"""A fixture with a store in users mode."""

from __future__ import annotations

import pytest

from tests.kvs_api.real import Service
from tests.kvs_api.users.people import Place, opened


@pytest.fixture
def place(service: Service) -> Place:
    return opened(service.database)
