"""The classes a user implements: `ETLSpec` and `SubEpochSpec`, and the arguments of their methods.

`ETLSpec` turns rows of metadata into tensors. `SubEpochSpec` creates, trains and tests models. `DataLoader` and
`Checkpoint` are the interfaces that `SubEpochSpec` methods get; `cerebro.worker.training` implements them. No device,
file or schedule appears here: workers choose them. Class and method names follow the Cerebro papers (seed thesis,
figure 3.2).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from torch.utils.data import DataLoader as TorchLoader

Mode = Literal["train", "valid", "test", "predict"]
"""Split of a row."""


@dataclass(frozen=True)
class Ratio:
    """A metric that is the quotient of two sums over rows.

    `train` and `test` may return a `Ratio` instead of a number. Cerebro adds numerators and denominators over
    sub-epochs, partitions and ranks, so the metric is exact for all rows. Plain numbers are averaged, weighted by rows,
    which is wrong for metrics such as precision::

        {"precision": Ratio(tp, tp + fp), "f1": Ratio(2 * tp, 2 * tp + fp + fn), "loss": Ratio(summed_loss, tokens)}

    Searches, stop rules, tables and pages use `value`.

    Attributes:
        numerator: finite number, or array or tensor with one element.
        denominator: as `numerator`, and not negative.

    Example:
        >>> Ratio(1, 2) + Ratio(2, 2)
        Ratio(numerator=3, denominator=4)
        >>> (Ratio(1, 2) + Ratio(2, 2)).value
        0.75
    """

    numerator: Any
    denominator: Any

    @property
    def value(self) -> float:
        """The quotient as a float; 0.0 if the denominator is 0."""
        numerator, denominator = float(self.numerator), float(self.denominator)
        return numerator / denominator if denominator else 0.0

    def __add__(self, other: Ratio) -> Ratio:
        """Combine the rows of two ratios."""
        return Ratio(self.numerator + other.numerator, self.denominator + other.denominator)


@dataclass(frozen=True, eq=False)
class PerRow:
    """A metric with one value per row. The metric itself is their mean.

    `test` may return it instead of a number. `run_test` then keeps the values, and its result can rank models by a
    paired bootstrap over rows, and show rows that models get wrong or disagree on::

        {"accuracy": PerRow(torch.cat(correct)), "loss": PerRow(torch.cat(losses))}

    Rows are shown with their ``label`` and the ``prediction`` of each model, if `test` returns these as `PerRow` too.

    Attributes:
        values: one finite number per row of the data loader, in its order: a tensor, an array or a list.

    Example:
        >>> PerRow([1.0, 0.0]).value
        0.5
    """

    values: Any

    @property
    def value(self) -> float:
        """The mean as a float; 0.0 without rows."""
        numbers = [float(value) for value in self.values]
        return math.fsum(numbers) / len(numbers) if numbers else 0.0


Hyperparams = Mapping[str, Any]
"""Configuration of a model: name -> value."""

Metrics = Mapping[str, "float | Ratio | PerRow"]
"""Metrics by name, as `train` and `test` return them; only `test` may return a `PerRow`."""


class Validation(NamedTuple):
    """Validation metrics of a model after one epoch.

    Attributes:
        epoch: validated epoch, from 0.
        metrics: values that `test` returned, by name. A `Ratio` appears as its `value`.
    """

    epoch: int
    metrics: dict[str, float]


class DataLoader(Protocol):
    """Batches that `train`, `test` and `predict` iterate over.

    Each batch is ``(inputs, outputs)`` on the device of the models. ``len(dataloader)`` is the number of batches.

    Attributes:
        num_rows: rows in one pass: the partition in `train`, the whole split in `test` and `predict`.
        epoch: current epoch of the model, from 0. In `test` and `predict`: the last trained epoch. Tables and figures
            count epochs from 1.
        epochs: epochs that the model trains for in all.
        sub_epoch: current sub-epoch of the model, from 0, counted over all epochs.
        sub_epochs: sub-epochs that the model trains for in all.
        step: current batch of the model, from 0, counted over all sub-epochs. Before the first batch it is that batch's
            number; after the last batch, the number of the next sub-epoch's first batch. A second pass over the
            partition counts from the same number again. In `test` and `predict`, counted from 0 in this call.
        total_steps: batches of all sub-epochs. It follows the partitions' sizes and the model's order of partitions.
        rank: number of this process among the model's processes, from 0. Use it for side effects, such as
            printing once.
        ranks: processes that train the model together. Default 1. Each process gets a share of every batch:
            `num_rows` and `ids` describe this share, the other attributes the whole batches.
        validation: latest `Validation` of the model when this sub-epoch was assigned. `None` before the first one,
            without a split `valid`, and in `test` and `predict`. Workers validate an epoch while they train the next,
            so the first sub-epochs of an epoch may still have the metrics of the epoch before last. A replay passes the
            same values.
        is_lent: True if the batch has fewer rows than there are ranks, and this rank got a row of another rank. Don't
            count such rows in metrics.
        ids: ids of the rows in the current batch, in order (column ``id`` of the metadata). Empty before the first
            batch; unchanged after the last one.

    A learning rate with cosine decay over the whole training::

        for images, labels in dataloader:
            progress = dataloader.step / dataloader.total_steps
            for group in optimizer.param_groups:
                group["lr"] = hyperparams["lr"] * (1 + math.cos(math.pi * progress)) / 2
    """

    num_rows: int
    epoch: int
    epochs: int
    sub_epoch: int
    sub_epochs: int
    step: int
    total_steps: int
    rank: int
    ranks: int
    validation: Validation | None

    @property
    def ids(self) -> list[Any]:
        """Ids of the rows in the current batch, in order."""
        ...

    @property
    def is_lent(self) -> bool:
        """True if the rows of the current batch were read for another rank, too."""
        ...

    def __iter__(self) -> Any: ...

    def __len__(self) -> int: ...

    def report(self, **values: Any) -> None:
        """Show live metrics of the current batch.

        Cheap: a tensor is read from the GPU only if a report is due, at most once a second.

        Args:
            **values: numbers, or tensors with one element, by name.

        Example::

            dataloader.report(loss=loss)
        """
        ...

    def progress(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Keep running totals in savepoints. Call it once, before the loop.

        Args:
            values: initial values: tensors, numbers, strings, or dicts, lists and tuples with such items.

        Returns:
            A dict to update in the loop: `values`, or the stored totals if the sub-epoch continues from a savepoint.

        Raises:
            SpecError: a value cannot be stored, the loop has begun, or this is the second call.

        Example::

            total = dataloader.progress({"loss": 0.0})
            for images, labels in dataloader:
                ...
                total["loss"] += loss.item() * len(labels)
        """
        ...

    def savepoint(self, hook: Callable[[], object] | None = None, *, every: int = 1) -> None:
        """Declare that this sub-epoch can continue from a savepoint. Call it once, before the loop.

        Not needed if `checkpoint.track` has the optimizer and no other variable carries state from batch to batch.

        Args:
            hook: called before each savepoint. It writes untracked state into `checkpoint`.
            every: batches between savepoints, for example the number of batches of an accumulated gradient. Default 1.

        Raises:
            SpecError: `every` is not a positive integer, the loop has begun, or this is the second call.

        Example::

            dataloader.savepoint(every=4)  # gradients of 4 batches are accumulated
        """
        ...

    def as_torch(self, arrange: Callable[[Any, Any], Any] | None = None) -> TorchLoader[Any]:
        """Wrap these batches in a `torch.utils.data.DataLoader`, for libraries that require one.

        One pass over the loader is one pass over the sub-epoch. ``len(loader)`` counts batches, ``len(loader.dataset)``
        rows; items of `dataset` are whole batches on the models' device. The random numbers of the sub-epoch stay the
        same if the library seeds all generators. Such a sub-epoch has no savepoints, because they would lack the
        library's state; call `savepoint` to allow them.

        Args:
            arrange: converts ``(inputs, outputs)`` of a batch into the library's batch. Default: the pair itself.

        Returns:
            A loader of whole batches.

        Example::

            trainer.fit(model, dataloader.as_torch(lambda inputs, labels: {**inputs, "labels": labels}))
        """
        ...


