"""Cross-validation: no model trains on a row that it validates on, under any fault."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    ClientEvent,
    ModelChanged,
    ModelResumed,
    ModelsAdded,
    ModelStopRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
    TaskAssigned,
    TaskCommitted,
    TaskStarted,
)
from cerebro.contract.metrics import Terms
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitPlan, FitRequest, NewModel, ParentCheckpoint
from cerebro.contract.tasks.bodies import EvaluateTask, TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import IllegalEventError
from cerebro.figures.ranking.folds import fold_rows
from cerebro.state import Model, ModelState, Run, RunState, TaskKey
from cerebro.state.experiment import fold
from cerebro.state.models.best import best_in, ranked_models
from cerebro.state.runs.folds import configurations, divided, models_of
from research.simulation.cluster import Simulation
from research.simulation.scenario import DATASET, EXPERIMENT, Scenario, WorkerOutage
from tests.controller.searches import fit_of, request_at

RATES = (0.1, 0.01, 0.001)
FAILURE = Failure(kind=FailureKind.USER_ERROR, message="diverged")


def loss(body: TaskBody) -> Mapping[str, float]:
    """A loss by learning rate and epoch, and by the rows of a validation."""
    if not isinstance(body, TrainTask | EvaluateTask):
        return {}
    lr, noise = float(str(body.hyperparams["lr"])), random.Random(f"{body.key}").random()
    return {"loss": abs(lr - 0.01) + 1 / (1 + body.epoch) + 0.1 * noise}


def validating(
    folds: int | None = 2,
    *,
    rows: Sequence[int] = (10, 10, 10, 10),
    workers: int = 2,
    epochs: int = 2,
    **scenario: Any,
) -> Simulation:
    """Simulate a cross-validation of three configurations; the workers have the partitions in turn."""
    models: tuple[Hyperparameters, ...] = tuple({"lr": rate, "batch_size": 1} for rate in RATES)
    request = FitRequest(
        code="0" * 64, models=models, epochs=epochs, metric="loss", mode="min", planner=False, folds=folds
    )
    partitions = dict(enumerate(rows))
    named = {f"m{number:02}": each for number, each in enumerate(models)}
    plan = FitPlan(
        dataset=DATASET,
        models=models_of(named, folds) if folds else named,
        partitions=partitions,
        folds=divided(partitions, folds) if folds else (),
        valid_partitions=(0,),
    )
    replicas = {
        f"worker-{number}": [p for p in partitions if p % workers == number] for number in range(workers)
    }
    world = Scenario(**{"replicas": replicas, "metrics": loss, **scenario})
    return Simulation(world, request, RunStarted(run="fit-1", plan=plan))


def check_disjoint(sim: Simulation, run: Run) -> None:
    """Check that each configuration validates each partition once per epoch, by a model that never trains on it."""
    assert isinstance(run.plan, FitPlan)
    keys = [TaskKey.parse(event.task) for event in sim.log if isinstance(event, TaskCommitted)]
    commits = Counter(keys)
    trained = {(key.model, part) for key in keys if key.kind == "train" for part in key.partitions}
    validated = {(key.model, key.partition) for key in keys if key.kind == "valid"}
    assert trained.isdisjoint(validated)
    for found in configurations(run.models.values(), run.fit_request):
        assert sorted(p for model in found.models for p in held_out(model)) == sorted(run.plan.partitions)
        for model in found.models:
            assert {*model.partitions, *held_out(model)} == {*run.plan.partitions}
            for epoch in model.validation.metrics:
                for partition in held_out(model):
                    key = TaskKey(run=run.id, kind="valid", model=model.id, epoch=epoch, partition=partition)
                    assert commits[key] == 1, key


def held_out(model: Model) -> tuple[int, ...]:
    """Return the partitions that a model validates on."""
    assert model.lineage.fold is not None
    return model.lineage.fold.partitions


def story(run: Run) -> object:
    """Return what must not depend on crashes."""
    return [
        (m.id, m.partitions, m.state, dict(m.validation.metrics), m.completed_epochs)
        for m in run.models.values()
    ]


@given(rows=st.lists(st.integers(1, 1000), min_size=2, max_size=20), data=st.data())
def test_folds_have_nearly_equal_numbers_of_rows(rows: list[int], data: st.DataObject) -> None:
    """Each partition is in one fold; moving one from the largest fold to the smallest one would not help."""
    folds = data.draw(st.integers(2, len(rows)))
    found = divided(dict(enumerate(rows)), folds)
    assert sorted(p for partitions in found for p in partitions) == list(range(len(rows)))
    assert len(found) == folds
    assert all(found)
    sums = [sum(rows[p] for p in partitions) for partitions in found]
    largest = max(found, key=lambda partitions: sum(rows[p] for p in partitions))
    assert max(sums) - min(sums) <= max(rows)
    assert len(largest) == 1 or max(sums) - min(rows[p] for p in largest) <= min(sums)


def test_the_mean_of_the_folds_ranks_configurations() -> None:
    """All values are of one epoch, and the first model of the best configuration is the best model."""
    sim = validating(epochs=3)
    run = fit_of(sim)
    assert run.state is RunState.FINISHED
    check_disjoint(sim, run)
    means = {}
    for name in ("m00", "m01", "m02"):
        models = [run.models[f"{name}-f1"], run.models[f"{name}-f2"]]
        by_epoch = [sum(m.validation.metrics[e]["loss"] for m in models) / 2 for e in (1, 2, 3)]
        means[name] = min(by_epoch)
        row = next(row for row in fold_rows(run) if row.configuration == name)
        assert row.mean == pytest.approx(min(by_epoch))
        assert row.epoch == 1 + by_epoch.index(min(by_epoch))
    order = sorted(means, key=lambda name: means[name])
    assert [row.configuration for row in fold_rows(run)] == order
    assert [row.model.id for row in ranked_models(run)] == [f"{name}-f1" for name in order]
    assert [model.id for model in run.best_models(3)] == [f"{name}-f1" for name in order]


def test_a_validation_reads_the_folds_training_partitions() -> None:
    """One task for each partition, on a worker that has it; its metrics weigh by rows."""
    bodies: list[EvaluateTask] = []

    def noted(body: TaskBody) -> Mapping[str, float]:
        if isinstance(body, EvaluateTask):
            bodies.append(body)
        return loss(body)

    sim = validating(metrics=noted, epochs=1)
    run = fit_of(sim)
    assert {(body.split, len(body.partitions)) for body in bodies} == {("train", 1)}
    model = run.models["m01-f2"]
    values = [loss(body)["loss"] for body in bodies if body.model == model.id]
    assert model.validation.metrics[1]["loss"] == pytest.approx(sum(values) / 2)


def test_a_controller_crash_at_any_write_changes_nothing() -> None:
    """Another controller is rebuilt from the log, also between the validations of a fold's partitions."""
    undisturbed = validating()
    expected = story(fit_of(undisturbed))
    for write in range(0, undisturbed.writes, 3):
        sim = validating(crash_before=frozenset({write, write + 1}))
        run = fit_of(sim)
        assert story(run) == expected
        check_disjoint(sim, run)


