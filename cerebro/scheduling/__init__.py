"""Scheduling of models on workers: problems, policies, plans, exact solvers and a validator of schedules.

Pure computation. The controller dispatches with `policies` and plans with `planning`, in its planner process; notebooks
and research import the names below. Only the exact solvers need more than the standard library. It has no knowledge
of experiments, tasks or the store. Importing the package loads none of its modules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cerebro.scheduling.bounds import lower_bound
    from cerebro.scheduling.problem import Problem, TimedPlan, multi_gpu, open_shop
    from cerebro.scheduling.schedule import Placement, Schedule
    from cerebro.scheduling.validator import Report, validate

__all__ = [
    "Placement",
    "Problem",
    "Report",
    "Schedule",
    "TimedPlan",
    "lower_bound",
    "multi_gpu",
    "open_shop",
    "validate",
]

_HOMES = {
    "Placement": "schedule",
    "Problem": "problem",
    "Report": "validator",
    "Schedule": "schedule",
    "TimedPlan": "problem",
    "lower_bound": "bounds",
    "multi_gpu": "problem",
    "open_shop": "problem",
    "validate": "validator",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
