"""Loader: shuffled batches from a partition, against a NumPy memory-map gather of the same rows.

8,000 rows of 3x64x64 uint8 and a label, batches of 128, one process, everything in the page cache, both
mapped once. The two run in turns, pass by pass, so that a machine that slows down slows both; the ratio is
the median of the paired ratios.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.figure import Figure
from cerebro.data.loader import PartitionLoader
from cerebro.data.manifests import PartitionManifest, Source
from cerebro.data.mapped import MappedRows
from cerebro.data.partitions import write_manifest
from cerebro.data.shards import ShardWriter

BAR = 0.8
ROWS, SHAPE, BATCH = 8_000, (3, 64, 64), 128
SHARDS = 8  # what ETL cuts such a partition into on two cores
PASSES = 40
_SOURCE = Source(fingerprint="benchmark", metadata="")


def measure() -> dict[str, float]:
    """Rows per second of the loader and of the memory map, and their ratio."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (ROWS, *SHAPE), np.uint8)
    labels = generator.integers(0, 10, ROWS)
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
        partition = Path(folder) / "partition-0000"
        _write_partition(partition, images, labels)
        mapped = _memory_map(Path(folder), "images", images), _memory_map(Path(folder), "labels", labels)
        rows = MappedRows.open([partition])
        ours, theirs = [], []
        for seed in range(PASSES + 2):
            loader = PartitionLoader(rows, batch_size=BATCH, seed=seed)
            ours.append(_rows_per_s(lambda loader=loader: _consume(loader)))  # type: ignore[misc]
            theirs.append(_rows_per_s(lambda seed=seed: _gather(*mapped, seed)))  # type: ignore[misc]
    ours, theirs = ours[2:], theirs[2:]  # the first passes fault the pages in
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {
        "loader_rows_per_s": statistics.median(ours),
        "memmap_rows_per_s": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "bar": BAR,
    }


def benchmark() -> Figure:
    """`measure` as a line of the table."""
    found = measure()
    return Figure(
        what="loader: shuffled batches, against a NumPy memory-map gather of the same rows",
        measured=f"{found['loader_rows_per_s']:,.0f} rows/s, memory map {found['memmap_rows_per_s']:,.0f} rows/s",
        ratio=found["ratio"],
        bar=BAR,
        sense="at least",
        notes=(
            f"{ROWS:,} rows of {SHAPE} uint8 and a label, batches of {BATCH}, median of {PASSES} passes of each",
        ),
    )


def _write_partition(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    shards = []
    step = ROWS // SHARDS
    for index in range(SHARDS):
        start, stop = index * step, (index + 1) * step
        with ShardWriter(folder, index, start=start, stop=stop, source=_SOURCE, id_type=pa.int64()) as writer:
            for row in range(start, stop):
                writer.add(row, images[row], labels[row])
            shards.append(writer.close())
    write_manifest(folder, PartitionManifest.of(_SOURCE, shards))


def _memory_map(folder: Path, name: str, rows: np.ndarray) -> np.memmap:
    path = folder / f"{name}.npy"
    np.save(path, rows)
    return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]


def _consume(loader: PartitionLoader) -> int:
    return sum(len(labels) for _, labels in loader)


def _gather(images: np.memmap, labels: np.memmap, seed: int) -> int:
    order = np.random.default_rng(seed).permutation(ROWS)
    rows = 0
    for start in range(0, ROWS, BATCH):
        chosen = order[start : start + BATCH]
        batch = images[chosen], labels[chosen]
        rows += len(batch[1])
    return rows


def _rows_per_s(one_pass: Callable[[], int]) -> float:
    start = time.perf_counter()
    rows = one_pass()
    assert rows == ROWS
    return rows / (time.perf_counter() - start)


def main() -> None:
    """Print the figures."""
    print(benchmark())


if __name__ == "__main__":
    main()
