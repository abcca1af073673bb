"""A `StepSpec` from the class of a LightningModule, without Lightning itself.

`StepSpec.from_lightning` creates it. The module keeps its steps, its optimizer and `self.log`; Cerebro's loop replaces
the `Trainer`. A hook that only a `Trainer` calls is an error, so nothing is skipped silently.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from cerebro.errors import SpecError
from cerebro.spec import Checkpoint, DataLoader, Hints, Hyperparams, Metrics
from cerebro.steps.spec import StepSpec

_LIBRARIES = ("lightning.", "pytorch_lightning.")
_HOOKS = frozenset(
    (
        *("backward", "configure_callbacks", "configure_gradient_clipping", "configure_model", "setup"),
        *("lr_scheduler_step", "optimizer_step", "optimizer_zero_grad", "transfer_batch_to_device"),
    )
)
"""Methods that a `Trainer` calls and Cerebro doesn't. So are methods named ``on_...``."""


def spec_of(module_class: type[Any], arguments: Mapping[str, Any]) -> LightningSpec:
    """Return the spec of a LightningModule's class; see `StepSpec.from_lightning`.

    Raises:
        SpecError: it is no such class, or it needs a `Trainer`.
    """
    found: object = module_class
    if not isinstance(found, type) or not hasattr(found, "configure_optimizers"):
        raise SpecError(
            f"StepSpec.from_lightning() takes the class of a LightningModule, not {module_class!r}: pass "
            "LitClassifier, without parentheses"
        )
    names = [name for name in dir(module_class) if name in _HOOKS or name.startswith("on_")]
    if hooks := [name for name in names if is_defined(module_class, name)]:
        raise SpecError(
            f"{module_class.__name__} defines {', '.join(hooks)}, which only Lightning's Trainer calls: move the code "
            "into training_step() or configure_optimizers(), or write a SubEpochSpec"
        )
    has_validation = is_defined(module_class, "validation_step")
    return (ValidatedLightningSpec if has_validation else LightningSpec)(module_class, arguments)


def is_defined(module_class: type[Any], name: str) -> bool:
    """Return True if the user's class, and not Lightning's, defines a method."""
    owner = next((each for each in module_class.__mro__ if name in vars(each)), None)
    return owner is not None and not f"{owner.__module__}.".startswith((*_LIBRARIES, "torch."))


class TrainerFacts:
    """Numbers that modules read from ``self.trainer``, for one pass over a data loader."""

    def __init__(self, dataloader: DataLoader, total_steps: int) -> None:
        self._dataloader = dataloader
        self.max_epochs, self.current_epoch = dataloader.epochs, dataloader.epoch
        self.world_size, self.global_rank = dataloader.ranks, dataloader.rank
        self.is_global_zero = dataloader.rank == 0
        self.num_training_batches = len(dataloader)
        self.estimated_stepping_batches = total_steps
        self._first_step = dataloader.step

    @property
    def batch_idx(self) -> int:
        """Number of the current batch in this pass, from 0."""
        return self._dataloader.step - self._first_step

    @property
    def global_step(self) -> int:
        """Number of the current batch in the whole training, from 0."""
        return self._dataloader.step


