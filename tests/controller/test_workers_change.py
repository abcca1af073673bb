"""Workers in two-worker pods that are lost, preempted, removed or added during a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.commands.planning import plan_evaluation
from cerebro.contract.events import (
    Event,
    RunFinished,
    RunRequested,
    RunStarted,
    TaskAssigned,
    TaskCommitted,
    TaskRevoked,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.contract.runs import EvaluateRequest
from cerebro.contract.tasks.bodies import EtlTask, TaskBody
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import ExperimentState, RunState
from cerebro.state.experiment import fold
from controller.decisions.device_slots import DeviceSlots
from controller.exclusions.collection import Exclusions
from controller.sources.replication import replica_tasks
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Preemption, Scenario, SubEpochTime, WorkerOutage
from tests.controller.test_core import (
    assert_complete,
    assert_exclusive,
    device_counts,
    own_partition,
    plan,
    request,
    several_devices,
)
from tests.state.stories import Story, lost

ETL_S = 2.0
SUB_EPOCH_S = 3.0


def at_speed(etl_s: float = ETL_S, sub_epoch_s: float = SUB_EPOCH_S) -> SubEpochTime:
    """Fixed times for ETL and for sub-epochs."""
    return lambda body, worker: etl_s if isinstance(body, EtlTask) else sub_epoch_s


def simulate(
    scenario: Scenario, *, models: int = 3, epochs: int = 2, partitions: int | None = None
) -> Simulation:
    """Return a finished run in pods."""
    scenario.has_pods = True
    count = partitions or len({p for held in scenario.replicas.values() for p in held})
    simulation = Simulation(scenario, request(models, epochs), plan(models, count))
    simulation.run()
    return simulation


def remade(log: Sequence[Event]) -> list[tuple[str, str]]:
    """Return (partition, worker) of partitions rebuilt within the fit."""
    return [
        (event.task.removeprefix("fit-1/etl/train/"), event.worker)
        for event in log
        if isinstance(event, TaskCommitted) and event.task.startswith("fit-1/etl/train/")
    ]


def trained_by(state: ExperimentState) -> dict[int, set[str]]:
    """Map partitions to the workers that trained on them."""
    found: dict[int, set[str]] = {}
    for model in state.runs["fit-1"].models.values():
        for sub_epoch in model.sub_epochs:
            found.setdefault(sub_epoch.partition, set()).add(sub_epoch.worker)
    return found


# --- Two workers in a pod ---


def test_both_workers_of_a_lost_pod_are_lost_at_once() -> None:
    """The cluster manager reports it, so no lease wait and no charged failure occur."""
    scenario = Scenario(
        replicas=own_partition(2),
        sub_epoch_time=at_speed(),
        outages=[WorkerOutage(worker="worker-1", start=ETL_S + 1, length=5.0)],
        lease_s=1000.0,
    )
    simulation = simulate(scenario)
    lost = [event for event in simulation.log if isinstance(event, WorkerLost)]
    assert {event.worker for event in lost} == {"worker-1", "worker-1-etl"}
    assert {event.time for event in lost} == {ETL_S + 1}
    revoked = [event for event in simulation.log if isinstance(event, TaskRevoked)]
    assert {event.loss for event in revoked} <= {FailureKind.PREEMPTED, None}
    assert simulation.now < 60
    tasks_done = fold(EXPERIMENT, simulation.log).runs["fit-1"].tasks.by_key.values()
    assert sum(task.losses + task.failures for task in tasks_done) == 0


def test_a_worker_releases_its_tasks_before_shutdown() -> None:
    """Its tasks are released at once, it gets no others, and it returns later."""
    notice = ETL_S + 1
    scenario = Scenario(
        replicas={"worker-0": [0], "worker-1": [1], "worker-2": []},
        sub_epoch_time=at_speed(),
        outages=[Preemption(worker="worker-1", start=notice, length=4.0)],
    )
    simulation = simulate(scenario, epochs=3)
    log = simulation.log
    assert_complete(fold(EXPERIMENT, log), epochs=3, partitions=2)
    between = [e for e in log if isinstance(e, TaskAssigned) and notice < e.time < notice + 5]
    assert all(not event.worker.startswith("worker-1") for event in between)
    (lost,) = [event for event in log if isinstance(event, WorkerLost) and event.worker == "worker-1"]
    assert (lost.time, lost.reason) == (notice, "its node is being drained")


# --- Removed workers ---


def test_a_partition_of_a_removed_worker_is_rebuilt() -> None:
    """The ETL worker of a training pod rebuilds it within the run, which finishes normally."""
    scenario = Scenario(
        replicas=own_partition(3), sub_epoch_time=at_speed(), removals={"worker-1": ETL_S + SUB_EPOCH_S + 1}
    )
    simulation = simulate(scenario)
    state = fold(EXPERIMENT, simulation.log)
    assert_complete(state, epochs=2, partitions=3)
    assert_exclusive(simulation)
    ((partition, maker),) = remade(simulation.log)
    assert partition == "p1"
    assert maker in ("worker-0-etl", "worker-2-etl")
    assert trained_by(state)[1] == {"worker-1", maker.removesuffix("-etl")}
    removed = {event.worker for event in simulation.log if isinstance(event, WorkerRemoved)}
    assert removed == {"worker-1", "worker-1-etl"}
    assert not state.workers["worker-1"].replicas


def test_a_partition_that_cannot_be_rebuilt_fails_the_run_with_the_reason() -> None:
    """The run must not wait forever."""
    boom = Failure(kind=FailureKind.USER_ERROR, message="row 7: no such image")

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        return boom if isinstance(body, EtlTask) and body.key.startswith("fit-1") else None

    scenario = Scenario(
        replicas=own_partition(2),
        sub_epoch_time=at_speed(),
        outcome=outcome,
        removals={"worker-1": ETL_S + 1},
    )
    run = fold(EXPERIMENT, simulate(scenario).log).runs["fit-1"]
    assert run.state is RunState.FAILED
    assert "training partition 1" in run.failures.error
    assert "no such image" in run.failures.error


def test_a_test_on_training_data_rebuilds_a_lost_partition() -> None:
    """Only a run that reads the partition requests it."""
    story = Story(workers=2)
    story.etl(splits={"train": 10, "test": 4})
    story.fit(models=1, epochs=1)
    story.epoch(1)
    story.append(
        RunFinished(run="fit-1", outcome="finished"), lost(1), WorkerRemoved(worker="worker-1", reason="gone")
    )
    requests = {}
    for number, split in enumerate(("train", "test"), start=1):
        run = f"test-{number}"
        request = EvaluateRequest(kind="test", fit="fit-1", split=split)
        story.append(RunRequested(run=run, request=request))
        story.append(RunStarted(run=run, plan=plan_evaluation(story.state, request)))
        slots = DeviceSlots(story.state.workers.values())
        test_run = story.state.runs[run]
        requests[split] = [
            str(key) for _, key in replica_tasks(story.state, test_run, None, slots, Exclusions())
        ]
        # A starting worker may bring it.
        assert replica_tasks(story.state, test_run, None, slots, Exclusions(), is_filling=True) == []
        story.append(RunFinished(run=run, outcome="stopped"))
    assert requests == {"train": ["test-1/etl/train/p1"], "test": []}


# --- Workers without data ---


def test_a_worker_that_joins_without_data_gets_a_replica_and_trains() -> None:
    """It gets one useful replica after another, and the run finishes earlier."""
    replicas: Mapping[str, Sequence[int]] = {"worker-0": [0], "worker-1": [1], "worker-2": []}
    short = {"worker-0": [0], "worker-1": [1]}
    without = simulate(Scenario(replicas=short, sub_epoch_time=at_speed()), models=6, epochs=3)
    with_it = simulate(
        Scenario(replicas=replicas, sub_epoch_time=at_speed(), joins={"worker-2": 10.0}), models=6, epochs=3
    )
    assert sorted(remade(with_it.log)) == [("p0", "worker-2-etl"), ("p1", "worker-2-etl")]
    state = fold(EXPERIMENT, with_it.log)
    assert_complete(state, epochs=3, partitions=2)
    assert all("worker-2" in workers for workers in trained_by(state).values())
    assert with_it.now < 0.85 * without.now


# --- Random changes ---

happenings = st.lists(
    st.tuples(
        st.sampled_from(["loss", "preemption", "removal"]),
        st.integers(0, 3),
        st.floats(0.5, 60),
        st.floats(1.5, 30),
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=80)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)),
    events=happenings,
    joined=st.lists(st.floats(0.5, 60), max_size=2),
    crashes=st.frozensets(st.integers(0, 60), max_size=3),
    etl_s=st.sampled_from([0.5, 5.0, 40.0]),
    devices=device_counts,
)
def test_every_sub_epoch_is_committed_once_with_changing_workers(  # type: ignore[no-untyped-def]
    shape, events, joined, crashes, etl_s, devices
) -> None:
    """Losses, preemptions, removals (except of the first pod), joins and controller crashes."""
    models, workers, epochs = shape
    replicas: dict[str, Sequence[int]] = dict(own_partition(workers))
    joins = {f"worker-{workers + number}": at for number, at in enumerate(joined)}
    replicas |= dict.fromkeys(joins, ())
    names = list(replicas)
    outages: list[WorkerOutage] = []
    removals: dict[str, float] = {}
    for kind, number, start, length in events:
        name = names[number % len(names)]
        if kind == "removal" and name != "worker-0":
            removals[name] = start
        elif kind == "loss":
            outages.append(WorkerOutage(worker=name, start=start, length=length))
        elif kind == "preemption":
            outages.append(Preemption(worker=name, start=start, length=length))
    scenario = Scenario(
        replicas=replicas,
        sub_epoch_time=at_speed(etl_s=etl_s),
        outages=outages,
        removals=removals,
        joins=joins,
        devices=several_devices(*devices),
        crash_before=crashes,
    )
    simulation = simulate(scenario, models=models, epochs=epochs, partitions=workers)
    state = fold(EXPERIMENT, simulation.log)
    assert state.runs["fit-1"].state is RunState.FINISHED
    assert_complete(state, epochs=epochs, partitions=workers)
    assert_exclusive(simulation)
