"""Workers according to a log, and their volumes.

Workers that share a volume share its replicas: one makes a partition, all can train on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.contract.events import ClusterEvent, ReplicasChanged, WorkerJoined, WorkerLost, WorkerRemoved
from cerebro.contract.records import Replica
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.fused import FusedGroup
from cerebro.contract.trials import DeviceKind
from cerebro.errors import IllegalEventError

NO_DEVICE = -1
"""Device slot of tasks that need no device."""

LAST = 20
"""Attempts per worker to examine for a broken machine."""


class Ended(NamedTuple):
    """The end of an attempt at a worker."""

    time: float
    task: str
    model: str
    """Empty for tasks without a model."""
    failure: Failure | None = None
    """`None` for a commit."""
    is_device: bool = False
    """True if the machine was at fault: it reported that, or the task committed elsewhere."""
    experiment: str = ""
    """Owner of the task, for readers of several logs; empty within one log."""
    is_certain: bool = False
    """True if this attempt alone proves a fault: two other workers agree on another result, or a rule matched."""
    group: str = ""
    """Its fused group, if any."""
    other_tasks: tuple[str, ...] = ()
    """The group's other tasks that failed in the same manner: one event."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks that ended so."""
        return (self.task, *self.other_tasks)

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """(experiment, task) of each task: task keys repeat across experiments."""
        return tuple((self.experiment, task) for task in self.tasks)

    @property
    def is_doubtful(self) -> bool:
        """True if the machine may be at fault."""
        return self.failure is not None and self.failure.may_be_device and not self.is_device

    @property
    def manner(self) -> tuple[FailureKind | None, bool, bool, bool]:
        """The failure's kind and its meaning for the machine."""
        kind = self.failure.kind if self.failure is not None else None
        return kind, self.is_device, self.is_doubtful, self.is_certain


@dataclass(kw_only=True)
class Worker:
    """A worker according to the log."""

    name: str
    incarnation: str
    weight: float
    kinds: frozenset[str]
    volume: str
    """Its shard volume; workers may share one."""
    replicas: set[tuple[str, int]]
    """(data set, partition) of replicas on its volume; workers of a volume share the set object."""
    is_alive: bool = True
    """True from joining until loss."""
    is_ending: bool = False
    """True if it released a task because it drains; it will release new ones too. The cluster log confirms it next."""
    is_removed: bool = False
    """True if it left for good; its history stays."""
    lost: str = ""
    """Why it is not alive."""
    joined: float = 0.0
    """Time it last joined."""
    since: float = 0.0
    """Time it joined or was lost."""
    devices: int = 1
    """Number of devices; each runs one task and queues one."""
    device: DeviceKind | None = None
    """Kind of the devices; `None` if unknown or mixed."""
    most_devices: int = 1
    """Largest number of devices of any incarnation."""
    open_tasks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Key -> devices of its open attempts of this experiment, in the order of assignment."""
    groups: dict[str, str] = field(default_factory=dict)
    """Key -> fused group of its open attempts that have one."""
    ended: deque[Ended] = field(default_factory=lambda: deque(maxlen=LAST))
    """Last ended attempts of this experiment over all incarnations, oldest first.

    Revoked and released ones are not listed."""
    has_failures: bool = False
    """True if an attempt ever failed here."""
    stale_tasks: set[str] = field(default_factory=set)
    """Open tasks of an earlier incarnation, which the controller must revoke."""

    @property
    def trains(self) -> bool:
        """True if it trains models; an ETL worker does not."""
        return "train" in self.kinds

    @property
    def slots(self) -> tuple[int, ...]:
        """Device slots: its devices and `NO_DEVICE`."""
        return (*range(self.devices), NO_DEVICE)

    def occupants(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the open attempts that occupy devices, with these. The first one of a fused group stands for all."""
        yielded: set[str] = set()
        for key, devices in self.open_tasks.items():
            group = self.groups.get(key)
            if group is None or group not in yielded:
                yield key, devices
            if group is not None:
                yielded.add(group)

    def tasks_in(self, slot: int) -> list[str]:
        """Return the occupants of a slot, oldest first, at most `QUEUE_DEPTH`."""
        return [key for key, devices in self.occupants() if slot in slots_of(devices)]

    def first_in(self, slot: int) -> str:
        """Return the oldest open task in a slot, or an empty string."""
        for key, devices in self.open_tasks.items():
            if slot in slots_of(devices):
                return key
        return ""

    def is_next(self, key: str) -> bool:
        """Return True if an open task runs or may start: none of its devices has an older one, except of its group."""
        group = self.groups.get(key)
        for slot in slots_of(self.open_tasks[key]):
            first = self.first_in(slot)
            if first != key and (group is None or self.groups.get(first) != group):
                return False
        return True

    def open(self, key: str, devices: tuple[int, ...], group: FusedGroup | None) -> None:
        """Add an open attempt."""
        self.open_tasks[key] = devices
        if group is not None:
            self.groups[key] = group.id

    def close(self, key: str) -> None:
        """Remove an ended attempt."""
        del self.open_tasks[key]
        self.groups.pop(key, None)
        self.stale_tasks.discard(key)

    def record_end(self, ended: Ended) -> None:
        """Add an ended attempt. Attempts of a fused group that end in the same manner count as one."""
        self.has_failures |= ended.failure is not None
        for number, known in enumerate(self.ended) if ended.group else ():
            if (known.group, known.manner) == (ended.group, ended.manner):
                if ended.failure is not None:
                    self.ended[number] = known._replace(other_tasks=(*known.other_tasks, ended.task))
                return
        self.ended.append(ended)


