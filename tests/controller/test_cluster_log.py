"""Events of the cluster log, and exclusive devices across joins, losses and controllers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    ClusterEvent,
    TaskAssigned,
    WorkerJoined,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.contract.records import Replica, WorkerRecord
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import ConflictError
from cerebro.state import ClusterState
from cerebro.state.experiment import fold
from controller.scaling.cluster_decision import decide
from controller.scaling.cluster_log import ClusterLog
from controller.scaling.cluster_snapshot import Absence, ClusterSnapshot, Liveness, WorkerView
from controller.scaling.orchestrator import Exit
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Neighbour, Scenario, WorkerOutage
from research.simulation.store import VirtualStore
from tests.controller.test_core import plan, request, several_devices
from tests.state.exclusive import assert_exclusive

HERE = WorkerView(incarnation="a", weight=1.0, kinds=("train",), replicas=())
GONE = Absence(how=Liveness.GONE, exit=Exit(reason="its pod ended", kind=FailureKind.PREEMPTED))
AWAY = replace(HERE, absence=GONE)


def cluster(*events: ClusterEvent) -> ClusterState:
    state = ClusterState()
    for event in events:
        state.apply(event.model_copy(update={"seq": state.seq + 1}))
    return state


def joined(worker: str = "w0", incarnation: str = "a", *partitions: int) -> WorkerJoined:
    return WorkerJoined(
        worker=worker, incarnation=incarnation, weight=1.0, kinds=("train",), replicas=held(*partitions)
    )


def held(*partitions: int) -> tuple[Replica, ...]:
    return tuple(Replica(dataset="d", partition=partition) for partition in partitions)


LOST = WorkerLost(worker="w0", incarnation="a", reason="its pod ended")
REPLACED = LOST.model_copy(update={"reason": HERE.previous_exit.reason})
REMOVED = "it was removed and is no longer registered"


@pytest.mark.parametrize(
    ("known", "worker_view", "ending", "busy", "events"),
    [
        pytest.param([], HERE, (), (), [joined()], id="a new one"),
        pytest.param([], HERE, (), ("w0",), [joined()], id="the first ever, with tasks of before"),
        pytest.param([], AWAY, (), (), [], id="never there"),
        pytest.param([joined()], HERE, (), (), [], id="no news"),
        pytest.param([joined()], AWAY, (), (), [LOST], id="lost"),
        pytest.param([joined(), LOST], AWAY, (), (), [], id="lost already"),
        pytest.param([joined(), LOST], HERE, (), (), [joined()], id="back"),
        pytest.param([joined(), LOST], HERE, (), ("w0",), [], id="back, with tasks to revoke"),
        pytest.param(
            [joined()],
            replace(HERE, incarnation="b"),
            (),
            (),
            [REPLACED, joined(incarnation="b")],
            id="replaced",
        ),
        pytest.param(
            [joined()], replace(HERE, incarnation="b"), (), ("w0",), [REPLACED], id="replaced, with tasks"
        ),
        pytest.param(
            [joined()],
            HERE,
            (("w0", "a"),),
            (),
            [LOST.model_copy(update={"reason": "it was asked to end"})],
            id="ending, as a task of it tells",
        ),
        pytest.param([joined(), LOST], HERE, (("w0", "a"),), (), [], id="ending still"),
        pytest.param(
            [joined(), LOST],
            replace(HERE, incarnation="b"),
            (("w0", "a"),),
            (),
            [joined(incarnation="b")],
            id="ended, and another process is there",
        ),
        pytest.param(
            [joined()],
            None,
            (),
            (),
            [LOST.model_copy(update={"reason": REMOVED}), WorkerRemoved(worker="w0", reason=REMOVED)],
            id="removed",
        ),
        pytest.param(
            [joined()],
            None,
            (),
            ("w0",),
            [LOST.model_copy(update={"reason": REMOVED})],
            id="removed, with tasks",
        ),
    ],
)
def test_changes_of_a_worker_become_cluster_events(
    known: Sequence[ClusterEvent],
    worker_view: WorkerView | None,
    ending: Sequence[tuple[str, str]],
    busy: Sequence[str],
    events: Sequence[ClusterEvent],
) -> None:
    """The log and the snapshot decide. Experiments release tasks before a worker is replaced or removed."""
    state = cluster(*known)
    snapshot = ClusterSnapshot(workers={"w0": worker_view} if worker_view else {})
    assert decide(state, snapshot, ending=ending, busy=busy) == events
    for event in events:
        state.apply(event.model_copy(update={"seq": state.seq + 1}))
    assert decide(state, snapshot, ending=ending, busy=busy) == []


def test_only_the_leader_writes_and_it_reads_first() -> None:
    """With two controllers that believe they lead, the older term is refused and the newer one writes no duplicates."""
    store = VirtualStore(lambda: 0.0)
    store.register(WorkerRecord(worker="w0", incarnation="a", weight=1.0, cores=1, kinds=("train",)))
    snapshot = ClusterSnapshot(workers={"w0": HERE})
    first, second = ClusterLog(store), ClusterLog(store)
    old = store.lead("controller-0", 0.0).term
    assert first.reconcile(old, snapshot)
    term = store.lead("controller-1", 1.0).term
    assert not second.reconcile(term, snapshot)
    away = ClusterSnapshot(workers={"w0": AWAY})
    with pytest.raises(ConflictError):
        first.reconcile(old, away)
    assert second.reconcile(term, away)
    # It leads again with outdated knowledge; the event already exists.
    assert first.reconcile(term, away)
    assert not first.reconcile(term, away)
    assert [event.type for event in store.cluster_log()] == ["WorkerJoined", "WorkerLost"]


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_no_two_attempts_share_a_device_over_all_logs(data: st.DataObject) -> None:
    """Several experiments, changing workers, and controller crashes between any two writes. The check uses
    only the logs."""
    count = data.draw(st.integers(1, 3), label="workers")
    devices = several_devices(*(data.draw(st.integers(1, 2)) for _ in range(count)))
    times = st.floats(0.0, 20.0)
    outages = [
        WorkerOutage(worker=name, start=data.draw(times), length=data.draw(st.floats(0.1, 8.0)))
        for name in data.draw(st.sets(st.sampled_from(sorted(devices))), label="outages")
    ]
    crashes = data.draw(st.frozensets(st.integers(0, 60), max_size=4), label="crashes")
    partitions = range(count)
    scenario = Scenario(
        replicas={name: [*partitions] for name in devices},
        devices=devices,
        sub_epoch_time=lambda body, worker: 1.0,
        outages=outages,
        lease_s=data.draw(st.sampled_from([0.5, 3.0]), label="lease"),
        crash_before=crashes,
    )
    neighbours = [
        Neighbour(name=f"other-{number}", request=request(2, 1), plan=plan(2, count), at=data.draw(times))
        for number in range(data.draw(st.integers(0, 2), label="others"))
    ]
    simulation = Simulation(scenario, request(3, 1), plan(3, count), neighbours=neighbours)
    simulation.run()
    logs = {name: simulation.store.events(name) for name in (EXPERIMENT, *(n.name for n in neighbours))}
    for name, log in logs.items():
        assert fold(name, list(log)).runs["fit-1"].state == "finished"
        ours = [event for event in log if not isinstance(event, WorkerJoined | WorkerLost | WorkerRemoved)]
        assert len(ours) + len(simulation.store.cluster_log()) == len(log)
    assert assert_exclusive(logs) >= count * (3 + 2 * len(neighbours))
    assert any(isinstance(event, TaskAssigned) for event in logs[EXPERIMENT])
