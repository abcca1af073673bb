"""User commands for models with pruned checkpoints, and their error messages."""

from __future__ import annotations

from functools import lru_cache

import pytest

from cerebro.commands.command import Command
from cerebro.commands.command_events import events_of
from cerebro.commands.planning import plan_evaluation
from cerebro.commands.rules import CommandKind, allowed
from cerebro.contract.events import (
    CheckpointsPruned,
    Event,
    ModelExtended,
    ModelResumed,
    ModelsAdded,
    ModelStopRequested,
    RunFinished,
    RunRequested,
    RunResumed,
    RunStarted,
    RunStopRequested,
    TaskAssigned,
    TaskCommitted,
    TaskStarted,
)
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest, NewModel, ParentCheckpoint
from cerebro.contract.search import ASHA
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import ConflictError, IllegalEventError, NotFoundError
from cerebro.state import ExperimentState, Model, ModelState, Run
from cerebro.state.experiment import fold
from research.simulation.scenario import DATASET, EXPERIMENT
from tests.controller.searches import fit_of, request_at, search_of, simulation

GONE = r"the checkpoints of m\d+ were removed, because fit-1 keeps those of its best model \(keep=1\)"


@lru_cache
def log() -> tuple[Event, ...]:
    """The log of a finished search in which a user stopped a model."""
    sim = simulation(search_of(ASHA(eta=2), samples=8, keep=1), epochs=4)
    request_at(sim, 2.5, ModelStopRequested(run="fit-1", model="m01", by="ada"))
    fit_of(sim)
    return sim.log


def state_before(event: Event) -> ExperimentState:
    """Return the state before the event."""
    return fold(EXPERIMENT, log()[: event.seq - 1])


def apply_events(state: ExperimentState, *events: Event) -> None:
    """Apply other events instead."""
    for event in events:
        state.apply(event.model_copy(update={"seq": state.seq + 1}))


def pruned(state: ExperimentState, *, is_stopped: bool) -> Model:
    """Return a model with pruned checkpoints: stopped by a user, or dropped by the search."""
    models = state.runs["fit-1"].models.values()
    return next(
        each for each in models if each.is_pruned and (each.state is ModelState.STOPPED) is is_stopped
    )


def test_a_pruned_model_cannot_continue_and_names_the_reason() -> None:
    """It cannot be resumed, extended, warm cloned or tested; a cold clone is possible."""
    state = fold(EXPERIMENT, log())
    run = state.runs["fit-1"]
    for model, kind in (
        (pruned(state, is_stopped=True), CommandKind.RESUME_MODEL),
        (pruned(state, is_stopped=False), CommandKind.EXTEND_MODEL),
    ):
        assert allowed(state, run, model) == {CommandKind.CLONE_MODEL}
        with pytest.raises(ConflictError, match=f"{GONE}: clone it cold"):
            events_of(Command(kind=kind, models=(model.id,), epochs=9), state, by="ada")
        warm = Command(kind=CommandKind.CLONE_MODEL, models=(model.id,), warm=True, epochs=9)
        with pytest.raises(ConflictError, match=f"{GONE}; clone it cold"):
            events_of(warm, state, by="ada")
        cold = Command(kind=CommandKind.CLONE_MODEL, models=(model.id,), epochs=9)
        assert isinstance(events_of(cold, state, by="ada")[0], ModelsAdded)
    request = EvaluateRequest(kind="test", fit="fit-1", models=(model.id,), split="test")
    with pytest.raises(NotFoundError, match=f"{GONE}: name a model that has its checkpoints"):
        plan_evaluation(state, request)


def test_commands_after_the_removal_are_late() -> None:
    """The user saw an older state."""
    state = fold(EXPERIMENT, log())
    stopped, finished = pruned(state, is_stopped=True), pruned(state, is_stopped=False)
    new = NewModel(
        hyperparams={"lr": 0.1, "batch_size": 1}, epochs=9, checkpoint=ParentCheckpoint(model=finished.id)
    )
    apply_events(
        state,
        ModelResumed(run="fit-1", model=stopped.id, by="ada", can_reopen=True),
        ModelExtended(run="fit-1", model=finished.id, epochs=9, by="ada", can_reopen=True),
        ModelsAdded(run="fit-1", models=(new,), by="ada", can_reopen=True),
    )
    assert [record.is_late for record in state.commands[-3:]] == [True, True, True]
    assert not state.runs["fit-1"].is_open


