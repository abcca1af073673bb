"""Reader of the logs volume: pieces of bounded size, and searches.

The tabs Logs and Models and the read API use one `LogReader`. An answer has at most 30 logs, 1,500 lines and about
256 KiB. User output is not trusted: files are opened without following links, and searched in a child process for at
most 6 s. Which logs exist is known from the event log (`dispatcher.logs.view`). Nothing is cached.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

from pydantic import TypeAdapter

from cerebro.data.files.safe_open import open_below
from cerebro.errors import BadRequestError
from cerebro.runtime.volumes import Volumes
from dispatcher.logs import terminal
from dispatcher.logs.search import MAX_HITS, finder
from dispatcher.logs.terminal import Line
from dispatcher.logs.view import LogQuery, Source
from dispatcher.sandbox.bounded_processes import BoundedProcesses, ProcessResult

_log = logging.getLogger(__name__)

PIECE = 192 << 10
"""Maximum bytes to read from one log at a time."""
BUDGET = 256 << 10
"""Maximum bytes to read from all logs for one answer."""
MAX_LINES = 1_500
"""Maximum number of lines in one answer."""
MAX_LOGS_SHOWN = 30
"""Maximum number of logs in one answer."""
MAX_LOGS_OPENED = 300
"""Maximum number of logs to open while looking for nonempty ones."""
MAX_LOGS_SEARCHED = 20_000
"""Maximum number of logs in one search."""
SEARCH_S = 6.0
"""Maximum seconds of one search."""
_HIT_LINE = TypeAdapter(tuple[int, int, str, str, str, str])
"""A hit as `dispatcher.logs.search` writes it."""
_CONTEXT = 16 << 10
"""Bytes of context before a line."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A range of one log.

    Attributes:
        lines: oldest first.
        begin, end: bytes. The next read starts at `end`, before a last line that may still grow.
        size: bytes of the whole log; None without output.
        is_end: True if no complete line follows.
    """

    source: Source
    lines: tuple[Line, ...]
    begin: int
    end: int
    size: int | None
    is_end: bool = True


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A matching line: `hit` between `text_before` and `text_after`. Long lines are shortened."""

    source: Source
    offset: int
    level: str
    text_before: str
    hit: str
    text_after: str


@dataclass(frozen=True, kw_only=True)
class Hits:
    """Result of a search, newest log first. `note` says why it is incomplete, or is empty."""

    hits: tuple[Hit, ...]
    searched: int
    note: str = ""


