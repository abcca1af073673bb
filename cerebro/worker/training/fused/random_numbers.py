"""Random numbers of a stack: each member draws from its own generator.

`stack` replaces these functions of torch while it computes a step. So a member's dropout masks depend neither on the
other members nor on their number; on a CPU they equal the masks of separate training. Functions that are not replaced
raise an error in the stack, because `vmap` forbids them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._functorch import (
    _add_batch_dim,
    get_unwrapped,
    is_batchedtensor,
    maybe_current_level,
    maybe_get_bdim,
)
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.nn import functional

_VF: Any = torch._VF
Draw = Callable[[torch.Generator, int], torch.Tensor]
"""Draws a member's numbers, from its generator and its number in the stack."""


class MemberDraws:
    """Replacements for random functions, which draw once per member.

    Args:
        generators: the members' generators, in the order of the stack.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._generators = generators

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Replace the functions in the block."""
        replaced: list[tuple[Any, str, Any]] = []
        try:
            for owner, name, new in self._replacements():
                replaced.append((owner, name, vars(owner).get(name)))
                setattr(owner, name, new)
            yield
        finally:
            for owner, name, previous in reversed(replaced):
                if previous is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, previous)

    def batched(self, draw: Draw) -> torch.Tensor:
        """Return each member's numbers, as one tensor of the stack."""
        with temporarily_pop_interpreter_stack():  # the numbers of one member are no tensor of the stack
            rows = torch.stack([draw(each, number) for number, each in enumerate(self._generators)])
        level = maybe_current_level()
        assert level is not None
        return _add_batch_dim(rows, 0, level)

    def dropout(self, inputs: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        """Drop single elements, as `torch.dropout`."""
        if not train or p == 0:
            return inputs
        if p == 1:
            return inputs * 0
        return inputs * self._noise(inputs, p)

    def feature_dropout(self, inputs: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        """Drop whole channels, as `torch.feature_dropout`."""
        if not train or p == 0:
            return inputs
        if p == 1:
            return inputs * 0
        shape = (*inputs.shape[:2], *(1,) * (inputs.dim() - 2))
        return inputs * self._noise(inputs.new_empty(shape), p)

    def attention(  # noqa: PLR0917 - the signature of torch
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Attend, as `scaled_dot_product_attention`; its dropout would draw for the whole stack."""
        if enable_gqa:
            groups = query.size(-3) // key.size(-3)
            key, value = (each.repeat_interleave(groups, -3) for each in (key, value))
        weights = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
        if is_causal:
            shape = query.size(-2), key.size(-2)
            attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            weights = weights.masked_fill(attn_mask.logical_not(), -math.inf)
        elif attn_mask is not None:
            weights = weights + attn_mask
        return self.dropout(weights.softmax(-1), dropout_p, train=True) @ value

    def _noise(self, inputs: torch.Tensor, p: float) -> torch.Tensor:
        is_stacked = is_batchedtensor(inputs)
        values, dimension = (get_unwrapped(inputs), maybe_get_bdim(inputs)) if is_stacked else (inputs, 0)

        def draw(generator: torch.Generator, number: int) -> torch.Tensor:
            one = values.select(dimension, number) if is_stacked else values
            # As torch does: the order of the numbers follows the order of the elements in memory.
            noise = torch.empty_like(one, requires_grad=False)
            return noise.bernoulli_(1 - p, generator=generator).div_(1 - p)

        return self.batched(draw)

    def _replacements(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        for name in ("dropout", "feature_dropout"):
            yield _VF, name, getattr(self, name)
            yield _VF, f"{name}_", _in_place(getattr(self, name))
        yield functional, "scaled_dot_product_attention", self.attention
        for name in ("rand", "randn", "randint", "randperm"):
            yield torch, name, self._per_member(getattr(torch, name))
        for name in ("rand", "randn"):
            yield torch, f"{name}_like", self._like(getattr(torch, name))

    def _per_member(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def drawn(*arguments: Any, **named: Any) -> torch.Tensor:
            return self.batched(lambda generator, _: function(*arguments, generator=generator, **named))

        return drawn

    def _like(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def drawn(tensor: torch.Tensor, **named: Any) -> torch.Tensor:
            named = {"dtype": tensor.dtype, "device": tensor.device, **named}
            return self.batched(lambda generator, _: function(tensor.shape, generator=generator, **named))

        return drawn


def _in_place(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def in_place(inputs: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        return inputs.copy_(function(inputs, p, train)) if train else inputs

    return in_place
