"""The templates a user fills in (names: seed thesis, figure 3.2). No device, no file, no schedule appears in them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from torch.utils.data import DataLoader as TorchLoader

Mode = Literal["train", "valid", "test", "predict"]


@dataclass(frozen=True)
class Ratio:
    """A metric that is a quotient of two sums over rows: `train` and `test` may return it in place of a number.

    Of several sub-epochs, partitions and ranks both terms are added, so that the metric is that of all rows, to the
    last count, however they are cut. A number is averaged instead, weighted by rows, which for these is another value::

        {"precision": Ratio(tp, tp + fp), "f1": Ratio(2 * tp, 2 * tp + fp + fn), "loss": Ratio(summed_loss, tokens)}

    Searches, stop rules, tables and pages see its number.

    Attributes:
        numerator, denominator: numbers, or arrays or tensors of one element; finite, and the denominator not negative.
    """

    numerator: Any
    denominator: Any

    @property
    def value(self) -> float:
        """Its number. Where both terms are 0 there was nothing to count, and it is 0."""
        numerator, denominator = float(self.numerator), float(self.denominator)
        return numerator / denominator if denominator else 0.0

    def __add__(self, other: Ratio) -> Ratio:
        """Of the rows of both."""
        return Ratio(self.numerator + other.numerator, self.denominator + other.denominator)


Metrics = Mapping[str, "float | Ratio"]
"""What `train` and `test` return, by name."""


class Validation(NamedTuple):
    """Metrics of a model after one of its epochs: `DataLoader.validation`.

    Attributes:
        epoch: number of the validated epoch, from 0.
        metrics: that `test` returned, by name; of a `Ratio` its number.
    """

    epoch: int
    metrics: dict[str, float]


class DataLoader(Protocol):
    """What `train`, `test` and `predict` iterate over: ``(inputs, outputs)`` batches on the models' device.

    Attributes:
        num_rows: that are iterated over: of this partition or, in `test` and `predict`, of all of the split.
            ``len(dataloader)`` is the number of batches.
        rank, ranks: where several processes train the model together, number of this one, from 0, and how many there
            are. Each is handed its share of every batch: there, `num_rows` and `ids` are of its own rows, all else is
            of the whole batches. 0 and 1 otherwise. For side effects, such as what is printed once.
        epoch, epochs: number of the model's current epoch, from 0, and of all its epochs. In `test` and `predict`,
            `epoch` is the last trained epoch. Tables and figures count epochs from 1.
        sub-epoch, sub-epochs: number of this sub-epoch in the model's training, from 0; of so many in all epochs.
        step, total_steps: number of the batch at hand in the model's training, from 0; of so many in all sub-epochs.
            Before the first batch of a sub-epoch, it is that batch's; after the last one, the next sub-epoch's first. A
            loop that is left early leaves it where it is. Each further pass over the same sub-epoch counts from the
            sub-epoch's first batch again. Sizes of partitions, and the order in which the model visits them, are taken
            into account. In `test` and `predict`, which are no part of the training, the count is of their own batches.
        validation: the newest `Validation` of the model when this sub-epoch was assigned; `None` before the first one,
            without a split `valid`, and in `test` and `predict`. Workers validate an epoch while they train the next:
            its first sub-epochs may have the metrics of an epoch earlier. The log notes the epoch, and a replay passes
            the same metrics.
        is_lent: whether the batch at hand has fewer rows than there are ranks, and this rank was handed one that is
            another rank's. Leave it out of what you count.
        ids: of the rows of the batch at hand, in its order: what column ``id`` of the metadata says. Empty before the
            first batch; after the last one, that one's.

    A learning rate that falls as a cosine over the whole training, wherever the model trains::

        for images, labels in dataloader:
            share = dataloader.step / dataloader.total_steps
            for group in optimizer.param_groups:
                group["lr"] = hyperparams["lr"] * (1 + math.cos(math.pi * share)) / 2
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
        """Ids of the rows of the current batch."""
        ...

    @property
    def is_lent(self) -> bool:
        """Whether the rows of the current batch are another rank's."""
        ...

    def __iter__(self) -> Any: ...

    def __len__(self) -> int: ...

    def report(self, **values: Any) -> None:
        """Show numbers of the batch at hand while the sub-epoch runs: kept at most once a second, by name."""
        ...

    def progress(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values that add up over the batches of the sub-epoch, kept by savepoints; to be called before the loop,
        once::

            total = dataloader.progress({"loss": 0.0})
            for images, labels in dataloader:
                ...
                total["loss"] += loss.item() * len(labels)

        Args:
            values: as they are at the start: tensors, numbers, strings, and dicts, lists and tuples of them.

        Returns:
            A dict to change: `values`, or what they had become where the sub-epoch goes on from a savepoint.

        Raises:
            SpecError: a value cannot be stored, or it is too late, or the second call.
        """
        ...

    def savepoint(self, hook: Callable[[], object] | None = None, *, every: int = 1) -> None:
        """Say that this sub-epoch can go on from a savepoint; to be called before the loop, once.

        Not needed where `checkpoint.track` has the optimizer and nothing else lives in variables from batch to batch.

        Args:
            hook: called before a savepoint is taken, to put into `checkpoint` what is not tracked.
            every: batches; one is taken only after a multiple of so many, as where gradients of so many are added up.

        Raises:
            SpecError: `every` is no whole number from 1, or it is too late, or the second call.
        """
        ...

    def as_torch(self, arrange: Callable[[Any, Any], Any] | None = None) -> TorchLoader[Any]:
        """These batches as a `torch.utils.data.DataLoader`, for a library that asks for one::

            trainer_of_a_library.fit(model, dataloader.as_torch(lambda inputs, labels: {**inputs, "labels": labels}))

        A pass over it is a pass over the sub-epoch. ``len(loader)`` counts batches, ``len(loader.dataset)`` rows. Items
        of its `dataset` are whole batches, on the models' device. The sub-epoch's random numbers stay the same if a
        library seeds all generators before its loop. A savepoint would not have the library's own state, so such a
        sub-epoch has none, unless `savepoint` says that it can.

        Args:
            arrange: makes of a batch's inputs and outputs what the library takes; left out: the pair of them.
        """
        ...


class Checkpoint(MutableMapping[str, Any]):
    """What lives across the sub-epochs of a model, saved with its modules; empty in its first sub-epoch.

    Values are tensors, numbers, strings, and dicts, lists, tuples and sets with such items. `OrderedDict` and `Counter`
    keep their types, NumPy's scalars become Python's numbers. A sub-epoch that keeps another type, such as an array, an
    enum or a dataclass, fails when it ends, and the error names the value. `track` objects with a `state_dict()`.
    """

    @abstractmethod
    def track(self, **objects: Any) -> None:
        """Restore what was saved of these objects under these names, and from now on save it with the model.

        To be called in `train` before the loop over `dataloader`, once for each object::

            optimizer = torch.optim.Adam(network.parameters(), lr=hyperparams["lr"])
            checkpoint.track(optimizer=optimizer)

        A schedule of another length than before, as after `Experiment.extend_model`, continues at its step on the new
        curve. Make it with `dataloader.total_steps`, and track it together with its optimizer.

        A value that the object was made with stays as it is where it is another one than before because a
        hyper-parameter of the model was changed. In `test` and `predict` objects are restored only.

        Args:
            objects: by name, each with `state_dict` and `load_state_dict`: optimizers, schedulers, scalers, modules.

        Raises:
            SpecError: an object cannot be tracked, or does not take what was saved; nothing is lost by it.
        """


class ETLSpec:
    """How a row of metadata becomes tensors: `row_preprocessor`, or `batch_preprocessor` for many rows in one call.

    Attributes:
        is_feature_download: metadata columns whose values name objects that must lie in `object_dir` before
            `row_preprocessor` sees the row. Columns not named here are values only.
        batch_rows: most rows that `batch_preprocessor` is given in one call.
        misc_dir: folder with the miscellaneous files of the dataset locators; set before `initialize_worker`.
        fitted: what `fit` returned for the data set; set before `initialize_worker`, in every process.
    """

    fitted: Any = None
    batch_rows: int = 4096
    is_feature_download: list[str] = []  # noqa: RUF012 - a default that users replace in __init__, as the thesis has it
    misc_dir: str = ""

    def fit(self, batches: Iterator[RecordBatch], object_dir: str) -> Any:
        """Statistics of the training rows: called once for a data set, on one worker, before rows are preprocessed.

        Optional. What it returns is `fitted` from then on, in this spec and in every `SubEpochSpec` that trains on the
        data set: means, a vocabulary. What it changes in `self` is lost; `initialize_worker` was not called::

            def fit(self, batches, object_dir):
                counts = collections.Counter()
                for batch in batches:
                    counts.update(batch["word"].to_pylist())
                return {word: number for number, (word, _) in enumerate(counts.most_common(10_000))}

        Args:
            batches: all rows of the training split, and no others, each once: metadata rows, up to `batch_rows` at a
                time (256 where objects have to be copied), in an order that does not depend on the workers.
                ``batch.to_pylist()`` has them as dicts. With a `fraction`, the rows that it draws. A row whose objects
                cannot be fetched is left out.
            object_dir: folder that holds the objects of the rows of the batch at hand.

        Returns:
            Anything that can be pickled, up to 256 MiB. Between two batches, and after the last one, it may take
            600 s: then it counts as hung.
        """
        raise NotImplementedError

    def initialize_worker(self) -> None:
        """Called once in each process that preprocesses rows, before the first row."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """One row as ``(input, output)``.

        Args:
            row: the metadata row, a dict of plain values; ``row["id"]`` is unique.
            mode: the split the row belongs to.
            object_dir: folder that holds the row's objects.

        Returns:
            Input and output; each a tensor, an array, a number, or a dict or tuple of them, with the same shapes and
            dtypes for every row. Where the first axis of an array has another length in each row, it is marked:
            `cerebro.ragged`. In mode ``predict`` the output may be `None`.
        """
        raise NotImplementedError

    def batch_preprocessor(self, batch: RecordBatch, mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """Many rows as ``(inputs, outputs)``, for tables, whose columns NumPy and Arrow compute on as a whole.

        Where a spec has this method, `row_preprocessor` is not called. What a row becomes must not depend on the rows
        beside it: where the method raises, it is called again with halves of the batch, until the rows that it fails
        for stand alone::

            def batch_preprocessor(self, batch, mode, object_dir):
                numbers = np.stack([batch["age"].to_numpy(), batch["hours"].to_numpy()], axis=1)
                return numbers.astype(np.float32), batch["label"].to_numpy()

        Args:
            batch: up to `batch_rows` metadata rows; column ``id`` is unique. Not to be changed.
            mode: the split the rows belong to.
            object_dir: folder that holds the rows' objects.

        Returns:
            Inputs and outputs; each a tensor, an array, or a dict or tuple of them, with one entry for each row of the
            batch on the first axis; or a `cerebro.Ragged`, or one of Arrow's arrays of lists of numbers, with a row for
            each. In mode ``predict`` the outputs may be `None`.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What a technique cannot find out by itself about a model; all optional.

    Attributes:
        blocks: classes of the modules that are repeated, such as a transformer's layer: what is sharded, recomputed or
            streamed at a time.
        loss: how the loss of a batch comes from its rows: their ``"mean"`` or their ``"sum"``.
        terms: of a batch's (inputs, outputs), over how many terms its loss is a mean where these are not its rows: in
            a language model the tokens that count.
        methods: names of methods beside `forward` that use parameters.
        stages: names of modules, in order, whose calls one after another are the model's forward.
        tensor_plan: module name pattern -> how it is split between devices: ``"colwise"`` or ``"rowwise"``.
    """

    blocks: tuple[type, ...] = ()
    loss: Literal["mean", "sum"] = "mean"
    terms: Callable[[Any, Any], Any] | None = None
    methods: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    tensor_plan: Mapping[str, str] | None = None


class SubEpochSpec:
    """How a model is made, trained for a sub-epoch, tested, and asked for predictions.

    Attributes:
        misc_dir: folder with the miscellaneous files of the dataset locators; set before `initialize_worker`.
        fitted: what `ETLSpec.fit` returned for the data set; set before `initialize_worker`.
    """

    misc_dir: str = ""
    fitted: Any = None

    def initialize_worker(self) -> None:
        """Load what all models need, before the first one; called again for each task if it opens files or threads."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """The modules of one training configuration, randomly initialised; seeds are set before the call.

        Cerebro puts them on a device, saves and restores them.
        """
        raise NotImplementedError

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Metrics:
        """Train on one partition, once.

        Args:
            models: what `create_models` returned, in training mode, with the state of the sub-epoch before.
            checkpoint: lives across sub-epochs: `Checkpoint.track` your optimizer here.
            dataloader: shuffled batches of this partition.
            hyperparams: the configuration.

        Returns:
            Metrics of this sub-epoch by name, the same names for every partition. Over an epoch numbers are averaged,
            weighted by rows; a `Ratio` is put together exactly.
        """
        raise NotImplementedError

    def test(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Metrics:
        """Metrics on the rows of `dataloader`, as `train` returns them; models are in evaluation mode and gradients are
        off.

        The rows are the whole split, in validation and test alike, so that a metric may be of any kind, such as an AUC.
        A test on training data is done partition by partition: see `Ratio`.
        """
        raise NotImplementedError

    def hints(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Hints:
        """What a technique cannot find out by itself; only asked for where a sub-epoch may use one. Optional."""
        return Hints()

    def predict(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Any | Iterable[Any]:
        """Predictions for the rows of `dataloader`, in their order.

        Returns:
            An array or tensor with one entry per row, a `cerebro.Ragged`, a list of numbers or texts, a dict of such
            columns, or an iterable (say, a generator) that yields one of these per batch. What is yielded, and a column
            of a dict, may be a list of arrays, too, one for each row.
        """
        raise NotImplementedError
