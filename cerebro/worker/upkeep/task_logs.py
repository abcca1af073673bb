"""Limit the size of attempts' logs by removing the middle of long ones.

The agent's `execution` registers the logs of each attempt; `Housekeeping` calls `keep_short` every few seconds. User
code writes to its log directly and never waits, so a log may exceed its limit for a moment. Output written during the
removal may be lost. After an attempt, progress bars are folded too.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_PIECE = 1 << 20
_MAX_ROUNDS = 100
"""Maximum rounds of copying output written during the removal; a faster writer loses some."""
_LONGEST_LINE, _KEPT_BYTES = 1 << 16, 30_000
"""Bytes of a line, and of each of its ends if it is longer."""


class TaskLogs:
    """Logs of a worker's attempts. Any thread may call `begin`; one calls `keep_short`.

    Args:
        limit_bytes: maximum of one log; 0 for no limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._watched: dict[Path, int] = {}
        """Log -> number of passes since its attempt last ran."""

    def begin(self, paths: Iterable[Path]) -> None:
        """Watch the logs of a started attempt."""
        with self._lock:
            self._watched |= dict.fromkeys(paths, 0)

    def end(self, paths: Iterable[Path]) -> None:
        """Process the logs of an ended attempt once more."""
        with self._lock:
            self._watched |= {path: 1 for path in paths if path in self._watched}

    def keep_short(self) -> None:
        """Shorten all watched logs."""
        with self._lock:
            found = dict(self._watched)
        for path, has_ended in found.items():
            with suppress(FileNotFoundError):
                if has_ended:
                    fold(path)
                if self._limit_bytes and (left_out := shorten(path, self._limit_bytes)):
                    log.info("%s: %d bytes of its middle left out", path.name, left_out)
        with self._lock:
            for path in (path for path, has_ended in found.items() if has_ended):
                self._watched.pop(path, None)


def fold(path: Path) -> None:
    """Fold progress bars in the log of an ended attempt: keep the last state of each line, as a terminal does.

    Cuts the middle out of lines longer than 64 KiB, and says so there. All other bytes stay.

    Raises:
        OSError: the log can't be read or written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "r+b", buffering=0) as writing, path.open("rb") as lines:
        end, line = 0, _Line()
        while True:
            piece = lines.readline(_PIECE)
            line.add(piece.removesuffix(b"\n"))
            if piece and not piece.endswith(b"\n"):
                continue
            length = line.num_bytes + len(piece[-1:])
            if not length:
                break
            # A folded line is shorter, so writing stays behind reading.
            folded = line.shown() + piece[-1:]
            if end + length != lines.tell() or len(folded) != length:
                os.pwrite(descriptor, folded, end)
            end, line = end + len(folded), _Line()
        writing.truncate(end)


class _Line:
    """A line that is read in pieces. Keeps about two pieces in memory, however long the line is.

    Attributes:
        num_bytes: length of the line read.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._state, self._cut = b"", 0
        """Text behind the last return, and the bytes that its middle lost."""
        self._below, self._cut_below = "", 0
        """Text that the state overwrites."""

    def add(self, piece: bytes) -> None:
        self.num_bytes += len(piece)
        first, *next_parts = piece.split(b"\r")
        self._state += first
        for state in next_parts:
            self._below, self._cut_below = self._overwritten()
            self._state, self._cut = state, 0
        if len(self._state) > _PIECE:
            cut = len(self._state) - 2 * _KEPT_BYTES
            self._state, self._cut = self._state[:_KEPT_BYTES] + self._state[-_KEPT_BYTES:], self._cut + cut

    def shown(self) -> bytes:
        """The line as a terminal shows it; without its middle if it is very long."""
        below, cut = self._overwritten()
        text = below.encode(errors="surrogateescape")
        if cut or len(text) > _LONGEST_LINE:
            cut += len(text) - 2 * _KEPT_BYTES
            omission = f" [... {cut:,} bytes of this line are left out ...] ".encode()
            text = text[:_KEPT_BYTES] + omission + text[-_KEPT_BYTES:]
        return text

    def _overwritten(self) -> tuple[str, int]:
        state = self._state.decode(errors="surrogateescape")
        if len(state) + self._cut >= len(self._below) + self._cut_below:
            return state, self._cut
        return state + self._below[len(state) :], self._cut_below


def shorten(path: Path, limit_bytes: int) -> int:
    """Remove the middle of a log longer than the limit. Return the number of removed bytes.

    Keeps half the limit: a quarter at the beginning, a quarter at the end, and a line between that reports
    the removal.

    Raises:
        OSError: it cannot be read or written.
    """
    kept_bytes = limit_bytes // 4
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        if size <= limit_bytes:
            return 0
        head = _line_end(descriptor, kept_bytes)
        tail = _line_end(descriptor, size - kept_bytes)
        mark = f"[... {tail - head:,} bytes are left out here: a log keeps {limit_bytes:,} at most ...]\n".encode()
        # The end is copied into the removed part, so nothing is lost if this process dies in between.
        end = head + os.pwrite(descriptor, mark, head)
        read = tail
        for _ in range(_MAX_ROUNDS):
            while piece := os.pread(descriptor, _PIECE, read):
                os.pwrite(descriptor, piece, end)
                read, end = read + len(piece), end + len(piece)
            if os.fstat(descriptor).st_size == read:
                break
        # Writers append, so they continue after this position.
        os.ftruncate(descriptor, end)
        return tail - head
    finally:
        os.close(descriptor)


def _line_end(descriptor: int, offset: int) -> int:
    """Return the position after the first line end near `offset`, or `offset`."""
    found = os.pread(descriptor, 1 << 12, offset).find(b"\n")
    return offset + found + 1
