"""User code's framework: torch or Keras. Only this module distinguishes them; others see torch modules and
specs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cerebro.keras.spec import KerasSubEpochSpec
from cerebro.keras.stand_in import StandIn
from cerebro.spec import SubEpochSpec


def hopped(spec: SubEpochSpec) -> SubEpochSpec:
    """A spec whose models are modules of torch: the spec itself, or what stands for it.

    Raises:
        SpecError: this process cannot have the backend that it wants.
    """
    if not isinstance(spec, KerasSubEpochSpec):
        return spec
    from cerebro.keras.adapter import KerasAdapter

    return KerasAdapter(spec)


def users(modules: Sequence[torch.nn.Module]) -> list[Any]:
    """What `create_models` of the user's own spec returned."""
    return [module.model if isinstance(module, StandIn) else module for module in modules]


def only_single(modules: Sequence[torch.nn.Module]) -> str:
    """Return why a model cannot use any technique, or ""."""
    return next((module.only_single for module in modules if isinstance(module, StandIn)), "")


def takes_threads(modules: Sequence[torch.nn.Module], threads: int) -> bool:
    """True if this process can train a model with this number of threads."""
    return all(module.threads in (None, threads) for module in modules if isinstance(module, StandIn))
