"""Files of which ranges lie in another file beside them, their *base*: bytes that many files share are written once.

A file with a base has its other bytes one after another, then what `Layout` tells, its length and a mark. Who reads it
by `opened` reads it whole. What the bytes mean is not known here.
"""

from __future__ import annotations

import errno
import io
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self
from uuid import uuid4

from pydantic import FailFast, Field, StringConstraints, ValidationError, model_validator

from cerebro.contract.base import Contract
from cerebro.data.durable import Written
from cerebro.data.reading import Readable, SeekableReader

_MARK = b"cerebro: based 1"
_TAIL = struct.Struct(f"<Q{len(_MARK)}s")
_LONGEST = 1 << 20
"""Bytes of a layout. Whoever reads one takes a hundred times as much, and user code may have written it."""
MOST_RANGES, LONGEST_NAME = 3000, 200
"""Of a layout, with names that were in a base once; and bytes of a name as JSON. With no more it is short enough."""
_MOST_BYTES = 1 << 60
"""Of a file."""

_BASE = r"^frozen-[0-9a-f]{16}-[0-9]+-[0-9a-f]{8}$"


class UnreadableLayoutError(OSError):
    """A file says that it has a base, and not how it is put together: it was damaged."""


_Name = Annotated[str, StringConstraints(max_length=LONGEST_NAME)]


class Range(Contract):
    """Bytes that lie in the base.

    Attributes:
        start, size: where in the whole file, and how many.
        at: where in the base.
        name, digest: what they are to whom wrote them.
    """

    start: int = Field(ge=0, lt=_MOST_BYTES)
    size: int = Field(ge=1, lt=_MOST_BYTES)
    at: int = Field(ge=0, lt=_MOST_BYTES)
    name: _Name = ""
    digest: int = Field(0, ge=0, lt=1 << 64)


class Layout(Contract):
    """How a file is put together.

    Attributes:
        base: name of the file beside it.
        size: bytes of the whole.
        ranges: in their order in the whole; they do not overlap.
        changing: names that were in a base once, and proved not to stay as they are.
    """

    base: Annotated[str, StringConstraints(pattern=_BASE)]
    size: int = Field(ge=1, lt=_MOST_BYTES)
    ranges: Annotated[tuple[Range, ...], FailFast()] = Field(min_length=1, max_length=MOST_RANGES)
    changing: Annotated[tuple[_Name, ...], FailFast()] = Field((), max_length=MOST_RANGES)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        ends = [each.start + each.size for each in self.ranges]
        if any(end > after.start for end, (_, after) in zip(ends, pairwise(self.ranges), strict=False)):
            raise ValueError("ranges overlap")
        if ends[-1] > self.size:
            raise ValueError("a range ends behind the file")
        if any(each.at + each.size > base_written(self.base).num_bytes for each in self.ranges):
            raise ValueError("a range ends behind the base")
        return self

    @property
    def own(self) -> int:
        """Bytes of the whole that are in the file itself."""
        return self.size - sum(each.size for each in self.ranges)

    def encoded(self) -> bytes:
        """What stands behind the file's own bytes."""
        told = self.model_dump_json().encode()
        return told + _TAIL.pack(len(told), _MARK)


def base_namer() -> Callable[[Written], str]:
    """Gives a base its name, by its bytes. No two have the same: one that was removed never comes back, so who removes
    one late removes no other."""
    token = uuid4().hex[:8]
    return lambda written: f"frozen-{written.checksum.removeprefix('xxh3_64:')}-{written.num_bytes}-{token}"


def is_base(name: str) -> bool:
    """Whether it is the name of one."""
    return re.match(_BASE, name) is not None


def base_written(name: str) -> Written:
    """What a base holds, by its name."""
    _, digest, size, _ = name.split("-")
    return Written(num_bytes=int(size), checksum=f"xxh3_64:{digest}")


