"""Ranks write one checkpoint together, complete and equal to a file by a single rank."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.errors import SpecError, StorageFullError, VolumeError
from cerebro.spec import Hints
from cerebro.techniques import Fsdp, Group
from cerebro.worker.training.checkpoints.checkpoint import State, load, save
from cerebro.worker.training.checkpoints.joint_write import save_together
from cerebro.worker.training.ranks.full_tensors import gather_full
from tests.techniques.ranks import Ranks

SHAPES = ((640, 330), (65, 32), (7, 300), (1, 2000), (2, 3, 500), (5000,), (4, 4))
"""Shapes that ranks divide evenly, unevenly, or with a rank left empty, and one too small to shard."""


def sharded_state(group: Group) -> State:
    """Make a state like a sub-epoch's: tied weights, buffers, optimizer state, plain values."""
    torch.manual_seed(4)
    module = nn.Module()
    for number, shape in enumerate(SHAPES):
        module.register_parameter(f"p{number}", nn.Parameter(torch.rand(shape)))
    module.register_parameter("brief", nn.Parameter(torch.rand(300, 20).bfloat16()))
    module.again = module.p0
    module.register_buffer("seen", torch.arange(3000))
    holder = nn.Sequential(module)
    Fsdp().prepare([holder], group, {}, Hints())
    optimizer = torch.optim.SGD(holder.parameters(), lr=0.1, momentum=0.9)
    for number, parameter in enumerate(holder.parameters(), 1):
        parameter.grad = parameter.detach() * number
    optimizer.step()
    return {
        "models": [holder.state_dict()],
        "checkpoint": {"optimizer": optimizer.state_dict(), "n": 3, "loss": [0.5, torch.ones(2)]},
        "hyperparams": {"lr": 0.1},
        "made": {},
    }


def both(group: Group, root: Path) -> tuple[CheckpointRef | None, CheckpointRef | None]:
    state = sharded_state(group)
    full = gather_full(state, group)
    one = save(root, "one.pt", full) if group.rank == 0 else None
    return one, save_together(root, "together.pt", state, group)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_joint_checkpoint_equals_the_file_of_one_rank(size: int, tmp_path: Path, ranks: Ranks) -> None:
    (one, together), *others = ranks.run(size, both, tmp_path)
    assert all(found == (None, None) for found in others)
    assert (together.checksum, together.size) == (one.checksum, one.size)
    assert (tmp_path / "one.pt").read_bytes() == (tmp_path / "together.pt").read_bytes()
    state = load(tmp_path, together, "cpu")
    assert state["checkpoint"]["n"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.pt", "together.pt"]


def failing(group: Group, root: Path, rank: int, number: int) -> tuple[str, int]:
    """Return a rank's error and the space a new attempt needs, if one rank cannot write."""
    state = sharded_state(group)
    original = os.pwrite

    def pwrite(*args: Any) -> int:
        raise OSError(number, os.strerror(number))

    if group.rank == rank:
        os.pwrite = pwrite
    try:
        save_together(root, "together.pt", state, group)
    except (StorageFullError, VolumeError, OSError) as error:
        return f"{type(error).__name__}: {error}", getattr(error, "needs_bytes", 0)
    finally:
        os.pwrite = original
    return "", 0


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_report_a_full_volume(rank: int, tmp_path: Path, ranks: Ranks) -> None:
    """No partial file remains. Other write errors of one rank also reach every rank."""
    for says, needs in ranks.run(2, failing, tmp_path, rank, errno.ENOSPC):
        assert says.startswith("StorageFullError: no space to write in"), says
        assert needs > 1 << 20
    for says, _ in ranks.run(2, failing, tmp_path, rank, errno.EIO):
        assert says.startswith("VolumeError: "), says
        assert "Input/output error" in says
    assert list(tmp_path.iterdir()) == []


class Point(NamedTuple):
    """A type that a checkpoint would read as a plain tuple."""

    x: int
    y: int


def unsaved(group: Group, root: Path, kept: Any) -> str:
    """Return a rank's error for a state that rank 0 cannot lay out."""
    state = sharded_state(group)
    state["checkpoint"]["odd"] = kept
    try:
        save_together(root, "together.pt", state, group)
    except (SpecError, VolumeError) as error:
        return type(error).__name__
    return ""


def test_no_rank_waits_for_a_rank_that_cannot_start_saving(tmp_path: Path, ranks: Ranks) -> None:
    """User code may track an unsupported object, or the folder may be missing; rank 0 notifies the others."""
    for kept in (frozenset({1, 2}), defaultdict(list, a=[1]), Point(1, 2)):
        assert ranks.run(2, unsaved, tmp_path, kept) == ["SpecError", ""]
    assert ranks.run(2, unsaved, tmp_path / "gone", 1) == ["VolumeError", ""]
    assert list(tmp_path.iterdir()) == []