class Checkpoint(MutableMapping[str, Any]):
    """Values that are saved with a model between its sub-epochs.

    A mutable mapping, empty in the first sub-epoch. Values may be tensors, numbers, strings, or dicts, lists, tuples
    and sets with such items; `OrderedDict` and `Counter` keep their types, NumPy scalars become Python numbers. Any
    other type, such as an array, an enum or a dataclass, fails the sub-epoch, and the error names the value. For
    objects with a `state_dict()`, such as optimizers, use `track`.

    Example::

        checkpoint["best_loss"] = min(loss, checkpoint.get("best_loss", math.inf))
    """

    @abstractmethod
    def track(self, **objects: Any) -> None:
        """Restore objects from the last checkpoint, then save them with every checkpoint.

        Call it in `train` before the loop over `dataloader`, once per object. In `test` and `predict` it only restores.

        If a hyperparameter of the model was changed, values that the object was created with keep their new value. A
        learning rate schedule whose length changed, as after `Experiment.extend_model`, continues at its step on the
        new curve; create it with `dataloader.total_steps` and track it together with its optimizer.

        Args:
            **objects: objects with `state_dict` and `load_state_dict`, by name: optimizers, schedulers, scalers,
                modules.

        Raises:
            SpecError: an object cannot be tracked or does not accept its saved state. The checkpoint is unchanged.

        Example::

            optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
            checkpoint.track(optimizer=optimizer)
        """


