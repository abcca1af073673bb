"""A Keras model as a torch module, with its state as named tensors in the common checkpoint format.

`KerasAdapter` wraps each model in a `KerasModule` and tracks an `OptimizerState`; `cerebro.worker.training` saves and
restores both like torch objects. The module has no `forward`: the user's code calls the Keras model. Importing this
file imports Keras.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import torch
from torch import nn

from cerebro.keras.backend import fixed_threads
from cerebro.keras.stand_in import StandIn

ONLY_SINGLE = "it is a Keras model, which trains on one device: techniques are for torch models"


class KerasModule(StandIn):
    """Weights and seed generators of a Keras model; its optimizer is tracked separately.

    A name has the variable's number in `keras.Model.variables` and its Keras name. Keras' paths count layers, so they
    differ between processes.

    Args:
        model: a built model.
        extra: variables of no model, such as the state of Keras' global seed generator.
    """

    only_single = ONLY_SINGLE

    def __init__(self, model: Any, extra: Sequence[Any] = ()) -> None:
        super().__init__()
        # In a list: with the torch backend the model is a module, which must not become a submodule.
        self._models, self._extra = [model], list(extra)
        self.threads = fixed_threads()

    @property
    def model(self) -> Any:
        """The `keras.Model`."""
        return self._models[0]

    def _variables(self) -> dict[str, Any]:
        found = {f"{number:03}.{each.name}": each for number, each in enumerate(self.model.variables)}
        return found | {f"beside.{number}": each for number, each in enumerate(self._extra)}

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return named tensors, which share memory with the variables if possible."""
        return {name: tensor_of(variable) for name, variable in self._variables().items()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Set the variables.

        Raises:
            RuntimeError: the state does not fit the model. No variable was changed.
        """
        variables = self._variables()
        wrong = [f"{name} was not saved" for name in variables.keys() - state_dict.keys()]
        wrong += [f"{name} is not in the model" for name in state_dict.keys() - variables.keys()]
        wrong += [
            f"{name} is saved with shape {tuple(state_dict[name].shape)}, and is {tuple(variable.shape)} here"
            for name, variable in variables.items()
            if name in state_dict and tuple(state_dict[name].shape) != tuple(variable.shape)
        ]
        if wrong:
            raise RuntimeError(
                f"the saved state does not fit {self.model.name}: {', '.join(sorted(wrong)[:5])}"
            )
        for name, variable in variables.items():
            assign_to(variable, state_dict[name])

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the numeric variables as parameters; non-trainable ones need no gradient."""
        for name, variable in self._variables().items():
            tensor = tensor_of(variable)
            if tensor.is_floating_point():
                yield name, nn.Parameter(tensor, requires_grad=bool(variable.trainable))


class OptimizerState:
    """State of a model's optimizer: slots, number of steps, learning rate.

    The learning rate is a number, so that a changed hyperparameter changes it (see `tracked_checkpoint`). With a
    schedule it follows from the number of steps.

    Args:
        optimizer: a built optimizer.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the variables in order, and the learning rate unless a schedule computes it."""
        rate = self._rate()
        slots = [tensor_of(each) for each in self._optimizer.variables if each is not rate]
        return {"slots": slots} | ({} if rate is None else {"learning_rate": float(tensor_of(rate))})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state.

        Raises:
            ValueError: the state is of another kind of optimizer, or of another model.
        """
        rate = self._rate()
        slots = [each for each in self._optimizer.variables if each is not rate]
        saved = state["slots"]
        if [tuple(each.shape) for each in slots] != [tuple(each.shape) for each in saved]:
            raise ValueError(f"{len(saved)} variables were saved, and its own {len(slots)} have other shapes")
        for variable, value in zip(slots, saved, strict=True):
            assign_to(variable, value)
        if rate is not None and "learning_rate" in state:
            rate.assign(state["learning_rate"])

    def _rate(self) -> Any:
        """Return the variable of the learning rate, or `None` with a schedule."""
        optimizer = getattr(
            self._optimizer, "inner_optimizer", self._optimizer
        )  # Unwrap a loss-scaling optimizer.
        rate = getattr(optimizer, "_learning_rate", None)
        return rate if isinstance(rate, keras.Variable) else None


def tensor_of(variable: Any) -> torch.Tensor:
    """Return a variable's value, without a copy.

    TensorFlow gives a variable new memory when it changes while the tensor exists.
    """
    value = variable.value
    if isinstance(value, torch.Tensor):
        return value.detach()
    import tensorflow as tf

    return torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(tf.convert_to_tensor(value)))


def assign_to(variable: Any, tensor: torch.Tensor) -> None:
    """Copy a tensor's values to a variable."""
    if isinstance(variable.value, torch.Tensor):
        variable.assign(tensor)
        return
    host = tensor.detach().cpu()
    variable.assign((host.float() if host.dtype == torch.bfloat16 else host).numpy())
