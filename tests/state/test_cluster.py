"""The fold of the cluster log, and the effect of its events on an experiment's fold."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import (
    ClusterEvent,
    ReplicasChanged,
    TaskAssigned,
    TaskStarted,
    WorkerJoined,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.contract.records import Replica
from cerebro.errors import IllegalEventError
from cerebro.state import ClusterState, ExperimentState, Worker
from tests.state.exclusive import assert_exclusive
from tests.state.stories import Story, joined, lost, sub_epoch

WORKERS = ("w0", "w1", "w2")


def replica(partition: int) -> Replica:
    return Replica(dataset="d", partition=partition)


def join(worker: str, incarnation: str = "a", *partitions: int, volume: str = "") -> WorkerJoined:
    return WorkerJoined(
        worker=worker,
        incarnation=incarnation,
        weight=1.0,
        kinds=("train",),
        replicas=tuple(map(replica, partitions)),
        volume=volume or None,
    )


def lose(worker: str) -> WorkerLost:
    return WorkerLost(worker=worker, incarnation="a", reason="gone")


def remove(worker: str) -> WorkerRemoved:
    return WorkerRemoved(worker=worker, reason="gone")


def cluster(*events: ClusterEvent) -> ClusterState:
    state = ClusterState()
    for event in events:
        state.apply(event.model_copy(update={"seq": state.seq + 1}))
    return state


changes = st.one_of(
    st.builds(
        join,
        st.sampled_from(WORKERS),
        st.sampled_from("ab"),
        st.integers(0, 3),
        volume=st.sampled_from(["", "shared"]),
    ),
    st.builds(lose, st.sampled_from(WORKERS)),
    st.builds(remove, st.sampled_from(WORKERS)),
    st.builds(
        lambda volume, gained, gone: ReplicasChanged(
            volume=volume, gained=(replica(gained),), lost=(replica(gone),)
        ),
        st.sampled_from([*WORKERS, "shared"]),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
)


def comparable(worker: Worker) -> object:
    return worker.incarnation, worker.is_alive, worker.lost, worker.volume, frozenset(worker.replicas)


@given(st.lists(changes, max_size=30))
def test_an_experiment_and_the_cluster_log_agree_on_the_workers(changes: list[ClusterEvent]) -> None:
    """Both folds accept the same events and agree."""
    whole, part = ClusterState(), ExperimentState(name="one")
    for change in changes:
        event = change.model_copy(update={"seq": whole.seq + 1})
        try:
            whole.apply(event)
        except IllegalEventError:
            continue
        part.apply(event)
    assert {n: comparable(w) for n, w in part.workers.items()} == {
        n: comparable(w) for n, w in whole.workers.items()
    }
    assert part.seq == whole.seq


@pytest.mark.parametrize(
    ("before", "event", "match"),
    [
        ([join("w0")], join("w0", "b"), "joined twice"),
        ([], lose("w0"), "without having joined"),
        ([join("w0"), lose("w0")], lose("w0"), "without having joined"),
        ([join("w0")], remove("w0"), "without having been lost"),
        ([join("w0"), lose("w0"), remove("w0")], remove("w0"), "without having been lost"),
    ],
)
def test_the_cluster_log_refuses_inconsistent_events(
    before: list[ClusterEvent], event: ClusterEvent, match: str
) -> None:
    """One writer decides on the complete fold, so an inconsistent event is an error and changes nothing."""
    state = cluster(*before)
    known = {name: comparable(worker) for name, worker in state.workers.items()}
    with pytest.raises(IllegalEventError, match=match):
        state.apply(event.model_copy(update={"seq": state.seq + 1}))
    assert ({name: comparable(worker) for name, worker in state.workers.items()}, state.seq) == (
        known,
        len(before),
    )


def test_a_volume_gains_and_loses_partitions() -> None:
    """The change applies to all workers of the volume."""
    state = cluster(
        join("w0", "a", 1, volume="v"),
        join("w1", volume="v"),
        join("w2", "a", 1),
        ReplicasChanged(volume="v", gained=(replica(2),), lost=(replica(1),)),
    )
    assert [worker.replicas for worker in state.workers.values()] == [{("d", 2)}, {("d", 2)}, {("d", 1)}]


# --- In an experiment ---


def test_a_silent_worker_that_returns_keeps_its_task() -> None:
    """It keeps the task unless the controller has revoked the attempt."""
    story = Story()
    story.fit()
    story.start(sub_epoch(1, 0), 0)
    story.append(lost(0), joined(0))
    assert story.state.workers["worker-0"].stale_tasks == set()
    story.commit(sub_epoch(1, 0), 0)
    assert len(story.model().sub_epochs) == 1


def test_cluster_events_do_not_change_ended_runs() -> None:
    """The next run uses the workers that exist then."""
    story = Story()
    story.etl()
    before = {name: comparable(worker) for name, worker in story.state.workers.items()}
    seq = story.state.seq
    story.append(lost(0), joined(0, incarnation="b", partitions=(0, 7)), join("worker-9"))
    assert {name: comparable(worker) for name, worker in story.state.workers.items()} == before
    assert story.state.seq == seq + 3
    story.fit()
    assert story.state.workers["worker-0"].incarnation == "b"
    assert story.state.workers["worker-9"].is_alive


@given(st.lists(changes, max_size=30))
def test_a_new_run_sees_the_current_workers(
    changes: list[ClusterEvent],
) -> None:
    """It knows all present workers, and its own removed workers."""
    story, whole = Story(), ClusterState()
    story.etl()
    run_workers = dict(story.state.workers)
    for change in changes:
        event = change.model_copy(update={"seq": whole.seq + 1})
        try:
            whole.apply(event)
        except IllegalEventError:
            continue
        story.append(change)
    assert story.state.workers == run_workers
    story.fit()
    here = {name: comparable(worker) for name, worker in whole.workers.items() if not worker.is_removed}
    found = {name: comparable(worker) for name, worker in story.state.workers.items()}
    assert found == {name: comparable(worker) for name, worker in run_workers.items()} | here


def test_an_experiment_without_open_runs_does_not_grow_with_the_cluster() -> None:
    """It stores only present workers, even after a thousand joins and losses."""
    story = Story()
    story.etl()
    for number in range(1000):
        story.append(join(f"spot-{number}"), lose(f"spot-{number}"), remove(f"spot-{number}"))
    assert len(pickle.dumps(story.state)) < 100_000
    story.fit()
    assert all(name.startswith("worker-") for name in story.state.workers)


def test_two_attempts_on_one_device_are_found_in_the_logs() -> None:
    """The check for exclusive access finds a conflict between two experiments."""

    def log(began: float, worker: WorkerJoined) -> list[object]:
        named = {"task": "fit-1/train/m00/e1/p0", "attempt": 1, "worker": "w0"}
        return [
            worker,
            TaskAssigned.model_validate(named | {"devices": (0,)}),
            TaskStarted.model_validate(named | {"time": began}),
        ]

    first, second = log(1.0, join("w0")), log(2.0, join("w0"))
    with pytest.raises(AssertionError, match="device=0"):
        assert_exclusive({"one": first, "two": second})  # type: ignore[dict-item]
    assert assert_exclusive({"one": first, "two": log(2.0, join("w0", "b"))}) == 2  # type: ignore[dict-item]
