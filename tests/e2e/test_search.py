"""Searches suggest, extend and stop models while workers train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xxhash

from cerebro import ASHA, PBT, TPE, Parallelism, Random, Search, choice, loguniform, randint
from cerebro.contract.events import (
    CheckpointsPruned,
    ModelsAdded,
    SearchDecided,
    TaskAssigned,
    TaskCommitted,
    ValuesSuggested,
)
from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks.bodies import TrainTask
from cerebro.errors import ConflictError, NotFoundError, SearchError
from cerebro.state import Run, TaskKey
from cerebro.state.experiment import fold
from controller.decisions.tasks import body
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining
from tests.e2e.test_replay import replay
from tests.waiting import until

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "metric": "loss",
    "mode": "min",
    "seed": 3,
    "progress": False,
    "parallelism": Parallelism(trials="never"),
}
SPACE = {"lr": loguniform(1e-3, 1e-1), "batch_size": 5}


def run_of(lab: Lab, experiment: Any) -> Run:
    """Return its newest fit run."""
    return [run for run in lab.log(experiment).state().runs.values() if run.kind == "fit"][-1]


def check_complete(run: Run) -> None:
    """Check that every model used its resource unless stopped, with each partition once per epoch."""
    assert run.search is not None
    for model in run.models.values():
        assert model.completed_epochs == model.epochs or model.id in run.search.verdicts
        for epoch in range(1, model.completed_epochs + 1):
            trained = [p for sub_epoch in model.epoch_sub_epochs(epoch) for p in sub_epoch.partitions]
            assert sorted(trained) == sorted(run.fit_rows)


def test_a_search_with_conditions_trains_and_shows_what_applies(own_lab: MakeLab, tmp_path: Path) -> None:
    """User code receives only hyperparameters that apply; tables and the report leave the others empty."""
    lab = own_lab(workers=2)
    space = {
        **SPACE,
        "net": choice("flat", "deep"),
        "layers": randint(2, 6, step=2).when(net="deep"),
        "width": randint(8, 64, log=True).when(net="deep", layers=[4, 6]),
    }
    result = lab.prepared().run_fit(
        TinyTraining(), space, epochs=2, samples=10, search=ASHA(eta=2, sampler=TPE(startup=3)), **SETTINGS
    )
    board = result.leaderboard().set_index("model")
    assert len(board) == 10
    assert list(board["layers"].isin([2, 4, 6])) == list(board["net"] == "deep")
    assert list(board["width"].notna()) == list(board["layers"].isin([4, 6]))
    assert set(board["net"]) == {"flat", "deep"}
    result.report(tmp_path / "report.html")
    assert "(absent)" in (tmp_path / "report.html").read_text()


def test_a_search_by_tpe_survives_a_killed_controller_and_worker(own_lab: MakeLab) -> None:
    """ASHA with TPE.

    The controller and a worker are killed: no suggestion is lost or repeated, and every model trains to its resource.
    """
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
    drawn = [event for event in log.read() if isinstance(event, ValuesSuggested)]
    assert sum(len(event.values) for event in drawn) == 12
    assert len(run.models) == 12
    assert not any(isinstance(event, ModelsAdded) for event in log.read())
    assert result.best is not None


def test_a_clone_of_a_search_starts_from_its_parents_checkpoint(lab: Lab) -> None:
    """Population-based training: the first sub-epoch of a clone reads its parent's checkpoint and verifies the
    checksum.
    """
    experiment = lab.prepared()
    result = experiment.run_fit(
        TinyTraining(), SPACE, epochs=2, search=PBT(population=4, perturb={"lr": [0.8, 1.25]}), **SETTINGS
    )
    assert result.failures() == {}
    run = run_of(lab, experiment)
    check_complete(run)
    clones = [model for model in run.models.values() if model.lineage.sub_epochs]
    assert clones
    for clone in clones:
        parent = run.models[clone.lineage.parent]
        assert (
            clone.sub_epochs[clone.lineage.sub_epochs - 1].checkpoint.checksum
            == parent.sub_epochs[clone.lineage.sub_epochs - 1].checkpoint.checksum
        )
        assert clone.hyperparams["lr"] != parent.hyperparams["lr"]


def test_a_search_keeps_checkpoints_of_the_best_models_only(own_lab: MakeLab) -> None:
    """ASHA with 12 models, and a controller that is killed midway: the volume has exactly the logged checkpoints of two
    models. One is extended, cloned warm and tested; the others refuse with a reason.
    """
    lab = own_lab(workers=2)
    experiment = lab.prepared()
    fit = lab.spawn(
        lambda: (
            type(experiment)
            .attach(experiment.name)
            .run_fit(
                TinyTraining(), SPACE, epochs=4, samples=12, search=Search(ASHA(eta=2), keep=2), **SETTINGS
            )
        )
    )
    log = lab.log(experiment)
    log.until(lambda event: isinstance(event, CheckpointsPruned), "a first checkpoint is removed")
    lab.kill("controller")
    result = lab.result(fit, experiment)
    run = run_of(lab, experiment)
    best = run.best_models(2)
    check_files(lab, experiment, run, {model.id for model in best})
    assert result.best.load()["models"]
    dropped_model = next(model.id for model in run.models.values() if model not in best)
    with pytest.raises(
        NotFoundError, match=f"the checkpoints of {dropped_model} were removed, because fit-1 keeps those"
    ):
        result.model(dropped_model).load()
    with pytest.raises(ConflictError, match="were removed, because fit-1 keeps those of its 2 best models"):
        experiment.clone(dropped_model, {"lr": 0.02}, warm=True)
    assert list(experiment.run_test(best[0].id, split="valid", progress=False).index) == [best[0].id]
    clone = experiment.clone(best[1].id, {"lr": 0.02}, warm=True, epochs=6)
    experiment.watch("fit-1", progress=False)
    run = run_of(lab, experiment)
    check_files(lab, experiment, run, {model.id for model in run.best_models(2)})
    assert run.models[clone].kept_sub_epochs


def check_files(lab: Lab, experiment: Any, run: Run, models: set[str]) -> None:
    """Check that the volume has exactly the logged files, byte for byte."""
    found = {path for path in (lab.volumes.checkpoints / experiment.name).rglob("*") if path.is_file()}
    kept = {
        sub_epoch.checkpoint.name: sub_epoch.checkpoint.checksum
        for model in run.models.values()
        for sub_epoch in model.kept_sub_epochs
        if sub_epoch.checkpoint.name in run.kept_checkpoints(model)
    }
    assert found == {lab.volumes.checkpoint(name) for name in kept}
    assert {name.split("/")[2] for name in kept} == models
    assert len(found) <= 2 * len(models)
    for name, checksum in kept.items():
        assert checksum == f"xxh3_64:{xxhash.xxh3_64_hexdigest(lab.volumes.checkpoint(name).read_bytes())}"


def test_a_warm_clones_first_sub_epoch_reads_its_parents_checkpoint(lab: Lab) -> None:
    """A manual clone: the name and checksum in the worker's task equal the parent's last commit, and so does the file.

    A worker reads no file with another checksum.
    """
    experiment = lab.prepared()
    experiment.run_fit(TinyTraining(), [{"lr": 0.01, "batch_size": 5}], epochs=2, **SETTINGS)
    clone = experiment.clone("m00", {"lr": 0.02}, warm=True, at="last", epochs=3)
    experiment.watch("fit-1", progress=False)
    events = lab.log(experiment).read()
    committed = [
        event.result for event in events if isinstance(event, TaskCommitted) and "/m00/" in event.task
    ]
    given = [result.checkpoint for result in committed if result.checkpoint is not None][-1]
    first = next(event for event in events if isinstance(event, TaskAssigned) and f"/{clone}/" in event.task)
    before = fold(experiment.name, events[: first.seq - 1])
    key = TaskKey.parse(first.task)
    task_body = body(lab.kvs.experiment(experiment.name), before, before.runs["fit-1"], key)
    assert isinstance(task_body, TrainTask)
    assert task_body.checkpoint == given
    content = lab.volumes.checkpoint(given.name).read_bytes()
    assert given.checksum == f"xxh3_64:{xxhash.xxh3_64_hexdigest(content)}"
    assert run_of(lab, experiment).models[clone].completed_epochs == 3


def test_a_search_learns_from_a_fit_of_a_deleted_experiment(own_lab: MakeLab) -> None:
    """The plan holds the earlier values, so the search survives their deletion and a killed controller.

    A model replays to the bit.
    """
    lab = own_lab(workers=2)
    tables = lab.tables()
    earlier, experiment = lab.prepared(locators=tables), lab.prepared(locators=tables)
    earlier.run_fit(TinyTraining(), SPACE, epochs=2, samples=5, search=Random(), **SETTINGS)
    attached = type(experiment).attach(experiment.name)

    def start_from(name: str) -> Any:
        search = Search(ASHA(eta=2, sampler=TPE(startup=4)), start_from=[f"{name}/fit-1"])
        return attached.run_fit(TinyTraining(), SPACE, epochs=4, samples=8, search=search, **SETTINGS)

    with pytest.raises(SearchError, match="there is no experiment 'gone'"):
        start_from("gone")
    fit = lab.spawn(lambda: start_from(earlier.name))
    log = lab.log(experiment)
    log.until_type("RunStarted", run="fit-1")
    earlier.delete(confirm=earlier.name)
    log.until(lambda event: isinstance(event, SearchDecided) and event.number == 3, "decision 3")
    lab.kill("controller")
    result = lab.result(fit, experiment)
    run = run_of(lab, experiment)
    check_complete(run)
    assert isinstance(run.plan, FitPlan)
    (found,) = run.plan.earlier
    assert [list(each.values) for each in found.models] == [[1, 2]] * 5
    assert "learns from 5 models of " in attached.status()
    until(
        lambda: earlier.name not in {each.experiment.name for each in lab.kvs.experiments()}, "the deletion"
    )
    with pytest.raises(SearchError, match="it was deleted, or the name is wrong"):
        start_from(earlier.name)
    model = result.best.id
    status, text = replay(experiment.name, "--model", model)
    assert (status, "final state equal to the bit" in text) == (0, True), text
