"""Units that share a device: in turns, each in a process of its own, and none to another's harm."""

from __future__ import annotations

import itertools
import os
import signal

import pytest

from cerebro.contract import api
from cerebro.contract.events import TaskCommitted, TaskFailed
from cerebro.contract.tasks import FailureKind
from cerebro.contract.ways import Way
from tests.waiting import HANG_S
from tests.worker.agent.agents import Agents, is_running, until
from tests.worker.agent.test_slots import starts

SEATS = 3
NEVER = "1000"


def shared(agents: Agents, *, quantum_s: str = "0.02") -> None:
    """A worker whose only device has seats, and knows what its units take."""
    agents.start(devices=1, CEREBRO_SEATS=str(SEATS), CEREBRO_QUANTUM_S=quantum_s)
    assert isinstance(agents.end_of(agents.give(90, "work")), TaskCommitted)


def batches(agents: Agents) -> list[tuple[str, str]]:
    """(task, begins or ends) of all batches, in their order."""
    path = agents.gate(0).with_name("turns")
    lines = path.read_text().splitlines() if path.exists() else []
    return [(name, what) for name, _, what in (line.partition(" ") for line in lines)]


def tasks_of(agents: Agents) -> set[str]:
    return {name for name, _ in batches(agents)}


def test_one_computes_at_a_time_and_each_has_its_turns(agents: Agents) -> None:
    """All have begun, and none computes in another one's batch; how long each had the turn is in its result."""
    shared(agents)
    (status,) = agents.bench.store.workers()
    record = status.record
    assert (len(record.devices), record.seats, record.weight, record.widest) == (SEATS, SEATS, 1.0, 1)
    assert not {"trial", "inspect"} & set(record.kinds)
    keys = [agents.give(number, "turns", devices=(number,)) for number in range(SEATS)]
    pids = {agents.begun(number) for number in range(SEATS)}
    assert len(pids) == SEATS

    def changes() -> int:
        found = [name for name, _ in batches(agents)]
        return sum(one != other for one, other in itertools.pairwise(found))

    until(lambda: changes() > 3 * SEATS and len(tasks_of(agents)) == SEATS, "several turns of each")
    for number in range(SEATS):
        agents.gate(number).touch()
    for key in keys:
        event = agents.end_of(key)
        assert isinstance(event, TaskCommitted)
        assert event.result.turn_s > 0
    noted = batches(agents)
    assert noted[::2] == [(name, "begins") for name, _ in noted[1::2]]
    assert noted[1::2] == [(name, "ends") for name, _ in noted[::2]]


@pytest.mark.slow
def test_who_waits_for_its_turn_does_not_hang(agents: Agents) -> None:
    """However long; and when the one that has the turn hangs, that one is ended, and the next has the turn."""
    shared(agents, quantum_s=NEVER)
    hanging = agents.give(0, "turns", hang_timeout_s=1.0)
    agents.begun(0)
    until(lambda: bool(batches(agents)), "the first batch")
    waiting = agents.give(1, "turns", devices=(1,), hang_timeout_s=0.5)
    pid = agents.begun(1)
    os.kill(agents.begun(0), signal.SIGSTOP)
    assert agents.failure(hanging)[0] is FailureKind.HANG
    until(lambda: len(tasks_of(agents)) == 2, "the other has its turn")
    assert is_running(pid)
    agents.gate(1).touch()
    assert isinstance(agents.end_of(waiting), TaskCommitted)


def test_a_kill_gives_the_turn_to_the_next(agents: Agents) -> None:
    """Of the one that has it, of one that waits, and of one that was taken back while it waited."""
    shared(agents, quantum_s=NEVER)
    keys = [agents.give(0, "turns")]
    until(lambda: bool(batches(agents)), "the first batch")
    keys += [agents.give(number, "turns", devices=(number,)) for number in (1, 2)]
    pids = [agents.begun(number) for number in range(SEATS)]
    os.kill(pids[2], signal.SIGKILL)
    assert agents.failure(keys[2])[0] is FailureKind.CRASH
    again = agents.give(3, "turns", devices=(2,))
    pids.append(agents.begun(3))
    step = api.Revoke(task=again, attempt=1, worker="worker-0", reason="stopped", force=True)
    assert agents.bench.decide(step) == ["done"]
    until(lambda: not is_running(pids[3]), "the process of the attempt that was taken back ends")
    assert tasks_of(agents) == {"gate-0"}
    os.kill(pids[0], signal.SIGKILL)
    assert agents.failure(keys[0])[0] is FailureKind.CRASH
    until(lambda: "gate-1" in tasks_of(agents), "the next has its turn")
    agents.gate(1).touch()
    assert isinstance(agents.end_of(keys[1]), TaskCommitted)
    assert starts(agents).count(keys[1]) == 1


def test_a_worker_that_ends_has_all_leave_at_their_batch(agents: Agents) -> None:
    """Also those that wait for their turn."""
    shared(agents, quantum_s=NEVER)
    keys = [agents.give(number, "turns", devices=(number,)) for number in range(SEATS)]
    for number in range(SEATS):
        agents.begun(number)
    until(lambda: bool(batches(agents)), "the first batch")
    agents.processes[-1].terminate()
    for key in keys:
        kind, message = agents.failure(key)
        assert kind is FailureKind.PREEMPTED
        assert "it was left between two batches" in message
    assert agents.processes[-1].wait(HANG_S) == 0


def test_what_takes_several_devices_is_not_done_where_they_are_shared(agents: Agents) -> None:
    """Its ranks would wait for turns at each of them. The failure says why, so that the next way is taken."""
    shared(agents)
    key = agents.give(0, "work", devices=(0, 1), way=Way(technique="ddp", size=2))
    kind, message = agents.failure(key)
    assert kind is FailureKind.NOT_APPLICABLE
    assert "CEREBRO_SEATS" in message


def test_what_runs_out_of_memory_beside_others_is_not_told_as_lack_of_the_device(agents: Agents) -> None:
    """It might have had enough alone. From then on one unit fewer sits there, and all are done."""
    shared(agents)
    keys = [agents.give(number, "turns", devices=(number,)) for number in (0, 1)]
    for number in (0, 1):
        agents.begun(number)
    event = agents.end_of(agents.give(2, "memory", devices=(2,)))
    assert isinstance(event, TaskFailed)
    assert (event.failure.kind, event.failure.place) == (FailureKind.OUT_OF_MEMORY, None)
    assert "other units had models on this device" in event.failure.message
    late = agents.give(3, "work", devices=(2,))
    assert isinstance(agents.end_of(agents.give(4, "work", devices=())), TaskCommitted)
    assert late not in starts(agents)
    agents.gate(0).touch()
    assert isinstance(agents.end_of(keys[0]), TaskCommitted)
    assert isinstance(agents.end_of(late), TaskCommitted)
    agents.gate(1).touch()
    assert isinstance(agents.end_of(keys[1]), TaskCommitted)
