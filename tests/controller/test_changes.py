"""Users change, clone and extend models during a simulated fit; sub-epochs follow the log."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    ClientEvent,
    ModelChanged,
    ModelExtended,
    ModelsAdded,
    PriorityChanged,
    RunStarted,
    SchedulerChanged,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.runs import NewModel, ParentCheckpoint
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.scheduling.policies import POLICIES
from cerebro.state import ExperimentState, ModelState, Run, RunState, TaskKey
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, WorkerOutage
from tests.controller.searches import fit_of, request_at, simulation
from tests.controller.side_by_side import neighbour


def given_values(body: TaskBody) -> Mapping[str, float]:
    """Return the sub-epoch's training values as metrics."""
    if not isinstance(body, TrainTask):
        return {"loss": 1.0}
    lr = body.hyperparams.get("lr", 0.0)  # models of other runs have no learning rate
    assert isinstance(lr, float)
    assert body.position is not None
    return {"loss": 1.0 / (1 + body.epoch), "lr": lr, "epochs": float(body.position.epochs)}


def check(run: Run) -> None:
    """Check each sub-epoch that a model trained itself."""
    for model in run.models.values():
        for sub_epoch in range(model.lineage.sub_epochs, len(model.sub_epochs)):
            completed, terms = model.sub_epochs[sub_epoch], model.config_of(sub_epoch)
            metrics = dict(zip(completed.returned.names, completed.returned.values, strict=True))
            assert (metrics["lr"], metrics["epochs"]) == (terms.hyperparams["lr"], terms.epochs)


def changed(model: str, lr: float) -> ModelChanged:
    return ModelChanged(run="fit-1", model=model, hyperparams={"lr": lr}, by="ada")


def simulated_fit(models: int = 4, **scenario: Any) -> Simulation:
    """A fit of three epochs on three workers."""
    listed = tuple({"lr": float(number), "batch_size": 1} for number in range(models))
    return simulation(None, epochs=3, models=listed, metrics=given_values, **scenario)


def test_a_queued_sub_epoch_of_a_changed_model_is_revoked() -> None:
    """No later sub-epoch has the old value, and the run finishes normally."""
    fit, at = simulated_fit(), {}
    for number in range(4):
        at[f"m{number:02}"] = time = 4.3 + number
        request_at(fit, time, changed(f"m{number:02}", 10.0 + number))
    run = fit_of(fit)
    assert run.state is RunState.FINISHED
    check(run)
    for name, time in at.items():
        for sub_epoch, completed in enumerate(run.models[name].sub_epochs):
            lr = run.models[name].hyperparams_of(sub_epoch)["lr"]
            assert isinstance(lr, float)
            assert (lr >= 10) == (completed.started > time)
    revoked = [event for event in fit.log if isinstance(event, TaskRevoked)]
    assert any(event.reason == "its model was changed" for event in revoked)


def test_a_model_of_high_priority_goes_first() -> None:
    """The last of nine models finishes first."""
    fit = simulated_fit(models=9)
    request_at(fit, 0.5, PriorityChanged(run="fit-1", model="m08", priority=1))
    run = fit_of(fit)
    ends = {model.id: model.sub_epochs[-1].ended for model in run.models.values()}
    first, second, *_ = sorted(ends, key=lambda name: ends[name])
    assert first == "m08"
    assert ends[first] <= ends[second] - 3


