"""A trained model: its checkpoint, weights, and modules built by its spec."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cerebro import Experiment, StepSpec, SubEpochSpec
from cerebro.client.files import MountedFiles
from cerebro.client.results import FitResult
from cerebro.client.results.model import TrainedModel
from cerebro.commands.selection import chosen_fit
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import ClusterError, NotFoundError
from cerebro.runtime.volumes import Volumes
from cerebro.usercode import archive
from cerebro.usercode.encoding import encode
from cerebro.usercode.in_process import UserCode
from cerebro.worker.training.checkpoints.checkpoint import save
from tests.client.results.fits import fit_result, fitted
from tests.dispatcher.stories import record
from tests.state.stories import Story, sub_epoch
from tests.state.test_best import two_fits


@pytest.mark.parametrize("validated", [False, True])
def test_the_best_model_has_its_checkpoint(volumes: Volumes, validated: bool) -> None:
    """Id, hyperparameters, epoch, value and file; by the validation metric if the fit has one."""
    best = fit_result(fitted(validated=validated), volumes).best
    assert (best.id, best.epoch, best.metric, best.value) == ("m01", 1, "loss", 10.0 if validated else 1.0)
    assert best.hyperparams == {"batch_size": 1, "lr": 0.2}
    assert best.checkpoint.name == "m01-u1-a1"
    assert best.path == volumes.checkpoints / "m01-u1-a1"


def test_without_a_name_the_best_model_of_all_fits_is_meant(volumes: Volumes) -> None:
    """`register` keeps the same one. A named fit has its own; fits on other data are not compared."""
    for dataset, expected in (("d1", ("fit-1", "m00", 2)), ("d2", ("fit-2", "m00", 1))):
        state = two_fits(dataset=dataset).state
        connection: Any = SimpleNamespace(
            kvs=SimpleNamespace(archive=None, code=None),
            files=MountedFiles(volumes),
            page_of=lambda name, fit: "",
        )
        session: Any = SimpleNamespace(
            name="twice",
            record=record("twice"),
            connection=connection,
            state=lambda state=state: state,
            chosen_fit=lambda run, state=state: chosen_fit(state, run),
        )
        experiment = Experiment.__new__(Experiment)
        experiment._session = session
        result = experiment.result()
        assert result.run == "fit-2"
        assert (result.best.run, result.best.id, result.best.epoch) == expected
        registered = experiment._registration()
        assert (registered.run, registered.model, registered.epoch) == expected
        assert experiment.result("fit-2").best.run == "fit-2"
        assert experiment._registration(fit="fit-2").run == "fit-2"


def test_results_need_no_cache_folder(volumes: Volumes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without HOME and a name, only a call that unpacks the code archive needs one."""
    for name in ("HOME", "CEREBRO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    state = two_fits(dataset="d1").state
    session: Any = SimpleNamespace(
        record=record("twice").model_copy(update={"archive": "a" * 64}),
        connection=SimpleNamespace(
            kvs=SimpleNamespace(archive=lambda sha: b"", code=None),
            files=MountedFiles(volumes),
            page_of=lambda name, fit: "",
        ),
        state=lambda: state,
        chosen_fit=lambda run: chosen_fit(state, run),
    )
    experiment = Experiment.__new__(Experiment)
    experiment._session = session
    result = experiment.result("fit-2")
    assert len(result.leaderboard()) == 1
    code, _ = result.user_code
    assert code is not None
    with pytest.raises(ClusterError, match="Set HOME or CEREBRO_CACHE"), code.importable():
        pass


@pytest.mark.parametrize(("named", "weight"), [(None, 0.0), (1, 0.0), (2, 1.0)])
def test_load_reads_the_best_epoch_by_default(volumes: Volumes, named: int | None, weight: float) -> None:
    """The newest epoch is worse. `epoch` names the epoch that was read."""
    story = Story()
    story.fit(models=1, partitions=1, epochs=2)
    volumes.model_checkpoints("one", "fit-1", "m00").mkdir(parents=True)
    for number, loss in enumerate((1.0, 2.0)):
        state = {"models": [{"w": torch.tensor(float(number))}], "checkpoint": {}}
        reference = save(volumes.checkpoints, f"one/fit-1/m00/u{number}.pt", state)
        story.do(
            sub_epoch(number + 1, 0), 0, TaskResult(rows=1, metrics={"loss": loss}, checkpoint=reference)
        )
    found = fit_result(story, volumes).model("m00", named)
    assert found.epoch == (named or 1)
    assert found.load()["models"][0]["w"].item() == weight


class Network(SubEpochSpec):
    """One layer; `initialize_worker` reads its width from a file."""

    def initialize_worker(self) -> None:
        self.width = int((Path(self.misc_dir) / "width.txt").read_text())

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        import layers_of_mine  # type: ignore[import-not-found]  # of the code archive

        return [layers_of_mine.layer(self.width)]


def test_any_model_can_be_built_by_its_spec(volumes: Volumes, tmp_path: Path) -> None:
    """With trained weights, in evaluation mode, with its archive; this process is not changed."""
    (tmp_path / "width.txt").write_text("3")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/layers_of_mine.py").write_text(
        "import torch\n\ndef layer(width):\n    return torch.nn.Linear(width, 1)\n"
    )
    record = ExperimentRecord(
        name="one",
        locators=Locators(train=Locator(metadata="m.csv"), misc=(str(tmp_path / "width.txt"),)),
        archive="a" * 64,
    )
    story = Story()
    story.fit(models=2, partitions=1, epochs=2)
    trained = torch.nn.Linear(3, 1)
    volumes.model_checkpoints("one", "fit-1", "m01").mkdir(parents=True)
    state = {"models": [trained.state_dict()], "checkpoint": {}}
    reference = save(volumes.checkpoints, "one/fit-1/m01/u0.pt", state)
    story.do(sub_epoch(1, 0, "m01"), 0, TaskResult(rows=1, metrics={"accuracy": 1.0}, checkpoint=reference))
    packed = archive.pack(tmp_path / "code")
    code = UserCode(record=record, archive=lambda sha: packed, folder=lambda: tmp_path / "cache")
    result = FitResult(
        story.state, story.run, MountedFiles(volumes), record, lambda sha: encode(Network()), user_code=code
    )
    drawn, path = torch.get_rng_state(), list(sys.path)
    model = result.model("m01")
    assert (model.epoch, model.value) == (1, None)
    (network,) = model.modules()
    assert torch.equal(network.weight, trained.weight)
    assert not network.training
    assert torch.equal(torch.get_rng_state(), drawn)
    assert sys.path == path
    with pytest.raises(NotFoundError, match="m00 of fit-1 has no checkpoint: it has not trained a sub-epoch"):
        result.model("m00")
    with pytest.raises(NotFoundError, match="completed 1 epochs, so there is no checkpoint of epoch 2"):
        result.model("m01", epoch=2)
    with pytest.raises(NotFoundError, match="no model 'm7'; there is"):
        result.model("m7")


