"""The cluster as its page shows it: workers and what they use, the queue and why it waits, what was done to it. Pure.

"no GPU", "not measured" and "0 %" are three texts: a share is None where nobody measured it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from cerebro.contract.api import QueueAnswer
from cerebro.contract.health import HealthAnswer, Incident
from cerebro.contract.records import (
    AuditEntry,
    SizeRequest,
    Troubles,
    UsageSample,
    WorkerStatus,
    WorkerUsage,
)
from cerebro.figures.schedule.spans import by_number
from cerebro.state import lost_because, wording
from cerebro.state.quarantine import CHECK_PASSED, health_words
from cerebro.state.workers import NO_DEVICE
from dispatcher.cluster.summary import QueueRow, Summary, doing, queue_rows
from dispatcher.pages.tables import page_of
from dispatcher.tabs.workers import worker_state

PAGE = 100
HIGH_SHARE = 0.8
"""Memory and disk beyond stand out."""
SPANS = {"hour": 3600.0, "day": 86_400.0}
SLOTS = 60
"""Equal stretches of time of a history."""


@dataclass(frozen=True, kw_only=True)
class GpuCell:
    """One GPU. Shares are 0 to 1; None: not measured."""

    name: str
    used_share: float | None = None
    memory_share: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Share:
    """So much of so much; None: not measured."""

    used: float | None
    total: float | None

    @property
    def share(self) -> float | None:
        """0 to 1."""
        return self.used / self.total if self.used is not None and self.total else None

    @property
    def is_high(self) -> bool:
        """Whether it stands out."""
        return (self.share or 0.0) > HIGH_SHARE


@dataclass(frozen=True, kw_only=True)
class RunningTask:
    """What a worker runs.

    Attributes:
        doing: in words.
        experiment: for whom.
        task: key.
        since: when it began; `None` if unknown.
        devices: that it has; `None` if unknown.
        on: these in words; empty for a worker with one.
    """

    doing: str
    experiment: str
    task: str
    since: float | None
    devices: tuple[int, ...] | None = None
    on: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkerCard:
    """One worker.

    Attributes:
        state: ``running``, ``idle``, ``stopping`` (it was asked to end) or ``lost``.
        note: its last words.
        silent_s: since it last reported.
        devices: how many it has.
        tasks: what it runs, side by side.
        next: what waits in its inbox.
        partitions: training partitions on its volume.
        volume: which one, if others share it.
        health: what is to be known of its machine; empty: nothing.
        is_quarantined: it is given nothing.
        checked: when its machine was last checked, seconds since the epoch; `None`: never.
        history: processor share per slot, oldest first.
        busy: the share of its devices' time with a sub-epoch, per slot.
    """

    name: str
    state: str
    note: str
    host: str
    kinds: tuple[str, ...]
    silent_s: float
    gpus: tuple[GpuCell, ...]
    processor: Share
    memory: Share
    disk: Share
    partitions: int
    volume: str
    devices: int
    tasks: tuple[RunningTask, ...]
    next: tuple[str, ...]
    held: Mapping[int, str] = field(default_factory=dict)
    """Device -> experiment with an open task there, by its log."""
    health: str = ""
    is_quarantined: bool = False
    checked: float | None = None
    history: tuple[float | None, ...] = ()
    busy: tuple[float, ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        """The experiment on each device, or an empty text, by reports of the worker and by the logs.

        A task without known devices takes a free one.
        """
        found = [self.held.get(device, "") for device in range(self.devices)]
        for task in sorted(self.tasks, key=lambda task: task.devices is None):
            free = [number for number, owner in enumerate(found) if not owner]
            for device in free[:1] if task.devices is None else task.devices:
                if device < len(found):
                    found[device] = task.experiment
        return tuple(found)

    @property
    def busy_share(self) -> float:
        """Of the whole time."""
        return fmean(self.busy) if self.busy else 0.0


@dataclass(frozen=True, kw_only=True)
class ClusterView:
    """The page. `devices`, `gpus`: of workers that answer. `devices_used`: that have a task; `gpus_used`: where it is
    measured, None if nowhere."""

    workers: tuple[WorkerCard, ...]
    page: int
    pages: int
    total: int
    running: int
    idle: int
    lost: int
    devices: int
    devices_used: int
    gpus: int
    gpus_used: float | None
    partitions: int
    queue: tuple[QueueRow, ...]
    troubles: tuple[tuple[str, str], ...]
    note: str
    size_request: SizeRequest | None
    audit: tuple[AuditEntry, ...]
    incidents: tuple[Incident, ...]
    quarantined: int
    span: str


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the store says of the cluster.

    Attributes:
        statuses: all registered workers.
        summaries: by experiment, of those at work, of those that worked within the span, and of the newest one.
        usage: samples by worker, of those that are shown.
    """

    statuses: tuple[WorkerStatus, ...]
    summaries: Mapping[str, Summary]
    queue: QueueAnswer = field(default_factory=lambda: QueueAnswer(runs=()))
    troubles: Troubles = field(default_factory=Troubles)
    size_request: SizeRequest | None = None
    health: HealthAnswer = field(default_factory=HealthAnswer)
    audit: tuple[AuditEntry, ...] = ()
    usage: Mapping[str, tuple[UsageSample, ...]]


