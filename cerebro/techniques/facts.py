"""What can be seen of a model without training it: sizes, repeated blocks, what couples rows. Needs torch."""

from __future__ import annotations

from torch import nn


def coupled(module: nn.Module) -> str:
    """Name of a module whose result for a row depends on the other rows of its batch; empty if none is found."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            return f"{name or 'the module itself'} ({type(part).__name__})"
    return ""
