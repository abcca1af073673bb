"""What users ask of a fit beside its models, checked before anything is sent."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from cerebro.client.goals import Budget, goal
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
        ({"budget": Budget(worker_hours=0)}, "budget is 0 worker-hours, expected more than 0"),
        ({"budget": Budget(worker_hours=float("nan"))}, "expected more than 0"),
        ({"budget": 40}, r"budget is 40, expected .*Budget\(worker_hours=40\)"),
        ({"workers": (8, 2)}, r"workers is \(8, 2\), expected .*: from 1 to"),
        ({"workers": (0, 2)}, "from 1 to 1000"),
        ({"workers": 4}, r"such as workers=\(2, 12\)"),
        (
            {"workers": (2, 12)},
            "but this cluster may have 8: lower the maximum, or raise autoscaler.mostWorkers",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], said: str) -> None:
    """Each with its name, what was expected and what to do."""
    asked: dict[str, Any] = {"finish_by": None, "budget": None, "workers": None, **given}
    with pytest.raises(DataError, match=said):
        goal(**asked, now=NOW, max_workers=8)


def test_a_goal_is_what_was_asked_for() -> None:
    """A time span counts from now; a time in any zone is one time."""
    zone = datetime.timezone(datetime.timedelta(hours=2))
    moment = datetime.datetime.fromtimestamp(NOW + 7200, zone)
    made = goal(moment, Budget(worker_hours=40), (2, 8), now=NOW, max_workers=8)
    assert made == Goal(finish_by=NOW + 7200, worker_hours=40, workers=(2, 8))
    span = goal(datetime.timedelta(hours=1), None, None, now=NOW)
    assert span == Goal(finish_by=NOW + 3600)
    assert goal(None, None, None, now=NOW) == Goal()
