"""Refuse CSV and TSV with unclosed quotes or NUL bytes, before Arrow parses it.

After an unclosed quote, CSV readers take all text up to the next quote as one value, or the rest of the file if no
quote follows. The rows in it disappear without an error.
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from cerebro.errors import MetadataError

_BLOCK_BYTES = 4 << 20
_QUOTE, _NEWLINE, _RETURN = 34, 10, 13
_MARK = b"\xef\xbb\xbf"


class TextCheck:
    """A check of one text, block by block.

    Args:
        where: file name for errors.
        delimiter: one ASCII character.
    """

    def __init__(self, where: str, delimiter: str) -> None:
        self._where = where
        self._between = np.array([ord(delimiter), _NEWLINE, _RETURN], np.uint8)
        self._is_quoted = False
        self._opened_in = 0
        self._lines = 1
        self._last_byte, self._is_begin = _NEWLINE, True
        self._held = b""

    def feed(self, block: bytes, *, is_last: bool) -> NDArray[np.int64]:
        """Check a block. For the first block, return the positions of quotes that open or close a value.

        Raises:
            MetadataError: a quote is not closed, a value goes past its closing quote, or the block has a NUL byte.
        """
        block = self._held + block
        # The byte after a quote decides its meaning, so hold trailing quotes until the next block.
        end = len(block) if is_last else len(block.rstrip(b'"')) - (not block.endswith(b'"'))
        self._held = block[end:] if end > 0 else block
        if end <= 0:
            if is_last and self._is_quoted:
                raise self._open("and is never closed")
            return np.zeros(0, np.int64)
        each, next_byte = np.frombuffer(block, np.uint8)[:end], self._held[0] if self._held else _NEWLINE
        if (nul := block.find(b"\0", 0, end)) >= 0:
            raise MetadataError(
                f"{self._where}, line {self._line(each, nul):,}, has a NUL byte, so it is no text in UTF-8: write the "
                "table as UTF-8"
            )
        toggles = np.zeros(0, np.int64)
        if b'"' in block:
            following = np.append(each[1:], np.uint8(next_byte))
            preceding = np.insert(each[:-1], 0, np.uint8(self._last_byte))
            if self._is_begin and block.startswith(_MARK) and end > len(_MARK):
                preceding[len(_MARK)] = _NEWLINE
            toggles = self._toggles(each, preceding, following)
        if is_last and self._is_quoted:
            raise self._open("and is never closed")
        self._lines = self._line(each, end) - int(each[-1] == _RETURN and next_byte == _NEWLINE)
        self._last_byte, self._is_begin = int(each[-1]), False
        return toggles

    def row_starts(self, text: bytes, *, is_cut: bool) -> NDArray[np.int64]:
        """Check the first block and return the positions of rows after the first.

        Args:
            is_cut: True if the file has more text.
        """
        toggles = self.feed(text, is_last=not is_cut)
        each = np.frombuffer(text, np.uint8)
        breaks = (each == _NEWLINE) | ((each == _RETURN) & (np.append(each[1:], np.uint8(0)) != _NEWLINE))
        quoted = np.zeros(len(each), np.uint8)
        quoted[toggles] = 1
        is_quoted = np.cumsum(quoted, dtype=np.uint8) & 1  # modulo 256: odd stays odd
        starts: NDArray[np.int64] = np.flatnonzero(breaks & (is_quoted == 0)) + 1
        return starts

    def _toggles(
        self, each: NDArray[np.uint8], preceding: NDArray[np.uint8], following: NDArray[np.uint8]
    ) -> NDArray[np.int64]:
        """Return the positions of quotes that open or close a value."""
        quotes = np.flatnonzero(each == _QUOTE)
        if not len(quotes):
            return quotes
        opens = (np.arange(len(quotes)) + self._is_quoted) % 2 == 0
        # A doubled quote within a value closes the value and opens it again.
        outer_byte = np.where(opens, preceding[quotes], following[quotes])
        if not np.isin(outer_byte, np.append(self._between, np.uint8(_QUOTE))).all():
            return self._judged_one_by_one(each, quotes, preceding[quotes], following[quotes])
        if opens[-1]:
            self._opened_in = self._line(each, int(quotes[-1]))
        self._is_quoted = bool(opens[-1])
        return quotes

    def _judged_one_by_one(
        self,
        each: NDArray[np.uint8],
        quotes: NDArray[np.int64],
        preceding: NDArray[np.uint8],
        following: NDArray[np.uint8],
    ) -> NDArray[np.int64]:
        """As `_toggles`, for text with literal quotes in unquoted values, such as 5"."""
        between, toggles, is_second, opened = set(self._between.tolist()), [], False, None
        for at, previous_byte, next_byte in zip(
            quotes.tolist(), preceding.tolist(), following.tolist(), strict=True
        ):
            if is_second:
                is_second = False
            elif not self._is_quoted:
                if previous_byte in between:
                    self._is_quoted, opened = True, at
                    toggles.append(at)
            elif next_byte == _QUOTE:
                is_second = True
            elif next_byte in between:
                self._is_quoted = False
                toggles.append(at)
            else:
                self._opened_in = self._opened_in if opened is None else self._line(each, opened)
                raise self._open(f"and closes in line {self._line(each, at):,} in the middle of a value")
        if self._is_quoted and opened is not None:
            self._opened_in = self._line(each, opened)
        return np.array(toggles, np.int64)

    def _line(self, each: NDArray[np.uint8], position: int) -> int:
        head = each[:position].tobytes()
        return self._lines + head.count(b"\n") + head.count(b"\r") - head.count(b"\r\n")

    def _open(self, problem: str) -> MetadataError:
        return MetadataError(
            f"{self._where}: a quote opens a value in line {self._opened_in:,} {problem}, so the text between would be "
            "one value. Close it there, or write it twice if it is part of the text"
        )


def require_text(file: BinaryIO, where: str, delimiter: str) -> None:
    """Check a whole file. Raises as `TextCheck.feed` does."""
    check = TextCheck(where, delimiter)
    while block := file.read(_BLOCK_BYTES):
        check.feed(block, is_last=False)
    check.feed(b"", is_last=True)
