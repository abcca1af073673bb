"""Dataset locators made concrete: a metadata table read, checked and described.

The one place that decides what a usable metadata table is. Arrow is loaded only when a
table is read, so that processes which merely pass locators on stay small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cerebro.contract.base import Split
from cerebro.contract.records import Locator, Locators
from cerebro.data.objects import local_path, read_bytes, read_head
from cerebro.errors import LocatorError, MetadataError, ObjectStoreError

if TYPE_CHECKING:
    import pyarrow as pa


_HEAD_BYTES = 1 << 20
"""In which the first line of any table ends."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """A split's metadata table (column ``id`` unique) and the SHA-256 of the file it came from."""

    table: pa.Table
    digest: str


def parse_locators(given: Locators | Mapping[str, Any]) -> Locators:
    """Locators from what a user wrote: ``{"train": {"metadata": ..., "objects": ...}, ..., "misc": [...]}``.

    A split may also be the metadata's address alone.

    Raises:
        LocatorError: names every field that is wrong.
    """
    if isinstance(given, Locators):
        return given
    raw = {key: {"metadata": value} if isinstance(value, str) else value for key, value in given.items()}
    if isinstance(raw.get("misc"), list):
        raw["misc"] = tuple(raw["misc"])
    names = [PurePath(str(uri)).name for uri in raw.get("misc") or ()]
    if len(set(names)) < len(names):
        raise LocatorError(
            f"misc names two files {_first_duplicate(names)!r}: both would go into one folder, so rename one"
        )
    try:
        return Locators.model_validate(raw)
    except ValidationError as cause:
        found = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'locators'}: {e['msg']}" for e in cause.errors())
        raise LocatorError(
            f"locators are wrong: {found}. Expected a metadata file and an object root per split "
            "(train, valid, test, predict), and optionally a list `misc`"
        ) from cause


def absolute(locators: Locators, folder: Path = Path()) -> Locators:
    """Paths made absolute, because workers run elsewhere; relative ones are in the folder."""

    def whole(uri: str) -> str:
        return uri if "://" in uri else str((folder / Path(uri).expanduser()).resolve())

    splits = {
        split: locator.model_copy(
            update={
                "metadata": whole(locator.metadata),
                "objects": locator.objects and whole(locator.objects),
            }
        )
        for split, locator in locators.splits().items()
    }
    return Locators.model_validate({**splits, "misc": tuple(map(whole, locators.misc))})


def read_metadata(split: Split, locator: Locator) -> Metadata:
    """Read and check a split's metadata.

    Raises:
        LocatorError: the file is missing or unreadable.
        MetadataError: it has no rows, no ``id``, missing or duplicate ids, or is no CSV or Parquet table.
    """
    return checked_metadata(split, locator.metadata, read_bytes(locator.metadata))


def known_columns(uri: str) -> tuple[str, ...] | None:
    """Columns of a metadata file, of which only the beginning or the end is read; `None` where that does not tell.

    Raises nothing: what is wrong with the file is said by whoever reads all of it.
    """
    from cerebro.data.tables import column_names, parquet_column_names

    try:
        if not uri.startswith("s3://") and (found := parquet_column_names(local_path(uri))) is not None:
            return found
        return column_names(uri, read_head(uri, _HEAD_BYTES))
    except (MetadataError, LocatorError, ObjectStoreError, OSError):
        return None


def checked_metadata(split: Split, uri: str, content: bytes) -> Metadata:
    """Parse and check the content of a metadata file.

    Raises:
        MetadataError: it has no rows, no ``id``, missing or duplicate ids, or is no CSV or Parquet table.
    """
    from cerebro.data.tables import parse_table

    table = parse_table(content, uri)
    where = f"metadata of {split!r} ({uri})"
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise MetadataError(
            f"{where} has the column {twice[0]!r} more than once: column names must be unique"
        )
    if "id" not in table.column_names:
        raise MetadataError(
            f"{where} has no column 'id' (its columns: {', '.join(table.column_names)}): add one with a "
            "unique value per row"
        )
    if table.num_rows == 0:
        raise MetadataError(f"{where} has no rows: expected one row per example")
    ids = table.column("id").to_pylist()
    if any(value is None or value == "" for value in ids):
        raise MetadataError(
            f"{where} has no 'id' in row {next(i for i, v in enumerate(ids) if v in (None, ''))}: give each row one"
        )
    if not isinstance(ids[0], int | str):
        raise MetadataError(
            f"{where} has ids of type {table.schema.field('id').type}: use whole numbers or text"
        )
    if len(set(ids)) < len(ids):
        raise MetadataError(
            f"{where} has the id {_first_duplicate(ids)!r} more than once: ids must be unique"
        )
    return Metadata(table=table, digest=hashlib.sha256(content).hexdigest())


def _first_duplicate(values: list[Any]) -> Any:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    raise AssertionError("called without a duplicate")
