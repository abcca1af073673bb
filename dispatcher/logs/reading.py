"""Reads logs of attempts in pieces of bounded size, and finds lines in them.

What user code prints is not trusted: files are opened without following links, and searched in a process of their own.
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

from cerebro.data.safe_open import open_below
from cerebro.errors import BadRequestError
from cerebro.runtime.volumes import Volumes
from dispatcher.logs import terminal
from dispatcher.logs.search import MOST_HITS, finder
from dispatcher.logs.terminal import Line
from dispatcher.logs.view import LogQuery, Source
from dispatcher.sandbox.bounded_processes import BoundedProcesses, Said

_log = logging.getLogger(__name__)

PIECE = 192 << 10
"""Bytes read of one log at a time."""
BUDGET = 256 << 10
"""Bytes read of all logs for one answer."""
MOST_LINES = 1_500
"""Lines of one answer."""
MOST_SOURCES = 30
"""Logs that one answer shows."""
MOST_OPENED = 300
"""Logs that are opened to find those."""
MOST_SEARCHED = 20_000
"""Logs that one search looks into."""
SEARCH_S = 6.0
_ANSWER = TypeAdapter(tuple[int, int, str, str, str, str])
"""A hit as `dispatcher.logs.search` tells it."""
_CONTEXT = 16 << 10
"""Bytes before a line that is shown in its context."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A stretch of one log.

    Attributes:
        lines: oldest first.
        begin, end: bytes; `end` is where the next reading begins: a last line that may grow is read again.
        size: of the whole log, or None where nothing was printed.
        is_end: nothing is behind it yet.
    """

    source: Source
    lines: tuple[Line, ...]
    begin: int
    end: int
    size: int | None
    is_end: bool = True


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A line that was found: `hit` between `before` and `after`, the line cut to what lies around it."""

    source: Source
    offset: int
    level: str
    before: str
    hit: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Hits:
    """What a search found, newest log first; `note` says what it left out."""

    hits: tuple[Hit, ...]
    searched: int
    note: str = ""


