"""Cost, forecast and goal of a fit, as text. Pure."""

from __future__ import annotations

import datetime
import math

from cerebro.contract.events import ForecastMade
from cerebro.contract.runs import FitRequest, ForecastEnd, Goal
from cerebro.state.experiment import ExperimentState
from cerebro.state.reports import state_words
from cerebro.state.reports.wait_reasons import Excluded, missing_worker
from cerebro.state.runs.run import Run, RunState

_DAY_S = 86_400.0


def goal_of(run: Run) -> Goal:
    """Return the run's goal."""
    return run.request.goal if isinstance(run.request, FitRequest) else Goal()


def worker_hours(state: ExperimentState, run: Run, now: float) -> float:
    """Return the hours of training workers since the run began, summed, without pauses and breaks."""
    if not run.clock.started:
        return 0.0
    until = run.clock.ended or now
    # Workers from before the first run appear in no change; a worker that leaves first was present.
    first: dict[str, bool] = {}
    for change in state.worker_changes:
        first.setdefault(change.worker, change.is_there)
    there = {w.name for w in state.workers.values() if w.is_alive and w.name not in first}
    there.update(name for name, is_there in first.items() if not is_there)
    since = dict.fromkeys(there, run.clock.started)
    seconds = 0.0
    for change in state.worker_changes:
        if change.is_there:
            since.setdefault(change.worker, change.time)
        elif change.worker in since:
            seconds += _there_s(state, run, change.worker, (since.pop(change.worker), change.time))
    for worker, began in since.items():
        seconds += _there_s(state, run, worker, (began, until))
    return seconds / 3600


def _there_s(state: ExperimentState, run: Run, worker: str, there: tuple[float, float]) -> float:
    """Seconds of a worker's presence that count for the run."""
    known = state.workers.get(worker)
    if known is None or not known.trains:
        return 0.0
    began, ended = max(there[0], run.clock.started), there[1]
    stood_still = (*run.clock.breaks, *run.clock.pauses)
    away = sum(max(0.0, min(ended, until) - max(began, since)) for since, until in stood_still)
    return max(0.0, ended - began - away)


def spent(state: ExperimentState, run: Run, now: float) -> str:
    """Return why to pause a run with a spent budget; empty within budget or after a user resumed it."""
    budget = goal_of(run).worker_hours
    if budget is None or worker_hours(state, run, now) < budget:
        return ""
    if run.clock.pauses and worker_hours(state, run, run.clock.pauses[-1][0]) >= budget * (1 - 1e-6):
        return ""
    return (
        f"its budget of {budget:g} worker-hours is spent. Resume it to continue without one, or stop it: its models "
        "keep their state"
    )


def waited_too_long(state: ExperimentState, run: Run, now: float, excluded: Excluded) -> str:
    """Return why to pause a run that has waited for workers longer than its `wait_limit`; empty within it.

    The wait begins at the newest of these times: the request, the end of the last task, the last resume, and the
    departure of the last worker that the run misses.

    Args:
        excluded: workers that are excluded from all tasks, such as quarantined ones. They count as absent.
    """
    limit_s = run.request.wait_limit_s
    if limit_s is None or now - _idle_since(run) < limit_s:
        return ""
    missing, workers = missing_worker(state, run, excluded)
    departures = (worker.since for worker in workers if not worker.is_alive)
    if not missing or now - max(departures, default=0.0) < limit_s:
        return ""
    return (
        f"it waited for workers longer than its wait_limit of {_span(limit_s)}; it is {missing}. Add workers, then "
        "resume it: its models keep their state"
    )


def _idle_since(run: Run) -> float:
    resumed = (until for _, until in run.clock.pauses if until < math.inf)
    return max(run.clock.requested, run.clock.started, run.clock.worked, *resumed)


