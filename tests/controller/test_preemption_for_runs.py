"""Preemption for fair sharing: a run above its share releases a device at a savepoint for a run that waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    Event,
    PreemptionRequested,
    SubEpochSaved,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.rest import api
from cerebro.state import RunState
from cerebro.state.experiment import fold
from controller.decisions.core import Core
from controller.sharing.arbiter import STAY_S
from controller.sharing.claims import held
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Neighbour, Scenario, WorkerOutage
from tests.controller.side_by_side import assert_apart
from tests.controller.test_core import (
    assert_complete,
    own_partition,
    plan,
    request,
    several_devices,
)

OTHER = "other"
SUB_EPOCH_S = 3600.0


def two_runs(workers: int = 4, *, at: float = 1000.0, of_other: int = 8, **scenario: object) -> Simulation:
    """Two fits of 8 models with sub-epochs of an hour. The second one, of `of_other` models, starts at `at`."""
    options: dict[str, object] = {
        "replicas": own_partition(workers),
        "sub_epoch_time": lambda body, worker: SUB_EPOCH_S,
        "lease_s": 3600.0,
        "saves": True,
        "saves_every_s": 300.0,
    }
    second = Neighbour(
        name=OTHER, request=request(of_other, 1), plan=plan(of_other, workers, rows=1000), at=at
    )
    return Simulation(
        Scenario(**(options | scenario)),  # type: ignore[arg-type]
        request(8, 1),
        plan(8, workers, rows=1000),
        neighbours=[second],
    )


def asked(simulation: Simulation) -> list[tuple[str, PreemptionRequested]]:
    """Return (experiment, request) of all preemptions, oldest first."""
    found = [
        (name, event)
        for name in simulation.cores
        for event in simulation.store.events(name)
        if isinstance(event, PreemptionRequested)
    ]
    return sorted(found, key=lambda each: each[1].time)


def first_start(simulation: Simulation) -> float:
    """Return the time of the second run's first task."""
    return next(e.time for e in simulation.store.events(OTHER) if isinstance(e, TaskStarted))


def devices_at(simulation: Simulation, experiment: str, time: float) -> int:
    """Return the number of devices with a run's tasks at a time."""
    state = fold(experiment, [e for e in simulation.store.events(experiment) if e.time <= time])
    return len(held(state, state.runs["fit-1"]))


def assert_nothing_is_repeated(log: Iterable[Event]) -> None:
    """Check that each preempted sub-epoch continues from its last savepoint."""
    events = [*log]
    preempted = {event.task for event in events if isinstance(event, PreemptionRequested)}
    saved = {e.task: e.savepoint.rows for e in events if isinstance(e, SubEpochSaved)}
    resumed = {e.task: e.result.resumed_rows for e in events if isinstance(e, TaskCommitted)}
    for task in preempted:
        assert resumed[task] > 0
        assert resumed[task] <= saved[task]
    trained: defaultdict[str, float] = defaultdict(float)
    began: dict[str, float] = {}
    for event in events:
        if isinstance(event, TaskStarted):
            began[event.task] = event.time
        elif isinstance(event, TaskCommitted | TaskFailed) and event.task in began:
            trained[event.task] += event.time - began.pop(event.task)
    for task in preempted:
        assert trained[task] == pytest.approx(SUB_EPOCH_S, rel=0.005)


def test_a_run_that_starts_late_gets_its_share_at_savepoints() -> None:
    """It starts at once, has half of the devices soon, and no work is repeated."""
    simulation = two_runs()
    simulation.run()
    assert first_start(simulation) == 1000.0
    assert [devices_at(simulation, name, 1700.0) for name in (EXPERIMENT, OTHER)] == [2, 2]
    for name in (EXPERIMENT, OTHER):
        assert_complete(fold(name, simulation.store.events(name)), epochs=1, partitions=4)
        assert_nothing_is_repeated(simulation.store.events(name))
    assert_apart(simulation)


def test_a_run_alone_on_its_share_is_not_preempted() -> None:
    """A run with one device keeps it: without it, it would be below its own share."""
    simulation = two_runs(workers=1)
    simulation.run()
    assert asked(simulation) == []


def test_sub_epochs_without_a_savepoint_are_not_preempted() -> None:
    simulation = two_runs(saves_every_s=0.0)
    simulation.run()
    assert asked(simulation) == []


def test_a_sub_epoch_that_ends_soon_is_not_preempted() -> None:
    """The first sub-epochs have shown how long they take."""
    simulation = two_runs(at=7195.0)
    simulation.run()
    assert first_start(simulation) == 7200.0


