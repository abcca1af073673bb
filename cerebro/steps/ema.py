"""Exponential moving average of weights, as by `torch.optim.swa_utils` with `get_ema_multi_avg_fn`.

The loop updates a `WeightAverage` after each optimizer step and tracks it, so its state is in the checkpoint.
Evaluations put the averaged weights into the modules by `averaged`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from cerebro.spec import SubEpochSpec
from cerebro.steps.options import options_of
from cerebro.steps.spec import StepSpec

NAME = "ema"
"""Name of the tracked average in the checkpoint."""


class WeightAverage:
    """Averages of all parameters that need a gradient, for any number of modules.

    The first update copies the weights. Buffers are not averaged.
    """

    def __init__(self, modules: Sequence[nn.Module], decay: float) -> None:
        self._decay = decay
        self._all = dict(_parameters(modules))
        self._trained = {name for name, parameter in self._all.items() if parameter.requires_grad}
        self._averages: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        """Include the current weights."""
        if self._averages:
            current = [self._all[name].detach() for name in self._averages]
            torch._foreach_lerp_([*self._averages.values()], current, 1 - self._decay)
        if len(self._averages) < len(self._trained):
            for name in sorted(self._trained - self._averages.keys()):
                self._averages[name] = self._all[name].detach().clone()

    def state_dict(self) -> dict[str, Any]:
        """Return the averages by parameter name; empty before the first update."""
        return dict(self._averages)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved averages.

        Raises:
            ValueError: an averaged parameter is missing.
        """
        if missing := sorted(state.keys() - self._all.keys()):
            raise ValueError(f"the modules lack the averaged parameters {', '.join(missing[:3])}")
        self._averages = {name: _like(average, self._all[name]) for name, average in state.items()}


@contextmanager
def averaged(
    spec: SubEpochSpec,
    modules: Sequence[nn.Module],
    checkpoint: Mapping[str, Any],
    hyperparams: Mapping[str, Any],
) -> Iterator[None]:
    """Give the modules their averaged weights in the block, if the spec averages them."""
    replaced = replace_by_averages(spec, modules, checkpoint, hyperparams)
    try:
        yield
    finally:
        for parameter, data in reversed(replaced):  # two modules may have one parameter
            parameter.data = data


def replace_by_averages(
    spec: SubEpochSpec,
    modules: Sequence[nn.Module],
    checkpoint: Mapping[str, Any],
    hyperparams: Mapping[str, Any],
) -> list[tuple[nn.Parameter, torch.Tensor]]:
    """Give the modules their averaged weights, if the spec averages them.

    Returns:
        The changed parameters, with their trained weights.
    """
    is_wanted = isinstance(spec, StepSpec) and options_of(spec, hyperparams).ema is not None
    averages: Mapping[str, torch.Tensor] = checkpoint.get(NAME, {}) if is_wanted else {}
    replaced = []
    for name, parameter in _parameters(modules):
        if name in averages:
            replaced.append((parameter, parameter.data))
            parameter.data = averages[name].to(parameter.device)
    return replaced


def _parameters(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    for number, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            yield f"{number}/{name}", parameter


def _like(average: torch.Tensor, parameter: nn.Parameter) -> torch.Tensor:
    """Return a full average on the parameter's device, or this rank's part if the parameter is sharded."""
    if isinstance(parameter, DTensor) and not isinstance(average, DTensor):
        return distribute_tensor(
            average.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
        )
    return average.to(parameter.device)
