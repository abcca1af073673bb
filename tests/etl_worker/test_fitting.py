"""The fitting handler reads training rows and stores the result for every worker."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cerebro.contract.records import CodeRecord, Locator, Locators
from cerebro.contract.tasks.bodies import EtlTask, FittingTask
from cerebro.contract.tasks.checkpoints import FittedRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.data.loader import PartitionLoader
from cerebro.errors import DataError
from cerebro.runtime.volumes import Volumes
from cerebro.spec import ETLSpec
from cerebro.usercode.encoding import encode
from cerebro.usercode.fitted import read_fitted, restore_fitted
from cerebro.worker.child.context import Context
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import TO_CHILD
from etl_worker import fit_handler, handler
from tests.etl_worker.jobs import write_metadata

LOCATORS = Locators(train=Locator(metadata="train.csv"), valid=Locator(metadata="valid.csv"))


class Plain(ETLSpec):
    """A spec without `fit`."""

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        return row["value"], row["id"]


class Shifted(Plain):
    """A spec that subtracts the smallest training value."""

    def fit(self, batches: Any, object_dir: str) -> int:
        """See `ETLSpec`."""
        return min(int(value) for batch in batches for value in batch["value"].to_pylist())

    def initialize_worker(self) -> None:
        """See `ETLSpec`."""
        assert self.fitted == 10

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        return row["value"] - self.fitted, row["id"]


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    """Volumes with metadata: two training partitions, the second empty, and one validation partition."""
    found = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    table = pa.table({"id": range(5), "value": range(10, 15)})
    write_metadata(found.metadata("d", "train", 0), table)
    write_metadata(found.metadata("d", "train", 1), table.slice(0, 0))
    write_metadata(found.metadata("d", "valid", 0), pa.table({"id": [0], "value": [3]}))
    return found


@pytest.fixture
def context(volumes: Volumes) -> Iterator[Context]:
    """The context of a child process that its agent serves."""
    agents, childs = socket.socketpair()
    context = Context(Channel(childs, TO_CHILD), volumes, cores=1)
    context.begin(time.monotonic())
    yield context
    agents.close()
    childs.close()


def known(context: Context, spec: object) -> CodeRecord:
    code = encode(spec)
    context.user_code.learn({code.sha256: code.encoded})
    return code


def fit(context: Context, spec: object, attempt: int = 1, locators: Locators = LOCATORS) -> TaskResult:
    task = FittingTask(
        key="etl-1/fitting",
        experiment="one",
        dataset="d",
        partitions=(0, 1),
        code=known(context, spec).sha256,
        locators=locators,
    )
    return fit_handler.Handler(context).handle(task, attempt)


def make(context: Context, spec: object, split: str, fitted: FittedRef | None) -> TaskResult:
    task = EtlTask(
        key=f"etl-1/etl/{split}/p0",
        experiment="one",
        dataset="d",
        split=split,
        partition=0,
        code=known(context, spec).sha256,
        locators=LOCATORS,
        max_failed=0.0,
        fitted=fitted,
    )
    return handler.Handler(context).handle(task, 1)


def test_the_fitted_value_is_used_for_every_split(volumes: Volumes, context: Context) -> None:
    """Fitting reads training rows only, and another fitted value changes the rows."""
    first, second = fit(context, Shifted(), 1), fit(context, Shifted(), 2)
    assert first.rows == 5
    assert first.fitted is not None
    assert second.fitted is not None
    assert first.fitted.name != second.fitted.name
    assert first.fitted.checksum == second.fitted.checksum
    path = volumes.shared / first.fitted.name
    assert restore_fitted(read_fitted(path, first.fitted)) == 10
    for split, expected in (("train", [0, 1, 2, 3, 4]), ("valid", [-7])):
        assert make(context, Shifted(), split, first.fitted).rows == len(expected)
        folder = volumes.partition("d", split, 0)
        ((inputs, _),) = PartitionLoader([folder], batch_size=len(expected), seed=None)
        assert inputs.tolist() == expected
    (volumes.shared / second.fitted.name).unlink()
    shutil.rmtree(volumes.partition("d", "train", 0))
    with pytest.raises(DataError, match=r"the result of ETLSpec\.fit"):
        make(context, Shifted(), "train", second.fitted)