def test_a_removal_after_a_users_resume_has_no_effect() -> None:
    """The log's order decides, and checkpoints in use stay."""
    events = [event for event in log() if isinstance(event, CheckpointsPruned)]
    (event,) = [event for event in events if "m01" in event.files]
    assert event.files.keys() - {"m01"}
    state = state_before(event)
    apply_events(state, ModelResumed(run="fit-1", model="m01", by="ada"), event)
    run = state.runs["fit-1"]
    model = run.models["m01"]
    assert model.state is ModelState.ACTIVE
    assert not model.checkpoints.removed & {sub_epoch.checkpoint.name for sub_epoch in model.sub_epochs[-2:]}
    assert set(event.files["m01"]) <= run.kept_checkpoints(model)
    others = set(event.files) - {"m01"}
    assert all(run.models[name].checkpoints.removed >= set(event.files[name]) for name in others)


def _stop_test(state: ExperimentState, name: str, done: tuple[str, ...], *left: str) -> Run:
    """Stop a test of these models before it has finished."""
    best = fold(EXPERIMENT, log()).runs["fit-1"]
    models = {each: best.best_epoch(best.models[each]) or 0 for each in (*done, *left)}
    request = EvaluateRequest(kind="test", fit="fit-1", models=tuple(models), split="test")
    plan = EvaluatePlan(
        kind="test", dataset=DATASET, fit="fit-1", models=models, partitions={0: 10}, is_whole=True
    )
    apply_events(state, RunRequested(run=name, request=request), RunStarted(run=name, plan=plan))
    for task in [key for key, task in state.runs[name].tasks.by_key.items() if task.key.model in done]:
        apply_events(
            state,
            TaskAssigned(task=task, attempt=1, worker="worker-0"),
            TaskStarted(task=task, attempt=1, worker="worker-0"),
            TaskCommitted(task=task, attempt=1, worker="worker-0", result=TaskResult(rows=10)),
        )
    apply_events(state, RunStopRequested(run=name, by="ada"), RunFinished(run=name, outcome="stopped"))
    return state.runs[name]


def test_a_stopped_test_cannot_resume_after_its_checkpoints_are_removed() -> None:
    """Its task would fail as with a damaged checkpoint. A test that has already read the model continues."""
    event = next(each for each in log() if isinstance(each, CheckpointsPruned) and "m00" in each.files)
    state = state_before(event)
    lost = _stop_test(state, "test-1", (), "m00", "m06")
    others = [_stop_test(state, "test-2", ("m00",), "m06"), _stop_test(state, "test-3", (), "m06")]
    apply_events(state, *log()[event.seq - 1 :])
    assert [model.id for model in state.runs["fit-1"].best_models(1)] == ["m06"]
    for run in others:
        assert CommandKind.RESUME_RUN in allowed(state, run)
    assert CommandKind.RESUME_RUN not in allowed(state, lost)
    with pytest.raises(ConflictError, match=f"test-1 is stopped, and {GONE}: call run_test for models"):
        events_of(Command(kind=CommandKind.RESUME_RUN, run="test-1"), state, by="ada")
    apply_events(state, *(RunResumed(run=run.id, by="ada", can_reopen=True) for run in (lost, *others)))
    assert [record.is_late for record in state.commands[-3:]] == [True, False, False]
    assert [run.is_open for run in (lost, *others)] == [False, True, True]


def test_the_run_end_is_written_after_the_last_removal() -> None:
    """After that, no controller would remove files. An unknown model is an illegal event."""
    kinds = [type(event) for event in log()]
    assert CheckpointsPruned not in kinds[kinds.index(RunFinished) :]
    state = state_before(next(event for event in log() if isinstance(event, RunFinished)))
    with pytest.raises(IllegalEventError, match="checkpoints of fit-1 pruned, of m77"):
        apply_events(state, CheckpointsPruned(run="fit-1", files={"m77": ("m77/u0",)}))
