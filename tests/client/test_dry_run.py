"""`Experiment.dry_run` runs user code on a few rows in this process without side effects."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from cerebro import ETLSpec, Experiment, Parallelism, StepSpec, SubEpochSpec
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.errors import (
    LocatorError,
    MetadataError,
    MetricError,
    NonFiniteMetricError,
    RowError,
    SearchSpaceError,
    SpecError,
)
from cerebro.usercode.archive import pack

CONFIGURATION = {"lr": 0.1, "batch_size": 4}


class Arrays(ETLSpec):
    """Two numbers scaled by a factor from a file, and a label."""

    def __init__(self, broken: tuple[int, ...] = ()) -> None:
        self.is_feature_download = ["array"]
        self.broken = broken
        self.scale = 1.0

    def initialize_worker(self) -> None:
        self.scale = float((Path(self.misc_dir) / "scale.txt").read_text())

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        if row["id"] in self.broken:
            raise ValueError(f"cannot read {row['id']}")
        pixels = np.load(f"{object_dir}/{row['array']}") * np.float32(self.scale) + random.random() * 0
        return pixels.astype(np.float32), None if mode == "predict" else row["label"]


class Linear(SubEpochSpec):
    """A linear classifier; `wrong` selects a mistake."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.sub_epochs = 0

    def create_models(self, hyperparams: Any) -> list[Any]:
        return [torch.nn.Linear(2, 3)]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
        if "optimizer" in checkpoint:
            if self.wrong == "second sub-epoch":
                raise KeyError("no such state")
            optimizer.load_state_dict(checkpoint["optimizer"])
        self.sub_epochs += 1
        for inputs, labels in dataloader:
            loss = functional.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
            dataloader.report(loss=loss)
        checkpoint["optimizer"] = optimizer if self.wrong == "checkpoint" else optimizer.state_dict()
        if self.wrong == "exit":
            sys.exit(3)
        return {"nan": {"loss": float("nan")}, "metrics": 3.0}.get(self.wrong, {"loss": loss.item()})

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        (network,) = models
        return {
            "accuracy": float(sum((network(x).argmax(1) == y).sum() for x, y in dataloader))
            / dataloader.num_rows
        }

    def predict(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
        (network,) = models
        for inputs, _ in dataloader:
            count = len(inputs) - (self.wrong == "predictions")
            yield {"label": network(inputs).argmax(1)[:count]}


class OnlyTrained(SubEpochSpec):
    """A spec without `test` and `predict`."""

    create_models = Linear.create_models

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        return {"rows": float(sum(len(labels) for _, labels in dataloader))}


@pytest.fixture
def locators(tmp_path: Path) -> Locators:
    """Twenty training rows, five validation rows, three prediction rows."""
    (tmp_path / "objects").mkdir()
    (tmp_path / "scale.txt").write_text("0.5")
    found = {}
    for split, count in (("train", 20), ("valid", 5), ("predict", 3)):
        lines = ["id,array,label", *(f"{number},{number}.npy,{number % 3}" for number in range(count))]
        (tmp_path / f"{split}.csv").write_text("\n".join(lines) + "\n")
        found[split] = Locator(metadata=str(tmp_path / f"{split}.csv"), objects=str(tmp_path / "objects"))
    for number in range(20):
        np.save(tmp_path / "objects" / f"{number}.npy", np.array([number, 1], dtype=np.float32))
    return Locators(**found, misc=(str(tmp_path / "scale.txt"),))


def experiment(locators: Locators, archive: bytes | None = None) -> Experiment:
    """An experiment whose cluster only serves its code archive."""
    record = ExperimentRecord(name="one", locators=locators, archive="a" * 64 if archive else None)
    instance = Experiment.__new__(Experiment)
    kvs = SimpleNamespace(archive=lambda sha256: archive)
    instance._session = SimpleNamespace(record=record, connection=SimpleNamespace(kvs=kvs))  # type: ignore[assignment]
    return instance


def test_the_dry_run_tries_every_step(locators: Locators) -> None:
    """Rows of each split, a batch, two sub-epochs with a checkpoint, a test and predictions; one line each."""
    found = experiment(locators).dry_run(Arrays(), Linear(), CONFIGURATION)
    assert {split: (tried.rows, tried.total) for split, tried in found.rows.items()} == {
        "train": (8, 20),
        "valid": (5, 5),
        "predict": (3, 3),
    }
    steps = [step.name for step in found.steps]
    assert steps == [
        "initialize_worker", "create_models", "train", "checkpoint", "test", "train again", "predict"
    ]  # fmt: skip
    assert found.batch == {"input": "float32 (4, 2)", "output": "int64 (4,)"}
    assert found.parameters == 9
    assert (found.checkpoint_bytes or 0) > 100
    assert set(found.metrics) == {"train", "test"}
    assert found.skipped == {}
    shown = repr(found)
    for line in (
        "rows of train      8 of 20",
        "input float32 (2,), output int64 ()",
        "modules: 1, parameters: 9",
        "accuracy ",
    ):
        assert line in shown


class Stepped(StepSpec):
    """A linear classifier by steps; `wrong` selects a mistake."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong

    create_models = Linear.create_models

    def training_step(self, models: Any, batch: Any, hyperparams: Any) -> Any:
        loss = functional.cross_entropy(models[0](batch[0]), batch[1])
        return {"nothing": None, "number": loss.item(), "detached": loss.detach()}.get(self.wrong, loss)

    def configure_optimizers(self, models: Any, hyperparams: Any) -> Any:
        optimizer = torch.optim.Adam(models[0].parameters(), lr=hyperparams["lr"])
        return None if self.wrong == "optimizer" else optimizer

    def validation_step(self, models: Any, batch: Any, hyperparams: Any) -> Any:
        correct = models[0](batch[0]).argmax(1) == batch[1]
        return correct if self.wrong == "validation" else {"accuracy": correct}

    def prediction_step(self, models: Any, batch: Any, hyperparams: Any) -> Any:
        return {"label": models[0](batch[0]).argmax(1)}


class SteppedOnly(StepSpec):
    """Has no step for validation or prediction."""

    create_models, training_step = Linear.create_models, Stepped.training_step
    configure_optimizers = Stepped.configure_optimizers
    wrong = ""


def test_the_dry_run_tries_every_step_of_a_step_spec(locators: Locators) -> None:
    """The same lines as for a loop; steps that are not needed may be missing."""
    found = experiment(locators).dry_run(Arrays(), Stepped(), CONFIGURATION)
    assert [step.name for step in found.steps][2:] == [
        "train",
        "checkpoint",
        "test",
        "train again",
        "predict",
    ]
    assert {name: set(values) for name, values in found.metrics.items()} == {
        "train": {"loss"},
        "test": {"accuracy"},
    }
    assert (found.skipped, found.warnings) == ({}, ())
    without = locators.model_copy(update={"valid": None})
    assert set(experiment(without).dry_run(Arrays(), SteppedOnly(), CONFIGURATION).skipped) == {
        "test",
        "predict",
    }
    with pytest.raises(SpecError, match=r"SteppedOnly has no method 'validation_step'"):
        experiment(locators).dry_run(Arrays(), SteppedOnly(), CONFIGURATION)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("nothing", r"training_step\(\) returned None, expected the loss"),
        ("number", r"training_step\(\) returned a float, expected the loss"),
        ("detached", r"a loss that needs no gradient"),
        ("optimizer", r"configure_optimizers\(\) returned a NoneType, expected an optimizer"),
        ("validation", r"validation_step\(\) returned a Tensor, expected a dict"),
    ],
)
def test_a_wrong_step_fails_in_the_dry_run(locators: Locators, wrong: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        experiment(locators).dry_run(Arrays(), Stepped(wrong), CONFIGURATION)


class Fitting(Arrays):
    """Numbers the labels in order of the sampled training rows."""

    def fit(self, batches: Any, object_dir: str) -> Any:
        labels = [label for batch in batches for label in batch["label"].to_pylist()]
        assert (Path(object_dir) / "0.npy").exists()
        return {"labels": list(dict.fromkeys(labels)), "rows": len(labels)}

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        inputs, label = super().row_preprocessor(row, mode, object_dir)
        return inputs, None if label is None else self.fitted["labels"].index(label)


class Fitted(Linear):
    """Has one class per fitted label."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        return [torch.nn.Linear(2, len(self.fitted["labels"]))]


def test_fit_is_tried_on_the_same_training_rows(locators: Locators) -> None:
    """The fit runs first and both specs get its result; without training rows it is skipped."""
    found = experiment(locators).dry_run(Fitting(), Fitted(), CONFIGURATION)
    assert found.steps[0].name == "fit"
    assert "of 8 rows" in found.steps[0].outcome
    assert (found.parameters, found.skipped) == (9, {})
    assert experiment(locators).dry_run(Fitting()).steps[0].name == "fit"
    with pytest.raises(SpecError, match="needs the rows of split 'train', but the locators lack it"):
        experiment(Locators(valid=locators.valid, misc=locators.misc)).dry_run(Fitting())


def test_missing_parts_are_skipped_with_the_reason(locators: Locators) -> None:
    """Optional methods, missing data, and batches larger than the sample."""
    only = Locators(train=locators.train, misc=locators.misc)
    found = experiment(only).dry_run(Arrays(), OnlyTrained(), {"batch_size": [32, 64]}, rows=6)
    assert found.metrics == {"train": {"rows": 6.0}}
    assert set(found.skipped) == {"test", "predict", "full batch"}
    assert "6 of batch_size 32 rows were tried" in repr(found)
    assert experiment(only).dry_run(Arrays()).skipped == {"training": "no SubEpochSpec was given"}


def test_the_dry_run_leaves_no_trace(
    locators: Locators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No files, and no change of specs, random generators or import paths."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv(
        "TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch")
    )  # created when a module of torch is imported
    (tmp_path / "tmp").mkdir()
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    expected = random.random(), float(np.random.rand()), float(torch.rand(()))
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    etl, training, path, modules = Arrays(), Linear(), list(sys.path), set(sys.modules)
    experiment(locators).dry_run(etl, training, CONFIGURATION)
    assert (random.random(), float(np.random.rand()), float(torch.rand(()))) == expected
    assert (etl.scale, etl.misc_dir, training.sub_epochs) == (1.0, "", 0)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert sys.path == path
    assert not {
        name
        for name in set(sys.modules) - modules
        if "dry-run" in str(getattr(sys.modules[name], "__file__", ""))
    }


