"""Loader: shuffled batches of ragged and tabular rows, against NumPy gathers of the same rows in the same form.

Ragged rows: an image's features (2048 float32) and a caption of 3 to 30 tokens, for a captioning model; and clips of 20
to 400 frames of 80 float32, for a speech model. Tabular rows: 13 float32, 26 int64 and a label, like Criteo's click
logs. All rows are in the page cache, in 8 shards, mapped once, in one process. The NumPy side has each field in one
memory-mapped file and creates the same tensors. Both alternate pass by pass; the ratio is the median of the paired
ratios.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.figure import Figure
from cerebro import Ragged
from cerebro.data.loader import PartitionLoader
from cerebro.data.manifests import PartitionManifest, Source
from cerebro.data.mapped import MappedRows
from cerebro.data.partitions import write_manifest
from cerebro.data.shards import ShardWriter

SHARDS = 8  # as ETL cuts such a partition on two cores
PASSES = 20
_SOURCE = Source(fingerprint="benchmark", metadata="")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rows to read.

    Attributes:
        fields: name -> an array or a `Ragged` of all rows.
        batch: rows of a batch.
    """

    what: str
    bar: float
    fields: Mapping[str, Any]
    batch: int


def cases() -> list[Case]:
    """Return the measured cases."""
    random = np.random.default_rng(0)
    captions = _rows(random, 8_000, (3, 30), lambda count: random.integers(0, 10_000, count))
    clips = _rows(random, 1_000, (20, 400), lambda count: random.random((count, 80), np.float32))
    return [
        Case(
            what="ragged rows: 2048 features and a caption of 3 to 30 tokens, batches of 32",
            bar=0.7,
            fields={"features": random.random((8_000, 2048), np.float32), "caption": captions},
            batch=32,
        ),
        Case(
            what="ragged rows: a caption of 3 to 30 tokens alone, batches of 128",
            bar=0.7,
            fields={"caption": captions},
            batch=128,
        ),
        Case(
            what="ragged rows: 20 to 400 frames of 80 numbers and a text of 3 to 30 tokens, batches of 32",
            bar=0.7,
            fields={"frames": clips, "text": captions[: len(clips)]},
            batch=32,
        ),
        Case(
            what="tabular rows: 13 numbers, 26 categories and a label, batches of 256",
            bar=0.8,
            fields={
                "numbers": random.random((100_000, 13), np.float32),
                "categories": random.integers(0, 1 << 20, (100_000, 26)),
                "label": random.integers(0, 2, 100_000),
            },
            batch=256,
        ),
    ]


def _rows(
    random: np.random.Generator, count: int, lengths: tuple[int, int], made: Callable[[int], np.ndarray]
) -> Ragged:
    ends = np.cumsum([0, *random.integers(*lengths, count, endpoint=True)])
    return Ragged(made(int(ends[-1])), ends)


def measure(case: Case) -> dict[str, float]:
    """Return the rows per second of the loader and of NumPy, and their ratio."""
    count = len(next(iter(case.fields.values())))
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
        partition = Path(folder) / "partition-0000"
        _write_partition(partition, case.fields, count)
        mapped = {name: _memory_map(Path(folder), name, rows) for name, rows in case.fields.items()}
        rows = MappedRows.open([partition])
        ours, theirs = [], []
        for seed in range(PASSES + 2):
            loader = PartitionLoader(rows, batch_size=case.batch, seed=seed)
            ours.append(count / _seconds(lambda loader=loader: _consume(loader)))  # type: ignore[misc]
            theirs.append(
                count / _seconds(lambda seed=seed: _gather_all(mapped, count, case.batch, seed))  # type: ignore[misc]
            )
        loader = PartitionLoader(rows, batch_size=case.batch, seed=0)
        (batch, _), whole = next(iter(loader)), np.array(loader.ids)
        assert all(_equal(batch[name], _gather(field, whole)) for name, field in mapped.items())
    ours, theirs = ours[2:], theirs[2:]  # the first passes fault the pages in
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {
        "loader_rows_per_s": statistics.median(ours),
        "numpy_rows_per_s": statistics.median(theirs),
        "ratio": statistics.median(ratios),
    }


def benchmark() -> list[Figure]:
    """Measure each case."""
    figures = []
    for case in cases():
        found = measure(case)
        figures.append(
            Figure(
                what=f"loader, {case.what}, against a NumPy gather of the same rows",
                measured=(
                    f"{found['loader_rows_per_s']:,.0f} rows/s, NumPy {found['numpy_rows_per_s']:,.0f} rows/s"
                ),
                ratio=found["ratio"],
                bar=case.bar,
                sense="at least",
                notes=(f"{case.what}: median of {PASSES} passes of each",),
            )
        )
    return figures


def _write_partition(folder: Path, fields: Mapping[str, Any], count: int) -> None:
    shards = []
    edges = [count * index // SHARDS for index in range(SHARDS + 1)]
    for index, (start, stop) in enumerate(pairwise(edges)):
        with ShardWriter(folder, index, start=start, stop=stop, source=_SOURCE, id_type=pa.int64()) as writer:
            writer.add_batch(
                range(start, stop), {name: rows[start:stop] for name, rows in fields.items()}, None
            )
            shards.append(writer.close())
    write_manifest(folder, PartitionManifest.of(_SOURCE, shards))


# --- NumPy --------------------------------------------------------------------------------------------


def _memory_map(folder: Path, name: str, rows: Any) -> Any:
    if isinstance(rows, Ragged):
        return Ragged.unchecked(_memory_map(folder, name, rows.values), rows.offsets)
    np.save(folder / f"{name}.npy", rows)
    return np.load(folder / f"{name}.npy", mmap_mode="r")


def _gather(rows: Any, chosen: np.ndarray) -> Any:
    """Gather as usual: one index per row, and for lists one index per entry."""
    if not isinstance(rows, Ragged):
        return torch.from_numpy(rows[chosen])
    begins, lengths = rows.offsets[chosen], rows.offsets[chosen + 1] - rows.offsets[chosen]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    places = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
    return torch.from_numpy(rows.values[places]), torch.from_numpy(offsets)


def _gather_all(fields: Mapping[str, Any], count: int, size: int, seed: int) -> int:
    order = np.random.default_rng(seed).permutation(count)
    batches = 0
    for start in range(0, count, size):
        chosen = order[start : start + size]
        batch = {name: _gather(field, chosen) for name, field in fields.items()}
        batches += 1
        del batch  # before the next, as the loader does
    return batches


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Ragged):
        return torch.equal(ours.values, theirs[0]) and torch.equal(ours.offsets, theirs[1])
    return torch.equal(ours, theirs)


def _consume(loader: PartitionLoader) -> int:
    return sum(1 for _ in loader)


def _seconds(one_pass: Callable[[], int]) -> float:
    start = time.perf_counter()
    assert one_pass() > 0
    return time.perf_counter() - start


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure.cells())


if __name__ == "__main__":
    main()
