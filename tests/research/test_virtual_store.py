"""The simulated store keeps the contract of the real one, so what holds in a simulation holds in a cluster."""

from __future__ import annotations

import pytest

from research.simulation.store import VirtualStore
from tests.kvs_api.bench import SHORT_S, Bench
from tests.kvs_api.contract import StoreContract


class TestVirtualStore(StoreContract):
    """In memory, with a clock of its own."""

    @pytest.fixture
    def bench(self) -> Bench:
        now = [1000.0]

        def pass_a_moment() -> None:
            now[0] += SHORT_S + 0.001

        return Bench(store=VirtualStore(lambda: now[0]), pass_a_moment=pass_a_moment)
