"""Jobs and specs for tests."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cerebro.data.manifests import PartitionManifest
from cerebro.data.mapped import MappedRows
from cerebro.spec import ETLSpec, Mode
from cerebro.worker.preprocessing.job import EtlJob, EtlProgress, ProgressCallback, Spec, SpecFactory
from etl_worker.cores import Cores
from etl_worker.partition import preprocess_partition

Ids = Sequence[int] | Sequence[str]


def own_children() -> list[multiprocessing.process.BaseProcess]:
    """Return preprocessing child processes, without the ranks that other tests keep."""
    return [child for child in multiprocessing.active_children() if not child.name.startswith("rank-")]


def make_job(folder: Path, ids: Ids, **changes: Any) -> EtlJob:
    """Make a job over rows with the given ids and a counting column ``value``."""
    columns = changes.pop("columns", {"value": list(range(len(ids)))})
    path = folder / "metadata.arrow"
    write_metadata(path, pa.table({"id": pa.array(ids, None if ids else pa.int64()), **columns}))
    return EtlJob(
        **{
            "split": "train",
            "metadata_path": path,
            "output_folder": folder / "partition-0000",
            "objects_uri": None,
            "cache_folder": folder / "cache",
            "cores": 1,
            "max_failed_fraction": 0.0,
            "fingerprint": "spec-1",
            **changes,
        }
    )


def write_metadata(path: Path, table: pa.Table) -> None:
    """Write a partition's metadata as the controller does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def stored(folder: Path) -> dict[Any, list[Any]]:
    """Return each row of a complete partition by id, with its fields as lists."""
    rows = MappedRows.open([folder])
    found: dict[Any, list[Any]] = {}
    for batch in rows.planned(np.arange(rows.num_rows), np.unique([0, rows.num_rows])):
        columns = batch.columns()
        for position, row_id in enumerate(rows.ids(batch.rows)):
            assert row_id not in found, "a row is there twice"
            found[row_id] = [np.asarray(column[position]).tolist() for column in columns]
    return found


def preprocess(job: EtlJob, make_spec: SpecFactory, progress: ProgressCallback) -> PartitionManifest:
    """Run one job in its own processes."""
    with closing(Cores(ready(make_spec))) as cores:
        return preprocess_partition(job, cores, progress)


def ready(make_spec: SpecFactory) -> SpecFactory:
    """Return a factory that initialises the spec, as a worker does."""

    def make() -> Spec:
        spec = make_spec()
        spec.initialize_worker()
        return spec

    return make


def nothing(progress: EtlProgress) -> None:
    """Ignore the progress."""


class Double(ETLSpec):
    """A spec whose input is twice the value and whose output is the value."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        return row["value"] * 2, row["value"]


class FailOn(Double):
    """A spec that raises for some values after it logged each row."""

    def __init__(self, values: Sequence[int], log: Path | None = None) -> None:
        self.values, self.log = frozenset(values), log

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        if self.log is not None:
            note(self.log, str(row["id"]))
        if row["value"] in self.values:
            raise ValueError(f"value {row['value']} is bad")
        return super().row_preprocessor(row, mode, object_dir)


def note(log: Path, text: str) -> None:
    """Append a line; safe for several processes."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def notes(log: Path) -> list[str]:
    """Return the logged lines."""
    return log.read_text().split() if log.exists() else []
