"""Tasks of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebro.state.tasks.task import Task, TaskState


@dataclass(kw_only=True, slots=True)
class RunTasks:
    """The tasks of a run by key."""

    by_key: dict[str, Task] = field(default_factory=dict)
    """Assigned tasks, and all tasks of ETL, test and prediction runs.

    A sub-epoch committed at its first attempt is only in its model; `Run.task` finds it too."""
    open: dict[str, Task] = field(default_factory=dict)
    """Tasks with an open attempt, in the order of assignment."""
    exhausted: set[str] = field(default_factory=set)
    """Keys of uncommitted tasks that ran out of memory."""
    is_fresh: bool = True
    """True until the first assignment."""
    replicas: dict[str, Task] = field(default_factory=dict)
    """Tasks that make a replica of a training partition on another worker, outside ETL runs."""

    def requested(self) -> list[Task]:
        """Return the tasks without `replicas`, which no user requested."""
        return [task for key, task in self.by_key.items() if key not in self.replicas]

    def observe_memory(self, key: str, task: Task) -> None:
        """Update `exhausted` after an attempt of a task has ended."""
        if task.exhausted and task.key.kind != "verify":
            is_done = task.state is TaskState.COMMITTED
            (self.exhausted.discard if is_done else self.exhausted.add)(key)
