"""Schedule quality of a fit run: makespan, lower bound, gap and idle time, as numbers and text. Pure.

The log is the only source, so controller, notebook, page and command line agree. The bound uses the measured sub-epoch
times and the actual workers: no other order could have ended earlier. Breaks (`cerebro.state.runs.breaks`) stop the
run's clock. Device time of other runs is absence, not idle time, and the bound (`cerebro.state.reports.makespan_bound`)
accounts for it.

Process starts are reported apart from sub-epochs. The makespan begins with the first sub-epoch's own work. A later
process start delays the run: it adds to the makespan and not to the bound, so it appears in the gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cerebro.contract.events import EpochCompleted
from cerebro.contract.runs import FitPlan
from cerebro.state.experiment import ExperimentState
from cerebro.state.models import parallel_plans
from cerebro.state.models.model import Model
from cerebro.state.reports import state_words
from cerebro.state.reports.makespan_bound import lower_bound, lower_bound_until
from cerebro.state.reports.timeline import busy, busy_without_sub_epochs, lost, running, starts
from cerebro.state.runs import breaks
from cerebro.state.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class ScheduleNow:
    """Schedule quality of a fit run until now. Times in seconds.

    Attributes:
        epoch, epochs: current epoch of the slowest model, and the number of epochs. If models may be added: epoch of
            the fastest model, and the largest resource.
        makespan_s: from the first sub-epoch's own work until now, or to the last commit of a complete run.
        lower_bound_s: training time of the longest model or the busiest worker, whichever is larger. Includes running
            sub-epochs; a worker's time is divided by its devices.
        idle_s, device_s: device time without a task, and device time of present workers.
        start_s: device time of process starts and imports.
        taken_s: device time of other runs: absence, neither idle nor in `device_s`.
        lost_s: device time of uncommitted attempts at sub-epochs; in the makespan, not in the bound.
        is_growing: True if sub-epochs remain or may be added.
    """

    epoch: int
    epochs: int
    makespan_s: float
    lower_bound_s: float
    idle_s: float
    device_s: float
    start_s: float
    taken_s: float
    lost_s: float
    is_growing: bool

    @property
    def gap(self) -> float:
        """Excess of the makespan over the bound, as a share of the bound."""
        return gap(self.makespan_s, self.lower_bound_s)

    @property
    def idle_share(self) -> float:
        """Idle share of the device time."""
        return self.idle_s / self.device_s if self.device_s else 0.0


def gap(makespan_s: float, lower_bound_s: float) -> float:
    """Return the excess of a makespan over its bound, as a share; 0 without a bound."""
    return max(0.0, makespan_s / lower_bound_s - 1) if lower_bound_s > 0 else 0.0


def epoch_report(state: ExperimentState, run: Run, epoch: int) -> EpochCompleted:
    """Report on the schedule until all active models have trained `epoch`.

    Args:
        run: a fit run of `state` with reports on all earlier epochs.
        epoch: from 1.
    """
    # Over all epochs up to this one: a model that has ended may have finished last.
    end = max((ended for known, ended in run.scheduling.epoch_ends.items() if known <= epoch), default=0.0)
    zero = run.zero if end else end
    begin = moment(run, zero, run.scheduling.epochs[epoch - 2].makespan_s) if epoch > 1 else zero
    return EpochCompleted(
        run=run.id,
        epoch=epoch,
        makespan_s=run.clock.open_s(zero, end),
        lower_bound_s=lower_bound_until(run, end, _devices(state, run)),
        idle_s=_idle(state, run, begin, end),
        start_s=max(0.0, _start_s(run) - sum(report.start_s for report in run.scheduling.epochs)),
    )


def schedule_now(state: ExperimentState, run: Run, now: float) -> ScheduleNow | None:
    """Report on the schedule until `now` (the store's clock); `None` without a started sub-epoch."""
    zero = run.zero
    if not math.isfinite(zero):
        return None
    models = [model for model in run.models.values() if not model.is_cut_short]
    is_growing = run.is_open and not (run.has_known_end and all(model.is_trained for model in models))
    begun = [sub_epoch.ended for sub_epoch in running(run, now)]
    latest = run.clock.worked if breaks.is_deserted(run, state.workers.values()) else now
    end = max([zero, run.clock.newest_commit, *begun, *([latest] if is_growing else [])])
    begin = moment(run, zero, run.scheduling.epochs[-1].makespan_s) if run.scheduling.epochs else zero
    idle_s = sum(sum(report.idle_s.values()) for report in run.scheduling.epochs)
    idle_s += sum(_idle(state, run, begin, end).values())
    return ScheduleNow(
        epoch=_present_epoch(run, models),
        epochs=max((model.epochs for model in run.models.values()), default=0),
        makespan_s=run.clock.open_s(zero, end),
        lower_bound_s=lower_bound(run, now, _devices(state, run)),
        idle_s=idle_s,
        # CompletedSubEpochs lie within the makespan, except for process starts; other tasks may not.
        device_s=idle_s
        + sum(run.device_time.trained_s.values())
        + sum(
            run.clock.open_s(max(zero, since), until) / sharing
            for _, since, until, sharing in run.device_time.starts
        )
        + sum(
            t.num_devices * run.clock.open_s(max(zero, t.started), min(t.ended, end))
            for t in busy_without_sub_epochs(run, end)
        ),
        start_s=_start_s(run),
        taken_s=sum(run.device_time.taken_s(name, zero, end, run.clock) for name in run.device_time.taken),
        lost_s=sum(
            t.num_devices * run.clock.open_s(max(zero, t.started), max(zero, t.ended)) for t in lost(run)
        ),
        is_growing=is_growing,
    )


def _present_epoch(run: Run, models: Sequence[Model]) -> int:
    if run.has_known_models:
        return min((model.epoch for model in models), default=max(1, len(run.scheduling.epochs)))
    return max((model.epoch for model in run.models.values()), default=1)


def _devices(state: ExperimentState, run: Run) -> dict[str, int]:
    """Devices of each worker that could train for the run, or did."""
    held = _held(run)
    return {
        worker.name: worker.most_devices
        for worker in state.workers.values()
        if worker.name in run.device_time.trained_s
        or (worker.trains and not held.isdisjoint(worker.replicas))
    }


def _held(run: Run) -> set[tuple[str, int]]:
    assert isinstance(run.plan, FitPlan)
    return {(run.plan.dataset, partition) for partition in run.plan.partitions}


def moment(run: Run, zero: float, seconds: float) -> float:
    """Return the time `seconds` after `zero` in the run's clock, which skips breaks."""
    at = zero + seconds
    for since, until in run.clock.breaks:
        at += until - since if zero <= since < at else 0.0
    return at


# --- texts ---------------------------------------------------------------------------------------


def schedule_lines(state: ExperimentState, run: Run, now: float) -> list[str]:
    """Describe the schedule until now, the plan in use and the parallel plans."""
    found = schedule_now(state, run, now)
    if found is None:
        return []
    so_far = " so far" if found.is_growing else ""
    lines = [
        f"schedule: {found.makespan_s:.1f} s{so_far}, at best {found.lower_bound_s:.1f} s "
        f"({_gap_text(found)}), "
        f"idle {found.idle_s:.1f} s of {found.device_s:.1f} device-seconds; {_reached(run, found)}"
    ]
    if found.start_s:
        lines.append(f"process starts: {found.start_s:.1f} device-seconds, which are no part of sub-epochs")
    if found.taken_s:
        lines.append(
            f"other runs had {found.taken_s:.1f} device-seconds of its workers, which count as absence"
        )
    if found.lost_s:
        lines.append(
            f"attempts that did not commit had {found.lost_s:.1f} device-seconds, which the best does not count"
        )
    plan = plan_line(run)
    return [*lines, *([plan] if plan else []), *parallel_plans.lines(run)]


def _gap_text(found: ScheduleNow) -> str:
    """The gap; in seconds after lost attempts, because a share would not describe the schedule."""
    if found.lost_s:
        return f"{max(0.0, found.makespan_s - found.lower_bound_s):.1f} s longer, with lost attempts"
    return f"gap {100 * found.gap:.1f} %"


def _reached(run: Run, found: ScheduleNow) -> str:
    return f"epoch {found.epoch} of {found.epochs}" if run.has_known_models else state_words.trained(run)


def plan_line(run: Run) -> str:
    """Describe the plan a run follows and its gain, if any."""
    plan = run.scheduling.planned
    if plan is None or not plan.order:
        return ""
    verb = "follows" if run.is_open else "followed"
    return f"{verb} a plan of {plan.source}: {plan.makespan_s:.1f} s instead of {plan.dispatch_s:.1f} s"


# --- sums ----------------------------------------------------------------------------------------


def _start_s(run: Run) -> float:
    return sum((start.ended - start.started) / start.sharing for start in starts(run))


def _idle(state: ExperimentState, run: Run, begin: float, end: float) -> dict[str, float]:
    """Idle device-seconds between two times, for each worker that could train.

    Counts only the time a worker was present; for a returned worker, only since it last joined.
    """
    held = _held(run)
    there: dict[str, tuple[float, float]] = {}
    for worker in state.workers.values():
        since, until = max(worker.joined, begin), end if worker.is_alive else min(worker.since, end)
        if since < until and worker.trains and not held.isdisjoint(worker.replicas):
            there[worker.name] = since, until
    idle = {
        name: state.workers[name].devices * run.clock.open_s(since, until)
        - run.device_time.taken_s(name, since, until, run.clock)
        for name, (since, until) in there.items()
    }
    # Item by item, because there may be very many attempts.
    for attempt in busy(run, end, since=begin):
        if (name := attempt.worker) in there:
            since, until = there[name]
            open_s = run.clock.open_s(max(attempt.started, since), min(attempt.ended, until))
            idle[name] -= attempt.num_devices * open_s
    for name in there:
        joined, compacted_s = run.device_time.compacted_s.get(name, (0.0, 0.0))
        if joined == state.workers[name].joined:
            idle[name] -= compacted_s
    return {name: max(0.0, seconds) for name, seconds in idle.items()}
