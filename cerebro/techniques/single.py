"""The technique for one device without changes; sub-epochs without a parallel plan use it.

Its functions for memory and device counts are shared by the other techniques. They return the reason against a
technique in words for the user, or "".
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from cerebro.spec import Hints
from cerebro.techniques.base import DeviceSet, Group, Memory, ModelFacts, Params, Technique

if TYPE_CHECKING:
    from torch import nn


class Single(Technique):
    """One process on one device, as user code is written."""

    name = "single"
    most = 1
    parameters: ClassVar = MappingProxyType({})
    processes = "one"

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        """Require room for the model's state on the device."""
        return not_one(devices) or too_large(self.memory(facts, devices, params), devices)

    def memory(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> Memory:
        """Return parameters, buffers, gradients and the optimizer's state."""
        return Memory(device=state_bytes(facts))

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Do nothing."""


def state_bytes(facts: ModelFacts) -> int:
    """Return the bytes of parameters, buffers, gradients and the optimizer's state, if known."""
    return facts.param_bytes + facts.buffer_bytes + facts.trainable_bytes + (facts.optimizer_bytes or 0)


def not_one(devices: DeviceSet) -> str:
    """Return why a technique for one device cannot be used, or ""."""
    return "" if devices.size == 1 else f"it uses one device, not {devices.size}"


def not_one_module(number: int) -> str:
    """Return why a technique for one module cannot be used with `number` modules, or ""."""
    return "" if number == 1 else f"create_models() returned {number} modules with parameters: it takes one"


def too_large(memory: Memory, devices: DeviceSet) -> str:
    """Return why a state does not fit the devices or the host, or "".

    Unknown sizes count as large enough.
    """
    if devices.memory_bytes is not None and memory.device > devices.memory_bytes:
        has = _gib(devices.memory_bytes)
        return f"the model's state alone takes {_gib(memory.device)} of a device, which has {has}"
    if devices.host_bytes is not None and memory.host > devices.host_bytes:
        return f"it takes {_gib(memory.host)} of the host's memory, which has {_gib(devices.host_bytes)}"
    return ""


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
