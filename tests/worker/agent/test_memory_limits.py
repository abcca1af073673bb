"""A worker whose task ran out of memory says how much there was, if it had that to itself."""

from __future__ import annotations

import pytest

from cerebro.contract.events import TaskFailed
from cerebro.contract.tasks import Failure, FailureKind
from cerebro.runtime.usage.memory import own_group
from tests.worker.agent.agents import Agents


def failed(agents: Agents, partition: int, *, tells_device: bool = True) -> Failure:
    """How a task ended that got no memory."""
    told = agents.end_of(agents.give(partition, "memory", tells_device=tells_device))
    assert isinstance(told, TaskFailed)
    assert (told.failure.kind, told.failure.place) == (FailureKind.OUT_OF_MEMORY, "host")
    return told.failure


@pytest.mark.parametrize("is_pod", [True, False])
def test_the_limit_of_a_container_is_told_and_the_memory_of_a_machine_is_not(
    agents: Agents, is_pod: bool
) -> None:
    """On a machine others take of it, too. Whom older versions ask is told as before."""
    if is_pod:
        agents.start(is_fork=False, CEREBRO_POD="worker-0", CEREBRO_POD_UID="1-2", CEREBRO_CONTAINER="worker")
    else:
        agents.start()
    assert failed(agents, 0).limit_bytes == (own_group().usable_bytes() if is_pod else 0)
    assert "limit_bytes" not in failed(agents, 1, tells_device=False).model_dump()


def test_a_process_that_ran_out_of_memory_is_used_no_more(agents: Agents) -> None:
    """What earlier units have left in it may be the cause."""
    agents.start()
    pids = []
    for partition, what in enumerate(("pid", "memory", "pid")):
        agents.end_of(agents.give(partition, what))
        if what == "pid":
            pids.append(agents.log(partition).split("process ")[1].split()[0])
    assert pids[0] != pids[1]
