"""Child process that reads dataset locators: ``python -P -m dispatcher.start.locator_process``.

`LocatorCheck` starts it. Tables may have any size and objects any content, so time and memory are limited (4 GiB on
the user's own machine, else 384 MiB). Each `LocatorFinding` is written as one line when it is known, so results
before a timeout count. It keeps Arrow out of the dispatcher's own process.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from cerebro.contract.base import Split
from cerebro.contract.records import Locator, Locators
from cerebro.data.objects import ObjectStore, is_absent, split_uri
from cerebro.data.tables.locators import open_metadata, preview_metadata
from cerebro.data.tables.splits import SplitTypesError
from cerebro.data.tables.table_stream import TableStream
from cerebro.errors import LocatorError, MetadataError
from dispatcher.sandbox.bounded_processes import limit_process
from dispatcher.start.locator_check import FINDING, LocatorFinding
from dispatcher.start.locator_network import RefusedAddressError, guard_network
from dispatcher.start.locator_sources import NotCheckedError, root_of

LOCAL_BYTES = 4 << 30
CLUSTER_BYTES = 384 << 20
"""A process that uses all memory of the pod would end the page. This is enough for the first megabytes of a table.
"""
MAX_IMAGE_BYTES = 2 << 20
ROWS_SHOWN = 5
COLUMNS_SHOWN = 30
MAX_CELL_LENGTH = 80
MAX_MESSAGE_LENGTH = 1_000
MAX_TEXT_LENGTH = 300
"""Maximum characters of a text object."""
_MAX_ENTRIES = 2_000
"""Maximum number of folder entries to visit while looking for an object."""
_HEAD_BYTES = 1024
"""Bytes of an object that identify its kind."""
_TOO_LARGE = "The file is too large to check here. The controller reads it when the first run starts"
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_MIN_KEY_LENGTH = 8
"""Minimum length of a secret. Shorter values are common words."""

_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
}
"""Signatures of images that browsers show and that contain no script."""


def main() -> None:
    """Answer one request: ``{"locators", "shared", "has_object_store", "cpu_s"}``.

    `shared` is null on the user's own machine.
    """
    request = json.load(sys.stdin)
    shared = request["shared"]
    limit_process(memory_bytes=LOCAL_BYTES if shared is None else CLUSTER_BYTES, cpu_s=request["cpu_s"])
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the stack of each Arrow thread counts as memory
    if shared is not None:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        guard_network(endpoint if request["has_object_store"] else "")
    locators = Locators.model_validate(request["locators"])
    for finding in findings(locators, None if shared is None else Path(shared)):
        sys.stdout.buffer.write(FINDING.dump_json(finding) + b"\n")
        sys.stdout.buffer.flush()


def findings(locators: Locators, shared: Path | None) -> Iterator[LocatorFinding]:
    """Yield the result for each locator, in the order of the form. `shared` limits folders to the shared volume."""
    streams, problem = _open_splits(locators, shared)
    splits = locators.splits()
    for split, locator in splits.items():
        # Only the last split reports a type conflict.
        yield from _split(
            split, locator, shared, streams.get(split), problem if split == [*splits][-1] else None
        )
    for number, uri in enumerate(locators.misc, start=1):
        yield _finding("misc", uri, partial(_misc, uri, shared), line=number)


def image_kind(content: bytes) -> str:
    """Return the media type of an image that a page may show, or an empty text."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _IMAGES.items() if content.startswith(start)), "")


def text_of(head: bytes) -> str:
    """Return the beginning of a text file; an empty text for binary data."""
    text = head.decode(errors="replace").rstrip("\ufffd")  # the last character may be incomplete
    return text if all(each in "\n\r\t" or (each.isprintable() and each != "\ufffd") for each in text) else ""


def size_of(root: ObjectStore, name: str) -> int | None:
    """Return the size of an object; `None` if it does not exist or is not visible."""
    try:
        return root.size(name)
    except (NotCheckedError, OSError):  # such as a name that is too long
        return None
    except LocatorError as error:
        if _is_certain(error):
            return None
        raise


def without_keys(text: str, environment: Mapping[str, str]) -> str:
    """Remove keys of the object store from an error message."""
    keys = {part for name in _KEYS for part in environment.get(name, "").split()}
    for key in sorted(keys, key=len, reverse=True):
        text = text.replace(key, "...") if len(key) >= _MIN_KEY_LENGTH else text
    return text


def _misc(uri: str, shared: Path | None) -> dict[str, Any]:
    root, name = split_uri(uri)
    return {"num_bytes": root_of(root, shared).size(name)}


def _open_splits(
    locators: Locators, shared: Path | None
) -> tuple[Mapping[Split, TableStream], SplitTypesError | None]:
    """Open all splits with one type per column, or return the type conflict.

    If a split cannot be read, return nothing: the finding of that split names the reason.
    """
    try:
        return open_metadata(locators, lambda root: root_of(root, shared)), None
    except SplitTypesError as error:
        return {}, error
    except (Exception, RefusedAddressError):  # noqa: BLE001 - libraries raise anything; the split's finding reports it
        return {}, None


