"""Default methods of `KerasSubEpochSpec`: one pass over a data loader, as by `fit`, `evaluate`, `predict`.

`KerasSubEpochSpec` calls them unless the user overrides a method. They take exactly one model. Keras' own loops read
ahead in TensorFlow's threads, so a data loader would count batches before they are trained on, and no savepoint would
be exact. Here each batch calls the function that Keras calls for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import keras

from cerebro.errors import SpecError
from cerebro.keras.module import assign_to, tensor_of
from cerebro.spec import DataLoader

_Step = Callable[[Any], Mapping[str, Any]]


def train(models: list[Any], dataloader: DataLoader) -> dict[str, float]:
    """Train on each batch; metrics cover the whole pass, also after a savepoint."""
    model = _one(models, "train")
    progress = dataloader.progress({"metrics": None})

    def save_metrics() -> None:
        progress["metrics"] = [tensor_of(variable).clone() for variable in model.metrics_variables]

    dataloader.savepoint(save_metrics)
    step: _Step | None = None
    for batch in dataloader:
        if step is None:
            step = _start(model, "train", batch)
            for variable, value in zip(model.metrics_variables, progress["metrics"] or (), strict=False):
                assign_to(variable, value)
        dataloader.report(**step(batch))
    return _metrics(model)


def test(models: list[Any], dataloader: DataLoader) -> dict[str, float]:
    """Test on each batch."""
    model = _one(models, "test")
    step: _Step | None = None
    for batch in dataloader:
        step = step or _start(model, "test", batch)
        step(batch)
    return _metrics(model)


def predict(models: list[Any], dataloader: DataLoader) -> Iterator[Any]:
    """Yield the outputs of each batch."""
    model = _one(models, "predict")
    for inputs, _ in dataloader:
        found = model.predict_on_batch(inputs)
        if isinstance(found, list | tuple):
            found = dict(zip(model.output_names, found, strict=True))
        yield found


def _one(models: list[Any], method: str) -> Any:
    if len(models) != 1:
        raise SpecError(
            f"create_models() returned {len(models)} models, and KerasSubEpochSpec.{method}() is for one: define "
            f"{method}(models, checkpoint, dataloader, hyperparams)"
        )
    return models[0]


def _start(model: Any, kind: Literal["train", "test"], batch: Any) -> _Step:
    """Return the step for a batch, and reset the metrics.

    With TensorFlow the step is traced for batches of any size (`_Traced`). Keras' own function would be traced again
    for the last, smaller batch of each sub-epoch; it is used for models that run eagerly or define their own.
    """
    model._symbolic_build(data_batch=(*batch, None))  # Creates the metrics' variables.
    model.reset_metrics()
    factory = f"make_{kind}_function"
    is_own = getattr(type(model), factory) is not getattr(keras.Model, factory)
    if keras.config.backend() != "tensorflow" or model.run_eagerly or is_own:
        getattr(model, factory)()
        function = getattr(model, f"{kind}_function")
        return lambda batch: function([batch])
    return _Traced(getattr(model, f"{kind}_step"), jit_compile=model.jit_compile)


class _Traced:
    """A step as a TensorFlow function for batches of any size.

    If another axis changes, as with texts padded per batch, the function is traced once more for any length of that
    axis.
    """

    def __init__(self, step: _Step, *, jit_compile: Any) -> None:
        self._step, self._jit_compile = step, jit_compile
        self._last_specs: list[Any] = []
        """Specs of the last batch's parts."""
        self._signature: list[Any] = []
        self._function: _Step = step

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        import tensorflow as tf

        parts = tf.nest.flatten(batch)
        specs = [tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in parts]
        if specs != self._last_specs:
            self._last_specs = specs
            self._trace(batch, specs)
        return self._function(batch)

    def _trace(self, batch: Any, specs: list[Any]) -> None:
        import tensorflow as tf

        known = self._signature if len(self._signature) == len(specs) else specs
        wider = [one.most_specific_common_supertype([other]) for one, other in zip(known, specs, strict=True)]
        signature = specs if None in wider else wider
        if signature != self._signature:
            self._signature = signature
            self._function = tf.function(
                self._step,
                input_signature=[tf.nest.pack_sequence_as(batch, signature)],
                jit_compile=self._jit_compile,
                autograph=False,
            )


def _metrics(model: Any) -> dict[str, float]:
    return {name: float(value) for name, value in model.get_metrics_result().items()}
