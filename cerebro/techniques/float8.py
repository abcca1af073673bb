"""Linear layers whose products are computed in 8 bits, each matrix with a scale of its own: by torchao."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from cerebro.errors import NotApplicableError
from cerebro.techniques.base import Group, Place

if TYPE_CHECKING:
    from torch import nn

FLOAT8, EMULATED = "float8", "float8-emulated"
"""Values of ``precision``: on GPUs that can, and to the same results on any device, slowly."""

_LEAST = (8, 9)
"""Compute capability of a GPU."""
_DIVISOR = 16
"""Of the rows and columns of a matrix that kernels take."""


def not_computed(precision: object, place: Place) -> str:
    """Why devices cannot compute in a precision, as far as it is known before they are asked; empty if they may."""
    if precision == FLOAT8 and place.kind == "cpu":
        return f"float8 takes a GPU of compute capability {_named(_LEAST)} or later"
    return ""


def to_float8(modules: list[nn.Module], group: Group, *, is_emulated: bool) -> None:
    """Have the linear layers of some modules compute in float8, in place. Parameters and names stay what they are. What
    may compute something else than a linear layer, or is not called, is left as it is.

    Raises:
        NotApplicableError: torchao is missing, the device cannot, or there is no such layer.
    """
    import torch

    if find_spec("torchao") is None:
        raise NotApplicableError("float8 is computed by torchao: pip install torchao where workers run")
    if not is_emulated:
        found = torch.cuda.get_device_capability(group.device) if group.device.startswith("cuda") else (0, 0)
        if found < _LEAST:
            raise NotApplicableError(
                f"float8 takes a GPU of compute capability {_named(_LEAST)} or later; that of {group.device} is "
                f"{_named(found)}"
            )
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(emulate=is_emulated)
    inside = [module for root in modules for module in root.modules()]
    # It reads the weights of the layers in it.
    attentions = [module for module in inside if isinstance(module, torch.nn.MultiheadAttention)]
    uncalled = {id(layer) for attention in attentions for layer in attention.modules()}
    count = 0

    def is_taken(module: nn.Module, name: str) -> bool:
        nonlocal count
        assert isinstance(module, torch.nn.Linear)  # no others are asked for
        is_divided = module.in_features % _DIVISOR == module.out_features % _DIVISOR == 0
        is_one = bool(name) and is_divided and id(module) not in uncalled and _is_plain(module)
        count += is_one
        return is_one

    for module in modules:
        if not isinstance(module, torch.nn.Linear):
            convert_to_float8_training(module, config=config, module_filter_fn=is_taken)
    if not count:
        raise NotApplicableError(
            f"float8 takes plain linear layers within a module whose rows and columns {_DIVISOR} divides, "
            "and there is none"
        )


def _is_plain(layer: nn.Module) -> bool:
    """Whether it does what torch's linear layer does, and nothing else: another class, a `forward` of its own or a hook
    would be lost."""
    from torch import nn

    own = vars(layer)
    return (
        type(layer) is nn.Linear
        and "forward" not in own
        and not any(own[name] for name in own if "_hooks" in name)
    )


def _named(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
