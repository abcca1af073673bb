"""Searches in a real cluster: models are drawn, extended and stopped while workers train."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro import ASHA, PBT, TPE, loguniform
from cerebro.contract.events import ModelsAdded, SearchDecided, ValuesDrawn
from cerebro.state import Run
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"metric": "loss", "mode": "min", "seed": 3, "progress": False, "trials": "never"}
SPACE = {"lr": loguniform(1e-3, 1e-1), "batch_size": 5}


def run_of(lab: Lab, experiment: Any) -> Run:
    """Its newest fit run."""
    return [run for run in lab.log(experiment).state().runs.values() if run.kind == "fit"][-1]


def check_complete(run: Run) -> None:
    """Every model was trained as far as it was granted, unless the search has stopped it; each partition once in each
    epoch."""
    assert run.search is not None
    for model in run.models.values():
        assert model.completed_epochs == model.epochs or model.id in run.search.verdicts
        for epoch in range(1, model.completed_epochs + 1):
            visited = [p for visit in model.epoch_visits(epoch) for p in visit.partitions]
            assert sorted(visited) == sorted(run.fit_rows)


def test_a_search_draws_by_tpe_and_survives_its_controller_and_a_worker(own_lab: MakeLab) -> None:
    """ASHA with TPE, whose values are drawn beside the controller. The controller and a worker are killed meanwhile: no
    draw is lost or made twice, and every model is trained as far as it was granted."""
    lab = own_lab(workers=2)
    experiment = lab.prepared()
    fit = lab.spawn(
        lambda: (
            type(experiment)
            .attach(experiment.name)
            .run_fit(
                TinyTraining(),
                SPACE,
                epochs=4,
                samples=12,
                search=ASHA(eta=2, sampler=TPE(startup=3)),
                **SETTINGS,
            )
        )
    )
    log = lab.log(experiment)
    log.until(lambda event: isinstance(event, SearchDecided) and event.number == 6, "decision 6")
    lab.kill("controller")
    log.until(lambda event: isinstance(event, SearchDecided) and event.number == 10, "decision 10")
    lab.kill("worker-1")
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    run = run_of(lab, experiment)
    check_complete(run)
    drawn = [event for event in log.read() if isinstance(event, ValuesDrawn)]
    assert sum(len(event.values) for event in drawn) == 12
    assert len(run.models) == 12
    assert not any(isinstance(event, ModelsAdded) for event in log.read())
    assert result.best is not None


def test_a_clone_of_a_search_begins_with_its_parents_file(lab: Lab) -> None:
    """Population-based training: the first unit of a clone was given the checkpoint that its parent had written, whose
    checksum was looked at when it was read."""
    experiment = lab.prepared()
    result = experiment.run_fit(
        TinyTraining(), SPACE, epochs=2, search=PBT(population=4, perturb={"lr": [0.8, 1.25]}), **SETTINGS
    )
    assert result.failures() == {}
    run = run_of(lab, experiment)
    check_complete(run)
    clones = [model for model in run.models.values() if model.inherited]
    assert clones
    for clone in clones:
        parent = run.models[clone.parent]
        assert clone.visits[clone.inherited - 1].checksum == parent.visits[clone.inherited - 1].checksum
        assert clone.hyperparams["lr"] != parent.hyperparams["lr"]
