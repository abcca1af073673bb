"""Fused: several models with the same modules train in one process, as one stack.

It helps if a batch of one model is too small to fill a device. The controller forms groups of models that need the same
partition in the same epoch; `model_hopper` trains them with `cerebro.worker.training.fused`. Each model keeps its
learning rate, its checkpoints and its results.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from cerebro.spec import Hints
from cerebro.techniques.base import DeviceSet, Group, Memory, ModelFacts, Params, Technique
from cerebro.techniques.single import not_one, state_bytes, too_large

if TYPE_CHECKING:
    from torch import nn

MODELS = "models"
"""Parameter: largest number of models in a group."""

_SIZES = (2, 4, 8, 16, 32, 64)


class Fused(Technique):
    """Several models in one process, computed together. Only for `StepSpec`.

    Args:
        models: largest number of models in a group: 2, 4, 8, 16, 32 or 64.

    Example:
        >>> Fused(models=8).fixed
        {'models': 8}
    """

    name = "fused"
    most = 1
    parameters: ClassVar = MappingProxyType({MODELS: _SIZES})
    processes = "one"

    def __init__(self, models: int = 16) -> None:
        super().__init__(models=models)

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        """Require a loop that Cerebro runs, a second model with the same modules, and memory for the group."""
        return (
            not_one(devices)
            or facts.not_stackable
            or (
                ""
                if facts.alike_models > 1
                else "no other model of the run has the same modules and batch size"
            )
            or too_large(self.memory(facts, devices, params), devices)
        )

    def memory(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> Memory:
        """Return the state of all models of a group."""
        return Memory(device=int(params[MODELS]) * state_bytes(facts))

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Do nothing: the group's process stacks the models."""
