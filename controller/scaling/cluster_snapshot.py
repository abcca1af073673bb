"""The present workers, from the store's registrations, the cluster manager and their silence. Pure.

`controller.scaling.membership` builds one `ClusterSnapshot` before each round of decisions; `controller.decisions`,
`controller.exclusions`, `controller.sharing` and the cluster log read it. It is never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from cerebro.contract.records import QUEUE_DEPTH, PodRef, Replica, WorkerRecord, WorkerStatus
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.trials import DeviceKind
from cerebro.state.exclusions import Exclusion, Scope, excluded_workers
from controller.scaling.orchestrator import Exit, Fleet
from controller.sharing.arbiter import DeviceSlot

SILENT = Exit(reason="it has not reported for longer than its lease", kind=FailureKind.CRASH)
_DEFAULT_WEIGHT = 1.0
"""Default weight of a worker with one device. Other weights are requested or counted, and stay.

An explicit 1 looks the same; all pods of a StatefulSet are equal, so the shares do not change.
"""

_FREE, _PARTITION, _MACHINE_FREE = 0.05, 1.2, 0.2
"""Free space for a copy: shares of the volume, of a partition's size, and of a machine's disk."""

REMOVED = Exit(reason="it was removed and is no longer registered", kind=FailureKind.PREEMPTED)
STARTED_ANEW = Exit(reason="its process was restarted", kind=FailureKind.CRASH)


class Liveness(StrEnum):
    """The certainty of a worker's absence."""

    SILENT = "silent"  # may only be slow: its leases are respected
    LEAVING = "leaving"  # asked to end: it finishes or releases its tasks, and gets no new ones
    GONE = "gone"  # certainly ended: nothing can renew its leases


@dataclass(frozen=True, kw_only=True)
class Absence:
    """The absence of a worker, and its reason."""

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
    """Kind of its devices; `None` if unknown or mixed."""
    address: str = ""
    """As in `WorkerRecord`."""
    absence: Absence | None = None
    """`None` if it can get tasks."""
    previous_exit: Exit = STARTED_ANEW
    """End of the process before this incarnation."""
    free_bytes: int | None = None
    """Free space on the checkpoint volume as it reports it; `None` if unknown."""
    has_room: bool = True
    """True unless its shard volume is known to lack room for another copy."""
    tasks: tuple[str, ...] = ()
    """Tasks it reports as running, each as `experiment/task`."""
    memory_bytes: int | None = None
    """Memory for its processes alone; `None` if unknown or shared."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Possible memory increases of workers (`controller.exclusions.memory_limits`).

    Attributes:
        max_bytes: maximum limit of a worker; 0 without increases.
        workers: workers that may get more, now or after their return.
        is_known: True while the cluster manager is reachable; otherwise any worker may get more.
        problem: why another one may not; for people.
    """

    max_bytes: int = 0
    workers: frozenset[str] = frozenset()
    is_known: bool = True
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterSnapshot:
    """The present workers, and facts for one decision that no log has."""

    workers: Mapping[str, WorkerView] = field(default_factory=dict)
    """Registered workers that may get tasks. A worker known to a log but missing here is gone, or excluded."""
    excluded_views: Mapping[str, WorkerView] = field(default_factory=dict)
    """Registered workers excluded from everything. Their replicas do not count; a person may release them."""
    exclusions: tuple[Exclusion, ...] = ()
    """Exclusions of workers from the tasks of all runs."""
    now: float = 0.0
    """Time of a new event in seconds. It may be wrong; it revokes and fails only tasks that a user stopped."""
    excluded_slots: frozenset[DeviceSlot] = frozenset()
    """Device slots that the deciding run may not fill: other runs have or get them."""
    preempted: DeviceSlot | None = None
    """Device that the deciding run should release for another run, if any."""
    depth: int = QUEUE_DEPTH
    """Maximum open tasks of a slot after this decision."""
    is_filling: bool = False
    """True while starting workers may bring back lost partitions."""
    is_awaited: bool = False
    """True if more workers were requested recently and are not all present."""
    growth: Growth = Growth()

    @cached_property
    def excluded(self) -> Mapping[str, Exclusion]:
        """Workers that are excluded from everything."""
        return excluded_workers(self.exclusions)

    @property
    def cordoned(self) -> list[str]:
        """Workers that continue but get no new tasks."""
        return [each.worker for each in self.exclusions if each.scope is Scope.NEW_TASKS]

    def exit_of(self, worker: str) -> Exit:
        """Return why a worker is missing from `workers`."""
        found = self.excluded.get(worker)
        return REMOVED if found is None else Exit(reason=found.reason, kind=FailureKind.PREEMPTED)

    def without_room(self) -> Iterator[Exclusion]:
        """Yield exclusions of workers whose volume has no room for another copy."""
        for name, view in self.workers.items():
            if not view.has_room:
                yield Exclusion(name, Scope.COPIES, "its volume has no room for another partition")

    @property
    def free_bytes(self) -> int:
        """Free space on the checkpoint volume by the workers' reports; 0 without reports."""
        here = (w for w in self.workers.values() if w.absence is None)
        return min((w.free_bytes for w in here if w.free_bytes is not None), default=0)


