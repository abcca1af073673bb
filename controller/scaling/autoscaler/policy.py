"""The number of workers for a run: a pure function of forecast ends, goal and past changes.

`controller.scaling.autoscaler.autoscaler` calls `candidates` before a forecast, and `choose` and `size_to_request`
after it. The price is worker-hours: `n` workers until `T` cost ``n x T``. A goal's budget has precedence over its end.
Without a goal, an hour of waiting is worth `hour_of_waiting` worker-hours.

Advice is free; changes cost joins and copies. So a change must gain a tenth and twice its cost. Changes are
at least five minutes apart, at most by a factor of two, downwards an hour after any change, and an hour after
a person's choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cerebro.contract.runs import Goal
from controller.scaling.autoscaler.ends import Ends

GAIN, COST = 0.1, 2.0
"""Minimum gain of a change: relative, and as a multiple of its cost."""
EVERY_S, SETTLED_S, HOLD_S = 300.0, 3600.0, 3600.0
"""Minimum seconds between changes; before a reduction; and after a person's choice."""

_DEADLINE_SHARE = 0.9
"""Workers are removed only if the run still ends within this share of the time until `finish_by`."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Inputs of a decision.

    Attributes:
        now: seconds since the epoch.
        workers: number of training workers.
        ends: number of workers -> end of the run.
        goal: the run's goal.
        spent_h: worker-hours used.
        least, most: limits of the number of workers.
        hour_of_waiting: worker-hours that one hour of waiting is worth.
        join_s, made_s: seconds until a worker joins or a copy is ready.
        changed_at, chosen_at: last change, and last choice by a person; minus infinity without one.
        is_changing: True while workers start or leave.
    """

    now: float
    workers: int
    ends: Mapping[int, Ends]
    goal: Goal
    spent_h: float = 0.0
    least: int = 1
    most: int = 1000
    hour_of_waiting: float = 4.0
    join_s: float = 0.0
    made_s: float = 0.0
    changed_at: float = -math.inf
    chosen_at: float = -math.inf
    is_changing: bool = False

    @property
    def bounds(self) -> tuple[int, int]:
        """Minimum and maximum number of workers: the run's, within the cluster's limits."""
        least, most = self.goal.workers or (self.least, self.most)
        most = max(1, min(most, self.most))
        return min(max(least, self.least), most), most

    def cost_h(self, count: int) -> float:
        """Return the worker-hours of the remaining work."""
        return count * self.ends[count].p50_s / 3600


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A number of workers; `is_kept` is True if it meets the goal."""

    workers: int
    is_kept: bool


def choose(situation: Situation) -> Choice:
    """Choose the best allowed number, independent of the present one."""
    least, most = situation.bounds
    counts = sorted(count for count in situation.ends if least <= count <= most)
    if not counts:
        return Choice(workers=min(max(situation.workers, least), most), is_kept=True)
    goal = situation.goal
    if goal == Goal(workers=goal.workers):
        return Choice(workers=min(counts, key=lambda n: (_worth(situation, n), n)), is_kept=True)
    payable = counts
    if goal.worker_hours is not None:
        left_h = goal.worker_hours - situation.spent_h
        payable = [n for n in counts if situation.cost_h(n) <= left_h]
        if not payable:
            return Choice(workers=min(counts, key=lambda n: (situation.cost_h(n), n)), is_kept=False)
    if goal.finish_by is None:
        return Choice(workers=min(payable, key=lambda n: (situation.ends[n].p50_s, n)), is_kept=True)
    in_time = [n for n in payable if _is_in_time(situation, n)]
    if in_time:
        return Choice(workers=min(in_time, key=lambda n: (situation.cost_h(n), n)), is_kept=True)
    return Choice(workers=min(payable, key=lambda n: (situation.ends[n].p90_s, n)), is_kept=False)


def size_to_request(situation: Situation, choice: Choice) -> int | None:
    """Return the number of workers to request now, or `None` for no change."""
    now, there = situation.now, situation.workers
    if situation.is_changing or there not in situation.ends or choice.workers == there:
        return None
    if now - situation.changed_at < EVERY_S or now - situation.chosen_at < HOLD_S:
        return None
    if choice.workers < there and now - situation.changed_at < SETTLED_S:
        return None  # no reduction soon after a change, to avoid oscillation
    least, most = situation.bounds
    wanted = min(max(choice.workers, math.ceil(there / 2)), 2 * there)
    wanted = _nearest(situation, wanted, choice.workers)
    wanted = min(max(wanted, least), most)
    if wanted == there or wanted not in situation.ends:
        return None
    return wanted if _pays(situation, wanted) else None


def _nearest(situation: Situation, wanted: int, chosen: int) -> int:
    """Return the simulated number nearest to the chosen one, between the present and the wanted number."""
    there = situation.workers
    on_way = [n for n in situation.ends if min(there, wanted) <= n <= max(there, wanted)]
    return min(on_way, key=lambda n: (abs(n - chosen), n), default=there)


def _pays(situation: Situation, wanted: int) -> bool:
    there, goal = situation.workers, situation.goal
    present_ends, wanted_ends = situation.ends[there], situation.ends[wanted]
    if goal.finish_by is not None and not _is_in_time(situation, there):
        if wanted > there:
            return wanted_ends.p90_s < present_ends.p90_s * (1 - GAIN)
        return False  # fewer workers do not help a late run
    if goal.finish_by is not None and wanted < there:
        left_s = goal.finish_by - situation.now
        if wanted_ends.p90_s > _DEADLINE_SHARE * left_s:
            return False
    cost_h = abs(wanted - there) * (situation.join_s + situation.made_s) / 3600
    gain_h, of_h = _gain(situation, wanted)
    return gain_h > GAIN * of_h and gain_h > COST * cost_h


def _gain(situation: Situation, wanted: int) -> tuple[float, float]:
    """Return (gain of a change, present cost), both in worker-hours."""
    there, goal = situation.workers, situation.goal
    if goal == Goal(workers=goal.workers):
        return _worth(situation, there) - _worth(situation, wanted), _worth(situation, there)
    if goal.finish_by is None:
        left_h = (goal.worker_hours or 0.0) - situation.spent_h
        if situation.cost_h(there) > left_h:
            return situation.cost_h(there) - situation.cost_h(wanted), situation.cost_h(there)
        present_h, wanted_h = (
            situation.ends[n].p50_s / 3600 * situation.hour_of_waiting for n in (there, wanted)
        )
        return present_h - wanted_h, present_h
    return situation.cost_h(there) - situation.cost_h(wanted), situation.cost_h(there)


def _worth(situation: Situation, count: int) -> float:
    """Return worker-hours plus the cost of waiting."""
    return (count + situation.hour_of_waiting) * situation.ends[count].p50_s / 3600


def _is_in_time(situation: Situation, count: int) -> bool:
    assert situation.goal.finish_by is not None
    return situation.now + situation.ends[count].p90_s <= situation.goal.finish_by


def candidates(workers: int, partitions: int, models: int, bounds: tuple[int, int]) -> list[int]:
    """Return numbers of workers to simulate, the most important first.

    Includes numbers outside the bounds, to report the cost of a goal.
    """
    least, most = bounds
    wanted = [workers, 2 * workers, math.ceil(workers / 2), workers + 1, workers - 1, least, most]
    wanted += [n for n in range(1, partitions + 1) if partitions % n == 0]
    wanted += [models, 3 * workers, 4 * workers, round(1.5 * workers), partitions * 2]
    cap = max(4 * workers, 2 * partitions, 4)
    return [n for n in dict.fromkeys(wanted) if 1 <= n <= cap]
