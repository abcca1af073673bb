"""Vectorised ETL: rows per second of a table on two cores, against a process pool that only computes.

The table resembles Criteo's: 13 counts with gaps, 26 categories as strings, a label. Both fill gaps, take logarithms
and hash categories, in batches of the same rows, with two processes, start-up included, in turns. Cerebro also checks,
copies and writes the rows, checksums and flushes the shards, and counts. The notes have the rate of an equal row
function.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from benchmarks.figure import Figure
from cerebro.spec import ETLSpec, Mode
from cerebro.worker.preprocessing.job import EtlJob
from etl_worker.cores import Cores
from etl_worker.partition import preprocess_partition

BAR = 0.7
CORES = 2
ROWS = 1_000_000
ROWS_BY_ROW = 20_000
PAIRS = 3
_COUNTS = [f"count_{number}" for number in range(13)]
_CATEGORIES = [f"category_{number}" for number in range(26)]
_BUCKETS = 100_000


class CriteoRows(ETLSpec):
    """Preprocesses row by row."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        counts = np.array([math.log1p(row[name] or 0) for name in _COUNTS], np.float32)
        hashed = [xxhash.xxh3_64_intdigest((row[name] or "").encode()) % _BUCKETS for name in _CATEGORIES]
        return {"counts": counts, "categories": np.array(hashed, np.int32)}, np.float32(row["label"])


class CriteoBatches(ETLSpec):
    """Preprocesses in batches; hashes a category once per batch."""

    def batch_preprocessor(self, batch: pa.RecordBatch, mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        counts = [np.log1p(pc.fill_null(batch[name], 0).to_numpy()).astype(np.float32) for name in _COUNTS]
        hashed = [_hashed(pc.fill_null(batch[name], "").dictionary_encode()) for name in _CATEGORIES]
        inputs = {"counts": np.stack(counts, axis=1), "categories": np.stack(hashed, axis=1)}
        return inputs, batch["label"].to_numpy().astype(np.float32)


def _hashed(column: pa.DictionaryArray) -> NDArray[np.int32]:
    words = column.dictionary.to_pylist()
    codes = np.fromiter(
        (xxhash.xxh3_64_intdigest(word.encode()) % _BUCKETS for word in words), np.int32, len(words)
    )
    hashed: NDArray[np.int32] = codes[column.indices.to_numpy()]
    return hashed


def measure() -> dict[str, float]:
    """Return the rows per second of all three, and the ratio of the paired runs."""
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name:
        folder = Path(name)
        table = _table(ROWS)
        _write(folder / "rows.arrow", table)
        _write(folder / "few.arrow", table.slice(0, ROWS_BY_ROW))
        ours: list[float] = []
        theirs: list[float] = []
        for pair in range(PAIRS):
            runs: list[tuple[list[float], Callable[[], None]]] = [
                (ours, lambda pair=pair: _partition(folder, "rows", f"{pair}", CriteoBatches)),  # type: ignore[misc]
                (theirs, lambda: _bare_pool(folder / "rows.arrow")),
            ]
            for seconds, run in runs if pair % 2 == 0 else reversed(runs):
                seconds.append(_timed(run))
        by_row = _timed(lambda: _partition(folder, "few", "by-row", CriteoRows))
    return {
        "batches": ROWS / statistics.median(ours),
        "pool": ROWS / statistics.median(theirs),
        "by_row": ROWS_BY_ROW / by_row,
        "ratio": statistics.median(other / mine for mine, other in zip(ours, theirs, strict=True)),
    }


def benchmark() -> Figure:
    """Measure the ratio."""
    found = measure()
    return Figure(
        what=f"Vectorised ETL: rows/s of {ROWS:,} rows on {CORES} cores, against a bare pool that keeps nothing",
        measured=f"{found['batches']:,.0f} rows/s, bare pool {found['pool']:,.0f} rows/s",
        ratio=found["ratio"],
        bar=BAR,
        sense="at least",
        notes=(f"by a row function that does the same: {found['by_row']:,.0f} rows/s",),
    )


def _timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _partition(folder: Path, rows: str, name: str, spec: Callable[[], ETLSpec]) -> None:
    job = EtlJob(
        split="train",
        metadata_path=folder / f"{rows}.arrow",
        output_folder=folder / f"partition-{name}",
        objects_uri=None,
        cache_folder=folder / "cache",
        cores=CORES,
        max_failed_fraction=0.0,
        fingerprint="benchmark",
    )
    with closing(Cores(spec)) as cores:
        preprocess_partition(job, cores, lambda progress: None)


def _bare_pool(path: Path) -> None:
    ranges = [
        (begin, min(begin + CriteoBatches.batch_rows, ROWS))
        for begin in range(0, ROWS, CriteoBatches.batch_rows)
    ]
    with multiprocessing.get_context("fork").Pool(CORES, _open, (path,)) as pool:
        pool.map(_keep_nothing, ranges)


_bare: tuple[CriteoBatches, pa.Table]


def _open(path: Path) -> None:
    global _bare
    with pa.memory_map(str(path)) as file:
        _bare = (CriteoBatches(), pa.ipc.open_file(file).read_all())


def _keep_nothing(rows: tuple[int, int]) -> None:
    spec, table = _bare
    (batch,) = table.slice(rows[0], rows[1] - rows[0]).combine_chunks().to_batches()
    spec.batch_preprocessor(batch, "train", "")


def _table(count: int) -> pa.Table:
    """Return a table with skewed counts and categories, like Criteo's; one in ten is missing."""
    generator = np.random.default_rng(0)

    def gaps() -> Any:
        return generator.random(count) < 0.1

    columns: dict[str, Any] = {"id": np.arange(count)}
    for name in _COUNTS:
        columns[name] = pa.array(generator.geometric(0.02, count) - 1, mask=gaps())
    for number, name in enumerate(_CATEGORIES):
        words = np.array([f"{word:08x}" for word in generator.integers(0, 2**32, 4 ** (2 + number % 6))])
        chosen = np.minimum((len(words) * generator.random(count) ** 3).astype(int), len(words) - 1)
        columns[name] = pa.array(words[chosen], mask=gaps())
    columns["label"] = generator.integers(0, 2, count)
    return pa.table(columns)


def _write(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def main() -> None:
    """Print the figures."""
    print(benchmark())


if __name__ == "__main__":
    main()
