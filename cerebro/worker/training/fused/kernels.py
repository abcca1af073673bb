"""One optimizer step of a tensor of weights by one kernel of torch: Adam, AdamW and SGD.

`row_optimizer` calls these with a state as torch's optimizers keep it. torch's own `step` does the same with
`fused=True`, but takes four times as long for a small tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import optim

Kernel = Callable[[torch.Tensor, dict[str, Any], Mapping[str, Any]], None]
"""Steps weights that have a gradient, with their state and the settings of their group."""


def _adam(weights: torch.Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
    if not state:
        # torch keeps the step on the host, and the kernel needs it on the device. It stays there while the
        # model is in a stack.
        state["step"] = torch.zeros((), dtype=torch.float32, device=weights.device)
        state["exp_avg"] = torch.zeros_like(weights)
        state["exp_avg_sq"] = torch.zeros_like(weights)
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = torch.zeros_like(weights)
    if state["step"].device != weights.device:
        state["step"] = state["step"].to(weights.device)
    state["step"] += 1
    beta1, beta2 = group["betas"]
    step = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    step(
        [weights],
        [weights.grad],  # type: ignore[list-item]  # a segment has a gradient
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [state["max_exp_avg_sq"]] if group["amsgrad"] else [],
        [state["step"]],
        lr=float(group["lr"]),
        beta1=float(beta1),
        beta2=float(beta2),
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=group["amsgrad"],
        maximize=group["maximize"],
    )


def _sgd(weights: torch.Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
    has_momentum = group["momentum"] != 0
    is_first = has_momentum and state.get("momentum_buffer") is None
    if is_first:
        state["momentum_buffer"] = torch.zeros_like(weights)
    torch._fused_sgd_(
        [weights],
        [weights.grad],  # type: ignore[list-item]
        [state["momentum_buffer"]] if has_momentum else [],
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=float(group["lr"]),
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
        is_first_step=is_first,
    )


KERNELS: Mapping[type[optim.Optimizer], Kernel] = MappingProxyType(
    {optim.Adam: _adam, optim.AdamW: _adam, optim.SGD: _sgd}
)
