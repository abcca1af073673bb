"""A checkpoint that ranks write together: rank 0 lays the file out, and each rank writes its own rows into it.

The file is the one that rank 0 would write of full tensors, to the bit. For tensors of which ranks have rows, rank 0
gives torch memory that it never touches: where torch is about to write from there, room is left instead, and its place
in the file is noted. So no format of torch is imitated, and no rank needs memory for the rows of another.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from cerebro.contract.tasks import CheckpointRef
from cerebro.runtime.volume_errors import volume_errors_named
from cerebro.techniques.base import Group
from cerebro.worker.training.base_tensors import BaseTensors
from cerebro.worker.training.checkpoint import (
    State,
    needs_named,
    opened,
    put,
    save,
)
from cerebro.worker.training.gathering import joined, whole
from cerebro.worker.training.placeholders import Offsets, PlaceholderWriter
from cerebro.worker.training.rows import done_by_all, write_at
from cerebro.worker.training.storable import state_bytes, storable_state

_LEAST_BYTES, _LEAST_STATE_BYTES = 4 << 10, 1 << 20
"""Of a tensor that is written by rows, and of a state that has such: smaller ones are sent to rank 0 in less time than
ranks need to agree on where to write."""


def save_together(
    root: Path, name: str, state: State, group: Group, in_base: BaseTensors | None = None
) -> CheckpointRef | None:
    """Write what the ranks of a group have of a state as one file, durably. Collective.

    Rank 0 takes more host memory only for tensors that are not cut by rows.

    Args:
        in_base: what of it is in a base (`frozen.move_to_base`).

    Returns:
        What identifies the file, on rank 0 once it is there. On other ranks `None`, and what they have is written.

    Raises:
        RanksDifferError: ranks differ in something else: on all of them.
        FileNotFoundError, SpecError: as `checkpoint.save`; on rank 0.
        StorageFullError: as `checkpoint.save`; on all of them if the volume was full for one's rows.
    """
    rows = _Rows(state, in_base)
    full = whole(state, group, join=rows.join)
    if not rows.parts:
        return save(root, name, full, in_base) if group.rank == 0 else None
    if group.rank > 0:
        told: tuple[str, Offsets] | None = group.gathered(None)[0]
        if told is not None:
            with needs_named(state, in_base):
                rows.write(*told, group)
        return None
    is_told = False
    try:
        with opened(root, name, full, in_base) as file:
            full = storable_state(full)
            full = full if in_base is None else in_base.with_placeholders(full)
            writer = PlaceholderWriter(file, rows.placeholders, in_base)
            put(full, writer)
            file.flush()
            is_told = True
            group.gathered((str(file.aside), writer.offsets))
            rows.write(str(file.aside), writer.offsets, group)
            return writer.commit(name)
    except Exception:
        if not is_told:
            group.gathered(None)  # nobody waits for rows
        raise


class _Rows:
    """What this rank writes itself.

    Attributes:
        parts: of tensors, in the same order on all ranks.
        placeholders: on rank 0, memory as large as each full tensor. It is not touched, so it takes none.
    """

    def __init__(self, state: State, in_base: BaseTensors | None) -> None:
        self._in_base = in_base
        self._is_wanted = state_bytes(state) >= _LEAST_STATE_BYTES
        self.parts: list[DTensor] = []
        self.placeholders: list[torch.Tensor] = []

    def join(self, part: DTensor, group: Group) -> torch.Tensor | None:
        """A full tensor, which has no values where ranks write them; nothing on ranks but the first. Collective."""
        base = self._in_base
        placeholder = None if base is None else base.placeholder_of(part.to_local(), part.shape)
        if placeholder is not None:
            return placeholder if group.rank == 0 else None
        num_bytes = part.numel() * part.element_size()
        # Not by several machines: what one has written to a network volume, another may see late.
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
        device = "cpu"  # whatever user code's default
        self.placeholders.append(torch.empty(part.shape, dtype=part.dtype, device=device))
        return self.placeholders[-1]

    def write(self, path: str, offsets: Offsets, group: Group) -> None:
        """Write this rank's rows of all tensors. Collective.

        Raises:
            StorageFullError: the volume is full: on all ranks.
            OSError: a rank cannot write: on all of them.
        """

        def write() -> None:
            with volume_errors_named(Path(path).parent), Path(path).open("r+b", buffering=0) as file:
                for number, part in enumerate(self.parts):
                    _write(file.fileno(), part, offsets[number])

        done_by_all(write, group.gathered)


def first_row(part: DTensor) -> int:
    """Which row of the full tensor a rank's rows begin with."""
    _, (first, *_) = compute_local_shape_and_global_offset(part.shape, part.device_mesh, part.placements)
    return int(first)


def _write(descriptor: int, part: DTensor, offset: int) -> None:
    """Write this rank's rows of a tensor that begins at an offset of the file."""
    local = part.to_local().detach()
    if local.numel():
        row_bytes = part.numel() // part.shape[0] * part.element_size()
        write_at(descriptor, local, offset + first_row(part) * row_bytes)
