"""The real store satisfies the contract: client, HTTP, service, Lua script and database together."""

from __future__ import annotations

import time

import pytest

from cerebro.runtime.kvs.client import KvsClient
from tests.kvs_api.bench import SHORT_S, Bench
from tests.kvs_api.contract import StoreContract


def pass_a_moment() -> None:
    """Wait until the database's millisecond has changed."""
    began = time.time()
    while time.time() - began < SHORT_S + 0.002:
        pass


class TestRealStore(StoreContract):
    """The contract over a Valkey server."""

    @pytest.fixture
    def bench(self, kvs: KvsClient) -> Bench:
        return Bench(store=kvs, pass_a_moment=pass_a_moment)
