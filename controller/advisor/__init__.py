"""Looks for a better order than dispatch gives, beside training: a planner first, then an exact solver."""

from controller.advisor.advisor import Advisor, Helper, without_plan
from controller.advisor.process import ChildHelper

__all__ = ["Advisor", "ChildHelper", "Helper", "without_plan"]
