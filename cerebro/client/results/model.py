"""A trained model: its checkpoint, and the modules that it is the state of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cerebro.client.files import Files
from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks import CheckpointRef
from cerebro.errors import DataError, NotFoundError
from cerebro.usercode.in_process import UserCode, generators_kept


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model at the end of one of its epochs.

    Attributes:
        epoch: the epoch that `load` and `modules` read. The best one, unless you named another; 0 before the first
            complete epoch, for the state after the newest sub-epoch.
        metric, value: what models are ranked by, at this epoch; `None` if it is not known there.
    """

    id: str
    hyperparams: Hyperparameters
    epoch: int
    metric: str
    value: float | None
    checkpoint: CheckpointRef
    files: Files = field(repr=False)
    code: UserCode | None = field(default=None, repr=False)
    encoded: Callable[[], str] | None = field(default=None, repr=False)
    """The spec it was trained by, as a string."""
    gone: str = field(default="", repr=False)
    """Reason why the checkpoint was removed, or an empty text."""

    @property
    def path(self) -> Path:
        """The checkpoint as one file: fetched first where the cluster's volumes are not mounted; put together in the
        user's cache folder where its frozen weights are in another file.

        Raises:
            CheckpointCorruptError, NotFoundError, StoreUnavailableError: it cannot be had.
        """
        self._check_there()
        return self.files.whole(self.checkpoint)

    def load(self) -> dict[str, Any]:
        """Load the state after `epoch` (the best one, unless you named another) to the CPU and check its bytes.

        Returns:
            ``{"models": [state_dict, ...], "checkpoint": {...}}``; ``"checkpoint"`` has tracked objects by name.

        Raises:
            CheckpointCorruptError, NotFoundError, StoreUnavailableError: the checkpoint cannot be had.
        """
        return self._state("cpu")

    def modules(self, device: str = "cpu") -> list[Any]:
        """The modules that `create_models` of its spec makes, with the trained state, in evaluation mode on `device`.

        Runs user code in this process; the global random generators stay as they are. Files of the code archive can be
        imported while the modules are made, and not after it: of classes from there, save the `state_dict()`, not the
        module.

        Raises:
            SpecError: the spec cannot be restored here, or makes other modules than were saved.
            CheckpointCorruptError, NotFoundError, StoreUnavailableError: the checkpoint cannot be had.
        """
        if self.code is None or self.encoded is None:
            raise DataError(f"the code of model {self.id} is not known here: Experiment.attach() finds it")
        from cerebro.worker.training.frameworks import users
        from cerebro.worker.training.sub_epoch import create, device_named, restore

        encoded = self.encoded()
        with self.code.importable(), generators_kept():
            spec = self.code.spec(encoded)
            spec.initialize_worker()
            trainee = create(spec, self.hyperparams, seed=0, model=self.id, device=device_named(device))
            restore(trainee, self._state(device))
        return users([module.eval() for module in trainee.modules])

    def _state(self, device: str) -> dict[str, Any]:
        from cerebro.worker.training.checkpoint import load

        self._check_there()
        return load(self.files.checkpoints(self.checkpoint), self.checkpoint, device)

    def _check_there(self) -> None:
        if self.gone:
            raise NotFoundError(self.gone)
