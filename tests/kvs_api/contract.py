"""The store contract: one test class for the real and the simulated store.

A subclass provides the fixture `bench`. The tests do not depend on the kind of store.
"""

from __future__ import annotations

import pytest

from tests.kvs_api.bench import Bench
from tests.kvs_api.cluster_log_contract import ClusterLogContract
from tests.kvs_api.decision_contract import DecisionContract
from tests.kvs_api.history_contract import HistoryContract
from tests.kvs_api.log_contract import LogContract
from tests.kvs_api.machine_contract import MachineContract
from tests.kvs_api.occupancy_contract import OccupancyContract
from tests.kvs_api.size_contract import SizeContract
from tests.kvs_api.steering_contract import SteeringContract
from tests.kvs_api.worker_contract import WorkerContract


class StoreContract(
    LogContract,
    ClusterLogContract,
    DecisionContract,
    WorkerContract,
    MachineContract,
    HistoryContract,
    OccupancyContract,
    SizeContract,
    SteeringContract,
):
    """Tests with a new `bench` each."""

    @pytest.fixture
    def bench(self) -> Bench:
        """Provided by the subclass."""
        raise NotImplementedError
