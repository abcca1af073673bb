"""Random histories: the invariants hold, and incremental counts equal recounted ones."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import TaskAssigned, TaskCommitted, TaskFailed, TaskRevoked, TaskStarted
from cerebro.state import Model, ModelState, Run, TaskState
from cerebro.state.experiment import fold
from cerebro.state.reports.makespan_bound import lower_bound
from cerebro.state.reports.timeline import committed, running, task_attempts
from tests.state.histories import History
from tests.state.soundness import assert_sound


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    validated=st.booleans(),
    epochs=st.integers(1, 3),
    devices=st.integers(1, 3),
    has_parallel_plans=st.booleans(),
    workers=st.integers(2, 4),
    has_gangs=st.booleans(),
)
def test_invariants_and_counts_hold_for_any_history(
    seed: int,
    validated: bool,
    epochs: int,
    devices: int,
    has_parallel_plans: bool,
    workers: int,
    has_gangs: bool,
) -> None:
    """Models and runs stop, resume and retry, with and without gangs; replaying the log gives the same state."""
    history = History(
        Random(seed),
        validated=validated,
        epochs=epochs,
        devices=devices,
        models=2 + devices,
        has_parallel_plans=has_parallel_plans,
        workers=workers,
        has_gangs=has_gangs,
    )
    for number in range(150):
        history.step()
        assert_sound(history.state)
        assert_stopped_models_can_go_on(history.run)
        if number % 10 == 0:
            assert_counted(history)
    assert_counted(history)
    stored = [
        TaskAssigned.model_validate_json(event.model_dump_json())
        if isinstance(event, TaskAssigned)
        else event
        for event in history.log
    ]
    assert fold("one", stored) == history.state


def assert_stopped_models_can_go_on(run: Run) -> None:
    """A resumable model must not have a failed sub-epoch, which could never be assigned again."""
    for task in run.tasks.by_key.values():
        if task.key.kind == "train" and task.state is TaskState.FAILED:
            assert run.models[task.key.model or ""].state is ModelState.FAILED


def assert_counted(history: History) -> None:
    """Check sums, extremes, means and best epochs against the sub-epochs, and attempts against the log."""
    run, now = history.run, history.time
    seconds: defaultdict[str, float] = defaultdict(float)
    for sub_epoch in committed(run):
        for worker, devices in sub_epoch.places:
            seconds[worker] += sub_epoch.seconds * len(devices)
    assert run.device_time.trained_s == pytest.approx(dict(seconds))
    completed_sub_epochs = [completed for model in run.models.values() for completed in model.sub_epochs]
    waited = (
        (w, v.started, v.begun, 1)
        for v in completed_sub_epochs
        if v.timings.start_s
        for w, devices in v.places
        for _ in devices
    )
    assert sorted(run.device_time.starts) == sorted(waited)
    assert all(v.started <= v.begun <= v.ended for v in completed_sub_epochs)
    assert run.clock.newest_commit == max((sub_epoch.ended for sub_epoch in committed(run)), default=0.0)
    for model in run.models.values():
        assert model.effort.trained_s == pytest.approx(
            sum(completed.seconds for completed in model.sub_epochs)
        )
        assert model.effort.compute_s == pytest.approx(
            sum(completed.timings.compute_s for completed in model.sub_epochs)
        )
        for mode in ("min", "max"):
            known = naive_scores(model, validated=run.is_validated)
            assert model.scores("loss", validated=run.is_validated) == pytest.approx(known)
            assert model.best_epoch("loss", mode, validated=run.is_validated) == naive_best(known, mode)
    sub_epochs = [*committed(run), *running(run, now)]
    by_model: Counter[str] = Counter()
    by_worker: Counter[str] = Counter()
    for sub_epoch in sub_epochs:
        by_model[sub_epoch.model] += sub_epoch.seconds  # type: ignore[assignment]
        for worker, taken in sub_epoch.places:
            by_worker[worker] += sub_epoch.seconds * len(taken)  # type: ignore[assignment]
    most = {worker.name: worker.most_devices for worker in history.state.workers.values()}
    shared = [seconds / most[name] for name, seconds in by_worker.items()]
    assert lower_bound(run, now, most) == pytest.approx(max([*by_model.values(), *shared], default=0.0))
    assert_attempts_are_those_of_the_log(history)


def assert_attempts_are_those_of_the_log(history: History) -> None:
    """Check the worker, times and outcome of each attempt."""
    started: dict[tuple[str, int], float] = {}
    ended: dict[tuple[str, int], float] = {}
    expected, redone = {}, Counter[str]()
    first = math.inf
    for event in history.log:
        match event:
            case TaskAssigned():
                expected[event.task, event.attempt] = (
                    event.worker,
                    event.devices,
                    event.parallel_plan,
                    event.other_members,
                )
            case TaskStarted():
                if "/train/" in event.task:
                    redone[event.task.split("/")[2]] += any(task == event.task for task, _ in started)
                started[event.task, event.attempt] = event.time
                first = min(first, event.time if "/train/" in event.task else math.inf)
            case TaskCommitted() | TaskFailed() | TaskRevoked():
                ended[event.task, event.attempt] = event.time
    found = list(task_attempts(history.run))
    assert {
        (str(t.key), a.number): (a.worker, a.devices, a.parallel_plan, a.other_members)
        for t in found
        for a in (t.attempt,)
    } == expected
    assert len(found) == len(expected)
    for t in found:
        name = str(t.key), t.attempt.number
        assert (t.attempt.started, t.attempt.ended) == (started.get(name, 0.0), ended.get(name, 0.0))
        assert t.attempt.has_run == (name in started)
    assert history.run.clock.first_start == first
    for model in history.run.models.values():
        assert model.effort.repeated_attempts == redone[model.id]


def naive_scores(model: Model, *, validated: bool) -> dict[int, float]:
    """Compute each epoch's loss straight from the definition."""
    found = {}
    for epoch in range(1, model.epochs + 1):
        sub_epochs = [sub_epoch for sub_epoch in model.sub_epochs if sub_epoch.epoch == epoch]
        if {p for sub_epoch in sub_epochs for p in sub_epoch.partitions} != set(model.partitions):
            break
        if validated:
            value = model.validation.metrics.get(epoch, {}).get("loss", math.nan)
        elif all("loss" in sub_epoch.returned.metrics for sub_epoch in sub_epochs):
            rows = sum(sub_epoch.rows for sub_epoch in sub_epochs) or 1
            value = (
                sum(sub_epoch.returned.metrics["loss"] * sub_epoch.rows for sub_epoch in sub_epochs) / rows
            )
        else:
            value = math.nan
        if math.isfinite(value):
            found[epoch] = value
    return found


def naive_best(known: dict[int, float], mode: str) -> int | None:
    """Return the earliest of the best epochs."""
    best = None
    for epoch, value in known.items():
        if best is None or (value < known[best] if mode == "min" else value > known[best]):
            best = epoch
    return best
