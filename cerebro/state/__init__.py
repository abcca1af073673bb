"""States of an experiment and of the cluster, computed from their event logs.

The code has no side effects. Controller, notebook, page, command line and replay share it, so they cannot disagree.
"""

from cerebro.state.cluster import ClusterState
from cerebro.state.commands import CommandRecord
from cerebro.state.experiment import ExperimentState
from cerebro.state.keys import TaskKey
from cerebro.state.models import Model, ModelState
from cerebro.state.positions import position_of
from cerebro.state.repair import whole
from cerebro.state.report import ScheduleNow, epoch_report, gap, plan_line, schedule_lines, schedule_now
from cerebro.state.runs import Dataset, Run, RunState
from cerebro.state.sharing import QueuePosition, queue_position_of, queue_positions
from cerebro.state.tasks import Task, TaskState
from cerebro.state.timeline import schedule_of
from cerebro.state.visits import Visit
from cerebro.state.waiting import explained, lost_because, reason_to_wait, waiting_for
from cerebro.state.workers import Worker

__all__ = [
    "ClusterState",
    "CommandRecord",
    "Dataset",
    "ExperimentState",
    "Model",
    "ModelState",
    "QueuePosition",
    "Run",
    "RunState",
    "ScheduleNow",
    "Task",
    "TaskKey",
    "TaskState",
    "Visit",
    "Worker",
    "epoch_report",
    "explained",
    "gap",
    "lost_because",
    "plan_line",
    "position_of",
    "queue_position_of",
    "queue_positions",
    "reason_to_wait",
    "schedule_lines",
    "schedule_now",
    "schedule_of",
    "waiting_for",
    "whole",
]
