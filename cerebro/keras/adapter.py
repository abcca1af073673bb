"""Adapter from a `KerasSubEpochSpec` to the `SubEpochSpec` that the hopper trains.

`cerebro.worker.training.frameworks.as_torch_spec` creates one in a child process for each use of a Keras spec. The
adapter creates and checks models, tracks optimizers and converts batches; `passes` trains. It writes no files:
checkpoints come from the modules' state.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cerebro.errors import SpecError
from cerebro.keras.backend import activate, select_backend
from cerebro.keras.spec import KerasSubEpochSpec
from cerebro.ragged_rows import Ragged
from cerebro.spec import Checkpoint, DataLoader, Metrics, SubEpochSpec


class KerasAdapter(SubEpochSpec):
    """Adapter: the hopper sees `KerasModule`s, the user's methods see their Keras models.

    Args:
        spec: the user's spec. It is not changed; all state is in the modules.

    Raises:
        SpecError: this process cannot use the spec's backend.
    """

    def __init__(self, spec: KerasSubEpochSpec) -> None:
        self._spec = spec
        activate(select_backend(spec.keras_backend))

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """Create the user's models, check them, and build their optimizers."""
        random_state = random.getstate()
        from keras.src.random.seed_generator import global_seed_generator  # Keras has no public name for it.

        from cerebro.keras.module import KerasModule

        _seed()
        generator = global_seed_generator().state
        # Before the models are created, so that their random weights follow the model's seed.
        generator.assign([torch.initial_seed() % 2**31, 0])
        random.setstate(random_state)  # The first import consumed a random number.
        models = _checked(self._spec.create_models(hyperparams), is_compiled=self._uses_compile())
        for model in models:
            optimizer = _optimizer(model)
            if optimizer is not None and not optimizer.built:
                optimizer.build(model.trainable_variables)
        return [KerasModule(model, () if number else (generator,)) for number, model in enumerate(models)]

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Metrics:
        """Train by the user's `train`, or by the default pass."""
        from cerebro.keras.module import OptimizerState

        for number, module in enumerate(models):
            optimizer = _optimizer(module.model)
            if optimizer is not None:
                name = f"optimizer_{number}" if len(models) > 1 else "optimizer"
                checkpoint.track(**{name: OptimizerState(optimizer)})
        return self._spec.train(_models(models), checkpoint, _with_arrays(dataloader), hyperparams)

    def test(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Metrics:
        """Test by the user's `test`, or by the default pass."""
        return self._spec.test(_models(models), checkpoint, _with_arrays(dataloader), hyperparams)

    def predict(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Any:
        """Predict by the user's `predict`, or by the default pass."""
        return self._spec.predict(_models(models), checkpoint, _with_arrays(dataloader), hyperparams)

    def _uses_compile(self) -> bool:
        """Return True if a default method is used, which needs a compiled model."""
        spec = type(self._spec)
        return spec.train is KerasSubEpochSpec.train or spec.test is KerasSubEpochSpec.test


def _seed() -> None:
    """Seed TensorFlow's generator as torch's was for this sub-epoch.

    Layers and `keras.random` have generators that are variables, saved with the model.
    """
    import keras

    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        tf.random.set_seed(torch.initial_seed() % 2**31)
        # Each sub-epoch traces its model's functions again, so TensorFlow's warning is expected.
        tf.get_logger().addFilter(_is_unexpected)


def _is_unexpected(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not ("retracing" in text and "TensorFlowTrainer" in text)


def _optimizer(model: Any) -> Any:
    return getattr(model, "optimizer", None)


def _models(modules: Sequence[Any]) -> list[Any]:
    _seed()
    return [module.model for module in modules]


def _with_arrays(dataloader: Any) -> Any:
    """Let a data loader return the arrays that the backend takes."""
    import keras

    if keras.config.backend() == "tensorflow":
        dataloader.place = _arrays
    return dataloader


def _arrays(value: Any) -> Any:
    """Convert tensors to NumPy arrays, in any container; on a CPU they share memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, Ragged):
        return Ragged(_arrays(value.values), _arrays(value.offsets))
    if isinstance(value, Mapping):
        return {name: _arrays(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_arrays(each) for each in value)
    return value


def _checked(returned: object, *, is_compiled: bool) -> list[Any]:
    """Return the user's models.

    Raises:
        SpecError: a model is missing, not built or not compiled.
    """
    import keras

    models: list[Any] = list(returned) if isinstance(returned, list | tuple) else [returned]
    if not models or not all(isinstance(model, keras.Model) for model in models):
        wrong = next((each for each in models if not isinstance(each, keras.Model)), returned)
        raise SpecError(
            f"create_models() returned a {type(wrong).__module__}.{type(wrong).__name__}, expected a keras.Model, or a "
            "list of them"
        )
    for model in models:
        unbuilt = _unbuilt(model)
        if unbuilt:
            where = "" if unbuilt == model.name else f", because its layer {unbuilt!r} is not"
            raise SpecError(
                f"create_models() returned the model {model.name!r} ({type(model).__name__}), which is not built"
                f"{where}, so it has no weights to save or restore. Begin a Sequential "
                "model with keras.Input(shape), or call model.build((None, ...)) or the model on one batch before "
                "returning it"
            )
        if is_compiled and not model.compiled:
            raise SpecError(
                f"create_models() returned the model {model.name!r} ({type(model).__name__}), which is not compiled: "
                "it has no optimizer or loss. Call model.compile(optimizer=..., loss=..., metrics=[...]) before "
                "returning it, or define train() and test()"
            )
    return models


def _unbuilt(layer: Any) -> str:
    """Return the name of a layer that may still get weights, or an empty text.

    A called layer has built all layers it uses; `keras.Model.build` alone does not build a subclass's layers.
    """
    if not layer.built:
        return str(layer.name)
    inner_layers = layer._flatten_layers(include_self=False, recursive=False)
    used = [each for each in inner_layers if each.built or not layer._called]
    return next(filter(None, map(_unbuilt, used)), "")
