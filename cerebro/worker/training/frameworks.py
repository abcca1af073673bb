"""User code's framework: torch or Keras.

`sub_epoch` and trials turn each spec into a torch spec with `as_torch_spec`. Only this module distinguishes frameworks;
others see torch modules and specs. Keras itself is imported only for Keras specs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cerebro.keras.spec import KerasSubEpochSpec
from cerebro.keras.stand_in import StandIn
from cerebro.spec import SubEpochSpec


def as_torch_spec(spec: SubEpochSpec) -> SubEpochSpec:
    """Return a spec whose models are torch modules: the spec itself, or an adapter for Keras.

    Raises:
        SpecError: this process cannot use the spec's backend.
    """
    if not isinstance(spec, KerasSubEpochSpec):
        return spec
    from cerebro.keras.adapter import KerasAdapter

    return KerasAdapter(spec)


def user_models(modules: Sequence[torch.nn.Module]) -> list[Any]:
    """Return the models that `create_models` of the user's own spec returned."""
    return [module.model if isinstance(module, StandIn) else module for module in modules]


def only_single(modules: Sequence[torch.nn.Module]) -> str:
    """Return why a model cannot use any technique, or ""."""
    return next((module.only_single for module in modules if isinstance(module, StandIn)), "")


def takes_threads(modules: Sequence[torch.nn.Module], threads: int) -> bool:
    """True if this process can train a model with this number of threads."""
    return all(module.threads in (None, threads) for module in modules if isinstance(module, StandIn))
