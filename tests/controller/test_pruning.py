"""Pruning of a search's checkpoints: unnecessary files disappear, required files stay."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    ClientEvent,
    ModelExtended,
    ModelResumed,
    ModelRetried,
    ModelsAdded,
    ModelStopRequested,
    RunFinished,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
    SearchStopRequested,
)
from cerebro.contract.rest import api
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest, NewModel, ParentCheckpoint
from cerebro.contract.search import ASHA
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import ModelState, Run, RunState
from cerebro.state.runs import pruning
from cerebro.state.runs.parts.retention import parent_checkpoint_owner
from controller.decisions.core import Core
from controller.decisions.decide import Step
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.sharing.rounds import RunOffer
from research.simulation.cluster import Simulation
from research.simulation.scenario import DATASET, WorkerOutage
from tests.controller.pruned_disk import PrunedDisk
from tests.controller.searches import fit_of, request_at, search_of, simulation
from tests.controller.test_searching import SEARCHES


class _WithTests(Simulation):
    """Plan tests when they become active and drop obsolete queued runs, as the controller's loop does."""

    def _decide_all(self) -> bool:
        if super()._decide_all():
            return True
        runs = self.core.state.runs
        ended = [each.run for each in self.store.queue() if each.run in runs and not runs[each.run].is_open]
        return bool(ended) and self._perform(self.core, [api.Dequeue(run=ended[0])])

    def _steps(self, run_offer: RunOffer, snapshot: ClusterSnapshot) -> list[Step]:
        run = run_offer.run
        if isinstance(run.request, EvaluateRequest) and run.state is RunState.QUEUED:
            return [api.Note(event=_planned(run_offer.core, run, run.request))]
        return super()._steps(run_offer, snapshot)


def _planned(core: Core, run: Run, request: EvaluateRequest) -> RunStarted | RunFinished:
    fit = core.state.runs[request.fit]
    epochs = {name: fit.best_epoch(fit.models[name]) for name in request.models if name in fit.models}
    found = {
        name: epoch
        for name, epoch in epochs.items()
        if epoch and not pruning.is_removed(fit.models[name], epoch)
    }
    if not found:
        return RunFinished(run=run.id, outcome="failed", error="no checkpoint")
    plan = EvaluatePlan(
        kind="test", dataset=DATASET, fit=fit.id, models=found, partitions={0: 10}, is_whole=True
    )
    return RunStarted(run=run.id, plan=plan)


def _tested(*models: str, run: str = "test-1") -> RunRequested:
    return RunRequested(
        run=run, request=EvaluateRequest(kind="test", fit="fit-1", models=models, split="test")
    )


def _disk(sim: Simulation, **how: Any) -> PrunedDisk:
    disk = PrunedDisk(sim.core.record, **how)
    for event in sim.log:
        disk.apply(event)
    disk.finish()
    return disk


def _may_have_files(disk: PrunedDisk) -> set[str]:
    """Return the models that may keep checkpoints after the run."""
    run = disk.run
    found = {model.id for model in run.best_models(run.keep or 0)}
    found |= disk.read
    for model in run.models.values():
        if model.state is ModelState.ACTIVE or pruning.may_go_on(run, model):
            found.add(model.id)
            if model.id in run.checkpoints.young:
                found.add(parent_checkpoint_owner(model, run.models).id)
    return found


def _check_end(disk: PrunedDisk) -> None:
    """Check that other models have no files."""
    may_have = _may_have_files(disk)
    for model in disk.run.models.values():
        if not disk.run.is_open and model.id not in may_have:
            assert not disk.of(model), model.id


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("name", SEARCHES)
def test_after_a_search_only_the_best_models_have_checkpoints(name: str, keep: int) -> None:
    """They keep their best and newest epochs; other models have no files."""
    procedure, samples, epochs = SEARCHES[name]
    sim = simulation(search_of(procedure, samples=samples, keep=keep), epochs=epochs, is_validated=True)
    assert fit_of(sim).state is RunState.FINISHED
    disk = _disk(sim)
    best = disk.run.best_models(keep)
    expected = set()
    for model in best:
        newest, epoch = model.sub_epochs[-1].checkpoint.name, disk.run.best_epoch(model)
        assert epoch is not None
        reference = model.epoch_checkpoint(epoch)
        assert reference is not None
        expected |= {newest, reference.name}
    assert disk.files == expected
    assert len(disk.run.models) > keep


def _clone(model: str, *, priority: int = 0) -> ModelsAdded:
    new = NewModel(
        hyperparams={"lr": 0.01, "batch_size": 1},
        epochs=5,
        checkpoint=ParentCheckpoint(model=model),
        priority=priority,
    )
    return ModelsAdded(run="fit-1", models=(new,), by="ada", can_reopen=True)


