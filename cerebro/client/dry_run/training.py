"""One batch through the user's models: made, trained, saved, loaded, trained on, tested, asked for predictions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cerebro.client.dry_run.outcome import TriedRows, TriedStep
from cerebro.contract.records import Hyperparameters, drops_last
from cerebro.contract.tasks import Position, Validation
from cerebro.data.loader import PartitionLoader
from cerebro.data.tables import read_columns
from cerebro.data.trees import map_leaves
from cerebro.errors import SpecError
from cerebro.ragged_rows import Ragged, ragged
from cerebro.spec import SubEpochSpec
from cerebro.techniques import Technique
from cerebro.techniques.conformance import check
from cerebro.usercode.checks import has_method
from cerebro.worker.training import checkpoint as checkpoints
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import numbers_of
from cerebro.worker.training.predictions import write_predictions
from cerebro.worker.training.savepoints import Savepoints
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import (
    Trainee,
    count_parameters,
    create,
    default_device,
    evaluate,
    has_batch_norm,
    predicting,
    restore,
    train_sub_epoch,
)

_MODEL, _SEED = "m00", 0


class TrainingTrial:
    """Used once, by one thread.

    Attributes:
        steps, metrics, parameters, checkpoint_bytes, skipped, warnings: see `DryRun`.
    """

    def __init__(
        self, spec: SubEpochSpec, hyperparams: Hyperparameters, rows: Mapping[str, TriedRows], folder: Path
    ) -> None:
        self._spec, self._hyperparams, self._rows, self._folder = spec, hyperparams, rows, folder
        self.device = default_device()
        self.steps: list[TriedStep] = []
        self.metrics: dict[str, dict[str, float]] = {}
        self.parameters: int | None = None
        self.checkpoint_bytes: int | None = None
        self.skipped: dict[str, str] = {}
        self.warnings: list[str] = []

    def run(self) -> None:
        """Do all of it, as workers do in the first two sub-epochs of a model and after them.

        Raises:
            Whatever user code raises; SpecError, MetricError, NonFiniteMetricError of what it returned.
        """
        with self._step("initialize_worker") as found:
            self._spec.initialize_worker()
            found.append("called")
        trainee = self._made("create_models")
        if "train" in self._rows:
            self._train(trainee, epoch=1)
            trainee = self._reloaded(trainee)
            self._try_one_row()
        else:
            self.skipped["train"] = "no split 'train' is located"
        self._test(trainee)
        if "train" in self._rows:
            self._train(trainee, epoch=2)
        self._predict(trainee)

    def try_technique(self, technique: Technique, size: int) -> None:
        """Whether a technique trains the model that one device trains, on the rows that were tried.

        Raises:
            SpecError: it does not; it says what differs.
        """
        name = technique.name if size == 1 else f"{technique.name}-{size}"
        if "train" not in self._rows:
            self.skipped[name] = "no split 'train' is located"
            return
        with self._step(name) as found:
            (batch,) = PartitionLoader(
                [self._rows["train"].folder], batch_size=self._rows["train"].rows, seed=None
            )
            rows = [row_of(batch, number) for number in range(self._rows["train"].rows)]
            check(technique, self._spec, rows, self._hyperparams, size=size)
            found.append("the gradients and the model of one device")

    def _made(self, name: str) -> Trainee:
        with self._step(name) as found:
            trainee = create(self._spec, self._hyperparams, seed=_SEED, model=_MODEL, device=self.device)
            found.append(f"modules: {len(trainee.modules)}, {self._count(trainee)}")
        return trainee

    def _count(self, trainee: Trainee) -> str:
        """Count parameters. Lazy modules get their size from the first batch."""
        self.parameters, num_lazy = count_parameters(trainee.modules)
        return f"parameters: {self.parameters:,}" + (f", and {num_lazy} lazy tensors" if num_lazy else "")

    def _train(self, trainee: Trainee, *, epoch: int) -> None:
        loader = self._loader("train", sub_epoch_seed(_SEED, _MODEL, epoch, 0))
        # Two epochs over one partition: each is a sub-epoch.
        steps = len(loader)
        position = Position(epochs=2, sub_epochs=2, step=steps * (epoch - 1), total_steps=2 * steps)
        is_validated = epoch > 1 and "valid" in self._rows and "test" in self.metrics
        validation = Validation(epoch=1, metrics=self.metrics["test"]) if is_validated else None
        with self._step("train" if epoch == 1 else "train again") as found:
            metrics = train_sub_epoch(
                self._spec,
                trainee,
                InstrumentedLoader(
                    loader,
                    epoch=epoch,
                    sub_epoch=epoch - 1,
                    position=position,
                    savepoints=Savepoints(trainee, validation=validation),
                ),
                self._hyperparams,
                seed=_SEED,
                model=_MODEL,
                epoch=epoch,
                partition=0,
            )
            found.append(_told(numbers_of(metrics)))
        self._count(trainee)
        self.metrics["train"] = numbers_of(metrics)
        self.warnings += [text for text in trainee.warnings if text not in self.warnings]

    def _try_one_row(self) -> None:
        """Warn if a last batch of one row would fail, as it does with batch normalization."""
        rows = self._rows["train"].rows
        model = create(self._spec, self._hyperparams, seed=_SEED, model=_MODEL, device=self.device)
        if not has_batch_norm(model.modules) or rows < 3 or drops_last(self._hyperparams):
            return
        size = rows - 1
        loader = PartitionLoader([self._rows["train"].folder], batch_size=size, seed=0, device=self.device)
        given = {**self._hyperparams, "batch_size": size}
        try:
            train_sub_epoch(
                self._spec,
                model,
                InstrumentedLoader(loader),
                given,
                seed=_SEED,
                model=_MODEL,
                epoch=1,
                partition=0,
            )
        except SpecError as error:
            if isinstance(error.__cause__, ValueError):
                self.warnings.append(
                    "batch normalization cannot train on one row: a partition fails if its last batch has one row with "
                    f"batch_size {self._hyperparams['batch_size']}. Leave such a batch out with the hyperparameter "
                    "'drop_last': [True], or choose another batch_size"
                )

    def _reloaded(self, trainee: Trainee) -> Trainee:
        with self._step("checkpoint") as found:
            self._folder.mkdir(parents=True, exist_ok=True)
            reference = checkpoints.save(self._folder, "checkpoint.pt", trainee.state())
            state = checkpoints.load(self._folder, reference, self.device)
            self.checkpoint_bytes = reference.size
            found.append(f"{reference.size:,} bytes saved and loaded")
        again = create(self._spec, self._hyperparams, seed=_SEED, model=_MODEL, device=self.device)
        restore(again, state)
        return again

    def _test(self, trainee: Trainee) -> None:
        if not has_method(self._spec, SubEpochSpec, "test"):
            self.skipped["test"] = "the spec has no such method"
            return
        split = self._first("valid", "test", "train")
        with self._step("test") as found:
            metrics = evaluate(
                self._spec,
                trainee,
                InstrumentedLoader(self._loader(split, None)),
                self._hyperparams,
                seed=sub_epoch_seed(_SEED, _MODEL, 1, -1),
            )
            self.metrics["test"] = numbers_of(metrics)
            found.append(f"{_told(self.metrics['test'])} (rows of {split})")

    def _predict(self, trainee: Trainee) -> None:
        if not has_method(self._spec, SubEpochSpec, "predict"):
            self.skipped["predict"] = "the spec has no such method"
            return
        split, path = self._first("predict", "test", "valid", "train"), self._folder / "predictions.arrow"
        loader = self._loader(split, None)
        seed, feed = sub_epoch_seed(_SEED, _MODEL, 1, -1), InstrumentedLoader(loader)
        with self._step("predict") as found:
            self._folder.mkdir(parents=True, exist_ok=True)
            with predicting(self._spec, trainee, feed, self._hyperparams, seed=seed) as returned:
                write_predictions(path, loader.stored_ids(), returned)
            columns = {name: values for name, values in read_columns(path).items() if name != "id"}
            first = ", ".join(f"{name} {values[0]!r}"[:60] for name, values in columns.items())
            found.append(f"{loader.num_rows} predictions, the first: {first} (rows of {split})")

    def _first(self, *splits: str) -> str:
        return next(split for split in splits if split in self._rows)

    def _loader(self, split: str, seed: int | None) -> PartitionLoader:
        tried, size = self._rows[split], self._hyperparams["batch_size"]
        assert isinstance(size, int)
        return PartitionLoader(
            [tried.folder],
            batch_size=min(size, tried.rows),
            seed=seed,
            device=self.device,
            drop_last=split == "train" and seed is not None and drops_last(self._hyperparams),
        )

    @contextmanager
    def _step(self, name: str) -> Iterator[list[str]]:
        """Time a step; what it found is put into the list. An error goes on to the caller, and says where it was."""
        began, found = time.monotonic(), list[str]()
        try:
            yield found
        except SystemExit as error:
            raise SpecError(f"user code called exit({error.code}) in {name} of the dry run") from error
        except Exception as error:
            error.add_note(f"(raised in {name} of the dry run, on the first batch)")
            raise
        self.steps.append(TriedStep(name=name, seconds=time.monotonic() - began, found=", ".join(found)))


def row_of(batch: Any, number: int) -> Any:
    """One row of a batch, as a row preprocessor returns it."""

    def of_row(leaf: Any) -> Any:
        row = leaf[number].numpy()
        return ragged(row) if isinstance(leaf, Ragged) else row[()]

    return map_leaves(of_row, batch)


def _told(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or "no metrics"
