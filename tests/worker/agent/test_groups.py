"""The ranks of an attempt are processes on several devices that act as one child."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from cerebro.contract.events import TaskCommitted, TaskFailed
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.rest import api
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from tests.small_volume import fill, small_volume
from tests.worker.agent.agents import LIMIT_S, Agents, is_running, until
from tests.worker.training.handlers import volumes_in

PARALLEL_PLAN = ParallelPlan(technique="ddp", size=2)
CHECKPOINT = CheckpointRef(name="one/fit-1/m00/u1.pt", checksum="0" * 16, size=1)
BOTH = (0, 1)


def give(agents: Agents, partition: int, do: str, **options: float) -> str:
    return agents.give(partition, do, devices=BOTH, parallel_plan=PARALLEL_PLAN, **options)  # type: ignore[arg-type]


def failure_of(agents: Agents, key: str) -> Failure:
    event = agents.end_of(key)
    assert isinstance(event, TaskFailed)
    return event.failure


def done(agents: Agents, key: str, *partitions: int) -> None:
    for partition in partitions:
        agents.gate(partition).touch()
    assert isinstance(agents.end_of(key), TaskCommitted)


def test_each_device_has_a_rank_and_its_child_process_is_reused(agents: Agents) -> None:
    """Children of single-device sub-epochs become ranks, and run single-device sub-epochs again afterwards."""
    agents.start(devices=2)
    alone = [agents.give(number, "wait", devices=(number,)) for number in BOTH]
    children = [os.getpgid(agents.begun(number)) for number in BOTH]
    for number in BOTH:
        done(agents, alone[number], number)
    together = give(agents, 2, "wait")
    assert [os.getpgid(agents.begun(2, rank)) for rank in BOTH] == children
    assert "threads 2 2" in agents.log(2)
    done(agents, together, 2)
    after = [agents.give(3 + number, "wait", devices=(number,)) for number in BOTH]
    assert [os.getpgid(agents.begun(3 + number)) for number in BOTH] == children
    for number in BOTH:
        done(agents, after[number], 3 + number)


def test_the_next_sub_epoch_of_a_group_starts_before_the_store_has_answered(agents: Agents) -> None:
    """The same children run it."""
    agents.start(devices=2)
    first = give(agents, 0, "wait")
    children = [os.getpgid(agents.begun(0, rank)) for rank in BOTH]
    second = agents.give(1, "wait", devices=BOTH, parallel_plan=PARALLEL_PLAN, checkpoint=CHECKPOINT)
    done(agents, first, 0)
    assert [os.getpgid(agents.begun(1, rank)) for rank in BOTH] == children
    done(agents, second, 1)


ENDS = [
    ("wait|crash", FailureKind.CRASH, 1, "rank 1 of 2 (device 1): the process ended by signal SIGKILL"),
    ("lost|raise", FailureKind.USER_ERROR, 1, "rank 1 of 2 (device 1): ValueError: boom"),
    ("wait|memory", FailureKind.OUT_OF_MEMORY, 1, "rank 1 of 2 (device 1): MemoryError: no more"),
    ("lost|lost", FailureKind.CRASH, None, "lost its connection to another rank, which did not say why"),
    ("lost|crash", FailureKind.CRASH, 1, "rank 1 of 2 (device 1): the process ended by signal SIGKILL"),
    ("wait|exit", FailureKind.USER_ERROR, 1, "rank 1 of 2 (device 1): user code called exit(3)"),
    ("wait|preempt", FailureKind.USER_ERROR, None, "user code raised PreemptedError"),
]
"""Behaviour of each rank -> the failure's kind, rank and part of its message."""


@pytest.mark.parametrize(
    "ends", [ENDS[:4], pytest.param(ENDS[4:], marks=pytest.mark.slow)], ids=["common", "rare"]
)
def test_the_first_to_fail_ends_all_and_is_named(
    agents: Agents, ends: Sequence[tuple[str, FailureKind, int | None, str]]
) -> None:
    """A rank that only lost its peer is not blamed. The next sub-epoch gets new processes."""
    agents.start(devices=2)
    for number, (do, kind, rank, says) in enumerate(ends):
        before, failing = 2 * number, 2 * number + 1
        done(agents, give(agents, before, "wait"), before)
        pids = [agents.begun(before, each) for each in BOTH]
        failure = failure_of(agents, give(agents, failing, do))
        assert (failure.kind, says in failure.message) == (kind, True), failure.message
        if rank is not None:
            assert failure.rank == rank
        assert failure.is_by_parallel_plan
        assert not any(map(is_running, pids))
    done(agents, give(agents, 2 * len(ends), "work"))


def _folders(root: Path) -> set[str]:
    """Return the names of all folders; folders may disappear during the walk."""
    return {name for _, names, _ in os.walk(root) for name in names}


