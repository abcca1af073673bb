"""The data loader of user code: batches of a partition, progress at each, and live metrics.

`model_hopper`, trials, replays and dry runs create an `InstrumentedLoader` for each call of `train`, `test` or
`predict`. It wraps a `PartitionLoader`, which reads the rows, and implements `cerebro.spec.DataLoader`. `on_batch` may
raise to leave the sub-epoch between batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader as TorchLoader

from cerebro import spec
from cerebro.contract.tasks.bodies import Position
from cerebro.contract.values import has_masked
from cerebro.data.loader import Batch, PartitionLoader
from cerebro.data.trees import RowId
from cerebro.errors import SpecError
from cerebro.worker.training.checkpoints.savepoints import Savepoints
from cerebro.worker.training.curve_recorder import CurveRecorder
from cerebro.worker.training.frozen_layers.layers import FrozenLayers
from cerebro.worker.training.metrics import checked_name
from cerebro.worker.training.torch_view import as_torch

_MAX_VALUES = 100
"""Maximum number of reported names, as in `cerebro.contract.events.LivePoint`."""


class BatchReporter:
    """Reports progress at each batch, with the live metrics of user code.

    Args:
        on_batch, is_due, recorder: see `InstrumentedLoader`.
    """

    def __init__(
        self,
        on_batch: Callable[[int, int, Mapping[str, float]], None],
        is_due: Callable[[], bool],
        recorder: CurveRecorder | None,
    ) -> None:
        self._on_batch, self._is_due, self._recorder = on_batch, is_due, recorder
        self._latest: dict[str, Any] = {}

    def record(self, values: Mapping[str, Any]) -> None:
        """Record live metrics of the current batch.

        Raises:
            SpecError: a name is invalid, or there are too many.
        """
        named = {checked_name(name, "dataloader.report"): value for name, value in values.items()}
        self._latest.update(named)
        if self._recorder is not None:
            self._recorder.record(named)
        if len(self._latest) > _MAX_VALUES:
            raise SpecError(
                f"dataloader.report() got {len(self._latest)} names, expected at most {_MAX_VALUES}"
            )

    def values(self) -> dict[str, float]:
        """Return the latest reported values as numbers. Synchronizes with a GPU."""
        return {
            name: float(getattr(value, "item", lambda v=value: v)())
            for name, value in self._latest.items()
            if not has_masked(value)
        }

    def notify(self, rows: int, batch: int) -> None:
        """Report progress: number of rows done, and the batch index."""
        self._on_batch(rows, batch, self.values() if self._latest and self._is_due() else {})


class InstrumentedLoader:
    """A `cerebro.spec.DataLoader` over a `PartitionLoader`.

    Args:
        epoch, sub_epoch, position: the sub-epoch and its position; for an evaluation, the model's epoch. `epoch` counts
            from 1, as in the log.
        on_batch: called before each batch with (rows done, batch index, values reported since the last call).
        is_due: returns True if `on_batch` needs values now; `report` checks it to fetch numbers from a GPU only then.
        savepoints: savepoints of the sub-epoch; the loader resumes at their batch, with their validation metrics.
        recorder: receives all reported values.
    """

    def __init__(
        self,
        loader: PartitionLoader,
        on_batch: Callable[[int, int, Mapping[str, float]], None] = lambda rows, batch, values: None,
        is_due: Callable[[], bool] = lambda: False,
        *,
        epoch: int = 1,
        sub_epoch: int = 0,
        position: Position | None = None,
        savepoints: Savepoints | None = None,
        recorder: CurveRecorder | None = None,
    ) -> None:
        self._loader, self._reporter = loader, BatchReporter(on_batch, is_due, recorder)
        self.frozen_layers = FrozenLayers(loader)
        """Outputs of frozen layers; by default kept in memory."""
        self._savepoints = savepoints or Savepoints()
        self.validation: spec.Validation | None = None
        if (found := self._savepoints.validation) is not None:
            self.validation = spec.Validation(found.epoch - 1, dict(found.metrics))
        self._batches = loader.first
        self.num_rows = loader.own_rows
        self.rank, self.ranks = loader.share
        self.place: Callable[[Batch], Batch] = lambda batch: batch
        """Moves a batch to a technique's devices; outputs may need another device than inputs."""
        self.on_handed: Callable[[Batch, int, int], None] = lambda batch, own_rows, rows: None
        """Called with each batch before it is returned, this rank's number of rows, and all ranks' number."""
        self.batch_size = loader.batch_size
        position = position or Position(epochs=epoch, sub_epochs=sub_epoch + 1, total_steps=len(loader))
        self.epoch, self.epochs = epoch - 1, position.epochs
        self.sub_epoch, self.sub_epochs = sub_epoch, position.sub_epochs
        self.step, self.total_steps = position.step, position.total_steps
        self._first_step, self._first_batch = position.step, loader.first

    @property
    def ids(self) -> list[RowId]:
        """Ids of the rows of the current batch; looked up at each access."""
        return self._loader.ids

    @property
    def is_lent(self) -> bool:
        """True if the current batch's rows are borrowed from another rank."""
        own_rows, rows = self._loader.counts
        return own_rows == 0 < rows

    @property
    def shared_rows(self) -> int:
        """Number of this rank's rows in a pass, without borrowed rows."""
        return self._loader.shared_rows

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        # A sub-epoch may pass over the data several times: the batch count continues, which shows progress.
        self._savepoints.begin_pass()
        first, self._first_batch = self._first_batch, 0
        for index, batch in enumerate(self._loader, first):
            self._reporter.notify(index * self.batch_size, self._batches)
            self._batches += 1
            # Each pass counts from the sub-epoch's first step: the platform sets the next sub-epoch's first
            # step.
            self.step = self._first_step + index
            self._savepoints.begin_loop(self)
            self.on_handed(batch, *self._loader.counts)
            yield self.frozen_layers.begin_batch(self.place(batch))
        self.step = self._first_step + len(self)
        self._reporter.notify(self._loader.num_rows, self._batches)

    def report(self, **values: Any) -> None:
        """Report live metrics of the current batch, kept at most once a second by name."""
        self._reporter.record(values)

    def progress(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Register progress values, and return them as saved if the sub-epoch resumes."""
        return self._savepoints.progress(values)

    def savepoint(self, hook: Callable[[], object] | None = None, *, every: int = 1) -> None:
        """Declare that the sub-epoch can resume from a savepoint; see `cerebro.spec.DataLoader`."""
        self._savepoints.declare(hook, every)

    def as_torch(self, arrange: Callable[[Any, Any], Any] | None = None) -> TorchLoader[Any]:
        """Return the batches as a torch DataLoader; see `cerebro.spec.DataLoader`."""
        return as_torch(self, arrange, self._savepoints.hand_over)

    def values(self) -> dict[str, float]:
        """Return the latest reported values as numbers. Synchronizes with a GPU."""
        return self._reporter.values()
