"""The template for Keras models. Importing it loads neither Keras nor a backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cerebro.keras.backend import Backend, chosen
from cerebro.spec import Checkpoint, DataLoader, Metrics, SubEpochSpec


class KerasSubEpochSpec(SubEpochSpec):
    """How a Keras model is made; trained, tested and asked for predictions as its `compile` says, or by methods of your
    own with the arguments of `SubEpochSpec`.

    Weights, the optimizer with its number of steps, and the seed generators are saved and restored with the model.
    Batches are NumPy arrays with the TensorFlow backend and torch's tensors with the torch backend.

    Attributes:
        keras_backend: ``"tensorflow"`` or ``"torch"``. Empty: as in the process that starts the run, where Keras was
            imported or ``KERAS_BACKEND`` is set; else TensorFlow.
    """

    keras_backend: str = ""

    def create_models(self, hyperparams: Mapping[str, Any]) -> Any:
        """The model of one training configuration, built and compiled; seeds are set before the call.

        Returns:
            A `keras.Model`, or a list of them where `train` is your own.
        """
        raise NotImplementedError

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Metrics:
        """One pass of what `fit` does with each batch.

        Returns:
            Loss and metrics by the names that `compile` gives them, over the rows of the sub-epoch.
        """
        from cerebro.keras.passes import train

        return train(models, dataloader)

    def test(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Metrics:
        """What `evaluate` returns, by name."""
        from cerebro.keras.passes import test

        return test(models, dataloader)

    def predict(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Any | Iterable[Any]:
        """What `predict` returns, batch by batch: one column, or one for each named output."""
        from cerebro.keras.passes import predict

        return predict(models, dataloader)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # What is pickled first is restored first: the class after it may import Keras.
        reduced: Any = super().__reduce_ex__(protocol)
        make, arguments, *rest = reduced
        return _restored, (Backend(chosen(self.keras_backend)), make, arguments), *rest


def _restored(backend: Backend, make: Any, arguments: tuple[Any, ...]) -> Any:
    spec = make(*arguments)
    spec.keras_backend = backend.name
    return spec
