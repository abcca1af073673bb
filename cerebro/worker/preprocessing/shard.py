"""One shard: its rows through the user's row function into a file.

A row whose function raises is recorded and left out; a row that cannot be stored, or differs from the others,
ends the job. The global random generators are seeded for each row from the fingerprint and the row's id: a
row that draws random numbers becomes the same tensors on whatever core, and in whichever attempt, it is made.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from cerebro.contract.texts import cleaned
from cerebro.data.manifests import FailedRow, ShardManifest, Source
from cerebro.data.objects import ObjectStore, open_store
from cerebro.data.shards import ShardWriter
from cerebro.data.trees import RowId
from cerebro.errors import LocatorError, PermanentError, RowError, SpecError
from cerebro.runtime.tracebacks import line_of, text_of
from cerebro.usercode.checks import check_features
from cerebro.worker.preprocessing.downloads import ShardObjects
from cerebro.worker.preprocessing.job import EtlJob, ShardRange, Spec, SpecFactory
from cerebro.worker.preprocessing.metadata import Metadata

_MAX_TRACEBACK = 4_000  # characters; a partition may have many failed rows
_MAX_ERROR = 500

RowCallback = Callable[[int, FailedRow | None], None]
"""Told after each row: its position in the partition, and how it failed if it did."""


@dataclass(frozen=True, kw_only=True)
class Preprocessor:
    """What one process needs to make shards."""

    job: EtlJob
    metadata: Metadata
    source: Source
    spec: Spec
    store: ObjectStore | None
    scratch: Path
    """Folder for copies of objects, used by this process alone."""
    downloads: int
    """Objects this process may fetch at a time."""

    def shard(self, part: ShardRange, on_row: RowCallback) -> ShardManifest:
        """Make one shard.

        Raises:
            RowError: a row cannot be stored or differs from the shard's first.
            ObjectStoreError, StorageFullError: see `ShardObjects`, `ShardWriter`.
            Whatever ``on_row`` raises.
        """
        rows = self.metadata.rows(part.start, part.stop)
        columns = tuple(self.spec.is_feature_download)
        writer = ShardWriter(
            self.job.output_folder,
            part.index,
            start=part.start,
            stop=part.stop,
            source=self.source,
            id_type=self.metadata.id_type,
        )
        with ShardObjects(self.store, rows, columns, self.scratch, self.downloads) as objects, writer:
            for position, row in enumerate(rows):
                row_id = row["id"]
                made = self._row(row, position, objects)
                if isinstance(made, FailedRow):
                    writer.fail(made)
                    on_row(part.start + position, made)
                else:
                    writer.add(row_id, *made)
                    on_row(part.start + position, None)
            return writer.close()

    def _row(
        self, row: dict[str, Any], position: int, objects: ShardObjects
    ) -> tuple[object, object] | FailedRow:
        row_id: RowId = row["id"]  # before the row function, which may change the dict
        try:
            objects.wait(position)
        except LocatorError as error:
            return _failed(row_id, error)
        seed_generators(f"{self.job.fingerprint}/{self.job.split}/{row_id}")
        try:
            made: object = self.spec.row_preprocessor(row, self.job.split, objects.folder)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises is the row's failure
            return _failed(row_id, error)
        if not isinstance(made, tuple) or len(made) != 2:
            raise RowError(
                f"row {row_id!r}: row_preprocessor returned a {type(made).__name__}, "
                "expected (input, output). To leave a row out, raise an exception"
            )
        return made


class Bench:
    """A process's place of work: one spec, restored and initialised for the first job, and kept for the next ones."""

    def __init__(self, make_spec: SpecFactory) -> None:
        self._make_spec = make_spec
        self._spec: Spec | None = None

    def preprocessor(self, job: EtlJob, metadata: Metadata, source: Source, *, process: int) -> Preprocessor:
        """What makes the shards of a job in this process, which has this number.

        Raises:
            SpecError: the spec cannot be restored or initialised, or names columns that the metadata has not.
            LocatorError, ObjectStoreError: the object store cannot be used.
        """
        if self._spec is not None:
            return open_preprocessor(job, metadata, source, self._spec, process=process)
        spec: Spec = _user_code("the ETLSpec cannot be restored", self._make_spec)
        made = open_preprocessor(job, metadata, source, spec, process=process)
        initialize(spec)
        self._spec = spec
        return made


def initialize(spec: Spec) -> None:
    """Have the spec make ready, once in a process.

    Raises:
        SpecError: it raised.
    """
    _user_code("ETLSpec.initialize_worker raised", spec.initialize_worker)


def open_preprocessor(
    job: EtlJob, metadata: Metadata, source: Source, spec: Spec, *, process: int
) -> Preprocessor:
    """A preprocessor for a restored spec, which need not be initialised yet; opens the object store.

    Raises:
        SpecError: the spec names columns that the metadata has not.
        LocatorError, ObjectStoreError: the object store cannot be used.
    """
    check_features(spec, job.split, metadata.columns, has_objects=job.objects_uri is not None)
    store = None if job.objects_uri is None else open_store(job.objects_uri)
    if store is not None:
        store.check()
    return Preprocessor(
        job=job,
        metadata=metadata,
        source=source,
        spec=spec,
        store=store,
        scratch=job.cache_folder / f"core-{process}",
        downloads=max(1, job.download_concurrency // job.cores),
    )


def seed_generators(key: str) -> None:
    """Seed Python's, NumPy's and, where it is loaded, torch's global generator from ``key``."""
    seed = xxhash.xxh3_64_intdigest(key.encode())
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.manual_seed(seed)  # not torch.manual_seed, which asks for GPUs and takes 0.2 ms


def _user_code(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except PermanentError:
        raise
    except (Exception, SystemExit) as error:
        raise SpecError(f"{what}: {line_of(error)}") from error


def _failed(row_id: RowId, error: BaseException) -> FailedRow:
    told = cleaned(line_of(error), _MAX_ERROR)
    return FailedRow(id=row_id, error=told, traceback=cleaned(text_of(error), _MAX_TRACEBACK))