class Imports(SubEpochSpec):
    """Uses a file of the code archive."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        import nets_of_mine  # type: ignore[import-not-found]

        return [nets_of_mine.net()]

    train = OnlyTrained.train
    test = Linear.test


def test_files_of_the_code_archive_can_be_imported(locators: Locators, tmp_path: Path) -> None:
    """During the dry run only."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/nets_of_mine.py").write_text(
        "import torch\n\ndef net():\n    return torch.nn.Linear(2, 3)\n"
    )
    found = experiment(locators, pack(tmp_path / "code")).dry_run(Arrays(), Imports(), CONFIGURATION)
    assert found.parameters == 9
    assert "nets_of_mine" not in sys.modules


def test_failed_rows_are_listed(locators: Locators) -> None:
    """One line per failed row; the first has the user's frames."""
    with pytest.raises(RowError, match=r"2 of the first 8 rows of split 'train' failed") as caught:
        experiment(locators).dry_run(Arrays(broken=(2, 5)))
    text = str(caught.value)
    assert "  row 2: ValueError: cannot read 2\n  row 5: ValueError: cannot read 5\n" in text
    assert "in row_preprocessor" in text
    assert text.count("Traceback") == 1


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ("second sub-epoch", KeyError, "no such state"),
        ("checkpoint", SpecError, "holds a torch.optim.adam.Adam"),
        ("nan", NonFiniteMetricError, "loss became nan"),
        ("metrics", MetricError, r"train\(\) returned a float, expected a dict"),
        ("predictions", SpecError, r"predict\(\) returned 2 values of 'label' for 3 rows"),
        ("exit", SpecError, r"user code called exit\(3\) in train"),
    ],
)
def test_code_that_fails_on_a_worker_fails_in_the_dry_run(
    locators: Locators, wrong: str, error: type[Exception], message: str
) -> None:
    """The same error type, with the step in a note."""
    with pytest.raises(error, match=message) as caught:
        experiment(locators).dry_run(Arrays(), Linear(wrong), CONFIGURATION)
    assert wrong == "exit" or "of the dry run" in "".join(caught.value.__notes__)


