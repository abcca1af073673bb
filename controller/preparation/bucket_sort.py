"""Rows sorted by their keys in bounded memory: an external bucket sort.

Keys are hashes, so rows with the same first bits are about equally many. A first pass scatters rows by these bits into
files; then each file is sorted by itself, one after the other. Equal ids have equal keys, and so meet in one file: that
is how they are found. What rows mean is not known here.
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

from cerebro.data.tables import ids_as_text
from cerebro.runtime.volume_errors import volume_errors_named
from controller.preparation.partition import Keys

CHUNK_BYTES = 48 << 20
"""Of rows that are scattered at once."""
BUCKET_BYTES = 64 << 20
"""Of a bucket, about: it is sorted in memory."""
_TOO_LARGE = 2
"""Times as large a bucket is scattered again."""
_MOST_BITS = 8
"""256 buckets: as many files are open at once, of the 1,024 that a process may have."""
_KEY_BITS = 64


class DuplicateIdError(Exception):
    """Rows have the same ids: the argument is a list of some of these."""


class BucketSort:
    """Rows go in in any order, and come out sorted by key, then id. Owned by one thread; used once.

    Args:
        folder: for files; it is there, and nobody else uses it. Nothing is written while all rows fit a chunk.
        schema: of rows, with a column ``id``.
        num_bytes: of all rows, about.
        skipped_bits: first bits of keys that all rows have in common.
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
        self._bits = min((num_bytes // bucket_bytes).bit_length(), _MOST_BITS, _KEY_BITS - skipped_bits)
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._sizes: dict[int, int] = {}
        self._writers: dict[int, pa.ipc.RecordBatchFileWriter] = {}
        self._files = ExitStack()

    def add(self, keys: Keys, batch: pa.RecordBatch) -> None:
        """Put rows in.

        Raises:
            DuplicateIdError: two rows have the same id.
            StorageFullError: there is no room in the folder.
        """
        self._put(pa.RecordBatch.from_arrays([*batch.columns, pa.array(keys)], schema=self._keyed))

    def runs(self, most: int) -> Iterator[pa.RecordBatch]:
        """The first rows, so many, in order; of the others only ids are compared. Nothing can be put in any more.

        Raises:
            DuplicateIdError: two rows have the same id.
            StorageFullError: there is no room in the folder.
        """
        for run in self._runs(most):
            yield pa.RecordBatch.from_arrays(run.columns[:-1], schema=self._schema)

    def close(self) -> None:
        """Close what is open. Safe to call twice."""
        with volume_errors_named(self._folder):
            self._files.close()

    def _put(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= self._chunk_bytes:
            self._scatter()

    def _scatter(self) -> None:
        """Write what is pending to the files of its buckets."""
        if not self._pending:
            return
        chunk = pa.concat_batches(self._pending)
        self._pending, self._pending_bytes = [], 0
        # An id that is there again and again is found here, before it fills its bucket.
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

    def _runs(self, most: int) -> Iterator[pa.RecordBatch]:
        if not self._writers:
            if self._pending:
                chunk = pa.concat_batches(self._pending)
                yield _taken(chunk, _order(chunk)[:most])
            return
        self._scatter()
        self.close()
        for bucket, size in sorted(self._sizes.items()):
            path = self._path(bucket)
            if size > _TOO_LARGE * self._bucket_bytes and self._skipped + self._bits < _KEY_BITS:
                for run in self._split(path, size, most):
                    most -= run.num_rows
                    yield run
                continue
            chunk = self._read(path, only_ids=not most)
            path.unlink()
            order = _order(chunk)[:most]
            most -= len(order)
            if len(order):
                yield _taken(chunk, order)

    def _split(self, path: Path, size: int, most: int) -> Iterator[pa.RecordBatch]:
        """A bucket's rows in order, which are too many to be sorted in memory."""
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
            yield from finer._runs(most)

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
    """Numbers of the rows in their order."""
    keys = chunk.column(-1).to_numpy()
    order: NDArray[np.int64] = np.argsort(keys)
    ordered = keys[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    if not len(again):
        return order
    # Next to never are these different ids with the same key.
    places = np.union1d(again, again - 1)
    texts = ids_as_text(chunk.column("id").take(order[places]))
    settled = sorted(zip(ordered[places].tolist(), texts, order[places].tolist(), strict=True))
    same = [one for (*one, _), (*other, _) in itertools.pairwise(settled) if one == other]
    if same:
        raise DuplicateIdError([text.decode() for _, text in same])
    order[places] = [row for *_, row in settled]
    return order
