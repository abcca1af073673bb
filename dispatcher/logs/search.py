"""Finds lines in logs, in a process of its own: ``python -P -m dispatcher.logs.search``.

A regular expression can take for ever on a short line, and nothing within a process can stop it; so the process is
killed when its time is over. Hits are written as they are found, newest log first. Imports little: it starts at once.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from cerebro.data.safe_open import open_below
from dispatcher.logs import terminal

MOST_HITS = 500
MEMORY_BYTES = 512 << 20
LONGEST_LINE = 1 << 20
"""A longer line is searched in pieces."""
_SHOWN = 400
"""Characters of a line with a hit that are shown, around it."""


def main() -> None:
    """Answer one question: ``{"root", "files", "q", "is_regex", "level", "cpu_s"}``; a JSON list ``[index of the file,
    offset of the line, level, before, hit, after]`` a line, `MOST_HITS` at most."""
    from dispatcher.sandbox.bounded_processes import bound

    question = json.load(sys.stdin)
    bound(memory_bytes=MEMORY_BYTES, cpu_s=question["cpu_s"])
    find, root = finder(question["q"], is_regex=question["is_regex"]), Path(question["root"])
    hits = (
        (index, *hit)
        for index, name in enumerate(question["files"])
        for hit in _hits(root, name, find, question["level"])
    )
    for hit in islice(hits, MOST_HITS):
        print(json.dumps(hit), flush=True)  # noqa: T201 - the answer


Find = Callable[[str], tuple[int, int] | None]


def finder(q: str, *, is_regex: bool) -> Find:
    """Text -> where `q` is in it; text is found whatever its case, an expression as it says.

    Raises:
        re.error: `q` is no regular expression.
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
        return  # removed meanwhile, or nothing was printed
    with file:
        last = ""
        for offset, raw in _lines(file):
            text = terminal.plain(raw)
            own = terminal.level_of(text, last)
            last = own if text.strip() else ""
            if level and own != level:
                continue
            found = find(text)
            if found:
                start, end = found
                before, after = text[max(0, start - _SHOWN // 2) : start], text[end : end + _SHOWN]
                yield offset, own, before, text[start:end][:_SHOWN], after


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while raw := file.readline(LONGEST_LINE):
        yield offset, raw
        offset += len(raw)


if __name__ == "__main__":
    main()
