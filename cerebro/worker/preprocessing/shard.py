"""Build one shard: apply the user's row or batch function and write the results.

`etl_worker` calls `begin` once per process and `Preprocessor.shard` per shard. The client's dry run uses a
`Preprocessor` for the first rows, in the notebook. A row that makes the function raise is recorded and skipped. A row
that cannot be stored, or differs from the others, ends the job. Each call seeds the global random generators from the
fingerprint and the id of its (first) row, so random rows are the same on every core and in every attempt. Batches start
at the shard's first row and are halved after an exception.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from cerebro.contract.texts import cleaned
from cerebro.data.manifests import FailedRow, ShardManifest, Source
from cerebro.data.objects import ObjectStore, open_store
from cerebro.data.shards import ShardWriter
from cerebro.data.statistics.data import ShardObserver
from cerebro.data.trees import RowId
from cerebro.errors import LocatorError, PermanentError, RowError, SpecError
from cerebro.runtime.tracebacks import line_of, text_of
from cerebro.runtime.volume_errors import error_of_call
from cerebro.spec import Mode
from cerebro.usercode.checks import check_features, prepares_batches
from cerebro.worker.preprocessing.downloads import ShardObjects
from cerebro.worker.preprocessing.job import EtlJob, ShardRange, Spec, SpecFactory
from cerebro.worker.preprocessing.metadata import Metadata

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_TRACEBACK, _MAX_ERROR = 4_000, 500  # characters; a partition may have many failed rows
_MAX_COLUMNS = 10  # empty columns named in a message

RowsCallback = Callable[[int, int, FailedRow | None], None]
"""Called after each call with its first position, number of rows, and failure (always of a single row)."""


@dataclass(frozen=True, kw_only=True)
class Preprocessor:
    """One process's means to build shards."""

    job: EtlJob
    metadata: Metadata
    source: Source
    spec: Spec
    store: ObjectStore | None
    scratch: Path
    """Folder for copies of objects, used by this process alone."""
    downloads: int
    """Objects this process may fetch at a time."""
    is_alone: bool = True
    """True if no other process preprocesses here, so a row that exceeds memory always will."""

    def shard(self, part: ShardRange, on_rows: RowsCallback) -> ShardManifest:
        """Build one shard.

        Raises:
            MemoryError: user code ran out of memory while other processes ran.
            RowError: a row cannot be stored or differs from the shard's first.
            ObjectStoreError, StorageFullError: see `ShardObjects`, `ShardWriter`.
            Exception: any exception of ``on_rows``.
        """
        columns = tuple(self.spec.is_feature_download)
        is_by_batches = prepares_batches(self.spec)
        rows: list[dict[str, Any]] = []
        if columns or not is_by_batches:
            rows = self.metadata.rows(part.start, part.stop, columns if is_by_batches else None)
        writer = ShardWriter(
            self.job.output_folder,
            part.index,
            start=part.start,
            stop=part.stop,
            source=self.source,
            id_type=self.metadata.id_type,
            observer=ShardObserver(self.metadata.num_rows, part.index),
        )
        with ShardObjects(self.store, rows, columns, self.scratch, self.downloads) as objects, writer:
            calls = self._batches(part, objects) if is_by_batches else self._rows(rows, objects)
            for position, ids, prepared in calls:
                if isinstance(prepared, FailedRow):
                    writer.fail(prepared)
                elif is_by_batches:
                    writer.add_batch(ids, *prepared)
                else:
                    writer.add(ids[0], *prepared)
                on_rows(
                    part.start + position, len(ids), prepared if isinstance(prepared, FailedRow) else None
                )
            return writer.close()

    def _rows(self, rows: Sequence[dict[str, Any]], objects: ShardObjects) -> Iterator[_Call]:
        for position, row in enumerate(rows):
            row_id: RowId = row["id"]  # before the row function, which may change the dict
            prepared: _Prepared = _missing(objects, position, row_id) or self._prepare(
                self.spec.row_preprocessor, row, row_id, objects
            )
            yield position, [row_id], prepared

    def _batches(self, part: ShardRange, objects: ShardObjects) -> Iterator[_Call]:
        size = self.spec.batch_rows
        for begin in range(part.start, part.stop, size):
            batch = self.metadata.batch(begin, min(begin + size, part.stop))
            ids: list[RowId] = batch["id"].to_pylist()
            places = np.arange(len(ids)) + (begin - part.start)
            if self.spec.is_feature_download:
                lacking = [_missing(objects, int(at), row_id) for at, row_id in zip(places, ids, strict=True)]
                yield from (
                    (int(at), [gone.id], gone) for at, gone in zip(places, lacking, strict=True) if gone
                )
                there = np.flatnonzero([gone is None for gone in lacking])
                batch, places, ids = batch.take(there), places[there], [ids[at] for at in there]
            yield from self._halved(batch, ids, places, objects)

    def _halved(
        self, batch: pa.RecordBatch, ids: list[RowId], places: NDArray[np.int64], objects: ShardObjects
    ) -> Iterator[_Call]:
        """Yield results for all rows, in order: one call, or calls on halves if it raises."""
        pending = [slice(0, len(ids))] if ids else []
        while pending:
            rows = pending.pop()
            part = batch.slice(rows.start, rows.stop - rows.start)
            prepared = self._prepare(self.spec.batch_preprocessor, part, ids[rows.start], objects)
            if isinstance(prepared, FailedRow) and part.num_rows > 1:
                middle = (rows.start + rows.stop) // 2
                pending += [slice(middle, rows.stop), slice(rows.start, middle)]
            else:
                yield int(places[rows.start]), ids[rows], prepared

    def _prepare(
        self,
        function: Callable[[Any, Mode, str], object],
        rows: object,
        row_id: RowId,
        objects: ShardObjects,
    ) -> _Prepared:
        """Call the user's function on a row, or on a batch that starts with the row."""
        seed_generators(f"{self.job.fingerprint}/{self.job.split}/{row_id}")
        try:
            prepared = function(rows, self.job.split, objects.folder)
        except (Exception, SystemExit) as error:
            if isinstance(error, MemoryError) and not self.is_alone:
                raise
            if (found := error_of_call(error, self.job.cache_folder)) is not None:
                raise found from error  # the row is valid and is preprocessed again later
            return _failed(row_id, error, _empty_columns(rows))
        if not isinstance(prepared, tuple) or len(prepared) != 2:
            raise RowError(
                f"row {row_id!r}: {function.__name__} returned a {type(prepared).__name__}, "
                "expected (input, output). To leave a row out, raise an exception"
            )
        return prepared


