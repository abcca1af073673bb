"""Base class for specs that define single steps. Importing it imports no torch.

Users subclass it and pass an instance to `run_fit`, exactly as a `SubEpochSpec`. The loop is in `loop`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cerebro.spec import Checkpoint, DataLoader, Hyperparams, Metrics, SubEpochSpec


class StepSpec(SubEpochSpec):
    """Creates models and defines the steps of training; Cerebro runs the loop.

    Implement `create_models`, `training_step` and `configure_optimizers`; `validation_step` if there is a validation
    split or you call `run_test`; `prediction_step` if you call `run_predict`. Cerebro calls `backward`, steps optimizer
    and scheduler, saves and restores them with the model, and averages the metrics. For a loop of your own, such as one
    with two optimizers, use `SubEpochSpec`.

    The options below are attributes of the class. A hyperparameter of the same name has precedence, so a search can
    vary an option.

    Attributes:
        accumulate: batches per optimizer step. The loss of each batch is divided by this number. The last batch of a
            partition always ends with a step. Default 1.
        clip_norm: maximum norm of the gradient of all parameters. Default `None`: no clipping.
        precision: ``"float32"``, or ``"bf16"`` or ``"fp16"`` for mixed precision by `torch.autocast`. ``"fp16"`` scales
            the loss by a `torch.amp.GradScaler`. Default ``"float32"``.
        compile: True to compile the modules for training by `torch.compile`. Each sub-epoch compiles in a new process,
            so this helps only if sub-epochs are long. Default `False`.
        ema: decay of the exponential moving average of the weights, such as 0.999. Validation, tests and predictions
            use the averaged weights. Default `None`: no average.
        total_steps: optimizer steps of the model's whole training, for the length of a schedule. Set before
            `configure_optimizers`. If `accumulate` is above 1 and partitions differ in size, an upper bound.

    Example::

        class DigitsSpec(StepSpec):
            def create_models(self, hyperparams):
                return [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))]

            def training_step(self, models, batch, hyperparams):
                images, labels = batch
                return torch.nn.functional.cross_entropy(models[0](images), labels)

            def configure_optimizers(self, models, hyperparams):
                return torch.optim.Adam(models[0].parameters(), lr=hyperparams["lr"])

            def validation_step(self, models, batch, hyperparams):
                images, labels = batch
                return {"accuracy": models[0](images).argmax(1) == labels}
    """

    accumulate: int = 1
    clip_norm: float | None = None
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    compile: bool = False
    ema: float | None = None
    total_steps: int = 0

    @classmethod
    def from_lightning(cls, module_class: type[Any], **arguments: Any) -> StepSpec:
        """Create a spec from the class of a LightningModule.

        The module keeps `training_step`, `validation_step`, `predict_step`, `configure_optimizers` and `self.log`.
        Cerebro replaces the `Trainer`; set its options on the spec, such as ``spec.clip_norm = 1.0``. A batch is
        ``(inputs, outputs)`` of the ETL spec. `validation_step` also serves `run_test`.

        Args:
            module_class: class of the module. Its constructor gets the hyperparameters that it accepts by name.
            **arguments: further arguments of the constructor.

        Returns:
            A spec for `run_fit`. Logged values are its metrics.

        Raises:
            SpecError: the module needs a `Trainer`, for example for a hook or for manual optimization.

        Example::

            spec = StepSpec.from_lightning(LitClassifier, classes=10)
            experiment.run_fit(spec, {"lr": [1e-3, 1e-2], "batch_size": [32]}, metric="val_loss", mode="min")
        """
        from cerebro.steps.lightning import spec_of

        return spec_of(module_class, arguments)

    def training_step(self, models: list[Any], batch: Any, hyperparams: Hyperparams) -> Any:
        """Compute the loss of one batch.

        Args:
            models: modules of `create_models` in training mode.
            batch: ``(inputs, outputs)`` on the device of the models.
            hyperparams: configuration of the model, by name.

        Returns:
            The loss, a tensor with one element: the mean over the batch's rows. Or a dict with the key ``"loss"`` and
            further metrics, as of `validation_step`. Write no values into `self`.

        Example::

            def training_step(self, models, batch, hyperparams):
                images, labels = batch
                logits = models[0](images)
                loss = torch.nn.functional.cross_entropy(logits, labels)
                return {"loss": loss, "accuracy": logits.argmax(1) == labels}
        """
        raise NotImplementedError

    def configure_optimizers(self, models: list[Any], hyperparams: Hyperparams) -> Any:
        """Create the optimizer, and optionally a schedule of its learning rate.

        Called once in each sub-epoch. Cerebro then restores their state.

        Args:
            models: modules of `create_models`.
            hyperparams: configuration of the model, by name.

        Returns:
            An optimizer, or ``(optimizer, scheduler)``. The scheduler is stepped after each optimizer step.

        Example::

            def configure_optimizers(self, models, hyperparams):
                optimizer = torch.optim.SGD(models[0].parameters(), lr=hyperparams["lr"], momentum=0.9)
                return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.total_steps)
        """
        raise NotImplementedError

    def validation_step(self, models: list[Any], batch: Any, hyperparams: Hyperparams) -> Mapping[str, Any]:
        """Compute the metrics of one batch. Models are in evaluation mode, gradients are off.

        For a metric over the whole split, such as an AUC, override `test` instead.

        Args:
            models: modules of `create_models` with trained state.
            batch: ``(inputs, outputs)`` on the device of the models.
            hyperparams: configuration of the model, by name.

        Returns:
            Metrics by name. Each is a tensor with one value per row, or one number, which is their mean, or a `Ratio`.
            Cerebro averages them over all rows.
        """
        raise NotImplementedError

    def prediction_step(self, models: list[Any], batch: Any, hyperparams: Hyperparams) -> Any:
        """Predict the rows of one batch. Models are in evaluation mode, gradients are off.

        Args:
            models: modules of `create_models` with trained state.
            batch: ``(inputs, outputs)`` on the device of the models.
            hyperparams: configuration of the model, by name.

        Returns:
            One entry per row, as a batch of `SubEpochSpec.predict`.

        Example::

            def prediction_step(self, models, batch, hyperparams):
                images, _ = batch
                return {"digit": models[0](images).argmax(1)}
        """
        raise NotImplementedError

    def train(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Metrics:
        """Train on each batch once by `training_step`. Return loss and metrics of the rows."""
        from cerebro.steps.loop import train

        return train(self, models, checkpoint, dataloader, hyperparams)

    def test(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Metrics:
        """Return the metrics of `validation_step`, averaged over the split's rows."""
        from cerebro.steps.loop import test

        return test(self, models, dataloader, hyperparams)

    def predict(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Any:
        """Yield the result of `prediction_step` for each batch."""
        from cerebro.steps.loop import predict

        return predict(self, models, dataloader, hyperparams)
