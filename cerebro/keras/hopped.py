"""A `KerasSubEpochSpec` as the `SubEpochSpec` that the hopper trains: modules of torch outside, Keras models inside."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cerebro.errors import SpecError
from cerebro.keras.backend import chosen, restored
from cerebro.keras.spec import KerasSubEpochSpec
from cerebro.ragged_rows import Ragged
from cerebro.spec import Checkpoint, DataLoader, Metrics, SubEpochSpec


class Hopped(SubEpochSpec):
    """What it returns and takes are `KerasModule`s; what the user's methods get are their models.

    Args:
        spec: the user's. Not changed; everything that lives on is in the modules.

    Raises:
        SpecError: this process cannot have its backend.
    """

    def __init__(self, spec: KerasSubEpochSpec) -> None:
        self._spec = spec
        restored(chosen(spec.keras_backend))

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """The user's models, checked, with their optimizers' variables made."""
        drawn = random.getstate()
        from keras.src.random.seed_generator import global_seed_generator  # Keras shows it by no public name

        from cerebro.keras.module import KerasModule

        _seed()
        generator = global_seed_generator().state
        # Before the models are made: what they draw by it is drawn from the model's seed.
        generator.assign([torch.initial_seed() % 2**31, 0])
        random.setstate(drawn)  # the first time, it took a number from there
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
        """The user's `train`, or the one pass of the template."""
        from cerebro.keras.module import OptimizerState

        for number, module in enumerate(models):
            optimizer = _optimizer(module.model)
            if optimizer is not None:
                name = f"optimizer_{number}" if len(models) > 1 else "optimizer"
                checkpoint.track(**{name: OptimizerState(optimizer)})
        return self._spec.train(_models(models), checkpoint, _fed(dataloader), hyperparams)

    def test(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Metrics:
        """The user's `test`, or that of the template."""
        return self._spec.test(_models(models), checkpoint, _fed(dataloader), hyperparams)

    def predict(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Any:
        """The user's `predict`, or that of the template."""
        return self._spec.predict(_models(models), checkpoint, _fed(dataloader), hyperparams)

    def _uses_compile(self) -> bool:
        """Whether a method of the template is used, which goes by what `compile` was given."""
        spec = type(self._spec)
        return spec.train is KerasSubEpochSpec.train or spec.test is KerasSubEpochSpec.test


def _seed() -> None:
    """Seed the backend's own generator as torch's was for this sub-epoch. Layers and `keras.random` have generators
    that are variables, and are saved with the model."""
    import keras

    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        tf.random.set_seed(torch.initial_seed() % 2**31)
        # Each sub-epoch traces the functions of its model anew: what TensorFlow says of that is nothing to be mended.
        tf.get_logger().addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not ("retracing" in text and "TensorFlowTrainer" in text)


def _optimizer(model: Any) -> Any:
    """What `compile` was given; a model that was not compiled has no such attribute."""
    return getattr(model, "optimizer", None)


def _models(modules: Sequence[Any]) -> list[Any]:
    _seed()
    return [module.model for module in modules]


def _fed(dataloader: Any) -> Any:
    """The same data loader, which hands out what the backend takes."""
    import keras

    if keras.config.backend() == "tensorflow":
        dataloader.place = _arrays
    return dataloader


def _arrays(value: Any) -> Any:
    """Tensors as NumPy arrays, in whatever holds them; on a CPU in the same memory."""
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
    """The user's models.

    Raises:
        SpecError: they are not there, or not built, or not compiled; it names the model and says what to do.
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
                f"{where}: it has no weights to be saved or restored before it knows what it takes. Begin a Sequential "
                "model with keras.Input(shape), or call model.build((None, ...)) or the model on one batch before "
                "returning it"
            )
        if is_compiled and not model.compiled:
            raise SpecError(
                f"create_models() returned the model {model.name!r} ({type(model).__name__}), which is not compiled: "
                "nothing says how it is trained. Call model.compile(optimizer=..., loss=..., metrics=[...]) before "
                "returning it, or define train() and test()"
            )
    return models


def _unbuilt(layer: Any) -> str:
    """A layer in this one that may yet get weights; empty if there is none. What was called has built all that it
    uses; `keras.Model.build` by itself builds none of the layers that a subclass holds."""
    if not layer.built:
        return str(layer.name)
    within = layer._flatten_layers(include_self=False, recursive=False)
    used = [each for each in within if each.built or not layer._called]
    return next(filter(None, map(_unbuilt, used)), "")
