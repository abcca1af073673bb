"""The autoscaler's choice of size, and when it requests it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.runs import Goal
from controller.scaling.autoscaler.ends import Ends
from controller.scaling.autoscaler.policy import (
    EVERY_S,
    HOLD_S,
    SETTLED_S,
    Choice,
    Situation,
    choose,
    size_to_request,
)

HOUR = 3600.0
NOW = 1_000_000.0
# Hours for a run of 16 worker-hours; more workers share it less efficiently.
HOURS = {1: 16.0, 2: 8.0, 4: 4.0, 8: 2.3, 16: 1.6}
ENDS = {count: Ends(hours * HOUR, 1.05 * hours * HOUR) for count, hours in HOURS.items()}


def situation(goal: Goal, workers: int = 4, **others: Any) -> Situation:
    """A run that has just started."""
    return Situation(now=NOW, workers=workers, ends=ENDS, goal=goal, most=16, **others)


@pytest.mark.parametrize(
    ("goal", "chosen"),
    [
        (Goal(finish_by=NOW + 5 * HOUR), Choice(workers=4, is_kept=True)),
        (Goal(finish_by=NOW + 2.5 * HOUR), Choice(workers=8, is_kept=True)),
        (Goal(finish_by=NOW + 20 * HOUR), Choice(workers=1, is_kept=True)),
        (Goal(finish_by=NOW + HOUR), Choice(workers=16, is_kept=False)),
        (Goal(finish_by=NOW + HOUR, workers=(1, 8)), Choice(workers=8, is_kept=False)),
        (Goal(worker_hours=19), Choice(workers=8, is_kept=True)),
        (Goal(worker_hours=30), Choice(workers=16, is_kept=True)),
        (Goal(worker_hours=10), Choice(workers=1, is_kept=False)),
        (Goal(worker_hours=17, finish_by=NOW + HOUR), Choice(workers=4, is_kept=False)),
        (Goal(worker_hours=19, finish_by=NOW + 5 * HOUR), Choice(workers=4, is_kept=True)),
        (Goal(), Choice(workers=8, is_kept=True)),
        (Goal(workers=(1, 4)), Choice(workers=4, is_kept=True)),
    ],
)
def test_the_cheapest_size_that_meets_the_goal_is_chosen(goal: Goal, chosen: Choice) -> None:
    """In order: the deadline at least cost, the fastest within budget, the budget before the deadline, and
    without a goal a balance of cost and time."""
    assert choose(situation(goal)) == chosen


def test_a_late_run_at_most_doubles_its_workers() -> None:
    """A later request adds the others."""
    run_situation = situation(Goal(finish_by=NOW + 1.7 * HOUR))
    assert choose(run_situation).workers == 16
    assert size_to_request(run_situation, choose(run_situation)) == 8


@pytest.mark.parametrize(
    "others",
    [
        {"changed_at": NOW - EVERY_S + 1},
        {"chosen_at": NOW - HOLD_S + 1},
        {"is_changing": True},
    ],
)
def test_no_size_is_requested_soon_after_a_change(others: dict[str, Any]) -> None:
    """Not within five minutes of a change, within an hour of a user's choice, or while workers start."""
    goal = Goal(finish_by=NOW + 2.5 * HOUR)
    assert size_to_request(situation(goal), choose(situation(goal))) == 8
    run_situation = situation(goal, **others)
    assert size_to_request(run_situation, choose(run_situation)) is None


def test_requested_workers_are_not_released_within_an_hour() -> None:
    """This prevents oscillation; a larger request is possible in between."""
    goal = Goal(finish_by=NOW + 6 * HOUR)
    lately = situation(goal, workers=8, changed_at=NOW - SETTLED_S + 1)
    assert size_to_request(lately, choose(lately)) is None
    late = situation(Goal(finish_by=NOW + 2.5 * HOUR), changed_at=NOW - SETTLED_S + 1)
    assert size_to_request(late, choose(late)) == 8


def test_workers_are_released_only_with_time_to_spare() -> None:
    """A run that finishes just in time keeps its workers."""
    tight, ample = Goal(finish_by=NOW + 4.3 * HOUR), Goal(finish_by=NOW + 6 * HOUR)
    assert choose(situation(tight, workers=8)).workers == 4
    assert size_to_request(situation(tight, workers=8), choose(situation(tight, workers=8))) is None
    assert size_to_request(situation(ample, workers=8), choose(situation(ample, workers=8))) == 4


number = st.floats(0, 1e6, allow_nan=False)


@settings(max_examples=200)
@given(
    workers=st.integers(1, 30),
    ends=st.dictionaries(st.integers(1, 60), st.tuples(number, number), max_size=8),
    finish_by=st.none() | st.floats(1, 2e6),
    hours=st.none() | st.floats(0.01, 1e4),
    bounds=st.none() | st.tuples(st.integers(1, 40), st.integers(1, 40)).map(lambda b: (min(b), max(b))),
    most=st.integers(1, 40),
    spent=st.floats(0, 1e5),
    costs=st.tuples(number, number),
    before=st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)),
)
def test_any_history_keeps_the_bounds(  # type: ignore[no-untyped-def]
    workers, ends, finish_by, hours, bounds, most, spent, costs, before
) -> None:
    """For any input: within the limits, at most doubled, at least half, and only simulated sizes."""
    goal = Goal(finish_by=finish_by, worker_hours=hours, workers=bounds)
    situation = Situation(
        now=1e6,
        workers=workers,
        ends={count: Ends(min(pair), max(pair)) for count, pair in ends.items()},
        goal=goal,
        spent_h=spent,
        most=most,
        join_s=costs[0],
        made_s=costs[1],
        changed_at=1e6 - before[0],
        chosen_at=1e6 - before[1],
    )
    choice = choose(situation)
    least, highest = situation.bounds
    assert 1 <= least <= highest <= most
    assert least <= choice.workers <= highest
    requested_size = size_to_request(situation, choice)
    if requested_size is not None:
        assert requested_size in situation.ends
        assert least <= requested_size <= highest
        assert requested_size != workers
        assert requested_size <= max(2 * workers, least)
        assert requested_size >= min(math.ceil(workers / 2), highest)
        assert before[0] >= EVERY_S
        assert before[1] >= HOLD_S
