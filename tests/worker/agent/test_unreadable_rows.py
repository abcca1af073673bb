"""A bus error in a task is traced to the unreadable file."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cerebro.contract.tasks.bodies import Position, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.data.files import durable
from cerebro.data.mapped import MappedRows
from cerebro.data.partitions import find_partitions
from cerebro.errors import ShardCorruptError
from cerebro.runtime.volumes import Volumes
from cerebro.worker.upkeep.unreadable_rows import drop_damaged, explained
from tests.data.rows import write_partition
from tests.worker.agent.agents import SHA, Agents

BODY = TrainTask(
    key="fit-1/train/m00/e1/p0",
    experiment="one",
    run="fit-1",
    model="m00",
    hyperparams={},
    code=SHA,
    dataset="d",
    seed=0,
    hang_timeout_s=60.0,
    epoch=1,
    partition=0,
    sub_epoch=0,
    position=Position(),
    checkpoint=None,
)


def _crash(signal: str) -> Failure:
    return Failure(kind=FailureKind.CRASH, message=f"the process ended by signal {signal}")


@pytest.mark.parametrize(
    ("number", "signal", "kind"),
    [
        (errno.EIO, "SIGBUS", FailureKind.UNAVAILABLE),
        (errno.ESTALE, "SIGBUS", FailureKind.UNAVAILABLE),
        (0, "SIGBUS", FailureKind.CRASH),
        (errno.EIO, "SIGSEGV", FailureKind.CRASH),
    ],
)
def test_unreadable_rows_are_a_volume_failure(
    number: int, signal: str, kind: FailureKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure names the shard, so the run pauses. A bus error with readable rows stays a crash."""
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    folder = volumes.partition("d", "train", 0)
    manifest = write_partition(folder, [2, 3])
    fill = durable.fill

    def bad(*args: object) -> memoryview:
        if number:
            raise OSError(number, "cannot be read")
        return fill(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(durable, "fill", bad)
    found = explained(_crash(signal), BODY, volumes)
    assert found.kind is kind
    assert found.volume == (str(folder / manifest.shards[0].file) if found.is_of_volume else "")


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_damaged_partition_is_withdrawn(tmp_path: Path, is_damaged: bool) -> None:
    """Preprocessing makes it again. A temporary read error keeps the partition."""
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    folder = volumes.partition("d", "train", 0)
    shard = folder / write_partition(folder, [2, 3]).shards[1].file
    if is_damaged:
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    failure = Failure(kind=FailureKind.UNAVAILABLE, message="damaged", volume=str(shard))
    assert drop_damaged(failure, BODY, volumes) is is_damaged
    assert len(find_partitions(volumes.shards / "datasets")) == (not is_damaged)
    if is_damaged:  # tasks assigned before the report
        with pytest.raises(ShardCorruptError, match="no complete partition"):
            MappedRows.open([folder])


@pytest.mark.processes
def test_a_shard_truncated_during_a_read_is_named(agents: Agents, tmp_path: Path) -> None:
    """The kernel ends the process; the failure is the volume's, so the run uses another replica or pauses."""
    folder = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)}).partition("d", "train", 0)
    shard = folder / write_partition(folder, [2]).shards[0].file
    agents.start()
    kind, message = agents.failure(agents.give(0, f"truncate {shard}"))
    assert kind is FailureKind.UNAVAILABLE
    assert f"{shard} has 0 bytes" in message
