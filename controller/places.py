"""Who has room for what: the open tasks in each lane of the workers that are there. Pure.

Made from the state, and counted on while one decision gives out tasks.
"""

from __future__ import annotations

from collections.abc import Iterable

from cerebro.state.workers import Worker, lanes_of


class Places:
    """Lanes of workers, and how many open tasks each has.

    A lane is a device, or `None`: tasks that take no device take turns there.
    """

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._open: dict[str, dict[int | None, int]] = {}
        for worker in workers:
            counts = self._open[worker.name] = dict.fromkeys(worker.lanes, 0)
            for devices in worker.open_tasks.values():
                for lane in lanes_of(devices):
                    counts[lane] += 1

    def copy(self) -> Places:
        """An independent one in the same state."""
        made = Places(())
        made._open = {worker: dict(counts) for worker, counts in self._open.items()}
        return made

    def take(self, worker: str, devices: tuple[int, ...]) -> None:
        """The worker is given a task that takes these devices."""
        for lane in lanes_of(devices):
            self._open[worker][lane] += 1

    def num_open(self, worker: str, lane: int | None) -> int:
        """Open tasks in a lane."""
        return self._open[worker][lane]

    def load(self, worker: str) -> int:
        """Open tasks of a worker, those of several devices as often."""
        return sum(self._open[worker].values())

    def devices(self, worker: str, depth: int, among: Iterable[int] | None = None) -> list[int]:
        """Devices with fewer than `depth` open tasks, those with fewest first; else in the order of `among`, which is
        by number if it is left out."""
        counts = self._open[worker]
        numbered = (lane for lane in counts if lane is not None) if among is None else among
        found = [device for device in numbered if counts[device] < depth]
        return sorted(found, key=counts.__getitem__)
