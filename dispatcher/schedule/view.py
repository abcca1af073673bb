"""How well a fit run is scheduled, and by what."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cerebro.state import Run, ScheduleNow, gap, plan_line
from dispatcher.reading.read_model import ReadModel


@dataclass(frozen=True, kw_only=True)
class ScheduleSummary:
    """The schedule so far. Times in seconds; see `cerebro.state.ScheduleNow`.

    `gap` is a share of the lower bound, `idle_share` of the devices' time; `start_s` are seconds of all devices in
    which tasks waited for a process to start and to import, `lost_s` those of attempts that did not commit, `taken_s`
    those in which other runs had devices of its workers: absence.
    """

    run: str
    epoch: int
    epochs: int
    makespan_s: float
    lower_bound_s: float
    gap: float
    idle_s: float
    idle_share: float
    start_s: float
    taken_s: float
    lost_s: float
    is_growing: bool


@dataclass(frozen=True, kw_only=True)
class EpochScheduleRow:
    """How well an epoch was scheduled: times in seconds, from the run's start up to its end or up to now; `start_s` and
    `idle_s` since the epoch before."""

    epoch: int
    is_complete: bool
    makespan_s: float
    lower_bound_s: float
    gap: float
    start_s: float
    idle_s: float


@dataclass(frozen=True, kw_only=True)
class ScheduleView:
    """The schedule of one planned fit run; `summary` is `None` before its first sub-epoch starts, `epochs` newest
    first.

    `scheduler` is the policy that dispatches, `planner` whether a planner may replace it, `plan` says which plan is
    followed instead, empty while none is.
    """

    run: str
    scheduler: str
    planner: bool
    plan: str
    summary: ScheduleSummary | None
    epochs: tuple[EpochScheduleRow, ...]


def schedule(read_model: ReadModel, *, fit: str = "", now: float) -> ScheduleView | None:
    """The schedule of a fit run (default: the newest) up to `now` (seconds since the epoch); `None` without any."""
    run = read_model.fit(fit)
    if run is None:
        return None
    found = read_model.schedule_now(run, now)
    return ScheduleView(
        run=run.id,
        scheduler=run.scheduler,
        planner=run.planner,
        plan=plan_line(run),
        summary=_summary(run, found) if found else None,
        epochs=tuple(reversed(_epochs(run, found))) if found else (),
    )


def schedule_summary(read_model: ReadModel, run: Run, now: float) -> ScheduleSummary | None:
    """The same in a few numbers; `None` before its first sub-epoch starts."""
    found = read_model.schedule_now(run, now)
    return _summary(run, found) if found else None


def _summary(run: Run, found: ScheduleNow) -> ScheduleSummary:
    told = asdict(found)
    del told["device_s"]
    return ScheduleSummary(run=run.id, gap=found.gap, idle_share=found.idle_share, **told)


def _epochs(run: Run, now: ScheduleNow) -> list[EpochScheduleRow]:
    rows = [
        EpochScheduleRow(
            epoch=report.epoch,
            is_complete=True,
            makespan_s=report.makespan_s,
            lower_bound_s=report.lower_bound_s,
            gap=gap(report.makespan_s, report.lower_bound_s),
            start_s=report.start_s,
            idle_s=sum(report.idle_s.values()),
        )
        for report in run.epochs
    ]
    if run.has_known_models and len(rows) < now.epochs:
        present = EpochScheduleRow(
            epoch=len(rows) + 1,
            is_complete=False,
            makespan_s=now.makespan_s,
            lower_bound_s=now.lower_bound_s,
            gap=now.gap,
            start_s=max(0.0, now.start_s - sum(row.start_s for row in rows)),
            idle_s=max(0.0, now.idle_s - sum(row.idle_s for row in rows)),
        )
        rows.append(present)
    return rows
