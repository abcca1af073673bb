"""States of an experiment and of the cluster, computed from their event logs.

The code has no side effects. Controller, notebook, page, command line and replay share it, so they cannot disagree.
"""

from cerebro.state.cluster import ClusterState
from cerebro.state.experiment import ExperimentState
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.model import Model, ModelState
from cerebro.state.models.positions import position_of
from cerebro.state.repair import repair_state
from cerebro.state.reports.schedule_report import (
    ScheduleNow,
    epoch_report,
    gap,
    plan_line,
    schedule_lines,
    schedule_now,
)
from cerebro.state.reports.sharing import QueuePosition, queue_position_of, queue_positions
from cerebro.state.reports.timeline import schedule_of
from cerebro.state.reports.wait_reasons import explained, lost_because, reason_to_wait, waiting_for
from cerebro.state.runs.commands import CommandRecord
from cerebro.state.runs.run import Dataset, Run, RunState
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.task import Task, TaskState
from cerebro.state.workers import Worker

__all__ = [
    "ClusterState",
    "CommandRecord",
    "CompletedSubEpoch",
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
    "repair_state",
    "schedule_lines",
    "schedule_now",
    "schedule_of",
    "waiting_for",
]
