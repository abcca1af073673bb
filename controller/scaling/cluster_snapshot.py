"""The workers as they are now: what the store, a cluster manager and their silence say, as one picture. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cerebro.contract.records import QUEUE_DEPTH, PodRef, Replica, WorkerRecord, WorkerStatus
from cerebro.contract.tasks import FailureKind
from cerebro.contract.trials import DeviceKind
from controller.scaling.orchestrator import Exit, Fleet
from controller.sharing.arbiter import Place

SILENT = Exit(reason="it has not reported for longer than its lease", kind=FailureKind.CRASH)
_UNSAID = 1.0
"""Weight that a worker registers with if it was given none and has one device. Any other one is asked for, or counted,
and stays. This one asked for cannot be told from none: all pods of a StatefulSet are alike, so shares stay the same."""

_FREE, _PARTITION, _MACHINE_FREE = 0.05, 1.2, 0.2
"""Of a volume, of the size of a partition, of a machine's disk: what has to be free for a copy."""

REMOVED = Exit(reason="it was removed and is no longer registered", kind=FailureKind.PREEMPTED)
STARTED_ANEW = Exit(reason="its process was started anew", kind=FailureKind.CRASH)


class Liveness(StrEnum):
    """How sure it is that a worker is not there."""

    SILENT = "silent"  # perhaps only slow: its leases are respected
    LEAVING = (
        "leaving"  # it was asked to end: it finishes or gives back what it runs, and is given nothing more
    )
    GONE = "gone"  # it has ended for certain: nobody could renew its leases


@dataclass(frozen=True, kw_only=True)
class Absence:
    """That a worker is not there, and why."""

    how: Liveness
    exit: Exit


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """A worker as it registered and last reported."""

    incarnation: str
    weight: float
    kinds: tuple[str, ...]
    replicas: tuple[Replica, ...]
    volume: str | None = None
    devices: int = 1
    device: DeviceKind | None = None
    """What they are; `None`: not known, or not alike."""
    """As in `WorkerRecord`."""
    address: str = ""
    """As in `WorkerRecord`."""
    absence: Absence | None = None
    """`None`: it can be given tasks."""
    before: Exit = STARTED_ANEW
    """How the process before this incarnation ended."""
    free_bytes: int | None = None
    has_room: bool = True
    """Whether its shard volume has room for another copy of a partition, as far as it has told."""
    tasks: tuple[str, ...] = ()
    """What it says it runs, each as `experiment/task`."""
    memory_bytes: int | None = None
    """That its processes have for themselves; `None`: not known, or others take of it."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How much more memory workers may have (`controller.exclusions.memory_limits`).

    Attributes:
        most_bytes: that one may be given; 0: all stay as they are.
        workers: that may have more than they have, or may once they are back.
        is_known: whether the cluster manager is heard; while it is not, any worker may be one that can have more.
        problem: why another one may not; for people.
    """

    most_bytes: int = 0
    workers: frozenset[str] = frozenset()
    is_known: bool = True
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterSnapshot:
    """What no log tells: the workers as they are now."""

    workers: Mapping[str, WorkerView] = field(default_factory=dict)
    """All that are registered and may be given something. One that a log knows and that is not here is gone for good,
    or `left_out`."""
    left_out: Mapping[str, Exit] = field(default_factory=dict)
    """Workers that are registered but given nothing, and why: what they hold counts for nobody."""
    set_aside: Mapping[str, WorkerView] = field(default_factory=dict)
    """The same as they registered and reported: a person may release them."""
    suspects: frozenset[str] = frozenset()
    """Those of `workers` that are given nothing new, for their machine is being checked."""
    now: float = 0.0
    """The time that an event would have now, in seconds. It may be off; nothing is taken back or given up by it, but
    what a user wants no more."""
    closed: frozenset[Place] = frozenset()
    """Where the run that decides may put nothing now: other runs have tasks there, or are to have the place next."""
    depth: int = QUEUE_DEPTH
    """Open tasks that a place may have after this decision."""
    leaving: frozenset[str] = frozenset()
    """Workers that are to be given back: they go on, but what only they hold is made on others before."""
    is_filling: bool = False
    """Whether workers are on their way, who may bring back what nobody holds now."""
    is_awaited: bool = False
    """Whether more workers were asked for a short while ago, and are not all there."""
    growth: Growth = Growth()

    def gone(self, worker: str) -> Exit:
        """Why a worker that is not among `workers` is not."""
        return self.left_out.get(worker, REMOVED)

    @property
    def cramped(self) -> list[str]:
        """Workers whose volume has no room for another copy."""
        return [name for name, seen in self.workers.items() if not seen.has_room]

    @property
    def free_bytes(self) -> int:
        """Free space on the checkpoint volume, as the workers see it; 0 while none has reported it."""
        here = (w for w in self.workers.values() if w.absence is None)
        return min((w.free_bytes for w in here if w.free_bytes is not None), default=0)


def are_coming(statuses: Iterable[WorkerStatus], fleet: Fleet) -> bool:
    """Whether a pod that is wanted has no worker yet, and nothing is known that keeps it from starting."""
    registered = {status.record.pod.uid for status in statuses if status.record.pod}
    pods = (pod for name, pod in fleet.pods.items() if fleet.is_wanted(name))
    accounted = sum(pod.uid in registered or bool(pod.trouble) for pod in pods)
    return accounted + len(fleet.unmade) < fleet.size


