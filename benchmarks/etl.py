"""ETL: rows per second of a partition on two cores, against a bare process pool that keeps no rows.

Both run the same row function (decode a PNG, crop, flip, resize: one to two milliseconds) on the same rows with two
processes, start-up included. They alternate, so that a slow machine affects both; the ratio is the mean of the paired
ratios. Cerebro also flattens, checks, copies and writes the rows, checksums and flushes the shards, and counts.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from benchmarks.figure import Figure
from cerebro.spec import ETLSpec, Mode
from cerebro.worker.preprocessing.job import EtlJob
from etl_worker.cores import Cores
from etl_worker.partition import preprocess_partition

BAR = 0.9
CORES = 2
SECONDS = 16.0  # minimum of one run
PAIRS = 2
_IMAGES, _SIDE, _OUTPUT = 256, 144, 64

Row = dict[str, Any]


class DecodeAndAugment(ETLSpec):
    """Row function from a PNG to 3x64x64 uint8 and a label."""

    is_feature_download = ["file"]  # noqa: RUF012 - as a user writes it

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """Apply the row function that the bare pool also runs."""
        with Image.open(Path(object_dir) / row["file"]) as file:
            image = file.convert("RGB")
        left, top = random.randrange(16), random.randrange(16)
        image = image.crop((left, top, left + _SIDE - 16, top + _SIDE - 16))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = image.resize((_OUTPUT, _OUTPUT), Image.Resampling.BILINEAR)
        return np.asarray(image).transpose(2, 0, 1), row["label"]


def measure() -> dict[str, float]:
    """Return the rows per second of both, and their ratio."""
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name:
        folder = Path(name)
        _write_images(folder / "objects")
        rows = _rows(_num_rows(folder / "objects"))
        _write_metadata(folder / "metadata.arrow", rows)
        ours: list[_Run] = []
        theirs: list[_Run] = []
        for pair in range(PAIRS):
            runs: list[tuple[list[_Run], Callable[[], None]]] = [
                (ours, lambda pair=pair: _partition(folder, pair)),  # type: ignore[misc]
                (theirs, lambda: _bare_pool(folder / "objects", rows)),
            ]
            for done, run in runs if pair % 2 == 0 else reversed(runs):
                done.append(_timed(run))
    pairs = list(zip(ours, theirs, strict=True))
    return {
        "etl_rows_per_s": len(rows) / statistics.mean(run.wall_s for run in ours),
        "pool_rows_per_s": len(rows) / statistics.mean(run.wall_s for run in theirs),
        "ratio": statistics.mean(other.wall_s / mine.wall_s for mine, other in pairs),
        "cpu_ratio": statistics.mean(other.cpu_s / mine.cpu_s for mine, other in pairs),
        "row_ms": 1000 * statistics.mean(run.cpu_s for run in theirs) / len(rows),
        "rows": len(rows),
        "bar": BAR,
    }


@dataclass(frozen=True, kw_only=True)
class _Run:
    wall_s: float
    cpu_s: float


def _timed(run: Callable[[], None]) -> _Run:
    wall_s, cpu_s = time.perf_counter(), _cpu_s()
    run()
    return _Run(wall_s=time.perf_counter() - wall_s, cpu_s=_cpu_s() - cpu_s)


def _cpu_s() -> float:
    """Return the CPU seconds of this process and its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def benchmark() -> Figure:
    """Measure the ratio."""
    found = measure()
    return Figure(
        what=f"ETL: rows/s on {CORES} cores, against a bare process pool with the same row function",
        measured=f"{found['etl_rows_per_s']:,.0f} rows/s, bare pool {found['pool_rows_per_s']:,.0f} rows/s",
        ratio=found["ratio"],
        bar=BAR,
        sense="at least",
        notes=(
            f"{found['rows']:,.0f} rows, {found['row_ms']:.2f} ms of row function each",
            f"ratio of processor time, which other load disturbs less: {found['cpu_ratio']:.3f}",
        ),
    )


def _partition(folder: Path, pair: int) -> None:
    job = EtlJob(
        split="train",
        metadata_path=folder / "metadata.arrow",
        output_folder=folder / f"partition-{pair:04d}",
        objects_uri=str(folder / "objects"),
        cache_folder=folder / "cache",
        cores=CORES,
        max_failed_fraction=0.0,
        fingerprint="benchmark",
    )
    with closing(Cores(DecodeAndAugment)) as cores:
        preprocess_partition(job, cores, lambda progress: None)


def _bare_pool(objects: Path, rows: list[Row]) -> None:
    with multiprocessing.get_context("fork").Pool(CORES, _start, (str(objects),)) as pool:
        pool.map(_keep_nothing, rows)


_bare: tuple[DecodeAndAugment, str]


def _start(objects: str) -> None:
    global _bare
    _bare = (DecodeAndAugment(), objects)


def _keep_nothing(row: Row) -> None:
    spec, objects = _bare
    spec.row_preprocessor(row, "train", objects)


def _num_rows(objects: Path) -> int:
    """Return the number of rows for one run of `SECONDS`."""
    spec, rows = DecodeAndAugment(), _rows(300)
    start = time.perf_counter()
    for row in rows:
        spec.row_preprocessor(row, "train", str(objects))
    return int(SECONDS * 1.15 * CORES * len(rows) / (time.perf_counter() - start))


def _rows(count: int) -> list[Row]:
    return [{"id": i, "file": f"{i % _IMAGES:04d}.png", "label": i % 10} for i in range(count)]


def _write_metadata(path: Path, rows: list[Row]) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _write_images(folder: Path) -> None:
    """Write smooth colours with a little noise, which compress and decode like photographs."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for index in range(_IMAGES):
        coarse = generator.integers(0, 256, (8, 8, 3), np.uint8)
        image = np.asarray(Image.fromarray(coarse).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC), np.int16)
        noisy = np.clip(image + generator.integers(-4, 5, image.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{index:04d}.png")


def main() -> None:
    """Print the figures."""
    print(benchmark())


if __name__ == "__main__":
    main()
