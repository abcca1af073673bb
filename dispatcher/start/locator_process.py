"""Looks at dataset locators, in a process of its own: ``python -P -m dispatcher.start.locator_process``.

What is looked at is the user's: a table of any size, objects of any kind. So it happens away from the pages, within
bounds of time and memory, and what was found so far counts when the time is over. Arrow is loaded here and nowhere else
in the dispatcher. A JSON object a line is written for each field as soon as it is known: a `Finding`'s fields.
"""

from __future__ import annotations

import base64
import codecs
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from cerebro.contract.records import Locator, Locators
from cerebro.data.locators import checked_metadata
from cerebro.errors import LocatorError, MetadataError
from dispatcher.sandbox.child import bound
from dispatcher.start.locator_network import RefusedAddressError, configured_endpoint, guard_network
from dispatcher.start.locator_places import Place, UnseenError, place_of

MEMORY_BYTES = 4 << 30
"""Of addresses: Arrow reserves far more than it uses."""
DATA_BYTES = 384 << 20
"""On a cluster, where one who takes all memory of the pod ends the page: enough for a table of 16 MiB as CSV."""
MOST_METADATA_BYTES = 64 << 20
MOST_PREVIEW_BYTES = 4 << 20
ROWS_SHOWN = 5
COLUMNS_SHOWN = 30
LONGEST_CELL = 80
LONGEST_MESSAGE = 1_000
LONGEST_URI = 2_000
"""Characters; an object with a longer address is named, but not shown."""
ROWS_LOOKED_UP = 5
LONGEST_TEXT = 300
"""Characters of an object that is text."""
_HEAD_BYTES = 1024
"""Of an object, by which its kind is known."""
_TOO_LARGE = "There was not enough memory to look into it. The controller reads it when the first run starts"
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_SHORTEST_KEY = 8
"""Characters; shorter ones are no secrets, but words that any text has."""

_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
}
"""How images begin, of the kinds that browsers show and that hold no script."""


def main() -> None:
    """Answer one question, ``{"locators", ...}`` or ``{"preview": uri, ...}``.

    Both with ``is_local``, ``has_object_store`` and ``shared``, by which places are chosen, and ``cpu_s``.
    """
    question = json.load(sys.stdin)
    if question["is_local"]:
        bound(memory_bytes=MEMORY_BYTES, cpu_s=question["cpu_s"])
    else:
        bound(memory_bytes=MEMORY_BYTES, cpu_s=question["cpu_s"], data_bytes=DATA_BYTES)
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # Arrow's threads: the stack of each counts
        guard_network(configured_endpoint(os.environ) if question["has_object_store"] else "")
    shared = None if question["is_local"] else question["shared"]
    if "preview" in question:
        _say(_preview(question["preview"], shared))
        return
    locators = Locators.model_validate(question["locators"])
    for split, locator in locators.splits().items():
        for finding in _split(split, locator, shared):
            _say(finding)
    for number, uri in enumerate(locators.misc, start=1):
        _say(_told("misc", uri, partial(_size, uri, shared)) | {"line": number})


def _size(uri: str, shared: str | None) -> dict[str, Any]:
    return {"num_bytes": place_of(uri, shared).size()}


