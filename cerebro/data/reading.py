"""Files that are read at any place: what is asked of one, and what those have in common that are checked, or put
together, while they are read."""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from typing import Any, Protocol


class Readable(Protocol):
    """A file that is open for reading."""

    def seek(self, offset: int, whence: int = ..., /) -> int:
        """Go to a place."""

    def readinto(self, into: Any, /) -> int | None:
        """Fill a part of `into`."""

    def close(self) -> None:
        """Close it."""


class SeekableReader(io.RawIOBase):
    """A file of known size that is read from a position. Who subclasses it reads at `_position`, and moves that on."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of the file."""

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the file."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position
