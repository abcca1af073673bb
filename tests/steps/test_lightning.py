"""`StepSpec.from_lightning` trains the same weights, to the bit, as Lightning's own Trainer on the same batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytorch_lightning as lightning
import torch
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy

import cerebro
from cerebro import StepSpec
from cerebro.data.loader import PartitionLoader
from cerebro.errors import SpecError
from cerebro.usercode.checks import check_training_spec
from cerebro.worker.training.checkpoints import variables
from cerebro.worker.training.checkpoints.comparison import differences
from cerebro.worker.training.seeds import model_seed, seed_everything, sub_epoch_seed
from cerebro.worker.training.sub_epoch import predicting
from tests.steps.training import BASE, PLACES, Hopping, batches, network

pytestmark = pytest.mark.slow

spec_of = StepSpec.from_lightning
SCHEDULES = ("none", "step", "epoch")


class Lit(lightning.LightningModule):
    """A classifier with dropout, batch normalization, a schedule, and logged values."""

    def __init__(self, lr: float, schedule: str = "none", classes: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = network("cnn")
        self.accuracy = MulticlassAccuracy(classes, average="micro")

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(pictures)
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        pictures, labels = batch
        loss = functional.cross_entropy(self(pictures), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any) -> None:
        pictures, labels = batch
        logits = self(pictures)
        self.accuracy(logits, labels)
        self.log_dict({"val_accuracy": self.accuracy, "val_loss": functional.cross_entropy(logits, labels)})

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
        if self.hparams["schedule"] == "step":
            steps = self.trainer.estimated_stepping_batches
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(steps))
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]
        if self.hparams["schedule"] == "epoch":
            return {
                "optimizer": optimizer,
                "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.3),
            }
        return optimizer


class Epochs:
    """The batches of the epochs, one epoch in each pass, seeded at each sub-epoch as by Cerebro."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders, self._epoch = folders, 0

    def __len__(self) -> int:
        return sum(batches(partition, BASE) for epoch, partition in PLACES if epoch == 1)

    def __iter__(self) -> Iterator[Any]:
        self._epoch += 1
        for epoch, partition in PLACES:
            if epoch == self._epoch:
                seed = sub_epoch_seed(0, "m00", epoch, partition)
                seed_everything(seed)
                yield from PartitionLoader([self._folders[partition]], batch_size=8, seed=seed)


def fitted(folders: list[Path], folder: Path, schedule: str, **options: Any) -> Lit:
    """Train by Lightning's Trainer."""
    seed_everything(model_seed(0, "m00"))
    module = Lit(lr=0.05, schedule=schedule)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on workers of data loaders
        trainer.fit(module, Epochs(folders))
    return module


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("options", "trainer_options"),
    [({}, {}), ({"clip_norm": 0.05}, {"gradient_clip_val": 0.05})],
    ids=("plain", "clipped"),
)
def test_the_spec_trains_the_same_bits_as_the_trainer(
    schedule: str,
    options: dict[str, Any],
    trainer_options: dict[str, Any],
    partitions: list[Path],
    tmp_path: Path,
) -> None:
    """Two epochs over two partitions, with a hop after each; schedules by step and by epoch."""
    hopping = Hopping(spec_of(Lit), partitions, schedule=schedule, **options)
    state = hopping.train()
    expected = fitted(partitions, tmp_path, schedule, **trainer_options)
    assert not list(differences(state["models"][0], dict(expected.state_dict())))
    assert hopping.warnings == []
    assert all(found["train_loss"] == found["loss"] for found in hopping.metrics)


