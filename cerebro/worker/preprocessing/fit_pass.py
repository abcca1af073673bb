"""The pass of `ETLSpec.fit` over all training rows, before preprocessing.

`etl_worker.fit_handler` and the client's dry run call it. It reads the training metadata on the shared volume,
partition by partition, in an order that does not depend on the workers. It reads no other data, so it cannot see rows
of other splits. It returns the fitted value and stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cerebro.data.objects import ObjectStore, open_store
from cerebro.errors import LocatorError, SpecError
from cerebro.runtime.tracebacks import line_of, text_of
from cerebro.runtime.volume_errors import error_of_call
from cerebro.usercode.checks import check_features
from cerebro.worker.preprocessing.downloads import ShardObjects
from cerebro.worker.preprocessing.metadata import Metadata
from cerebro.worker.preprocessing.shard import seed_generators

if TYPE_CHECKING:
    import pyarrow as pa

_DOWNLOADS = 16
"""Objects fetched at a time."""

_FETCHED_ROWS = 256
"""Maximum rows of a batch with copied objects: all copies are on the worker's volume at once."""


class Fitting(Protocol):
    """The part of `cerebro.spec.ETLSpec` that a fit pass uses."""

    @property
    def is_feature_download(self) -> Sequence[str]:
        """Metadata columns that name objects."""

    @property
    def batch_rows(self) -> int:
        """Maximum rows of a batch."""

    def fit(self, batches: Iterator[pa.RecordBatch], object_dir: str) -> Any:
        """Statistics of the training rows."""


class FitPass:
    """One call of `fit`.

    Args:
        paths: metadata of the training partitions, in order.
        objects_uri: root of the objects that metadata name.
        scratch: this pass's own folder for copies of objects; removed at the end.
        seed_key: seed of the generators.
        on_rows: called with (rows until now, total rows) after each batch, and after each row with copied
            objects. An exception ends the pass.

    Attributes:
        rows: number of rows returned or skipped until now.
    """

    def __init__(
        self,
        spec: Fitting,
        paths: Sequence[Path],
        *,
        objects_uri: str | None,
        scratch: Path,
        seed_key: str,
        on_rows: Callable[[int, int], None] = lambda rows, total: None,
    ) -> None:
        self._spec, self._paths, self._seed_key = spec, paths, seed_key
        self._objects_uri, self._scratch, self._on_rows = objects_uri, scratch, on_rows
        self.rows = 0
        self._at = ""
        self._platform_error: BaseException | None = None

    def fit(self) -> Any:
        """Return the result of the user's method, which may stop iterating early.

        Raises:
            SpecError: user code raised (with its traceback), or the spec names missing columns.
            LocatorError, MetadataError, ObjectStoreError, StorageFullError: rows or objects are unavailable.
        """
        parts = [Metadata(path) for path in self._paths]
        store = self._store(parts)
        object_dir = self._objects(store, []).folder
        seed_generators(self._seed_key)
        batches = self._batches(parts, store)
        try:
            found = self._spec.fit(batches, object_dir)
        except (Exception, SystemExit) as error:
            if self._platform_error is not None:  # the platform's error, which user code may have replaced
                raise self._platform_error from error
            if (found := error_of_call(error, self._scratch)) is not None:
                raise found from error
            raised = SpecError(f"ETLSpec.fit raised {self._at or 'before its first batch'}: {line_of(error)}")
            raised.user_traceback = text_of(error)
            raise raised from error
        finally:
            batches.close()
        if self._platform_error is not None:  # user code caught it, so it has not seen all rows
            raise self._platform_error
        return found

    def _store(self, parts: Sequence[Metadata]) -> ObjectStore | None:
        for part in parts[:1]:
            check_features(self._spec, "train", part.columns, has_objects=self._objects_uri is not None)
        if self._objects_uri is None or not self._spec.is_feature_download:
            return None
        store = open_store(self._objects_uri)
        store.check()
        return store

    def _objects(self, store: ObjectStore | None, rows: Sequence[dict[str, Any]]) -> ShardObjects:
        return ShardObjects(store, rows, tuple(self._spec.is_feature_download), self._scratch, _DOWNLOADS)

    def _batches(
        self, parts: Sequence[Metadata], store: ObjectStore | None
    ) -> Generator[pa.RecordBatch, None, None]:
        total, size = sum(part.num_rows for part in parts), self._spec.batch_rows
        columns = list(self._spec.is_feature_download)
        if store is not None and store.local_root() is None:
            size = min(size, _FETCHED_ROWS)
        try:
            for part in parts:
                for begin in range(0, part.num_rows, size):
                    self._on_rows(self.rows, total)
                    rows = range(begin, min(begin + size, part.num_rows))
                    named = part.rows(rows.start, rows.stop, columns) if store is not None else []
                    with self._objects(store, named) as objects:
                        batch = self._batch(part, rows, objects if named else None, total)
                        self.rows += len(rows)
                        if batch.num_rows:
                            yield batch
            self._on_rows(self.rows, total)
        except Exception as error:
            self._platform_error = error
            raise

    def _batch(self, part: Metadata, rows: range, objects: ShardObjects | None, total: int) -> pa.RecordBatch:
        """Return the rows with available objects."""
        there: list[int] | None = None
        if objects is not None:
            there = []
            for at in range(len(rows)):
                if _is_there(objects, at):
                    there.append(at)
                if not objects.is_local:
                    self._on_rows(self.rows + at + 1, total)
        batch = part.batch(rows.start, rows.stop, None if there is None or len(there) == len(rows) else there)
        if batch.num_rows:
            first = batch["id"][0].as_py()
            self._at = f"in the {batch.num_rows} rows from row {first!r} on, after {self.rows:,} rows"
        return batch


def _is_there(objects: ShardObjects, position: int) -> bool:
    """True if a row's objects are available. Preprocessing reports rows without."""
    try:
        objects.wait(position)
    except LocatorError:
        return False
    return True
