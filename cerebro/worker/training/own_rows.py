"""A checkpoint that ranks write together: rank 0 lays the file out, and each rank writes its own rows into it.

The file is the one that rank 0 would write of full tensors, to the bit. For tensors of which ranks have rows, rank 0
gives torch memory that it never touches: where torch is about to write from there, room is left instead, and its place
in the file is noted. So no format of torch is imitated, and no rank needs memory for the rows of another.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from cerebro.contract.tasks import CheckpointRef
from cerebro.data.durable import DurableFile, storage_full_named
from cerebro.errors import StorageFullError
from cerebro.techniques.base import Group
from cerebro.worker.training.checkpoint import State, kept, needs_named, opened, put, state_bytes
from cerebro.worker.training.gathering import joined, whole

_LEAST_BYTES, _LEAST_STATE_BYTES = 4 << 10, 1 << 20
"""Of a tensor that is written by rows, and of a state that has such: smaller ones are sent to rank 0 in less time than
ranks need to agree on where to write."""

_PART_BYTES = 1 << 30
"""Of one call to write: the kernel takes at most twice as much."""

_Places = dict[int, int]
"""Number of a tensor that is written by rows -> where in the file it begins."""


def save_together(root: Path, name: str, state: State, group: Group) -> CheckpointRef | None:
    """Write what the ranks of a group have of a state as one file, durably. Collective.

    Rank 0 takes more host memory only for tensors that are not cut by rows.

    Returns:
        What identifies the file, on rank 0 once it is there. On other ranks `None`, and what they have is written.

    Raises:
        RanksDifferError: ranks differ in something else: on all of them.
        FileNotFoundError, SpecError: as `checkpoint.save`; on rank 0.
        StorageFullError: as `checkpoint.save`; on all of them if the volume was full for one's rows.
    """
    rows = _Rows(state)
    full = whole(state, group, join=rows.join)
    if not rows.parts:
        return _saved(root, name, full) if group.rank == 0 else None
    if group.rank > 0:
        told: tuple[str, _Places] | None = group.gathered(None)[0]
        if told is not None:
            with needs_named(state):
                rows.write(*told, group)
        return None
    is_told = False
    try:
        with opened(root, name, full) as file:
            layout = _Layout(file, rows.rooms)
            put(full, layout)
            file.flush()
            is_told = True
            group.gathered((str(file.aside), layout.places))
            rows.write(str(file.aside), layout.places, group)
            return kept(file, name)
    except Exception:
        if not is_told:
            group.gathered(None)  # nobody waits for rows
        raise


def _saved(root: Path, name: str, state: State) -> CheckpointRef:
    with opened(root, name, state) as file:
        put(state, file)
        return kept(file, name)


class _Rows:
    """What this rank writes itself.

    Attributes:
        parts: of tensors, in the same order on all ranks.
        rooms: on rank 0, memory as large as each full tensor. It is not touched, so it takes none.
    """

    def __init__(self, state: State) -> None:
        self._is_wanted = state_bytes(state) >= _LEAST_STATE_BYTES
        self.parts: list[DTensor] = []
        self.rooms: list[torch.Tensor] = []

    def join(self, part: DTensor, group: Group) -> torch.Tensor | None:
        """A full tensor, which has no values where ranks write them; nothing on ranks but the first. Collective."""
        num_bytes = part.numel() * part.element_size()
        is_by_rows = self._is_wanted and group.size > 1 and part.placements == (Shard(0),)
        if not is_by_rows or num_bytes < _LEAST_BYTES:
            return joined(part, group)
        self.parts.append(part)
        if group.rank > 0:
            return None
        self.rooms.append(
            torch.empty(part.shape, dtype=part.dtype, device="cpu")
        )  # whatever user code's default
        return self.rooms[-1]

    def write(self, path: str, places: _Places, group: Group) -> None:
        """Write this rank's rows of all tensors. Collective.

        Raises:
            StorageFullError: the volume is full: on all ranks.
            OSError: a rank cannot write: on all of them.
        """
        problem: OSError | StorageFullError | None = None
        try:
            with storage_full_named(Path(path).parent), Path(path).open("r+b", buffering=0) as file:
                for number, part in enumerate(self.parts):
                    _write(file.fileno(), part, places[number])
        except (OSError, StorageFullError) as error:
            problem = error
        found = group.gathered(problem and (isinstance(problem, StorageFullError), str(problem)))
        if problem is not None:
            raise problem
        for rank, told in enumerate(found):
            if told is not None:
                is_full, says = told
                raise (
                    StorageFullError(says)
                    if is_full
                    else OSError(f"rank {rank} cannot write its rows: {says}")
                )


def _write(descriptor: int, part: DTensor, place: int) -> None:
    """Write this rank's rows of a tensor that begins at a place of the file."""
    local = part.to_local().detach()
    if not local.numel():
        return
    _, (first, *_) = compute_local_shape_and_global_offset(part.shape, part.device_mesh, part.placements)
    row_bytes = part.numel() // part.shape[0] * part.element_size()
    content = local.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data
    position = place + first * row_bytes
    while content:
        done = os.pwrite(descriptor, content[:_PART_BYTES], position)
        content, position = content[done:], position + done


class _Layout:
    """What torch writes into on rank 0: leaves room in the file for what is in none of its memory.

    Attributes:
        places: where each of the rooms begins in the file.
    """

    def __init__(self, file: DurableFile, rooms: Sequence[torch.Tensor]) -> None:
        self._file = file
        self._rooms = sorted((room.data_ptr(), room.nbytes, number) for number, room in enumerate(rooms))
        self.places: _Places = {}

    def write(self, data: bytes | memoryview) -> int:
        """Hand on what is no room."""
        view = memoryview(data)
        address = np.frombuffer(view, dtype=np.uint8).ctypes.data if view.nbytes else 0
        at = bisect_right(self._rooms, address, key=itemgetter(0)) - 1
        if at < 0 or address >= self._rooms[at][0] + self._rooms[at][1]:
            return self._file.write(data)
        start, _, number = self._rooms[at]
        # torch may hand a tensor on in pieces.
        self.places.setdefault(number, self._file.tell() - (address - start))
        self._file.leave(view.nbytes)
        return view.nbytes
