"""What has happened in an experiment: the fold of its event log.

Pure and without effects: the controller decides on it, notebook, page and command line show it, replay reads
its visits. One fold for all of them, so they cannot disagree.
"""

from cerebro.state.experiment import ExperimentState, Worker
from cerebro.state.keys import TaskKey
from cerebro.state.models import Model, ModelState, Visit
from cerebro.state.runs import Dataset, Run, RunState
from cerebro.state.tasks import Task, TaskState
from cerebro.state.waiting import waiting_for

__all__ = [
    "Dataset",
    "ExperimentState",
    "Model",
    "ModelState",
    "Run",
    "RunState",
    "Task",
    "TaskKey",
    "TaskState",
    "Visit",
    "Worker",
    "waiting_for",
]