def _split(
    split: Split,
    locator: Locator,
    shared: Path | None,
    stream: TableStream | None,
    problem: SplitTypesError | None,
) -> Iterator[LocatorFinding]:
    rows: list[dict[str, Any]] = []

    def metadata() -> dict[str, Any]:
        found = preview_metadata(split, locator, ROWS_SHOWN, lambda root: root_of(root, shared), stream)
        if problem is not None:
            raise problem
        table = found.table
        rows.extend(table.to_pylist())
        shown = table.column_names[:COLUMNS_SHOWN]
        return {
            "num_bytes": found.num_bytes,
            "rows": found.rows,
            "columns": tuple((_cell(name), _cell(table.schema.field(name).type)) for name in shown),
            "more_columns": len(table.column_names) - len(shown),
            "preview": tuple(tuple(_cell(row[name]) for name in shown) for row in rows),
        }

    yield _finding(f"{split}_metadata", locator.metadata, metadata)
    if locator.objects:
        uri = locator.objects
        yield _finding(f"{split}_objects", uri, lambda: _objects(root_of(uri, shared), rows))


def _objects(root: ObjectStore, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Describe an object root: the objects that the first rows name, else any object."""
    root.check()
    column = _naming_column(root, rows)
    sizes = {name: size_of(root, name) for name in (str(row[column]) for row in rows if column)}
    sample = next((name for name, size in sizes.items() if size is not None), None) or _first_name(root)
    found: dict[str, Any] = {
        "column": _cell(column),
        "missing": tuple(_cell(name) for name, size in sizes.items() if size is None),
        "sample": _cell(sample),
    }
    if sample:
        size, head = root.size(sample), root.head(sample, _HEAD_BYTES)
        found["num_bytes"] = size
        kind = image_kind(head) if size <= MAX_IMAGE_BYTES else ""
        if kind:
            content = base64.b64encode(root.head(sample, MAX_IMAGE_BYTES))
            found["image"] = f"data:{kind};base64,{content.decode()}"
        else:
            found["text"] = _cut(text_of(head), MAX_TEXT_LENGTH)
    return found


def _naming_column(root: ObjectStore, rows: list[dict[str, Any]]) -> str | None:
    """Return the column with names of objects: the first one with an existing object."""
    columns = [name for name, value in (rows[0] if rows else {}).items() if isinstance(value, str) and value]
    candidates = itertools.product(sorted(columns, key=lambda name: name == "id"), rows[:2])
    return next((name for name, row in candidates if size_of(root, str(row[name])) is not None), None)


def _first_name(root: ObjectStore) -> str | None:
    """Return the name of any object under a root."""
    folder = root.local_root()
    if folder is None:
        return next(root.list(), None)
    files = filter(None, itertools.islice(_entries(Path(folder)), _MAX_ENTRIES))
    found = (path.relative_to(folder).as_posix() for path in files)
    return next((name for name in found if size_of(root, name) is not None), None)


def _entries(folder: Path) -> Iterator[Path | None]:
    """Yield files below a folder while reading it, because it may have a million files. Yields None for folders."""
    waiting = [folder]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                    yield None
                else:
                    yield Path(entry.path)


def _finding(field: str, uri: str, read: Callable[[], dict[str, Any]], *, line: int = 0) -> LocatorFinding:
    state = "unseen"
    try:
        return LocatorFinding(field=field, uri=uri, line=line, state="fine", **read())
    except (Exception, RefusedAddressError) as error:  # noqa: BLE001 - libraries raise anything
        message = str(error) or type(error).__name__
        if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
            message = _TOO_LARGE
        elif _is_certain(error):
            state = "wrong"
    text = _cut(without_keys(message, os.environ), MAX_MESSAGE_LENGTH)
    return LocatorFinding(field=field, uri=uri, line=line, state=state, message=text)


def _is_certain(error: BaseException) -> bool:
    """True if workers would have the same error. Missing keys and unreachable stores are not certain."""
    is_of_folder = isinstance(error.__cause__, OSError)
    is_missing = isinstance(error, LocatorError) and (is_of_folder or is_absent(error))
    return isinstance(error, MetadataError) or is_missing


def _cell(value: object) -> str:
    """Return a short text of a value. Names, types and values may be megabytes long."""
    return "" if value is None else _cut(str(value), MAX_CELL_LENGTH)


def _cut(text: str, max_chars: int) -> str:
    shown = text.encode(errors="replace").decode()  # file names need not be valid text
    return shown if len(shown) <= max_chars else f"{shown[:max_chars]}..."


if __name__ == "__main__":
    main()