_Prepared: TypeAlias = "tuple[object, object] | FailedRow"
_Call: TypeAlias = "tuple[int, Sequence[RowId], _Prepared]"
"""Position of the first row in the shard, ids of the rows, and the function's result."""


def begin(
    job: EtlJob, metadata: Metadata, source: Source, make_spec: SpecFactory, *, process: int
) -> Preprocessor:
    """Create the preprocessor of a job in process number `process`.

    Raises:
        SpecError: the spec cannot be restored or initialised, or names columns that the metadata lacks.
        LocatorError, ObjectStoreError: the object store cannot be used.
    """
    spec = _user_code("the ETLSpec cannot be restored and initialised", make_spec)
    return open_preprocessor(job, metadata, source, spec, process=process)


def initialize(spec: Spec) -> None:
    """Initialise the spec, once per process.

    Raises:
        SpecError: user code raised.
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
    """Seed the global generators of Python, NumPy and, if imported, torch from ``key``."""
    seed = xxhash.xxh3_64_intdigest(key.encode())
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.manual_seed(seed)  # not torch.manual_seed, which accesses GPUs and takes 0.2 ms


def _user_code(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except PermanentError:
        raise
    except (Exception, SystemExit) as error:
        raise SpecError(f"{what}: {line_of(error)}") from error


def _missing(objects: ShardObjects, position: int, row_id: RowId) -> FailedRow | None:
    """Return the failure of a row with unavailable objects, if any."""
    try:
        objects.wait(position)
    except LocatorError as error:
        return _failed(row_id, error)
    return None


def _empty_columns(rows: Any) -> list[str]:
    """Return the columns without a value in a row, or in a batch of one row."""
    row = rows if isinstance(rows, dict) else rows.to_pylist()[0] if rows.num_rows == 1 else {}
    return [
        str(name) for name, value in row.items() if value is None or (isinstance(value, str) and not value)
    ]


def _failed(row_id: RowId, error: BaseException, empty_columns: Sequence[str] = ()) -> FailedRow:
    message = cleaned(line_of(error), _MAX_ERROR)
    if empty_columns:
        more = len(empty_columns) - _MAX_COLUMNS
        names = ", ".join(empty_columns[:_MAX_COLUMNS]) + (f" and {more} more" if more > 0 else "")
        hint = cleaned(
            f" (empty in this row: {names}; fill them, or handle None, and '' in texts)", _MAX_ERROR
        )
        line, newline, rest = message.partition("\n")  # most displays show the first line only
        message = f"{line}{hint}{newline}{rest}"
    return FailedRow(id=row_id, error=message, traceback=cleaned(text_of(error), _MAX_TRACEBACK))
