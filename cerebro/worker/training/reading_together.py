"""A checkpoint that the ranks of a unit read together: each a share of its blocks, into memory that all of them map.

So a file is read once, and a host holds it once, however many ranks there are. What is mapped is not the file, which
may be damaged meanwhile, but what was read of it and compared block by block. A rank that takes its rows of a tensor
touches no others; what it changes is its own.
"""

from __future__ import annotations

import mmap
import os
from contextlib import ExitStack, suppress
from typing import cast

import torch

from cerebro.data.durable import BLOCK_BYTES
from cerebro.errors import CheckpointCorruptError
from cerebro.techniques.base import Group
from cerebro.worker.training.checked import CheckedFile, CheckedReader
from cerebro.worker.training.checkpoint import State, read

_LEAST_BYTES = 16 << 20
"""Of a file that is read together; to agree takes longer than to read a smaller one."""


def read_together(checked: CheckedFile, group: Group, device: torch.device | str) -> State:
    """What `checkpoint.read` returns. Collective.

    Raises:
        CheckpointCorruptError: the file is not what was checked any more. On all ranks where they read together, and
            else on those that found it.
    """
    if group.size == 1 or checked.num_bytes < _LEAST_BYTES:
        return read(checked, device)
    with ExitStack() as stack:
        memory = _shared_memory(checked.num_bytes, group, stack)
        if memory is None:
            return read(checked, device)
        problem = _filled(memory, checked, group)
        if told := next(filter(None, group.gathered(problem)), ""):
            raise CheckpointCorruptError(told)
        path = f"/proc/self/fd/{memory}"
        return cast(State, torch.load(path, map_location=device, weights_only=True, mmap=True))


def _shared_memory(num_bytes: int, group: Group, stack: ExitStack) -> int | None:
    """A descriptor of memory that all ranks have; `None` on all where this cannot be.

    Not a file below /dev/shm, which has 64 MiB in a container and may be left over: this memory ends with who uses it.
    """
    place = ""
    with suppress(OSError):
        if group.rank == 0:
            made = os.memfd_create("checkpoint")
            stack.callback(os.close, made)
            os.ftruncate(made, num_bytes)
            place = f"/proc/{os.getpid()}/fd/{made}"
    place = group.gathered(place)[0]
    found: int | None = None
    with suppress(OSError):
        if place:
            found = os.open(place, os.O_RDWR)
            stack.callback(os.close, found)
    return found if all(group.gathered(found is not None)) else None


def _filled(memory: int, checked: CheckedFile, group: Group) -> str:
    """Read this rank's share of the blocks into the memory; what is wrong with one of them, empty if nothing is."""
    blocks = len(checked.digests)
    first, end = (blocks * rank // group.size for rank in (group.rank, group.rank + 1))
    try:
        with CheckedReader(checked) as file:
            # Unmapped when the last view of it is gone; an error that is raised may still have one.
            whole = memoryview(mmap.mmap(memory, checked.num_bytes))
            for number in range(first, end):
                file.block(number, whole[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES])
    except CheckpointCorruptError as error:
        return str(error) or "the checkpoint cannot be read"
    return ""