def test_a_lost_partition_is_made_again_for_its_validation() -> None:
    """A worker is lost with its disk when only validations need its partitions."""
    slow = {"valid": 5.0}
    times: dict[str, Any] = {"sub_epoch_time": lambda body, _worker: slow.get(body.kind, 1.0)}
    undisturbed = validating(epochs=1, has_pods=True, **times)
    fit_of(undisturbed)
    last = max(
        event.time
        for event in undisturbed.log
        if isinstance(event, TaskCommitted) and TaskKey.parse(event.task).kind == "train"
    )
    sim = validating(epochs=1, has_pods=True, removals={"worker-1": last + 1}, **times)
    run = fit_of(sim)
    assert run.state is RunState.FINISHED
    assert all(model.state is ModelState.FINISHED for model in run.models.values())
    check_disjoint(sim, run)


def test_a_metric_that_is_a_ratio_on_some_partitions_fails_its_model() -> None:
    """The message names the metric and the remedy."""
    terms = {"loss": Terms(1.0, 2.0)}
    sim = validating(epochs=1)
    sim.run(limit=20_000)
    first = next(e for e in sim.log if isinstance(e, TaskCommitted) and "/valid/m00-f1/" in e.task)
    state = fold(EXPERIMENT, [event for event in sim.log if event.seq < first.seq])
    mixed = first.result.model_copy(update={"ratios": terms, "metrics": {"loss": 0.5}})
    state.apply(first.model_copy(update={"result": mixed}))
    later = [event for event in sim.log if event.seq > first.seq]
    for event in (each for each in later if isinstance(each, TaskStarted | TaskAssigned | TaskCommitted)):
        if event.task.startswith("fit-1/valid/m00-f1/"):
            state.apply(event.model_copy(update={"seq": 0}))
    failure = state.runs["fit-1"].models["m00-f1"].failures.final
    assert failure is not None
    assert "'loss' of model m00-f1 in epoch 1 is missing on some partitions" in failure.message


def test_the_best_configuration_of_all_fits_is_best_by_its_mean() -> None:
    """Another cross-validation may have a fold with a better value."""
    one, other = validating(epochs=1), validating(epochs=1)
    runs = []
    for sim, values in ((one, (0.2, 0.3)), (other, (0.1, 0.9))):
        run = fit_of(sim)
        for number, value in enumerate(values, start=1):
            for name in ("m00", "m01", "m02"):
                run.models[f"{name}-f{number}"].validation.metrics[1] = {"loss": value}
        runs.append(best_in(run))
    assert [best.value for best in runs if best is not None] == [pytest.approx(0.25), pytest.approx(0.5)]