def are_coming(statuses: Iterable[WorkerStatus], fleet: Fleet) -> bool:
    """True if a requested pod has no worker yet and no known problem."""
    registered = {status.record.pod.uid for status in statuses if status.record.pod}
    pods = (pod for name, pod in fleet.pods.items() if fleet.is_wanted(name))
    accounted = sum(pod.uid in registered or bool(pod.problem) for pod in pods)
    return accounted + len(fleet.not_created) < fleet.size


def trained_on(statuses: Iterable[WorkerStatus]) -> dict[str, int]:
    """Return pod uid -> registered devices that train."""
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
    """Return the view of one worker.

    Args:
        fleet: the pods; `None` without a reachable cluster manager.
        silent_s: seconds without a report that could have come.
        lease_s: silence in seconds after which it is lost.
        devices: pod uid -> devices that train there (`trained_on`).
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
        previous_exit=_previous_exit(record.pod, fleet) if record.pod and fleet else STARTED_ANEW,
        free_bytes=status.checkpoint_free_bytes,
        has_room=_has_room(status),
        tasks=status.tasks,
        memory_bytes=memory_of(status),
    )


def memory_of(status: WorkerStatus) -> int | None:
    """Return the current limit of a worker's container, which may have changed, else its node's memory.

    `None` outside pods: workers on one machine share its memory.
    """
    if status.record.pod is None:
        return None
    limit = status.usage.memory_limit_bytes if status.usage is not None else None
    return limit if limit is not None else status.record.memory_bytes


def _share(record: WorkerRecord, fleet: Fleet | None, devices: Mapping[str, int]) -> float:
    """Return the worker's share of the data, by the training devices of its pod.

    Before the pod's training worker registers, by the pod's GPUs.
    """
    is_counted = record.weight != _DEFAULT_WEIGHT or (record.devices and "train" in record.kinds)
    if is_counted or not record.pod:
        return record.weight
    pod = fleet.pods.get(record.pod.name) if fleet else None
    return float(devices.get(record.pod.uid, 0) or (pod.gpus if pod else 0) or record.weight)


def _has_room(status: WorkerStatus) -> bool:
    """True if the volume has room for a copy.

    A twentieth of the volume stays free, and 1.2 times a partition's size, estimated from the used space. On
    a machine's disk, a fifth must be free.
    """
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
        if why := fleet.not_created.get(ref.name):
            reason += f". {why}"
        return Absence(how=Liveness.GONE, exit=Exit(reason=reason, kind=FailureKind.PREEMPTED))
    if pod.uid != ref.uid:
        reason = _replaced(ref) + (f", which does not start: {pod.problem}" if pod.problem else "")
        return Absence(how=Liveness.GONE, exit=Exit(reason=reason, kind=FailureKind.PREEMPTED))
    if pod.dead:
        return Absence(how=Liveness.GONE, exit=pod.dead)
    if ref.container in pod.ended:
        # The container waits for its restart, possibly for minutes; in an ending pod it was taken away.
        return Absence(how=Liveness.GONE, exit=pod.leaving or pod.ended[ref.container])
    if pod.leaving:
        return Absence(how=Liveness.LEAVING, exit=pod.leaving)
    return None


def _previous_exit(ref: PodRef, fleet: Fleet) -> Exit:
    """Return how the previous process ended. A pod without an ended process is new: the worker ran in another one."""
    pod = fleet.pods.get(ref.name)
    known = pod.exits.get(ref.container) if pod and pod.uid == ref.uid else None
    return known or Exit(reason=_replaced(ref), kind=FailureKind.PREEMPTED)


def _replaced(ref: PodRef) -> str:
    return f"its pod {ref.name} was replaced by a new one"
