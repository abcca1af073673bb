"""The page Cluster: workers and their use, queue, incidents. Pure: `snapshot.Cluster` provides all data.

A page has 100 workers; totals cover all. A share that was not measured is None. So pages distinguish "no GPU", "not
measured" and "0 %".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from cerebro.contract.records import (
    AuditEntry,
    SizeRequest,
    UsageSample,
    WorkerRecord,
    WorkerSetStatus,
    WorkerStatus,
    WorkerUsage,
)
from cerebro.contract.rest.api import QueueAnswer
from cerebro.contract.stored.health import HealthAnswer, Incident
from cerebro.figures.schedule.spans import by_number
from cerebro.state import lost_because
from cerebro.state.reports import state_words
from cerebro.state.worker_quarantine import CHECK_PASSED, health_words
from cerebro.state.workers import NO_DEVICE
from dispatcher.cluster.summary import QueueRow, Summary, queue_rows, task_text
from dispatcher.pages.tables import page_of
from dispatcher.tabs.workers import worker_state

PAGE = 100
HIGH_SHARE = 0.8
"""Memory and disk above this share are highlighted."""
SPANS = {"hour": 3600.0, "day": 86_400.0}
SLOTS = 60
"""Number of equal time intervals in a history."""


@dataclass(frozen=True, kw_only=True)
class GpuCell:
    """One GPU. Shares are 0 to 1; None when not measured."""

    name: str
    used_share: float | None = None
    memory_share: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Share:
    """Used and total amount; None when not measured."""

    used: float | None
    total: float | None

    @property
    def share(self) -> float | None:
        """Used share, 0 to 1."""
        return self.used / self.total if self.used is not None and self.total else None

    @property
    def is_high(self) -> bool:
        """True if the share is highlighted."""
        return (self.share or 0.0) > HIGH_SHARE


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """A task on a worker.

    Attributes:
        doing: description in words.
        experiment: name of its experiment.
        task: key.
        since: start of the task; None when unknown.
        devices: its devices; None when unknown.
        on: devices in words; an empty text for workers with one device.
    """

    doing: str
    experiment: str
    task: str
    since: float | None
    devices: tuple[int, ...] | None = None
    on: str = ""


@dataclass(frozen=True, kw_only=True)
class MachineUsage:
    """Use of a worker's machine."""

    gpus: tuple[GpuCell, ...]
    processor: Share
    memory: Share
    disk: Share


@dataclass(frozen=True, kw_only=True)
class MachineHealth:
    """Health of a worker's machine.

    Attributes:
        problem: its problems, or an empty text.
        is_quarantined: True if the worker gets no tasks.
        checked: time of the last machine check, seconds since the epoch; None when never checked.
    """

    problem: str
    is_quarantined: bool
    checked: float | None


@dataclass(frozen=True, kw_only=True)
class Work:
    """Devices of a worker and their tasks.

    Attributes:
        devices: number of devices.
        tasks: running tasks.
        next: tasks in its inbox that have not started.
        held: device -> experiment with an open task there, by its log.
    """

    devices: int
    tasks: tuple[WorkerTask, ...]
    next: tuple[str, ...]
    held: Mapping[int, str]

    @property
    def slots(self) -> tuple[str, ...]:
        """Return the experiment on each device, or an empty text, from the worker's reports and the logs.

        A task with unknown devices takes a free one.
        """
        found = [self.held.get(device, "") for device in range(self.devices)]
        for task in sorted(self.tasks, key=lambda task: task.devices is None):
            free = [number for number, owner in enumerate(found) if not owner]
            for device in free[:1] if task.devices is None else task.devices:
                if device < len(found):
                    found[device] = task.experiment
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class History:
    """Use of a worker per time interval, oldest first.

    Attributes:
        processor: share of processor use.
        busy: share of device time with a task.
    """

    processor: tuple[float | None, ...] = ()
    busy: tuple[float, ...] = ()

    @property
    def busy_share(self) -> float:
        """Mean of `busy`."""
        return fmean(self.busy) if self.busy else 0.0


