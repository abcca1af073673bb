"""Full tensors cut for sharded parameters, without traffic; what is saved needs no more memory than it must."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from cerebro.spec import Hints
from cerebro.techniques import Fsdp, Group
from cerebro.techniques.ranks import RankGroup
from cerebro.worker.training.gathering import whole
from tests.techniques.ranks import Ranks

MIB = 1 << 20


def cut_and_joined(group: Group, shapes: list[list[int]]) -> list[tuple[bool, bool, bool]]:
    """Of parameters of these shapes: whether a full tensor, cut as they are, is itself when it is put together; whether
    one of another shape is; and whether the optimizer's own state is cut alike."""
    from torch.distributed.tensor import DTensor

    from cerebro.worker.training.sharded import cut, cut_optimizer_states

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
def test_what_is_cut_is_whole_again(size: int, shapes: list[list[int]], ranks: Ranks) -> None:
    """Also where the ranks do not divide the rows, or there are fewer rows than ranks. A version of torch that makes
    other parts must not pass."""
    for found in ranks.run(size, cut_and_joined, shapes):
        assert found == [(True, True, True)] * len(shapes)


def peak_of_gathering(group: Group, count: int, num_bytes: int) -> int:
    """Bytes that a rank's memory grows by, at most, while so many tensors of so many bytes are put together."""
    module = nn.Sequential(*(nn.Linear(1024, num_bytes // 4096, bias=False) for _ in range(count)))
    Fsdp().prepare([module], group, {}, Hints())
    state = {"models": [module.state_dict()]}
    assert group.size == 1 or isinstance(group, RankGroup)
    group.barrier()
    before = memory_now()
    saved = whole(state, group)
    assert (saved is None) == (group.rank > 0)
    return memory("VmHWM") - before


def memory_now() -> int:
    """Of this process, in bytes; ``memory("VmHWM")`` is the most that it has from now on."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what an earlier test has freed would be taken again unseen
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(name: str) -> int:
    """Of this process, in bytes, as the kernel names it."""
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


def test_putting_a_state_together_needs_room_for_it_on_rank_0(ranks: Ranks) -> None:
    """And on others for nothing: parts are received where they stay."""
    count, size = 8, 16 * MIB
    first, second = ranks.run(2, peak_of_gathering, count, size)
    assert count * size * 0.9 < first <= (count + 1) * size
    assert second <= size
