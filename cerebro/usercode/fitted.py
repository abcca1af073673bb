"""What `ETLSpec.fit` returned for a data set: written once, its checksum in the log; read by all who use the data set.

Bytes are read anywhere, but only where user code runs are they restored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xxhash

from cerebro.contract.tasks import CheckpointRef, FittedRef
from cerebro.data.durable import DurableFile
from cerebro.errors import DataError, VolumeError
from cerebro.usercode.encoding import packed, restored

MAX_FITTED_BYTES = 256 * 2**20
"""Every process with user code holds it."""

_WHAT = "what ETLSpec.fit returned"


def pack_fitted(value: object) -> bytes:
    """What the method returned.

    Raises:
        SpecError: it cannot be serialised, or is too large.
    """
    return packed(value, _WHAT, MAX_FITTED_BYTES)


def restore_fitted(content: bytes) -> Any:
    """The same again. Runs user code.

    Raises:
        SpecError: it cannot be restored.
    """
    return restored(content, _WHAT)


def write_fitted(path: Path, content: bytes, root: Path) -> FittedRef:
    """Write it durably; what identifies the file.

    Args:
        root: of the shared volume, which the path is below.

    Raises:
        StorageFullError: the volume is full; nothing is left behind.
    """
    file = DurableFile(path)
    try:
        file.write(content)
        written = file.commit()
    finally:
        file.discard()
    return FittedRef(name=str(path.relative_to(root)), checksum=written.checksum, size=written.num_bytes)


def read_fitted(path: Path, reference: FittedRef | CheckpointRef) -> bytes:
    """Its bytes, checked.

    Raises:
        DataError: the file is gone, or damaged.
        VolumeError: its volume does not answer.
    """
    again = "bring the file back from a backup, or preprocess anew: run_etl with another seed or in another experiment"
    try:
        content = path.read_bytes()
    except FileNotFoundError as cause:
        told = f"what was fitted for this data set, {path}, cannot be read ({cause.strerror}): {again}"
        raise DataError(told) from cause
    except OSError as cause:
        told = f"what was fitted for this data set, {path}, cannot be read now ({cause.strerror})"
        raise VolumeError.at(f"{told}: check the shared volume", path) from cause
    found = f"xxh3_64:{xxhash.xxh3_64_hexdigest(content)}"
    if found != reference.checksum:
        raise DataError(
            f"what was fitted for this data set, {path}, has checksum {found} over {len(content)} bytes, expected "
            f"{reference.checksum} over {reference.size}: it was damaged after it was written; {again}"
        )
    return content
