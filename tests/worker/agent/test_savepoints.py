"""A worker reports savepoints and releases preempted attempts."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cerebro.contract.events import SubEpochSaved, TaskCommitted, TaskFailed
from cerebro.contract.rest import api
from cerebro.contract.tasks.checkpoints import CheckpointRef, Savepoint
from cerebro.contract.tasks.failures import FailureKind
from cerebro.data.files.checkpoint_files import outdated
from cerebro.runtime.volumes import Volumes, checkpoint_file, savepoint_file
from cerebro.worker.upkeep.checkpoint_removal import outdated_by_savepoint
from tests.worker.agent.agents import LIMIT_S, Agents, until


def batches(agents: Agents) -> list[int]:
    """Return the batches of the savepoints in the log."""
    return [event.savepoint.batch for event in agents.bench.log() if isinstance(event, SubEpochSaved)]


def test_a_savepoint_is_reported_immediately(agents: Agents) -> None:
    """The next regular report would be twenty seconds later."""
    agents.start(lease_s=100.0)
    agents.give(0, "saves")
    until(lambda: batches(agents) == [2], "the savepoint is in the log")


def test_a_terminated_worker_reports_the_savepoint_of_its_sub_epoch(agents: Agents) -> None:
    """In the log the savepoint precedes the end of the attempt."""
    process = agents.start(lease_s=100.0)
    key = agents.give(0, "saves")
    until(lambda: batches(agents)[:1] == [2], "the sub-epoch runs")
    process.send_signal(signal.SIGTERM)
    kind, message = agents.failure(key)
    assert (kind, "goes on from there" in message) == (FailureKind.PREEMPTED, True)
    assert process.wait(LIMIT_S) == 0
    *_, saved, failed = agents.bench.log()
    assert isinstance(saved, SubEpochSaved)
    assert isinstance(failed, TaskFailed)
    assert saved.savepoint.batch > 2


@pytest.mark.parametrize("do", ["saves", "batches"])
def test_a_preempted_attempt_is_released_alone(agents: Agents, do: str) -> None:
    """It stops at the next batch, with a savepoint if possible. The same child runs the next task."""
    agents.start()
    key = agents.give(0, do)
    child = os.getpgid(agents.begun(0))
    assert agents.bench.ask(task=key) == "done"
    kind, message = agents.failure(key)
    assert kind is FailureKind.PREEMPTED
    assert message.startswith("its model was stopped; it was left between two batches")
    assert bool(batches(agents)) == (do == "saves")
    assert agents.bench.store.workers()[0].leaving == ""
    other = agents.give(1, "wait")
    assert os.getpgid(agents.begun(1)) == child
    agents.gate(1).touch()
    assert isinstance(agents.end_of(other), TaskCommitted)


def test_a_savepoint_of_another_attempt_is_ignored(agents: Agents) -> None:
    """User code can write to the connection, so foreign savepoints are ignored."""
    agents.start()
    key = agents.give(0, "forges")
    os.kill(agents.begun(0), signal.SIGKILL)
    assert agents.failure(key)[0] is FailureKind.CRASH
    assert batches(agents) == []


# --- files -------------------------------------------------------------------------------------------


def touched(folder: Path, sub_epoch: int, attempt: int, *batches: int) -> list[Path]:
    """Create the checkpoint of an attempt, and savepoints before these batches."""
    name = checkpoint_file(sub_epoch=sub_epoch, epoch=1, partition=0, attempt=attempt)
    names = [name, *(savepoint_file(checkpoint=name, batch=batch) for batch in batches)]
    for each in names:
        (folder / each).touch()
    return [folder / each for each in names]


def test_a_savepoint_replaces_those_before_it(tmp_path: Path) -> None:
    """Savepoints of earlier attempts and temporary files are removed; checkpoints and later savepoints stay."""
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    folder = volumes.model_checkpoints("one", "fit-1", "m00")
    folder.mkdir(parents=True)
    before = touched(folder, 3, 1, 5, 900)
    mine = touched(folder, 4, 2, 100, 200, 300)
    first = touched(folder, 4, 1, 250)
    aside = folder / f".{mine[1].name}.7-abc.aside"
    aside.touch()
    reference = CheckpointRef(name=f"one/fit-1/m00/{mine[2].name}", checksum="-", size=1)
    save = api.Save(
        experiment="one",
        task="fit-1/train/m00/e1/p0",
        attempt=2,
        savepoint=Savepoint(checkpoint=reference, batch=200, rows=800),
    )
    assert set(outdated_by_savepoint(volumes, save)) == {mine[1], first[1], aside}
    assert set(outdated(folder, 4, {before[0].name})) == {*before[1:], *mine[1:], first[1], aside}
