"""The result of `ETLSpec.fit`: one file per data set, with its checksum in the log.

`etl_worker.fit_handler` writes it to the shared volume; workers' children and the client read it and set `spec.fitted`.
Any process may read the bytes, but only processes that run user code restore the object. It has at most 256 MiB.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xxhash

from cerebro.contract.tasks.checkpoints import CheckpointRef, FittedRef
from cerebro.data.files.durable import DurableFile
from cerebro.errors import DataError, VolumeError
from cerebro.usercode.encoding import packed, restored

MAX_FITTED_BYTES = 256 * 2**20
"""Maximum size; every process with user code holds the object."""

_WHAT = "the result of ETLSpec.fit"


def pack_fitted(value: object) -> bytes:
    """Serialise the result of `fit`.

    Raises:
        SpecError: it cannot be serialised, or is too large.
    """
    return packed(value, _WHAT, MAX_FITTED_BYTES)


def restore_fitted(content: bytes) -> Any:
    """Restore the result of `fit`. Runs user code.

    Raises:
        SpecError: it cannot be restored.
    """
    return restored(content, _WHAT)


def write_fitted(path: Path, content: bytes, root: Path) -> FittedRef:
    """Write the file durably.

    Args:
        path: path of the file, below `root`.
        content: bytes from `pack_fitted`.
        root: root of the shared volume.

    Returns:
        The file's name, checksum and size.

    Raises:
        StorageFullError: the volume is full; nothing remains.
    """
    file = DurableFile(path)
    try:
        file.write(content)
        written = file.commit()
    finally:
        file.discard()
    return FittedRef(name=str(path.relative_to(root)), checksum=written.checksum, size=written.num_bytes)


def read_fitted(path: Path, reference: FittedRef | CheckpointRef) -> bytes:
    """Return the file's bytes after comparing the checksum.

    Raises:
        DataError: the file is missing or damaged.
        VolumeError: the volume does not answer.
    """
    remedy = "Restore it from a backup, or preprocess again: call run_etl with another seed or in another experiment"
    try:
        content = path.read_bytes()
    except FileNotFoundError as cause:
        raise DataError(f"{_WHAT}, {path}, cannot be read ({cause.strerror}). {remedy}") from cause
    except OSError as cause:
        message = f"{_WHAT}, {path}, cannot be read now ({cause.strerror}). Check the shared volume"
        raise VolumeError.at(message, path) from cause
    checksum = f"xxh3_64:{xxhash.xxh3_64_hexdigest(content)}"
    if checksum != reference.checksum:
        raise DataError(
            f"{_WHAT}, {path}, is damaged: it has checksum {checksum} over {len(content)} bytes, expected "
            f"{reference.checksum} over {reference.size}. {remedy}"
        )
    return content