def layout_of(file: Readable) -> Layout | None:
    """How a file is put together; `None`: it has no base. Leaves its position anywhere.

    Raises:
        UnreadableLayoutError: it was damaged.
        OSError: it cannot be read.
    """
    end = file.seek(0, os.SEEK_END)
    if end < _TAIL.size:
        return None
    file.seek(end - _TAIL.size)
    length, mark = _TAIL.unpack(_read(file, _TAIL.size))
    if mark != _MARK:
        return None
    try:
        if length > min(_LONGEST, end - _TAIL.size):
            raise ValueError("it is longer than the file")
        file.seek(end - _TAIL.size - length)
        layout = Layout.model_validate_json(_read(file, length))
        if layout.own != end - _TAIL.size - length:
            raise ValueError("it has another number of bytes than it should")
    except (ValidationError, ValueError) as error:
        raise UnreadableLayoutError(errno.EINVAL, "how it is put together cannot be read") from error
    return layout


def _read(file: Readable, count: int) -> bytes:
    found = bytearray(count)
    view, done = memoryview(found), 0
    while done < count:
        read: int = file.readinto(view[done:]) or 0
        if not read:
            raise OSError(errno.EBADMSG, "it ended while it was read")
        done += read
    return bytes(found)


class BasedFile(SeekableReader):
    """The whole of a file with a base. Owns both, which are not buffered."""

    def __init__(self, own: Readable, base: Readable, layout: Layout) -> None:
        super().__init__()
        self._own, self._base, self.layout = own, base, layout
        self._pieces: list[tuple[int, int, int]] = []
        """Where in the whole one begins, where it lies in its file, and in which: 0 own, 1 base."""
        position = behind = 0
        for each in layout.ranges:
            self._pieces += [(position, behind, 0), (each.start, each.at, 1)]
            behind += each.start - position
            position = each.start + each.size
        self._pieces.append((position, behind, 0))
        self._starts = [start for start, _, _ in self._pieces]

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return self.layout.size

    def close(self) -> None:
        """Close both."""
        if not self.closed:
            self._own.close()
            self._base.close()
        super().close()

    def readinto(self, into: Any) -> int:
        """Fill a part of `into`; 0 at the end.

        Raises:
            OSError: the base, or the file itself, ends too early.
        """
        target = memoryview(into).cast("B")
        if self._position >= self.size or not len(target):
            return 0
        number = bisect_right(self._starts, self._position) - 1
        start, behind, which = self._pieces[number]
        end = self._starts[number + 1] if number + 1 < len(self._pieces) else self.size
        file = self._base if which else self._own
        file.seek(behind + self._position - start)
        read: int = file.readinto(target[: end - self._position]) or 0
        if not read:
            raise OSError(
                errno.EBADMSG, f"{f'its base {self.layout.base}' if which else 'it'} ends too early"
            )
        self._position += read
        return read


def opened(path: Path) -> io.RawIOBase:
    """A file for reading, not buffered; one with a base as a whole.

    Raises:
        OSError: it, or its base, cannot be read.
    """
    own = path.open("rb", buffering=0)
    found = joined(own, lambda base: path.with_name(base).open("rb", buffering=0))
    return own if found is None else found


def joined(own: Readable, open_base: Callable[[str], Readable]) -> BasedFile | None:
    """The whole of a file with a base, which owns both; `None`: it has none, and is at its begin. If the whole cannot
    be had, `own` is closed.

    Args:
        open_base: given its name, opens it.
    """
    try:
        layout = layout_of(own)
        if layout is not None:
            return BasedFile(own, _base(layout.base, open_base), layout)
        own.seek(0)
    except BaseException:
        own.close()
        raise
    return None


def _base(name: str, open_base: Callable[[str], Readable]) -> Readable:
    try:
        return open_base(name)
    except OSError as error:
        said = f"its base {name}: {error.strerror}"
        raise OSError(error.errno, said) from error
