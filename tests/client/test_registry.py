"""Registered models outlive their experiment; every error names its object."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cerebro import SubEpochSpec
from cerebro.cli import program
from cerebro.client.connection import Connection
from cerebro.client.files import MountedFiles
from cerebro.client.models import registry
from cerebro.client.models.registry import RegistryMixin, load_model
from cerebro.client.results import FitResult
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.stored.registry import AliasRequest
from cerebro.contract.tasks.results import TaskResult
from cerebro.data.files.base_file import Layout, Range, base_namer
from cerebro.data.files.durable import DurableFile, checksum
from cerebro.data.files.safe_open import open_below
from cerebro.errors import (
    BadRequestError,
    CheckpointCorruptError,
    ClusterError,
    ConflictError,
    DataError,
    NotFoundError,
)
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from cerebro.usercode import in_process
from cerebro.usercode.encoding import encode
from cerebro.usercode.fitted import pack_fitted, restore_fitted, write_fitted
from cerebro.worker.training.checkpoints.checkpoint import save
from controller.storage.registered_models import Registering
from tests.client.results.fits import fit_result
from tests.state.stories import Story, sub_epoch


class Network(SubEpochSpec):
    """One layer with the fitted width."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [torch.nn.Linear(self.fitted["width"], 1)]


class Trained(RegistryMixin):
    """An experiment of two models with checkpoints; the controller copies while the client waits."""

    def __init__(self, kvs: KvsClient, volumes: Volumes) -> None:
        self.kvs, self.volumes = kvs, volumes
        self.registering = Registering(kvs, volumes)
        code = kvs.put_code(encode(Network()))
        kvs.create_experiment(
            ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="m.csv")))
        )
        self.story = Story()
        self.story.etl(workers=1)
        self.story.fit(models=2, partitions=1, epochs=1)
        self.story.run.request = self.story.run.fit_request.model_copy(update={"code": code.sha256})
        for number, model in enumerate(("m00", "m01")):
            volumes.model_checkpoints("one", "fit-1", model).mkdir(parents=True)
            layer = torch.nn.Linear(3, 1)
            torch.nn.init.constant_(layer.weight, number)
            state = {"models": [layer.state_dict()], "checkpoint": {}}
            reference = save(volumes.checkpoints, f"one/fit-1/{model}/u00000.pt", state)
            result = TaskResult(rows=1, metrics={"loss": 5.0 - number}, checkpoint=reference)
            self.story.do(sub_epoch(1, 0, model), 0, result)
        path = volumes.fitted("one-d", "etl-1", 1)
        path.parent.mkdir(parents=True)
        fitted = write_fitted(path, pack_fitted({"width": 3}), volumes.shared)
        self.story.state.datasets["one-d"].fitted = fitted
        connection = Connection(kvs=kvs, volumes=volumes, files=MountedFiles(volumes))
        session: Any = SimpleNamespace(name="one", connection=connection, state=lambda: self.story.state)
        self._session = session

    def result(self, run: str | None = None) -> FitResult:
        return fit_result(self.story, self.volumes)

    def checkpoint(self, model: str) -> Path:
        return self.volumes.checkpoint(f"one/fit-1/{model}/u00000.pt")

    def delete(self) -> None:
        """Delete the experiment with its files."""
        shutil.rmtree(self.volumes.checkpoints / "one")
        shutil.rmtree(self.volumes.shared / "datasets")


@pytest.fixture
def trained(kvs: KvsClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    trained = Trained(kvs, Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)}))
    monkeypatch.setattr(registry, "time", SimpleNamespace(
        monotonic=itertools.count(0, 100).__next__, sleep=lambda _: trained.registering.copy_due()
    ))  # fmt: skip
    monkeypatch.setattr(registry, "connect", lambda *_, **__: trained.connection)
    return trained


