"""Looks for a better order than dispatch gives, beside training: a planner first, then an exact solver."""

from controller.planner_process.planner_process import Helper, PlannerProcess, without_plan
from controller.planner_process.process import ChildHelper

__all__ = ["ChildHelper", "Helper", "PlannerProcess", "without_plan"]