def test_a_failed_fold_leaves_its_configuration_without_a_mean() -> None:
    """The other configurations have one, and come first."""
    sim = validating(
        outcome=lambda body, _attempt, _worker: FAILURE if getattr(body, "model", "") == "m01-f2" else None
    )
    run = fit_of(sim)
    assert run.state is RunState.FINISHED
    *_, last = fold_rows(run)
    assert (last.configuration, last.rank, last.mean, last.state) == ("m01", None, None, "m01-f2 failed")
    assert ranked_models(run)[-1].model.id == "m01-f1"


def test_a_stopped_run_is_resumed() -> None:
    """All models complete their folds afterwards, as without the stop."""
    expected = {m.id: m.state for m in fit_of(validating()).models.values()}
    sim = validating()
    request_at(sim, 4.5, RunStopRequested(run="fit-1"))
    assert fit_of(sim).state is RunState.STOPPED
    sim.store.append(EXPERIMENT, RunResumed(run="fit-1", by="user"))
    sim.run(limit=20_000, is_begun=True)
    run = fold(EXPERIMENT, sim.log).runs["fit-1"]
    assert run.state is RunState.FINISHED
    assert {m.id: m.state for m in run.models.values()} == expected
    check_disjoint(sim, run)


REFUSED: list[ClientEvent] = [
    ModelsAdded(run="fit-1", models=(NewModel(hyperparams={"lr": 0.5, "batch_size": 1}, epochs=1),)),
    ModelsAdded(
        run="fit-1",
        models=(
            NewModel(
                hyperparams={"lr": 0.5, "batch_size": 1},
                epochs=3,
                checkpoint=ParentCheckpoint(model="m00-f1"),
            ),
        ),
    ),
    ModelChanged(run="fit-1", model="m00-f1", hyperparams={"lr": 0.5}),
]


@pytest.mark.parametrize("command", REFUSED, ids=["add", "clone", "change"])
def test_a_command_that_would_make_folds_differ_has_no_effect(command: ClientEvent) -> None:
    """A clone could validate on rows that its parent has trained on."""
    expected = story(fit_of(validating()))
    sim = validating()
    request_at(sim, 3.5, command)
    run = fit_of(sim)
    assert story(run) == expected
    assert fold(EXPERIMENT, sim.log).commands[-1].is_late


def test_the_log_refuses_to_train_on_the_own_fold() -> None:
    """No controller can assign such a sub-epoch, whatever its dispatch says."""
    sim = validating()
    sim.run(limit=20_000)
    first = next(event for event in sim.log if event.type == "TaskAssigned" and "/train/" in event.task)
    state = fold(EXPERIMENT, [event for event in sim.log if event.seq < first.seq])
    model = state.runs["fit-1"].models[TaskKey.parse(first.task).model or ""]
    leaking = f"fit-1/train/{model.id}/e1/p{held_out(model)[0]}"
    with pytest.raises(IllegalEventError, match="does not need it"):
        state.apply(first.model_copy(update={"task": leaking}))


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_no_model_trains_on_a_row_it_validates_on(data: st.DataObject) -> None:
    """Under any cut, failure, outage, crash and command each configuration validates each row once per epoch."""
    rows = data.draw(st.lists(st.integers(1, 20), min_size=2, max_size=7))
    workers = data.draw(st.integers(1, min(3, len(rows))))
    failing = data.draw(st.sets(st.sampled_from(["m00-f1", "m01-f2", "m02-f2"]), max_size=1))
    unreadable = data.draw(
        st.sets(
            st.tuples(st.sampled_from(["m00-f2", "m01-f1"]), st.integers(1, 2), st.integers(0, 6)), max_size=3
        )
    )

    def outcome(body: TaskBody, attempt: int, _worker: str) -> Failure | None:
        if getattr(body, "model", "") in failing:
            return FAILURE
        place = (body.model, body.epoch, body.partitions[0]) if isinstance(body, EvaluateTask) else None
        if attempt == 1 and place in unreadable:
            return Failure(kind=FailureKind.CHECKPOINT, message="checksum")
        return None

    outages = [
        WorkerOutage(
            worker=f"worker-{data.draw(st.integers(0, workers - 1))}",
            start=data.draw(st.floats(0, 30)),
            length=data.draw(st.floats(1, 20)),
        )
        for _ in range(data.draw(st.integers(0, 1)))
    ]
    sim = validating(
        data.draw(st.integers(2, len(rows))),
        rows=rows,
        workers=workers,
        crash_before=frozenset(data.draw(st.sets(st.integers(0, 150), max_size=3))),
        outages=outages,
        outcome=outcome,
    )
    for command in data.draw(
        st.lists(
            st.sampled_from(
                [
                    ModelStopRequested(run="fit-1", model="m01-f1"),
                    ModelResumed(run="fit-1", model="m01-f1"),
                    *REFUSED,
                ]
            ),
            max_size=3,
        )
    ):
        request_at(sim, data.draw(st.floats(0, 40)), command)
    run = fit_of(sim)
    assert run.state in (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)
    check_disjoint(sim, run)
    for model in run.models.values():
        if model.state is ModelState.FINISHED:
            assert len(model.validation.metrics) + len(model.validation.skipped) == model.epochs
