"""Schedule quality of a fit run, and its scheduler, for the tabs Schedule and Overview and the read API.

`ReadModel.schedule_now` computes the quality at a limited rate, so a long run's numbers may be older than its log.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cerebro.state import Run, ScheduleNow, gap, plan_line
from dispatcher.read_models.read_model import ReadModel


@dataclass(frozen=True, kw_only=True)
class ScheduleSummary:
    """The schedule so far. Times are seconds; see `cerebro.state.ScheduleNow`.

    Attributes:
        gap: share of the lower bound.
        idle_share: share of the devices' time.
        start_s: device time during which tasks waited for a process to start and import.
        lost_s: device time of attempts that did not commit.
        taken_s: device time of other runs on the same workers; counts as absence.
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
    """Schedule quality of an epoch. Times are seconds.

    `makespan_s` and the lower bound start with the run; `start_s` and `idle_s` start with the end of the epoch
    before.
    """

    epoch: int
    is_complete: bool
    makespan_s: float
    lower_bound_s: float
    gap: float
    start_s: float
    idle_s: float


@dataclass(frozen=True, kw_only=True)
class ScheduleView:
    """Schedule of a planned fit run.

    Attributes:
        scheduler: name of the dispatching policy.
        planner: True if a planner may replace the policy.
        plan: description of the plan in use, or an empty text.
        summary: None before the first sub-epoch starts.
        epochs: newest first.
    """

    run: str
    scheduler: str
    planner: bool
    plan: str
    summary: ScheduleSummary | None
    epochs: tuple[EpochScheduleRow, ...]


def schedule(read_model: ReadModel, *, fit: str = "", now: float) -> ScheduleView | None:
    """Return the schedule of a fit run at `now` (seconds since the epoch), by default of the newest."""
    run = read_model.fit(fit)
    if run is None:
        return None
    found = read_model.schedule_now(run, now)
    return ScheduleView(
        run=run.id,
        scheduler=run.scheduling.scheduler,
        planner=run.scheduling.has_planner,
        plan=plan_line(run),
        summary=_summary(run, found) if found else None,
        epochs=tuple(reversed(_epochs(run, found))) if found else (),
    )


def _summary(run: Run, found: ScheduleNow) -> ScheduleSummary:
    fields = asdict(found)
    del fields["device_s"]
    return ScheduleSummary(run=run.id, gap=found.gap, idle_share=found.idle_share, **fields)


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
        for report in run.scheduling.epochs
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
