"""One batch through the user's models: create, train, save, load, train again, test, predict.

`dry_run` calls it with the partitions of `rows.py`. It runs in the user's process on one device; a technique is
compared in separate processes (`cerebro.techniques.conformance`). No weights are kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cerebro.client.dry_run.outcome import RowTrial, StepTrial
from cerebro.contract.records import Hyperparameters, drops_last
from cerebro.contract.tasks.bodies import Position, Validation
from cerebro.data.loader import PartitionLoader
from cerebro.data.tables.whole_tables import read_columns
from cerebro.data.trees import map_leaves
from cerebro.errors import SpecError
from cerebro.ragged_rows import Ragged, ragged
from cerebro.spec import SubEpochSpec
from cerebro.techniques import Technique
from cerebro.techniques.conformance import check
from cerebro.usercode.checks import defining_method
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints.savepoints import Savepoints
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import numbers_of
from cerebro.worker.training.predictions import write_predictions
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import (
    count_parameters,
    create,
    default_device,
    evaluate,
    has_batch_norm,
    predicting,
    require_trainable,
    restore,
    train_sub_epoch,
)
from cerebro.worker.training.trainee import Trainee

_MODEL, _SEED = "m00", 0


class TrainingTrial:
    """Trial of a `SubEpochSpec`. Used once, by one thread.

    Attributes:
        device: device of the modules.
        steps, metrics, parameters, checkpoint_bytes, skipped, warnings: as of `DryRun`.
    """

    def __init__(
        self, spec: SubEpochSpec, hyperparams: Hyperparameters, rows: Mapping[str, RowTrial], folder: Path
    ) -> None:
        self._spec, self._hyperparams, self._rows, self._folder = spec, hyperparams, rows, folder
        self.device = default_device()
        self.steps: list[StepTrial] = []
        self.metrics: dict[str, dict[str, float]] = {}
        self.parameters: int | None = None
        self.checkpoint_bytes: int | None = None
        self.skipped: dict[str, str] = {}
        self.warnings: list[str] = []

    def run(self) -> None:
        """Run the steps of a model's first two sub-epochs, then test and predict.

        Raises:
            Exception: any exception of user code.
            SpecError, MetricError, NonFiniteMetricError: user code returned an invalid value.
        """
        with self._step("initialize_worker") as outcome:
            self._spec.initialize_worker()
            outcome.append("called")
        trainee = self._created()
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
        """Compare a technique with training on one device, on the tried rows.

        Raises:
            SpecError: the results differ; the message names the difference.
        """
        name = technique.name if size == 1 else f"{technique.name}-{size}"
        if "train" not in self._rows:
            self.skipped[name] = "no split 'train' is located"
            return
        with self._step(name) as outcome:
            (batch,) = PartitionLoader(
                [self._rows["train"].folder], batch_size=self._rows["train"].rows, seed=None
            )
            rows = [row_of(batch, number) for number in range(self._rows["train"].rows)]
            check(technique, self._spec, rows, self._hyperparams, size=size)
            outcome.append("same gradients and model as on one device")

    def _created(self) -> Trainee:
        with self._step("create_models") as outcome:
            trainee = create(self._spec, self._hyperparams, seed=_SEED, model=_MODEL, device=self.device)
            outcome.append(f"modules: {len(trainee.modules)}, {self._count(trainee)}")
            if "train" in self._rows:
                require_trainable(trainee.modules)
        return trainee

    def _count(self, trainee: Trainee) -> str:
        """Count parameters. Lazy modules get their shapes from the first batch."""
        self.parameters, num_lazy = count_parameters(trainee.modules)
        return f"parameters: {self.parameters:,}" + (f", and {num_lazy} lazy tensors" if num_lazy else "")

    def _train(self, trainee: Trainee, *, epoch: int) -> None:
        loader = self._loader("train", sub_epoch_seed(_SEED, _MODEL, epoch, 0))
        # Two epochs over one partition, so two sub-epochs.
        steps = len(loader)
        position = Position(epochs=2, sub_epochs=2, step=steps * (epoch - 1), total_steps=2 * steps)
        has_validation = epoch > 1 and "valid" in self._rows and "test" in self.metrics
        validation = Validation(epoch=1, metrics=self.metrics["test"]) if has_validation else None
        with self._step("train" if epoch == 1 else "train again") as outcome:
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
            outcome.append(_metrics_text(numbers_of(metrics)))
        self._count(trainee)
        self.metrics["train"] = numbers_of(metrics)
        self.warnings += [text for text in trainee.warnings if text not in self.warnings]

    def _try_one_row(self) -> None:
        """Warn if a last batch of one row fails, as it does with batch normalization."""
        rows = self._rows["train"].rows
        model = create(self._spec, self._hyperparams, seed=_SEED, model=_MODEL, device=self.device)
        if not has_batch_norm(model.modules) or rows < 3 or drops_last(self._hyperparams):
            return
        size = rows - 1
        loader = PartitionLoader([self._rows["train"].folder], batch_size=size, seed=0, device=self.device)
        hyperparams = {**self._hyperparams, "batch_size": size}
        try:
            train_sub_epoch(
                self._spec,
                model,
                InstrumentedLoader(loader),
                hyperparams,
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
        with self._step("checkpoint") as outcome:
            self._folder.mkdir(parents=True, exist_ok=True)
            reference = checkpoints.save(self._folder, "checkpoint.pt", trainee.state())
            state = checkpoints.load(self._folder, reference, self.device)
            self.checkpoint_bytes = reference.size
            outcome.append(f"{reference.size:,} bytes saved and loaded")
        restored = create(self._spec, self._hyperparams, seed=_SEED, model=_MODEL, device=self.device)
        restore(restored, state)
        return restored

    def _test(self, trainee: Trainee) -> None:
        if not defining_method(self._spec, "test"):
            self.skipped["test"] = "the spec lacks this method"
            return
        split = self._first("valid", "test", "train")
        with self._step("test") as outcome:
            metrics = evaluate(
                self._spec,
                trainee,
                InstrumentedLoader(self._loader(split, None)),
                self._hyperparams,
                seed=sub_epoch_seed(_SEED, _MODEL, 1, -1),
            )
            self.metrics["test"] = numbers_of(metrics)
            outcome.append(f"{_metrics_text(self.metrics['test'])} (rows of {split})")

    def _predict(self, trainee: Trainee) -> None:
        if not defining_method(self._spec, "predict"):
            self.skipped["predict"] = "the spec lacks this method"
            return
        split, path = self._first("predict", "test", "valid", "train"), self._folder / "predictions.arrow"
        loader = self._loader(split, None)
        seed, feed = sub_epoch_seed(_SEED, _MODEL, 1, -1), InstrumentedLoader(loader)
        with self._step("predict") as outcome:
            self._folder.mkdir(parents=True, exist_ok=True)
            with predicting(self._spec, trainee, feed, self._hyperparams, seed=seed) as returned:
                write_predictions(path, loader.stored_ids(), returned)
            columns = {name: values for name, values in read_columns(path).items() if name != "id"}
            first = ", ".join(f"{name} {values[0]!r}"[:60] for name, values in columns.items())
            outcome.append(f"{loader.num_rows} predictions, the first: {first} (rows of {split})")

    def _first(self, *splits: str) -> str:
        return next(split for split in splits if split in self._rows)

    def _loader(self, split: str, seed: int | None) -> PartitionLoader:
        trial, size = self._rows[split], self._hyperparams["batch_size"]
        assert isinstance(size, int)
        return PartitionLoader(
            [trial.folder],
            batch_size=min(size, trial.rows),
            seed=seed,
            device=self.device,
            drop_last=split == "train" and seed is not None and drops_last(self._hyperparams),
        )

    @contextmanager
    def _step(self, name: str) -> Iterator[list[str]]:
        """Time a step; the caller appends its outcome. Errors get the name of the step."""
        began, outcome = time.monotonic(), list[str]()
        try:
            yield outcome
        except SystemExit as error:
            raise SpecError(f"user code called exit({error.code}) in {name} of the dry run") from error
        except Exception as error:
            error.add_note(f"(raised in {name} of the dry run, on the first batch)")
            raise
        self.steps.append(StepTrial(name=name, seconds=time.monotonic() - began, outcome=", ".join(outcome)))


def row_of(batch: Any, number: int) -> Any:
    """Return one row of a batch, as a row function returns it."""

    def of_row(leaf: Any) -> Any:
        row = leaf[number].numpy()
        return ragged(row) if isinstance(leaf, Ragged) else row[()]

    return map_leaves(of_row, batch)


def _metrics_text(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or "no metrics"
