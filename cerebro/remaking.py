"""Training partitions made again on this machine, for whoever needs all of them in one place: `cerebro.replay`.

In a cluster each training partition lies on the volume of the worker that made it. What it was made from can be had
from anywhere: its metadata on the shared volume, the code in the store, the objects behind the locators. A row depends
on nothing else, chance included (`cerebro.preprocessing.shard`), so the same rows come out, to the bit. No worker is
needed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cerebro.agent.memory import own_group
from cerebro.agent.process import ChildProcess, Setting
from cerebro.agent.settings import Settings
from cerebro.connection import Connection
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.tasks import EtlTask, Failure, TaskResult
from cerebro.errors import CerebroError, DataError
from cerebro.state import Dataset, ExperimentState
from cerebro.volumes import Volumes

_HANDLER = "etl_worker.handler"
"""By name, as workers are told theirs: the shared package knows no service."""


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

    def make(self, partition: int, folder: Path) -> Path:
        """Make a training partition from its rows, somewhere below `folder`; returns the partition's folder.

        Raises:
            DataError: it cannot be made here, or has become another one; says why.
        """
        made = self.state.datasets[self.dataset]
        rows = made.rows.get(("train", partition), 0)
        self.tell(f"partition {partition} is on no volume of this machine: making it again, {rows:,} rows")
        volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)})
        try:
            result = self._made(self._task(partition, volumes), volumes)
        except (CerebroError, OSError) as error:
            raise DataError(
                f"partition {partition} of data set {self.dataset} is on no volume of this machine, and it could not "
                f"be made again from its locators: {error}"
            ) from error
        _check(made, partition, result)
        return volumes.partition(self.dataset, "train", partition)

    def _task(self, partition: int, volumes: Volumes) -> EtlTask:
        """What the worker that made the partition was told, its metadata put where the task will look for it."""
        request = self.state.etl_request(self.dataset)
        if request is None:
            raise DataError(f"no run_etl of experiment {self.record.name!r} made this data set")
        target = volumes.metadata(self.dataset, "train", partition)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.connection.files.shared(str(target.relative_to(volumes.shared))), target)
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
        )

    def _made(self, task: EtlTask, volumes: Volumes) -> TaskResult:
        """Done in a process of its own, as by a worker: it forks, and this one may have run user code."""
        settings = Settings(
            server="",
            token="",
            worker="replay",
            volumes=volumes,
            cores=int(os.environ.get("CEREBRO_CORES") or os.cpu_count() or 1),
        )
        codes = {task.code: self.connection.kvs.code(task.code).encoded}
        setting = Setting(code=task.code, handler=_HANDLER, python=self.python, archive=self.archive)
        child = ChildProcess(setting, settings, own_group())
        try:
            log = volumes.logs / "etl.log"
            child.run(task.model_dump(mode="json"), 1, codes, log, asked=time.monotonic())
            while (message := child.channel.receive()) is not None:
                if message["is"] == "done":
                    return TaskResult.model_validate(message["result"])
                if message["is"] == "failed":
                    raise DataError(Failure.model_validate(message["failure"]).message)
            raise DataError(child.bury().message)
        finally:
            child.kill()


def _check(made: Dataset, partition: int, result: TaskResult) -> None:
    place = ("train", partition)
    logged = made.rows.get(place, 0), made.failed_rows.get(place, 0)
    found = result.rows, result.rows_failed
    if logged != found:
        raise DataError(
            f"partition {partition} of data set {made.id}, made again, has {found[0]} rows and {found[1]} failed ones, "
            f"the log says {logged[0]} and {logged[1]}: what is behind the locators has changed since, or something "
            "else that the ETL spec reads, so this run cannot be replayed from it"
        )
