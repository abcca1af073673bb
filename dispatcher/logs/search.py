"""Search in logs, as a child process: ``python -P -m dispatcher.logs.search``.

`LogReader.search` starts it. A regular expression can run forever on a short line and cannot be interrupted from
within the process, so the parent kills it after a timeout. Hits are written as they are found, in the order of the
requested files, at most 500. Limits: 512 MiB of memory. Imports little, to start fast.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from cerebro.data.files.safe_open import open_below
from dispatcher.logs import terminal

MAX_HITS = 500
MEMORY_BYTES = 512 << 20
MAX_LINE_LENGTH = 1 << 20
"""Longer lines are searched in pieces."""
_SHOWN = 400
"""Maximum characters of a matching line to show around the hit."""


def main() -> None:
    """Answer one request: ``{"root", "files", "q", "is_regex", "level", "cpu_s"}`` on standard input.

    Writes at most `MAX_HITS` JSON lists, one per line: ``[file index, line offset, level, before, hit, after]``.
    """
    from dispatcher.sandbox.bounded_processes import limit_process

    request = json.load(sys.stdin)
    limit_process(memory_bytes=MEMORY_BYTES, cpu_s=request["cpu_s"])
    find, root = finder(request["q"], is_regex=request["is_regex"]), Path(request["root"])
    hits = (
        (index, *hit)
        for index, name in enumerate(request["files"])
        for hit in _hits(root, name, find, request["level"])
    )
    for hit in islice(hits, MAX_HITS):
        print(json.dumps(hit), flush=True)  # noqa: T201 - the answer


Find = Callable[[str], tuple[int, int] | None]


def finder(q: str, *, is_regex: bool) -> Find:
    """Return a function that finds `q` in a text. Plain text ignores case, a regular expression does not.

    Raises:
        re.error: `q` is not a valid regular expression.
    """
    if not q:
        return lambda text: (0, 0)
    pattern = re.compile(q if is_regex else re.escape(q), 0 if is_regex else re.IGNORECASE)

    def find(text: str) -> tuple[int, int] | None:
        found = pattern.search(text)
        return found.span() if found else None

    return find


def _hits(root: Path, name: str, find: Find, level: str) -> Iterator[tuple[int, str, str, str, str]]:
    try:
        file = open_below(root, name)
    except OSError:
        return  # removed in between, or without output
    with file:
        last = ""
        for offset, raw in _lines(file):
            text = terminal.plain(raw)
            line_level = terminal.level_of(text, last)
            last = line_level if text.strip() else ""
            if level and line_level != level:
                continue
            found = find(text)
            if found:
                start, end = found
                text_before, text_after = text[max(0, start - _SHOWN // 2) : start], text[end : end + _SHOWN]
                yield offset, line_level, text_before, text[start:end][:_SHOWN], text_after


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while raw := file.readline(MAX_LINE_LENGTH):
        yield offset, raw
        offset += len(raw)


if __name__ == "__main__":
    main()
