"""The simulated store fulfils the contract of the real one."""

from __future__ import annotations

import pytest

from research.simulation.store import VirtualStore
from tests.kvs_api.bench import SHORT_S, Bench
from tests.kvs_api.contract import StoreContract


class TestVirtualStore(StoreContract):
    @pytest.fixture
    def bench(self) -> Bench:
        now = [1000.0]

        def pass_a_moment() -> None:
            now[0] += SHORT_S + 0.001

        return Bench(store=VirtualStore(lambda: now[0]), pass_a_moment=pass_a_moment)
