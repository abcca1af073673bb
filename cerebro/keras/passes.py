"""What `KerasSubEpochSpec` does unless a user's methods do: one pass over a data loader, as `fit`, `evaluate` and
`predict` pass over theirs.

Keras' own loops read ahead in threads of TensorFlow's: a sub-epoch would be told of batches before it has trained on
them, and could be left or saved at none. Here what they call for a batch is called for each batch.
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
    """Train on each batch; metrics are over the whole pass, also where it goes on from a savepoint."""
    model = _one(models, "train")
    kept = dataloader.progress({"metrics": None})

    def keep() -> None:
        kept["metrics"] = [tensor_of(variable).clone() for variable in model.metrics_variables]

    dataloader.savepoint(keep)
    step: _Step | None = None
    for batch in dataloader:
        if step is None:
            step = _begun(model, "train", batch)
            for variable, value in zip(model.metrics_variables, kept["metrics"] or (), strict=False):
                assign_to(variable, value)
        dataloader.report(**step(batch))
    return _metrics(model)


def test(models: list[Any], dataloader: DataLoader) -> dict[str, float]:
    """Test on each batch."""
    model = _one(models, "test")
    step: _Step | None = None
    for batch in dataloader:
        step = step or _begun(model, "test", batch)
        step(batch)
    return _metrics(model)


def predict(models: list[Any], dataloader: DataLoader) -> Iterator[Any]:
    """The outputs for each batch."""
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


def _begun(model: Any, kind: Literal["train", "test"], batch: Any) -> _Step:
    """What is done with a batch of a pass, whose metrics count anew.

    With TensorFlow it is traced for batches of any number of rows (`_Traced`). What Keras makes is traced a second time
    at the last, smaller batch of each sub-epoch; that is used where a model runs eagerly, or has a function of its own.
    """
    model._symbolic_build(data_batch=(*batch, None))  # makes the variables of metrics
    model.reset_metrics()
    made = f"make_{kind}_function"
    is_own = getattr(type(model), made) is not getattr(keras.Model, made)
    if keras.config.backend() != "tensorflow" or model.run_eagerly or is_own:
        getattr(model, made)()
        function = getattr(model, f"{kind}_function")
        return lambda batch: function([batch])
    return _Traced(getattr(model, f"{kind}_step"), jit_compile=model.jit_compile)


class _Traced:
    """A step as a function of TensorFlow's, for batches of any number of rows. Where they differ in another axis, as
    with texts that are padded to the longest of each batch, it is traced once more, for any length of that."""

    def __init__(self, step: _Step, *, jit_compile: Any) -> None:
        self._step, self._jit_compile = step, jit_compile
        self._seen: list[Any] = []
        """What the parts of the last batch were."""
        self._signature: list[Any] = []
        self._function: _Step = step

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        import tensorflow as tf

        parts = tf.nest.flatten(batch)
        seen = [tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in parts]
        if seen != self._seen:
            self._seen = seen
            self._trace(batch, seen)
        return self._function(batch)

    def _trace(self, batch: Any, seen: list[Any]) -> None:
        import tensorflow as tf

        known = self._signature if len(self._signature) == len(seen) else seen
        wider = [one.most_specific_common_supertype([other]) for one, other in zip(known, seen, strict=True)]
        signature = seen if None in wider else wider
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
