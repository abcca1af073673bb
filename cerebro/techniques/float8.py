"""Linear layers that multiply matrices in 8 bits with a scale for each matrix, by torchao.

`fsdp` and `offload` call `to_float8` if their parameter `precision` is `float8` or `float8-emulated`, which only users
choose. Results differ from a single device's by more than rounding. Layers of other kinds are unchanged.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from cerebro.errors import NotApplicableError
from cerebro.techniques.base import DeviceSet, Group

if TYPE_CHECKING:
    from torch import nn

FLOAT8, EMULATED = "float8", "float8-emulated"
"""Values of `precision`: on capable GPUs, or emulated slowly on any device with the same results."""

_MIN_CAPABILITY = (8, 9)
"""Minimum compute capability of the GPU."""
_DIVISOR = 16
"""Divisor of the rows and columns that the kernels accept."""


def not_computed(precision: object, devices: DeviceSet) -> str:
    """Return why the devices cannot compute in a precision, as known in advance, or ""."""
    if precision == FLOAT8 and devices.kind == "cpu":
        return f"float8 takes a GPU of compute capability {_version_text(_MIN_CAPABILITY)} or later"
    return ""


def to_float8(modules: list[nn.Module], group: Group, *, is_emulated: bool) -> None:
    """Make the linear layers of some modules compute in float8, in place.

    Parameters and names stay. Layers that have another class, hooks or a custom `forward`, and layers that are not
    called, are unchanged.

    Raises:
        NotApplicableError: torchao is missing, the device is not capable, or no layer qualifies.
    """
    import torch

    if find_spec("torchao") is None:
        raise NotApplicableError("float8 needs torchao: pip install torchao where workers run")
    if not is_emulated:
        capability = (
            torch.cuda.get_device_capability(group.device) if group.device.startswith("cuda") else (0, 0)
        )
        if capability < _MIN_CAPABILITY:
            raise NotApplicableError(
                f"float8 takes a GPU of compute capability {_version_text(_MIN_CAPABILITY)} or later; {group.device} "
                f"has {_version_text(capability)}"
            )
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=is_emulated)
    inside = [module for root in modules for module in root.modules()]
    # MultiheadAttention reads the weights of its layers and does not call them.
    attentions = [module for module in inside if isinstance(module, torch.nn.MultiheadAttention)]
    uncalled = {id(layer) for attention in attentions for layer in attention.modules()}
    count = 0

    def is_selected(module: nn.Module, name: str) -> bool:
        nonlocal count
        assert isinstance(module, torch.nn.Linear)  # torchao calls this for linear layers only
        is_divided = module.in_features % _DIVISOR == module.out_features % _DIVISOR == 0
        is_convertible = bool(name) and is_divided and id(module) not in uncalled and _is_plain(module)
        count += is_convertible
        return is_convertible

    for module in modules:
        if not isinstance(module, torch.nn.Linear):
            convert_to_float8_training(module, config=config, module_filter_fn=is_selected)
    if not count:
        raise NotApplicableError(
            "the model has no linear layer for float8. It takes plain linear layers within a module, with rows and "
            f"columns that {_DIVISOR} divides"
        )


def _is_plain(layer: nn.Module) -> bool:
    """Return True if the layer has torch's class, `forward` and no hooks, which the conversion would lose."""
    from torch import nn

    attributes = vars(layer)
    return (
        type(layer) is nn.Linear
        and "forward" not in attributes
        and not any(attributes[name] for name in attributes if "_hooks" in name)
    )


def _version_text(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