def test_a_queued_sub_epoch_is_revoked_for_a_higher_priority() -> None:
    """Workers already have a queued sub-epoch, but the model is in the next round, and in each later one.
    Revoked sub-epochs run later."""
    fit = simulated_fit(models=9)
    request_at(fit, 0.95, PriorityChanged(run="fit-1", model="m08", priority=1))
    run = fit_of(fit)
    assert run.models["m08"].sub_epochs[0].started == 1.0
    reasons = [event.reason for event in fit.log if isinstance(event, TaskRevoked)]
    assert set(reasons) == {"a model of a higher priority goes first"}
    assert len(reasons) <= 9  # once for each of its sub-epochs
    assert run.state is RunState.FINISHED


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    times=st.randoms(use_true_random=False),
    changes=st.lists(
        st.tuples(st.integers(0, 6), st.integers(-1, 2), st.floats(0.5, 12)), min_size=1, max_size=8
    ),
    are_beside=st.booleans(),
    outages=st.lists(
        st.tuples(st.integers(0, 2), st.floats(1, 15), st.floats(1, 5)),
        max_size=2,
        unique_by=lambda outage: outage[0],
    ),
)
def test_no_sub_epoch_starts_before_a_waiting_model_of_higher_priority(
    policy: str,
    times: Random,
    changes: list[tuple[int, int, float]],
    are_beside: bool,
    outages: list[tuple[int, float, float]],
) -> None:
    """This holds for any policy and any changes, once sub-epoch times are known. Only an interrupted
    sub-epoch goes first, and its model waits for it. The run finishes, so revocations cannot repeat
    forever."""
    fit = simulated_fit(
        models=7,
        lease_s=0.5,
        sub_epoch_time=lambda _body, _worker: times.uniform(1.0, 1.4),
        outages=[WorkerOutage(worker=f"worker-{w}", start=at, length=length) for w, at, length in outages],
        neighbours=[neighbour("other", 3, 3)] if are_beside else [],
    )
    fit.store.append(EXPERIMENT, SchedulerChanged(run="fit-1", scheduler=policy, planner=False))
    for number, priority, at in changes:
        request_at(fit, at, PriorityChanged(run="fit-1", model=f"m{number:02}", priority=priority))
    fit_of(fit)
    state, idle_since, is_known = ExperimentState(name=EXPERIMENT), dict[str, float](), dict[str, bool]()
    for event in fit.log:
        if isinstance(event, TaskStarted) and (key := TaskKey.parse(event.task)).kind == "train":
            run = state.runs["fit-1"]
            models, is_first = run.models, run.find(event.task).is_interrupted
            bound = {task.key.model for task in run.tasks.by_key.values() if task.is_interrupted}
            was_known = is_known.get(event.worker, False)
            is_known[event.worker] = all(model.sub_epochs for model in models.values())
            ((_, partition),) = state.workers[event.worker].replicas
            for name, model in models.items():
                has_waited = model.busy is None and idle_since.get(name, event.time) < event.time
                could = not model.is_trained and partition in model.remaining and name not in bound
                if was_known and has_waited and could and not is_first:
                    assert model.priority <= models[key.model or ""].priority
        state.apply(event)
        if isinstance(event, RunStarted | PriorityChanged | TaskAssigned | TaskRevoked | TaskCommitted):
            for name, model in state.runs["fit-1"].models.items():
                if model.busy is not None or isinstance(event, PriorityChanged):
                    idle_since.pop(name, None)
                if model.busy is None:
                    idle_since.setdefault(name, event.time)
    assert state.runs["fit-1"].state is RunState.FINISHED


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_each_sub_epoch_has_the_hyperparameters_of_the_log(data: st.DataObject) -> None:
    """Users change values while workers leave and the controller crashes."""
    fit = simulated_fit(
        outages=[WorkerOutage(worker="worker-0", start=data.draw(st.floats(1, 15)), length=5.0)],
        crash_before=data.draw(st.frozensets(st.integers(0, 80), max_size=3)),
    )
    for _ in range(data.draw(st.integers(1, 6))):
        name = f"m{data.draw(st.integers(0, 5)):02}"
        lr, epochs = float(data.draw(st.integers(10, 12))), data.draw(st.integers(1, 5))
        new = NewModel(
            hyperparams={"lr": lr, "batch_size": 1}, epochs=epochs, checkpoint=ParentCheckpoint(model=name)
        )
        events: list[ClientEvent] = [
            changed(name, lr),
            ModelExtended(run="fit-1", model=name, epochs=epochs, by="ada"),
            ModelsAdded(run="fit-1", models=(new,), by="ada"),
        ]
        request_at(fit, data.draw(st.floats(0.5, 25)), data.draw(st.sampled_from(events)))
    run = fit_of(fit)
    assert run.state is RunState.FINISHED
    check(run)
    for model in run.models.values():
        assert model.state is ModelState.FINISHED
        assert model.completed_epochs == model.epochs
        for epoch in range(1, model.completed_epochs + 1):
            trained = [p for sub_epoch in model.epoch_sub_epochs(epoch) for p in sub_epoch.partitions]
            assert sorted(trained) == sorted(run.fit_rows)


def test_no_task_is_revoked_for_a_model_that_must_run_alone() -> None:
    """After an out-of-memory failure it runs alone, so a queue does not help it."""
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="killed for memory", memory_kind="host")
    fit = simulated_fit(
        models=9,
        outcome=lambda body, attempt, _worker: (
            failure if isinstance(body, TrainTask) and body.model == "m08" and attempt == 1 else None
        ),
    )
    request_at(fit, 0.5, PriorityChanged(run="fit-1", model="m08", priority=1))
    run = fit_of(fit)
    assert run.state is RunState.FINISHED
    failed = [event.time for event in fit.log if isinstance(event, TaskFailed)]
    revoked = [event for event in fit.log if isinstance(event, TaskRevoked)]
    started = [event for event in fit.log if isinstance(event, TaskStarted) and "/m08/" in event.task]
    again = [event.time for event in started if event.attempt > 1]
    assert len(failed) == len(again) == 9
    for began, ended in zip(failed, again, strict=True):
        assert not [event for event in revoked if began <= event.time < ended]
