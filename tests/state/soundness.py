"""Invariants of model hopping that hold after each event."""

from __future__ import annotations

from collections import Counter

from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.runs import FitRequest
from cerebro.contract.tasks.failures import FailureKind
from cerebro.state import ExperimentState, ModelState, Run, TaskState


def assert_sound(state: ExperimentState) -> None:
    open_tasks = {str(t.key): t for run in state.runs.values() for t in run.tasks.open.values()}
    at_workers = {
        (key, worker.name, devices)
        for worker in state.workers.values()
        for key, devices in worker.open_tasks.items()
    }
    given = {(key, *place) for key, task in open_tasks.items() for place in task.attempts[-1].places}
    assert at_workers == given, "an open task is at all workers of its attempt, and at no other"
    for worker in state.workers.values():
        for slot in worker.slots:
            keys = worker.tasks_in(slot)
            assert len(keys) <= QUEUE_DEPTH
            running = [key for key in keys if open_tasks[key].state is TaskState.RUNNING]
            assert running == keys[: len(running)], "the running task is the oldest"
            assert len(running) <= 1, "a device runs one task at a time"
        for devices in worker.open_tasks.values():
            assert set(devices) <= set(worker.slots)
    for run in state.runs.values():
        assert_counted(run)
        for model in run.models.values():
            sub_epochs = [
                k for k, t in run.tasks.open.items() if t.key.model == model.id and t.key.kind == "train"
            ]
            assert sub_epochs == ([model.busy] if model.busy else []), (
                "isolation: one open sub-epoch per model"
            )
            there = range(model.compacted_epochs + 1, model.epochs + 1)
            assert [v for epoch in there for v in model.epoch_sub_epochs(epoch)] == model.sub_epochs.recent
            assert len(model.summaries) == model.compacted_epochs
            for epoch in there:
                completed_sub_epochs = model.epoch_sub_epochs(epoch)
                assert all(sub_epoch.epoch == epoch for sub_epoch in completed_sub_epochs)
                trained = [
                    partition for sub_epoch in completed_sub_epochs for partition in sub_epoch.partitions
                ]
                assert len(set(trained)) == len(trained), "no partition twice in an epoch"
                assert set(trained) <= set(model.partitions)
                assert (epoch <= model.completed_epochs) == (len(trained) == len(model.partitions))
                assert set(model.remaining).isdisjoint(trained) or epoch != model.epoch


def assert_counted(run: Run) -> None:
    """Check that the fold's counters equal recounted values."""
    counts, models = run.counts, run.models.values()
    assert counts.sub_epochs == sum(len(model.sub_epochs) for model in models)
    assert counts.active == sum(model.state is ModelState.ACTIVE for model in models)
    assert counts.reached == Counter(m.completed_epochs for m in models if not m.is_cut_short)
    assert all(counts.reached.values())
    assert counts.struck == sum(len(model.failures.ruled_out) for model in models)
    full = FailureKind.OUT_OF_MEMORY
    assert counts.overflowed == {
        m.id for m in models if any(s.kind is full for s in m.failures.ruled_out.values())
    }
    due = [
        m for m in models if m.state is ModelState.ACTIVE and len(m.validation.metrics) < m.completed_epochs
    ]
    assert counts.in_order(counts.unvalidated) == [model.id for model in due if run.is_validated]
    for model in due if run.is_validated else ():
        epochs = [e for e in range(1, model.completed_epochs + 1) if e not in model.validation.metrics]
        assert [*counts.unvalidated[model.id]] == epochs
    if isinstance(run.request, FitRequest):
        if not run.is_validated:
            firsts = [m for m in models if m.sub_epochs and m.sub_epochs.knows(0)]
            assert all(m.returns == m.sub_epochs[0].returned.names for m in firsts)
        assert not counts.pending
        return
    requested = run.tasks.requested()
    assert counts.pending == {str(t.key): t for t in requested if t.state is TaskState.PENDING}
    done = [a for task in requested for a in task.attempts if a.outcome == "committed"]
    assert counts.committed == len(done)
    assert abs(counts.committed_s - sum(a.ended - a.started for a in done)) < 1e-6
    assert counts.unfinished == sum(task.state is not TaskState.COMMITTED for task in requested)