def cluster(told: Told, *, now: float, span: str = "hour", page: int = 1) -> ClusterView:
    """The view at `now` (seconds since the epoch), with histories of a `SPANS`; `page` of workers, from 1."""
    held = _held(told.statuses)
    cards = [_card(status, held, told) for status in in_order(told.statuses)]
    shown = page_of(cards, page, PAGE)
    there = [card for card in cards if card.state != "lost"]
    shares = [gpu.used_share for card in there for gpu in card.gpus if gpu.used_share is not None]
    begin = now - SPANS.get(span, SPANS["hour"])
    return ClusterView(
        workers=tuple(
            _with_history(card, told.usage.get(card.name, ()), told.summaries, begin, now)
            for card in shown.rows
        ),
        page=shown.page,
        pages=shown.pages,
        total=len(cards),
        running=sum(card.state == "running" for card in cards),
        idle=sum(card.state == "idle" for card in cards),
        lost=len(cards) - len(there),
        devices=sum(card.devices for card in there),
        devices_used=sum(bool(owner) for card in there for owner in card.slots),
        gpus=sum(len(card.gpus) for card in there),
        gpus_used=sum(shares) if shares else None,
        partitions=sum(len(each) for each in held.values()),
        queue=tuple(queue_rows(told.queue, told.summaries)),
        troubles=tuple(sorted(told.troubles.pods.items())),
        note=told.troubles.note,
        size_request=told.size_request,
        audit=told.audit[::-1],
        incidents=tuple(_incidents(told)),
        quarantined=sum(card.is_quarantined for card in cards),
        span=span if span in SPANS else "hour",
    )


def _incidents(told: Told) -> list[Incident]:
    """What is known of machines, and which workers were lost and are back; the newest first."""
    # Each experiment has them from the cluster's log, with the same times.
    changes = {(each.worker, each.time): each for known in told.summaries.values() for each in known.changes}
    found = [each for each in told.health.incidents if each.what != CHECK_PASSED]
    gone: dict[str, float] = {}
    for change in sorted(changes.values(), key=lambda each: each.time):
        if not change.is_there:
            gone[change.worker] = change.time
            what, evidence, action = "lost", change.lost, "what it had to do is given to others"
        elif change.worker in gone:
            away_s = change.time - gone.pop(change.worker)
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
    """By name: rows never change places."""
    return sorted(statuses, key=lambda status: by_number(status.record.worker))


# --- workers ------------------------------------------------------------------------------------


def _card(
    status: WorkerStatus,
    held: Mapping[str, set[tuple[str, int]]],
    told: Told,
) -> WorkerCard:
    summaries, troubles, known = told.summaries, told.troubles.pods, told.health.of(status.record.worker)
    record, state = status.record, worker_state(status, is_busy=bool(status.running))
    is_lost = state == "lost"
    usage = None if is_lost else status.usage
    volume = record.volume or record.worker
    return WorkerCard(
        name=record.worker,
        state=state,
        note=lost_because(status, _last_words(record.worker, summaries), troubles)
        if is_lost
        else status.leaving,
        host=record.host,
        kinds=record.kinds,
        silent_s=status.silent_s,
        gpus=tuple(_gpus(record.gpus, usage)),
        processor=Share(used=usage.cores_used if usage else None, total=float(record.cores)),
        memory=Share(
            used=usage.memory_bytes if usage else None, total=usage.memory_limit_bytes if usage else None
        ),
        disk=Share(
            used=usage.shards_used_bytes if usage else None, total=usage.shards_total_bytes if usage else None
        ),
        partitions=len(held.get(volume, ())),
        volume=volume if volume != record.worker else "",
        devices=len(record.devices) or 1,
        tasks=()
        if is_lost
        else tuple(_running(task, summaries, len(record.devices)) for task in status.tasks if "/" in task),
        health=health_words(status, told.health),
        is_quarantined=known.is_quarantined,
        checked=known.check.ended if known.check is not None else None,
        next=tuple(what for each in summaries.values() for what in _next(each, record.worker)),
        held={} if is_lost else _devices_held(record.worker, summaries),
    )


