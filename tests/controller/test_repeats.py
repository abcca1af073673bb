"""The best models of a fit are trained again with new seeds, once, under any procedure and fault."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    ClientEvent,
    ModelChanged,
    ModelExtended,
    ModelResumed,
    ModelsAdded,
    ModelsRepeated,
    ModelStopRequested,
    RunResumed,
    RunStopRequested,
)
from cerebro.contract.runs import Constraint, NewModel
from cerebro.contract.search import ASHA, PBT, Hyperband, ProcedureChoice, Random, Repeat
from cerebro.contract.tasks.bodies import EvaluateTask, TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import IllegalEventError
from cerebro.state import Model, ModelState, Run, RunState
from cerebro.state.experiment import fold
from cerebro.state.models.best import ranked_models
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT
from tests.controller.searches import fit_of, request_at, search_of, simulation

SEARCHES: dict[str, tuple[ProcedureChoice | None, int | None, int]] = {
    "grid": (None, None, 2),
    "random": (Random(), 8, 2),
    "stopping": (ASHA(), 12, 4),
    "promotion": (ASHA(rule="promotion", eta=2), 10, 4),
    "hyperband": (Hyperband(eta=2), None, 4),
    "pbt": (PBT(population=4, perturb={"lr": (0.8, 1.25)}), None, 4),
}
GRID: tuple[dict[str, Any], ...] = tuple({"lr": 10.0**-n, "batch_size": 1} for n in range(1, 5))
REPEAT = Repeat(top=2, seeds=3)


def loss(body: TaskBody) -> Mapping[str, float]:
    """A loss that depends on learning rate, epoch and seed; the first seed is lucky."""
    if not isinstance(body, TrainTask | EvaluateTask):
        return {}
    lr = float(str(body.hyperparams["lr"]))
    noise = random.Random(f"{lr}/{body.seed}").random() * bool(body.seed)
    return {"loss": abs(lr - 0.01) + 1 / (1 + body.epoch) + noise}


def repeating(name: str, repeat: Repeat | None = REPEAT, **scenario: Any) -> Simulation:
    """Simulate a fit with repeats."""
    procedure, samples, epochs = SEARCHES[name]
    search = None if procedure is None else search_of(procedure, samples=samples)
    return simulation(
        search,
        epochs=epochs,
        models=GRID if search is None else (),
        repeats=repeat,
        metrics=loss,
        **scenario,
    )


def repeats_of(run: Run) -> dict[str, list[Model]]:
    """Return repeated model -> its repeats."""
    found: dict[str, list[Model]] = {}
    for model in run.models.values():
        if model.is_repeat:
            found.setdefault(model.lineage.parent, []).append(model)
    return found


@pytest.mark.parametrize("name", ["grid", "stopping"])
def test_models_that_meet_the_constraints_are_repeated(name: str) -> None:
    """Means leave the order by constraints and fronts as it is."""
    run = fit_of(repeating(name, constraints=(Constraint(name="loss", operator=">", limit=0.5),)))
    order = [row.model.id for row in ranked_models(run)]
    assert set(repeats_of(run)) == set(order[:2])
    assert [model.id for model in run.best_models(2)] == order[:2]
    assert run.final_means() == {}


def reopened(sim: Simulation, event: ClientEvent) -> Run:
    """Append a command after the end, and run to the next end."""
    sim.store.append(EXPERIMENT, event)
    sim.run(limit=20_000, is_begun=True)
    return fold(EXPERIMENT, sim.log).runs["fit-1"]


def own_best(run: Run, count: int) -> list[str]:
    """Return the models with the lowest own loss, best first, without the fold's help."""
    losses = {
        model.id: min(model.scores("loss", validated=run.is_validated).values())
        for model in run.models.values()
        if not model.is_repeat and model.completed_epochs > model.inherited_epochs
    }
    return sorted(losses, key=lambda name: losses[name])[:count]


def story(run: Run) -> object:
    """Return what must not depend on crashes."""
    return [(m.id, m.hyperparams, m.lineage.seed, m.lineage.parent, m.state) for m in run.models.values()]


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("is_validated", [False, True])
def test_the_best_models_are_trained_again_with_new_seeds(name: str, is_validated: bool) -> None:
    """Each of the best models gets one repeat for each seed, trained for as many epochs, after all others ended."""
    sim = repeating(name, is_validated=is_validated)
    run = fit_of(sim)
    assert run.state is RunState.FINISHED
    repeats = repeats_of(run)
    assert list(repeats) == own_best(run, 2)
    for parent, models in repeats.items():
        assert [model.lineage.seed for model in models] == [1, 2, 3]
        for model in models:
            assert model.state is ModelState.FINISHED
            assert model.completed_epochs == run.models[parent].completed_epochs
            for epoch in range(1, model.completed_epochs + 1):
                assert model.hyperparams_at(epoch) == run.models[parent].hyperparams_at(epoch)
                trained = [p for each in model.epoch_sub_epochs(epoch) for p in each.partitions]
                assert sorted(trained) == sorted(run.fit_rows)
    assert sum(isinstance(event, ModelsRepeated) for event in sim.log) == 1


