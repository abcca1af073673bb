"""Whether anybody uses the cluster: runs that are open and could go on if they had workers. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from cerebro.state import ExperimentState, Run, RunState


class Use(NamedTuple):
    """What runs want of the cluster.

    Attributes:
        is_used: whether one could go on that is not paused.
        is_full: whether one is paused until there is free space: workers tell how much there is, so one is to stay.
        is_sure: whether that is so; else it may turn out that nobody does.
        wished_at: when one of these was requested, or last went on, in seconds; infinity: that is not known.
        runs: those that could go on, as far as they are known.
    """

    is_used: bool
    wished_at: float = math.inf
    runs: tuple[Run, ...] = ()
    is_full: bool = False
    is_sure: bool = True


def use_of(
    states: Iterable[ExperimentState], open_runs: Collection[Run], queued: int, *, is_known: bool = True
) -> Use:
    """What is wanted now. A run that waits for another one of its experiment wants nothing beside that: behind one that
    is paused it would not go on.

    Args:
        states: of the experiments that are worked on.
        open_runs: runs of these that wait for no other one.
        queued: open runs of all experiments.
        is_known: whether the states are those of now.
    """
    runs = tuple(run for run in open_runs if run.state is not RunState.PAUSED)
    full = [run for run in open_runs if run.state is RunState.PAUSED and (run.needs_bytes or run.full_volume)]
    used, waiting, times = {id(run) for run in runs}, 0, [_wished(run) for run in (*runs, *full)]
    for state in states:
        going_on = {run.id for run in state.going_on()}
        behind = [run for run in state.open_runs() if run.id not in going_on]
        waiting += len(behind)
        if any(id(state.runs[name]) in used for name in going_on):
            times += [_wished(run) for run in behind]
    is_more = not is_known or queued - waiting > len(open_runs)
    return Use(
        is_used=bool(runs) or is_more,
        wished_at=math.inf if is_more else max(times, default=-math.inf),
        runs=runs,
        is_full=bool(full),
        is_sure=bool(runs) or is_known,
    )


def _wished(run: Run) -> float:
    """When somebody wanted it to go on, the last time; of one that is paused, since when it waits for that."""
    times = [time for spans in (run.pauses, run.breaks) for span in spans[-1:] for time in span]
    return max([run.requested, *(time for time in times if time < math.inf)])
