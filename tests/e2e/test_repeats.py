"""The best models of a fit are trained again with new seeds on a real cluster."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro import ASHA, Parallelism, Repeat, Search, loguniform
from cerebro.cli.experiments.status import state_lines
from cerebro.contract.events import ModelsRepeated, TaskStarted
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining
from tests.e2e.test_replay import replay

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "metric": "loss",
    "mode": "min",
    "seed": 3,
    "progress": False,
    "parallelism": Parallelism(trials="never"),
}
GRID = {"lr": [0.003, 0.03, 0.3], "batch_size": 5}


def test_repeats_of_a_grid_survive_a_killed_controller_and_worker(own_lab: MakeLab) -> None:
    """Each repeat trains every sub-epoch once with its own seed; tables, status and replay show it."""
    lab = own_lab(workers=2)
    experiment = lab.prepared()
    name = experiment.name
    fit = lab.spawn(
        lambda: (
            type(experiment)
            .attach(name)
            .run_fit(TinyTraining(), GRID, epochs=2, repeats=Repeat(top=2, seeds=2), **SETTINGS)
        )
    )
    log = lab.log(experiment)
    log.until_type("ModelsRepeated")
    lab.kill("controller")
    log.until(lambda event: isinstance(event, TaskStarted) and "/m05/" in event.task, "a repeat trains")
    lab.kill("worker-1")
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    run = lab.check(experiment)  # exactly once, and the weights of a plain training with the repeats' seeds
    assert sum(isinstance(event, ModelsRepeated) for event in log.read()) == 1

    board, repeats = result.leaderboard(), result.repeats()
    assert list(board["model"][:2]) == list(repeats.index)
    assert len(board) == 3
    assert repeats["loss mean"].is_monotonic_increasing
    assert list(repeats["seeds"]) == [2, 2]
    for model, row in repeats.iterrows():
        values = [
            min(each.scores("loss", validated=True).values())
            for each in run.models.values()
            if each.lineage.parent == model
        ]
        assert [row["seed 4"], row["seed 5"]] == values
        assert row["loss mean"] == pytest.approx(sum(values) / 2)
        assert values[0] != values[1]
    assert result.best.id == repeats.index[0]

    assert any("REPEATS OF fit-1" in line for line in state_lines(log.state()))
    status, text = replay(name, "--model", "m06")
    assert (status, "final state equal to the bit" in text) == (0, True), text


def test_repeats_of_a_search_train_as_long_as_their_model(lab: Lab) -> None:
    """ASHA stops some models early; a repeat has the epochs of its model, and takes no part in the search."""
    experiment = lab.prepared()
    space = {"lr": loguniform(1e-3, 1e-1), "batch_size": 5}
    result = experiment.run_fit(
        TinyTraining(),
        space,
        epochs=4,
        samples=5,
        search=Search(ASHA(eta=2), keep=2),
        repeats=Repeat(top=1, seeds=2),
        **SETTINGS,
    )
    run = lab.log(experiment).state().runs["fit-1"]
    repeats = [model for model in run.models.values() if model.is_repeat]
    assert len(repeats) == 2
    for model in repeats:
        assert model.completed_epochs == run.models[model.lineage.parent].completed_epochs
    assert list(result.repeats()["seeds"]) == [2]
    assert len(result.leaderboard()) == 5