def trained_on(statuses: Iterable[WorkerStatus]) -> dict[str, int]:
    """Pod's uid -> devices of the workers there that train, as far as they have registered any."""
    found: dict[str, int] = {}
    for status in statuses:
        record = status.record
        if record.pod and record.devices and "train" in record.kinds:
            found[record.pod.uid] = found.get(record.pod.uid, 0) + len(record.devices)
    return found


def worker_view(
    status: WorkerStatus,
    fleet: Fleet | None,
    *,
    silent_s: float,
    lease_s: float,
    devices: Mapping[str, int] | None = None,
) -> WorkerView:
    """One worker.

    Args:
        fleet: the pods; `None` without a cluster manager, or while it is not heard.
        silent_s: how long the worker has not reported although it could have.
        lease_s: silence after which it is lost.
        devices: pod's uid -> devices that train there (`trained_on`).
    """
    record = status.record
    absence = _in_fleet(record.pod, fleet) if record.pod and fleet else None
    if absence is None and status.leaving:
        absence = Absence(how=Liveness.LEAVING, exit=Exit(reason=status.leaving, kind=FailureKind.PREEMPTED))
    if silent_s > lease_s and (absence is None or absence.how is Liveness.LEAVING):
        absence = Absence(how=Liveness.SILENT, exit=absence.exit if absence else SILENT)
    return WorkerView(
        incarnation=record.incarnation,
        weight=_share(record, fleet, devices or {}),
        kinds=record.kinds,
        replicas=record.replicas,
        volume=record.volume,
        devices=max(1, len(record.devices)),
        device=DeviceKind.of(record),
        address=record.address,
        absence=absence,
        before=_before(record.pod, fleet) if record.pod and fleet else STARTED_ANEW,
        free_bytes=status.checkpoint_free_bytes,
        has_room=_has_room(status),
        tasks=status.tasks,
        memory_bytes=memory_of(status),
    )


def memory_of(status: WorkerStatus) -> int | None:
    """The limit of its container, as it is now: it may have been changed since the worker registered. Where it has
    none, that of its node, beyond which nothing fits either. On one machine workers share the memory with all else."""
    if status.record.pod is None:
        return None
    limit = status.usage.memory_limit_bytes if status.usage is not None else None
    return limit if limit is not None else status.record.memory_bytes


def _share(record: WorkerRecord, fleet: Fleet | None, devices: Mapping[str, int]) -> float:
    """Of the data. It follows the devices that train: what makes the partitions of a pod may see none of them. Of a pod
    whose worker that trains has not registered yet, its GPUs tell."""
    is_counted = record.weight != _UNSAID or (record.devices and "train" in record.kinds)
    if is_counted or not record.pod:
        return record.weight
    pod = fleet.pods.get(record.pod.name) if fleet else None
    return float(devices.get(record.pod.uid, 0) or (pod.gpus if pod else 0) or record.weight)


def _has_room(status: WorkerStatus) -> bool:
    """A twentieth of the volume stays free, beside 1.2 times what a partition takes. Of a pod's own volume that is what
    is used over the number of partitions there, which is too much rather than too little. A disk of a machine holds
    other things: a fifth of it is to be free."""
    usage = status.usage
    if usage is None or usage.shards_total_bytes is None or usage.shards_used_bytes is None:
        return True
    total, used = usage.shards_total_bytes, usage.shards_used_bytes
    if not status.record.pod:
        return used <= (1 - _MACHINE_FREE) * total
    partition = used / max(1, len(status.record.replicas))
    return total - used >= _FREE * total + _PARTITION * partition


def _in_fleet(ref: PodRef, fleet: Fleet) -> Absence | None:
    pod = fleet.pods.get(ref.name)
    if pod is None:
        reason = f"its pod {ref.name} is no longer there"
        if why := fleet.unmade.get(ref.name):
            reason += f". {why}"
        return Absence(how=Liveness.GONE, exit=Exit(reason=reason, kind=FailureKind.PREEMPTED))
    if pod.uid != ref.uid:
        reason = _replaced(ref) + (f", which does not start: {pod.trouble}" if pod.trouble else "")
        return Absence(how=Liveness.GONE, exit=Exit(reason=reason, kind=FailureKind.PREEMPTED))
    if pod.dead:
        return Absence(how=Liveness.GONE, exit=pod.dead)
    if ref.container in pod.ended:
        # Its container waits to be started again, perhaps for minutes. In a pod that is being ended it was taken away.
        return Absence(how=Liveness.GONE, exit=pod.leaving or pod.ended[ref.container])
    if pod.leaving:
        return Absence(how=Liveness.LEAVING, exit=pod.leaving)
    return None


def _before(ref: PodRef, fleet: Fleet) -> Exit:
    """A pod in which no process of this container has ended is a new one: the worker ran in another before."""
    pod = fleet.pods.get(ref.name)
    known = pod.exits.get(ref.container) if pod and pod.uid == ref.uid else None
    return known or Exit(reason=_replaced(ref), kind=FailureKind.PREEMPTED)


def _replaced(ref: PodRef) -> str:
    return f"its pod {ref.name} was replaced by a new one"
