"""How many processes preprocess at a time: fewer once memory ran out, more while they wait for something else than a
processor. Pure.

How many there are decides on no byte: a partition's rows are cut into shards before the first one is made, and each
row's random numbers depend on the row.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_PER_CORE = 4
"""Processes for each core at most, where rows wait for storage or a network."""
WINDOW_S = 4.0
"""How long the processes are watched before their number changes."""
_FEWER = 4
_GROWTH = 1.5
_BUSY = 0.6
"""A process that computes for a smaller share of the time waits for something else."""
_MACHINE_BUSY = 0.7
"""Share of a machine's processors beyond which a process may be waiting for one of them."""
_GAIN = 1.1
"""More processes are worth it if rows come so much faster."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """What was seen while a number of processes preprocessed.

    Attributes:
        rate: rows a second.
        busy: share of the time, 0 to 1, that a process computed on average.
        machine_busy: share of the machine's processors that anybody used.
    """

    rate: float
    busy: float
    machine_busy: float


class Sizing:
    """The number of processes that preprocess one partition.

    Args:
        cores: as many as the worker may compute with.

    Attributes:
        number: of processes, from 1.
    """

    def __init__(self, cores: int) -> None:
        self.number = self._cores = cores
        self._most = MOST_PER_CORE * cores
        self._before: tuple[int, float] | None = None
        """How many there were before there were more, and their rate."""
        self._is_settled = False

    def begin(self, shortages: int) -> None:
        """A partition begins, at which so many attempts ran out of memory: each time a quarter of the cores is left.

        Where the kernel ends the whole container, as it does in Kubernetes with control groups of version 2, nobody is
        there to go on with fewer; and three attempts are to lead from many cores to one.
        """
        most = max(1, self._cores // _FEWER**shortages)
        if shortages and most < self.number:
            self.number, self._is_settled = most, True

    def ran_out(self) -> bool:
        """One was ended for lack of memory: half as many go on, and never more.

        Returns:
            Whether there was more than one.
        """
        if self.number == 1:
            return False
        self.number, self._is_settled = -(-self.number // 2), True
        return True

    def see(self, window: Window) -> None:
        """Take in what was seen of `number` processes."""
        if self._is_settled:
            return
        if self._before is not None and window.rate < _GAIN * self._before[1]:
            self.number, self._is_settled = self._before[0], True
            return
        self._before = None
        if window.busy < _BUSY and window.machine_busy < _MACHINE_BUSY and self.number < self._most:
            self._before = self.number, window.rate
            self.number = min(self._most, max(self.number + 1, round(self.number * _GROWTH)))
