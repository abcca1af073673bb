"""Searches in the controller finish, and a controller rebuilt from the log continues them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.commands.command import Command
from cerebro.commands.command_events import events_of
from cerebro.commands.rules import CommandKind
from cerebro.contract.events import (
    ModelChanged,
    ModelsAdded,
    ModelStopRequested,
    RunPaused,
    RunStopRequested,
    SearchDecided,
)
from cerebro.contract.runs import NewModel, ParentCheckpoint
from cerebro.contract.search import (
    ASHA,
    PBT,
    ChoiceOf,
    FixedProcedure,
    Hyperband,
    Plateau,
    ProcedureChoice,
    Random,
    SearchRequest,
)
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import ConflictError
from cerebro.state import ModelState, RunState, position_of
from cerebro.state.experiment import fold
from controller.sources.search import Searching
from research.simulation.scenario import EXPERIMENT, WorkerOutage
from tests.controller.searches import fit_of, request_at, search_of, simulation, story

SEARCHES: dict[str, tuple[ProcedureChoice, int | None, int]] = {
    "random": (Random(), 8, 2),
    "stopping": (ASHA(), 12, 4),
    "promotion": (ASHA(rule="promotion", eta=2), 10, 4),
    "hyperband": (Hyperband(eta=2), None, 4),
    "pbt": (PBT(population=4), None, 3),
}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("is_validated", [False, True])
def test_a_search_trains_or_stops_every_model(name: str, is_validated: bool) -> None:
    """Each model trains for its grant or is stopped by name."""
    procedure, samples, epochs = SEARCHES[name]
    run = fit_of(simulation(search_of(procedure, samples=samples), epochs=epochs, is_validated=is_validated))
    assert run.state is RunState.FINISHED
    assert run.search is not None
    assert run.search.finish
    for model in run.models.values():
        assert model.state in (ModelState.FINISHED, ModelState.STOPPED)
        assert model.completed_epochs == model.epochs or model.id in run.search.verdicts
    assert max(model.completed_epochs for model in run.models.values()) == epochs


@pytest.mark.parametrize("is_made", [True, False])
def test_a_search_without_results_fails(is_made: bool) -> None:
    """It fails before its time limit: an error in user code, or an impossible batch size, is not retried forever."""
    search = search_of(Random(), hours=1e6)
    too_large = {**search.space, "batch_size": ChoiceOf(values=(4096,))}
    failure = Failure(kind=FailureKind.USER_ERROR, message="it raises")
    run = fit_of(
        simulation(
            search if is_made else search.model_copy(update={"space": too_large}),
            epochs=2,
            outcome=lambda _body, _attempt, _worker: failure,
        )
    )
    assert run.state is RunState.FAILED
    assert run.search is not None
    assert "nothing was measured of 50 models in a row" in (run.search.finish or "")
    refused = "no model of the search could be made: batch_size is 4096, expected"
    assert ("models failed: it raises" if is_made else refused) in run.failures.error
    assert bool(run.models) is is_made


def test_a_population_inherits_a_users_changes() -> None:
    """A clone's learning rate derives from its parent's current one."""
    choice = PBT(population=2, quantile=0.5, perturb={"lr": (0.5, 2.0)})
    sim = simulation(search_of(choice), epochs=2)
    for model in ("m00", "m01"):
        request_at(sim, 1.0, ModelChanged(run="fit-1", model=model, hyperparams={"lr": 0.3}, by="ada"))
    run = fit_of(sim)
    assert run.state is RunState.FINISHED
    assert {model.hyperparams["lr"] for model in run.models.values() if not model.lineage.sub_epochs} == {0.3}
    assert run.models["m02"].hyperparams["lr"] in (0.15, 0.6)


def check_deaths(name: str, *, every: int) -> None:
    """Check that crashes at writes `every` apart leave models, ids, values and actions unchanged."""
    procedure, samples, epochs = SEARCHES[name]
    search = search_of(procedure, samples=samples and 6)
    undisturbed = simulation(search, epochs=epochs)
    expected = story(fit_of(undisturbed))
    for write in range(0, undisturbed.writes, every):
        died = simulation(search, epochs=epochs, crash_before=frozenset({write, write + 2}))
        assert story(fit_of(died)) == expected


@pytest.mark.parametrize("name", SEARCHES)
def test_a_controller_crash_does_not_change_the_search(name: str) -> None:
    """Another controller is rebuilt from the log."""
    check_deaths(name, every=29)


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_a_controller_crash_at_any_write_does_not_change_the_search(name: str) -> None:
    """The same test at each write."""
    check_deaths(name, every=1)


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_search_ends_after_any_failure(data: st.DataObject) -> None:
    """Workers leave, sub-epochs fail, controllers crash, users stop and add models: the run finishes, no
    model exceeds its grant, and each warm clone starts from its parent's checkpoint."""
    procedure, samples, epochs = SEARCHES[data.draw(st.sampled_from(sorted(SEARCHES)))]
    failing = data.draw(st.sets(st.integers(0, 12), max_size=3))
    failure = Failure(kind=FailureKind.USER_ERROR, message="it raises")
    outages = [
        WorkerOutage(worker=f"worker-{worker}", start=start, length=data.draw(st.floats(1, 30)))
        for worker, start in data.draw(
            st.dictionaries(st.integers(0, 1), st.floats(0.5, 20), max_size=2)
        ).items()
    ]
    sim = simulation(
        search_of(procedure, samples=samples),
        epochs=epochs,
        is_validated=data.draw(st.booleans()),
        outages=outages,
        crash_before=data.draw(st.frozensets(st.integers(0, 80), max_size=4)),
        outcome=lambda body, _attempt, _worker: (
            failure if getattr(body, "model", "") in {f"m{n:02}" for n in failing} else None
        ),
    )
    commands = data.draw(st.lists(st.tuples(st.floats(1, 25), st.integers(0, 5)), max_size=4))
    for at, number in commands:
        name, warm = f"m{number:02}", data.draw(st.booleans())
        new = NewModel(
            hyperparams={"lr": 0.01, "batch_size": 1},
            epochs=epochs,
            checkpoint=ParentCheckpoint(model=name) if warm else None,
        )
        is_stop = data.draw(st.booleans())
        event: ModelStopRequested | ModelsAdded = (
            ModelStopRequested(run="fit-1", model=name, by="ada")
            if is_stop
            else ModelsAdded(run="fit-1", models=(new,), by="ada")
        )
        request_at(sim, at, event)
    run = fit_of(sim)
    assert not run.is_open
    for model in run.models.values():
        assert model.completed_epochs <= model.epochs
        if model.lineage.sub_epochs:
            parent = run.models[model.lineage.parent]
            assert (
                parent.sub_epochs[: model.lineage.sub_epochs] == model.sub_epochs[: model.lineage.sub_epochs]
            )


