"""Checkpoints: written aside, hashed on the way, flushed to disk, renamed; checked when read (`checked.py`).

A file's name carries the attempt that wrote it and the file never changes, so a reader needs no lock and a superseded
writer harms nobody. Loaded with ``weights_only=True``: a checkpoint can hold no code.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch.serialization import get_crc32_options, set_crc32_options

from cerebro.contract.tasks import CheckpointRef
from cerebro.data.durable import DurableFile
from cerebro.errors import SpecError, StorageFullError
from cerebro.worker.training.checked import CheckedFile, CheckedReader

State = dict[str, Any]
"""``{"models": [state_dict, ...], "checkpoint": {...}, "hyperparams": {...}, "made": {...}}``

What it was trained with, and what tracked objects were made with (`tracking`), are absent where an older version wrote
it. A savepoint has ``"savepoint"`` beside them (`savepoints`).
"""


def save(root: Path, name: str, state: State) -> CheckpointRef:
    """Write a state durably under ``root / name``, into a folder that is there.

    Returns:
        What identifies the file: with this reference its bytes can be checked.

    Raises:
        FileNotFoundError: the folder is gone: the experiment was deleted meanwhile.
        SpecError: the user's `checkpoint` holds something that is no tensor, number, string, or dict, list or tuple.
        StorageFullError: the volume is full; what was there before is unchanged, and nothing of this file stays.
    """
    with opened(root, name, state) as file:
        put(state, file)
        return kept(file, name)


@contextmanager
def opened(root: Path, name: str, state: State) -> Iterator[DurableFile]:
    """A file for a state, of which nothing stays unless it is `kept`. Raises as `save`."""
    with needs_named(state):
        file = DurableFile(root / name, makes_folder=False)
        try:
            yield file
        finally:
            file.discard()


@contextmanager
def needs_named(state: State) -> Iterator[None]:
    """Have a full volume tell how much room the state needs."""
    try:
        yield
    except StorageFullError as full:
        full.needs_bytes = 2 * state_bytes(state) + (1 << 20)  # type: ignore[attr-defined]
        raise


class Sink(Protocol):
    """What a state is written into."""

    def write(self, data: bytes | memoryview) -> int:
        """Append; returns how many bytes."""


def put(state: State, into: Sink) -> None:
    """Write a state into a file. Raises as `save`."""
    state = {**state, "checkpoint": storable(state["checkpoint"], "checkpoint")}
    sink = _Sink(into)
    try:
        with _without_crc():
            torch.save(state, cast(Any, sink))
    except RuntimeError:
        # torch's writer puts an error of its own, about positions, in the place of the sink's.
        if sink.full is None:
            raise
        raise sink.full from None


def kept(file: DurableFile, name: str) -> CheckpointRef:
    """Have the file of this name be there; what identifies it."""
    written = file.commit()
    return CheckpointRef(name=name, checksum=written.checksum, size=written.num_bytes)


class _Sink:
    """What torch writes into: hands on to a file, and remembers that the volume was full."""

    def __init__(self, file: Sink) -> None:
        self._file = file
        self.full: StorageFullError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Hand on."""
        try:
            return self._file.write(data)
        except StorageFullError as error:
            self.full = error
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
    return read(check(root, reference), device)


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
    with CheckedReader(checked) as file:
        try:
            return cast(State, torch.load(cast(Any, file), map_location=device, weights_only=True))
        except Exception:
            # torch's reader puts an error of its own in the place of the file's.
            if file.problem is not None:
                raise file.problem from None
            raise


def state_bytes(state: State) -> int:
    """Bytes of all tensors of a state."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(state))


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


_PLAIN = (bool, int, float, str, bytes)


def storable(value: object, where: str) -> object:
    """The value in types that loading with ``weights_only`` takes; NumPy's scalars become Python's.

    Args:
        where: what it is, for people.

    Raises:
        SpecError: something in it is no tensor, number, string, or dict, list or tuple; the message says what, where.
    """
    if value is None or isinstance(value, torch.Tensor) or type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic) and type(value.item()) in _PLAIN:
        # What np.mean() of a list of losses is.
        return value.item()
    if type(value) in (dict, OrderedDict):
        pairs = cast("dict[object, object]", value).items()
        return {
            storable(key, f"a key of {where}"): storable(item, f"{where}[{key!r}]") for key, item in pairs
        }
    if type(value) in (list, tuple):
        items = [storable(item, f"{where}[{n}]") for n, item in enumerate(cast("list[object]", value))]
        return items if type(value) is list else tuple(items)
    raise SpecError(
        f"{where} holds a {type(value).__module__}.{type(value).__qualname__}, which cannot be saved between units: "
        "keep tensors, numbers, strings and dicts, lists or tuples of them, such as optimizer.state_dict() instead "
        "of the optimizer, or call checkpoint.track(optimizer=optimizer)"
    )
