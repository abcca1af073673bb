"""Partitioning a table larger than memory: peak memory and rows per second, from CSV and from Parquet.

Cerebro does the work of the controller's process: digest, types, checks, shuffle, two partitions as Arrow files,
flushed to disk. The reference is one scan of the same file by `pyarrow.dataset` that writes the rows in order to one
Arrow file. Each runs in a separate process, whose peak resident memory the kernel reports; they alternate. A tenth of
the rows is also measured, to show that memory does not grow with them.

``make bench`` uses 1,000,000 rows. 10,000,000 rows take 20 GB of disk and some minutes: ``CEREBRO_BENCH_ROWS=10000000
python -m benchmarks streaming``.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet

from benchmarks.figure import Figure

BAR_MB, BAR_RATIO = 600.0, 0.4
ROWS = int(os.environ.get("CEREBRO_BENCH_ROWS", "1000000"))
ROUNDS = 3 if ROWS <= 2_000_000 else 1
_BLOCK = 100_000
_ROW_GROUP = 1_000_000
_FORMATS = ("csv", "parquet")
_SHA = "0" * 64


def benchmark() -> list[Figure]:
    """Measure memory and speed of both formats."""
    folder = Path(tempfile.mkdtemp(prefix="cerebro-bench-"))
    try:
        _write(folder / "few", ROWS // 10)
        _write(folder / "all", ROWS)
        return [figure for form in _FORMATS for figure in _figures(folder, form)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _figures(folder: Path, form: str) -> list[Figure]:
    few = _measured("cut", folder / f"few.{form}", folder)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for number in range(ROUNDS):
        sides = [("cut", ours), ("scan", theirs)]
        for side, found in sides if number % 2 == 0 else reversed(sides):
            found.append(_measured(side, folder / f"all.{form}", folder))
    peak = max(each["peak_mb"] for each in ours)
    seconds, other = (statistics.median(each["seconds"] for each in side) for side in (ours, theirs))
    what = f"streaming: {ROWS:,} rows x 40 columns of {form.upper() if form == 'csv' else 'Parquet'}"
    return [
        Figure(
            what=f"{what}: peak memory of the process that cuts them",
            measured=f"{peak:.0f} MB; {ROWS // 10:,} rows {few['peak_mb']:.0f} MB",
            ratio=peak,
            bar=BAR_MB,
            sense="at most",
            measure="MB",
            notes=(f"the scan takes {max(each['peak_mb'] for each in theirs):.0f} MB",),
        ),
        Figure(
            what=f"{what}: rows/s cut, against one scan that writes them unshuffled",
            measured=f"{ROWS / seconds:,.0f} rows/s, the scan {ROWS / other:,.0f} rows/s",
            ratio=statistics.median(b["seconds"] / a["seconds"] for a, b in zip(ours, theirs, strict=True)),
            bar=BAR_RATIO,
            sense="at least",
            notes=(
                "of processor time "
                f"{statistics.median(b['cpu_s'] / a['cpu_s'] for a, b in zip(ours, theirs, strict=True)):.3f}",
            ),
        ),
    ]


def _measured(side: str, table: Path, folder: Path) -> dict[str, float]:
    """Return seconds, CPU seconds and peak megabytes of one side in a separate process."""
    out = folder / "out"
    command = [sys.executable, "-m", "benchmarks.streaming", side, str(table), str(out)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    shutil.rmtree(out)
    found: dict[str, float] = json.loads(answer)
    return found


def _cut(table: Path, out: Path) -> None:
    from cerebro.contract.records import ExperimentRecord, Locator, Locators
    from cerebro.contract.runs import EtlRequest
    from cerebro.runtime.volumes import Volumes
    from controller.preparation.preparation import prepare_etl

    record = ExperimentRecord(name="bench", locators=Locators(train=Locator(metadata=str(table))))
    request = EtlRequest(code=_SHA, code_fingerprint=_SHA)
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(out)})
    prepare_etl(record, {}, request, {"worker-0": 1.0, "worker-1": 1.0}, volumes)


def _scan(table: Path, out: Path) -> None:
    out.mkdir()
    rows = pyarrow.dataset.dataset(table, format=table.suffix.removeprefix("."))
    with (out / "rows.arrow").open("wb") as file:
        with pa.ipc.new_file(file, rows.schema) as writer:
            for batch in rows.to_batches():
                writer.write_batch(batch)
        os.fsync(file.fileno())


def _write(stem: Path, rows: int) -> None:
    """Write ids, counts with gaps, measures, words and a label."""
    generator = np.random.default_rng(0)
    words = np.array([f"{word:08x}" for word in generator.integers(0, 2**32, 100_000)])

    def block(first: int, count: int) -> Any:
        columns: dict[str, Any] = {"id": np.arange(first, first + count)}
        for number in range(13):
            gaps = generator.random(count) < 0.1
            columns[f"count_{number}"] = pa.array(generator.geometric(0.02, count) - 1, mask=gaps)
        for number in range(13):
            columns[f"measure_{number}"] = np.round(generator.normal(size=count), 4)
        for number in range(12):
            columns[f"word_{number}"] = words[generator.integers(0, 4 ** (2 + number % 6), count)]
        columns["label"] = generator.integers(0, 2, count)
        return pa.table(columns)

    schema = block(0, 1).schema
    plain = pa.csv.WriteOptions(quoting_style="none")
    with (
        pa.csv.CSVWriter(stem.with_suffix(".csv"), schema, write_options=plain) as text,
        pa.parquet.ParquetWriter(stem.with_suffix(".parquet"), schema) as parquet,
    ):
        group: list[Any] = []
        for first in range(0, rows, _BLOCK):
            part = block(first, min(_BLOCK, rows - first))
            text.write_table(part)
            group.append(part)
            if sum(each.num_rows for each in group) >= _ROW_GROUP or first + _BLOCK >= rows:
                parquet.write_table(pa.concat_tables(group), row_group_size=_ROW_GROUP)
                group = []


def main() -> None:
    """Run one side: ``cut`` or ``scan``, a table, an output folder."""
    side, table, out = sys.argv[1:]
    began = time.perf_counter()
    {"cut": _cut, "scan": _scan}[side](Path(table), Path(out))
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "cpu_s": time.process_time(), "peak_mb": _peak_mb()}))


def _peak_mb() -> float:
    """Return the peak since this process began; the kernel's resource usage includes the parent's peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the kernel does not tell the peak of memory")


if __name__ == "__main__":
    main()