def test_a_repeat_of_a_clone_changes_its_hyperparameters_where_the_clone_did() -> None:
    """A population's best model has had other hyperparameters; its repeats follow them from new weights."""
    run = fit_of(repeating("pbt"))
    changed = [
        model
        for models in repeats_of(run).values()
        for model in models
        if len({model.hyperparams_at(e)["lr"] for e in range(1, model.completed_epochs + 1)}) > 1
    ]
    assert changed
    assert not any(model.lineage.sub_epochs for model in changed)


def test_a_repeats_task_has_its_seed() -> None:
    """Sub-epochs and validations of a repeat get its seed, all others the run's."""
    seeds: dict[str, set[int]] = {}

    def noted(body: TaskBody) -> Mapping[str, float]:
        if isinstance(body, TrainTask | EvaluateTask):
            seeds.setdefault(body.model, set()).add(body.seed)
        return loss(body)

    run = fit_of(
        simulation(None, epochs=2, models=GRID, is_validated=True, repeats=REPEAT, seed=7, metrics=noted)
    )
    assert {name: seeds[name] for name in run.models} == {
        name: {7 if model.lineage.seed is None else model.lineage.seed} for name, model in run.models.items()
    }
    assert {model.lineage.seed for model in run.models.values()} == {None, 8, 9, 10}


def test_repeated_models_come_first_by_their_means() -> None:
    """The means exclude the lucky value that chose a model; no repeat is the best model."""
    run = fit_of(repeating("grid"))
    means = {
        parent: sum(min(m.scores("loss", validated=False).values()) for m in models) / len(models)
        for parent, models in repeats_of(run).items()
    }
    others = [name for name in own_best(run, 4) if name not in means]
    expected = [*sorted(means, key=lambda name: means[name]), *others]
    assert [model.id for model in run.best_models(4)] == expected
    assert run.final_means() == pytest.approx(means)