class Gaps(Arrays):
    """Has NaN or infinity in the input of some rows."""

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        pixels, label = super().row_preprocessor(row, mode, object_dir)
        return pixels * {1: np.nan, 3: np.inf, 4: np.nan}.get(row["id"] % 5, 1.0), label


def test_inputs_that_are_not_finite_are_named(locators: Locators) -> None:
    """As warnings, and with the error of a loss that becomes NaN."""
    expected = (
        "input contains NaN in 3 of 8 rows of train",
        "input contains infinity in 1 of 8 rows of train",
        "input contains NaN in 2 of 5 rows of valid",
        "input contains infinity in 1 of 5 rows of valid",
        "input contains NaN in 1 of 3 rows of predict",
    )
    assert experiment(locators).dry_run(Gaps()).warnings == expected
    with pytest.raises(NonFiniteMetricError, match=r"loss became nan .* Check the inputs for NaN") as caught:
        experiment(locators).dry_run(Gaps(), Linear(), CONFIGURATION)
    assert caught.value.__notes__[-5:] == list(expected)


def test_unusable_arguments_are_reported_first(locators: Locators, tmp_path: Path) -> None:
    """Unusable metadata, and missing or incomplete configurations."""
    one = experiment(locators)
    with pytest.raises(SearchSpaceError, match="no hyperparams"):
        one.dry_run(Arrays(), Linear())
    with pytest.raises(SearchSpaceError, match="lacks 'batch_size'"):
        one.dry_run(Arrays(), Linear(), {"lr": 0.1})
    with pytest.raises(SpecError, match=r"OnlyTrained has no method 'test'"):
        one.dry_run(Arrays(), OnlyTrained(), CONFIGURATION)
    (tmp_path / "valid.csv").write_text("id,label\n1,2\n")
    with pytest.raises(
        SpecError, match=r"names the column 'array', but the metadata of 'valid' has only id, label"
    ):
        one.dry_run(Arrays())
    (tmp_path / "valid.csv").write_text("x,label\n1,2\n")
    with pytest.raises(MetadataError, match="has no column 'id'"):
        one.dry_run(Arrays())
    (tmp_path / "valid.csv").unlink()
    with pytest.raises(LocatorError, match=r"valid\.csv does not exist"):
        one.dry_run(Arrays())


