"""Free space on the file systems of volumes.

Workers and the controller register a `VolumeCollector` with Prometheus; `meter` uses `disk`. A scrape waits one second
at most. Sizes of single files or experiments are not measured here.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cerebro.runtime.background_query import BackgroundQuery

_TIMEOUT_S = 1.0
"""Seconds that a Prometheus scrape waits for volumes; Prometheus abandons slow services."""


class VolumeCollector:
    """Free space of mounted volumes, for Prometheus, measured at each scrape.

    A hanging file system, such as a network volume without its server, reports its last measurement and time.
    It does not delay other metrics.

    Args:
        volumes: name -> folder.
    """

    def __init__(self, volumes: Mapping[str, Path]) -> None:
        self._queries = {
            name: BackgroundQuery(f"volume {name}", _measurement(path)) for name, path in volumes.items()
        }

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
        deadline = time.monotonic() + _TIMEOUT_S
        numbers = {name: query.request() for name, query in self._queries.items()}
        for name, query in self._queries.items():
            has_answered = query.wait(numbers[name], max(0.0, deadline - time.monotonic()))
            found, measured = query.newest()[1] or (None, 0.0)
            if found is not None:
                free.add_metric([name], found.free)
                size.add_metric([name], found.total)
            if found is not None or not has_answered:
                at.add_metric([name], measured)
        yield from (free, size, at)


class Disk(NamedTuple):
    """Bytes of a file system."""

    total: int
    used: int
    free: int


def _measurement(folder: Path) -> Callable[[], tuple[Disk | None, float]]:
    """Measure the volume, with the time (seconds since the epoch)."""
    return lambda: (disk(folder), time.time())


def disk(path: Path) -> Disk | None:
    """Return the bytes of a folder's file system; `None` if the folder does not exist."""
    try:
        return Disk(*shutil.disk_usage(path))
    except OSError:
        return None