@dataclass(frozen=True, kw_only=True)
class WorkerCard:
    """One worker.

    Attributes:
        state: ``running``, ``idle``, ``stopping`` (asked to end) or ``lost``.
        note: last message of the worker.
        silent_s: seconds since its last report.
        partitions: number of training partitions on its volume.
        volume: name of the volume if several workers share it.
    """

    name: str
    state: str
    note: str
    host: str
    kinds: tuple[str, ...]
    silent_s: float
    partitions: int
    volume: str
    usage: MachineUsage
    work: Work
    health: MachineHealth
    history: History = field(default_factory=History)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over all workers.

    Attributes:
        running, idle, lost, quarantined: number of workers.
        devices, gpus: number on all workers that are not lost.
        devices_used: number of devices with a task.
        gpus_used: sum of the measured GPU shares; None without any.
        partitions: number of training partitions on their volumes.
    """

    running: int
    idle: int
    lost: int
    quarantined: int
    devices: int
    devices_used: int
    gpus: int
    gpus_used: float | None
    partitions: int


@dataclass(frozen=True, kw_only=True)
class ClusterView:
    """The page. `workers`: one page of `total` workers."""

    workers: tuple[WorkerCard, ...]
    page: int
    pages: int
    total: int
    totals: Totals
    queue: tuple[QueueRow, ...]
    pod_problems: tuple[tuple[str, str], ...]
    note: str
    size_request: SizeRequest | None
    audit: tuple[AuditEntry, ...]
    incidents: tuple[Incident, ...]
    span: str


@dataclass(frozen=True, kw_only=True)
class ClusterData:
    """Data of the store about the cluster.

    Attributes:
        statuses: status of all registered workers.
        summaries: experiments that are active, were active within the span, and the newest.
        usage: usage samples of the shown workers.
    """

    statuses: tuple[WorkerStatus, ...]
    summaries: Mapping[str, Summary]
    queue: QueueAnswer = field(default_factory=lambda: QueueAnswer(runs=()))
    worker_set_status: WorkerSetStatus = field(default_factory=WorkerSetStatus)
    size_request: SizeRequest | None = None
    health: HealthAnswer = field(default_factory=HealthAnswer)
    audit: tuple[AuditEntry, ...] = ()
    usage: Mapping[str, tuple[UsageSample, ...]]


def cluster(data: ClusterData, *, now: float, span: str = "hour", page: int = 1) -> ClusterView:
    """Build the page at `now` (seconds since the epoch).

    Args:
        span: time span of histories, a name in `SPANS`.
        page: page of workers, from 1.
    """
    held = _partitions_by_volume(data.statuses)
    machines = health_words(data.statuses, data.health, now)
    cards = [_card(status, held, data, machines[status.record.worker]) for status in in_order(data.statuses)]
    shown = page_of(cards, page, PAGE)
    begin = now - SPANS.get(span, SPANS["hour"])
    return ClusterView(
        workers=tuple(
            _with_history(card, data.usage.get(card.name, ()), data.summaries, begin, now)
            for card in shown.rows
        ),
        page=shown.page,
        pages=shown.pages,
        total=len(cards),
        totals=_totals(cards, partitions=sum(len(each) for each in held.values())),
        queue=tuple(queue_rows(data.queue, data.summaries)),
        pod_problems=tuple(sorted(data.worker_set_status.pods.items())),
        note=data.worker_set_status.note,
        size_request=data.size_request,
        audit=data.audit[::-1],
        incidents=tuple(_incidents(data)),
        span=span if span in SPANS else "hour",
    )


def _totals(cards: list[WorkerCard], *, partitions: int) -> Totals:
    reachable = [card for card in cards if card.state != "lost"]
    shares = [gpu.used_share for card in reachable for gpu in card.usage.gpus if gpu.used_share is not None]
    return Totals(
        running=sum(card.state == "running" for card in cards),
        idle=sum(card.state == "idle" for card in cards),
        lost=len(cards) - len(reachable),
        quarantined=sum(card.health.is_quarantined for card in cards),
        devices=sum(card.work.devices for card in reachable),
        devices_used=sum(bool(owner) for card in reachable for owner in card.work.slots),
        gpus=sum(len(card.usage.gpus) for card in reachable),
        gpus_used=sum(shares) if shares else None,
        partitions=partitions,
    )


def _incidents(data: ClusterData) -> list[Incident]:
    """Return health incidents, lost workers and returned workers, newest first."""
    # Each experiment copies these changes from the cluster log, with the same times.
    changes = {(each.worker, each.time): each for known in data.summaries.values() for each in known.changes}
    found = [each for each in data.health.incidents if each.what != CHECK_PASSED]
    left_at: dict[str, float] = {}
    for change in sorted(changes.values(), key=lambda each: each.time):
        if not change.is_there:
            left_at[change.worker] = change.time
            what, evidence, action = "lost", change.lost, "its tasks move to other workers"
        elif change.worker in left_at:
            away_s = change.time - left_at.pop(change.worker)
            what, evidence, action = "is back", f"{away_s:.0f} s after it was lost", ""
        else:
            continue
        found.append(
            Incident(
                time=change.time,
                worker=change.worker,
                what=what,
                evidence=evidence,
                action=action,
                by="controller",
            )
        )
    return sorted(found, key=lambda each: each.time, reverse=True)


def in_order(statuses: tuple[WorkerStatus, ...]) -> list[WorkerStatus]:
    """Sort by name, so that rows never change places."""
    return sorted(statuses, key=lambda status: by_number(status.record.worker))


# --- workers ------------------------------------------------------------------------------------


def _card(
    status: WorkerStatus,
    held: Mapping[str, set[tuple[str, int]]],
    data: ClusterData,
    machine: str,
) -> WorkerCard:
    summaries, pod_problems, known = (
        data.summaries,
        data.worker_set_status.pods,
        data.health.of(status.record.worker),
    )
    record, state = status.record, worker_state(status, is_busy=bool(status.running))
    is_lost = state == "lost"
    volume = record.volume or record.worker
    return WorkerCard(
        name=record.worker,
        state=state,
        note=lost_because(status, _last_message(record.worker, summaries), pod_problems)
        if is_lost
        else status.leaving,
        host=record.host,
        kinds=record.kinds,
        silent_s=status.silent_s,
        partitions=len(held.get(volume, ())),
        volume=volume if volume != record.worker else "",
        usage=_usage(record, None if is_lost else status.usage),
        work=Work(
            devices=len(record.devices) or 1,
            tasks=()
            if is_lost
            else tuple(
                _running(task, summaries, len(record.devices)) for task in status.tasks if "/" in task
            ),
            next=tuple(what for each in summaries.values() for what in _waiting_tasks(each, record.worker)),
            held={} if is_lost else _devices_held(record.worker, summaries),
        ),
        health=MachineHealth(
            problem=machine,
            is_quarantined=known.is_quarantined,
            checked=known.check.ended if known.check is not None else None,
        ),
    )


def _usage(record: WorkerRecord, usage: WorkerUsage | None) -> MachineUsage:
    return MachineUsage(
        gpus=tuple(_gpus(record.gpus, usage)),
        processor=Share(used=usage.cores_used if usage else None, total=float(record.cores)),
        memory=Share(
            used=usage.memory_bytes if usage else None, total=usage.memory_limit_bytes if usage else None
        ),
        disk=Share(
            used=usage.shards_used_bytes if usage else None, total=usage.shards_total_bytes if usage else None
        ),
    )


def _running(reported: str, summaries: Mapping[str, Summary], reachable: int) -> WorkerTask:
    experiment, _, task = reported.partition("/")
    known = summaries.get(experiment)
    since = (known.started.get(task) or None) if known else None
    devices = known.devices.get(task) if known else None
    return WorkerTask(
        doing=task_text(task),
        experiment=experiment,
        task=task,
        since=since,
        devices=devices,
        on=state_words.on_devices(devices or (), reachable),
    )


def _gpus(names: tuple[str, ...], usage: WorkerUsage | None) -> Iterable[GpuCell]:
    for gpu in usage.gpus if usage else ():
        share = gpu.memory_bytes / gpu.memory_total_bytes if gpu.memory_total_bytes else None
        yield GpuCell(**gpu.model_dump(), memory_share=share)
    if usage is None or not usage.gpus:
        yield from (GpuCell(name=name) for name in names)


def _partitions_by_volume(statuses: tuple[WorkerStatus, ...]) -> dict[str, set[tuple[str, int]]]:
    """Return the partitions on each volume: workers that share a volume each report the ones they know."""
    found: dict[str, set[tuple[str, int]]] = {}
    for status in statuses:
        held = {(each.dataset, each.partition) for each in status.record.replicas}
        found.setdefault(status.record.volume or status.record.worker, set()).update(held)
    return found


def _last_message(worker: str, summaries: Mapping[str, Summary]) -> str:
    known = [each.workers[worker] for each in summaries.values() if worker in each.workers]
    lost = [each for each in known if each.lost]
    return max(lost, key=lambda each: each.since).lost if lost else ""


def _devices_held(worker: str, summaries: Mapping[str, Summary]) -> dict[int, str]:
    return {
        device: experiment
        for experiment, known in summaries.items()
        for slots in known.held.values()
        for name, device in slots
        if name == worker and device != NO_DEVICE
    }


def _waiting_tasks(known: Summary, worker: str) -> tuple[str, ...]:
    return known.workers[worker].next if worker in known.workers else ()


# --- histories ----------------------------------------------------------------------------------


def _with_history(
    card: WorkerCard,
    samples: tuple[UsageSample, ...],
    summaries: Mapping[str, Summary],
    begin: float,
    end: float,
) -> WorkerCard:
    cores = card.usage.processor.total or 1.0
    measured = [
        (sample.time, min(1.0, sample.usage.cores_used / cores))
        for sample in samples
        if sample.usage.cores_used is not None
    ]
    spans = [span for each in summaries.values() for span in each.busy.get(card.name, ())]
    history = History(
        processor=slots(measured, begin, end), busy=occupied(spans, begin, end, card.work.devices)
    )
    return replace(card, history=history)


def slots(values: list[tuple[float, float]], begin: float, end: float) -> tuple[float | None, ...]:
    """Return means of (time, value) over `SLOTS` equal intervals; None for intervals without values."""
    found: list[list[float]] = [[] for _ in range(SLOTS)]
    for time, value in values:
        if begin <= time < end:
            found[int((time - begin) / (end - begin) * SLOTS)].append(value)
    return tuple(fmean(each) if each else None for each in found)


def occupied(
    spans: list[tuple[float, float, float]], begin: float, end: float, devices: int = 1
) -> tuple[float, ...]:
    """Return the share of each of `SLOTS` intervals that spans cover on `devices` devices, at most 1.

    A span is (begin, end, number of devices).
    """
    width = (end - begin) / SLOTS
    found = [0.0] * SLOTS
    for started, ended, taken in spans:
        first = max(0, int((started - begin) / width))
        for slot in range(first, min(SLOTS, int((ended - begin) / width) + 1)):
            low = begin + slot * width
            found[slot] += taken * max(0.0, min(ended, low + width) - max(started, low)) / width
    return tuple(min(1.0, share / devices) for share in found)
