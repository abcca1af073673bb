"""References to files on the volumes that tasks read and write."""

from __future__ import annotations

from pydantic import Field

from cerebro.contract.base import Contract, RelativePath


class CheckpointRef(Contract):
    """An immutable file on the checkpoint volume.

    Attributes:
        name: path relative to the checkpoint volume, which it cannot leave; carries the attempt that wrote it.
        checksum: xxh3-64 of the file, 16 hexadecimal digits.
        size: bytes.
    """

    name: RelativePath
    checksum: str
    size: int = Field(ge=0)


class FittedRef(Contract):
    """Return value of `ETLSpec.fit` for a data set: an immutable file on the shared volume."""

    name: str = Field(pattern=r"^datasets/[\w-][\w.-]*/fitted/[\w-][\w.-]*\.pickle$")
    checksum: str
    size: int


class Savepoint(Contract):
    """State of a sub-epoch between two batches. Another attempt continues from it.

    Attributes:
        checkpoint: the file; its name contains the batch and the attempt that wrote it.
        batch: number of the first batch after the savepoint.
        rows: rows of the batches before it.
    """

    checkpoint: CheckpointRef
    batch: int = Field(ge=1)
    rows: int = Field(ge=1)