def test_search_actions_that_differ_from_the_log_pause_the_run() -> None:
    """The procedure's code may have changed; the message names the order."""
    run = fit_of(simulation(search_of(ASHA(), samples=6), epochs=4))
    assert run.search is not None
    number = next(each.number for each in run.search.decisions if each.extend)
    changed = run.search.decisions[number].model_copy(update={"extend": (), "stop": {"m00": "it is worse"}})
    run.search.decisions[number] = changed
    run.search.finish = None  # as in an unfinished search
    (paused,) = Searching(run).steps(run)
    assert isinstance(paused, RunPaused)
    assert f"decision {number} of the search is another one in the log" in paused.reason


def test_stop_rules_stop_models_of_a_grid() -> None:
    """A grid with a rule: models without progress stop, the others finish."""
    models = tuple({"lr": lr, "batch_size": 1} for lr in (0.01, 1.0))
    search = SearchRequest(procedure=FixedProcedure(), stop=(Plateau(epochs=1, least=0.08),))
    run = fit_of(simulation(search, epochs=9, models=models))
    assert run.search is not None
    assert run.search.verdicts
    stopped = [model for model in run.models.values() if model.state is ModelState.STOPPED]
    assert {model.id for model in stopped} == set(run.search.verdicts)
    assert all(model.completed_epochs < 9 for model in stopped)