class LogReader:
    """Reader of the logs volume. Safe for several threads."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self._searches = BoundedProcesses("dispatcher.logs.search", at_once=2)

    @property
    def is_mounted(self) -> bool:
        """True if the logs volume is mounted here."""
        return self._volumes.logs.is_dir()

    def path(self, experiment: str, source: Source) -> str:
        """Return a log's path on the logs volume."""
        return str(
            self._volumes.task_log(experiment, source.task, source.attempt).relative_to(self._volumes.logs)
        )

    def size(self, experiment: str, source: Source) -> int | None:
        """Return the size of a log in bytes; `None` for a missing file."""
        try:
            with self._open(experiment, source) as file:
                return os.fstat(file.fileno()).st_size
        except OSError:
            return None

    def newest(self, experiment: str, chosen: Sequence[Source]) -> list[Chunk]:
        """Return the ends of the newest logs, in order of their start. Of several logs, skips empty ones."""
        found: list[Chunk] = []
        left_bytes, left_lines = BUDGET, MAX_LINES
        for source in reversed(chosen[-MAX_LOGS_OPENED:]):
            if left_bytes <= 0 or left_lines <= 0 or len(found) >= MAX_LOGS_SHOWN:
                break
            read = partial(_last_lines, source=source, max_bytes=min(PIECE, left_bytes), max_lines=left_lines)
            chunk = self._chunk(experiment, source, read)
            if not chunk.lines and len(chosen) > 1:
                continue
            left_bytes -= sum(len(line.text) for line in chunk.lines)
            left_lines -= len(chunk.lines)
            found.append(chunk)
        return found[::-1]

    def around(self, experiment: str, source: Source, offset: int) -> Chunk:
        """Return the line at `offset` with its context."""
        chunk = self._chunk(
            experiment,
            source,
            lambda file: _read(file, source, _line_begin(file, max(0, offset - _CONTEXT)), PIECE),
        )
        lines_above = sum(line.offset < offset for line in chunk.lines)
        lines = chunk.lines[max(0, lines_above - MAX_LINES // 3) :]
        return _first_lines(replace(chunk, lines=lines, begin=lines[0].offset if lines else chunk.begin))

    def since(self, experiment: str, source: Source, offset: int) -> Chunk:
        """Return up to `PIECE` bytes after `offset`, the `end` of an earlier chunk.

        If the log has become shorter, returns its last lines.
        """

        def read(file: BinaryIO) -> Chunk:
            if offset > os.fstat(file.fileno()).st_size:
                return _last_lines(file, source, PIECE, MAX_LINES)
            return _read(file, source, offset, PIECE, first=MAX_LINES + 1)

        return _first_lines(self._chunk(experiment, source, read))

    def search(self, experiment: str, chosen: Sequence[Source], query: LogQuery) -> Hits:
        """Return lines that contain `query.q` and have `query.level`.

        Raises:
            BadRequestError: the regular expression is invalid; the message says where.
            BusyError: too many searches are running.
        """
        try:
            finder(query.q, is_regex=query.regex)
        except (re.error, OverflowError, RecursionError) as cause:
            raise BadRequestError(
                f"{query.q!r} is not a valid regular expression: {cause}; clear the checkbox to search for plain text"
            ) from cause
        searched = list(chosen[-MAX_LOGS_SEARCHED:])[::-1]
        request = {
            "root": str(self._volumes.logs),
            "files": [self.path(experiment, source) for source in searched],
            "q": query.q,
            "is_regex": query.regex,
            "level": query.level,
            "cpu_s": int(SEARCH_S),
        }
        answer = self._searches.run(json.dumps(request).encode(), timeout_s=SEARCH_S)
        hits = tuple(_hits(searched, answer.output))
        end = _incomplete_reason(answer, len(hits))
        if end == "broken":
            _log.warning(
                "search failed experiment=%s code=%s error=%s", experiment, answer.code, answer.error
            )
        older = len(chosen) - len(searched)
        notes = [_NOTES[end].format(hits=len(hits), seconds=SEARCH_S, ending=answer.ending)] if end else []
        notes += (
            [f"{older:,} older logs were not searched: select a run, model or worker."] if older > 0 else []
        )
        return Hits(hits=hits, searched=len(searched), note=" ".join(notes))

    def _open(self, experiment: str, source: Source) -> BinaryIO:
        return open_below(self._volumes.logs, self.path(experiment, source))

    def _chunk(self, experiment: str, source: Source, read: Callable[[BinaryIO], Chunk]) -> Chunk:
        try:
            with self._open(experiment, source) as file:
                return read(file)
        except OSError:
            return Chunk(source=source, lines=(), begin=0, end=0, size=None)


def _first_lines(chunk: Chunk) -> Chunk:
    if len(chunk.lines) <= MAX_LINES:
        return chunk
    return replace(chunk, lines=chunk.lines[:MAX_LINES], end=chunk.lines[MAX_LINES].offset, is_end=False)


def _last_lines(file: BinaryIO, source: Source, max_bytes: int, max_lines: int) -> Chunk:
    begin = _line_begin(file, max(0, os.fstat(file.fileno()).st_size - max_bytes))
    return _read(file, source, begin, max_bytes, last=max_lines)


def _line_begin(file: BinaryIO, offset: int) -> int:
    """Return the start of the next line at or after `offset`, or `offset` without one nearby."""
    if offset == 0:
        return 0
    file.seek(offset - 1)
    piece = file.read(PIECE // 2)
    for end in (b"\n", b"\r"):
        found = piece.find(end)
        if 0 <= found < len(piece) - 1:
            return offset + found
    return offset


def _read(
    file: BinaryIO,
    source: Source,
    begin: int,
    most: int,
    *,
    first: int | None = None,
    last: int | None = None,
) -> Chunk:
    """Read up to `most` bytes from a line's start; keep the `first` or `last` lines."""
    size = os.fstat(file.fileno()).st_size
    file.seek(begin)
    content = file.read(most)
    is_end = begin + len(content) >= size
    if not is_end:
        content = content[: _last_end(content)]
    if last is not None:
        skipped = _begin_of_last(content, last)
        begin, content = begin + skipped, content[skipped:]
    lines = terminal.lines(content, begin, is_end=is_end, most=first)
    end = begin + len(content)
    if lines and lines[-1].is_open:
        # A progress bar may grow without a newline. Read only its last update again.
        tail = content[lines[-1].offset - begin :].rstrip(b"\r")
        end = lines[-1].offset + tail.rfind(b"\r") + 1
    return Chunk(source=source, lines=tuple(lines), begin=begin, end=end, size=size, is_end=is_end)


def _last_end(content: bytes) -> int:
    """Return the position after the last complete line, or the end without any."""
    return content.rfind(b"\n") + 1 or content.rfind(b"\r") + 1 or len(content)


def _hits(searched: Sequence[Source], output: bytes) -> Iterator[Hit]:
    for line in output.splitlines():
        try:
            index, offset, level, text_before, hit, text_after = _HIT_LINE.validate_json(line)
        except ValueError:
            return  # the process was killed while writing this line
        yield Hit(
            source=searched[index],
            offset=offset,
            level=level,
            text_before=text_before,
            hit=hit,
            text_after=text_after,
        )


def _incomplete_reason(result: ProcessResult, hits: int) -> str:
    """Return why a search is incomplete, or an empty text."""
    if result.is_cut or hits >= MAX_HITS:
        return "many"
    # The kernel's CPU limit may end the process before the timeout does.
    if result.is_late:
        return "late"
    return "broken" if result.code else ""


_NOTES = {
    "many": "Only the newest {hits:,} hits are shown: narrow the search to see older ones.",
    "late": "The search stopped after {seconds:g} s and skipped older logs: select a run, model or worker, or use a "
    "simpler expression.",
    "broken": "The search failed and skipped older logs: {ending}. Select a run, model or worker, or use a simpler "
    "expression.",
}
"""Explanations of incomplete searches."""


def _begin_of_last(content: bytes, most: int) -> int:
    """Return the start of the last `most` lines."""
    ends = most + content.endswith(b"\n")
    head, *rest = content.rsplit(b"\n", ends)
    return len(head) + 1 if len(rest) == ends else 0
