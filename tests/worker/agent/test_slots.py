"""A worker runs one task per device, independently of the others."""

from __future__ import annotations

import signal

from cerebro.contract.events import TaskCommitted, TaskFailed, TaskStarted
from cerebro.contract.rest import api
from cerebro.contract.tasks.failures import FailureKind
from tests.worker.agent.agents import LIMIT_S, Agents, is_running, until

LONG_S = 30.0


def has_begun(agents: Agents, partition: int) -> bool:
    path = agents.gate(partition).with_suffix(".begun")
    return path.exists() and path.read_text() != ""


def starts(agents: Agents) -> list[str]:
    """Return the keys of started tasks in order."""
    return [event.task for event in agents.bench.log() if isinstance(event, TaskStarted)]


def test_each_device_runs_its_own_task(agents: Agents) -> None:
    """Processes run in parallel, share the worker's cores, and are all reported."""
    agents.start(devices=2)
    (status,) = agents.bench.store.workers()
    assert ([d.threads for d in status.record.devices], status.record.weight) == ([2, 2], 2.0)
    keys = [agents.give(number, "wait", devices=(number,)) for number in (0, 1)]
    pids = [agents.begun(number) for number in (0, 1)]
    assert pids[0] != pids[1]

    def states() -> str:
        return agents.bench.store.workers()[0].running or ""

    until(lambda: all(f"one/{key}" in states() for key in keys), "both are told of")
    for number in (0, 1):
        agents.gate(number).touch()
    for number, key in enumerate(keys):
        assert isinstance(agents.end_of(key), TaskCommitted)
        assert "threads 2 2" in agents.log(number)


def test_the_end_of_an_attempt_does_not_affect_other_devices(agents: Agents) -> None:
    """The other process keeps its lease and commits its first attempt, and the device takes its next task."""
    agents.start(lease_s=1.0, devices=2)
    spared = agents.give(0, "wait", devices=(0,))
    pid = agents.begun(0)
    for number, how in enumerate(["raise", "exit", "crash", "hang", "memory"], start=1):
        event = agents.end_of(agents.give(number, how, devices=(1,), hang_timeout_s=0.3))
        assert isinstance(event, TaskFailed)
        assert event.failure.kind is not FailureKind.PREEMPTED
    revoked = agents.give(7, "wait", devices=(1,))
    lost = agents.begun(7)
    step = api.Revoke(task=revoked, attempt=1, worker="worker-0", reason="stopped", force=True)
    assert agents.bench.decide(step) == ["done"]
    until(lambda: not is_running(lost), "the process of the revoked attempt ends")
    assert isinstance(agents.end_of(agents.give(8, "work", devices=(1,))), TaskCommitted)
    assert is_running(pid)
    agents.gate(0).touch()
    assert isinstance(agents.end_of(spared), TaskCommitted)
    assert starts(agents).count(spared) == 1


def test_a_task_on_two_devices_waits_for_both_and_occupies_both(agents: Agents) -> None:
    """It starts after older tasks and before younger ones of either device."""
    agents.start(devices=2)
    one, other = agents.give(0, "wait", devices=(0,)), agents.give(1, "wait", devices=(1,))
    agents.begun(0), agents.begun(1)
    both = agents.give(2, "wait", devices=(0, 1))
    agents.gate(0).touch()
    agents.end_of(one)
    after = agents.give(3, "wait", devices=(0,))
    probe = agents.give(4, "work", devices=())
    agents.end_of(probe)  # by now the agent has read all earlier tasks
    assert not has_begun(agents, 2)
    assert not has_begun(agents, 3)
    agents.gate(1).touch()
    agents.begun(2)
    assert not has_begun(agents, 3)
    assert "threads 4 " in agents.log(2)
    for number in (2, 3):
        agents.gate(number).touch()
    assert isinstance(agents.end_of(after), TaskCommitted)
    assert [key for key in starts(agents) if key != probe] == [one, other, both, after]


def test_a_terminated_worker_preempts_all_tasks_at_their_next_batch(agents: Agents) -> None:
    """Queued tasks on all devices are released."""
    process = agents.start(grace_s=LONG_S, devices=2)
    running = [agents.give(0, "batches", devices=(0,)), agents.give(1, "batches", devices=())]
    waiting = [agents.give(2, "work", devices=(0,)), agents.give(3, "work", devices=())]
    running.append(agents.give(4, "batches", devices=(1,)))  # once it runs, the agent has read all others
    pids = [agents.begun(number) for number in (0, 1, 4)]
    process.send_signal(signal.SIGTERM)
    for key in running:
        kind, message = agents.failure(key)
        assert (kind, "it was left between two batches" in message) == (FailureKind.PREEMPTED, True)
    for key in waiting:
        assert agents.failure(key)[1].endswith("was asked to end before this task began")
    assert process.wait(LIMIT_S) == 0
    assert not any(map(is_running, pids))


def test_a_worker_that_was_killed_leaves_no_process(agents: Agents) -> None:
    """Each child is tied to the agent's thread that started it."""
    process = agents.start(devices=2)
    for number in (0, 1):
        agents.give(number, "wait", devices=(number,))
    pids = [agents.begun(number) for number in (0, 1)]
    process.kill()
    process.wait()
    until(lambda: not any(map(is_running, pids)), "end of the children")