class WorkerChange(NamedTuple):
    """Arrival or departure of a worker."""

    worker: str
    time: float
    """Seconds of the store's clock."""
    is_there: bool
    lost: str = ""
    """Reason of the departure."""


def slots_of(devices: tuple[int, ...]) -> tuple[int, ...]:
    """Return the device slots of an attempt."""
    return devices or (NO_DEVICE,)


def answers_searches(worker: Worker) -> bool:
    """True if it runs search procedures and samplers."""
    return "search" in worker.kinds


def apply(workers: dict[str, Worker], event: ClusterEvent) -> None:
    """Apply an event of the cluster log.

    Raises:
        IllegalEventError: the worker is unknown, or not lost.
    """
    match event:
        case WorkerJoined():
            _join(workers, event)
        case WorkerLost():
            _lose(workers, event)
        case WorkerRemoved():
            _remove(workers, event)
        case ReplicasChanged():
            _hold(workers, event)


def _join(workers: dict[str, Worker], event: WorkerJoined) -> None:
    """Add a worker or its next incarnation.

    It has the replicas it found, and those known to live workers of its volume, which may be newer. Without
    live workers on the volume only found replicas count, since the disk may be new. Open tasks stay until revoked.
    """
    known = workers.get(event.worker)
    volume = event.volume or event.worker
    sharing = [worker for worker in on_volume(workers, volume) if worker is not known]
    replicas = _pairs(event.replicas)
    is_same = known is not None and known.incarnation == event.incarnation
    if known and is_same:
        # The same process rejoined: its registration lacks replicas made since.
        replicas |= known.replicas
    replicas = replicas.union(*(other.replicas for other in sharing if other.is_alive))
    for other in sharing:
        other.replicas = replicas
    workers[event.worker] = Worker(
        name=event.worker,
        incarnation=event.incarnation,
        weight=event.weight,
        kinds=frozenset(event.kinds),
        volume=volume,
        replicas=replicas,
        joined=event.time,
        since=event.time,
        devices=event.devices,
        device=event.device,
        most_devices=max(event.devices, known.most_devices if known else 1),
        open_tasks=known.open_tasks if known else {},
        groups=known.groups if known else {},
        ended=known.ended if known else deque(maxlen=LAST),
        has_failures=known.has_failures if known else False,
        stale_tasks=(known.stale_tasks if is_same else {*known.open_tasks}) if known else set(),
    )


def _lose(workers: dict[str, Worker], event: WorkerLost) -> None:
    """A worker is given nothing more."""
    worker = workers.get(event.worker)
    if worker is None:
        raise IllegalEventError(f"{event.worker} was lost without having joined")
    if worker.is_alive:
        worker.is_alive, worker.lost, worker.since = False, event.reason, event.time


def _remove(workers: dict[str, Worker], event: WorkerRemoved) -> None:
    """A worker left for good with its replicas; its open tasks stay until revoked."""
    worker = workers.get(event.worker)
    if worker is None or worker.is_alive:
        raise IllegalEventError(f"{event.worker} was removed without having been lost")
    worker.is_removed, worker.lost, worker.replicas = True, event.reason, set()


def _hold(workers: dict[str, Worker], event: ReplicasChanged) -> None:
    gained, lost = _pairs(event.gained), _pairs(event.lost)
    sharing = on_volume(workers, event.volume)
    replicas = gained.union(*(worker.replicas for worker in sharing)) - (lost - gained)
    for worker in sharing:
        worker.replicas = replicas


def on_volume(workers: dict[str, Worker], volume: str) -> list[Worker]:
    """Return the workers of a volume."""
    return [worker for worker in workers.values() if worker.volume == volume and not worker.is_removed]


def _pairs(replicas: Iterable[Replica]) -> set[tuple[str, int]]:
    return {(replica.dataset, replica.partition) for replica in replicas}
