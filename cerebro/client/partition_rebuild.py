"""Reconstruction of training partitions on this machine, for `cerebro.client.replay`.

In a cluster each partition is on the volume of its worker. Its sources are accessible everywhere: metadata on the
shared volume, code in the store, objects behind the locators. A row depends on nothing else, because random numbers are
seeded per row (`cerebro.worker.preprocessing.shard`), so the rebuilt partition is equal to the bit. No worker is
needed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cerebro.client.connection import Connection
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.runs import EtlPlan
from cerebro.contract.tasks.bodies import EtlTask
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import CerebroError, DataError
from cerebro.runtime.usage import cores
from cerebro.runtime.usage.memory import own_group
from cerebro.runtime.volumes import Volumes
from cerebro.state import Dataset, ExperimentState, TaskKey
from cerebro.worker.agent.devices import Share
from cerebro.worker.agent.processes.process import ChildProcess, ChildSpec
from cerebro.worker.agent.settings import Settings
from cerebro.worker.protocol.messages import Done, Failed

_HANDLER = "etl_worker.handler"
"""Module name, because the shared package must not import services."""
_CHANGED = "the files of the locators, or other input of the ETL spec, have changed"


@dataclass(frozen=True, kw_only=True)
class RebuiltPartition:
    """A partition that was preprocessed again.

    Attributes:
        folder: folder of the partition.
        is_same: True if it is known to equal the original to the bit. False if this machine
            cuts the rows into another number of shards.
    """

    folder: Path
    is_same: bool


@dataclass(frozen=True, kw_only=True)
class PartitionRebuilder:
    """Preprocesses partitions of one data set again.

    Attributes:
        connection: connection to the cluster.
        record: record of the experiment.
        state: state of the experiment.
        dataset: id of the data set.
        python: interpreter for user code.
        archive: folder with the files of the code archive, or empty.
        notify: receives a message before each partition.
    """

    connection: Connection
    record: ExperimentRecord
    state: ExperimentState
    dataset: str
    python: str
    archive: str
    notify: Callable[[str], None]

    def rebuild(self, partition: int, folder: Path) -> RebuiltPartition:
        """Preprocess a training partition again, below `folder`.

        Raises:
            DataError: it cannot be preprocessed here, or has another number of rows.
        """
        dataset, logged = self.state.datasets[self.dataset], self._logged(partition)
        rows = dataset.rows.get(("train", partition), 0)
        self.notify(f"partition {partition} is not on this machine: preprocessing its {rows:,} rows again")
        volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)})
        try:
            rebuilt = self._run(self._task(partition, volumes), volumes, _cores(logged.cores))
        except (CerebroError, OSError) as error:
            raise DataError(
                f"partition {partition} of data set {self.dataset} is not on this machine and could not be "
                f"preprocessed again: {error}"
            ) from error
        _check_counts(dataset, partition, rebuilt)
        verdict = is_same(logged, rebuilt)
        if verdict is False:
            self.notify(f"the rebuilt partition {partition} differs from the original: {_CHANGED}")
        return RebuiltPartition(
            folder=volumes.partition(self.dataset, "train", partition), is_same=verdict is True
        )

    def _logged(self, partition: int) -> TaskResult:
        """Return the logged result of the partition; an empty one if unknown."""
        for run in reversed(self.state.runs.values()):
            if isinstance(run.plan, EtlPlan) and run.plan.dataset == self.dataset:
                task = run.tasks.by_key.get(
                    str(TaskKey(run=run.id, kind="etl", split="train", partition=partition))
                )
                if task is not None and task.result is not None:
                    return task.result
        return TaskResult()

    def _task(self, partition: int, volumes: Volumes) -> EtlTask:
        """Return the original task, after placing its metadata."""
        request = self.state.etl_request(self.dataset)
        if request is None:
            raise DataError(f"no ETL run of experiment {self.record.name!r} made this data set")
        target = volumes.metadata(self.dataset, "train", partition)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.connection.files.shared(str(target.relative_to(volumes.shared))), target)
        fitted = self.state.datasets[self.dataset].fitted
        if fitted is not None:
            (volumes.shared / fitted.name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.connection.files.shared(fitted.name), volumes.shared / fitted.name)
        return EtlTask(
            key=f"replay/etl/train/p{partition}",
            experiment=self.record.name,
            dataset=self.dataset,
            split="train",
            partition=partition,
            code=request.code,
            archive=self.record.archive,
            locators=self.record.locators,
            max_failed=request.max_failed,
            fitted=fitted,
        )

    def _run(self, task: EtlTask, volumes: Volumes, cores: int) -> TaskResult:
        """Run the task in a child process, because its handler forks."""
        settings = Settings(
            server="",
            token="",
            worker="replay",
            volumes=volumes,
            cores=cores,
        )
        codes = {task.code: self.connection.kvs.code(task.code).encoded}
        share = Share(devices=(), threads=cores)
        setting = ChildSpec(handler=_HANDLER, python=self.python, archive=self.archive, share=share)
        child = ChildProcess(setting, settings, own_group())
        try:
            log = volumes.logs / "etl.log"
            child.run(task, 1, codes, log, received_at=time.monotonic())
            while (message := child.channel.receive()) is not None:
                if isinstance(message, Done):
                    return message.result
                if isinstance(message, Failed):
                    raise DataError(message.failure.message)
            raise DataError(child.reap().message)
        finally:
            child.kill()


def _cores(logged: int) -> int:
    """Return the original number of cores, at most the available one; it sets the shards."""
    available = int(os.environ.get("CEREBRO_CORES") or cores.available())
    return min(logged, available) or available


def is_same(logged: TaskResult, rebuilt: TaskResult) -> bool | None:
    """True if both partitions are equal to the bit; `None` if that cannot be known."""
    if not logged.shards or not rebuilt.shards or logged.shards.number != rebuilt.shards.number:
        return None
    return logged.shards == rebuilt.shards


def _check_counts(dataset: Dataset, partition: int, rebuilt: TaskResult) -> None:
    key = ("train", partition)
    logged = dataset.rows.get(key, 0), dataset.failed_rows.get(key, 0)
    counts = rebuilt.rows, rebuilt.rows_failed
    if logged != counts:
        raise DataError(
            f"the rebuilt partition {partition} of data set {dataset.id} has {counts[0]} rows and {counts[1]} failed "
            f"ones, the log has {logged[0]} and {logged[1]}: {_CHANGED}, so this run cannot be replayed"
        )
