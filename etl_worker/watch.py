"""What the processes that preprocess do, by the kernel's account of processor time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psutil

from etl_worker.sizing import WINDOW_S, Window


class Watch:
    """What cores do for `WINDOW_S`, by the kernel's account of processor time."""

    def __init__(self) -> None:
        self._began: float | None = None

    def begin(self, pids: list[int], done: int) -> None:
        """A window begins: these work, and so many rows are done."""
        self._pids = pids
        self._began, self._done = time.monotonic(), done
        self._seconds, self._machine = _computed(self._pids), psutil.cpu_times()

    def stop(self) -> None:
        """Nothing is to be learnt any more."""
        self._began = None

    def look(self, pids: list[int], done: int) -> Window | None:
        """What was seen, once it was long enough, and if all worked all the time."""
        now = time.monotonic()
        if self._began is None or now - self._began < WINDOW_S:
            return None
        seconds = now - self._began
        if pids != self._pids or not pids:
            self.begin(pids, done)
            return None
        used, there = _used(self._machine, psutil.cpu_times())
        return Window(
            rate=(done - self._done) / seconds,
            busy=(_computed(pids) - self._seconds) / (seconds * len(pids)),
            machine_busy=used / there if there > 0 else 1.0,
        )


def _computed(pids: Iterable[int]) -> float:
    """Seconds of processors that processes have used so far."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def _used(before: Any, now: Any) -> tuple[float, float]:
    """Of the machine between two looks: seconds that its processors were in use, and seconds that there were."""
    there = sum(now) - sum(before)
    unused = sum(getattr(now, name, 0.0) - getattr(before, name, 0.0) for name in ("idle", "iowait"))
    return there - unused, there
