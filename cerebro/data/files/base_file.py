"""Files that share byte ranges with another file in their folder, their *base*.

Checkpoints of a model with frozen weights use it: the worker writes these weights once, as the base, and each
checkpoint refers to it (`cerebro.worker.training.checkpoints`). A file with a base contains its remaining bytes, then a
`Layout` as JSON, the layout's length and a marker. `opened` returns the assembled content, for workers, client,
dispatcher and controller. The module only reads; it does not know the meaning of the bytes.
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
from cerebro.data.files.durable import Written
from cerebro.data.files.seekable_reader import Readable, SeekableReader

_MARK = b"cerebro: based 1"
_TAIL = struct.Struct(f"<Q{len(_MARK)}s")
_LONGEST = 1 << 20
"""Maximum bytes of a layout: parsing takes a hundred times as much memory, and user code may have written it."""
MAX_RANGES, LONGEST_NAME = 3000, 200
"""Maximum ranges, or changing names, of a layout, and maximum bytes of a name as JSON. They keep the layout small."""
_MAX_BYTES = 1 << 60
"""Maximum bytes of a file."""

_BASE = r"^frozen-[0-9a-f]{16}-[0-9]+-[0-9a-f]{8}$"


class UnreadableLayoutError(OSError):
    """The layout of a file with a base is damaged."""


_Name = Annotated[str, StringConstraints(max_length=LONGEST_NAME)]


class Range(Contract):
    """A byte range that is in the base.

    Attributes:
        start: offset in the assembled file.
        size: number of bytes.
        at: offset in the base.
        name: the writer's name for the range.
        digest: the writer's digest of its content.
    """

    start: int = Field(ge=0, lt=_MAX_BYTES)
    size: int = Field(ge=1, lt=_MAX_BYTES)
    at: int = Field(ge=0, lt=_MAX_BYTES)
    name: _Name = ""
    digest: int = Field(0, ge=0, lt=1 << 64)


class Layout(Contract):
    """The assembly of a file from its own bytes and its base.

    Attributes:
        base: name of the base, in the same folder.
        size: bytes of the assembled file.
        ranges: ranges from the base, ordered by `start`, without overlap.
        changing: names that were once in a base but whose bytes then changed.
    """

    base: Annotated[str, StringConstraints(pattern=_BASE)]
    size: int = Field(ge=1, lt=_MAX_BYTES)
    ranges: Annotated[tuple[Range, ...], FailFast()] = Field(min_length=1, max_length=MAX_RANGES)
    changing: Annotated[tuple[_Name, ...], FailFast()] = Field((), max_length=MAX_RANGES)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        ends = [each.start + each.size for each in self.ranges]
        if any(end > later.start for end, (_, later) in zip(ends, pairwise(self.ranges), strict=False)):
            raise ValueError("ranges overlap")
        if ends[-1] > self.size:
            raise ValueError("a range ends behind the file")
        if any(each.at + each.size > base_written(self.base).num_bytes for each in self.ranges):
            raise ValueError("a range ends behind the base")
        return self

    @property
    def own_bytes(self) -> int:
        """Bytes in the file itself."""
        return self.size - sum(each.size for each in self.ranges)

    def encoded(self) -> bytes:
        """Return the bytes that follow the file's own bytes."""
        content = self.model_dump_json().encode()
        return content + _TAIL.pack(len(content), _MARK)


def base_namer() -> Callable[[Written], str]:
    """Return a function that names a base by its content.

    Names are unique. A removed name never appears again, so a late removal cannot hit another base.
    """
    token = uuid4().hex[:8]
    return lambda written: f"frozen-{written.checksum.removeprefix('xxh3_64:')}-{written.num_bytes}-{token}"


def is_base(name: str) -> bool:
    """Return True if the name is a base's."""
    return re.match(_BASE, name) is not None


def base_written(name: str) -> Written:
    """Return a base's size and checksum, from its name."""
    _, digest, size, _ = name.split("-")
    return Written(num_bytes=int(size), checksum=f"xxh3_64:{digest}")


def layout_of(file: Readable) -> Layout | None:
    """Return the layout of a file, or `None` for a file without a base.

    Changes the file's position.

    Raises:
        UnreadableLayoutError: the layout is damaged.
        OSError: the file cannot be read.
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
        if layout.own_bytes != end - _TAIL.size - length:
            raise ValueError("its size does not match the layout")
    except (ValidationError, ValueError) as error:
        raise UnreadableLayoutError(errno.EINVAL, "its layout is damaged") from error
    return layout


def _read(file: Readable, count: int) -> bytes:
    content = bytearray(count)
    view, done = memoryview(content), 0
    while done < count:
        read: int = file.readinto(view[done:]) or 0
        if not read:
            raise OSError(errno.EBADMSG, "it ended while it was read")
        done += read
    return bytes(content)


class BasedFile(SeekableReader):
    """The assembled content of a file with a base. Owns both unbuffered files."""

    def __init__(self, file: Readable, base: Readable, layout: Layout) -> None:
        super().__init__()
        self._file, self._base, self.layout = file, base, layout
        self._pieces: list[tuple[int, int, int]] = []
        """(start in the assembled file, start in its own file, 0 for own or 1 for base)."""
        position = behind = 0
        for each in layout.ranges:
            self._pieces += [(position, behind, 0), (each.start, each.at, 1)]
            behind += each.start - position
            position = each.start + each.size
        self._pieces.append((position, behind, 0))
        self._starts = [start for start, _, _ in self._pieces]

    @property
    def size(self) -> int:
        """Bytes of the assembled file."""
        return self.layout.size

    def close(self) -> None:
        """Close both files."""
        if not self.closed:
            self._file.close()
            self._base.close()
        super().close()

    def readinto(self, into: Any) -> int:
        """Fill a part of `into`; return 0 after the last byte.

        Raises:
            OSError: the file or its base is too short.
        """
        target = memoryview(into).cast("B")
        if self._position >= self.size or not len(target):
            return 0
        number = bisect_right(self._starts, self._position) - 1
        start, behind, which = self._pieces[number]
        end = self._starts[number + 1] if number + 1 < len(self._pieces) else self.size
        source = self._base if which else self._file
        source.seek(behind + self._position - start)
        read: int = source.readinto(target[: end - self._position]) or 0
        if not read:
            raise OSError(
                errno.EBADMSG, f"{f'its base {self.layout.base}' if which else 'it'} ends too early"
            )
        self._position += read
        return read


def opened(path: Path) -> io.RawIOBase:
    """Open a file for unbuffered reading; a file with a base is assembled.

    Raises:
        OSError: the file or its base cannot be read.
    """
    file = path.open("rb", buffering=0)
    assembled = joined(file, lambda base: path.with_name(base).open("rb", buffering=0))
    return file if assembled is None else assembled


def joined(file: Readable, open_base: Callable[[str], Readable]) -> BasedFile | None:
    """Return the assembled file, or `None` for a file without a base.

    On success the result owns `file`. Without a base, `file` is at its first byte. On an error it is closed.

    Args:
        file: the file.
        open_base: opens a base by its name.
    """
    try:
        layout = layout_of(file)
        if layout is not None:
            return BasedFile(file, _base(layout.base, open_base), layout)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return None


def _base(name: str, open_base: Callable[[str], Readable]) -> Readable:
    try:
        return open_base(name)
    except OSError as error:
        raise OSError(error.errno, f"its base {name}: {error.strerror}") from error
