"""Checkpoints: written aside, hashed on the way, flushed to disk, renamed; checked when read (`checked.py`).

A file's name carries the attempt that wrote it and the file never changes, so a reader needs no lock and a superseded
writer harms nobody. Loaded with ``weights_only=True``: a checkpoint can hold no code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch.serialization import get_crc32_options, set_crc32_options

from cerebro.contract.tasks import CheckpointRef
from cerebro.data.base_file import Layout
from cerebro.data.durable import DurableFile
from cerebro.errors import StorageFullError, VolumeError
from cerebro.worker.training.base_tensors import BaseTensors
from cerebro.worker.training.checked import CheckedFile, CheckedReader
from cerebro.worker.training.placeholders import PlaceholderWriter
from cerebro.worker.training.storable import allow_empty_bytes, state_bytes, storable_state

State = dict[str, Any]
"""``{"models": [state_dict, ...], "checkpoint": {...}, "hyperparams": {...}, "made": {...}}``

``"made"`` describes tracked objects (`tracking`). A savepoint has ``"savepoint"``, too (`savepoints`). A state that was
read from a file with a base has `LAYOUT`.
"""

# As they are before user code is imported: what that puts in their place is not what checkpoints are written with.
_save, _load = torch.save, torch.load

LAYOUT = "layout"
"""Key of what is in no file: how that is put together."""


def save(root: Path, name: str, state: State, in_base: BaseTensors | None = None) -> CheckpointRef:
    """Write a state durably under ``root / name``, into a folder that is there.

    Args:
        in_base: what of it is in a base (`frozen.move_to_base`).

    Returns:
        What identifies the file: with this reference its bytes can be checked.

    Raises:
        FileNotFoundError: the folder is gone: the experiment was deleted meanwhile.
        SpecError: the user's `checkpoint`, or the extra state of a module, holds something that cannot be read again.
        StorageFullError: the volume is full; what was there before is unchanged, and nothing of this file stays.
    """
    state = storable_state(state)
    with opened(root, name, state, in_base) as file:
        if in_base is None:
            put(state, file)
            return commit(file, name)
        state = in_base.with_placeholders(state)  # first: the writer has to know all placeholders
        writer = PlaceholderWriter(file, in_base=in_base)
        put(state, writer)
        return writer.commit(name)


@contextmanager
def opened(root: Path, name: str, state: State, in_base: BaseTensors | None = None) -> Iterator[DurableFile]:
    """A file for a state, of which nothing stays without `commit`. Raises as `save`."""
    with needs_named(state, in_base):
        file = DurableFile(root / name, makes_folder=False)
        try:
            yield file
        finally:
            file.discard()


@contextmanager
def needs_named(state: State, in_base: BaseTensors | None = None) -> Iterator[None]:
    """Have a full volume tell how much room the state needs."""
    try:
        yield
    except StorageFullError as full:
        # A base that was made for this file is gone with it: the next attempt writes one anew.
        own = state_bytes(state) - (in_base.num_bytes if in_base and not in_base.is_new else 0)
        full.needs_bytes = 2 * max(0, own) + (1 << 20)  # type: ignore[attr-defined]
        raise


class Sink(Protocol):
    """What a state is written into."""

    def write(self, data: bytes | memoryview) -> int:
        """Append; returns how many bytes."""


def put(state: State, into: Sink) -> None:
    """Write a state that is storable into a file. Raises as `save`."""
    sink = _Sink(into)
    try:
        with _without_crc():
            _save(state, cast(Any, sink))
    except RuntimeError:
        # torch's writer puts an error of its own, about positions, in the place of the sink's.
        if sink.problem is None:
            raise
        raise sink.problem from None


def commit(file: DurableFile, name: str) -> CheckpointRef:
    """Have the file of this name be there; what identifies it."""
    written = file.commit()
    return CheckpointRef(name=name, checksum=written.checksum, size=written.num_bytes)


class _Sink:
    """What torch writes into: hands on to a file, and remembers an error of the volume."""

    def __init__(self, file: Sink) -> None:
        self._file = file
        self.problem: StorageFullError | VolumeError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Hand on."""
        try:
            return self._file.write(data)
        except (StorageFullError, VolumeError) as error:
            self.problem = error
            raise

    def flush(self) -> None:
        """Nothing to do: the file is flushed when it is committed."""


@contextmanager
def _without_crc() -> Iterator[None]:
    """Spare torch its checksum per tensor, a third of the time of saving: ours covers every byte of the file.

    The switch is torch's, for the whole process: it is put back, because user code may save files of its own.
    """
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def load(root: Path, reference: CheckpointRef, device: torch.device | str) -> State:
    """Read a state and check every byte of it.

    Raises:
        CheckpointCorruptError: the file is missing, has another size or another checksum.
    """
    state = read(check(root, reference), device)
    state.pop(LAYOUT, None)
    return state


def check(root: Path, reference: CheckpointRef) -> CheckedFile:
    """The first half of `load`, for whoever has time before the state is needed: it takes no room of its own, and what
    it has read waits in the page cache.

    Raises:
        CheckpointCorruptError: the file is missing, has another size or another checksum.
    """
    return CheckedFile(root / reference.name, reference)


def read(checked: CheckedFile, device: torch.device | str) -> State:
    """The second half of `load`: the state, in memory that is the caller's alone.

    Raises:
        CheckpointCorruptError: the file is not what was checked any more.
    """
    allow_empty_bytes()
    with CheckedReader(checked) as file:
        try:
            state = _load(cast(Any, file), map_location=device, weights_only=True)
            return with_layout(state, checked.layout)
        except Exception:
            # torch's reader puts an error of its own in the place of the file's.
            if file.problem is not None:
                raise file.problem from None
            raise


def with_layout(state: Any, layout: Layout | None) -> State:
    """What was read, with how its file is put together, if it has a base."""
    return cast(State, state if layout is None else {**state, LAYOUT: layout})
