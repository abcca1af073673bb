"""A checkpoint written jointly: rank 0 creates the file, and each rank writes its rows.

`ranks.grouped.GroupTrainee` calls `save_together` for checkpoints and savepoints. Only tensors sharded by rows on one
worker are written by their ranks; others are sent to rank 0.

The file equals, bit for bit, the one rank 0 would write with full tensors. For sharded tensors, rank 0 passes
placeholders to torch: untouched memory. A write from a placeholder leaves a gap in the file and records its offset. So
no torch format is imitated, and no rank needs memory for another rank's rows.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.runtime.volume_errors import volume_errors_named
from cerebro.techniques.base import Group
from cerebro.worker.training.checkpoints.base_tensors import BaseTensors
from cerebro.worker.training.checkpoints.checkpoint import (
    State,
    needs_named,
    opened,
    put,
    save,
)
from cerebro.worker.training.checkpoints.placeholders import Offsets, PlaceholderWriter
from cerebro.worker.training.checkpoints.rows import done_by_all, write_at
from cerebro.worker.training.checkpoints.storable import state_bytes, storable_state
from cerebro.worker.training.ranks.full_tensors import gather_full, joined

_LEAST_BYTES, _LEAST_STATE_BYTES = 4 << 10, 1 << 20
"""Minimum bytes of a tensor, and of a state, written by rows. Smaller ones are sent to rank 0 faster."""


def save_together(
    root: Path, name: str, state: State, group: Group, in_base: BaseTensors | None = None
) -> CheckpointRef | None:
    """Write a rank group's state as one file, durably. Collective.

    Rank 0 needs additional host memory only for tensors not sharded by rows.

    Args:
        in_base: tensors stored in a base (`frozen.move_to_base`).

    Returns:
        On rank 0 the reference, after the file exists. On other ranks `None`, after their rows are written.

    Raises:
        RanksDifferError: ranks differ in another value: on all ranks.
        SpecError, VolumeError: as `checkpoint.save`; on rank 0.
        StorageFullError: as `checkpoint.save`; on all ranks if the volume was full for any rank's rows.
    """
    rows = _Rows(state, in_base)
    full = gather_full(state, group, join=rows.join)
    if not rows.parts:
        return save(root, name, full, in_base) if group.rank == 0 else None
    if group.rank > 0:
        received: tuple[str, Offsets] | None = group.gathered(None)[0]
        if received is not None:
            with needs_named(state, in_base):
                rows.write(*received, group)
        return None
    is_announced = False
    try:
        with opened(root, name, full, in_base) as file:
            full = storable_state(full)
            full = full if in_base is None else in_base.with_placeholders(full)
            writer = PlaceholderWriter(file, rows.placeholders, in_base)
            put(full, writer)
            file.flush()
            is_announced = True
            group.gathered((str(file.aside), writer.offsets))
            rows.write(str(file.aside), writer.offsets, group)
            return writer.commit(name)
    except Exception:
        if not is_announced:
            group.gathered(None)  # no rank waits for rows
        raise


class _Rows:
    """Rows that this rank writes.

    Attributes:
        parts: parts of tensors, in the same order on all ranks.
        placeholders: on rank 0, untouched memory as large as each full tensor, which therefore uses none.
    """

    def __init__(self, state: State, in_base: BaseTensors | None) -> None:
        self._in_base = in_base
        self._is_wanted = state_bytes(state) >= _LEAST_STATE_BYTES
        self.parts: list[DTensor] = []
        self.placeholders: list[torch.Tensor] = []

    def join(self, part: DTensor, group: Group) -> torch.Tensor | None:
        """Return a full tensor or its placeholder on rank 0, and `None` on other ranks. Collective."""
        base = self._in_base
        placeholder = None if base is None else base.placeholder_of(part.to_local(), part.shape)
        if placeholder is not None:
            return placeholder if group.rank == 0 else None
        num_bytes = part.numel() * part.element_size()
        # Not across machines: on a network volume, writes may become visible late.
        is_by_rows = (
            self._is_wanted
            and group.size > 1
            and not group.is_of_several_workers
            and part.placements == (Shard(0),)
        )
        if not is_by_rows or num_bytes < _LEAST_BYTES:
            return joined(part, group)
        self.parts.append(part)
        if group.rank > 0:
            return None
        device = "cpu"  # regardless of user code's default
        self.placeholders.append(torch.empty(part.shape, dtype=part.dtype, device=device))
        return self.placeholders[-1]

    def write(self, path: str, offsets: Offsets, group: Group) -> None:
        """Write this rank's rows of all tensors. Collective.

        Raises:
            StorageFullError: the volume is full: on all ranks.
            OSError: a rank cannot write: on all ranks.
        """

        def write() -> None:
            with volume_errors_named(Path(path).parent), Path(path).open("r+b", buffering=0) as file:
                for number, part in enumerate(self.parts):
                    _write(file.fileno(), part, offsets[number])

        done_by_all(write, group.gathered)


def first_row(part: DTensor) -> int:
    """Return the number of the full tensor's row that a rank's rows begin with."""
    _, (first, *_) = compute_local_shape_and_global_offset(part.shape, part.device_mesh, part.placements)
    return int(first)


def _write(descriptor: int, part: DTensor, offset: int) -> None:
    local = part.to_local().detach()
    if local.numel():
        row_bytes = part.numel() // part.shape[0] * part.element_size()
        write_at(descriptor, local, offset + first_row(part) * row_bytes)
