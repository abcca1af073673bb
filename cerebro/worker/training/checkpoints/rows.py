"""Rows of tensors as bytes, and how ranks write them into one file.

`frozen` and `joint_write` write with it. `done_by_all` makes every rank raise if one cannot write, so that no rank
waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from cerebro.errors import StorageFullError, VolumeError
from cerebro.runtime.volume_errors import of_volume

_T = TypeVar("_T")

_PART_BYTES = 1 << 30
"""Maximum bytes per write call: the kernel accepts at most twice as much."""


def content(tensor: torch.Tensor) -> memoryview:
    """Return the tensor's bytes in order; a copy unless contiguous on the host."""
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    if not flat.numel():  # torch may give an empty tensor a stride that `view` refuses
        return memoryview(b"")
    found: memoryview = flat.view(torch.uint8).numpy().data
    return found


def write_at(descriptor: int, tensor: torch.Tensor, place: int) -> None:
    """Write a tensor's bytes at a place of a file."""
    if not tensor.numel():
        return
    remaining = content(tensor)
    while remaining:
        done = os.pwrite(descriptor, remaining[:_PART_BYTES], place)
        remaining, place = remaining[done:], place + done


def done_by_all(action: Callable[[], _T], of_ranks: Callable[[Any], list[Any]]) -> list[_T]:
    """Return the results of `action` on all ranks. Collective.

    Args:
        of_ranks: gathers a value from all ranks.

    Raises:
        StorageFullError, VolumeError, OSError: a rank cannot write. Every rank raises it.
    """
    result: _T | None = None
    problem: OSError | StorageFullError | VolumeError | None = None
    try:
        result = action()
    except OSError as error:
        problem = of_volume(error, Path(error.filename or ".")) or error
    except (StorageFullError, VolumeError) as error:
        problem = error
    found = of_ranks(
        (result, problem and (type(problem).__name__, str(problem), getattr(problem, "path", "")))
    )
    if problem is not None:
        raise problem
    for rank, (_, rank_rows) in enumerate(found):
        if rank_rows is not None:
            name, says, path = rank_rows
            kind = {"StorageFullError": StorageFullError, "VolumeError": VolumeError}.get(name)
            raise kind.at(says, path) if kind else OSError(f"rank {rank} cannot write its rows: {says}")
    return [each for each, _ in found]
