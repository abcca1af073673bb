"""The planner process: orders of sub-epochs computed in advance, outside the loop.

`planner_process` runs in the controller; `process` starts the child, `child` and `answering` run in it.
"""

from controller.planning.planner_process import Helper, PlannerProcess, without_plan
from controller.planning.process import ChildHelper

__all__ = ["ChildHelper", "Helper", "PlannerProcess", "without_plan"]