def forecast_lines(run: Run, now: float) -> list[str]:
    """Describe the forecast; for an ended run, compare it with the end."""
    if run.clock.ended and not run.is_open:
        return [*([_truth(run)] if run.scheduling.forecasts else []), *_missed(run)]
    if not run.scheduling.forecasts:
        return []
    newest = run.scheduling.forecasts[-1]
    end = newest.end
    count = _workers(newest.workers)
    verb = "ends" if newest.time + end.p50_s > now else "was to end"
    lines = [
        f"forecast: {verb} at {clock(newest.time + end.p50_s, now)}, 9 of 10 by "
        f"{clock(newest.time + end.p90_s, now)}, with {count}"
    ]
    if shortfall := short(run, now):
        lines.append(shortfall)
    if newest.recommended_workers is not None and newest.recommended_workers != newest.workers:
        size = newest.recommended_workers
        other = next((each for each in newest.ends if each.workers == size), None)
        if other is not None:
            done = ", and were asked for" if newest.requested_workers else ""
            lines.append(
                f"{_workers(size)} would end it at {clock(newest.time + other.p50_s, now)} instead of "
                f"{clock(newest.time + end.p50_s, now)}{done}"
            )
    return lines


def short(run: Run, now: float) -> str:
    """Return why the allowed workers cannot meet the goal, and the remedy; empty if they can."""
    newest, goal = run.scheduling.forecasts[-1] if run.scheduling.forecasts else None, goal_of(run)
    if newest is None or newest.allowed_workers is None:
        return ""
    reasons = []
    if goal.finish_by is not None:
        reasons.append(_late(newest, goal.finish_by, newest.allowed_workers, now))
    if goal.worker_hours is not None:
        reasons.append(f"its budget of {goal.worker_hours:g} worker-hours ends before it does")
    return f"the goal cannot be kept: {', or '.join(filter(None, reasons))}"


def _late(newest: ForecastMade, finish_by: float, allowed_workers: int, now: float) -> str:
    at = clock(finish_by, now)
    within = [each for each in newest.ends if each.workers <= allowed_workers]
    if not within:
        return ""
    fastest = min(within, key=lambda each: each.p90_s)
    if newest.time + fastest.p90_s <= finish_by:
        return ""
    enough = [each.workers for each in newest.ends if newest.time + each.p90_s <= finish_by]
    takes = f"needs {min(enough)} workers" if enough else "cannot be had with more workers"
    until = clock(newest.time + fastest.p90_s, now)
    are = "is" if allowed_workers == 1 else "are"
    return f"to end by {at} {takes}, or until {until}; {allowed_workers} {are} allowed"


def _truth(run: Run) -> str:
    """Compare the first forecast with the actual end."""
    first = run.scheduling.forecasts[0]
    expected: ForecastEnd = first.end
    forecast_text = (
        f"forecast: was to end at {clock(first.time + expected.p50_s, run.clock.ended)}, 9 of 10 by "
        f"{clock(first.time + expected.p90_s, run.clock.ended)}; it"
    )
    at = clock(run.clock.ended, run.clock.ended)
    if run.state is not RunState.FINISHED:  # the forecast was about more work
        return f"{forecast_text} {'was stopped' if run.state is RunState.STOPPED else 'failed'} at {at}"
    if lacking := state_words.shortfall(run):
        return f"{forecast_text} ended at {at}; {lacking}"
    off_s = run.clock.ended - (first.time + expected.p50_s)
    return f"{forecast_text} ended at {at}, {_length(abs(off_s))} {'later' if off_s > 0 else 'sooner'}"


def _missed(run: Run) -> list[str]:
    """Report that a finished run missed its `finish_by`."""
    finish_by = goal_of(run).finish_by
    if finish_by is None or run.state is not RunState.FINISHED or run.clock.ended <= finish_by:
        return []
    at = clock(finish_by, run.clock.ended)
    return [f"it was to end by {at} (finish_by), and ended {_length(run.clock.ended - finish_by)} later"]


LAST_TIME = 253_400_000_000.0
"""Seconds from 1970 to nearly the end of the year 9999, the last that has a date."""


def clock(at: float, now: float) -> str:
    """Format a time in this machine's zone; add the date beyond half a day from now."""
    moment = datetime.datetime.fromtimestamp(min(at, LAST_TIME)).astimezone()
    return moment.strftime("%H:%M %Z" if abs(at - now) < _DAY_S / 2 else "%Y-%m-%d %H:%M %Z")


def _length(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _span(seconds: float) -> str:
    """Format a limit exactly, such as ``2 h``, ``90 min`` or ``45 s``."""
    for unit_s, unit in ((3600, "h"), (60, "min")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g} {unit}"
    return f"{seconds:g} s"


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"