class ETLSpec:
    """Turns rows of metadata into tensors.

    Implement `row_preprocessor`, or `batch_preprocessor` to convert many rows per call.

    Attributes:
        is_feature_download: metadata columns whose values name objects. Cerebro downloads these objects to `object_dir`
            before it calls `row_preprocessor`. Default: none.
        batch_rows: maximum number of rows per call of `batch_preprocessor`. Default 4096.
        misc_dir: folder with the `misc` files of the dataset locators. Set before `initialize_worker`.
        fitted: return value of `fit` for the data set, in every process. Set before `initialize_worker`.

    Example::

        class DigitsETL(ETLSpec):
            def __init__(self):
                self.is_feature_download = ["image"]

            def row_preprocessor(self, row, mode, object_dir):
                with Image.open(f"{object_dir}/{row['image']}") as image:
                    pixels = np.asarray(image, dtype=np.float32)[None] / 255
                return pixels, None if mode == "predict" else row["label"]
    """

    fitted: Any = None
    batch_rows: int = 4096
    is_feature_download: list[str] = []  # noqa: RUF012 - a default that users replace in __init__
    misc_dir: str = ""

    def fit(self, batches: Iterator[RecordBatch], object_dir: str) -> Any:
        """Compute statistics of the training rows, such as means or a vocabulary. Optional.

        Called once per data set, on one worker, before rows are preprocessed and before `initialize_worker`. The return
        value becomes `fitted` in this spec and in every `SubEpochSpec` that trains on the data set. Changes of `self`
        are lost.

        Args:
            batches: metadata rows of the training split, each row once, in an order that does not depend on the
                workers. ``batch.to_pylist()`` returns them as dicts. A batch has up to `batch_rows` rows, or up to 256
                if objects are downloaded. With `fraction`, only the sampled rows. Rows with missing objects are
                skipped.
            object_dir: folder with the objects of the current batch.

        Returns:
            Any picklable value of at most 256 MiB. After 600 s without a new batch the call counts as hung.

        Example::

            def fit(self, batches, object_dir):
                counts = collections.Counter()
                for batch in batches:
                    counts.update(batch["word"].to_pylist())
                return {word: number for number, (word, _) in enumerate(counts.most_common(10_000))}
        """
        raise NotImplementedError

    def initialize_worker(self) -> None:
        """Load shared resources. Optional.

        Called once per process, before its first row.
        """

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """Convert one row to ``(input, output)``.

        Args:
            row: metadata row, a dict of plain values; ``row["id"]`` is unique.
            mode: split of the row: ``"train"``, ``"valid"``, ``"test"`` or ``"predict"``.
            object_dir: folder with the objects of the row.

        Returns:
            Input and output. Each is a tensor, an array, a number, or a dict or tuple with such items, with equal
            shapes and dtypes in all rows. Wrap an array whose first axis differs in length in `cerebro.ragged`. In mode
            ``"predict"`` the output may be `None`.

        Raises:
            Exception: Cerebro records the row as failed; see `max_failed` of `Experiment.run_etl`.
        """
        raise NotImplementedError

    def batch_preprocessor(self, batch: RecordBatch, mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """Convert many rows to ``(inputs, outputs)``, with vectorised NumPy or Arrow code.

        If a spec has this method, `row_preprocessor` is not called. The result for a row must not depend on the other
        rows of the batch: after an exception, the method is called again with halves of the batch, to isolate the
        failing rows.

        Args:
            batch: up to `batch_rows` metadata rows; column ``id`` is unique. Read only.
            mode: split of the rows: ``"train"``, ``"valid"``, ``"test"`` or ``"predict"``.
            object_dir: folder with the objects of the rows.

        Returns:
            Inputs and outputs. Each is a tensor, an array, a `cerebro.Ragged`, an Arrow list array of numbers, or a
            dict or tuple with such items, with one entry per row on the first axis. In mode ``"predict"`` the outputs
            may be `None`.

        Example::

            def batch_preprocessor(self, batch, mode, object_dir):
                numbers = np.stack([batch["age"].to_numpy(), batch["hours"].to_numpy()], axis=1)
                return numbers.astype(np.float32), batch["label"].to_numpy()
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Facts about a model that a parallel technique cannot infer; all optional.

    Attributes:
        blocks: classes of repeated modules, such as transformer layers: the units of sharding, recomputation and
            streaming.
        loss: how the loss of a batch combines its rows: ``"mean"`` (default) or ``"sum"``.
        terms: function of ``(inputs, outputs)`` that returns the number of terms in the mean loss, if that is not the
            number of rows. For a language model: the number of tokens in the loss.
        methods: names of methods other than `forward` that use parameters.
        stages: names of modules, in order, whose consecutive calls make up the model's forward pass.
        tensor_plan: module name pattern -> ``"colwise"`` or ``"rowwise"``, the split of its weights between devices.
    """

    blocks: tuple[type, ...] = ()
    loss: Literal["mean", "sum"] = "mean"
    terms: Callable[[Any, Any], Any] | None = None
    methods: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    tensor_plan: Mapping[str, str] | None = None


class SubEpochSpec:
    """Creates, trains and evaluates models.

    Implement `create_models` and `train`; `test` if there is a validation split or you call `run_test`; `predict` if
    you call `run_predict`.

    Attributes:
        misc_dir: folder with the `misc` files of the dataset locators. Set before `initialize_worker`.
        fitted: return value of `ETLSpec.fit` for the data set. Set before `initialize_worker`.

    Example::

        class DigitsSpec(SubEpochSpec):
            def create_models(self, hyperparams):
                return [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))]

            def train(self, models, checkpoint, dataloader, hyperparams):
                (network,) = models
                optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
                checkpoint.track(optimizer=optimizer)
                for images, labels in dataloader:
                    loss = torch.nn.functional.cross_entropy(network(images), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                return {"last_loss": loss.item()}

            def test(self, models, checkpoint, dataloader, hyperparams):
                (network,) = models
                correct = sum(int((network(images).argmax(1) == labels).sum()) for images, labels in dataloader)
                return {"accuracy": correct / dataloader.num_rows}
    """

    misc_dir: str = ""
    fitted: Any = None

    def initialize_worker(self) -> None:
        """Load resources that all models share. Optional.

        Called before the first model of each process; once per task if it opens files or starts threads.
        """

    def create_models(self, hyperparams: Hyperparams) -> list[Any]:
        """Create the modules of one configuration, with random weights.

        Random seeds are set before the call. Cerebro moves the modules to a device, saves them and restores them.

        Args:
            hyperparams: configuration of the model, by name.

        Returns:
            PyTorch modules. `train`, `test` and `predict` receive them in the same order.
        """
        raise NotImplementedError

    def train(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Metrics:
        """Train the models on one partition, for one pass.

        Args:
            models: modules of `create_models` in training mode, with the state after the previous sub-epoch.
            checkpoint: values that live across sub-epochs; track the optimizer here.
            dataloader: shuffled batches of this partition.
            hyperparams: configuration of the model, by name.

        Returns:
            Metrics of this sub-epoch, with the same names for every partition. Over an epoch, numbers are averaged,
            weighted by rows; a `Ratio` is exact.
        """
        raise NotImplementedError

    def test(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Metrics:
        """Compute metrics. Models are in evaluation mode, gradients are off.

        The rows are the whole split, so any metric is possible, such as an AUC. Only `run_test(split="train")` calls
        this method once per partition; return a `Ratio` or a `PerRow` for exact metrics there.

        Args:
            models: modules of `create_models` with trained state.
            checkpoint: values of the trained model, read only.
            dataloader: batches of the split, in order.
            hyperparams: configuration of the model, by name.

        Returns:
            Metrics by name. With a `PerRow`, the result of `run_test` can rank models.
        """
        raise NotImplementedError

    def hints(self, models: list[Any], hyperparams: Hyperparams) -> Hints:
        """Describe the models to parallel techniques. Optional.

        Called only if a sub-epoch may use more than the technique ``"single"``.

        Args:
            models: modules of `create_models`.
            hyperparams: configuration of the model, by name.

        Returns:
            Facts that a technique cannot infer. Default: none.
        """
        return Hints()

    def predict(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Any | Iterable[Any]:
        """Predict outputs for the rows of `dataloader`, in their order.

        Args:
            models: modules of `create_models` with trained state, in evaluation mode.
            checkpoint: values of the trained model, read only.
            dataloader: batches of the split, in order.
            hyperparams: configuration of the model, by name.

        Returns:
            One entry per row: an array or tensor, a `cerebro.Ragged`, a list of numbers or strings, or a dict of such
            columns. Or an iterable, such as a generator, of one of these per batch. A yielded value or dict column may
            also be a list of arrays, one per row.

        Example::

            def predict(self, models, checkpoint, dataloader, hyperparams):
                (network,) = models
                for images, _ in dataloader:
                    yield {"digit": network(images).argmax(1)}
        """
        raise NotImplementedError
