"""Preemption by priority score: a running sub-epoch makes room for a much better model, and continues later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    Event,
    PreemptionRequested,
    PriorityChanged,
    SubEpochSaved,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
)
from cerebro.contract.tasks.bodies import TrainTask
from cerebro.contract.tasks.results import Curve, CurvePoint
from cerebro.state import RunState, TaskKey
from cerebro.state.experiment import fold
from controller.decisions.preemption import is_clearly_better
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Neighbour, Scenario, WorkerOutage
from tests.controller.searches import request_at
from tests.controller.test_core import (
    assert_complete,
    assert_exclusive,
    own_partition,
    plan,
    request,
    several_devices,
)

scores = st.floats(allow_nan=False)


@given(first=scores, second=scores, third=scores)
def test_no_models_preempt_each_other_in_a_circle(first: float, second: float, third: float) -> None:
    """True for any three scores."""
    assert not is_clearly_better(first, first)
    assert not (is_clearly_better(first, second) and is_clearly_better(second, first))
    is_chain = is_clearly_better(first, second) and is_clearly_better(second, third)
    assert not (is_chain and is_clearly_better(third, first))


def falling(half_life: float, sub_epoch: int, seconds: float) -> Curve:
    """A loss that halves every `half_life` sub-epochs."""
    points = ((0.1 + 0.2 * n, 7 * 2 ** (-(sub_epoch + n / 5) / half_life), 3) for n in range(5))
    return Curve(name="loss", points=tuple(CurvePoint(t * seconds, mean, n) for t, mean, n in points))


def fast_and_slow(
    policy: str, *, saves_every_s: float = 5.0, priority: int = 0, neighbours: Sequence[Neighbour] = ()
) -> Simulation:
    """Let m00, which learns fast, wait for a slow worker that trains m01, which hardly learns.

    A sub-epoch takes 100 s on worker-0 and 20 s on worker-1. Preemption is possible from 140 s to 190 s.
    `priority` is the user's priority for m01.
    """
    scenario = Scenario(
        replicas=own_partition(2),
        sub_epoch_time=lambda body, worker: 100.0 if worker == "worker-0" else 20.0,
        curve=lambda body, seconds: falling(2.0 if body.model == "m00" else 200.0, body.sub_epoch, seconds),
        saves=True,
        saves_every_s=saves_every_s,
    )
    fit_request = request(2, 2).model_copy(update={"scheduler": policy})
    simulation = Simulation(scenario, fit_request, plan(2, 2, rows=100), neighbours=neighbours)
    request_at(simulation, 0.5, PriorityChanged(run="fit-1", model="m01", priority=priority))
    simulation.run()
    return simulation


@pytest.mark.parametrize("policy", ["promising", "hermes"])
def test_a_much_better_model_gets_the_device_at_the_next_savepoint(policy: str) -> None:
    """The preempted sub-epoch continues from its savepoint afterwards, on the same partition."""
    simulation = fast_and_slow(policy)
    (preempted,) = (event for event in simulation.log if isinstance(event, PreemptionRequested))
    key = TaskKey.parse(preempted.task)
    assert (key.model, preempted.worker) == ("m01", "worker-0")
    given = [e for e in simulation.log if isinstance(e, TaskAssigned) and e.worker == "worker-0"]
    later = [TaskKey.parse(event.task) for event in given if event.time >= preempted.time]
    assert [(each.model, each.partition) for each in later[:2]] == [("m00", 0), ("m01", 0)]
    committed = [e for e in simulation.log if isinstance(e, TaskCommitted) and e.task == preempted.task]
    assert [event.result.resumed_rows > 0 for event in committed] == [True]
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=2, partitions=2)


def test_a_preempted_model_continues_before_it_trains_on_another_partition() -> None:
    """Another worker that becomes free holds both partitions; the savepoint is valid for only one partition."""
    seconds = {"worker-0": 50.0, "worker-1": 100.0, "worker-2": 100.0}
    scenario = Scenario(
        replicas={"worker-0": [0, 1], "worker-1": [1, 2], "worker-2": [2, 0]},
        sub_epoch_time=lambda body, worker: seconds[worker],
        curve=lambda body, seconds: falling(2.0 if body.model == "m02" else 1e6, body.sub_epoch, seconds),
        saves=True,
        saves_every_s=7.0,
    )
    simulation = Simulation(
        scenario, request(3, 2).model_copy(update={"scheduler": "promising"}), plan(3, 3, rows=100)
    )
    simulation.run()
    preempted = {event.task for event in simulation.log if isinstance(event, PreemptionRequested)}
    committed = [event for event in simulation.log if isinstance(event, TaskCommitted)]
    assert preempted
    assert preempted == {event.task for event in committed if event.result.resumed_rows > 0}


@pytest.mark.parametrize("policy", ["lrptw", "slaq", "rr"])
def test_other_policies_do_not_preempt(policy: str) -> None:
    assert not any(isinstance(event, PreemptionRequested) for event in fast_and_slow(policy).log)


def test_a_sub_epoch_without_a_savepoint_is_not_preempted() -> None:
    """Its work would be lost."""
    simulation = fast_and_slow("promising", saves_every_s=0.0)
    assert not any(isinstance(event, PreemptionRequested) for event in simulation.log)


def test_the_users_priority_overrides_the_priority_score() -> None:
    assert not any(
        isinstance(event, PreemptionRequested) for event in fast_and_slow("promising", priority=1).log
    )


def test_nothing_is_preempted_beside_other_runs() -> None:
    """The other run might get the freed device. It gets one because of its share, not because of a score."""
    other = Neighbour(name="other", request=request(1, 3), plan=plan(1, 2), at=130.0)
    simulation = fast_and_slow("promising", neighbours=[other])
    asked = [
        event for event in simulation.log if isinstance(event, PreemptionRequested) and event.time < 200.0
    ]
    assert not any("priority score" in event.reason for event in asked)


def preemptions(log: Iterable[Event]) -> list[tuple[PreemptionRequested, TaskAssigned | None]]:
    """Return each preemption with the next assignment to the freed device."""
    devices: dict[str, tuple[int, ...]] = {}
    ended: list[tuple[PreemptionRequested, TaskAssigned | None]] = []
    waiting: dict[tuple[str, tuple[int, ...]], PreemptionRequested] = {}
    requested: dict[str, PreemptionRequested] = {}
    for event in log:
        if isinstance(event, PreemptionRequested):
            requested[event.task] = event
        elif isinstance(event, TaskFailed) and event.task in requested:
            waiting[event.worker, devices[event.task]] = requested.pop(event.task)
        elif isinstance(event, TaskAssigned):
            devices[event.task] = event.devices
            found = waiting.pop((event.worker, event.devices), None)
            if found is not None:
                ended.append((found, event))
    return [*ended, *((request, None) for request in waiting.values())]


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(2, 6), st.integers(2, 3), st.integers(1, 2)),
    devices=st.lists(st.sampled_from((1, 1, 2)), min_size=3, max_size=3),
    policy=st.sampled_from(("promising", "hermes")),
    halves=st.permutations((1.0, 2.0, 5.0, 50.0, 500.0, 1e6)),
    times=st.randoms(use_true_random=False),
    saves_every_s=st.sampled_from((1.0, 7.0, 30.0)),
    crash=st.sets(st.integers(0, 80), max_size=2),
    outage=st.none() | st.tuples(st.integers(0, 2), st.floats(1, 200), st.floats(1, 60)),
)
def test_preemption_keeps_all_invariants(  # type: ignore[no-untyped-def]
    shape, devices, policy, halves, times, saves_every_s, crash, outage
) -> None:
    """Each model trains on each partition once per epoch, each sub-epoch is committed once, and no work is lost.

    A preempted attempt has always saved, so sub-epochs make progress after any number of preemptions. The
    freed device goes to another model. The preempted model continues that sub-epoch before it trains on
    another partition.
    """
    models, workers, epochs = shape

    def curve(body: TrainTask, seconds: float) -> Curve:
        return falling(halves[int(body.model[1:])] * times.uniform(0.5, 2.0), body.sub_epoch, seconds)

    scenario = Scenario(
        replicas={f"worker-{n}": [n, (n + 1) % workers] for n in range(workers)},
        devices=several_devices(*devices[:workers]),
        sub_epoch_time=lambda body, worker: (
            times.uniform(10.0, 30.0) * (5.0 if worker == "worker-0" else 1.0)
        ),
        curve=curve,
        outages=[WorkerOutage(worker=f"worker-{outage[0]}", start=outage[1], length=outage[2])]
        if outage is not None and outage[0] < workers
        else [],
        saves=True,
        saves_every_s=saves_every_s,
        crash_before=frozenset(crash),
    )
    fit_request = request(models, epochs).model_copy(update={"scheduler": policy})
    simulation = Simulation(scenario, fit_request, plan(models, workers, rows=1000))
    simulation.run()
    state = fold(EXPERIMENT, simulation.log)
    assert state.runs["fit-1"].state is RunState.FINISHED
    assert_complete(state, epochs=epochs, partitions=workers)
    assert_exclusive(simulation)
    saved = {(e.task, e.attempt) for e in simulation.log if isinstance(e, SubEpochSaved)}
    resumed = {e.task for e in simulation.log if isinstance(e, TaskCommitted) and e.result.resumed_rows > 0}
    for preempted, successor in preemptions(simulation.log):
        assert outage is not None or preempted.task in resumed
        assert (preempted.task, preempted.attempt) in saved
        assert successor is None or TaskKey.parse(successor.task).model != TaskKey.parse(preempted.task).model
