"""Workers that share a volume, shut down, or are removed, as recorded in the log."""

from __future__ import annotations

import pytest

from cerebro.contract.events import (
    RunRequested,
    RunStarted,
    TaskRevoked,
    WorkerJoined,
    WorkerLost,
    WorkerRemoved,
)
from cerebro.contract.records import Replica
from cerebro.contract.runs import EtlRequest
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import IllegalEventError
from cerebro.state import TaskKey, TaskState, waiting_for
from tests.state.stories import DATASET, SHA, Story, etl_plan, joined, lost, sub_epoch

P0, P1 = (DATASET, 0), (DATASET, 1)


def on_volume(
    worker: str, volume: str, *kinds: str, incarnation: str = "a", partitions: tuple[int, ...] = ()
) -> WorkerJoined:
    return WorkerJoined(
        worker=worker,
        incarnation=incarnation,
        weight=1.0,
        kinds=kinds,
        replicas=tuple(Replica(dataset=DATASET, partition=p) for p in partitions),
        volume=volume,
    )


def lost_event(worker: str, incarnation: str = "a") -> WorkerLost:
    return WorkerLost(worker=worker, incarnation=incarnation, reason="gone")


def pair() -> Story:
    """A pod with a training worker and an ETL worker on one volume."""
    story = Story(workers=0)
    story.append(on_volume("worker-0", "pod-0", "train"), on_volume("worker-0-etl", "pod-0", "etl"))
    return story


# --- Shared volume ---


def test_workers_of_one_volume_share_its_partitions() -> None:
    """Workers on other volumes do not hold it."""
    story = pair()
    story.append(
        on_volume("worker-1", "pod-1", "train"),
        RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)),
        RunStarted(run="etl-1", plan=etl_plan(1, {"train": 10})),
    )
    story.append(on_volume("worker-9", "pod-0", "etl"))
    key = TaskKey(run="etl-1", kind="etl", split="train", partition=0)
    story.do(key, 9, TaskResult(rows=10))
    held = {name: worker.replicas for name, worker in story.state.workers.items()}
    assert held == {"worker-0": {P0}, "worker-0-etl": {P0}, "worker-9": {P0}, "worker-1": set()}


def test_a_volume_without_live_workers_takes_the_newest_inventory() -> None:
    """The disk may be new, so the newest inventory counts for all workers of the volume."""
    story = Story(workers=0)
    story.append(
        on_volume("worker-0", "pod-0", "train", partitions=(0,)), on_volume("worker-0-etl", "pod-0", "etl")
    )
    story.append(lost_event("worker-0"), lost_event("worker-0-etl"))
    story.append(on_volume("worker-0", "pod-0", "train", incarnation="b"))
    assert story.state.holders(*P0) == []


# --- Removed workers ---


def test_a_removed_worker_holds_nothing_but_is_remembered() -> None:
    """Its sub-epochs stay, and no run waits for it."""
    story = Story()
    story.etl()
    story.fit(epochs=1)
    story.train(1, 1)
    story.append(lost(1), WorkerRemoved(worker="worker-1", reason="scaled away"))
    assert story.state.holders(*P1) == []
    assert story.model().sub_epochs[0].worker == "worker-1"
    assert "worker-1 " not in waiting_for(story.state, story.run)


# --- Rebuilt partitions ---


def test_a_fit_may_rebuild_a_partition_repeatedly() -> None:
    """The task is not part of the run's progress or completeness."""
    story = Story()
    story.etl()
    story.fit(epochs=1)
    progress = story.run.progress()
    key = TaskKey(run="fit-1", kind="etl", split="train", partition=1)
    for _ in range(2):
        story.do(key, 0, TaskResult(rows=10))
    assert story.state.workers["worker-0"].replicas == {P0, P1}
    assert story.run.tasks.by_key[str(key)].state is TaskState.PENDING
    assert [attempt.outcome for attempt in story.run.tasks.by_key[str(key)].attempts] == ["committed"] * 2
    assert story.run.progress() == progress
    assert str(key) not in [str(task.key) for task in story.run.tasks.requested()]


@pytest.mark.parametrize(("split", "partition"), [("valid", 0), ("train", 7)])
def test_a_fit_rebuilds_only_training_partitions_of_its_data_set(split: str, partition: int) -> None:
    story = Story()
    story.etl()
    story.fit()
    with pytest.raises(IllegalEventError, match="no partition that fit-1 could want"):
        story.assign(TaskKey(run="fit-1", kind="etl", split=split, partition=partition), 0)


def test_a_full_shard_volume_does_not_pause_the_run() -> None:
    """Space on the checkpoint volume would not help. The attempt counts, which limits retries."""
    story = Story()
    story.etl()
    story.fit(max_attempts=2)
    key = TaskKey(run="fit-1", kind="etl", split="train", partition=1)
    for state in (TaskState.PENDING, TaskState.FAILED):
        story.fail(key, 0, FailureKind.STORAGE_FULL)
        assert story.run.tasks.by_key[str(key)].state is state
    assert story.run.pause.volume_failure is None
    assert story.run.failures.fatal is None


# --- Cost of a lost worker ---


@pytest.mark.parametrize(
    ("loss", "is_running", "losses", "failures"),
    [
        (FailureKind.PREEMPTED, True, 0, 0),
        (FailureKind.CRASH, True, 1, 0),
        (FailureKind.OUT_OF_MEMORY, True, 0, 1),
        (FailureKind.OUT_OF_MEMORY, False, 0, 0),
        (FailureKind.CRASH, False, 0, 0),
        (None, True, 0, 0),
    ],
)
def test_the_cost_of_a_lost_task_depends_on_the_kind_of_loss(
    loss: FailureKind | None, is_running: bool, losses: int, failures: int
) -> None:
    """Only a running task may have caused the loss."""
    story = Story()
    story.fit()
    (story.start if is_running else story.assign)(sub_epoch(1, 0), 0)
    story.append(
        TaskRevoked(task=str(sub_epoch(1, 0)), attempt=1, worker="worker-0", reason="gone", loss=loss)
    )
    task = story.run.tasks.by_key[str(sub_epoch(1, 0))]
    assert (task.state, task.losses, task.failures) == (TaskState.PENDING, losses, failures)
    assert task.exhausted == ({"worker-0"} if failures else set())


def test_a_worker_that_releases_a_task_is_ending_until_it_rejoins() -> None:
    """The mark disappears when the worker joins again."""
    story = Story()
    story.fit()
    story.fail(sub_epoch(1, 0), 0, FailureKind.PREEMPTED)
    assert story.state.workers["worker-0"].is_ending
    story.append(lost(0), joined(0, incarnation="b"))
    assert not story.state.workers["worker-0"].is_ending


# --- Waiting ---
