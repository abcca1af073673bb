"""How well one fit run is scheduled, as its page shows it: the chart, the epochs, the plan. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cerebro.state import ExperimentState, Run, ScheduleNow, chart, gap, plan_line, schedule_now

BARS = 1_500
"""Most units of the chart: it is drawn and sent anew at every refresh."""


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """How well an epoch was scheduled: times in seconds, up to its end or up to now."""

    epoch: int
    is_complete: bool
    makespan_s: float
    lower_bound_s: float
    gap: float
    idle_s: float


@dataclass(frozen=True, kw_only=True)
class ScheduleView:
    """The schedule of one fit run; `epochs` newest first, `plan` empty while none is followed.

    `chart` is markup in which everything of a user's is escaped.
    """

    run: str
    now: ScheduleNow
    epochs: tuple[EpochRow, ...]
    plan: str
    chart: str


def schedule_view(state: ExperimentState, run: Run, now: float) -> ScheduleView | None:
    """The schedule of `run` up to `now` (seconds since the epoch); `None` before its first unit starts."""
    found = schedule_now(state, run, now)
    if found is None:
        return None
    return ScheduleView(
        run=run.id,
        now=found,
        epochs=tuple(reversed(_epochs(run, found))),
        plan=plan_line(run),
        chart=chart(state, run, now, newest=BARS),
    )


def _epochs(run: Run, now: ScheduleNow) -> list[EpochRow]:
    rows = [
        EpochRow(
            epoch=report.epoch,
            is_complete=True,
            makespan_s=report.makespan_s,
            lower_bound_s=report.lower_bound_s,
            gap=gap(report.makespan_s, report.lower_bound_s),
            idle_s=sum(report.idle_s.values()),
        )
        for report in run.epochs
    ]
    if len(rows) < now.epochs:
        present = EpochRow(
            epoch=len(rows) + 1,
            is_complete=False,
            makespan_s=now.makespan_s,
            lower_bound_s=now.lower_bound_s,
            gap=now.gap,
            idle_s=max(0.0, now.idle_s - sum(row.idle_s for row in rows)),
        )
        rows.append(present)
    return rows
