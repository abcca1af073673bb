"""Base class and interface of read-only files whose bytes are assembled or checked while read.

`BasedFile` assembles a checkpoint and its base; `CheckedReader` of the worker verifies a checksum.
"""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from typing import Any, Protocol


class Readable(Protocol):
    """A file that is open for reading."""

    def seek(self, offset: int, whence: int = ..., /) -> int:
        """Move to an offset."""

    def readinto(self, into: Any, /) -> int | None:
        """Fill a part of `into`."""

    def close(self) -> None:
        """Close the file."""


class SeekableReader(io.RawIOBase):
    """Base class of files of known size; subclasses read at `_position` and advance it."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of the file."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self._position
