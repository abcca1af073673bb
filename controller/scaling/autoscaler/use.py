"""Use of the cluster: open runs that could continue with workers. Pure.

`controller.loop.scaling` calls it in each round; `controller.scaling.autoscaler.scale_to_zero` decides by the result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from cerebro.state import ExperimentState, Run, RunState


class Use(NamedTuple):
    """Demand of runs for the cluster.

    Attributes:
        is_used: True if an unpaused run could continue.
        is_full: True if a run is paused for free space: one worker must stay to report it.
        is_sure: False if the states are incomplete and there may be no use.
        wished_at: time of the newest request or resumption of these runs; infinity if unknown.
        runs: known runs that could continue.
    """

    is_used: bool
    wished_at: float = math.inf
    runs: tuple[Run, ...] = ()
    is_full: bool = False
    is_sure: bool = True


def use_of(
    states: Iterable[ExperimentState], open_runs: Collection[Run], queued: int, *, is_known: bool = True
) -> Use:
    """Return the present demand.

    A run that waits for another one of its experiment adds none: behind a paused run it would not start.

    Args:
        states: states of the active experiments.
        open_runs: their runs that wait for no other.
        queued: number of open runs of all experiments.
        is_known: True if the states are current.
    """
    runs = tuple(run for run in open_runs if run.state is not RunState.PAUSED)
    full = [
        run
        for run in open_runs
        if run.state is RunState.PAUSED and (run.pause.needs_bytes or run.pause.volume)
    ]
    used, waiting, times = {id(run) for run in runs}, 0, [_requested_at(run) for run in (*runs, *full)]
    for state in states:
        going_on = {run.id for run in state.going_on()}
        behind = [run for run in state.open_runs() if run.id not in going_on]
        waiting += len(behind)
        if any(id(state.runs[name]) in used for name in going_on):
            times += [_requested_at(run) for run in behind]
    is_more = not is_known or queued - waiting > len(open_runs)
    return Use(
        is_used=bool(runs) or is_more,
        wished_at=math.inf if is_more else max(times, default=-math.inf),
        runs=runs,
        is_full=bool(full),
        is_sure=bool(runs) or is_known,
    )


def _requested_at(run: Run) -> float:
    """Return when a run was last wanted; of a paused one, since when it waits."""
    times = [time for spans in (run.clock.pauses, run.clock.breaks) for span in spans[-1:] for time in span]
    return max([run.clock.requested, *(time for time in times if time < math.inf)])