def test_an_unresponsive_worker_does_not_lose_its_sub_epoch_to_another_run() -> None:
    """Its batches may be long. The other run waits, as for the end of any sub-epoch."""
    simulation = two_runs(workers=2, deaf=frozenset({"worker-0", "worker-1"}))
    simulation.run()
    assert asked(simulation)
    requested = {event.task for _, event in asked(simulation)}
    revoked = {
        event.task
        for name in simulation.cores
        for event in simulation.store.events(name)
        if isinstance(event, TaskRevoked)
    }
    assert requested.isdisjoint(revoked)


def test_only_a_device_that_the_other_run_can_use_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run cannot start a task on worker-0."""
    decide = Core.decide

    def without_worker_0(core: Core, *args: object) -> list[object]:
        steps = decide(core, *args)  # type: ignore[arg-type]
        is_other = core.state.name == OTHER
        return [s for s in steps if not (is_other and isinstance(s, api.Assign) and s.worker == "worker-0")]

    monkeypatch.setattr(Core, "decide", without_worker_0)
    simulation = two_runs(replicas={f"worker-{n}": [0, 1, 2, 3] for n in range(4)})
    simulation.run()
    workers = {event.worker for name, event in asked(simulation) if name == EXPERIMENT}
    assert workers
    assert "worker-0" not in workers


def devices_of(simulation: Simulation, request: PreemptionRequested, experiment: str) -> tuple[int, ...]:
    """Return the devices of a preempted attempt."""
    return next(
        event.devices
        for event in simulation.store.events(experiment)
        if isinstance(event, TaskAssigned) and (event.task, event.attempt) == (request.task, request.attempt)
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 3), st.just(1), st.floats(0, 2000), st.sampled_from([-1, 0, 1])),
        min_size=2,
        max_size=3,
    ),
    devices=st.lists(st.integers(1, 2), min_size=3, max_size=3),
    times=st.randoms(use_true_random=False),
    saves_every_s=st.sampled_from((60.0, 200.0)),
    is_replicated=st.booleans(),
    crash=st.sets(st.integers(0, 120), max_size=2),
    outage=st.none() | st.tuples(st.integers(0, 2), st.floats(1, 2000), st.floats(1, 300)),
)
def test_preemption_between_runs_keeps_all_invariants(  # type: ignore[no-untyped-def]
    shapes, devices, times: Random, saves_every_s, is_replicated, crash, outage
) -> None:
    """Each run is complete, and each request follows a savepoint of its attempt.

    Two requests for the same device are a minimum hold time apart. The device may go back to the run if another one
    becomes free meanwhile.
    """
    (models, epochs, _, _), *others = shapes
    scenario = Scenario(
        replicas={f"worker-{n}": [0, 1, 2] if is_replicated else [n] for n in range(3)},
        devices=several_devices(*devices),
        sub_epoch_time=lambda body, worker: times.uniform(100.0, 900.0),
        outages=[WorkerOutage(worker=f"worker-{outage[0]}", start=outage[1], length=outage[2])]
        if outage is not None
        else [],
        saves=True,
        saves_every_s=saves_every_s,
        crash_before=frozenset(crash),
    )
    neighbours = [
        Neighbour(
            name=f"other-{n}", request=request(m, e), plan=plan(m, 3, rows=1000), at=at, priority=priority
        )
        for n, (m, e, at, priority) in enumerate(others)
    ]
    simulation = Simulation(
        scenario, request(models, epochs), plan(models, 3, rows=1000), neighbours=neighbours
    )
    simulation.run()
    all_epochs = {EXPERIMENT: epochs} | {f"other-{n}": e for n, (_, e, _, _) in enumerate(others)}
    saved, requests = set(), defaultdict(list)
    for name, count in all_epochs.items():
        state = fold(name, simulation.store.events(name))
        assert state.runs["fit-1"].state is RunState.FINISHED
        assert_complete(state, epochs=count, partitions=3)
        saved |= {
            (name, e.task, e.attempt) for e in simulation.store.events(name) if isinstance(e, SubEpochSaved)
        }
    assert_apart(simulation)
    for name, event in asked(simulation):
        assert (name, event.task, event.attempt) in saved
        requests[event.worker, devices_of(simulation, event, name)].append(event.time)
    if not crash:
        assert all(b - a >= STAY_S for found in requests.values() for a, b in pairwise(found))
