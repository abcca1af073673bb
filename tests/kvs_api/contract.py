"""What every store promises, as one class of tests: run against the real one and against the simulated one.

A subclass gives the fixture `bench`. Nothing here knows which store it is.
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
    """The tests; `bench` is made anew for each."""

    @pytest.fixture
    def bench(self) -> Bench:
        """Given by the subclass."""
        raise NotImplementedError
