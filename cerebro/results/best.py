"""The model with the best metric."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks import CheckpointRef
from cerebro.files import Files


@dataclass(frozen=True, kw_only=True)
class BestModel:
    """The model with the best metric, at its best epoch."""

    id: str
    hyperparams: Hyperparameters
    epoch: int
    metric: str
    value: float
    checkpoint: CheckpointRef
    files: Files = field(repr=False)

    @property
    def path(self) -> Path:
        """The checkpoint's file; fetched first where the cluster's volumes are not mounted.

        Raises:
            CheckpointCorruptError, NotFoundError, StoreUnavailableError: it cannot be had.
        """
        return self.files.checkpoints(self.checkpoint) / self.checkpoint.name

    def load(self) -> dict[str, Any]:
        """``{"models": [state_dict, ...], "checkpoint": {...}}`` on the CPU, its bytes checked."""
        from cerebro.training.checkpoint import load

        return load(self.files.checkpoints(self.checkpoint), self.checkpoint, "cpu")
