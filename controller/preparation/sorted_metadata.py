"""A split's metadata in order: streamed, checked, sorted in files, and written in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from cerebro.contract.base import Split
from cerebro.contract.records import Locator
from cerebro.data.files.durable import DurableFile
from cerebro.data.prefetch import prefetched
from cerebro.data.tables.locators import metadata_of, require_columns
from cerebro.data.tables.table_stream import Rows, TableStream
from cerebro.data.tables.whole_tables import ids_as_text
from cerebro.errors import MetadataError
from controller.preparation.bucket_sort import BucketSort, DuplicateIdError
from controller.preparation.partition import cut, row_keys, rows_in_use, shares
from controller.preparation.row_places import row_places

_SHOWN = 3


class SortedMetadata:
    """All rows of a split, sorted by `controller.preparation.partition.row_keys`. Single thread.

    Args:
        stream: stream of its local files.
        folder: existing folder for its exclusive use.
        stratify, group: columns as in `EtlRequest`.

    Attributes:
        total: number of rows.

    Raises:
        LocatorError: a file cannot be read.
        MetadataError: no rows, no ``id``, missing or duplicate ids, or different schemas.
        StorageFullError: the folder's volume is full.
    """

    def __init__(
        self,
        split: Split,
        locator: Locator,
        stream: TableStream,
        seed: int,
        folder: Path,
        *,
        stratify: str = "",
        group: str = "",
    ) -> None:
        self._where, self._folder = metadata_of(split, locator), folder
        self._schema = stream.schema
        require_columns(self._where, self._schema)
        self._sort = BucketSort(folder, self._schema, stream.num_bytes)
        self._places = row_places(self._where, self._schema, stratify=stratify, group=group, seed=seed)
        self.total = 0
        with ExitStack() as stack:
            stack.enter_context(self)
            try:
                for rows in stack.enter_context(closing(prefetched(stream.rows()))):
                    texts = self._ids(rows)
                    if self._places is not None:
                        self._places.observe(rows)
                    self._sort.add(row_keys(texts, seed=seed, split=split), rows.batch)
                    self.total += len(texts)
            except DuplicateIdError as error:
                raise self._duplicate(error) from error
            if not self.total:
                raise MetadataError(f"{self._where} has no rows: expected one row per example")
            stack.pop_all()

    def __enter__(self) -> SortedMetadata:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sort.close()

    def counts(self, weights: Sequence[float], fraction: float) -> list[int]:
        """Return the number of rows of each worker.

        Raises:
            MetadataError: a worker would have no rows.
        """
        if self._places is not None:
            return self._places.plan(weights, fraction)
        return shares(rows_in_use(self.total, fraction), weights)

    def write(self, counts: Sequence[int]) -> list[Path]:
        """Write the rows in order to Arrow IPC files with these numbers of rows, the result of `counts`. Call it once.

        Raises:
            MetadataError: ids are not unique.
            StorageFullError: the folder's volume is full.
        """
        paths = [self._folder / f"{number:04d}.arrow" for number in range(len(counts))]
        with ExitStack() as stack:
            # A folder moved away must not return: see `controller.preparation.preparation`.
            files = [DurableFile(path, makes_folder=False) for path in paths]
            for file in files:
                stack.callback(file.discard)
            self._write(files, counts)
            for file in files:
                file.commit()
        return paths

    def _write(self, files: Sequence[DurableFile], counts: Sequence[int]) -> None:
        done = 0
        with ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_file(file, self._schema)) for file in files]
            try:
                num_rows = sum(counts) if self._places is None else self.total
                for run in stack.enter_context(closing(prefetched(self._sort.runs(num_rows)))):
                    if self._places is not None:
                        places = self._places.places(run)
                        for number in range(len(counts)):
                            part = run.take(np.flatnonzero(places == number))
                            if part.num_rows:
                                writers[number].write_batch(part)
                        continue
                    for number, rows in cut(done, run.num_rows, counts):
                        writers[number].write_batch(run.slice(rows.start, rows.stop - rows.start))
                    done += run.num_rows
            except DuplicateIdError as error:
                raise self._duplicate(error) from error

    def _ids(self, rows: Rows) -> list[bytes]:
        ids = rows.batch.column("id")
        texts = ids_as_text(ids)
        if ids.null_count or b"" in texts:
            at = next(number for number, text in enumerate(ids.to_pylist()) if text in (None, ""))
            raise MetadataError(
                f"{self._where} has no 'id' in row {rows.first + at:,} of {rows.file}: give each row one"
            )
        return texts

    def _duplicate(self, error: DuplicateIdError) -> MetadataError:
        ids: list[str] = error.args[0]
        more = f", and {', '.join(map(repr, ids[1:_SHOWN]))} too" if len(ids) > 1 else ""
        return MetadataError(f"{self._where} has the id {ids[0]!r} more than once{more}: ids must be unique")
