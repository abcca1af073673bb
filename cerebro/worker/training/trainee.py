"""`Trainee`: a model in memory, and its state to save.

`cerebro.worker.training.sub_epoch` creates, restores and trains it; rank groups override parts of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.spec import DataLoader
from cerebro.worker.training.checkpoints.base_tensors import BaseTensors, is_plain
from cerebro.worker.training.checkpoints.checkpoint import State, needs_named, save
from cerebro.worker.training.checkpoints.frozen import FrozenWeights, move_to_base
from cerebro.worker.training.frameworks import only_single
from cerebro.worker.training.metrics import Measured
from cerebro.worker.training.tracked_checkpoint import Checkpoint


@dataclass(kw_only=True)
class Trainee:
    """A model in memory: its modules on their device, and the user's checkpoint mapping."""

    modules: list[torch.nn.Module]
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    hyperparams: Hyperparameters = field(default_factory=dict)
    is_new: bool = True
    """True if its weights are still the initial ones from `create_models`."""
    frozen: FrozenWeights = field(default_factory=FrozenWeights)
    warnings: list[str] = field(default_factory=list)
    """Warnings of the newest sub-epoch for the user."""

    def state(self) -> State:
        """Return the complete state to save."""
        return self.full_state(self.local_state())

    def save(self, root: Path, name: str, part: State | None = None) -> CheckpointRef | None:
        """Save the state as `checkpoint.save` does. Return the reference if this process wrote the file.

        Args:
            part: this process's state, possibly extended; default `local_state`, which may create a base for
                frozen weights. Otherwise only an existing base is used.
        """
        state = self.local_state() if part is None else part
        with needs_named(state):
            in_base = move_to_base(self, root, name, state, makes_base=part is None)
        try:
            return self.write(root, name, state, in_base)
        except BaseException:
            if in_base is not None:
                in_base.discard()
            raise

    def write(self, root: Path, name: str, state: State, in_base: BaseTensors | None) -> CheckpointRef | None:
        """Write a state without tensors stored in a base."""
        return save(root, name, state, in_base)

    def local_state(self) -> State:
        """Return this process's part of the state."""
        return {
            "models": [module.state_dict() for module in self.modules],
            "checkpoint": self.checkpoint.newest(),
            "hyperparams": self.hyperparams,
            "made": self.checkpoint.initial_values,
        }

    # --- overridden by rank groups (`grouped`) ------------------------------------------------------

    rank = 0
    """Number of this process among the ranks; 0 without a rank group."""

    @property
    def has_own_parameters(self) -> bool:
        """True if its modules have the parameters that user code made, not the technique's shards."""
        return not only_single(self.modules)

    @property
    def share(self) -> tuple[int, int]:
        """Index and number of row shares of each batch, for `PartitionLoader`."""
        return 0, 1

    @property
    def device(self) -> str:
        """Device for its batches; "" for its own device."""
        return ""

    def full_state(self, state: State) -> State:
        """Return the complete state to save, from this process's part."""
        return state

    def of_ranks(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        return [value]

    def rows_here(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int] | None:
        """Return this rank's rows of a tensor and the first row's number; `None` if not rows."""
        return (tensor, 0) if is_plain(tensor) else None

    def part(self, tensor: Any, parameter: torch.nn.Parameter) -> Any:
        """Return this rank's part of a parameter's saved tensor."""
        return tensor

    def cut_kept(self) -> None:
        """Reduce the content of `checkpoint` to this rank's parts of parameters."""

    @contextmanager
    def running(self, feed: DataLoader, seed: int) -> Iterator[None]:
        """Wrap the user's `train`. Does nothing without a rank group."""
        yield

    def agreed(self, metrics: Measured, feed: DataLoader) -> Measured:
        """Return the sub-epoch's metrics from this rank's result of `train`."""
        return dict(metrics)