def image_kind(content: bytes) -> str:
    """The media type of an image that a page may show; empty for anything else."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _IMAGES.items() if content.startswith(start)), "")


def text_of(head: bytes) -> str:
    """The beginning of a file as text, if it is any; empty for what is not UTF-8 or has control characters."""
    # A character may be torn at the end.
    found = codecs.getincrementaldecoder("utf-8")()
    try:
        text = found.decode(head)
    except UnicodeDecodeError:
        return ""
    return text if all(each.isprintable() or each in "\n\r\t" for each in text) else ""


def _split(split: str, locator: Locator, shared: str | None) -> Iterator[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def metadata() -> dict[str, Any]:
        place = place_of(locator.metadata, shared)
        size = place.size()
        if size > MOST_METADATA_BYTES:
            raise UnseenError(
                f"It is there, with {size:,} bytes: too many to look into here, where at most "
                f"{MOST_METADATA_BYTES >> 20} MiB are read. The controller reads it when the first run starts"
            )
        table = checked_metadata(split, locator.metadata, place.read(MOST_METADATA_BYTES)).table
        rows.extend(table.slice(0, ROWS_LOOKED_UP).to_pylist())
        shown = table.column_names[:COLUMNS_SHOWN]
        return {
            "num_bytes": size,
            "rows": table.num_rows,
            "columns": [[_cell(name), _cell(table.schema.field(name).type)] for name in shown],
            "more_columns": len(table.column_names) - len(shown),
            "preview": [[_cell(row[name]) for name in shown] for row in rows[:ROWS_SHOWN]],
        }

    yield _told(f"{split}_metadata", locator.metadata, metadata)
    if locator.objects:
        root = locator.objects
        yield _told(f"{split}_objects", root, lambda: _objects(place_of(root, shared), rows))


def _objects(root: Place, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What lies under an object root: the first rows' objects where a column names them, else any one."""
    root.check()
    column = _naming_column(root, rows)
    named = [str(row[column]) for row in rows] if column else []
    sizes = {name: root.object_size(name) for name in named}
    missing = [name for name, size in sizes.items() if size is None]
    sample = next((name for name, size in sizes.items() if size is not None), None) or root.first_name()
    found: dict[str, Any] = {
        "column": _cell(column),
        "missing": [_cell(name) for name in missing[:ROWS_LOOKED_UP]],
        "sample": _cell(sample),
    }
    if sample:
        place = root.below(sample)
        found["num_bytes"] = root.object_size(sample)
        is_shown = (found["num_bytes"] or 0) <= MOST_PREVIEW_BYTES and len(place.uri) <= LONGEST_URI
        head = place.read(_HEAD_BYTES)
        found["kind"] = image_kind(head) if is_shown else ""
        found["text"] = "" if found["kind"] else _cut(text_of(head), LONGEST_TEXT)
        found["sample_uri"] = place.uri if is_shown else ""
    return found


def _naming_column(root: Place, rows: list[dict[str, Any]]) -> str | None:
    """The column whose values are names of objects: the first one of which any is there."""
    columns = [name for name, value in (rows[0] if rows else {}).items() if isinstance(value, str) and value]
    looked_up = itertools.product(sorted(columns, key=lambda name: name == "id"), rows[:2])
    return next((name for name, row in looked_up if root.object_size(str(row[name])) is not None), None)


def _preview(uri: str, shared: str | None) -> dict[str, Any]:
    def content() -> dict[str, Any]:
        place = place_of(uri, shared)
        if place.size() > MOST_PREVIEW_BYTES:
            raise UnseenError(f"larger than {MOST_PREVIEW_BYTES >> 20} MiB")
        found = place.read(MOST_PREVIEW_BYTES)
        kind = image_kind(found)
        if not kind:
            raise UnseenError("no image that a page may show")
        return {"kind": kind, "content": base64.b64encode(found).decode()}

    return _told("preview", uri, content)


def _told(field: str, uri: str, look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    finding: dict[str, Any] = {"field": field, "uri": uri, "state": "fine", "message": ""}
    try:
        return finding | look()
    except (LocatorError, MetadataError) as error:
        told = str(error)
        if isinstance(error.__cause__, MemoryError):
            told = _TOO_LARGE
        is_lacking = told == _TOO_LARGE or "credentials found" in told or "boto3" in told
        state = "unseen" if is_lacking else "wrong"
    except (UnseenError, RefusedAddressError) as error:
        state, told = "unseen", str(error)
    except MemoryError:
        state, told = "unseen", _TOO_LARGE
    except Exception as error:  # noqa: BLE001 - of libraries: its text may hold keys, and would stand in the log
        state, told = "unseen", str(error) or type(error).__name__
    return finding | {"state": state, "message": _cut(without_keys(told, os.environ), LONGEST_MESSAGE)}


def without_keys(text: str, environment: Mapping[str, str]) -> str:
    """What is told of an error, without the keys of the object store, should a library have put them there."""
    keys = {part for name in _KEYS for part in environment.get(name, "").split()}
    for key in sorted(keys, key=len, reverse=True):
        text = text.replace(key, "...") if len(key) >= _SHORTEST_KEY else text
    return text


def _cell(value: object) -> str:
    """What a page shows of a value, whoever wrote it: names, types and values may be megabytes long."""
    return "" if value is None else _cut(str(value), LONGEST_CELL)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _say(finding: dict[str, Any]) -> None:
    print(json.dumps(finding), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
