"""The workers as a log knows them, and the volumes that they hold partitions on.

Workers of one volume share one set of replicas: what one of them makes, the others can train on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.contract.events import ClusterEvent, ReplicasChanged, WorkerJoined, WorkerLost, WorkerRemoved
from cerebro.contract.records import Replica
from cerebro.contract.tasks import Failure
from cerebro.contract.trials import DeviceKind
from cerebro.errors import IllegalEventError

NO_DEVICE = -1
"""The lane of tasks that take no device."""

LAST = 20
"""Attempts of a worker that are looked at to find out whether its machine is broken."""


class Ended(NamedTuple):
    """How an attempt ended at a worker."""

    time: float
    task: str
    model: str
    """Empty where it is of none."""
    failure: Failure | None = None
    """`None`: it was committed."""
    is_device: bool = False
    """The machine's fault: it said so, or the task was done elsewhere afterwards."""
    experiment: str = ""
    """Whose task it is, where several are looked at; a log knows only one, and does not say."""
    is_certain: bool = False
    """One such attempt is enough: two other workers have computed something else, and the same; or a failure rule says
    so."""

    @property
    def key(self) -> tuple[str, str]:
        """(experiment, task): every experiment has a task `fit-1/...`."""
        return self.experiment, self.task

    @property
    def is_doubtful(self) -> bool:
        """Whether it may be the machine's fault."""
        return self.failure is not None and self.failure.may_be_device and not self.is_device


@dataclass(kw_only=True)
class Worker:
    """A worker as the log knows it."""

    name: str
    incarnation: str
    weight: float
    kinds: frozenset[str]
    volume: str
    """Its shard volume, which it may share."""
    replicas: set[tuple[str, int]]
    """(data set, partition) of complete training partitions on its volume: one object for all workers of the volume."""
    is_alive: bool = True
    """It has joined, and was not lost since."""
    is_ending: bool = False
    """It gave a task of the experiment back because it was asked to end: whatever it is given from now on comes back as
    well. The cluster's log says so next."""
    is_removed: bool = False
    """Gone for good. It stays known for what it did."""
    lost: str = ""
    """Why it is not alive."""
    joined: float = 0.0
    """When it joined last."""
    since: float = 0.0
    """When it joined or was lost."""
    devices: int = 1
    """How many: each runs one task at a time, and has one in its queue."""
    device: DeviceKind | None = None
    """What they are; `None`: not known, or not alike."""
    most_devices: int = 1
    """The most that any incarnation of it had."""
    open_tasks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Key -> devices that its attempt takes, in the order of assignment. Of the experiment whose log this is."""
    ended: deque[Ended] = field(default_factory=lambda: deque(maxlen=LAST))
    """The last attempts of the experiment that ended here, of all incarnations, oldest first; not those that were taken
    or given back."""
    has_failures: bool = False
    """Whether one ever failed here."""
    left: set[str] = field(default_factory=set)
    """Those of them that an earlier incarnation was given: nobody does them, they are to be taken back."""

    @property
    def trains(self) -> bool:
        """Whether it is a place for models; a worker for ETL alone is none."""
        return "train" in self.kinds

    @property
    def lanes(self) -> tuple[int, ...]:
        """Where tasks take turns: its devices, and `NO_DEVICE`."""
        return (*range(self.devices), NO_DEVICE)

    def in_lane(self, lane: int) -> list[str]:
        """Keys of the open tasks there, oldest first, at most `QUEUE_DEPTH`."""
        return [key for key, devices in self.open_tasks.items() if lane in lanes_of(devices)]

    def first_in(self, lane: int) -> str:
        """The oldest of them; empty if there is none."""
        for key, devices in self.open_tasks.items():
            if lane in lanes_of(devices):
                return key
        return ""

    def is_next(self, key: str) -> bool:
        """Whether an open task runs, or may start: no older one is open on one of its devices."""
        return all(self.first_in(lane) == key for lane in lanes_of(self.open_tasks[key]))


class WorkerChange(NamedTuple):
    """A worker came, or went."""

    worker: str
    time: float
    """The store's clock, seconds."""
    is_there: bool
    lost: str = ""
    """Why it went."""


def lanes_of(devices: tuple[int, ...]) -> tuple[int, ...]:
    """The lanes of an attempt that takes these devices."""
    return devices or (NO_DEVICE,)


def answers_searches(worker: Worker) -> bool:
    """True if it runs search procedures and samplers."""
    return "search" in worker.kinds


def apply(workers: dict[str, Worker], event: ClusterEvent) -> None:
    """Take in what a log tells of workers.

    Raises:
        IllegalEventError: it is of one that the log has not named, or that is not lost.
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
    """A worker, or its next incarnation, is there.

    What its volume holds is what was found there, and what other workers of the volume that are alive know of: they may
    have made something since it looked. Of a volume without another worker only what was found counts, because its disk
    may be another one. What it had to do stays open until it is taken back.
    """
    known = workers.get(event.worker)
    volume = event.volume or event.worker
    sharing = [worker for worker in on_volume(workers, volume) if worker is not known]
    replicas = _pairs(event.replicas)
    is_same = known is not None and known.incarnation == event.incarnation
    if known and is_same:
        # The same process came back: what it made since it registered is not in its registration.
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
        ended=known.ended if known else deque(maxlen=LAST),
        has_failures=known.has_failures if known else False,
        left=(known.left if is_same else {*known.open_tasks}) if known else set(),
    )


def _lose(workers: dict[str, Worker], event: WorkerLost) -> None:
    """A worker is given nothing more."""
    worker = workers.get(event.worker)
    if worker is None:
        raise IllegalEventError(f"{event.worker} was lost without having joined")
    if worker.is_alive:
        worker.is_alive, worker.lost, worker.since = False, event.reason, event.time


def _remove(workers: dict[str, Worker], event: WorkerRemoved) -> None:
    """A worker is gone for good, and holds nothing. What it had to do stays open until it is taken back."""
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
    """Workers that hold what is on a volume."""
    return [worker for worker in workers.values() if worker.volume == volume and not worker.is_removed]


def _pairs(replicas: Iterable[Replica]) -> set[tuple[str, int]]:
    return {(replica.dataset, replica.partition) for replica in replicas}
