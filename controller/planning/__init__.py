"""The planner process: orders of sub-epochs computed in advance, outside the loop.

`planner_process` runs in the controller; `process` starts the child, `child` and `answering` run in it.
"""

from controller.planning.planner_process import BackgroundProcess, PlannerProcess, without_plan
from controller.planning.process import SpawnedProcess

__all__ = ["BackgroundProcess", "PlannerProcess", "SpawnedProcess", "without_plan"]
