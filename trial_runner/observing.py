"""The user's `train` seen from outside: its gradients at the first step of each optimizer, how often it steps, with
which numbers. Dropout and clipping are off meanwhile: the one differs from rank to rank, the other hides a wrong scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from trial_runner.gradients import Mark, mark_of

MOST_BATCHES = 64
"""Without a step of an optimizer after so many, there is none."""


@dataclass(kw_only=True)
class Seen:
    """What was seen of a call of `train`.

    Attributes:
        gradients: at the first step of each optimizer: parameter -> gradient.
        numbers: of each parameter group of each optimizer at that step.
        steps, batches: how many there were.
    """

    gradients: dict[str, Mark | None] = field(default_factory=dict)
    numbers: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    batches: int = 0

    def goes_on(self, batches: int) -> bool:
        """For `EndingLoader`: until an optimizer has stepped."""
        self.batches = batches
        return self.steps == 0 and batches < MOST_BATCHES


@contextmanager
def observing(modules: Sequence[nn.Module]) -> Iterator[Seen]:
    """Watch the first step of each optimizer over these modules. Where parameters are in parts, this is collective: all
    ranks step together."""
    seen, optimizers = Seen(), list[Optimizer]()
    names = {
        id(parameter): f"{number}/{name}"
        for number, module in enumerate(modules)
        for name, parameter in module.named_parameters()
    }

    def step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        seen.steps += 1
        if any(each is optimizer for each in optimizers):
            return
        optimizers.append(optimizer)
        for group in optimizer.param_groups:
            seen.numbers.append({key: _plain(value) for key, value in group.items() if key != "params"})
            for number, parameter in enumerate(group["params"]):
                name = names.get(id(parameter), f"optimizer {len(optimizers)}, parameter {number}")
                seen.gradients[name] = _mark(name, parameter.grad)

    handle = register_optimizer_step_pre_hook(step)
    try:
        with _without_dropout(modules), _without_clipping():
            yield seen
    finally:
        handle.remove()


def _mark(name: str, gradient: torch.Tensor | None) -> Mark | None:
    if gradient is None:
        return None
    full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return mark_of(name, full.to_dense() if full.is_sparse else full)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else tuple(value.shape)
    return list(value) if isinstance(value, tuple) else value


# --- dropout -----------------------------------------------------------------------------------------

_DROPPING = {
    getattr(where, name)
    for where, names in (
        (
            functional,
            ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
        ),
        (
            torch,
            ("dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_"),
        ),
    )
    for name in names
    if hasattr(where, name)
}


class _NoDropout(TorchFunctionMode):
    """Functions that drop something drop nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func in _DROPPING:
            return args[0] if args else given["input"]
        if func is functional.scaled_dot_product_attention:
            # (query, key, value, attn_mask, dropout_p, ...)
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            given.update({"dropout_p": 0.0} if "dropout_p" in given else {})
        return func(*args, **given)


@contextmanager
def _without_dropout(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Modules that drop within a kernel, such as recurrent ones and attention, are told not to."""
    changed: list[tuple[nn.Module, float]] = []
    for module in (each for root in modules for each in root.modules()):
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout:
            changed.append((module, float(module.dropout)))
            cast(Any, module).dropout = 0.0
    try:
        with _NoDropout():
            yield
    finally:
        for module, share in changed:
            cast(Any, module).dropout = share


# --- clipping ------------------------------------------------------------------------------------------


@contextmanager
def _without_clipping() -> Iterator[None]:
    """`torch.nn.utils.clip_grad_norm_` tells the norm, and changes nothing. User code may have imported it by name, so
    it is what it calls that is replaced; a test says whether torch still does. Clipping by value hides nothing that is
    not at its limit."""
    clipping, name = torch.nn.utils.clip_grad, "_clip_grads_with_norm_"
    with ExitStack() as stack:
        before = getattr(clipping, name, None)
        if before is not None:
            setattr(clipping, name, lambda *args, **kwargs: None)
            stack.callback(setattr, clipping, name, before)
        yield
