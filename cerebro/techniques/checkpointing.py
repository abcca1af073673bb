"""Activation checkpointing: what a block computed is not kept for the backward pass, but computed once more."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from cerebro.errors import NotApplicableError
from cerebro.spec import Hints
from cerebro.techniques.base import Group, Memory, ModelFacts, Params, Place, Technique
from cerebro.techniques.single import not_one, state_bytes, too_large

if TYPE_CHECKING:
    from torch import nn

CHECKPOINTING = "checkpointing"
"""Parameter of techniques that can recompute blocks besides."""

_NO_BLOCKS = "the model has no repeated block: name a class of its modules in Hints(blocks=...)"


class Checkpointing(Technique):
    """`torch.utils.checkpoint` around each repeated block, on one device. The results are the same bits."""

    name = "checkpointing"
    most = 1
    parameters: ClassVar = MappingProxyType({})
    processes = "one"

    def is_applicable(self, facts: ModelFacts, place: Place, params: Params) -> str:
        """It needs repeated blocks, and the model's state to fit the device."""
        return (
            not_one(place)
            or ("" if facts.layers else _NO_BLOCKS)
            or too_large(self.memory(facts, place, params), place)
        )

    def memory(self, facts: ModelFacts, place: Place, params: Params) -> Memory:
        """As on one device: only activations take less."""
        return Memory(device=state_bytes(facts))

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Have each block computed once more in the backward pass."""
        _recompute(modules, hints)


def not_repeated(facts: ModelFacts, params: Params) -> str:
    """Why blocks cannot be recomputed as these parameters of a technique ask; empty if they can or need not."""
    return "" if facts.layers or not params.get(CHECKPOINTING) else _NO_BLOCKS


def recompute_if_asked(modules: list[nn.Module], params: Params, hints: Hints) -> None:
    """Have blocks computed once more in the backward pass if these parameters of a technique ask for it.

    Raises:
        NotApplicableError: there are none.
    """
    if params.get(CHECKPOINTING):
        _recompute(modules, hints)


def _recompute(modules: list[nn.Module], hints: Hints) -> None:
    """Their `forward` is replaced, and not the blocks, so that all names stay."""
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    from cerebro.techniques.facts import blocks

    found = blocks(modules, hints)
    if not found:
        raise NotApplicableError(_NO_BLOCKS)
    for block in found:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
