"""A member of a stack: its checkpoint, batches, savepoints and metrics, as in separate training.

`group` creates a `Member` for each model. All members read the same batches; each passes its own data loader's hooks,
which report its progress and take its savepoints. A savepoint has the form of an unfused one, so the member continues
alone or in another stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import Any, cast

import torch

from cerebro.data.loader import Batch, PartitionLoader
from cerebro.steps import averages
from cerebro.steps.ema import NAME
from cerebro.steps.loop import is_step, total_steps
from cerebro.steps.optimization import Optimization
from cerebro.steps.options import Options, options_of
from cerebro.steps.spec import StepSpec
from cerebro.worker.training.checkpoints.savepoints import Savepoints
from cerebro.worker.training.fused.stack import Model
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.seeds import generator_states, restore_generator_states, seed_everything
from cerebro.worker.training.sub_epoch import output_warnings
from cerebro.worker.training.sub_epoch_checks import SubEpochChecks
from cerebro.worker.training.trainee import Trainee


class SharedBatches:
    """One pass over a partition that all members of a stack read."""

    def __init__(self, loader: PartitionLoader) -> None:
        self.loader = loader
        self._batches = iter(loader)
        self._number, self._batch = -1, cast("Batch | None", None)

    def batch(self, number: int) -> Batch | None:
        """Return a batch by its number in the pass; `None` after the last one. Members ask for the same or the next."""
        if number != self._number:
            self._batch = None  # free it before the next is gathered
            self._number, self._batch = number, next(self._batches, None)
        return self._batch

    def for_member(self) -> PartitionLoader:
        """Return the batches as a partition loader, for one member."""
        return cast(PartitionLoader, _MemberBatches(self))


class _MemberBatches:
    def __init__(self, shared: SharedBatches) -> None:
        self._shared = shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared.loader, name)

    def __len__(self) -> int:
        return len(self._shared.loader)

    def __iter__(self) -> Iterator[Batch]:
        for number in count():
            batch = self._shared.batch(number)
            if batch is None:
                return
            yield batch


class MemberSavepoints(Savepoints):
    """Savepoints of a member, with its tensors, metrics and random numbers taken from the stack."""

    outside: Callable[[], AbstractContextManager[None]] = nullcontext
    """Returns a context that makes the member as in separate training."""

    def begin_loop(self, loader: Any) -> None:
        """Restore the savepoint that the sub-epoch resumes from."""
        if self._has_begun:
            return
        with self.outside():
            super().begin_loop(loader)

    def take(self, batch: int, rows: int) -> bool:
        """Save the member's state before this batch, if possible. Return True if saved."""
        with self.outside():
            return super().take(batch, rows)


class Member:
    """A model that trains in a stack.

    Args:
        name: id of the model.
        trainee: the model, restored.
        feed: its batches, from `SharedBatches.for_member`.
        savepoints: the savepoints of `feed`.
        hyperparams: its configuration.
        seed: seed of its sub-epoch.
        device: device of the stack.
        has_recorder: True if `feed` records the live metrics of each batch.
    """

    def __init__(
        self,
        *,
        name: str,
        trainee: Trainee,
        feed: InstrumentedLoader,
        savepoints: MemberSavepoints,
        hyperparams: Mapping[str, Any],
        seed: int,
        device: torch.device,
        has_recorder: bool = False,
    ) -> None:
        self.name, self.trainee, self.feed, self.hyperparams = name, trainee, feed, dict(hyperparams)
        self.has_recorder = has_recorder
        self.batches: Iterator[Batch] = iter(())
        self.totals: dict[str, Any] = {}
        """Sums of its metrics, in the form of `cerebro.steps.averages`; current between batches only outside."""
        self._seed = seed
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._savepoints = savepoints
        self.separate: Callable[[], AbstractContextManager[None]] = nullcontext
        """Returns a context that gives its modules and optimizer separate tensors."""
        savepoints.outside = self.outside

    def begin(self, spec: StepSpec) -> None:
        """Create and restore its optimizer, as the loop of a `StepSpec` does.

        Raises:
            SpecError: an option or an optimizer is invalid.
        """
        for module in self.trainee.modules:
            module.train()
        with self.outside():
            self._checks = SubEpochChecks(self.trainee)
            self.options: Options = options_of(spec, self.hyperparams)
            spec.total_steps = self.total_steps = total_steps(self.feed, self.options.accumulate)
            self._optimization = Optimization(spec, self.trainee.modules, self.hyperparams, self.options)
            self.trainee.checkpoint.track(**self._optimization.tracked)
            self.totals = self.feed.progress({"metrics": {}})["metrics"]
            self.feed.savepoint()
        self._average = self._optimization.tracked.get(NAME)
        self._first_step = self.feed.step
        self.batches = iter(self.feed)

    @property
    def model(self) -> Model:
        """The member as a model to stack."""
        optimizer = self._optimization.optimizer
        return Model(self.name, self.trainee.modules, optimizer, self.hyperparams, self._generator)

    def after_step(self) -> None:
        """Step the schedule and the average of weights after an optimizer step."""
        self._checks.record_step(self._optimization.optimizer)
        scheduler = self._optimization.scheduler
        if scheduler is not None:
            self._optimization.optimizer._opt_called = True  # the schedule warns without it
            scheduler.step()
        if self._average is not None:
            self._average.update()

    @property
    def is_step(self) -> bool:
        """True if the current batch completes an optimizer step."""
        return is_step(self.feed, self._first_step, self.options.accumulate)

    def metrics(self) -> Mapping[str, Any]:
        """Return the metrics of the rows in its totals."""
        return averages.result(self.totals)

    def end(self) -> None:
        """End the sub-epoch: its checkpoint gets the state of its optimizer."""
        with self.outside():
            self.trainee.warnings = [*self._checks.warnings(self.feed), *output_warnings(self.feed)]
        self.trainee.checkpoint.settle()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Make the member as in separate training in the block: its tensors, and the process's random numbers."""
        previous = generator_states()
        seed_everything(self._seed)  # for Python and NumPy, which a stack must not use
        self._set_state(self._generator.get_state())
        try:
            with self.separate():
                yield
            self._generator.set_state(self._state())
        finally:
            restore_generator_states(previous)

    def _state(self) -> torch.Tensor:
        return torch.get_rng_state() if self._device.type == "cpu" else torch.cuda.get_rng_state(self._device)

    def _set_state(self, state: torch.Tensor) -> None:
        if self._device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, self._device)
