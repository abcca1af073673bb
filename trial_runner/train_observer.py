"""Observation of the user's `train`: gradients at the first step of each optimizer, and step counts.

`trial_runner.trial` wraps calls of `train` with `observe` to compare a parallel plan with a single device. Only
optimizers of torch are observed. Dropout and gradient clipping are off in the block, because dropout differs between
ranks and clipping hides a wrong scale; afterwards both work again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

MAX_BATCHES = 64
"""Batches without a step before `train` counts as using no optimizer of torch."""


@dataclass(kw_only=True)
class Observed:
    """Observations of one call of `train`.

    Attributes:
        gradients: parameter name -> gradient summary at the first step of its optimizer.
        numbers: settings of each optimizer's parameter groups at that step.
        steps: number of optimizer steps.
        batches: number of batches.
    """

    gradients: dict[str, Mark | None] = field(default_factory=dict)
    numbers: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    batches: int = 0
    record: Callable[[Optimizer], None] = lambda optimizer: None
    """Records a step about to be taken; torch's optimizers call it by themselves."""

    def should_continue(self, batches: int) -> bool:
        """Return True until an optimizer has stepped or `MAX_BATCHES` is reached; for `LimitedLoader`."""
        self.batches = batches
        return self.steps == 0 and batches < MAX_BATCHES


@contextmanager
def observe(modules: Sequence[nn.Module]) -> Iterator[Observed]:
    """Observe the first step of each optimizer over these modules.

    Collective if parameters are sharded: all ranks step together.
    """
    observed, optimizers = Observed(), list[Optimizer]()
    names = {
        id(parameter): f"{number}/{name}"
        for number, module in enumerate(modules)
        for name, parameter in module.named_parameters()
    }

    def step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        observed.steps += 1
        if any(each is optimizer for each in optimizers):
            return
        optimizers.append(optimizer)
        for group in optimizer.param_groups:
            observed.numbers.append({key: _plain(value) for key, value in group.items() if key != "params"})
            for number, parameter in enumerate(group["params"]):
                name = names.get(id(parameter), f"optimizer {len(optimizers)}, parameter {number}")
                observed.gradients[name] = _mark(name, parameter.grad)

    observed.record = lambda optimizer: step(optimizer, (), {})
    handle = register_optimizer_step_pre_hook(step)
    try:
        with _without_dropout(modules), _without_clipping():
            yield observed
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
    """Makes dropout functions return their input."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = dict(kwargs or {})
        if func in _DROPPING:
            return args[0] if args else arguments["input"]
        if func is functional.scaled_dot_product_attention:
            # (query, key, value, attn_mask, dropout_p, ...)
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            arguments.update({"dropout_p": 0.0} if "dropout_p" in arguments else {})
        return func(*args, **arguments)


@contextmanager
def _without_dropout(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Set `dropout` to 0 on modules that drop inside a kernel, such as RNNs and attention."""
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
    """Make `torch.nn.utils.clip_grad_norm_` return the norm without clipping.

    User code may have imported the function by name, so an inner function of torch is replaced; a test checks that
    torch still calls it. Clipping by value needs no replacement, because it only hides values at its limit.
    """
    clipping, name = torch.nn.utils.clip_grad, "_clip_grads_with_norm_"
    with ExitStack() as stack:
        original = getattr(clipping, name, None)
        if original is not None:
            setattr(clipping, name, lambda *args, **kwargs: None)
            stack.callback(setattr, clipping, name, original)
        yield
