"""Searches, populations and clones whose models train in fused groups."""

from __future__ import annotations

from collections import Counter

import pytest

from cerebro.contract.events import TaskAssigned
from cerebro.contract.parallel_plans import SINGLE
from cerebro.contract.search import ASHA, PBT, Hyperband, ProcedureChoice, Random
from cerebro.state import ModelState, Run, RunState
from research.simulation.cluster import Simulation
from tests.controller.searches import fit_of, search_of, simulation, story
from tests.controller.test_fused_groups import assert_groups_are_sound, fused, groups_of, inspection

SEARCHES: dict[str, tuple[ProcedureChoice, int | None]] = {
    "random": (Random(), 8),
    "stopping": (ASHA(eta=2), 12),
    "promotion": (ASHA(rule="promotion", eta=2), 12),
    "hyperband": (Hyperband(eta=2), None),
    "pbt": (PBT(population=8, perturb={"lr": (0.8, 1.25)}), None),
}


def searching(name: str, *, in_groups: bool = True, crash_before: frozenset[int] = frozenset()) -> Simulation:
    """Return a finished simulation of a search, in groups of at most four models if asked."""
    procedure, samples = SEARCHES[name]
    simulated = simulation(
        search_of(procedure, samples=samples),
        epochs=4,
        parallel_plans=(fused(4), SINGLE) if in_groups else (),
        inspection=inspection((0,), most=4) if in_groups else None,
        crash_before=crash_before,
    )
    simulated.run(limit=50_000)
    return simulated


def assert_trained_once(run: Run) -> None:
    """Each model has each sub-epoch of its completed epochs once, its parent's included."""
    for model in run.models.values():
        assert model.state in (ModelState.FINISHED, ModelState.STOPPED)
        trained = Counter((each.epoch, each.partition) for each in model.sub_epochs)
        epochs = range(1, model.completed_epochs + 1)
        assert trained == {(epoch, partition): 1 for epoch in epochs for partition in run.fit_rows}


@pytest.mark.parametrize("name", SEARCHES)
def test_models_of_a_search_train_in_groups(name: str) -> None:
    """Models that start later, and clones that start from a checkpoint, join groups of their epoch."""
    simulated = searching(name)
    run = fit_of(simulated)
    assert run.state is RunState.FINISHED
    assert_groups_are_sound(simulated.log)
    assert_trained_once(run)
    assert max(map(len, groups_of(simulated))) > 1


@pytest.mark.parametrize("name", ["hyperband", "pbt"])
def test_groups_do_not_change_what_a_search_decides(name: str) -> None:
    """Both compare models only after all reached a resource, so times do not change their decisions."""
    models, _, verdicts = story(fit_of(searching(name)))
    assert (models, verdicts) == story(fit_of(searching(name, in_groups=False)))[::2]


def test_a_clone_trains_in_a_group_from_its_parents_checkpoint() -> None:
    """In a population, a clone of a strong model replaces a weak one and trains with other models."""
    simulated = searching("pbt")
    run = fit_of(simulated)
    clones = {model.id for model in run.models.values() if model.lineage.sub_epochs}
    grouped = {
        model for group in groups_of(simulated) if len(group) > 1 for model in group if model in clones
    }
    assert grouped
    for model in grouped:
        parent = run.models[run.models[model].lineage.parent]
        assert run.models[model].sub_epochs[0] == parent.sub_epochs[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_in_groups_survives_a_controller_crash_at_any_write(name: str) -> None:
    """Groups stay sound, and each sub-epoch is trained exactly once."""
    writes = sum(isinstance(event, TaskAssigned) for event in searching(name).log)
    for write in range(1, 3 * writes, 17):
        simulated = searching(name, crash_before=frozenset({write, write + 2}))
        run = fit_of(simulated)
        assert run.state is RunState.FINISHED
        assert_groups_are_sound(simulated.log)
        assert_trained_once(run)