def test_accumulation_equals_the_trainers(partitions: list[Path], tmp_path: Path) -> None:
    """In one partition per epoch: Lightning ends a window at the end of an epoch, Cerebro at the end of a partition."""
    options = {"accumulate_grad_batches": 3, "limit_train_batches": batches(0, BASE)}
    places = [place for place in PLACES if place[1] == 0]
    assert places == [(1, 0), (2, 0)]

    class First(Epochs):
        def __iter__(self) -> Iterator[Any]:
            self._epoch += 1
            seed = sub_epoch_seed(0, "m00", self._epoch, 0)
            seed_everything(seed)
            yield from PartitionLoader([self._folders[0]], batch_size=8, seed=seed)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tests.steps.training.PLACES", tuple(places))
        patched.setitem(globals(), "Epochs", First)
        state = Hopping(spec_of(Lit), partitions, accumulate=3).train()
        expected = fitted(partitions, tmp_path, "none", **options)
    assert not list(differences(state["models"][0], dict(expected.state_dict())))


def test_logged_values_and_metric_objects_are_validation_metrics(partitions: list[Path]) -> None:
    hopping = Hopping(spec_of(Lit), partitions)
    state = hopping.train()
    model = hopping.trainee(state).modules[0].eval()
    (pictures, labels), *_ = PartitionLoader([partitions[0]], batch_size=46, seed=None)
    expected = {
        "val_accuracy": float((model(pictures).argmax(1) == labels).float().mean()),
        "val_loss": functional.cross_entropy(model(pictures), labels).item(),
    }
    assert hopping.evaluate(state) == pytest.approx(expected)
    trainee = hopping.trainee(state)
    with predicting(hopping.spec, trainee, hopping.in_order(), hopping.hyperparams, seed=0) as outputs:
        torch.testing.assert_close(torch.cat(list(outputs)), model(pictures))  # type: ignore[call-overload]


def test_a_savepoint_changes_no_bit(partitions: list[Path]) -> None:
    stopped = Hopping(spec_of(Lit), partitions, stop=3, schedule="epoch")
    undisturbed = Hopping(spec_of(Lit), partitions, schedule="epoch")
    assert not list(differences(stopped.train()["models"], undisturbed.train()["models"]))
    assert stopped.saved_batches == [3] * 4


class Measured(Lit):
    """Logs a metric object in training."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        pictures, labels = batch
        self.accuracy(self(pictures), labels)
        self.log("train_accuracy", self.accuracy)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("place", ["checkout", "installed"])
def test_a_metric_object_in_training_leaves_no_savepoint(
    place: str, partitions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A savepoint would lack the object's sums, wherever Cerebro's code lies."""
    if place == "installed":
        monkeypatch.setattr(variables, "_LIBRARIES", tuple(cerebro.__path__))
    stopped = Hopping(spec_of(Measured), partitions, stop=3)
    undisturbed = Hopping(spec_of(Measured), partitions)
    assert not list(differences(stopped.train()["models"], undisturbed.train()["models"]))
    assert stopped.saved_batches == []
    assert stopped.metrics == undisturbed.metrics


# --- what needs a Trainer ---------------------------------------------------------------------------------------------


class Hooked(Lit):
    def on_train_epoch_end(self) -> None:
        """A hook of the Trainer."""


class Manual(Lit):
    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.automatic_optimization = False


class Unvalidated(lightning.LightningModule):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])] * 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: spec_of(Hooked), r"Hooked defines on_train_epoch_end, which only Lightning's Trainer"),
        (lambda: spec_of(cast(Any, Lit(0.1))), r"takes the class of a LightningModule, not Lit\("),
        (lambda: spec_of(Manual).create_models({"lr": 1}), r"Manual sets automatic_optimization = False"),
        (
            lambda: check_training_spec(spec_of(Unvalidated), "run_fit", has_validation_split=True),
            r"no method 'validation_step'",
        ),
    ],
)  # fmt: skip
def test_modules_that_need_a_trainer_are_refused(make: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def test_several_optimizers_are_refused(partitions: list[Path]) -> None:
    with pytest.raises(SpecError, match=r"returned 2 optimizers and 0 schedules, expected one"):
        Hopping(spec_of(Unvalidated), partitions).train()
