"""A worker runs a fused group in one process; each of its attempts starts and ends by itself."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cerebro.contract.events import SubEpochSaved, TaskCommitted, TaskFailed, TaskStarted
from cerebro.contract.tasks.failures import FailureKind
from tests.worker.agent.agents import LIMIT_S, Agents, until


def running(agents: Agents) -> tuple[str, ...]:
    """Return the attempts that the worker reported as running."""
    return agents.bench.store.workers()[0].tasks


def process_of(agents: Agents, partition: int) -> str:
    """Run a task, and return the process that forked one for it."""
    assert isinstance(agents.end_of(agents.give(partition, "pid")), TaskCommitted)
    return agents.log(partition).split("process ")[1].split()[0]


def savepoints(agents: Agents, task: str) -> list[int]:
    """Return the batches of the task's savepoints in the log."""
    events = [event for event in agents.bench.log() if isinstance(event, SubEpochSaved)]
    return [event.savepoint.batch for event in events if event.task == task]


def open_gates(agents: Agents, *numbers: int) -> None:
    for number in numbers:
        agents.gate(number).touch()


def test_one_process_trains_a_group_and_every_attempt_commits(agents: Agents) -> None:
    """The attempts start together, have their own results and live points, and share one log."""
    agents.start()
    keys = agents.give_group("wait", "wait", "wait")
    agents.begun(0)
    assert sorted(e.task for e in agents.bench.log() if isinstance(e, TaskStarted)) == keys
    open_gates(agents, 0, 1, 2)
    ends = [agents.end_of(key) for key in keys]
    assert [e.result.metrics["loss"] for e in ends if isinstance(e, TaskCommitted)] == [0.0, 1.0, 2.0]
    assert {point.task for point in agents.bench.store.live("one", 0, wait_s=0)} == set(keys)
    logs = [agents.log_folder / f"fit-1.train.g0{number}.e1.p0.a1.log" for number in range(3)]
    assert [log.read_text().count("a group of 3") for log in logs] == [1, 1, 1]


def test_a_model_that_fails_leaves_the_group_at_once(agents: Agents) -> None:
    """Its failure is in the log while the others train on."""
    agents.start(lease_s=100.0)
    keys = agents.give_group("wait", "nan", "wait")
    assert agents.failure(keys[1])[0] is FailureKind.NON_FINITE
    assert not any(isinstance(event, TaskCommitted) for event in agents.bench.log())
    open_gates(agents, 0, 2)
    assert isinstance(agents.end_of(keys[0]), TaskCommitted)
    assert isinstance(agents.end_of(keys[2]), TaskCommitted)
    after = agents.give(3, "pid")
    assert isinstance(agents.end_of(after), TaskCommitted)


def test_the_next_task_waits_for_the_last_attempt_of_a_group(agents: Agents) -> None:
    """If all models fail, the device is free at once."""
    agents.start()
    keys, after = agents.give_group("nan", "nan"), agents.give(3, "pid")
    assert {agents.failure(key)[0] for key in keys} == {FailureKind.NON_FINITE}
    assert isinstance(agents.end_of(after), TaskCommitted)


def test_a_preempted_model_leaves_with_a_savepoint_and_the_others_go_on(agents: Agents) -> None:
    """In the log the savepoint precedes the end of the attempt."""
    agents.start(lease_s=100.0)
    keys = agents.give_group("saves", "saves")
    until(lambda: savepoints(agents, keys[0]) == [2], "the group trains")
    assert agents.bench.ask(task=keys[0]) == "done"
    kind, message = agents.failure(keys[0])
    assert (kind, "the others of its group went on" in message) == (FailureKind.PREEMPTED, True)
    assert savepoints(agents, keys[0])[-1] > 2
    assert agents.bench.store.workers()[0].leaving == ""
    open_gates(agents, 1)
    assert isinstance(agents.end_of(keys[1]), TaskCommitted)


def test_a_revoked_model_leaves_the_group(agents: Agents) -> None:
    """It reports nothing more; after the last one the process ends and the device is free."""
    agents.start()
    keys = agents.give_group("wait", "wait")
    agents.begun(0)
    assert agents.bench.revoke(task=keys[0], force=True) == "done"
    open_gates(agents, 1)
    assert isinstance(agents.end_of(keys[1]), TaskCommitted)
    assert not any(isinstance(e, TaskCommitted) and e.task == keys[0] for e in agents.bench.log())
    again = agents.give(3, "pid")
    assert isinstance(agents.end_of(again), TaskCommitted)


