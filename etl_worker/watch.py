"""Processor use of the preprocessing processes, as the kernel reports it.

`etl_worker.cores` starts a measurement, and passes each finished `Window` to `process_count.Sizing`. A change of the
processes discards the measurement. Nothing here changes a process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psutil

from etl_worker.process_count import WINDOW_S, Window


class Watch:
    """Measures the rows per second and processor use of some processes during `WINDOW_S`."""

    def __init__(self) -> None:
        self._began: float | None = None

    def begin(self, pids: list[int], done: int) -> None:
        """Start a measurement of these processes.

        Args:
            pids: ids of the processes.
            done: rows done at this moment.
        """
        self._pids = pids
        self._began, self._done = time.monotonic(), done
        self._seconds, self._machine = _cpu_seconds(self._pids), psutil.cpu_times()

    def stop(self) -> None:
        """Discard the measurement."""
        self._began = None

    def measure(self, pids: list[int], done: int) -> Window | None:
        """Return the measurement once `WINDOW_S` has passed with the same processes, else `None`."""
        now = time.monotonic()
        if self._began is None or now - self._began < WINDOW_S:
            return None
        seconds = now - self._began
        if pids != self._pids or not pids:
            self.begin(pids, done)
            return None
        used, available = _machine_use(self._machine, psutil.cpu_times())
        return Window(
            rate=(done - self._done) / seconds,
            busy=(_cpu_seconds(pids) - self._seconds) / (seconds * len(pids)),
            machine_busy=used / available if available > 0 else 1.0,
        )


def _cpu_seconds(pids: Iterable[int]) -> float:
    total = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def _machine_use(earlier: Any, now: Any) -> tuple[float, float]:
    """Return the machine's used and available processor seconds between two readings."""
    available = sum(now) - sum(earlier)
    unused = sum(getattr(now, name, 0.0) - getattr(earlier, name, 0.0) for name in ("idle", "iowait"))
    return available - unused, available