class Summed(Linear):
    """Returns the sum of the losses instead of the mean."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        (network,) = models
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        for inputs, labels in dataloader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(inputs), labels, reduction="sum")
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
        return {}


@pytest.mark.slow
@pytest.mark.processes
def test_techniques_are_tried_on_the_models_of_the_user(locators: Locators) -> None:
    """In child processes. A technique that changes the model's results is reported with the difference."""
    found = experiment(locators).dry_run(
        Arrays(), Linear(), CONFIGURATION, parallelism=Parallelism(techniques=["ddp"], gpus=[2])
    )
    assert [step.outcome for step in found.steps if step.name == "ddp-2"] == [
        "same gradients and model as on one device"
    ]
    with pytest.raises(SpecError, match=r"'ddp' does not conform on 2 devices:.*"):
        experiment(locators).dry_run(
            Arrays(), Summed(), CONFIGURATION, rows=7, parallelism=Parallelism(techniques=["ddp"])
        )


def test_unusable_techniques_are_reported_first(locators: Locators) -> None:
    """The error lists the choices."""
    one = experiment(locators)
    with pytest.raises(SpecError, match=r"no technique 'dpp'"):
        one.dry_run(Arrays(), Linear(), CONFIGURATION, parallelism=Parallelism(techniques=["dpp"]))
    with pytest.raises(SpecError, match=r"ddp uses 2 to \d+ devices, but gpus is 1"):
        one.dry_run(Arrays(), Linear(), CONFIGURATION, parallelism=Parallelism(techniques=["ddp"], gpus=[1]))


class Normalised(Linear):
    """Fails on a batch of one row."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        return [torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 3))]


def test_the_dry_run_warns_of_a_last_batch_of_one_row(locators: Locators) -> None:
    """The warning does not depend on the sample size. `drop_last` avoids it."""
    found = experiment(locators).dry_run(Arrays(), Normalised(), CONFIGURATION)
    (warning,) = found.warnings
    assert "batch normalization cannot train on one row: a partition fails if its last batch" in warning
    assert f"batch_size {CONFIGURATION['batch_size']}" in warning
    assert f"warning: {warning}" in repr(found)
    dropping = experiment(locators).dry_run(Arrays(), Normalised(), {**CONFIGURATION, "drop_last": True})
    assert dropping.warnings == ()


class Untracked(Linear):
    """Keeps its optimizer on self; the next sub-epoch loads other weights."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        if not hasattr(self, "optimizer"):
            self.optimizer = torch.optim.Adam(models[0].parameters())
        for inputs, labels in dataloader:
            loss = torch.nn.functional.cross_entropy(models[0](inputs), labels)
            self.optimizer.zero_grad()
            torch.autograd.backward(loss)
            self.optimizer.step()
        return {"loss": loss.item()}


def test_the_dry_run_warns_of_training_without_effect(locators: Locators) -> None:
    """The dry run trains two sub-epochs, and the second one changes nothing."""
    found = experiment(locators).dry_run(Arrays(), Untracked(), CONFIGURATION)
    assert [text.partition(":")[0] for text in found.warnings] == [
        "the state of Adam (such as momenta) is not saved, and starts empty in each sub-epoch",
        "no weight changed in this sub-epoch",
    ]
