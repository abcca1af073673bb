"""Files of rows that a task could not read: name them, and withdraw damaged partitions.

The agent's `execution` calls both functions for a failed attempt. Tasks map the shards of their partitions into memory.
If the volume cannot read a page of a map, or the file has become shorter, the kernel ends the process with SIGBUS, and
no exception names the file. Only the manifest of a damaged partition is removed; preprocessing repairs it.
"""

from __future__ import annotations

import signal
from pathlib import Path

from cerebro.contract.tasks.bodies import (
    EvaluateTask,
    PredictTask,
    TaskBody,
    TrainTask,
    TrialTask,
    VerificationTask,
)
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import DataError, ShardCorruptError, VolumeError
from cerebro.runtime.volumes import Volumes


def explained(failure: Failure, body: TaskBody | None, volumes: Volumes) -> Failure:
    """Return the failure of a file that the task cannot read, if its process had a bus error; else `failure`.

    Reads all rows of the task's partitions on this worker.
    """
    if failure.kind is not FailureKind.CRASH or signal.SIGBUS.name not in failure.message:
        return failure
    try:
        _read(body, volumes)
    except (VolumeError, ShardCorruptError) as error:
        return failure.model_copy(
            update={"kind": FailureKind.UNAVAILABLE, "message": str(error), "volume": error.path}
        )
    except DataError as error:
        return failure.model_copy(update={"kind": FailureKind.DATA, "message": str(error)})
    return failure


def drop_damaged(failure: Failure, body: TaskBody | None, volumes: Volumes) -> bool:
    """Withdraw a training partition of this worker if a shard is damaged.

    Returns:
        True if the partition was withdrawn. Preprocessing then makes its damaged shards again.
    """
    if not failure.is_of_volume or not isinstance(body, TrainTask | VerificationTask | TrialTask):
        return False
    from cerebro.data.partitions import PARTITION_FILE  # an agent rarely needs it

    folder = volumes.partition(body.dataset, "train", body.partition)
    if Path(failure.volume).parent != folder:
        return False
    try:
        _read(body, volumes)
    except ShardCorruptError:
        (folder / PARTITION_FILE).unlink(missing_ok=True)
        return True
    except (DataError, VolumeError):
        return False
    return False


def _read(body: TaskBody | None, volumes: Volumes) -> None:
    from cerebro.data.partitions import check_bytes, read_manifest  # an agent rarely needs it

    if isinstance(body, EvaluateTask | PredictTask):
        split, partitions = body.split, body.partitions
    elif isinstance(body, TrainTask | VerificationTask | TrialTask):
        split, partitions = "train", (body.partition,)
    else:
        return
    for partition in partitions:
        folder = volumes.partition(body.dataset, split, partition)
        for shard in read_manifest(folder).shards:
            check_bytes(folder, shard, verify_bytes=True)
