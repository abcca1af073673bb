"""The ETL handler writes a report of failed rows to the shared volume."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cerebro.contract.records import Locator, Locators
from cerebro.contract.tasks.bodies import EtlTask
from cerebro.contract.tasks.results import TaskResult
from cerebro.data.statistics.data import DataStatistics
from cerebro.runtime.volumes import Volumes
from cerebro.spec import ETLSpec
from cerebro.usercode.encoding import encode
from cerebro.worker.child.context import Context
from cerebro.worker.child.task_loop import failure_of
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import TO_CHILD
from etl_worker.errors import TooManyFailedError
from etl_worker.handler import Handler
from tests.etl_worker.jobs import FailOn, write_metadata


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    """Volumes with the metadata of one partition."""
    found = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    write_metadata(found.metadata("d", "train", 0), pa.table({"id": range(40), "value": range(40)}))
    return found


@pytest.fixture
def handle(volumes: Volumes) -> Iterator[Callable[..., TaskResult]]:
    """Run an ETL task with a spec that raises for some values, or with another spec."""
    agents, childs = socket.socketpair()
    context = Context(Channel(childs, TO_CHILD), volumes, cores=1)

    def do(
        broken: Sequence[int] = (),
        max_failed: float = 0.0,
        spec: ETLSpec | None = None,
    ) -> TaskResult:
        code = encode(spec or FailOn(broken))
        context.user_code.learn({code.sha256: code.encoded})
        context.begin(time.monotonic())
        task = EtlTask(
            key="etl-1/etl/train/p0",
            experiment="one",
            dataset="d",
            split="train",
            partition=0,
            code=code.sha256,
            locators=Locators(train=Locator(metadata="train.csv")),
            max_failed=max_failed,
        )
        return Handler(context).handle(task, 1)

    yield do
    agents.close()
    childs.close()


def failed_rows(volumes: Volumes) -> tuple[int, list[Any]]:
    """Return the number of failed rows and the listed ids."""
    found = json.loads(volumes.failed_rows("d", "train", 0).read_text())
    assert (found["experiment"], found["run"]) == ("one", "etl-1")
    assert all(row["error"].startswith("ValueError: value") and row["traceback"] for row in found["rows"])
    return found["total"], [row["id"] for row in found["rows"]]


def test_a_task_that_fails_reports_its_failed_rows(
    volumes: Volumes, handle: Callable[..., TaskResult]
) -> None:
    """A later successful attempt lists the rows it skipped; without failures the report is removed."""
    with pytest.raises(TooManyFailedError) as caught:
        handle([3, 30], 0.0)
    assert failure_of(caught.value).rows_failed == 2  # for the log
    assert failed_rows(volumes) == (2, [3, 30])
    assert handle([30], 0.5).rows == 39
    assert failed_rows(volumes) == (1, [30])
    write_metadata(volumes.metadata("d", "train", 0), pa.table({"id": [1], "value": [1]}))
    assert handle([], 0.0).rows == 1
    assert not volumes.failed_rows("d", "train", 0).exists()


def test_each_partition_publishes_its_statistics_once(
    handle: Callable[..., TaskResult], volumes: Volumes
) -> None:
    """The metadata's columns and the fields of the rows that did not fail; a second attempt changes nothing."""
    handle(broken=[1, 2], max_failed=0.5)
    path = volumes.statistics("d", "train", 0)
    content = path.read_bytes()
    found = DataStatistics.from_json(content)
    columns = {(column.source, column.name): column for column in found.columns}
    assert columns["metadata", "value"].rows == 40
    assert (columns["metadata", "value"].low, columns["metadata", "value"].high) == (0.0, 39.0)
    assert {c.rows for (source, _), c in columns.items() if source == "rows"} == {38}
    assert found.hashes.rows == 38
    handle(broken=[1, 2], max_failed=0.5)
    assert path.read_bytes() == content