class Named(SubEpochSpec):
    """Its module has the same file name as modules of other archives."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        import net_of_archive  # type: ignore[import-not-found]
        from parts_of_archive import layers  # type: ignore[import-not-found]

        assert net_of_archive.WIDTH == layers.WIDTH
        return [torch.nn.Linear(net_of_archive.WIDTH, 1)]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
        """Never called."""

    test = train


def _files(folder: Path, width: int) -> Path:
    (folder / "parts_of_archive").mkdir(parents=True)
    for name in ("net_of_archive", "parts_of_archive/layers"):
        (folder / f"{name}.py").write_text(f"WIDTH = {width}\n")
    return folder


def _known(volumes: Volumes, folder: Path, number: int) -> TrainedModel:
    """A model of an experiment whose archive has a module with this width."""
    packed = archive.pack(_files(folder / f"code-{number}", number))
    state = {"models": [torch.nn.Linear(number, 1).state_dict()], "checkpoint": {}}
    locators = Locators(train=Locator(metadata="m.csv"))
    record = ExperimentRecord(name=f"e{number}", locators=locators, archive=f"{number}" * 64)
    volumes.model_checkpoints(record.name, "fit-1", "m00").mkdir(parents=True)
    return TrainedModel(
        id="m00",
        run="fit-1",
        hyperparams={"batch_size": 1},
        metric="loss",
        epoch=1,
        value=None,
        checkpoint=save(volumes.checkpoints, f"{record.name}/fit-1/m00/u0.pt", state),
        files=MountedFiles(volumes),
        code=UserCode(record=record, archive=lambda sha: packed, folder=lambda: folder / "cache"),
        encoded=lambda: encode(Named()).encoded,
    )


class Averaging(StepSpec):
    """Averages its weights."""

    ema = 0.9

    def create_models(self, hyperparams: Any) -> list[Any]:
        return [torch.nn.Linear(2, 1)]


def test_a_model_with_averaged_weights_is_built_with_these(volumes: Volumes, tmp_path: Path) -> None:
    """As in validation; `load` returns both."""
    known = _known(volumes, tmp_path, 2)
    trained, average = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    averages = {f"0/{name}": weight for name, weight in average.state_dict().items()}
    state = {"models": [trained.state_dict()], "checkpoint": {"ema": averages}}
    model = replace(
        known,
        checkpoint=save(volumes.checkpoints, "e2/fit-1/m00/u1.pt", state),
        encoded=lambda: encode(Averaging()).encoded,
    )
    assert torch.equal(model.modules()[0].weight, average.weight)
    assert torch.equal(model.load()["models"][0]["weight"], trained.weight)


@pytest.mark.parametrize("is_imported", [True, False])
def test_each_archive_has_its_own_modules(
    volumes: Volumes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_imported: bool
) -> None:
    """Two archives and the user's folder have files with one name; the user's module stays loaded."""
    monkeypatch.syspath_prepend(_files(tmp_path / "local", 9))
    if is_imported:
        importlib.import_module("net_of_archive")
        importlib.import_module("parts_of_archive.layers")
    before = {name: module for name, module in sys.modules.items() if "_of_archive" in name}
    one, two = (_known(volumes, tmp_path, number) for number in (2, 3))
    widths = [model.modules()[0].in_features for model in (one, two, one)]
    after = {name: module for name, module in sys.modules.items() if "_of_archive" in name}
    for name in after:
        monkeypatch.delitem(sys.modules, name)
    assert widths == [2, 3, 2]
    assert after == before


def test_a_model_without_its_checkpoint_keeps_its_metadata(volumes: Volumes) -> None:
    """Only methods that read the checkpoint raise."""
    story = fitted()
    reference = story.model("m00").epoch_checkpoint(2)
    assert reference is not None
    story.model("m00").checkpoints.removed.add(reference.name)
    found = fit_result(story, volumes).model("m00")
    assert (found.hyperparams, found.epoch, found.value) == ({"batch_size": 1, "lr": 0.1}, 2, 4.0)
    for read in (found.load, lambda: found.path):
        with pytest.raises(NotFoundError, match="removed, because fit-1 keeps"):
            read()
