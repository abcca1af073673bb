"""What holds after every event of every log: the invariants of model hopping, as the state shows them."""

from __future__ import annotations

from cerebro.state import ExperimentState, TaskState
from cerebro.state.workers import QUEUE_DEPTH


def assert_sound(state: ExperimentState) -> None:
    """The invariants that hold after every event."""
    open_tasks = {str(t.key): t for run in state.runs.values() for t in run.open_tasks()}
    at_workers = [key for worker in state.workers.values() for key in worker.open_tasks]
    assert sorted(at_workers) == sorted(open_tasks), "each open task is at exactly one worker"
    for worker in state.workers.values():
        assert len(worker.open_tasks) <= QUEUE_DEPTH
        running = [k for k in worker.open_tasks if open_tasks[k].state is TaskState.RUNNING]
        assert running == worker.open_tasks[: len(running)], "the running task is the oldest"
        assert len(running) <= 1, "a worker runs one task at a time"
    for run in state.runs.values():
        for model in run.models.values():
            units = [k for k, t in run.open.items() if t.key.model == model.id and t.key.kind == "train"]
            assert units == ([model.busy] if model.busy else []), "isolation: one open unit per model"
            assert len(model.visits) <= model.epochs * len(model.partitions)
            for epoch in range(1, model.epochs + 1):
                visited = [visit.partition for visit in model.epoch_visits(epoch)]
                assert len(set(visited)) == len(visited), "no partition twice in an epoch"
