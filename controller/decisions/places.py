"""Who has room for what: the open tasks in each lane of the workers that are there. Pure.

Made from the state, and counted on while one decision gives out tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cerebro.contract.records import QUEUE_DEPTH
from cerebro.state.workers import NO_DEVICE, Worker


class Places:
    """Lanes of workers, and how many open tasks each has.

    A lane is a device, or that of the tasks that take no device. Asked for every worker in every decision, so it costs
    little where a worker has one device.
    """

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._devices: dict[str, list[int]] = {}
        self._beside: dict[str, int] = {}
        for worker in workers:
            self._devices[worker.name], self._beside[worker.name] = [0] * worker.devices, 0
            for devices in worker.open_tasks.values():
                self.take(worker.name, devices)

    def copy(self) -> Places:
        """An independent one in the same state."""
        made = Places(())
        made._devices = {worker: [*counts] for worker, counts in self._devices.items()}
        made._beside = dict(self._beside)
        return made

    def close(self, worker: str, lane: int) -> None:
        """Nothing more may be given there."""
        if lane == NO_DEVICE and worker in self._beside:
            self._beside[worker] = QUEUE_DEPTH
        elif 0 <= lane < len(self._devices.get(worker, ())):
            self._devices[worker][lane] = QUEUE_DEPTH

    def take(self, worker: str, devices: tuple[int, ...]) -> None:
        """The worker is given a task that takes these devices."""
        for device in devices:
            self._devices[worker][device] += 1
        self._beside[worker] += not devices

    def beside(self, worker: str) -> int:
        """Open tasks that take no device."""
        return self._beside[worker]

    def load(self, worker: str) -> int:
        """Open tasks of a worker, those of several devices as often."""
        return sum(self._devices[worker]) + self._beside[worker]

    def num_free(self, worker: str, depth: int, among: Sequence[int] | None = None) -> int:
        """Devices, of those in `among` if it is given, with fewer than `depth` open tasks."""
        counts = self._devices[worker]
        if among is not None:
            return sum([counts[device] < depth for device in among])
        return (counts[0] < depth) if len(counts) == 1 else sum([count < depth for count in counts])

    def reachable(self, worker: str, depth: int) -> list[int]:
        """Devices with fewer than `depth` open tasks, those first that have fewest, then by number."""
        counts = self._devices[worker]
        return sorted((d for d, count in enumerate(counts) if count < depth), key=counts.__getitem__)

    def count(self, worker: str, device: int) -> int:
        """Open tasks of a device."""
        return self._devices[worker][device]

    def free(self, worker: str, depth: int, among: Sequence[int] | None = None) -> int:
        """Of these devices, of which there is one, the first of those with fewest open tasks: in the order of `among`,
        else by number."""
        counts = self._devices[worker]
        numbered = range(len(counts)) if among is None else among
        return min((device for device in numbered if counts[device] < depth), key=counts.__getitem__)
