"""A Keras model as a module of torch: its state is named tensors, in the one format of all checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import torch
from torch import nn

from cerebro.keras.backend import fixed_threads
from cerebro.keras.stand_in import StandIn

ONLY_SINGLE = "it is a Keras model, which is trained on one device: techniques are for models of torch"


class KerasModule(StandIn):
    """What the platform saves and restores of a model beside its optimizer: weights and seed generators.

    Names are numbers in the order of `keras.Model.variables`, with what Keras calls the variable: its paths have counts
    of layers in them that differ from process to process.

    Args:
        model: built.
        beside: variables that belong to no model, such as the state of Keras' global seed generator.
    """

    only_single = ONLY_SINGLE

    def __init__(self, model: Any, beside: Sequence[Any] = ()) -> None:
        super().__init__()
        # In a list: with the torch backend it is a module, which is not to be one of this module's.
        self._models, self._beside = [model], list(beside)
        self.threads = fixed_threads()

    @property
    def model(self) -> Any:
        """The `keras.Model`."""
        return self._models[0]

    def _variables(self) -> dict[str, Any]:
        found = {f"{number:03}.{each.name}": each for number, each in enumerate(self.model.variables)}
        return found | {f"beside.{number}": each for number, each in enumerate(self._beside)}

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:  # type: ignore[override]
        """Tensors by name: the memory of the variables where that can be, or what never changes."""
        return {name: tensor_of(variable) for name, variable in self._variables().items()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Take these values.

        Raises:
            RuntimeError: they are not those of such a model; nothing was changed.
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
        """The weights, as far as they are numbers; what needs no gradient counts as frozen."""
        for name, variable in self._variables().items():
            tensor = tensor_of(variable)
            if tensor.is_floating_point():
                yield name, nn.Parameter(tensor, requires_grad=bool(variable.trainable))


class OptimizerState:
    """What is tracked of a model's optimizer: its slots, how many steps it has taken, its learning rate.

    The learning rate is a plain number, so that a changed hyper-parameter changes it (`worker.training.tracking`);
    where a schedule gives it, it follows from the number of steps.

    Args:
        optimizer: built.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """The learning rate, if it is a variable, and the other variables in their order."""
        rate = self._rate()
        slots = [tensor_of(each) for each in self._optimizer.variables if each is not rate]
        return {"slots": slots} | ({} if rate is None else {"learning_rate": float(tensor_of(rate))})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            ValueError: it is the state of another kind of optimizer, or of another model's.
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
        """The variable of the learning rate; `None` where a schedule gives it."""
        optimizer = getattr(self._optimizer, "inner_optimizer", self._optimizer)  # of a loss-scaling one
        rate = getattr(optimizer, "_learning_rate", None)
        return rate if isinstance(rate, keras.Variable) else None


def tensor_of(variable: Any) -> torch.Tensor:
    """A variable's value. With TensorFlow it is not copied either: who changes the variable gives it other memory as
    long as the tensor is there."""
    value = variable.value
    if isinstance(value, torch.Tensor):
        return value.detach()
    import tensorflow as tf

    return torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(tf.convert_to_tensor(value)))


def assign_to(variable: Any, tensor: torch.Tensor) -> None:
    """Give a variable a tensor's values; the tensor stays the caller's."""
    if isinstance(variable.value, torch.Tensor):
        variable.assign(tensor)
        return
    host = tensor.detach().cpu()
    variable.assign((host.float() if host.dtype == torch.bfloat16 else host).numpy())
