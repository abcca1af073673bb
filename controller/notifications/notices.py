"""The message that an event is worth, and its targets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cerebro.contract.events import Event, ForecastMade, RunFinished, RunPaused
from cerebro.contract.records import ExperimentRecord
from cerebro.contract.stored.health import HealthAnswer
from cerebro.contract.stored.notifications import EventKind, Message, NotificationTarget, covers
from cerebro.state import ExperimentState, Run
from cerebro.state.models.best import best_in
from cerebro.state.runs.goals import clock, goal_of


@dataclass(frozen=True, kw_only=True)
class Notice:
    """An event that is worth a message.

    Attributes:
        id: unique per event.
        time: seconds since the epoch.
        owner: owner of the experiment. author: author of the run. projects: projects of both.
    """

    id: str
    kind: EventKind
    time: float
    title: str
    body: str
    owner: str = ""
    author: str = ""
    projects: frozenset[str] = frozenset()


def notice_of(record: ExperimentRecord, state: ExperimentState, event: Event) -> Notice | None:
    """Return the notice of an event of an experiment's log, if it is worth one.

    Args:
        state: the fold after this event, or after a later one.
    """
    if not isinstance(event, RunFinished | RunPaused | ForecastMade):
        return None
    run = state.runs[event.run]
    found = _text(f"{run.id} of {record.name}", run, event)
    if found is None:
        return None
    kind, title, body = found
    return Notice(
        id=f"{record.name}.{event.seq}",
        kind=kind,
        time=event.time,
        title=f"Cerebro: {title}",
        body=body,
        owner=record.owner,
        author=run.author,
        projects=frozenset(filter(None, (record.project, run.project))),
    )


def quarantines(health: HealthAnswer, after: float) -> Iterator[Notice]:
    """Yield the notices of workers that were quarantined after a time, oldest first."""
    known = [(name, each.quarantine) for name, each in health.workers.items() if each.quarantine is not None]
    for worker, quarantine in sorted(known, key=lambda pair: pair[1].time):
        if quarantine.is_on and quarantine.time > after:
            yield Notice(
                id=f"quarantine.{worker}.{quarantine.time:.3f}",
                kind=EventKind.QUARANTINE,
                time=quarantine.time,
                title=f"Cerebro: worker {worker} is quarantined",
                body=f"{quarantine.reason}. It gets no tasks. Repair its machine, then `cerebro release {worker}`.",
            )


def messages_of(
    notice: Notice, targets: Iterable[NotificationTarget], since: float = 0.0
) -> Iterator[Message]:
    """Yield a message for each target that covers a notice and is older than its event.

    Args:
        since: events before this time have no messages.
    """
    for target in targets:
        is_covered = covers(
            target, notice.kind, owner=notice.owner, author=notice.author, projects=notice.projects
        )
        if is_covered and notice.time >= max(target.created, since):
            yield Message(
                id=f"{notice.id}.{target.id}",
                target=target.id,
                kind=notice.kind,
                title=notice.title,
                body=notice.body,
            )


def tests_of(targets: Iterable[NotificationTarget], tested: Mapping[str, float]) -> Iterator[Message]:
    """Yield a test message for each target with an unanswered request.

    Args:
        tested: target -> time of the newest answered request.
    """
    for target in targets:
        if target.tested > tested.get(target.id, 0.0):
            events = ", ".join(target.events)
            yield Message(
                id=f"test.{target.tested:.3f}.{target.id}",
                target=target.id,
                kind=EventKind.TEST,
                title="Cerebro: test",
                body=f"Notifications arrive here. Events: {events}.",
                tested=target.tested,
            )


def _text(
    name: str, run: Run, event: RunFinished | RunPaused | ForecastMade
) -> tuple[EventKind, str, str] | None:
    match event:
        case RunPaused():
            return EventKind.PAUSED, f"{name} is paused", event.reason
        case RunFinished(outcome="failed"):
            return EventKind.FAILED, f"{name} has failed", event.error or "see its log"
        case RunFinished():
            best = best_in(run) if run.kind == "fit" else None
            verb = "was stopped" if event.outcome == "stopped" else "has finished"
            return (
                EventKind.FINISHED,
                f"{name} {verb}",
                best.line if best else f"its {run.kind} run has ended",
            )
        case ForecastMade():
            late = _lateness(run, event)
            return (EventKind.DEADLINE, f"{name} may miss its deadline", late) if late else None


def _lateness(run: Run, event: ForecastMade) -> str:
    """Return how a forecast misses the deadline; empty unless the forecast before it met the deadline."""
    finish_by = goal_of(run).finish_by
    earlier = [each for each in run.scheduling.forecasts if each.time < event.time]
    if finish_by is None or not _is_late(event, finish_by) or (earlier and _is_late(earlier[-1], finish_by)):
        return ""
    return (
        f"its deadline is {clock(finish_by, event.time)}; the forecast for {event.workers} worker(s) is "
        f"{clock(event.time + event.end.p50_s, event.time)}, nine of ten by "
        f"{clock(event.time + event.end.p90_s, event.time)}. Add workers, or stop some models"
    )


def _is_late(forecast: ForecastMade, finish_by: float) -> bool:
    """True if fewer than nine of ten simulations meet the deadline, with all workers that the run may have."""
    allowed = forecast.allowed_workers or forecast.workers
    ends = [each.p90_s for each in forecast.ends if each.workers <= max(allowed, forecast.workers)]
    return forecast.time + min(ends, default=forecast.end.p90_s) > finish_by
