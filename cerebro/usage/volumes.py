"""Room on the file systems of volumes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class VolumeCollector:
    """Room on volumes, for Prometheus: asked when it is scraped. Those that are not mounted are left out.

    Args:
        volumes: name -> folder.
    """

    def __init__(self, volumes: Mapping[str, Path]) -> None:
        self._volumes = volumes

    def collect(self) -> Iterator[Any]:
        """Two families, labelled by volume."""
        from prometheus_client.core import GaugeMetricFamily

        free = GaugeMetricFamily(
            "cerebro_volume_free_bytes", "Room left on a volume's file system.", labels=["volume"]
        )
        size = GaugeMetricFamily(
            "cerebro_volume_size_bytes", "Size of a volume's file system.", labels=["volume"]
        )
        for name, folder in self._volumes.items():
            if (found := disk(folder)) is not None:
                free.add_metric([name], found.free)
                size.add_metric([name], found.total)
        yield from (free, size)


class Disk(NamedTuple):
    """Bytes of a file system."""

    total: int
    used: int
    free: int


def disk(path: Path) -> Disk | None:
    """Bytes of the file system that a folder is on; `None` while there is no such folder."""
    try:
        return Disk(*shutil.disk_usage(path))
    except OSError:
        return None