def test_a_version_is_loaded_after_its_experiment_is_gone(trained: Trained) -> None:
    """With its modules, the fitted value, its weights and its metadata."""
    version = trained.register("digits", "m00", alias="champion")
    trained.delete()
    for which in ("digits/1", "digits@champion"):
        model = load_model(which)
        (layer,) = model.modules()
        assert layer(torch.ones(3)).shape == (1,)
        assert torch.equal(layer.weight, torch.zeros(1, 3))
        assert model.fitted == {"width": 3}
        assert (model.name, model.version, model.checkpoint) == (
            version.name,
            version.version,
            version.checkpoint,
        )
    values = (
        version.name,
        version.version,
        version.id,
        version.run,
        version.experiment,
        version.epoch,
        version.metric,
        version.value,
    )
    assert values == ("digits", 1, "m00", "fit-1", "one", 1, "loss", 5.0)
    assert version.metrics == {"train/loss": 5.0}
    assert version.hyperparams == {"batch_size": 1, "lr": 0.1}
    assert version.dataset == "one-d"
    assert version.path.read_bytes()


def test_register_prints_the_run_and_value_first(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints the best model of all fits before it creates a version."""
    monkeypatch.setenv("CEREBRO_SERVER", "http://127.0.0.1:1")
    monkeypatch.setattr("cerebro.client.connection.connect", lambda **_: trained.connection)
    monkeypatch.setattr("cerebro.client.session.Session", lambda *_: trained._session)
    monkeypatch.setattr("cerebro.client.experiment.Experiment", SimpleNamespace(__new__=lambda _: trained))
    said_before = []
    register = trained.kvs.register_model

    def watched(*given: Any) -> Any:
        said_before.append(capsys.readouterr().out)
        return register(*given)

    monkeypatch.setattr(trained.kvs, "register_model", watched)
    assert program.main(["register", "one", "digits"]) == 0
    assert said_before == ["Registers m01 of fit-1 of one, epoch 1, loss 4.\n"]
    assert capsys.readouterr().out == "m01 of fit-1 of one, epoch 1, is digits/1.\n"


def test_a_version_does_not_change_when_the_next_version_is_registered(trained: Trained) -> None:
    """And the alias moves to the new version."""
    trained.register("digits", "m00", alias="champion")
    trained.register("digits", "m01", alias="champion")
    assert (load_model("digits/1").id, load_model("digits/2").id) == ("m00", "m01")
    assert load_model("digits@champion").version == 2
    trained.kvs.move_alias("digits", AliasRequest(alias="champion", version=1))
    assert load_model("digits@champion").version == 1


def test_a_checkpoint_with_a_base_is_copied_as_a_whole(trained: Trained) -> None:
    """The copy is one file with the same checksum."""
    path = trained.checkpoint("m00")
    whole, reference = path.read_bytes(), trained.story.run.models["m00"].sub_epochs[-1].checkpoint
    base = DurableFile(path.with_name("base"))
    base.write(whole[100:200])
    written = base.commit(named=base_namer())
    (frozen,) = path.parent.glob("frozen-*")
    assert written.num_bytes == 100
    layout = Layout(base=frozen.name, size=len(whole), ranges=(Range(start=100, size=100, at=0),))
    path.write_bytes(whole[:100] + whole[200:] + layout.encoded())
    trained.register("digits", "m00")
    trained.delete()
    copy = load_model("digits/1").path
    assert copy.read_bytes() == whole
    assert checksum(copy).checksum == reference.checksum


@pytest.mark.parametrize("harm", ["gone", "flipped", "cut", "link", "fitted"])
def test_a_missing_or_damaged_checkpoint_becomes_no_version(trained: Trained, harm: str) -> None:
    """The error names the file, the expectation and the fix. No damaged copy remains, and other versions work."""
    path = trained.checkpoint("m00")
    whole = path.read_bytes()
    match harm:
        case "gone":
            path.unlink()
        case "flipped":
            path.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
        case "cut":
            path.write_bytes(whole[:-1])
        case "link":
            path.unlink()
            path.symlink_to("/etc/passwd")
        case "fitted":
            shutil.rmtree(trained.volumes.shared / "datasets")
    message = r"version 1 of digits could not be created: (one|datasets)/.*(is gone|was damaged).*register"
    with pytest.raises(CheckpointCorruptError, match=message):
        trained.register("digits", "m00", alias="champion")
    left = list(trained.volumes.checkpoints.glob(".registry/*/*/*"))
    assert [file.read_bytes() for file in left] == ([whole] if harm == "fitted" else [])
    with pytest.raises(ConflictError, match="version 1 of digits cannot be loaded: "):
        load_model("digits/1")
    if harm != "fitted":
        assert trained.register("digits", "m01").version == 2
    assert trained.kvs.registered_model("digits").aliases == {}


def test_a_copy_that_is_damaged_later_is_named(trained: Trained) -> None:
    """With the way to restore it."""
    trained.register("digits", "m00")
    copy = trained.volumes.checkpoint(".registry/digits/v1/model.pt")
    copy.write_bytes(copy.read_bytes()[:-1])
    model = load_model("digits/1")
    message = (
        r"version 1 of the registered model 'digits' cannot be loaded: .*Restore .registry/digits/v1/model.pt"
    )
    with pytest.raises(CheckpointCorruptError, match=message):
        model.load()
    copy.unlink()
    with pytest.raises(CheckpointCorruptError, match=message):
        model.modules()


def test_the_fitted_value_is_restored_on_request_only(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restoring runs user code, so `load_model` and `load` must not. It happens once."""
    restored = []

    def watched(content: bytes) -> Any:
        restored.append(content)
        return restore_fitted(content)

    monkeypatch.setattr(in_process, "restore_fitted", watched)
    trained.register("digits", "m00")
    model = load_model("digits/1")
    model.load()
    assert restored == []
    assert model.fitted is model.fitted
    assert restored == [pack_fitted({"width": 3})]
    trained.volumes.checkpoint(".registry/digits/v1/fitted.pickle").write_bytes(b"damaged")
    with pytest.raises(
        DataError, match=r"the result of ETLSpec.fit, .*fitted.pickle, is damaged.*Restore it"
    ):
        _ = load_model("digits/1").fitted


def test_a_version_without_fit_has_no_fitted_value(trained: Trained) -> None:
    """As for `ETLSpec.fitted`."""
    trained.story.state.datasets["one-d"].fitted = None
    trained.register("digits", "m00")
    assert load_model("digits/1").fitted is None


def test_the_next_controller_completes_an_interrupted_copy(trained: Trained) -> None:
    """The store still lists it as pending."""
    pending = trained.register("digits", "m00")
    version = trained.kvs.register_model("digits", trained.kvs.registered_model("digits").versions[0].source)
    aside = trained.volumes.checkpoint(".registry/digits/v2")
    aside.mkdir(parents=True)
    (aside / ".model.pt.1-dead.aside").write_bytes(b"half")
    Registering(trained.kvs, trained.volumes).copy_due()
    assert load_model(f"digits/{version.version}").checkpoint.checksum == pending.checkpoint.checksum


def test_old_partial_copies_are_removed(trained: Trained) -> None:
    """Partial copies of ready and failed versions are deleted hourly.

    Files that another controller may still write, and files of versions, stay.
    """
    trained.register("digits", "m00")
    now = 1_000_000_000.0
    folders = [trained.volumes.registry / name for name in ("digits/v1", "digits/v7", "gone/v1")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for name, age in ((".model.pt.1-dead.aside", 3601.0), (".model.pt.2-alive.aside", 3599.0)):
            (folder / name).write_bytes(b"half")
            os.utime(folder / name, (now - age, now - age))
    os.utime(trained.volumes.registry / "digits/v1/model.pt", (1.0, 1.0))
    elapsed = [0.0]
    controller = Registering(trained.kvs, trained.volumes, clock=lambda: now, monotonic=lambda: elapsed[0])
    controller.copy_due()
    left = {path.name for folder in folders for path in folder.iterdir()}
    assert left == {"model.pt", "fitted.pickle", ".model.pt.2-alive.aside"}
    now += 10.0
    controller.copy_due()
    assert (folders[1] / ".model.pt.2-alive.aside").exists()
    elapsed[0] = 3600.0
    controller.copy_due()
    assert {path.name for folder in folders for path in folder.iterdir()} == {"model.pt", "fitted.pickle"}


@pytest.mark.parametrize("harm", ["gone", "flipped"])
def test_a_failed_copy_keeps_the_copy_of_another_controller(trained: Trained, harm: str) -> None:
    """It still sees the version as pending, while the checkpoint is already gone or damaged."""
    trained.register("digits", "m00")
    (version,) = trained.kvs.registered_model("digits").versions
    path = trained.checkpoint("m00")
    whole = path.read_bytes()
    path.unlink() if harm == "gone" else path.write_bytes(whole[:-1])
    assert trained.registering.copy(version).error
    assert load_model("digits/1").path.read_bytes() == whole
    load_model("digits/1").load()


def test_the_copy_waits_for_an_unavailable_volume(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version becomes ready once the volume is back."""
    from controller.storage import registered_models as registering

    opened, tries = open_below, iter([OSError(5, "Input/output error")])

    def away(root: Path, path: str) -> Any:
        for error in tries:
            raise error
        return opened(root, path)

    monkeypatch.setattr(registering, "open_below", away)
    assert trained.register("digits", "m00").version == 1


@pytest.mark.parametrize(
    "which", ["digits", "digits/", "digits/0", "digits@", "digits@a@b", "digits/1@a", "", "/1"]
)
def test_a_text_that_names_no_version_is_refused(trained: Trained, which: str) -> None:
    """The error names both forms."""
    with pytest.raises(BadRequestError, match=r"such as digits@champion or digits/3"):
        load_model(which)


@pytest.mark.parametrize("name", ["Digits", "a b", "x" * 51, ""])
def test_an_invalid_name_is_refused_before_registration(trained: Trained, name: str) -> None:
    """With the expected form."""
    with pytest.raises(BadRequestError, match=r"use at most 50 lower-case letters, digits and dashes"):
        trained.register(name, "m00")
    with pytest.raises(BadRequestError, match=r"use a letter, then lower-case letters"):
        trained.register("digits", "m00", alias=f"3{name}")
    assert trained.kvs.registry() == ()


def test_missing_versions_are_named_with_the_existing_versions(trained: Trained) -> None:
    """Models, versions, aliases, and models of the experiment."""
    with pytest.raises(NotFoundError, match=r"no model is registered as 'digits'; registered are: none yet"):
        load_model("digits/1")
    with pytest.raises(NotFoundError, match="m09"):
        trained.register("digits", "m09")
    trained.register("digits", "m00", alias="champion")
    with pytest.raises(NotFoundError, match=r"no model is registered as 'digit': did you mean digits\?"):
        load_model("digit/1")
    with pytest.raises(NotFoundError, match=r"digits has no version 2; it has 1"):
        load_model("digits/2")
    with pytest.raises(NotFoundError, match=r"digits has no alias 'best'; it has champion \(1\)"):
        load_model("digits@best")


def test_loading_a_model_starts_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A look-up joins a running cluster, or raises if no cluster runs."""
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(tmp_path / "home"))
    with pytest.raises(ClusterError, match=r"no local cluster runs at .*cerebro up"):
        load_model("digits/1")
    assert not (tmp_path / "home").exists()


def test_a_model_without_its_checkpoint_is_not_registered(trained: Trained) -> None:
    """The model is known, but has no checkpoint to copy."""
    reference = trained.story.model("m00").epoch_checkpoint(1)
    assert reference is not None
    trained.story.model("m00").checkpoints.removed.add(reference.name)
    with pytest.raises(NotFoundError, match="removed, because fit-1 keeps"):
        trained.register("digits", "m00")
