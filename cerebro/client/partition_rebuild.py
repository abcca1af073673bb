"""Training partitions made again on this machine, for whoever needs all of them in one place: `cerebro.client.replay`.

In a cluster each training partition lies on the volume of the worker that made it. What it was made from can be had
from anywhere: its metadata on the shared volume, the code in the store, the objects behind the locators. A row depends
on nothing else, chance included (`cerebro.worker.preprocessing.shard`), so the same rows come out, to the bit. No
worker is needed.
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
from cerebro.contract.tasks import EtlTask, Failure, TaskResult
from cerebro.errors import CerebroError, DataError
from cerebro.runtime.usage import cores
from cerebro.runtime.usage.memory import own_group
from cerebro.runtime.volumes import Volumes
from cerebro.state import Dataset, ExperimentState, TaskKey
from cerebro.worker.agent.devices import Share
from cerebro.worker.agent.process import ChildProcess, ChildSpec
from cerebro.worker.agent.settings import Settings

_HANDLER = "etl_worker.handler"
"""By name, as workers are told theirs: the shared package knows no service."""


_CHANGED = "what is behind the locators has changed, or something else that the ETL spec reads"


@dataclass(frozen=True, kw_only=True)
class Remade:
    """A partition that was made again.

    Attributes:
        folder: where it lies.
        is_same: True if its files are known to equal those of `run_etl`. Not known where this machine cuts the rows
            into another number of shards.
    """

    folder: Path
    is_same: bool


@dataclass(frozen=True, kw_only=True)
class Remaking:
    """Makes partitions of one data set.

    Attributes:
        python: interpreter that user code runs in.
        archive: folder with the user's files, or empty.
        tell: called with a line for people before each partition.
    """

    connection: Connection
    record: ExperimentRecord
    state: ExperimentState
    dataset: str
    python: str
    archive: str
    tell: Callable[[str], None]

    def make(self, partition: int, folder: Path) -> Remade:
        """Make a training partition from its rows, somewhere below `folder`.

        Raises:
            DataError: it cannot be made here, or has another number of rows; says why.
        """
        dataset, logged = self.state.datasets[self.dataset], self._logged(partition)
        rows = dataset.rows.get(("train", partition), 0)
        self.tell(f"partition {partition} is on no volume of this machine: making it again, {rows:,} rows")
        volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)})
        try:
            made = self._made(self._task(partition, volumes), volumes, _cores(logged.cores))
        except (CerebroError, OSError) as error:
            raise DataError(
                f"partition {partition} of data set {self.dataset} is on no volume of this machine, and it could not "
                f"be made again from its locators: {error}"
            ) from error
        _check(dataset, partition, made)
        verdict = is_same(logged, made)
        if verdict is False:
            self.tell(
                f"partition {partition}, made again, is not to the bit what was trained on: {_CHANGED} since"
            )
        return Remade(folder=volumes.partition(self.dataset, "train", partition), is_same=verdict is True)

    def _logged(self, partition: int) -> TaskResult:
        """What was told of the partition when `run_etl` made it; empty if that is not known."""
        for run in reversed(self.state.runs.values()):
            if isinstance(run.plan, EtlPlan) and run.plan.dataset == self.dataset:
                task = run.tasks.get(str(TaskKey(run=run.id, kind="etl", split="train", partition=partition)))
                if task is not None and task.result is not None:
                    return task.result
        return TaskResult()

    def _task(self, partition: int, volumes: Volumes) -> EtlTask:
        """What the worker that made the partition was told, its metadata put where the task will look for it."""
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

    def _made(self, task: EtlTask, volumes: Volumes, cores: int) -> TaskResult:
        """Done in a process of its own, as by a worker: it forks, and this one may have run user code."""
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
            child.run(task.model_dump(mode="json"), 1, codes, log, asked=time.monotonic())
            while (message := child.channel.receive()) is not None:
                if message.get("is") == "done":
                    return TaskResult.model_validate(message["result"])
                if message.get("is") == "failed":
                    raise DataError(Failure.model_validate(message["failure"]).message)
            raise DataError(child.reap().message)
        finally:
            child.kill()


def _cores(logged: int) -> int:
    """As many as made the partition first, so that its rows are cut the same; or as many as there are here."""
    here = int(os.environ.get("CEREBRO_CORES") or cores.available())
    return min(logged, here) or here


def is_same(logged: TaskResult, made: TaskResult) -> bool | None:
    """Whether two partitions are the same to the bit; `None` where that cannot be told."""
    return logged.checksum == made.checksum if logged.checksum and logged.shards == made.shards else None


def _check(dataset: Dataset, partition: int, made: TaskResult) -> None:
    place = ("train", partition)
    logged = dataset.rows.get(place, 0), dataset.failed_rows.get(place, 0)
    found = made.rows, made.rows_failed
    if logged != found:
        raise DataError(
            f"partition {partition} of data set {dataset.id}, made again, has {found[0]} rows and {found[1]} failed "
            f"ones, the log says {logged[0]} and {logged[1]}: {_CHANGED} since, so this run cannot be replayed from it"
        )