def test_a_parent_checkpoint_is_removed_after_all_its_clones_stopped() -> None:
    """Two clones stopped before their first sub-epoch do not keep it for each other."""
    sim = simulation(search_of(ASHA(), samples=6, keep=1), epochs=4)
    for name in ("m06", "m07"):
        request_at(sim, 4, _clone("m01"))
        request_at(sim, 4.01, ModelStopRequested(run="fit-1", model=name, by="ada"))
    run = fit_of(sim)
    clones = [run.models["m06"], run.models["m07"]]
    assert all(clone.lineage.parent == "m01" and not clone.kept_sub_epochs for clone in clones)
    assert [model.id for model in run.best_models(1)] == ["m00"]
    disk = _disk(sim)
    _check_end(disk)
    assert {model.id for model in run.models.values() if disk.of(model)} == {"m00"}


def test_a_parent_checkpoint_stays_while_a_clone_of_a_clone_needs_it() -> None:
    """The clone's parent has moved past the checkpoint and does not need it."""
    sim = simulation(search_of(ASHA(), samples=6, keep=1), epochs=4)
    request_at(sim, 3, _clone("m03", priority=1000))
    request_at(sim, 3.001, _clone("m06", priority=-1000))
    request_at(sim, 9, RunStopRequested(run="fit-1", by="ada"))
    run = fit_of(sim)
    first, second = run.models["m06"], run.models["m07"]
    assert (first.lineage.parent, second.lineage.parent) == ("m03", "m06")
    assert len(first.kept_sub_epochs) > 1
    assert not second.kept_sub_epochs
    disk = _disk(sim)
    assert disk.of(run.models["m03"]) == {second.sub_epochs[-1].checkpoint.name}
    _check_end(disk)


def _draw_command(data: st.DataObject, number: int) -> ClientEvent:
    name = f"m{data.draw(st.integers(0, 8)):02}"
    warm = ParentCheckpoint.model_validate(
        {"model": name, "at": data.draw(st.sampled_from(["last", "best", 1]))}
    )
    new = NewModel(hyperparams={"lr": 0.01, "batch_size": 1}, epochs=5, checkpoint=warm)
    kinds: Sequence[ClientEvent] = [
        ModelStopRequested(run="fit-1", model=name, by="ada"),
        ModelResumed(run="fit-1", model=name, by="ada", can_reopen=True),
        ModelRetried(run="fit-1", model=name, by="ada", can_reopen=True),
        ModelExtended(run="fit-1", model=name, epochs=6, by="ada", can_reopen=True),
        ModelsAdded(run="fit-1", models=(new,), by="ada", can_reopen=True),
        _tested(name, run=f"test-{number}"),
        SearchStopRequested(run="fit-1", by="ada"),
        RunStopRequested(run="fit-1", by="ada"),
        RunResumed(run="fit-1", by="ada", can_reopen=True),
    ]
    return data.draw(st.sampled_from(kinds))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_needed_checkpoint_is_ever_removed(data: st.DataObject) -> None:
    """Workers leave, sub-epochs fail, checkpoints are lost, controllers crash and users steer: each task
    finds its files, and in the end only the best, resumable and cloned models have files."""
    procedure, samples, epochs = SEARCHES[data.draw(st.sampled_from(sorted(SEARCHES)))]
    failing = {f"m{n:02}" for n in data.draw(st.sets(st.integers(0, 12), max_size=3))}
    loses = data.draw(st.sets(st.tuples(st.integers(0, 8), st.integers(1, 6)), max_size=1))
    outages = [
        WorkerOutage(worker=f"worker-{worker}", start=start, length=data.draw(st.floats(1, 30)))
        for worker, start in data.draw(
            st.dictionaries(st.integers(0, 1), st.floats(0.5, 20), max_size=2)
        ).items()
    ]

    def outcome(task: TaskBody, attempt: int, _worker: str) -> Failure | None:
        model = getattr(task, "model", "")
        if isinstance(task, TrainTask) and attempt == 1 and (int(model[1:]), task.sub_epoch) in loses:
            return Failure(kind=FailureKind.CHECKPOINT, message="it is damaged")
        return Failure(kind=FailureKind.USER_ERROR, message="it raises") if model in failing else None

    sim = simulation(
        search_of(procedure, samples=samples, keep=data.draw(st.integers(1, 4))),
        epochs=epochs,
        is_validated=data.draw(st.booleans()),
        outages=outages,
        crash_before=data.draw(st.frozensets(st.integers(0, 80), max_size=4)),
        outcome=outcome,
        kind=_WithTests,
    )
    times = sorted(data.draw(st.lists(st.floats(1, 30), max_size=6)))
    for number, at in enumerate(times):
        request_at(sim, at, _draw_command(data, number))
    fit_of(sim)
    rng = Random(data.draw(st.integers(0, 1000)))
    disk = _disk(
        sim,
        delay=lambda: rng.choice([0, 0, 3, 40]),
        dies=lambda: rng.random() < 0.05,
        loses=bool(loses),
    )
    _check_end(disk)
    if not loses:
        for model in disk.run.best_models(1):
            epoch = disk.run.best_epoch(model)
            reference = model.epoch_checkpoint(epoch) if epoch else None
            assert reference is not None
            assert reference.name in disk.files
