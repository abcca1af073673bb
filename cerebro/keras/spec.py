"""Base class for specs of Keras models. Importing it imports neither Keras nor a backend.

Users subclass it and pass an instance to `run_fit`, exactly as a `SubEpochSpec`. In the child, `KerasAdapter` makes it
look like one; the default methods are in `passes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cerebro.keras.backend import Backend, select_backend
from cerebro.spec import Checkpoint, DataLoader, Hyperparams, Metrics, SubEpochSpec


class KerasSubEpochSpec(SubEpochSpec):
    """Training of a Keras model: base class of user code.

    `create_models` is required. The other methods have defaults that follow the model's `compile`; override them with
    the arguments of `SubEpochSpec`. Weights, the optimizer with its number of steps, and the seed generators are saved
    and restored with the model. Batches are NumPy arrays with the TensorFlow backend, and torch tensors with the torch
    backend.

    Attributes:
        keras_backend: ``"tensorflow"`` or ``"torch"``. Default: the backend of the process that starts the run, if it
            imported Keras or sets ``KERAS_BACKEND``; else TensorFlow.
    """

    keras_backend: str = ""

    def create_models(self, hyperparams: Hyperparams) -> Any:
        """Create the built and compiled model of a configuration; seeds are set before the call.

        Returns:
            A `keras.Model`, or a list of models if you override `train`.
        """
        raise NotImplementedError

    def train(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Metrics:
        """Train on each batch once, as `fit` does. Return loss and metrics by their names in `compile`."""
        from cerebro.keras.passes import train

        return train(models, dataloader)

    def test(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Metrics:
        """Return the metrics of `evaluate`, by name."""
        from cerebro.keras.passes import test

        return test(models, dataloader)

    def predict(
        self, models: list[Any], checkpoint: Checkpoint, dataloader: DataLoader, hyperparams: Hyperparams
    ) -> Any | Iterable[Any]:
        """Return the outputs of `predict` batch by batch: one column, or one for each named output."""
        from cerebro.keras.passes import predict

        return predict(models, dataloader)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The backend is restored first, because the class may import Keras.
        reduced: Any = super().__reduce_ex__(protocol)
        make, arguments, *rest = reduced
        return _unpickle, (Backend(select_backend(self.keras_backend)), make, arguments), *rest


def _unpickle(backend: Backend, make: Any, arguments: tuple[Any, ...]) -> Any:
    spec = make(*arguments)
    spec.keras_backend = backend.name
    return spec
