"""The client checks the limits of a fit before it sends a request."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from cerebro.client.limits import Budget, Limits, goal, wait_limit_s
from cerebro.contract.runs import Goal
from cerebro.errors import DataError

NOW = 1_800_000_000.0
UTC = datetime.UTC


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"finish_by": datetime.datetime(2027, 1, 15, 9)}, "without a time zone"),
        (
            {"finish_by": datetime.datetime(2026, 1, 1, tzinfo=UTC)},
            "in the past: it is 2027-01-15T08:00:00",
        ),
        ({"finish_by": datetime.timedelta(hours=-1)}, "expected a time span above 0"),
        ({"finish_by": "tonight"}, "expected a datetime with a time zone"),
        ({"budget": 40}, r"budget is 40, expected .*Budget\(worker_hours=40\)"),
        ({"hours": 0}, "hours is 0, expected a positive number"),
        ({"hours": "two"}, "hours is 'two', expected a positive number"),
        ({"hours": float("nan")}, "hours is nan"),
        ({"hang_timeout_s": float("inf")}, "hang_timeout_s is inf, expected a finite number above 0"),
        ({"max_attempts": 0}, "max_attempts is 0, expected a finite number above 0"),
        ({"workers": (8, 2)}, r"workers is \(8, 2\), expected .*: from 1 to"),
        ({"workers": (0, 2)}, "from 1 to 1000"),
        ({"workers": 4}, r"such as workers=\(2, 12\)"),
        (
            {"workers": (2, 12)},
            "but this cluster may have 8: lower the maximum, or raise autoscaler.mostWorkers",
        ),
    ],
)
def test_limits_that_are_out_of_range_are_refused(given: dict[str, Any], said: str) -> None:
    """The error has the name, the value and the expectation."""
    with pytest.raises(DataError, match=said):
        goal(Limits(**given), now=NOW, max_workers=8)


@pytest.mark.parametrize("hours", [0, float("nan"), True, "40"])
def test_a_budget_is_a_positive_number_of_worker_hours(hours: Any) -> None:
    """The error has the value and an example."""
    with pytest.raises(
        DataError, match=r"worker-hours, expected more than 0, such as Budget\(worker_hours=40\)"
    ):
        Budget(worker_hours=hours)


def test_the_goal_has_the_limits_in_seconds_since_the_epoch() -> None:
    """A time span counts from now; time zones are converted."""
    zone = datetime.timezone(datetime.timedelta(hours=2))
    moment = datetime.datetime.fromtimestamp(NOW + 7200, zone)
    limits = Limits(finish_by=moment, budget=Budget(worker_hours=40), workers=(2, 8))
    run_goal = goal(limits, now=NOW, max_workers=8)
    assert run_goal == Goal(finish_by=NOW + 7200, worker_hours=40, workers=(2, 8))
    span = goal(Limits(finish_by=datetime.timedelta(hours=1)), now=NOW)
    assert span == Goal(finish_by=NOW + 3600)
    assert goal(Limits(), now=NOW) == Goal()


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("2h", 7200.0),
        ("1h30m", 5400.0),
        ("1 d", 86_400.0),
        ("45s", 45.0),
        (90, 90.0),
        (datetime.timedelta(minutes=3), 180.0),
        (None, None),
    ],
)
def test_a_wait_limit_is_text_seconds_or_a_timedelta(limit: Any, seconds: float | None) -> None:
    """All become seconds."""
    assert wait_limit_s(Limits(wait_limit=limit).wait_limit) == seconds


@pytest.mark.parametrize("limit", ["2 hours", "h", "", "-2h", "2h or more", 0, -1, True, float("inf"), "0s"])
def test_other_wait_limits_are_refused(limit: Any) -> None:
    """The error has the value and examples."""
    with pytest.raises(DataError, match=r"wait_limit is .*, expected a time span above 0, such as '2h'"):
        Limits(wait_limit=limit)
