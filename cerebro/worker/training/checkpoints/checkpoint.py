"""Checkpoints: written to a temporary file, hashed, flushed and renamed; verified when read (`verified_file`).

`Trainee.save` and the ranks' `joint_write` write them; `model_hopper`, trials, replays and the client's results read
them. The name includes the writing attempt, and the file never changes. So readers need no lock, and a superseded
writer does no harm. Loaded with ``weights_only=True``: a checkpoint cannot contain code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch.serialization import default_restore_location, get_crc32_options, set_crc32_options

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files.base_file import Layout
from cerebro.data.files.durable import DurableFile
from cerebro.errors import StorageFullError, VolumeError
from cerebro.worker.training.checkpoints.base_tensors import BaseTensors
from cerebro.worker.training.checkpoints.mapped_base import MAPPED, MappedReader
from cerebro.worker.training.checkpoints.placeholders import PlaceholderWriter
from cerebro.worker.training.checkpoints.storable import allow_empty_bytes, state_bytes, storable_state
from cerebro.worker.training.checkpoints.verified_file import CheckedFile, CheckedReader

State = dict[str, Any]
"""``{"models": [state_dict, ...], "checkpoint": {...}, "hyperparams": {...}, "made": {...}}``

``"made"``: initial values of tracked objects (`tracked_checkpoint`). A savepoint also has ``"savepoint"``.
A state that was read from a file with a base has `LAYOUT`, and `MAPPED` if frozen weights are mapped.
"""

# Saved before user code is imported, which may replace them.
_save, _load = torch.save, torch.load
_move: Callable[[torch.UntypedStorage, str], Any] = default_restore_location

_NUMBER_BYTES = 8
"""Bytes of the largest single number."""

LAYOUT = "layout"
"""Key of the file's layout in a loaded state; never saved."""


def save(root: Path, name: str, state: State, in_base: BaseTensors | None = None) -> CheckpointRef:
    """Write a state durably under ``root / name``, into an existing folder.

    Args:
        in_base: tensors stored in a base (`frozen.move_to_base`).

    Returns:
        Reference for verifying the file's bytes.

    Raises:
        SpecError: the user's `checkpoint`, or a module's extra state, contains an object that cannot be loaded.
        StorageFullError: the volume is full; earlier files are unchanged, and the new one is removed.
        VolumeError: the volume cannot be written now, or the folder is missing.
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
    """Open a file for a state, removed without `commit`. Raises as `save`."""
    with needs_named(state, in_base):
        file = DurableFile(root / name, makes_folder=False)
        try:
            yield file
        finally:
            file.discard()


@contextmanager
def needs_named(state: State, in_base: BaseTensors | None = None) -> Iterator[None]:
    """Add the state's required space to a `StorageFullError`."""
    try:
        yield
    except StorageFullError as full:
        # A base created for this file is removed with it, and the next attempt writes one again.
        num_bytes = state_bytes(state) - (in_base.num_bytes if in_base and not in_base.is_new else 0)
        full.needs_bytes = 2 * max(0, num_bytes) + (1 << 20)  # type: ignore[attr-defined]
        raise


class Sink(Protocol):
    """Destination of a state."""

    def write(self, data: bytes | memoryview) -> int:
        """Append, and return the number of bytes."""


def put(state: State, into: Sink) -> None:
    """Write a storable state to a file. Raises as `save`."""
    sink = _Sink(into)
    try:
        with _without_crc():
            _save(state, cast(Any, sink))
    except RuntimeError:
        # torch's writer replaces the sink's error with one about positions.
        if sink.problem is None:
            raise
        raise sink.problem from None


def commit(file: DurableFile, name: str) -> CheckpointRef:
    """Commit the file and return its reference."""
    written = file.commit()
    return CheckpointRef(name=name, checksum=written.checksum, size=written.num_bytes)


class _Sink:
    """File object for torch that passes data on and remembers an error of the volume."""

    def __init__(self, file: Sink) -> None:
        self._file = file
        self.problem: StorageFullError | VolumeError | None = None

    def write(self, data: bytes | memoryview) -> int:
        try:
            return self._file.write(data)
        except (StorageFullError, VolumeError) as error:
            self.problem = error
            raise

    def flush(self) -> None:
        """Do nothing: the file is flushed when it is committed."""


@contextmanager
def _without_crc() -> Iterator[None]:
    """Disable torch's checksum per tensor, a third of the saving time: ours covers the file.

    torch's switch is global, so it is restored: user code may save its own files.
    """
    previous = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(previous)


def load(root: Path, reference: CheckpointRef, device: torch.device | str) -> State:
    """Read a state and verify every byte.

    Raises:
        CheckpointCorruptError: the file is missing, or its size or checksum is wrong.
    """
    state = read(check(root, reference), device, maps_base=False)
    state.pop(LAYOUT, None)
    return state


def check(root: Path, reference: CheckpointRef) -> CheckedFile:
    """Verify a file in advance: the first half of `load`. The content stays in the page cache.

    Raises:
        CheckpointCorruptError: the file is missing, or its size or checksum is wrong.
    """
    return CheckedFile(root / reference.name, reference)


def read(checked: CheckedFile, device: torch.device | str, *, maps_base: bool = True) -> State:
    """Load a verified file into private memory: the second half of `load`.

    Args:
        maps_base: map frozen weights from their base instead of copying them.

    Raises:
        CheckpointCorruptError: the file has changed since its verification.
    """
    allow_empty_bytes()
    with MappedReader(checked) if maps_base else CheckedReader(checked) as file:
        try:
            if not isinstance(file, MappedReader):
                return read_state(file, torch.device(device), checked.layout)
            state = read_state(file, torch.device(device), checked.layout, replaced=file.replaced)
            return {**state, MAPPED: True} if file.has_mapped else state
        except Exception:
            # torch's reader replaces the file's error with its own.
            if file.problem is not None:
                raise file.problem from None
            raise


def read_state(
    source: Any,
    device: torch.device,
    layout: Layout | None,
    *,
    mmap: bool = False,
    replaced: Callable[[torch.UntypedStorage], torch.UntypedStorage] = lambda storage: storage,
) -> State:
    """Read a state with torch, and add the file's layout if it has a base.

    Single numbers in `checkpoint` that were saved from host memory stay there. Adam's step is one: on a GPU, every
    later step would copy it to the host and wait, once for each parameter.

    Args:
        replaced: returns the host memory to use for the storage that was just read.
    """

    def place(storage: torch.UntypedStorage, saved_from: str) -> Any:
        storage = replaced(storage)
        if saved_from == "cpu" and storage.nbytes() <= _NUMBER_BYTES:
            return storage
        return _move(storage, str(device))

    state = cast(Any, _load)(source, map_location=place, weights_only=True, mmap=mmap)
    for saved in state["models"]:
        for name, value in saved.items() if isinstance(saved, dict) else ():
            if isinstance(value, torch.Tensor) and value.device.type != device.type:
                saved[name] = value.to(device)
    return cast(State, state if layout is None else {**state, LAYOUT: layout})