class EpochSchedule:
    """A schedule that is stepped once between two epochs, not after each optimizer step.

    Args:
        scheduler: scheduler of torch.
        epoch: current epoch, from 0.
    """

    def __init__(self, scheduler: Any, epoch: int) -> None:
        self.scheduler, self._epoch = scheduler, epoch

    def step(self) -> None:
        """Do nothing: an optimizer step ends no epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state, and its epoch."""
        return {"scheduler": self.scheduler.state_dict(), "epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the scheduler, and step it once for each epoch that has ended since."""
        self.scheduler.load_state_dict(state["scheduler"])
        with warnings.catch_warnings():
            # The optimizer's steps before the restart are unknown to torch.
            warnings.filterwarnings("ignore", message=r"Detected call of `lr_scheduler.step\(\)` before")
            for _ in range(self._epoch - state["epoch"]):
                self.scheduler.step()


class LightningSpec(StepSpec):
    """Trains a LightningModule that has no validation step.

    Args:
        module_class: class of the module.
        arguments: fixed arguments of its constructor.
    """

    def __init__(self, module_class: type[Any], arguments: Mapping[str, Any]) -> None:
        self._module_class, self._arguments = module_class, dict(arguments)
        self._trainer: TrainerFacts | None = None
        self._metrics: dict[str, Any] = {}
        """Logged metric objects, such as torchmetrics', in this pass."""

    def create_models(self, hyperparams: Hyperparams) -> list[Any]:
        """Create the module with the hyperparameters that its constructor accepts.

        Raises:
            SpecError: it optimizes manually.
        """
        module = self._module_class(**_accepted(self._module_class, hyperparams), **self._arguments)
        if getattr(module, "automatic_optimization", True) is False:
            raise SpecError(
                f"{self._module_class.__name__} sets automatic_optimization = False: write its loop in a SubEpochSpec"
            )
        return [module]

    def configure_optimizers(self, models: list[Any], hyperparams: Hyperparams) -> Any:
        """Return the module's optimizer and schedule."""
        assert self._trainer is not None
        self._trainer.estimated_stepping_batches = self.total_steps
        optimizer, schedule = _unpacked(models[0].configure_optimizers())
        if schedule is None:
            return optimizer
        is_plateau = type(schedule["scheduler"]).__name__ == "ReduceLROnPlateau"  # the loop refuses it
        if schedule.get("interval", "epoch") == "step" or is_plateau:
            return optimizer, schedule["scheduler"]
        return optimizer, EpochSchedule(schedule["scheduler"], self._trainer.current_epoch)

    def training_step(self, models: list[Any], batch: Any, hyperparams: Hyperparams) -> Any:
        """Return the module's loss and the values that it logged."""
        returned, logged = self._call(models[0], "training_step", batch)
        return {**logged, "loss": returned.get("loss") if isinstance(returned, Mapping) else returned}

    def prediction_step(self, models: list[Any], batch: Any, hyperparams: Hyperparams) -> Any:
        """Return the result of `predict_step`, or of `forward` for the inputs."""
        if is_defined(self._module_class, "predict_step"):
            return self._call(models[0], "predict_step", batch)[0]
        return models[0](batch[0])

    def hints(self, models: list[Any], hyperparams: Hyperparams) -> Hints:
        """Name `training_step` as a method that uses parameters."""
        return Hints(methods=("training_step",))

    def train(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Metrics:
        """Train as `StepSpec` does, with ``self.trainer`` and metric objects."""
        self._begin(models[0], dataloader)
        return self._with_objects(super().train(models, checkpoint, dataloader, hyperparams))

    def predict(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Any:
        """Predict as `StepSpec` does, with ``self.trainer``."""
        self._begin(models[0], dataloader)
        return super().predict(models, checkpoint, dataloader, hyperparams)

    def _begin(self, module: Any, dataloader: DataLoader) -> None:
        self._metrics, self._trainer = {}, TrainerFacts(dataloader, self.total_steps)
        module.trainer = self._trainer

    def _call(self, module: Any, step: str, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Call a step of the module. Return its result, and the logged values."""
        assert self._trainer is not None
        logged: dict[str, Any] = {}
        module.log = partial(self._log, logged)
        module.log_dict = partial(self._log_dict, logged)
        method = getattr(module, step)
        takes_index = len(inspect.signature(method).parameters) > 1
        returned = method(batch, self._trainer.batch_idx) if takes_index else method(batch)
        return returned, logged

    def _log(self, logged: dict[str, Any], name: str, value: Any, *_: Any, **options: Any) -> None:
        if options.get("reduce_fx", "mean") not in ("mean", None) and not hasattr(value, "compute"):
            raise SpecError(
                f"self.log({name!r}, reduce_fx={options['reduce_fx']!r}): Cerebro averages values over rows. Log a "
                "cerebro.Ratio, or a metric object"
            )
        if hasattr(value, "compute") and hasattr(value, "reset"):
            if name not in self._metrics:
                self._metrics[name] = value
        else:
            logged[name] = value

    def _log_dict(self, logged: dict[str, Any], values: Mapping[str, Any], *_: Any, **options: Any) -> None:
        for name, value in values.items():
            self._log(logged, name, value, **options)

    def _with_objects(self, metrics: Metrics) -> Metrics:
        """Add the results of metric objects over all rows, and reset these objects."""
        computed = {name: float(each.compute()) for name, each in self._metrics.items()}
        for each in self._metrics.values():
            each.reset()
        return {**metrics, **computed}


class ValidatedLightningSpec(LightningSpec):
    """Trains and validates a LightningModule."""

    def validation_step(self, models: list[Any], batch: Any, hyperparams: Hyperparams) -> Mapping[str, Any]:
        """Return the values that the module logged, or else its loss."""
        returned, logged = self._call(models[0], "validation_step", batch)
        if logged or self._metrics:
            return logged
        metrics: Mapping[str, Any] = returned if isinstance(returned, Mapping) else {"loss": returned}
        return metrics

    def test(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Metrics:
        """Test as `StepSpec` does, with ``self.trainer`` and metric objects."""
        self._begin(models[0], dataloader)
        return self._with_objects(super().test(models, checkpoint, dataloader, hyperparams))


def _accepted(module_class: type[Any], hyperparams: Hyperparams) -> dict[str, Any]:
    """Return the hyperparameters that the constructor accepts by name."""
    parameters = inspect.signature(module_class).parameters
    return {name: value for name, value in hyperparams.items() if name in parameters}


def _unpacked(configured: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return the optimizer and the schedule's settings from any form that Lightning accepts.

    Raises:
        SpecError: it has several optimizers or schedules, or a frequency.
    """
    optimizer, schedule = configured, None
    if isinstance(configured, Mapping):
        optimizer, schedule = configured.get("optimizer"), configured.get("lr_scheduler")
    elif isinstance(configured, list | tuple):
        is_pair = len(configured) == 2 and all(isinstance(each, list | tuple) for each in configured)
        optimizers, schedules = configured if is_pair else (configured, ())
        if len(optimizers) != 1 or len(schedules) > 1:
            raise SpecError(
                f"configure_optimizers() returned {len(optimizers)} optimizers and {len(schedules)} schedules, "
                "expected one optimizer and at most one schedule: write the loop of several in a SubEpochSpec"
            )
        optimizer, schedule = optimizers[0], next(iter(schedules), None)
    settings = dict(schedule) if isinstance(schedule, Mapping) else {"scheduler": schedule}
    if settings["scheduler"] is None:
        return optimizer, None
    if settings.get("frequency", 1) != 1:
        raise SpecError(
            f"configure_optimizers() sets frequency={settings['frequency']} of its schedule, expected 1: change the "
            "schedule's own step sizes"
        )
    return optimizer, settings
