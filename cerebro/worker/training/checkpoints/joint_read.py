"""Read a checkpoint jointly: each rank reads a share of its blocks into memory that all ranks map.

`model_hopper.rank_setup` and `trial_runner.trial` call `load_together` on all ranks. The host reads the file once and
holds it once for all ranks. The memory is a verified copy: the file may be damaged later. Each rank maps it privately,
so a rank's changes are invisible to the others. Files below 16 MiB, and ranks on several workers, read separately.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
import xxhash

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files.base_file import BasedFile, Layout, opened
from cerebro.data.files.durable import BLOCK_BYTES, Written, fill
from cerebro.errors import CheckpointCorruptError
from cerebro.techniques.base import Group
from cerebro.worker.training.checkpoints.checkpoint import State, read, read_state
from cerebro.worker.training.checkpoints.storable import allow_empty_bytes
from cerebro.worker.training.checkpoints.verified_file import (
    CheckedFile,
    CheckedReader,
    require_saved,
    unreadable_named,
)

_T = TypeVar("_T")

_LEAST_BYTES = 16 << 20
"""Minimum bytes for a joint read; smaller files are read faster than ranks agree."""


class Unchecked(NamedTuple):
    """A file that has not been verified."""

    path: Path
    reference: CheckpointRef


def load_together(
    find: Callable[[], CheckedFile | Unchecked],
    group: Group,
    device: torch.device | str,
    *,
    is_optional: bool = False,
) -> State:
    """Load a checkpoint's state on all ranks. Collective.

    Args:
        find: called on rank 0; returns the file.
        is_optional: True if the sub-epoch can continue without the checkpoint. All ranks then raise if any
            rank cannot read it.

    Raises:
        CheckpointCorruptError: the file is damaged. See `read_together` for the ranks that raise.
    """
    source, problem = group.gathered(_tried(lambda: _found(find())) if group.rank == 0 else (None, ""))[0]
    state = None
    if not problem:
        state, problem = _tried(lambda: read_together(source, group, device))
    if is_optional:
        problem = next(filter(None, group.gathered(problem)), "")
    if problem:
        raise CheckpointCorruptError(problem)
    assert state is not None
    return state


def _found(source: CheckedFile | Unchecked) -> CheckedFile | Unchecked:
    """Verify a small file on rank 0: ranks do not read it jointly."""
    if isinstance(source, CheckedFile) or source.reference.size >= _LEAST_BYTES:
        return source
    return CheckedFile(*source)


def _tried(action: Callable[[], _T]) -> tuple[_T | None, str]:
    """Return the action's result, or the reason why the checkpoint is unreadable."""
    try:
        return action(), ""
    except CheckpointCorruptError as error:
        return None, str(error) or "the checkpoint cannot be read"


def read_together(source: CheckedFile | Unchecked, group: Group, device: torch.device | str) -> State:
    """Return the same as `checkpoint.read`. Collective.

    Raises:
        CheckpointCorruptError: the file differs from the saved or verified one. On all ranks if rank 0's
            verification or a joint read fails, otherwise only on the ranks that cannot read it.
    """
    size = source.num_bytes if isinstance(source, CheckedFile) else source.reference.size
    with ExitStack() as stack:
        memory = None
        if group.size > 1 and not group.is_of_several_workers and size >= _LEAST_BYTES:
            memory = _shared_memory(size, group, stack)
        if memory is None:
            return read(_checked(source, group), device, maps_base=False)
        if isinstance(source, CheckedFile):
            layout = source.layout
            _raise_on_all(_filled(memory, source, group), group)
        else:
            layout = _filled_unchecked(memory, source, group)
        path = f"/proc/self/fd/{memory}"
        allow_empty_bytes()
        return read_state(path, torch.device(device), layout, mmap=True)


def _checked(source: CheckedFile | Unchecked, group: Group) -> CheckedFile:
    """Return the file as rank 0 verified it. Collective."""
    if isinstance(source, CheckedFile):
        return source
    mine = _tried(lambda: CheckedFile(*source)) if group.rank == 0 else (None, "")
    checked, problem = group.gathered(mine)[0]
    if problem:
        raise CheckpointCorruptError(problem)
    found: CheckedFile = checked
    return found


def _raise_on_all(problem: str, group: Group) -> None:
    if first_problem := next(filter(None, group.gathered(problem)), ""):
        raise CheckpointCorruptError(first_problem)


def _shared_memory(num_bytes: int, group: Group, stack: ExitStack) -> int | None:
    """Return a descriptor of memory shared by all ranks; `None` on all if impossible.

    Not a file in /dev/shm, which has 64 MiB in a container and may remain: this memory ends with its users.
    """
    place = ""
    with suppress(OSError):
        if group.rank == 0:
            descriptor = os.memfd_create("checkpoint")
            stack.callback(os.close, descriptor)
            os.ftruncate(descriptor, num_bytes)
            place = f"/proc/{os.getpid()}/fd/{descriptor}"
    place = group.gathered(place)[0]
    found: int | None = None
    with suppress(OSError):
        if place:
            found = os.open(place, os.O_RDWR)
            stack.callback(os.close, found)
    return found if all(group.gathered(found is not None)) else None


def _share(num_bytes: int, group: Group) -> range:
    """Return the numbers of the blocks that this rank reads."""
    blocks = -(-num_bytes // BLOCK_BYTES)
    return range(*(blocks * rank // group.size for rank in (group.rank, group.rank + 1)))


def _filled(memory: int, checked: CheckedFile, group: Group) -> str:
    """Read this rank's share of the blocks into the memory. Return the problem, or ""."""
    try:
        with CheckedReader(checked) as file:
            buffer = memoryview(bytearray(BLOCK_BYTES))
            for number in _share(checked.num_bytes, group):
                os.pwrite(memory, file.block(number, buffer), number * BLOCK_BYTES)
    except CheckpointCorruptError as error:
        return str(error) or "the checkpoint cannot be read"
    return ""


def _filled_unchecked(memory: int, source: Unchecked, group: Group) -> Layout | None:
    """Read an unverified file once: each rank reads its share, and rank 0 verifies the result. Collective.

    Returns:
        The file's layout, or `None` if it is complete in itself.

    Raises:
        CheckpointCorruptError: it differs from the saved file; on all ranks.
    """
    size, digest = source.reference.size, xxhash.xxh3_64()
    share, buffer = _share(size, group), memoryview(bytearray(BLOCK_BYTES))
    layout: Layout | None = None
    found = size

    def filled() -> None:
        nonlocal layout, found
        with unreadable_named(source.path), opened(source.path) as file:
            layout = file.layout if isinstance(file, BasedFile) else None
            found = file.seek(0, os.SEEK_END)
            file.seek(share.start * BLOCK_BYTES)
            for number in share:
                block = fill(file, buffer)
                if group.rank == 0:
                    digest.update(block)
                # Do not read into the mapping: writing takes half as long as faulting in each page.
                os.pwrite(memory, block, number * BLOCK_BYTES)

    def compared() -> None:
        if group.rank == 0:
            # Unmapped when its last view is deleted.
            digest.update(memoryview(mmap.mmap(memory, size))[share.stop * BLOCK_BYTES :])
            written = Written(num_bytes=found, checksum=f"xxh3_64:{digest.hexdigest()}")
            require_saved(source.path, source.reference, written, layout)

    _raise_on_all(_tried(filled)[1], group)
    _raise_on_all(_tried(compared)[1], group)
    return layout
