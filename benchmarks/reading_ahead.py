"""Reading ahead: passes of a sub-epoch with as many threads as earlier passes suggest, and without threads.

It uses the rows of `benchmarks.loader`; a training step has one linear layer; the process has the allocator's
settings of a worker's child. The slow-volume case empties the page cache before each pass, and a control group limits
the read rate. The other case reads from memory. Passes of both kinds alternate, and the first of each only learns.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import loader as rows
from benchmarks.figure import Figure
from cerebro.data.loader import PartitionLoader
from cerebro.data.mapped import MappedRows
from cerebro.data.prefetch_tuning import ON_DEMAND, Ahead, Reading, ReadingAhead
from cerebro.worker.agent.processes import allocator

PASSES, BYTES_PER_S = 9, 60_000_000
"""Passes of each kind, and the slow volume's rate: a tenth of a local disk."""

_V1 = Path("/sys/fs/cgroup/blkio")


def benchmark() -> list[Figure]:
    """Measure a slow volume, and memory."""
    environment = os.environ | allocator.tuned(os.environ, 8 << 30)
    command = [sys.executable, "-m", "benchmarks.reading_ahead"]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found = json.loads(answer.stdout)
    slow, fast = found["slow"], found["fast"]
    return [
        Figure(
            what="a pass whose batches are gathered ahead as earlier ones advise, over one without; a slow volume",
            measured=f"{slow['ahead_s']:.2f} s, {slow['plain_s']:.2f} s without; {slow['threads']} threads; the same "
            f"batches: {'yes' if slow['is_same'] else 'NO'}",
            ratio=slow["ratio"] if slow["is_same"] else float("inf"),
            bar=0.9,
            sense="at most",
            notes=(f"{found['limit']}; of {slow['plain_s']:.2f} s training takes {slow['step_s']:.2f} s",),
        ),
        Figure(
            what="the same, from memory",
            measured=f"{fast['ahead_s']:.3f} s, {fast['plain_s']:.3f} s without; {fast['threads']} threads; the same "
            f"batches: {'yes' if fast['is_same'] else 'NO'}",
            ratio=fast["ratio"] if fast["is_same"] else float("inf"),
            bar=1.05,
            sense="at most",
        ),
    ]


@contextmanager
def _slow(folder: Path) -> Iterator[str]:
    """Limit this process's reads from a folder's volume; yield the method, or the reason it is impossible."""
    device, group = folder.stat().st_dev, _V1 / f"cerebro-benchmark-{os.getpid()}"
    try:
        group.mkdir()
        limit = f"{os.major(device)}:{os.minor(device)} {BYTES_PER_S}"
        (group / "blkio.throttle.read_bps_device").write_text(limit)
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        yield f"the volume as it is: its rate cannot be limited ({error})"
        return
    try:
        yield f"{BYTES_PER_S / 1e6:.0f} MB/s"
    finally:
        (_V1 / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def _empty_cache(folder: Path) -> None:
    """Drop a partition's unmapped files from the page cache."""
    gc.collect()
    for path in folder.iterdir():
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


class _Pass:
    """One pass of training."""

    def __init__(self, partition: Path | MappedRows, seed: int, reading: Reading) -> None:
        torch.manual_seed(0)
        weights = torch.zeros(int(np.prod(rows.SHAPE)), 10, requires_grad=True)
        optimizer = torch.optim.SGD([weights], lr=0.01)
        source = partition if isinstance(partition, MappedRows) else [partition]
        began = time.perf_counter()
        batches = PartitionLoader(source, batch_size=rows.BATCH, seed=seed)
        batches.reading = reading
        for images, labels in batches:
            optimizer.zero_grad()
            logits = (images.flatten(1).float() / 255) @ weights
            torch.nn.functional.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        self.seconds = time.perf_counter() - began
        self.weights = hashlib.sha256(weights.detach().numpy().tobytes()).hexdigest()


def _compared(partition: Path, *, is_cold: bool) -> dict[str, Any]:
    """Run passes in turns."""
    learned = ReadingAhead(cores=len(os.sched_getaffinity(0)))
    step_s: list[float] = []
    plain, ahead, used, is_same = list[float](), list[float](), list[Ahead](), True
    mapped = None if is_cold else MappedRows.open([partition])
    for seed in range(PASSES):
        batches = []
        for reading in (
            Reading(ON_DEMAND, lambda times: step_s.append(times.step_s)),
            learned.reading("m", rows.BATCH, is_on_host=True),
        ):
            if is_cold:
                _empty_cache(partition)
            batches.append(_Pass(mapped or partition, seed, reading))
        used.append(reading.ahead)
        is_same &= batches[0].weights == batches[1].weights
        plain.append(batches[0].seconds)
        ahead.append(batches[1].seconds)
    ratios = [mine / other for mine, other in zip(ahead[1:], plain[1:], strict=True)]
    return {
        "plain_s": statistics.median(plain[1:]),
        "ahead_s": statistics.median(ahead[1:]),
        "ratio": statistics.median(ratios),
        "step_s": statistics.median(step_s),
        "threads": statistics.median(each.threads for each in used[1:]),
        "is_same": is_same,
    }


def main() -> None:
    """Measure in this process, and print the figures as JSON."""
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
        partition = Path(folder) / "partition-0000"
        images = generator.integers(0, 256, (rows.ROWS, *rows.SHAPE), np.uint8)
        rows._write_partition(partition, images, generator.integers(0, 10, rows.ROWS))
        del images
        with _slow(partition) as limit:
            slow = _compared(partition, is_cold=True)
        fast = _compared(partition, is_cold=False)
    print(json.dumps({"slow": slow, "fast": fast, "limit": limit}))


if __name__ == "__main__":
    main()
