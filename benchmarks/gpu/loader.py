"""The loader's batches on the device, against plain copies of as many bytes from pinned memory."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.section import GB, Row, Setting, part
from cerebro.data.loader import PartitionLoader
from cerebro.data.manifests import Source
from cerebro.data.mapped import MappedRows
from cerebro.data.prefetch_tuning import Ahead, Reading, ReadingAhead
from cerebro.data.shards import write_rows
from cerebro.runtime.usage import memory

_PASSES = 6
_COPIES = 20
_SOURCE = Source(fingerprint="gpu", metadata="xxh3_64:0")
_FEATURES = 40


def measure(setting: Setting) -> Iterator[Row]:
    """Images, which are limited by bandwidth, and short rows, which are limited by the work for each batch."""
    yield from part(setting, "images", 25, partial(_images, setting))
    yield from part(setting, "short rows", 15, partial(_short, setting))


def _images(setting: Setting) -> Iterator[Row]:
    count, batch_size = (512, 64) if setting.is_small else (4096, 256)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, 3, 224, 224), np.uint8)
    write_rows(setting.folder / "images", [(image, n % 10) for n, image in enumerate(images)], _SOURCE)
    batch_bytes = images[0].nbytes * batch_size
    pinned, pageable = (_copy_rate(setting, batch_bytes, is_pinned=each) for each in (True, False))
    yield Row(
        what=f"plain copies of {batch_bytes / 1e6:.0f} MB to the device",
        measured=f"{pinned / GB:.1f} GB/s from pinned memory, {pageable / GB:.1f} GB/s from other memory",
        values={"pinned_bytes_per_s": pinned, "pageable_bytes_per_s": pageable},
    )
    rows = MappedRows.open([setting.folder / "images"])
    rates, threads = _passes(setting, rows, batch_size)
    rate = statistics.median(rates[2:]) * images[0].nbytes
    yield Row(
        what=f"loader: shuffled batches of {batch_size} images of 3x224x224 bytes on the device",
        measured=f"{rate / GB:.2f} GB/s, {rate / pinned:.0%} of pinned copies; first pass "
        f"{rates[0] * images[0].nbytes / GB:.2f} GB/s with 1 thread, last with {threads}",
        values={"bytes_per_s": rate, "share": rate / pinned, "first": rates[0] * images[0].nbytes},
    )
    host = [_rows_per_s(setting, PartitionLoader(rows, batch_size=batch_size, seed=0)) for _ in range(3)]
    yield Row(
        what="the same in host memory, gathered on demand",
        measured=f"{max(host) * images[0].nbytes / GB:.2f} GB/s",
        values={"bytes_per_s": max(host) * images[0].nbytes},
    )
    yield _by_threads(setting, rows, batch_size, "images")
    yield _same(setting, rows, batch_size)


def _short(setting: Setting) -> Iterator[Row]:
    count, batch_size = (4000, 128) if setting.is_small else (40_000, 128)
    numbers = np.random.default_rng(0).normal(size=(count, _FEATURES)).astype(np.float32)
    write_rows(setting.folder / "short", [(row, n % 2) for n, row in enumerate(numbers)], _SOURCE)
    rows = MappedRows.open([setting.folder / "short"])
    yield _short_rows(setting, rows, batch_size)
    yield _by_threads(setting, rows, batch_size, "short rows")


def _copy_rate(setting: Setting, num_bytes: int, *, is_pinned: bool) -> float:
    """Return bytes per second of copies into memory of the device."""
    source = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8)
    source = source.pin_memory() if is_pinned and setting.is_gpu else source
    target = torch.empty(num_bytes, dtype=torch.uint8, device=setting.device)

    def copy() -> None:
        for _ in range(_COPIES):
            target.copy_(source, non_blocking=True)

    setting.seconds(copy)
    return _COPIES * num_bytes / setting.seconds(copy)


def _passes(setting: Setting, rows: MappedRows, batch_size: int) -> tuple[list[float], int]:
    """Return rows per second of passes as a worker makes them, and the threads of the last."""
    reading = ReadingAhead(len(os.sched_getaffinity(0)), memory.own_group().usable_bytes())
    rates, threads = [], 0
    for seed in range(_PASSES):
        loader = PartitionLoader(rows, batch_size=batch_size, seed=seed, device=setting.device)
        loader.reading = reading.reading("m00", batch_size, is_on_host=not setting.is_gpu)
        threads = loader.reading.ahead.threads
        rates.append(_rows_per_s(setting, loader))
    return rates, threads


def _rows_per_s(setting: Setting, loader: PartitionLoader) -> float:
    count = 0

    def one_pass() -> None:
        nonlocal count
        for inputs, _ in loader:
            count += len(inputs)

    return loader.num_rows / setting.seconds(one_pass)


def _same(setting: Setting, rows: MappedRows, batch_size: int) -> Row:
    """Compare a pass on the device with one on the host, while the device is busy with other work."""
    device, host = (
        PartitionLoader(rows, batch_size=batch_size, seed=3, device=each) for each in (setting.device, "cpu")
    )
    busy = torch.randn(2048, 2048, device=setting.device)
    batches, differences = [], 0
    for (inputs, labels), (expected, expected_labels) in zip(device, host, strict=True):
        busy = busy @ busy  # the copy of the next batch overlaps with it
        batches.append((inputs.clone(), labels.clone(), expected, expected_labels))
    for inputs, labels, expected, expected_labels in batches:
        differences += not torch.equal(inputs.cpu(), expected) or not torch.equal(
            labels.cpu(), expected_labels
        )
    return Row(
        what="batches on the device equal batches on the host",
        measured=f"{differences} of {len(batches)} differ",
        values={"differences": differences},
        holds=differences == 0,
    )


def _short_rows(setting: Setting, rows: MappedRows, batch_size: int) -> Row:
    rates, threads = _passes(setting, rows, batch_size)
    host = [_rows_per_s(setting, PartitionLoader(rows, batch_size=batch_size, seed=0)) for _ in range(3)]
    rate = statistics.median(rates[2:])
    return Row(
        what=f"loader: batches of {batch_size} rows of {_FEATURES} numbers on the device",
        measured=f"{rate:,.0f} rows/s, {1e6 * batch_size / rate:.0f} us a batch, {threads} threads; in host memory "
        f"{max(host):,.0f} rows/s",
        values={"rows_per_s": rate, "host_rows_per_s": max(host)},
    )


def _by_threads(setting: Setting, rows: MappedRows, batch_size: int, what: str) -> Row:
    """Time passes with fixed numbers of gathering threads."""
    found: dict[str, float] = {}
    for threads in (1, 2, 4, 8, 15):
        rates = []
        for seed in range(3):
            loader = PartitionLoader(rows, batch_size=batch_size, seed=seed, device=setting.device)
            loader.reading = Reading(Ahead(threads, threads + 1), lambda times: None)
            rates.append(_rows_per_s(setting, loader))
        found[str(threads)] = max(rates)
    return Row(
        what=f"loader: batches of {what} a second, by gathering threads",
        measured=", ".join(f"{threads}: {rate / batch_size:,.0f}" for threads, rate in found.items()),
        values=found,
    )
