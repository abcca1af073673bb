"""`TrainedModel`: checkpoint, hyperparameters and modules of one model after one epoch.

`FitResult` and `RegisteredModel` create it. Files are read or downloaded on access; `modules` runs user code in this
process, without the sandbox of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cerebro.client.files import Files
from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.errors import DataError, NotFoundError
from cerebro.usercode.in_process import UserCode, generators_kept


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model with the state after one of its epochs.

    Attributes:
        id: model id, such as ``m03``.
        run: fit run of the model.
        hyperparams: configuration at this epoch.
        epoch: epoch of the checkpoint: the best one, unless another was requested. 0 for the newest state of a model
            without a complete epoch.
        metric: metric that ranks the models.
        value: its value at this epoch; `None` if unknown.
        checkpoint: name, size and checksum of the checkpoint.
        files: access to the cluster's files.
        code: environment of the user's code.
        encoded: returns the encoded spec.
        removal_text: reason why the checkpoint was deleted. Empty for existing ones.

    Example::

        best = experiment.result().best
        (network,) = best.modules()
    """

    id: str
    run: str
    hyperparams: Hyperparameters
    epoch: int
    metric: str
    value: float | None
    checkpoint: CheckpointRef
    files: Files = field(repr=False)
    code: UserCode | None = field(default=None, repr=False)
    encoded: Callable[[], str] | None = field(default=None, repr=False)
    removal_text: str = field(default="", repr=False)

    @property
    def path(self) -> Path:
        """Path of the checkpoint as one file on this machine.

        It is downloaded if the cluster's volumes are not mounted. If frozen weights are in a separate file, both are
        merged in the user's cache folder.

        Raises:
            CheckpointCorruptError: the file is damaged.
            NotFoundError: the checkpoint was deleted.
            StoreUnavailableError: the cluster does not answer.
        """
        self._check_exists()
        return self.files.merged(self.checkpoint)

    def load(self) -> dict[str, Any]:
        """Load the checkpoint to the CPU and verify its checksum.

        Returns:
            ``{"models": [state_dict, ...], "checkpoint": {...}}``; ``"checkpoint"`` has the tracked objects by name.

        Raises:
            CheckpointCorruptError: the file is damaged.
            NotFoundError: the checkpoint was deleted.
            StoreUnavailableError: the cluster does not answer.

        Example::

            network.load_state_dict(best.load()["models"][0])
        """
        return self._state("cpu")

    def modules(self, device: str = "cpu") -> list[Any]:
        """Create the modules with `create_models` and load the trained weights.

        A `StepSpec` with `ema` returns the averaged weights, as in validation; `load` has both.

        User code runs in this process; global random states are kept. Files of the code archive are importable only
        during this call, so store the `state_dict()` of their classes instead of pickling the module.

        Args:
            device: torch device, such as ``"cuda:0"``. Default ``"cpu"``.

        Returns:
            Modules in evaluation mode on `device`.

        Raises:
            SpecError: the spec cannot be imported here, or creates other modules than were saved.
            DataError: the code of the model is unknown here; use `Experiment.attach`.
            CheckpointCorruptError: the file is damaged.
            NotFoundError: the checkpoint was deleted.
            StoreUnavailableError: the cluster does not answer.
        """
        if self.code is None or self.encoded is None:
            raise DataError(f"the code of model {self.id} is not known here: Experiment.attach() finds it")
        from cerebro.steps.ema import replace_by_averages
        from cerebro.worker.training.frameworks import user_models
        from cerebro.worker.training.sub_epoch import create, device_named, restore

        encoded = self.encoded()
        with self.code.importable(), generators_kept():
            spec = self.code.spec(encoded)
            spec.initialize_worker()
            trainee = create(spec, self.hyperparams, seed=0, model=self.id, device=device_named(device))
            restore(trainee, self._state(device))
            replace_by_averages(spec, trainee.modules, trainee.checkpoint, self.hyperparams)
        return user_models([module.eval() for module in trainee.modules])

    def _state(self, device: str) -> dict[str, Any]:
        from cerebro.worker.training.checkpoints.checkpoint import load

        self._check_exists()
        return load(self.files.checkpoints(self.checkpoint), self.checkpoint, device)

    def _check_exists(self) -> None:
        if self.removal_text:
            raise NotFoundError(self.removal_text)
