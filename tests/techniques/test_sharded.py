"""Full tensors are cut locally for sharded parameters, and saving needs little extra memory."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from cerebro.spec import Hints
from cerebro.techniques import Fsdp, Group
from tests.techniques.ranks import Ranks

MIB = 1 << 20


def cut_and_joined(group: Group, shapes: list[list[int]]) -> list[tuple[bool, bool, bool]]:
    """Compare cut and reassembled tensors with the originals.

    For each shape return three flags: True if the parameter, a tensor of another shape, and the optimizer
    state survive.
    """
    from torch.distributed.tensor import DTensor

    from cerebro.worker.training.ranks.sharded import cut, cut_optimizer_states

    module = nn.Module()
    for number, shape in enumerate(shapes):
        module.register_parameter(f"p{number}", nn.Parameter(torch.rand(shape)))
    holder = nn.Sequential(module)
    Fsdp().prepare([holder], group, {}, Hints())
    found = []
    for parameter in holder.parameters():
        assert isinstance(parameter, DTensor)
        full = torch.arange(parameter.numel(), dtype=torch.float64).reshape(parameter.shape)
        other = torch.rand(parameter.numel() + 1)
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        saved = {**optimizer.state_dict(), "state": {0: {"momentum_buffer": full.float()}}}
        with cut_optimizer_states():
            optimizer.load_state_dict(saved)
        buffer = optimizer.state[parameter]["momentum_buffer"]
        found.append(
            (
                torch.equal(_joined(cut(full, parameter)), full),
                torch.equal(_joined(cut(other, parameter)), other),
                buffer.to_local().shape == parameter.to_local().shape
                and torch.equal(_joined(buffer), full.float()),
            )
        )
    return found


def _joined(tensor: Any) -> torch.Tensor:
    full: torch.Tensor = tensor.full_tensor()
    return full


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(2, 3),
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_sharded_tensors_are_restored_in_full(size: int, shapes: list[list[int]], ranks: Ranks) -> None:
    """Covers row counts that the ranks do not divide, or below the number of ranks.

    Detects a torch version that shards differently.
    """
    for found in ranks.run(size, cut_and_joined, shapes):
        assert found == [(True, True, True)] * len(shapes)