def _running(told: str, summaries: Mapping[str, Summary], there: int) -> RunningTask:
    experiment, _, task = told.partition("/")
    known = summaries.get(experiment)
    since = (known.started.get(task) or None) if known else None
    devices = known.devices.get(task) if known else None
    return RunningTask(
        doing=doing(task),
        experiment=experiment,
        task=task,
        since=since,
        devices=devices,
        on=wording.on_devices(devices or (), there),
    )


def _gpus(names: tuple[str, ...], usage: WorkerUsage | None) -> Iterable[GpuCell]:
    for gpu in usage.gpus if usage else ():
        share = gpu.memory_bytes / gpu.memory_total_bytes if gpu.memory_total_bytes else None
        yield GpuCell(**gpu.model_dump(), memory_share=share)
    if usage is None or not usage.gpus:
        yield from (GpuCell(name=name) for name in names)


def _held(statuses: tuple[WorkerStatus, ...]) -> dict[str, set[tuple[str, int]]]:
    """Volume -> partitions on it: workers that share one each tell of what they know."""
    found: dict[str, set[tuple[str, int]]] = {}
    for status in statuses:
        held = {(each.dataset, each.partition) for each in status.record.replicas}
        found.setdefault(status.record.volume or status.record.worker, set()).update(held)
    return found


def _last_words(worker: str, summaries: Mapping[str, Summary]) -> str:
    known = [each.workers[worker] for each in summaries.values() if worker in each.workers]
    told = [each for each in known if each.lost]
    return max(told, key=lambda each: each.since).lost if told else ""


def _devices_held(worker: str, summaries: Mapping[str, Summary]) -> dict[int, str]:
    return {
        device: experiment
        for experiment, known in summaries.items()
        for lanes in known.held.values()
        for name, device in lanes
        if name == worker and device != NO_DEVICE
    }


def _next(known: Summary, worker: str) -> tuple[str, ...]:
    return known.workers[worker].next if worker in known.workers else ()


# --- histories ----------------------------------------------------------------------------------


def _with_history(
    card: WorkerCard,
    samples: tuple[UsageSample, ...],
    summaries: Mapping[str, Summary],
    begin: float,
    end: float,
) -> WorkerCard:
    cores = card.processor.total or 1.0
    measured = [
        (sample.time, min(1.0, sample.usage.cores_used / cores))
        for sample in samples
        if sample.usage.cores_used is not None
    ]
    spans = [span for each in summaries.values() for span in each.busy.get(card.name, ())]
    return replace(card, history=slots(measured, begin, end), busy=occupied(spans, begin, end, card.devices))


def slots(values: list[tuple[float, float]], begin: float, end: float) -> tuple[float | None, ...]:
    """Means of (time, value) over `SLOTS` equal stretches of time; None where there is no value."""
    found: list[list[float]] = [[] for _ in range(SLOTS)]
    for time, value in values:
        if begin <= time < end:
            found[int((time - begin) / (end - begin) * SLOTS)].append(value)
    return tuple(fmean(each) if each else None for each in found)


def occupied(
    spans: list[tuple[float, float]], begin: float, end: float, devices: int = 1
) -> tuple[float, ...]:
    """The share of each of `SLOTS` stretches that (begin, end) spans cover on so many devices; 1 at most, should there
    be more at once."""
    width = (end - begin) / SLOTS
    found = [0.0] * SLOTS
    for started, ended in spans:
        first = max(0, int((started - begin) / width))
        for slot in range(first, min(SLOTS, int((ended - begin) / width) + 1)):
            low = begin + slot * width
            found[slot] += max(0.0, min(ended, low + width) - max(started, low)) / width
    return tuple(min(1.0, share / devices) for share in found)
