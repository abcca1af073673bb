"""Open tasks of each device slot of the alive workers. Pure.

Built from the state, then updated by the assignments of one decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cerebro.contract.records import QUEUE_DEPTH
from cerebro.state.workers import NO_DEVICE, Worker


class DeviceSlots:
    """Device slots of workers, with their numbers of open tasks.

    A slot is a device, or the slot of tasks without a device. Every decision queries every worker, so the
    case of one device is fast.
    """

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._devices: dict[str, list[int]] = {}
        self._deviceless: dict[str, int] = {}
        for worker in workers:
            self._devices[worker.name], self._deviceless[worker.name] = [0] * worker.devices, 0
            for _, devices in worker.occupants():
                self.take(worker.name, devices)

    def copy(self) -> DeviceSlots:
        """Return an independent copy."""
        duplicate = DeviceSlots(())
        duplicate._devices = {worker: [*counts] for worker, counts in self._devices.items()}
        duplicate._deviceless = dict(self._deviceless)
        return duplicate

    def close(self, worker: str, slot: int) -> None:
        """Accept no more tasks in this slot."""
        if slot == NO_DEVICE and worker in self._deviceless:
            self._deviceless[worker] = QUEUE_DEPTH
        elif 0 <= slot < len(self._devices.get(worker, ())):
            self._devices[worker][slot] = QUEUE_DEPTH

    def take(self, worker: str, devices: tuple[int, ...]) -> None:
        """Count a task that takes these devices."""
        for device in devices:
            self._devices[worker][device] += 1
        self._deviceless[worker] += not devices

    def num_deviceless(self, worker: str) -> int:
        """Return the number of open tasks that take no device."""
        return self._deviceless[worker]

    def load(self, worker: str) -> int:
        """Return a worker's open tasks; a task of several devices counts once for each."""
        return sum(self._devices[worker]) + self._deviceless[worker]

    def num_free(self, worker: str, depth: int, allowed_devices: Sequence[int] | None = None) -> int:
        """Return the number of devices, within `allowed_devices`, with fewer than `depth` open tasks."""
        counts = self._devices[worker]
        if allowed_devices is not None:
            return sum([counts[device] < depth for device in allowed_devices])
        return (counts[0] < depth) if len(counts) == 1 else sum([count < depth for count in counts])

    def reachable(self, worker: str, depth: int) -> list[int]:
        """Return devices with fewer than `depth` open tasks, the least loaded first, then by number."""
        counts = self._devices[worker]
        return sorted((d for d, count in enumerate(counts) if count < depth), key=counts.__getitem__)

    def count(self, worker: str, device: int) -> int:
        """Return the number of open tasks of a device."""
        return self._devices[worker][device]

    def free(self, worker: str, depth: int, allowed_devices: Sequence[int] | None = None) -> int:
        """Return the least loaded device with fewer than `depth` open tasks.

        Ties go by the order of `allowed_devices`, else by number. At least one device must qualify.
        """
        counts = self._devices[worker]
        numbered = range(len(counts)) if allowed_devices is None else allowed_devices
        return min((device for device in numbered if counts[device] < depth), key=counts.__getitem__)
