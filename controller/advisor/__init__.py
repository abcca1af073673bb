"""Looks for a better order than dispatch gives, beside training: a planner first, then an exact solver."""

from controller.advisor.advisor import Advisor, Helper
from controller.advisor.process import ChildHelper

__all__ = ["Advisor", "ChildHelper", "Helper"]
