"""The workers as the log knows them, and the volumes that they hold partitions on.

Workers of one volume share one set of holdings: what one of them makes, the others can train on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebro.contract.events import WorkerJoined, WorkerLost, WorkerRemoved
from cerebro.errors import IllegalEventError


@dataclass(kw_only=True)
class Worker:
    """A worker as the log knows it."""

    name: str
    incarnation: str
    weight: float
    kinds: frozenset[str]
    volume: str
    """Its shard volume, which it may share."""
    holdings: set[tuple[str, int]]
    """(data set, partition) of complete training partitions on its volume: one object for all workers of the volume."""
    is_alive: bool = True
    is_ending: bool = False
    """It gave a task back because it was asked to end: whatever it is given from now on comes back as well."""
    is_removed: bool = False
    """Gone for good. It stays known for what it did."""
    lost: str = ""
    """Why it is not alive."""
    since: float = 0.0
    """When it joined or was lost."""
    devices: int = 1
    """How many: each runs one task at a time, and has one in its queue."""
    most_devices: int = 1
    """The most that any incarnation of it had."""
    open_tasks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Key -> devices that its attempt takes, in the order of assignment."""

    @property
    def trains(self) -> bool:
        """Whether it is a place for models; a worker for ETL alone is none."""
        return "train" in self.kinds

    @property
    def lanes(self) -> tuple[int | None, ...]:
        """Where tasks take turns: its devices, and `None` for tasks that take no device."""
        return (*range(self.devices), None)

    def in_lane(self, lane: int | None) -> list[str]:
        """Keys of the open tasks there, oldest first, at most `QUEUE_DEPTH`."""
        return [key for key, devices in self.open_tasks.items() if lane in lanes_of(devices)]

    def first_in(self, lane: int | None) -> str:
        """The oldest of them; empty if there is none."""
        for key, devices in self.open_tasks.items():
            if lane in lanes_of(devices):
                return key
        return ""

    @property
    def is_occupied(self) -> bool:
        """Whether each of its devices has a task."""
        return all(self.first_in(device) for device in range(self.devices))

    def is_next(self, key: str) -> bool:
        """Whether an open task runs, or may start: no older one is open on one of its devices."""
        return all(self.first_in(lane) == key for lane in lanes_of(self.open_tasks[key]))


def lanes_of(devices: tuple[int, ...]) -> tuple[int | None, ...]:
    """The lanes of an attempt that takes these devices."""
    return devices or (None,)


def join(workers: dict[str, Worker], event: WorkerJoined) -> None:
    """A worker, or its next incarnation, is there.

    What its volume holds is what was found there, and what other workers of the volume that are alive know of: they may
    have made something since it looked. Of a volume without another worker only what was found counts, because its disk
    may be another one.

    Raises:
        IllegalEventError: it is there already, or what it had to do has not been taken back.
    """
    known = workers.get(event.worker)
    if known and known.is_alive:
        raise IllegalEventError(f"{event.worker} joined twice without being lost between")
    if known and known.open_tasks:
        raise IllegalEventError(f"{event.worker} joined again while {[*known.open_tasks]} are open there")
    volume = event.volume or event.worker
    sharing = [w for w in workers.values() if w.volume == volume and w is not known and not w.is_removed]
    holdings = {(holding.dataset, holding.partition) for holding in event.holdings}
    if known and known.incarnation == event.incarnation:
        # The same process came back: what it made since it registered is not in its registration.
        holdings |= known.holdings
    holdings = holdings.union(*(other.holdings for other in sharing if other.is_alive))
    for other in sharing:
        other.holdings = holdings
    workers[event.worker] = Worker(
        name=event.worker,
        incarnation=event.incarnation,
        weight=event.weight,
        kinds=frozenset(event.kinds),
        volume=volume,
        holdings=holdings,
        since=event.time,
        devices=event.devices,
        most_devices=max(event.devices, known.most_devices if known else 1),
    )


def lose(workers: dict[str, Worker], event: WorkerLost) -> None:
    """A worker is given nothing more.

    Raises:
        IllegalEventError: it is not there.
    """
    worker = workers.get(event.worker)
    if worker is None or not worker.is_alive:
        raise IllegalEventError(f"{event.worker} was lost without having joined")
    worker.is_alive, worker.lost, worker.since = False, event.reason, event.time


def remove(workers: dict[str, Worker], event: WorkerRemoved) -> None:
    """A worker is gone for good, and holds nothing.

    Raises:
        IllegalEventError: it is alive, it is unknown, or what it had to do has not been taken back.
    """
    worker = workers.get(event.worker)
    if worker is None or worker.is_removed or worker.is_alive:
        raise IllegalEventError(f"{event.worker} was removed without having been lost")
    if worker.open_tasks:
        raise IllegalEventError(f"{event.worker} was removed while {[*worker.open_tasks]} are open there")
    worker.is_removed, worker.lost, worker.holdings = True, event.reason, set()
