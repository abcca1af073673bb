"""Replicas for slow workers: benefit and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.records import PodRef, Replica, WorkerRecord, WorkerStatus, WorkerUsage
from cerebro.contract.tasks.bodies import EtlTask, TaskBody
from cerebro.state.experiment import fold
from controller.scaling.cluster_snapshot import worker_view
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.disturbed import disturbed
from tests.controller.test_core import (
    assert_complete,
    assert_exclusive,
    own_partition,
)
from tests.controller.test_workers_change import remade, simulate, trained_by

ETL_S, SUB_EPOCH_S = 60.0, 300.0


def stragglers(
    slower: Mapping[str, float], *, seed: int = 0, sigma: float = 0.1, etl_s: float = ETL_S
) -> Scenario:
    """Eight workers, some slower than the others."""
    rng = Random(seed)

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        if isinstance(body, EtlTask):
            return etl_s
        return SUB_EPOCH_S * slower.get(worker, 1.0) * rng.lognormvariate(0, sigma)

    return Scenario(replicas=own_partition(8), sub_epoch_time=sub_epoch_time, lease_s=300.0)


@pytest.mark.slow
def test_a_worker_four_times_slower_costs_less_than_half_more() -> None:
    """Other workers make and train on a replica of its partition, so the cost is not four times."""
    calm = simulate(stragglers({}), models=16)
    slow = simulate(stragglers({"worker-3": 4.0}), models=16)
    assert slow.now - ETL_S < 1.45 * (calm.now - ETL_S)
    state = fold(EXPERIMENT, slow.log)
    assert_complete(state, epochs=2, partitions=8)
    assert_exclusive(slow)
    assert len(trained_by(state)[3]) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "sigma"), [(0, 0.1), (1, 0.3), (2, 0.3)])
def test_equal_workers_get_no_replica_copies(seed: int, sigma: float) -> None:
    """For any noise of sub-epoch times."""
    assert remade(simulate(stragglers({}, seed=seed, sigma=sigma), models=16).log) == []


@pytest.mark.slow
def test_a_replica_copy_that_takes_longer_than_it_saves_is_not_made() -> None:
    """Making a replica may take at most half of the time that it saves."""
    slow = stragglers({"worker-3": 4.0}, etl_s=100 * SUB_EPOCH_S)
    assert remade(simulate(slow, models=16).log) == []


def status(used: int, *, held: int = 1, pod: bool = True) -> WorkerStatus:
    """A worker with `used` of 100 bytes on its volume."""
    record = WorkerRecord(
        worker="worker-0",
        incarnation="a",
        weight=1.0,
        cores=1,
        kinds=("train",),
        replicas=tuple(Replica(dataset="d", partition=p) for p in range(held)),
        pod=PodRef(name="worker-0", uid="u", container="worker") if pod else None,
    )
    usage = WorkerUsage(cores=1, shards_used_bytes=used, shards_total_bytes=100)
    return WorkerStatus(record=record, silent_s=0.0, usage=usage)


@pytest.mark.parametrize(
    ("worker_status", "has_room"),
    [
        (status(40), True),
        (status(45), False),  # 1.2 x 45 plus 5 % of the volume is more than the 55 bytes free
        (status(60, held=3), True),
        (status(75, pod=False), True),
        (status(85, pod=False), False),
        (status(45).model_copy(update={"usage": None}), True),
    ],
)
def test_a_volume_needs_room_for_a_replica_copy_and_a_reserve(
    worker_status: WorkerStatus, has_room: bool
) -> None:
    """1.2 partitions plus 5 % of the volume, or 20 % on a node's own disk."""
    assert worker_view(worker_status, None, silent_s=0.0, lease_s=10.0).has_room is has_room


@pytest.mark.slow
def test_a_worker_without_room_gets_no_replica_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    cramped = {f"worker-{number}" for number in range(6)}
    before = Simulation.snapshot

    def snapshot(self: Simulation):  # type: ignore[no-untyped-def]
        original = before(self)
        for name, view in original.workers.items():
            object.__setattr__(view, "has_room", name.removesuffix("-etl") not in cramped)
        return original

    monkeypatch.setattr(Simulation, "snapshot", snapshot)
    slow = simulate(stragglers({"worker-3": 4.0}), models=16)
    rebuilt_events = remade(slow.log)
    assert rebuilt_events
    assert {worker for _, worker in rebuilt_events} <= {"worker-6-etl", "worker-7-etl"}


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 6), st.integers(2, 5), st.integers(1, 3)),
    slower=st.lists(st.sampled_from((1.0, 1.0, 4.0, 20.0)), min_size=5, max_size=5),
    etl_s=st.sampled_from((0.5, 5.0)),
    crashes=st.frozensets(st.integers(0, 80), max_size=3),
    outages=st.lists(st.tuples(st.integers(0, 4), st.floats(0.5, 60), st.floats(1.5, 30)), max_size=3),
    times=st.randoms(use_true_random=False),
)
def test_with_any_slow_workers_sub_epochs_and_copies_are_made_once(  # type: ignore[no-untyped-def]
    shape, slower, etl_s, crashes, outages, times
) -> None:
    """With losses and controller crashes, the invariants hold and each volume gets a partition at most once."""
    models, workers, epochs = shape
    drawn = disturbed(workers, outages=outages, faults={}, times=times)

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        factor = slower[int(worker.split("-")[1])]
        return etl_s if isinstance(body, EtlTask) else float(factor * times.uniform(0.5, 2.0))

    scenario = Scenario(
        replicas=drawn.replicas, sub_epoch_time=sub_epoch_time, outages=drawn.outages, crash_before=crashes
    )
    simulation = simulate(scenario, models=models, epochs=epochs, partitions=workers)
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=epochs, partitions=workers)
    assert_exclusive(simulation)
    assert max(Counter(remade(simulation.log)).values(), default=0) <= 1
    own_replicas = {(f"p{n}", f"worker-{n}-etl") for n in range(workers)}
    assert own_replicas.isdisjoint(remade(simulation.log))
