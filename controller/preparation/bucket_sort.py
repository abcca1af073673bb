"""External bucket sort: rows sorted by key in bounded memory.

Keys are hashes, so prefixes are about equally frequent. A first pass scatters rows by prefix into files; then
each file is sorted in memory. Equal ids have equal keys, so duplicates meet in one file. Independent of the
rows' meaning.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cerebro.data.tables.whole_tables import ids_as_text
from cerebro.runtime.volume_errors import volume_errors_named
from controller.preparation.partition import Keys

CHUNK_BYTES = 48 << 20
"""Bytes of rows scattered at once."""
BUCKET_BYTES = 64 << 20
"""Approximate bytes of a bucket, which is sorted in memory."""
_TOO_LARGE = 2
"""A bucket larger by this factor is scattered again."""
_MAX_BITS = 8
"""256 buckets: the number of open files, of 1,024 for a process."""
_KEY_BITS = 64


class DuplicateIdError(Exception):
    """Rows have equal ids: the argument is a list of some ids."""


class BucketSort:
    """Accepts rows in any order and returns them sorted by key, then id. Single thread; single use.

    Args:
        folder: existing folder for its exclusive use. Unused while all rows fit one chunk.
        schema: schema of the rows, with a column ``id``.
        num_bytes: approximate bytes of all rows.
        skipped_bits: leading bits that all keys share.
    """

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        num_bytes: int,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        bucket_bytes: int = BUCKET_BYTES,
        skipped_bits: int = 0,
    ) -> None:
        self._folder, self._schema = folder, schema
        self._keyed = schema.append(pa.field("", pa.uint64()))
        self._chunk_bytes, self._bucket_bytes = chunk_bytes, bucket_bytes
        self._skipped = skipped_bits
        self._bits = min((num_bytes // bucket_bytes).bit_length(), _MAX_BITS, _KEY_BITS - skipped_bits)
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._sizes: dict[int, int] = {}
        self._writers: dict[int, pa.ipc.RecordBatchFileWriter] = {}
        self._files = ExitStack()

    def add(self, keys: Keys, batch: pa.RecordBatch) -> None:
        """Add rows.

        Raises:
            DuplicateIdError: two rows have the same id.
            StorageFullError: the folder's volume is full.
        """
        self._put(pa.RecordBatch.from_arrays([*batch.columns, pa.array(keys)], schema=self._keyed))

    def runs(self, max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the first `max_rows` rows in order; compare only the ids of the others. No rows can follow.

        Raises:
            DuplicateIdError: two rows have the same id.
            StorageFullError: the folder's volume is full.
        """
        for run in self._runs(max_rows):
            yield pa.RecordBatch.from_arrays(run.columns[:-1], schema=self._schema)

    def close(self) -> None:
        """Close all files. Idempotent."""
        with volume_errors_named(self._folder):
            self._files.close()

    def _put(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= self._chunk_bytes:
            self._scatter()

    def _scatter(self) -> None:
        """Write pending rows to the files of their buckets."""
        if not self._pending:
            return
        chunk = pa.concat_batches(self._pending)
        self._pending, self._pending_bytes = [], 0
        # An often repeated id is found here, before it fills its bucket.
        _require_unique(chunk)
        buckets = self._buckets(chunk)
        order = np.argsort(buckets, kind="stable")  # of 8 bits: a radix sort
        chunk = _taken(chunk, order)
        present, starts = np.unique(buckets[order], return_index=True)
        stops = [*starts[1:].tolist(), len(buckets)]
        with volume_errors_named(self._folder):
            for bucket, start, stop in zip(present.tolist(), starts.tolist(), stops, strict=True):
                part = chunk.slice(start, stop - start)
                self._writer(bucket).write_batch(part)
                self._sizes[bucket] = self._sizes.get(bucket, 0) + part.nbytes

    def _buckets(self, chunk: pa.RecordBatch) -> NDArray[np.uint8]:
        keys: Keys = chunk.column(-1).to_numpy()
        if not self._bits:
            return np.zeros(len(keys), np.uint8)
        return ((keys << np.uint64(self._skipped)) >> np.uint64(_KEY_BITS - self._bits)).astype(np.uint8)

    def _writer(self, bucket: int) -> pa.ipc.RecordBatchFileWriter:
        if bucket not in self._writers:
            file = self._files.enter_context(pa.OSFile(str(self._path(bucket)), "wb"))
            self._writers[bucket] = self._files.enter_context(pa.ipc.new_file(file, self._keyed))
        return self._writers[bucket]

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{self._skipped:02d}-{bucket:03d}.arrow"

    def _runs(self, max_rows: int) -> Iterator[pa.RecordBatch]:
        if not self._writers:
            if self._pending:
                chunk = pa.concat_batches(self._pending)
                yield _taken(chunk, _order(chunk)[:max_rows])
            return
        self._scatter()
        self.close()
        for bucket, size in sorted(self._sizes.items()):
            path = self._path(bucket)
            if size > _TOO_LARGE * self._bucket_bytes and self._skipped + self._bits < _KEY_BITS:
                for run in self._split(path, size, max_rows):
                    max_rows -= run.num_rows
                    yield run
                continue
            chunk = self._read(path, only_ids=not max_rows)
            path.unlink()
            order = _order(chunk)[:max_rows]
            max_rows -= len(order)
            if len(order):
                yield _taken(chunk, order)

    def _split(self, path: Path, size: int, max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a bucket that is too large for memory."""
        finer = BucketSort(
            self._folder,
            self._schema,
            size,
            chunk_bytes=self._chunk_bytes,
            bucket_bytes=self._bucket_bytes,
            skipped_bits=self._skipped + self._bits,
        )
        # The first bucket of `finer` may have the same name: an estimate of 0 skips no bits.
        path = path.rename(path.with_suffix(".split"))
        with closing(finer):
            with pa.OSFile(str(path)) as file:
                reader = pa.ipc.open_file(file)
                for number in range(reader.num_record_batches):
                    finer._put(reader.get_batch(number))
            path.unlink()
            yield from finer._runs(max_rows)

    def _read(self, path: Path, *, only_ids: bool) -> pa.RecordBatch:
        fields = [self._schema.get_field_index("id"), len(self._schema)] if only_ids else None
        with pa.OSFile(str(path)) as file:
            reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields))
            return pa.concat_batches(
                [reader.get_batch(number) for number in range(reader.num_record_batches)]
            )


def _taken(chunk: pa.RecordBatch, order: NDArray[np.int64]) -> pa.RecordBatch:
    return pc.take(chunk, pa.array(order), boundscheck=False)


def _require_unique(chunk: pa.RecordBatch) -> None:
    """Raise DuplicateIdError if rows of the chunk have the same id."""
    ordered = np.sort(chunk.column(-1).to_numpy())
    if (ordered[1:] == ordered[:-1]).any():
        _order(chunk)


def _order(chunk: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the row numbers in sorted order."""
    keys = chunk.column(-1).to_numpy()
    order: NDArray[np.int64] = np.argsort(keys)
    ordered = keys[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    if not len(again):
        return order
    # Different ids with equal keys are extremely rare.
    places = np.union1d(again, again - 1)
    texts = ids_as_text(chunk.column("id").take(order[places]))
    settled = sorted(zip(ordered[places].tolist(), texts, order[places].tolist(), strict=True))
    same = [one for (*one, _), (*other, _) in itertools.pairwise(settled) if one == other]
    if same:
        raise DuplicateIdError([text.decode() for _, text in same])
    order[places] = [row for *_, row in settled]
    return order
