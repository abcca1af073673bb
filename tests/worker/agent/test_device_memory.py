"""Devices that are shares of cores with a memory limit count the memory of an attempt."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from cerebro.contract.tasks.failures import FailureKind
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.child.device_memory import DeviceMemory, OutOfMemoryError
from cerebro.worker.child.task_loop import failure_of

MIB = 1 << 20


def test_only_memory_of_the_attempt_counts() -> None:
    """The peak counts, without memory from before the attempt."""
    before = np.ones(128 * MIB, np.uint8)
    counted = DeviceMemory(64 * MIB)
    counted.begin()
    counted.check()
    np.ones(32 * MIB, np.uint8)
    counted.check()
    np.ones(128 * MIB, np.uint8)
    with pytest.raises(OutOfMemoryError, match=r"took 1\d\d MiB of its device, which has 64 MiB") as caught:
        counted.check()
    failure = failure_of(caught.value)
    assert (failure.kind, failure.memory_kind) == (FailureKind.OUT_OF_MEMORY, "device")
    assert failure.peak_bytes >= 120 * MIB  # approximate kernel counters
    counted.begin()
    counted.check()
    assert before.sum() == 128 * MIB


def test_files_that_are_mapped_do_not_count(tmp_path: Path) -> None:
    """Shards are mapped, so they use the page cache."""
    path = tmp_path / "rows"
    path.write_bytes(bytes(128 * MIB))
    counted = DeviceMemory(64 * MIB)
    counted.begin()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert int(np.frombuffer(mapped, np.uint8).sum()) == 0
        counted.check()


def test_a_task_has_the_memory_of_its_devices() -> None:
    """Without a configured limit nothing is counted."""
    devices = WorkerDevices(4, 2, (), 64 * MIB)
    assert [device.memory_bytes for device in devices.devices] == [64 * MIB] * 2
    assert devices.share((1,)).memory_bytes == 64 * MIB
    assert devices.share((0, 1)).memory_bytes == 128 * MIB
    assert devices.share(()).memory_bytes is None
    assert WorkerDevices(4, 2).share((1,)).memory_bytes is None