@pytest.mark.parametrize("name", ["grid", "pbt"])
def test_a_controller_crash_neither_loses_nor_doubles_repeats(name: str) -> None:
    """Another controller is rebuilt from the log."""
    undisturbed = repeating(name)
    expected = story(fit_of(undisturbed))
    for write in range(0, undisturbed.writes, max(1, undisturbed.writes // 4)):
        assert story(fit_of(repeating(name, crash_before=frozenset({write, write + 2})))) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_a_controller_crash_at_any_write_neither_loses_nor_doubles_repeats(name: str) -> None:
    """The same test at each write."""
    undisturbed = repeating(name)
    expected = story(fit_of(undisturbed))
    for write in range(undisturbed.writes):
        assert story(fit_of(repeating(name, crash_before=frozenset({write, write + 1})))) == expected


def test_a_failed_repeat_is_missing_from_the_mean() -> None:
    """The run finishes, and the others count."""
    failure = Failure(kind=FailureKind.USER_ERROR, message="diverged")
    run = fit_of(
        repeating(
            "grid",
            outcome=lambda body, _attempt, _worker: failure if getattr(body, "model", "") == "m05" else None,
        )
    )
    assert run.state is RunState.FINISHED
    assert run.models["m05"].state is ModelState.FAILED
    parent = run.models["m05"].lineage.parent
    values = [
        min(m.scores("loss", validated=False).values()) for m in repeats_of(run)[parent] if m.id != "m05"
    ]
    assert run.final_means()[parent] == pytest.approx(sum(values) / 2)


def test_failed_models_and_models_a_user_stopped_are_not_repeated() -> None:
    """The next best ones are; fewer than `top` if no more are there."""
    failure = Failure(kind=FailureKind.USER_ERROR, message="diverged")
    sim = repeating(
        "grid",
        Repeat(top=4, seeds=2),
        outcome=lambda body, _attempt, _worker: (
            failure if getattr(body, "model", "") == "m00" and getattr(body, "epoch", 0) == 2 else None
        ),
    )
    request_at(sim, 1.5, ModelStopRequested(run="fit-1", model="m01"))
    run = fit_of(sim)
    assert run.state is RunState.FINISHED
    assert sorted(repeats_of(run)) == ["m02", "m03"]


def test_a_stopped_run_repeats_nothing_until_it_is_resumed() -> None:
    """Then its models complete their training, and the best are repeated."""
    sim = repeating("stopping")
    request_at(sim, 1.5, RunStopRequested(run="fit-1"))
    stopped = fit_of(sim)
    assert stopped.state is RunState.STOPPED
    assert not repeats_of(stopped)
    run = reopened(sim, RunResumed(run="fit-1", by="user"))
    assert run.state is RunState.FINISHED
    assert len(repeats_of(run)) == 2


def test_a_model_added_later_is_repeated_if_it_is_among_the_best() -> None:
    """Earlier repeats stay, and each model is repeated once."""
    sim = repeating("grid")
    first = fit_of(sim)
    new = NewModel(hyperparams={"lr": 0.0101, "batch_size": 1}, epochs=3)
    run = reopened(sim, ModelsAdded(run="fit-1", models=(new,)))
    assert run.state is RunState.FINISHED
    (added,) = [name for name in run.models if name not in first.models and not run.models[name].is_repeat]
    assert added in repeats_of(run)
    assert Counter(len(models) for models in repeats_of(run).values()) == {3: len(repeats_of(run))}


COMMANDS: list[ClientEvent] = [
    ModelStopRequested(run="fit-1", model="m05"),
    ModelExtended(run="fit-1", model="m05", epochs=3),
    ModelChanged(run="fit-1", model="m05", hyperparams={"lr": 0.5}),
    ModelsAdded(
        run="fit-1", models=(NewModel(hyperparams={"lr": 0.5, "batch_size": 1}, epochs=1, parent="m05"),)
    ),
]


@pytest.mark.parametrize("name", ["grid", "random"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda event: event.type)
def test_users_may_command_repeats(name: str, command: ClientEvent) -> None:
    """A repeat is a model like any other: its commands take effect, and the search gets no report."""
    undisturbed = repeating(name)
    repeat = repeats_of(fit_of(undisturbed))
    target = next(iter(repeat.values()))[1].id
    at = next(event.time for event in undisturbed.log if isinstance(event, ModelsRepeated)) + 0.5
    sim = repeating(name)
    if getattr(command, "model", ""):
        command = command.model_copy(update={"model": target})
    request_at(sim, at, command)
    run = fit_of(sim)
    assert run.state is RunState.FINISHED
    assert not fold(EXPERIMENT, sim.log).commands[-1].is_late
    if run.search is not None:
        assert not any(getattr(report, "model", "") == target for report in run.search.reports)


def test_a_stopped_repeat_may_be_resumed_after_the_end() -> None:
    """Only the repeat trains on; nothing else is repeated."""
    undisturbed = repeating("grid")
    target = next(iter(repeats_of(fit_of(undisturbed)).values()))[0].id
    at = next(event.time for event in undisturbed.log if isinstance(event, ModelsRepeated)) + 0.5
    sim = repeating("grid")
    request_at(sim, at, ModelStopRequested(run="fit-1", model=target))
    stopped = fit_of(sim)
    assert stopped.models[target].state is ModelState.STOPPED
    run = reopened(sim, ModelResumed(run="fit-1", model=target))
    assert run.models[target].state is ModelState.FINISHED
    assert list(run.models) == list(stopped.models)


@pytest.mark.parametrize("models", [("m09",), ("m00", "m00"), ("m04",)])
def test_a_repeat_that_is_not_due_is_illegal(models: tuple[str, ...]) -> None:
    """Of an unknown model, twice, or of a repeat."""
    sim = repeating("grid")
    sim.run(limit=20_000)
    state = fold(EXPERIMENT, [event for event in sim.log if event.type != "RunFinished"])
    with pytest.raises(IllegalEventError):
        state.apply(ModelsRepeated(run="fit-1", models=models))


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_repeats_survive_failures_and_commands(data: st.DataObject) -> None:
    """After any failures, crashes and commands the run ends, and no model has more repeats than seeds."""
    name = data.draw(st.sampled_from(sorted(SEARCHES)))
    failing = data.draw(st.sets(st.integers(0, 14), max_size=3))
    failure = Failure(kind=FailureKind.USER_ERROR, message="diverged")
    sim = repeating(
        name,
        Repeat(top=data.draw(st.integers(1, 5)), seeds=data.draw(st.integers(2, 3))),
        crash_before=frozenset(data.draw(st.sets(st.integers(0, 150), max_size=3))),
        outcome=lambda body, _attempt, _worker: (
            failure if int(getattr(body, "model", "m99")[1:]) in failing else None
        ),
    )
    for _ in range(data.draw(st.integers(0, 3))):
        model, at = f"m{data.draw(st.integers(0, 12)):02}", data.draw(st.floats(0, 40))
        command = data.draw(st.sampled_from(COMMANDS))
        request_at(sim, at, command.model_copy(update={"model": model} if hasattr(command, "model") else {}))
    run = fit_of(sim)
    assert run.state in (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)
    assert not run.due_repeats() or run.state is not RunState.FINISHED
    repeat = run.fit_request.repeats
    assert repeat is not None
    for parent, models in repeats_of(run).items():
        assert not run.models[parent].is_repeat
        assert [model.lineage.seed for model in models] == [*range(1, repeat.seeds + 1)]
