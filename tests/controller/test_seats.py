"""Devices that several units share in turns: each unit has a seat, and a device without a unit goes first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import TaskAssigned, TaskStarted
from cerebro.contract.runs import FitRequest
from cerebro.contract.tasks import Curve, Failure, FailureKind, TaskBody, TrainTask
from cerebro.state import RunState
from cerebro.state.experiment import fold
from controller.places import Places
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario, WorkerOutage
from tests.controller.test_core import (
    assert_complete,
    assert_exclusive,
    own_partition,
    plan,
    request,
    several_devices,
    simulate,
)
from tests.controller.test_merits import curve


def learning(body: TrainTask, seconds: float) -> Curve:
    """What a unit shows."""
    return curve(body.model, body.unit, seconds)


shapes = st.tuples(st.integers(1, 7), st.integers(1, 3), st.integers(1, 2))
counts = st.lists(st.sampled_from((1, 1, 2)), min_size=3, max_size=3)


@settings(deadline=None, max_examples=60)
@given(
    shape=shapes,
    devices=counts,
    seats=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    outages=st.lists(
        st.tuples(st.integers(0, 2), st.floats(0.1, 20), st.floats(0.1, 60)),
        max_size=2,
        unique_by=lambda each: each[0],
    ),
    bad=st.sets(st.tuples(st.integers(0, 6), st.integers(0, 5)), max_size=2),
    kind=st.sampled_from((FailureKind.CRASH, FailureKind.OUT_OF_MEMORY, FailureKind.HANG)),
    policy=st.sampled_from(("lrptw", "promising", "rr", "fifo")),
    crash=st.sets(st.integers(0, 60), max_size=2),
    validated=st.booleans(),
    saves=st.booleans(),
    times=st.randoms(use_true_random=False),
)
def test_with_seats_all_that_is_promised_holds(  # type: ignore[no-untyped-def]
    shape, devices, seats, outages, bad, kind, policy, crash, validated, saves, times
) -> None:
    """Each model visits each partition once an epoch, no seat has two units, each unit is committed once: with units
    that crash, hang or run out of memory, workers that go and end, and a controller that dies."""
    models, workers, epochs = shape

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        unit = (int(getattr(body, "model", "m0")[1:]), getattr(body, "unit", -1))
        is_idle = kind is FailureKind.HANG
        found = Failure(kind=kind, message="bad luck", is_idle=is_idle)
        return found if attempt == 1 and unit in bad else None

    scenario = Scenario(
        holdings=own_partition(workers),
        devices=several_devices(*devices[:workers]),
        seats=several_devices(*seats[:workers]),
        unit_time=lambda body, worker: times.uniform(0.1, 5.0),
        outcome=outcome,
        curve=learning,
        outages=[
            WorkerOutage(worker=f"worker-{number}", start=start, length=length)
            for number, start, length in outages
            if number < workers
        ],
        saves=saves,
        crash_before=frozenset(crash),
    )
    asked = request(models, epochs).model_copy(update={"scheduler": policy})
    simulation = Simulation(scenario, asked, plan(models, workers, validated=validated, rows=10))
    simulation.run()
    state = fold(EXPERIMENT, simulation.log)
    assert state.runs["fit-1"].state is RunState.FINISHED
    assert_complete(state, epochs=epochs, partitions=workers)
    assert_exclusive(simulation)


def first_places(*, seats: int, models: int, workers: int = 2, devices: int = 1) -> Counter[tuple[str, int]]:
    """(worker, device) -> units that sit there at the beginning."""
    scenario = Scenario(
        holdings={f"worker-{n}": [*range(workers)] for n in range(workers)},
        devices=several_devices(*[devices] * workers),
        seats=several_devices(*[seats] * workers),
        unit_time=lambda body, worker: 3.0,
    )
    simulation = simulate(scenario, models=models, partitions=workers)
    given = {(e.task, e.attempt): e.devices[0] for e in simulation.log if isinstance(e, TaskAssigned)}
    started = [e for e in simulation.log if isinstance(e, TaskStarted) and e.time == 0.0]
    return Counter((e.worker, given[e.task, e.attempt] % devices) for e in started)


@pytest.mark.parametrize(
    ("models", "each"),
    [(4, [1, 1, 1, 1]), (6, [2, 2, 1, 1]), (8, [2, 2, 2, 2]), (16, [4, 4, 4, 4])],
)
def test_a_device_at_which_fewer_units_sit_goes_first(models: int, each: list[int]) -> None:
    """Of any worker, and of any of its devices: nobody shares one while another one is idle."""
    found = first_places(seats=4, models=models, devices=2)
    assert sorted(found.values(), reverse=True) == each


def test_seats_cost_no_time_where_units_are_many() -> None:
    """Whoever has the turn computes, so a device with seats does as much as one without."""
    took = []
    for seats in (1, 4):
        scenario = Scenario(
            holdings=own_partition(1), seats={"worker-0": seats}, unit_time=lambda body, worker: 2.0
        )
        took.append(simulate(scenario, models=8, partitions=1, epochs=3).now)
    assert took == pytest.approx([8 * 3 * 2.0] * 2)


def test_who_has_most_merit_has_the_turn() -> None:
    """By `promising`, units tell what their model is worth; without seats, and by other policies, they do not."""

    def merits(policy: str, seats: int) -> set[bool]:
        told: set[bool] = set()

        def unit_time(body: TaskBody, worker: str) -> float:
            if isinstance(body, TrainTask):
                told.add(body.merit is not None)
            return 2.0

        asked: FitRequest = request(4, 3).model_copy(update={"scheduler": policy})
        scenario = Scenario(
            holdings=own_partition(1), seats={"worker-0": seats}, unit_time=unit_time, curve=learning
        )
        Simulation(scenario, asked, plan(4, 1, rows=10)).run()
        return told

    assert merits("promising", 4) == {True}
    assert merits("promising", 1) == {False}
    assert merits("lrptw", 4) == {False}


def test_the_first_free_seat_of_each_device_is_next() -> None:
    """Of N devices, seat n is at device n modulo N."""
    simulation = Simulation(
        Scenario(holdings=own_partition(1), devices={"worker-0": 2}, seats={"worker-0": 3}),
        request(1, 1),
        plan(1, 1),
    )
    simulation.run()
    (worker,) = fold(EXPERIMENT, simulation.log).workers.values()
    assert [worker.seats_beside(seat) for seat in (0, 3)] == [{0, 2, 4}, {1, 3, 5}]
    places = Places([worker])
    assert places.next_seats(worker, 0) == [0, 1]
    places.take("worker-0", (0,))
    assert places.next_seats(worker, 0) == [1]
    assert places.next_seats(worker, 1) == [2, 1]
    places.take("worker-0", (2,))
    places.take("worker-0", (4,))
    assert places.next_seats(worker, 2) == [1]
