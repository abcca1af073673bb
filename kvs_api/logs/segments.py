"""File format of a segment: consecutive entries of a log as compressed bytes. Pure: encodes and decodes.

`kvs_api.logs.segment_store` encodes and `kvs_api.logs.log_files` decodes; neither files nor Redis are touched here.
Entries of a log are similar: two commits differ in digits and checksums. An entry is split into its
*template*, the text without these, and its values. Values at the same place of the same template form a
column. Columns compress to a sixth of the compressed event text. Decoding restores every byte: nothing is
interpreted, so events of any version, or of none, survive.

    magic  "cerebro segment 1\\n"
    LZMA   header: one line of JSON: number of entries, templates, columns of each, bytes of each column
           the columns, one after another
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from typing import Any, NamedTuple

from cerebro.errors import CerebroError

MAGIC = b"cerebro segment 1\n"

_VALUE = re.compile(rb'(?<=")(?:[0-9a-f]{64}|[0-9a-f]{16})(?=")|\d+')
_NO_COUNT = -1
"""Value in the count column for an entry without a count."""
_PRESET = 2
"""Higher presets take four times as long and save a twentieth."""


class DamagedSegmentError(CerebroError):
    """The bytes are not a complete segment."""


class Entry(NamedTuple):
    """A stored entry of a log.

    Attributes:
        number: number in its log, ascending; gaps hold events of the cluster log.
        time: milliseconds since the epoch, by the store machine's clock.
        cluster: number of events in the cluster log at that time; `None` if not recorded.
        event: JSON text.
    """

    number: int
    time: int
    cluster: int | None
    event: bytes


def encode(entries: Sequence[Entry]) -> bytes:
    """Encode entries as a segment."""
    templates: dict[bytes, int] = {}
    which: list[int] = []
    rows: list[list[tuple[bytes, ...]]] = []
    for entry in entries:
        text = entry.event.replace(b"%", b"%%")
        values = tuple(_VALUE.findall(text))
        number = templates.setdefault(_VALUE.sub(b"%b", text), len(templates))
        if number == len(rows):
            rows.append([])
        rows[number].append(values)
        which.append(number)
    columns = [
        _numbers(b - a for a, b in pairwise([0, *(entry.number for entry in entries)])),
        _numbers(b - a for a, b in pairwise([0, *(entry.time for entry in entries)])),
        _numbers(_NO_COUNT if entry.cluster is None else entry.cluster for entry in entries),
        _numbers(which),
    ]
    widths = []
    for found in rows:
        widths.append(len(found[0]))
        columns += [b"\n".join(column) for column in zip(*found, strict=True)]
    packed = [_packed(column) for column in columns]
    header = {
        "entries": len(entries),
        "templates": [template.decode("latin-1") for template in templates],
        "widths": widths,
        "columns": [len(column) if is_text else -len(column) for column, is_text in packed],
    }
    body = b"".join((json.dumps(header).encode(), b"\n", *(column for column, _ in packed)))
    return MAGIC + lzma.compress(body, preset=_PRESET)


def decode(content: bytes) -> list[Entry]:
    """Decode a segment.

    Raises:
        DamagedSegmentError: it is incomplete, or of another version.
    """
    if not content.startswith(MAGIC):
        raise DamagedSegmentError("its header is not one of this version")
    try:
        head, _, body = lzma.decompress(content[len(MAGIC) :]).partition(b"\n")
        header = json.loads(head)
        columns = _columns(header, body)
        numbers, times, counts, which = (list(map(int, column)) for column in columns[:4])
        column_iterator = iter(columns[4:])
        texts = [
            _texts(template.encode("latin-1"), [next(column_iterator) for _ in range(width)])
            for template, width in zip(header["templates"], header["widths"], strict=True)
        ]
        entries = [
            Entry(number, time, None if count == _NO_COUNT else count, next(texts[of]))
            for number, time, count, of in zip(
                accumulate(numbers), accumulate(times), counts, which, strict=True
            )
        ]
    except (lzma.LZMAError, ValueError, KeyError, TypeError, StopIteration, EOFError) as cause:
        raise DamagedSegmentError(f"its content is inconsistent: {cause}") from cause
    if len(entries) != header["entries"]:
        raise DamagedSegmentError(f"it has {len(entries)} entries, and says {header['entries']}")
    return entries


def _numbers(numbers: Iterable[int]) -> bytes:
    return b"\n".join(b"%d" % number for number in numbers)


def _packed(column: bytes) -> tuple[bytes, bool]:
    """Return the packed column and whether it is text.

    A column of 16-digit checksums is packed as bytes: half the space, and checksums do not compress.
    """
    values = column.split(b"\n")
    if len(values[0]) == 16 and all(len(value) == 16 for value in values):
        return bytes.fromhex(column.replace(b"\n", b"").decode()), False
    return column, True


def _columns(header: Any, body: bytes) -> list[Sequence[bytes]]:
    sizes = header["columns"]
    ends = [0, *accumulate(map(abs, sizes))]
    if ends[-1] != len(body):
        raise ValueError(f"{len(body)} bytes of columns, expected {ends[-1]}")
    found: list[Sequence[bytes]] = []
    for size, (start, end) in zip(sizes, pairwise(ends), strict=True):
        column = body[start:end]
        if size < 0:
            text = column.hex().encode()
            found.append([text[at : at + 16] for at in range(0, len(text), 16)])
        else:
            found.append(column.split(b"\n"))
    return found


def _texts(template: bytes, columns: Sequence[Sequence[bytes]]) -> Iterator[bytes]:
    rows: Iterable[Any] = zip(*columns, strict=True) if columns else repeat(())
    return map(template.__mod__, rows)