def test_the_next_process_of_a_worker_clears_its_rendezvous_folder(agents: Agents, tmp_path: Path) -> None:
    """A killed worker leaves the rendezvous folder on its own volume only."""
    process = agents.start(devices=2)
    give(agents, 0, "wait")
    agents.begun(0)
    places = volumes_in(tmp_path).rendezvous_root("worker-0")
    left = {path.name for path in places.iterdir()}
    assert len(left) == 1
    process.kill()
    process.wait(LIMIT_S)
    agents.start(devices=2)
    until(lambda: not places.exists(), "the folder is moved aside")
    until(lambda: not _folders(places.parent.parent) & left, "it is removed")


def test_the_death_of_a_rank_ends_the_attempt(agents: Agents) -> None:
    """The hang timeout would be much later; `benchmarks techniques` measures the delay."""
    agents.start(devices=2)
    for rank in BOTH:
        key = give(agents, rank, "wait")
        pids = [agents.begun(rank, number) for number in BOTH]
        os.kill(pids[rank], signal.SIGKILL)
        failure = failure_of(agents, key)
        assert (failure.kind, failure.rank) == (FailureKind.CRASH, rank)
        assert not any(map(is_running, pids))


def test_ranks_stop_at_the_same_batch_and_are_reused(agents: Agents) -> None:
    """This covers preemption and worker shutdown, and no rank waits for a peer that has left."""
    process = agents.start(devices=2)
    key = give(agents, 0, "batches")
    children = [os.getpgid(agents.begun(0, rank)) for rank in BOTH]
    assert agents.bench.ask(task=key) == "done"
    kind, message = agents.failure(key)
    assert (kind, "left between two batches" in message) == (FailureKind.PREEMPTED, True)
    key = give(agents, 1, "batches")
    pids = [agents.begun(1, rank) for rank in BOTH]
    assert list(map(os.getpgid, pids)) == children
    process.send_signal(signal.SIGTERM)
    assert agents.failure(key)[0] is FailureKind.PREEMPTED
    assert process.wait(LIMIT_S) == 0
    assert not any(map(is_running, pids))


def test_a_revoked_group_ends_immediately(agents: Agents) -> None:
    """All its processes end, and its devices run the next task."""
    agents.start(devices=2)
    key = give(agents, 0, "wait")
    pids = [agents.begun(0, rank) for rank in BOTH]
    step = api.Revoke(task=key, attempt=1, worker="worker-0", reason="stopped", force=True)
    assert agents.bench.decide(step) == ["done"]
    until(lambda: not any(map(is_running, pids)), "the processes end")
    done(agents, agents.give(1, "work", devices=(1,)))


def test_a_full_rendezvous_volume_is_named(agents: Agents, tmp_path: Path) -> None:
    """The run pauses, as for a checkpoint without space, and works again once there is space."""
    with small_volume(volumes_in(tmp_path).shards, "64k") as volume:
        process = agents.start(devices=2)
        filler = fill(volume)
        failure = failure_of(agents, give(agents, 2, "work"))
        assert failure.kind is FailureKind.STORAGE_FULL
        assert (
            f"no space to write in {volumes_in(tmp_path).rendezvous_root('worker-0')} (0 bytes"
            in failure.message
        )
        filler.unlink()
        done(agents, give(agents, 3, "work"))
        process.kill()
        process.wait(LIMIT_S)


def test_a_rank_that_cannot_start_may_be_the_fault_of_the_parallel_plan(
    agents: Agents, tmp_path: Path
) -> None:
    """Ranks need more processes than one device, so another parallel plan may work."""
    log = volumes_in(tmp_path).logs / "worker-0.1.child.log"
    log.mkdir(parents=True)
    process = agents.start(devices=2)
    found = [
        failure_of(agents, give(agents, 0, "work")),
        failure_of(agents, agents.give(1, "work", devices=(1,))),
    ]
    assert [(each.kind, each.is_by_parallel_plan) for each in found] == [
        (FailureKind.CRASH, True),
        (FailureKind.CRASH, False),
    ]
    assert all("the process could not be started: " in each.message for each in found)
    log.rmdir()
    done(agents, give(agents, 2, "work"))
    assert process.poll() is None


def test_a_parallel_plan_with_a_wrong_number_of_devices_is_refused(agents: Agents) -> None:
    """Otherwise a process would wait for missing ranks."""
    agents.start(devices=2)
    failure = failure_of(agents, agents.give(0, "work", devices=(0,), parallel_plan=PARALLEL_PLAN))
    assert failure.kind is FailureKind.NOT_APPLICABLE
    assert failure.message == "ddp-2 takes 2 devices, but the sub-epoch was given 1"
