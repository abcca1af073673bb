"""A failed task reports its memory limit if it had that memory to itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.contract.records import Device, PodRef
from cerebro.runtime.usage.memory import MemoryGroup
from cerebro.worker.agent.execution import Execution


def execution(*, pod: PodRef | None, devices: tuple[int, ...] = (0,)) -> Execution:
    """Make an execution on a worker with two devices of different memory."""
    known = [Device(kind="gpu", name="g", threads=1, memory_bytes=size) for size in (24, 16)]
    shared: Any = SimpleNamespace(
        kvs=None,
        settings=SimpleNamespace(pod=pod),
        handlers={},
        children=None,
        drain=None,
        devices=SimpleNamespace(devices=known),
    )
    nothing: Any = None
    return Execution(shared, devices, nothing, nothing)


@pytest.mark.parametrize(("limit", "expected"), [("4096", 4096), ("max", 0)])
def test_only_the_memory_limit_of_a_container_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int
) -> None:
    """Without a container limit other processes share the memory."""
    (tmp_path / "memory.max").write_text(limit)
    group = MemoryGroup(events=tmp_path / "memory.events", limit=tmp_path / "memory.max")
    monkeypatch.setattr("cerebro.worker.agent.execution.own_group", lambda: group)
    pod = PodRef(name="worker-0", uid="1", container="worker")
    assert execution(pod=pod)._limit_bytes("host") == expected
    assert execution(pod=None)._limit_bytes("host") == 0


@pytest.mark.parametrize(("devices", "expected"), [((0,), 24), ((0, 1), 16), ((), 0)])
def test_of_several_devices_the_smallest_counts(devices: tuple[int, ...], expected: int) -> None:
    """Each rank uses one device."""
    assert execution(pod=None, devices=devices)._limit_bytes("device") == expected