def test_a_clone_in_a_search_starts_from_its_parents_checkpoint() -> None:
    """A clone's first sub-epoch reads its parent's last checkpoint."""
    sim = simulation(search_of(PBT(population=4)), epochs=3)
    run = fit_of(sim)
    clones = [model for model in run.models.values() if model.lineage.sub_epochs]
    assert clones
    for clone in clones:
        newest = clone.sub_epochs[clone.lineage.sub_epochs - 1].checkpoint
        assert newest.name.startswith(f"{clone.lineage.parent}/")
        assert clone.kept_sub_epochs[0].epoch > clone.sub_epochs[clone.lineage.sub_epochs - 1].epoch
    decided = [event for event in sim.log if isinstance(event, SearchDecided)]
    assert any(new.checkpoint is not None for event in decided for new in event.add)


def test_adding_a_model_does_not_resume_a_stopped_search() -> None:
    """The run is open again for the added model only."""
    sim = simulation(search_of(Random(), samples=30), epochs=2)
    request_at(sim, 4.0, RunStopRequested(run="fit-1", by="ada"))
    before = set(fit_of(sim).models)
    new = NewModel(hyperparams={"lr": 0.01, "batch_size": 1}, epochs=2)
    sim.store.append(EXPERIMENT, ModelsAdded(run="fit-1", models=(new,), by="ada", can_reopen=True))
    sim.run(is_begun=True, limit=20_000)
    run = fold(EXPERIMENT, sim.log).runs["fit-1"]
    assert run.state is RunState.FINISHED
    (added,) = set(run.models) - before
    assert run.models[added].state is ModelState.FINISHED
    assert {run.models[name].state for name in before} <= {ModelState.STOPPED, ModelState.FINISHED}


def test_total_steps_assume_the_largest_resource_from_the_first_rung() -> None:
    """The position among all steps never decreases, for any grant."""
    sim = simulation(search_of(ASHA(), samples=8), epochs=4)
    run = fit_of(sim)
    model = next(model for model in run.models.values() if model.completed_epochs == 4)
    assert model.epochs == 4
    found = [position_of(model, run.fit_rows, sub_epoch) for sub_epoch in range(len(model.sub_epochs))]
    assert {place.total_steps for place in found} == {4 * sum(run.fit_rows.values())}
    assert [place.step for place in found] == sorted(place.step for place in found)


def test_an_interrupted_sub_epoch_goes_before_models_of_higher_priority() -> None:
    """Otherwise it would be revoked and queued repeatedly."""
    sim = simulation(
        search_of(Hyperband(eta=2)),
        epochs=4,
        is_validated=True,
        outages=[
            WorkerOutage(worker="worker-0", start=6.7, length=4.7),
            WorkerOutage(worker="worker-1", start=6.7, length=11.0),
        ],
    )
    assert fit_of(sim).state is RunState.FINISHED


def test_resuming_a_model_stopped_by_its_search_suggests_extending_it() -> None:
    """It used all its epochs, so it can be extended but not resumed."""
    sim = simulation(search_of(ASHA(eta=2), samples=8), epochs=4)
    fit_of(sim)
    state = fold(EXPERIMENT, sim.log)
    run = state.runs["fit-1"]
    assert run.search is not None
    name = next(name for name in run.search.verdicts if run.models[name].state is ModelState.FINISHED)
    with pytest.raises(ConflictError) as caught:
        events_of(Command(kind=CommandKind.RESUME_MODEL, models=(name,)), state, by="ann")
    text = str(caught.value)
    assert f"model {name} of fit-1 was stopped by the search after" in text
    assert f"({run.search.verdicts[name]})" in text
    assert "extend it to train more" in text
    extend = Command(kind=CommandKind.EXTEND_MODEL, models=(name,), epochs=4)
    assert events_of(extend, state, by="ann")
