"""Activation checkpointing: recompute a block's activations in the backward pass instead of storing them.

It is a technique for one device, and a parameter of `ddp`, `fsdp`, `offload`, `tensor` and `pipeline`, which call
`recompute_if_asked`. It needs a repeated block (`facts.blocks`) and writes nothing; it is unrelated to model
checkpoints.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from cerebro.errors import NotApplicableError
from cerebro.spec import Hints
from cerebro.techniques.base import DeviceSet, Group, Memory, ModelFacts, Params, Technique
from cerebro.techniques.single import not_one, state_bytes, too_large

if TYPE_CHECKING:
    from torch import nn

CHECKPOINTING = "checkpointing"
"""Parameter that enables activation checkpointing in other techniques."""

_NO_BLOCKS = "the model has no repeated block; name a class of its modules in Hints(blocks=...)"


class Checkpointing(Technique):
    """`torch.utils.checkpoint` around each repeated block, on one device. Results are bitwise equal."""

    name = "checkpointing"
    most = 1
    parameters: ClassVar = MappingProxyType({})
    processes = "one"

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        """Require repeated blocks and a device that fits the model's state."""
        return (
            not_one(devices)
            or ("" if facts.layers else _NO_BLOCKS)
            or too_large(self.memory(facts, devices, params), devices)
        )

    def memory(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> Memory:
        """Return the same state as on one device; only activations take less."""
        return Memory(device=state_bytes(facts))

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Recompute each block in the backward pass."""
        _recompute(modules, hints)


def not_repeated(facts: ModelFacts, params: Params) -> str:
    """Return why blocks cannot be recomputed with these parameters, or ""."""
    return "" if facts.layers or not params.get(CHECKPOINTING) else _NO_BLOCKS


def recompute_if_asked(modules: list[nn.Module], params: Params, hints: Hints) -> None:
    """Recompute blocks in the backward pass if the parameters enable it.

    Raises:
        NotApplicableError: the model has no repeated blocks.
    """
    if params.get(CHECKPOINTING):
        _recompute(modules, hints)


def _recompute(modules: list[nn.Module], hints: Hints) -> None:
    """Replace the `forward` of each block; replacing the block would change names."""
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    from cerebro.techniques.facts import blocks

    repeated_blocks = blocks(modules, hints)
    if not repeated_blocks:
        raise NotApplicableError(_NO_BLOCKS)
    for block in repeated_blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
