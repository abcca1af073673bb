"""The number of preprocessing processes: fewer after memory ran out, more while they wait for I/O.

`etl_worker.cores` feeds `Sizing` with the measurements of `etl_worker.watch` and starts or ends processes. This module
is pure. The number never changes the output: shards are planned in advance, and the random numbers of a row depend on
the row only.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_PER_CORE = 4
"""Maximum number of processes for each core, for rows that wait for storage or a network."""
WINDOW_S = 4.0
"""Seconds of measurement before the number may change."""
_SHORTAGE_DIVISOR = 4
"""Divisor of the initial number for each earlier attempt that ran out of memory."""
_GROWTH = 1.5
"""Factor of an increase."""
_BUSY = 0.6
"""Share of its time that a process computes; below it, the process waits for I/O."""
_MACHINE_BUSY = 0.7
"""Share of the machine's processors in use; above it, a process may wait for a processor."""
_GAIN = 1.1
"""Minimum speed-up that justifies more processes."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Measurement of the processes during a time range.

    Attributes:
        rate: rows per second.
        busy: average share of the time, 0 to 1, that a process computed.
        machine_busy: share of the machine's processors in use by anything.
    """

    rate: float
    busy: float
    machine_busy: float


class Sizing:
    """The number of processes that preprocess one partition.

    Args:
        cores: number of cores that the worker may use.

    Attributes:
        number: number of processes, at least 1.
    """

    def __init__(self, cores: int) -> None:
        self.number = self._cores = cores
        self._max_number = MAX_PER_CORE * cores
        self._previous: tuple[int, float] | None = None
        """Number of processes before the last increase, and their rate."""
        self._is_settled = False

    def begin(self, shortages: int) -> None:
        """Reduce the number at the start of a partition: to a quarter for each out-of-memory attempt.

        Kubernetes with cgroup v2 ends the whole container, so no process remains to continue with fewer. Three attempts
        must lead from many cores to one.
        """
        limit = max(1, self._cores // _SHORTAGE_DIVISOR**shortages)
        if shortages and limit < self.number:
            self.number, self._is_settled = limit, True

    def ran_out(self) -> bool:
        """Halve the number after the kernel killed a process; it never grows again.

        Returns:
            False if there was only one process.
        """
        if self.number == 1:
            return False
        self.number, self._is_settled = -(-self.number // 2), True
        return True

    def add(self, window: Window) -> None:
        """Adapt the number to a measurement of `number` processes."""
        if self._is_settled:
            return
        if self._previous is not None and window.rate < _GAIN * self._previous[1]:
            self.number, self._is_settled = self._previous[0], True
            return
        self._previous = None
        if window.busy < _BUSY and window.machine_busy < _MACHINE_BUSY and self.number < self._max_number:
            self._previous = self.number, window.rate
            self.number = min(self._max_number, max(self.number + 1, round(self.number * _GROWTH)))