class LogReader:
    """Reads the logs volume. Safe for several threads."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self._searches = BoundedProcesses("dispatcher.logs.search", at_once=2)

    @property
    def is_mounted(self) -> bool:
        """Whether there are logs to be read here at all."""
        return self._volumes.logs.is_dir()

    def path(self, experiment: str, source: Source) -> str:
        """A log's path on the logs volume."""
        return str(
            self._volumes.task_log(experiment, source.task, source.attempt).relative_to(self._volumes.logs)
        )

    def size(self, experiment: str, source: Source) -> int | None:
        """Bytes of a log; None where nothing was printed, or it is not there any more."""
        try:
            with self._open(experiment, source) as file:
                return os.fstat(file.fileno()).st_size
        except OSError:
            return None

    def newest(self, experiment: str, chosen: Sequence[Source]) -> list[Chunk]:
        """The ends of the newest logs, in the order in which they started; of several, those with anything in them."""
        found: list[Chunk] = []
        left_bytes, left_lines = BUDGET, MOST_LINES
        for source in reversed(chosen[-MOST_OPENED:]):
            if left_bytes <= 0 or left_lines <= 0 or len(found) >= MOST_SOURCES:
                break
            read = partial(
                _last_lines, source=source, most_bytes=min(PIECE, left_bytes), most_lines=left_lines
            )
            chunk = self._chunk(experiment, source, read)
            if not chunk.lines and len(chosen) > 1:
                continue
            left_bytes -= sum(len(line.text) for line in chunk.lines)
            left_lines -= len(chunk.lines)
            found.append(chunk)
        return found[::-1]

    def around(self, experiment: str, source: Source, offset: int) -> Chunk:
        """The line at `offset`, with what is before and behind it."""
        chunk = self._chunk(
            experiment,
            source,
            lambda file: _read(file, source, _line_begin(file, max(0, offset - _CONTEXT)), PIECE),
        )
        before = sum(line.offset < offset for line in chunk.lines)
        kept = chunk.lines[max(0, before - MOST_LINES // 3) :]
        return _first_lines(replace(chunk, lines=kept, begin=kept[0].offset if kept else chunk.begin))

    def since(self, experiment: str, source: Source, offset: int) -> Chunk:
        """What is new behind `offset`, the `end` of an earlier chunk; at most `PIECE` bytes. Of a log that has become
        shorter since, its end."""

        def read(file: BinaryIO) -> Chunk:
            if offset > os.fstat(file.fileno()).st_size:
                return _last_lines(file, source, PIECE, MOST_LINES)
            return _read(file, source, offset, PIECE, first=MOST_LINES + 1)

        return _first_lines(self._chunk(experiment, source, read))

    def search(self, experiment: str, chosen: Sequence[Source], query: LogQuery) -> Hits:
        """Lines with `query.q` (of `query.level`) in the logs of `chosen`.

        Raises:
            BadRequestError: the expression is none; says where.
            BusyError: too many searches run already.
        """
        try:
            finder(query.q, is_regex=query.regex)
        except (re.error, OverflowError, RecursionError) as cause:
            raise BadRequestError(
                f"{query.q!r} is no regular expression: {cause}; untick it to find the text as it stands"
            ) from cause
        looked = list(chosen[-MOST_SEARCHED:])[::-1]
        question = {
            "root": str(self._volumes.logs),
            "files": [self.path(experiment, source) for source in looked],
            "q": query.q,
            "is_regex": query.regex,
            "level": query.level,
            "cpu_s": int(SEARCH_S),
        }
        said = self._searches.ask(json.dumps(question).encode(), timeout_s=SEARCH_S)
        hits = tuple(_hits(looked, said.output))
        end = _how(said, len(hits))
        if end == "broken":
            _log.warning("search failed experiment=%s code=%s error=%s", experiment, said.code, said.error)
        older = len(chosen) - len(looked)
        notes = [_NOTES[end].format(hits=len(hits), seconds=SEARCH_S, ending=said.ending)] if end else []
        notes += [f"{older:,} older logs were not looked into."] if older > 0 else []
        return Hits(hits=hits, searched=len(looked), note=" ".join(notes))

    def _open(self, experiment: str, source: Source) -> BinaryIO:
        return open_below(self._volumes.logs, self.path(experiment, source))

    def _chunk(self, experiment: str, source: Source, read: Callable[[BinaryIO], Chunk]) -> Chunk:
        try:
            with self._open(experiment, source) as file:
                return read(file)
        except OSError:
            return Chunk(source=source, lines=(), begin=0, end=0, size=None)


def _first_lines(chunk: Chunk) -> Chunk:
    if len(chunk.lines) <= MOST_LINES:
        return chunk
    return replace(chunk, lines=chunk.lines[:MOST_LINES], end=chunk.lines[MOST_LINES].offset, is_end=False)


def _last_lines(file: BinaryIO, source: Source, most_bytes: int, most_lines: int) -> Chunk:
    begin = _line_begin(file, max(0, os.fstat(file.fileno()).st_size - most_bytes))
    return _read(file, source, begin, most_bytes, last=most_lines)


def _line_begin(file: BinaryIO, offset: int) -> int:
    """The beginning of the first line at or behind `offset`; `offset` itself where none is near."""
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
    """At most `most` bytes from a line's beginning; of these the `first` or the `last` lines alone, if given."""
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
        # A progress bar without a line's end grows for ever: only what was written last is read again.
        tail = content[lines[-1].offset - begin :].rstrip(b"\r")
        end = lines[-1].offset + tail.rfind(b"\r") + 1
    return Chunk(source=source, lines=tuple(lines), begin=begin, end=end, size=size, is_end=is_end)


def _last_end(content: bytes) -> int:
    """Where to cut a piece so that no line is torn, if that can be."""
    return content.rfind(b"\n") + 1 or content.rfind(b"\r") + 1 or len(content)


def _hits(looked: Sequence[Source], output: bytes) -> Iterator[Hit]:
    for line in output.splitlines():
        try:
            index, offset, level, before, hit, after = _ANSWER.validate_json(line)
        except ValueError:
            return  # it was killed in the middle of a line
        yield Hit(source=looked[index], offset=offset, level=level, before=before, hit=hit, after=after)


def _how(said: Said, hits: int) -> str:
    """Why a search did not come to its end; empty if it did."""
    if said.is_cut or hits >= MOST_HITS:
        return "many"
    # The kernel's own clock may be the first to end it: it counts processor time.
    if said.is_late:
        return "late"
    return "broken" if said.code else ""


_NOTES = {
    "many": "Only the newest {hits:,} hits are shown: narrow the search to see older ones.",
    "late": "The search was ended after {seconds:g} s, so older logs were not looked into: choose a run, model or "
    "worker, or a simpler expression.",
    "broken": "The search failed, so older logs were not looked into: {ending}. Choose a run, model or worker, or a "
    "simpler expression.",
}
"""What is said of such a search."""


def _begin_of_last(content: bytes, most: int) -> int:
    """Where the last `most` lines begin."""
    ends = most + content.endswith(b"\n")
    before, *rest = content.rsplit(b"\n", ends)
    return len(before) + 1 if len(rest) == ends else 0