def test_a_revoked_group_frees_its_device(agents: Agents) -> None:
    """The worker no longer reports its attempts as running."""
    agents.start()
    keys = agents.give_group("wait", "wait")
    agents.begun(0)
    until(lambda: len(running(agents)) == 2, "the attempts run")
    for key in keys:
        assert agents.bench.revoke(task=key, force=True) == "done"
    until(lambda: running(agents) == (), "the attempts end")
    assert isinstance(agents.end_of(agents.give(3, "pid")), TaskCommitted)


def test_a_possible_device_error_of_one_model_ends_the_process_after_its_group(agents: Agents) -> None:
    """Later calls in it would fail too. The others of its group commit."""
    agents.start()
    before = process_of(agents, 3)
    keys = agents.give_group("illegal", "wait")
    failed = agents.end_of(keys[0])
    assert isinstance(failed, TaskFailed)
    assert failed.failure.may_be_device
    open_gates(agents, 1)
    assert isinstance(agents.end_of(keys[1]), TaskCommitted)
    assert process_of(agents, 4) != before


def test_each_member_reports_the_memory_of_its_process(agents: Agents) -> None:
    """A model that trains alone later needs the interpreter and the libraries, too."""
    agents.start()
    keys = agents.give_group("wait", "wait", "wait", "wait")
    open_gates(agents, 0, 1, 2, 3)
    ends = [agents.end_of(key) for key in [*keys, agents.give(4, "work")]]
    peaks = [event.result.peak_bytes for event in ends if isinstance(event, TaskCommitted)]
    assert len(peaks) == 5
    assert min(peaks) > max(peaks) // 2


def test_a_model_that_is_cancelled_in_the_queue_never_starts(agents: Agents) -> None:
    """The others of its group start without it, even if it was the first."""
    agents.start()
    agents.give(3, "wait")
    agents.begun(3)
    keys = agents.give_group("wait", "wait", "wait")
    assert agents.bench.revoke(task=keys[0]) == "done"
    agents.gate(3).touch()
    agents.begun(1)
    open_gates(agents, 1, 2)
    assert isinstance(agents.end_of(keys[1]), TaskCommitted)
    assert isinstance(agents.end_of(keys[2]), TaskCommitted)
    assert keys[0] not in {e.task for e in agents.bench.log() if isinstance(e, TaskStarted)}


@pytest.mark.parametrize(("do", "kind"), [("crash", FailureKind.CRASH), ("ecc", FailureKind.DEVICE)])
def test_what_ends_the_process_ends_all_attempts(agents: Agents, do: str, kind: FailureKind) -> None:
    """The next task gets a new process."""
    agents.start()
    keys = agents.give_group("wait", do)
    assert {agents.failure(key)[0] for key in keys} == {kind}
    assert isinstance(agents.end_of(agents.give(3, "pid")), TaskCommitted)


def test_a_terminated_worker_releases_a_group_with_savepoints(agents: Agents) -> None:
    process = agents.start(lease_s=100.0)
    keys = agents.give_group("saves", "saves")
    agents.begun(0)
    process.send_signal(signal.SIGTERM)
    assert {agents.failure(key)[0] for key in keys} == {FailureKind.PREEMPTED}
    assert process.wait(LIMIT_S) == 0
    assert all(savepoints(agents, key) for key in keys)
    assert all(isinstance(e, TaskFailed) for e in agents.bench.log()[-2:])


def test_a_killed_worker_loses_its_group(agents: Agents) -> None:
    """Its successor gets other attempts of the same models."""
    process = agents.start()
    keys = agents.give_group("wait", "wait")
    child = agents.begun(0)
    process.kill()
    process.wait()
    until(lambda: not Path(f"/proc/{child}").exists(), "the process ends with its agent")
    agents.start()
    for key in keys:
        assert agents.bench.revoke(task=key, force=True) == "done"
    agents.give_group("wait", "wait", attempt=2)
    open_gates(agents, 0, 1)
    assert all(isinstance(agents.end_of(key, 2), TaskCommitted) for key in keys)
