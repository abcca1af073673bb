"""Free space on the file systems of volumes."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_PATIENCE_S = 1.0
"""How long an answer to Prometheus waits for volumes: it gives up a service that does not answer within seconds."""


class VolumeCollector:
    """Free space on volumes, for Prometheus: measured when it is asked for. Those that are not mounted are left out.

    A file system that hangs, as a network's does while its server is away, is told of with what was measured last and
    when, and keeps no other metric from being told.

    Args:
        volumes: name -> folder.
    """

    def __init__(self, volumes: Mapping[str, Path]) -> None:
        self._volumes = {name: _Measured(folder) for name, folder in volumes.items()}

    def collect(self) -> Iterator[Any]:
        """Three families, labelled by volume."""
        from prometheus_client.core import GaugeMetricFamily

        free = GaugeMetricFamily(
            "cerebro_volume_free_bytes", "Room left on a volume's file system.", labels=["volume"]
        )
        size = GaugeMetricFamily(
            "cerebro_volume_size_bytes", "Size of a volume's file system.", labels=["volume"]
        )
        at = GaugeMetricFamily(
            "cerebro_volume_measured_timestamp_seconds",
            "When a volume's file system answered last; 0: not yet.",
            labels=["volume"],
        )
        deadline = time.monotonic() + _PATIENCE_S
        for volume in self._volumes.values():
            volume.begin()
        for name, volume in self._volumes.items():
            volume.wait(max(0.0, deadline - time.monotonic()))
            found, measured = volume.newest
            if found is not None:
                free.add_metric([name], found.free)
                size.add_metric([name], found.total)
            if found is not None or volume.is_hung():
                at.add_metric([name], measured)
        yield from (free, size, at)


class Disk(NamedTuple):
    """Bytes of a file system."""

    total: int
    used: int
    free: int


class _Measured:
    """A file system that is measured in a thread, one at a time: it may keep that thread for ever."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = threading.Thread()
        self._lock = threading.Lock()
        self.newest: tuple[Disk | None, float] = None, 0.0
        """What was found last, and when (seconds since the epoch)."""

    def begin(self) -> None:
        with self._lock:
            if not self._thread.is_alive():
                self._thread = threading.Thread(target=self._measure, name="disk", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def is_hung(self) -> bool:
        return self._thread.is_alive()

    def _measure(self) -> None:
        self.newest = disk(self._folder), time.time()


def disk(path: Path) -> Disk | None:
    """Bytes of the file system that a folder is on; `None` while there is no such folder."""
    try:
        return Disk(*shutil.disk_usage(path))
    except OSError:
        return None
