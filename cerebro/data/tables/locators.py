"""Dataset locators: parsing, absolute paths, and opening and previewing each split's metadata table.

Client, controller and dispatcher call it. It alone decides which columns a metadata table needs: a unique `id` of text
or integers. It does not read objects. Arrow is imported only when a table is read, so that processes that only pass
locators on stay small.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cerebro.contract.base import Split
from cerebro.contract.records import Locator, Locators
from cerebro.data.objects import ObjectStore, has_scheme, local_path, open_store, split_uri
from cerebro.data.tables.table_files import table_files
from cerebro.errors import LocatorError, MetadataError, ObjectStoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from pydantic_core import ErrorDetails

    from cerebro.data.tables.table_stream import TableStream


_HEAD_BYTES = 1 << 20
"""Bytes that contain the first line of any table."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """The first rows of a split's metadata.

    Attributes:
        table: the rows.
        rows: number of rows of the table; `None` if that needs reading all of it.
        num_bytes: bytes of all files.
    """

    table: pa.Table
    rows: int | None
    num_bytes: int


def parse_locators(locators: Locators | Mapping[str, Any]) -> Locators:
    """Parse a user's locators: `{"train": {"metadata": ..., "objects": ...}, ..., "misc": [...]}`.

    A split may also be the metadata's address alone.

    Raises:
        LocatorError: fields are wrong; the message names each field.
    """
    if isinstance(locators, Locators):
        return locators
    raw = {key: {"metadata": value} if isinstance(value, str) else value for key, value in locators.items()}
    if isinstance(raw.get("misc"), list):
        raw["misc"] = tuple(raw["misc"])
    names = [split_uri(str(uri))[1] for uri in raw.get("misc") or ()]
    if len(set(names)) < len(names):
        raise LocatorError(
            f"misc names two files {_first_duplicate(names)!r}: both would go into one folder, so rename one"
        )
    try:
        return Locators.model_validate(raw)
    except ValidationError as cause:
        problems = "; ".join(_mistakes(cause.errors()))
        raise LocatorError(
            f"locators are wrong: {problems}{'' if problems.endswith('?') else '.'} Expected a metadata file and an "
            "object root per split (train, valid, test, predict), and optionally a list `misc`"
        ) from cause


def _mistakes(errors: Sequence[ErrorDetails]) -> Iterator[str]:
    """Describe each error; an unknown key explains a missing one beside it."""
    unknown = {error["loc"][:-1] for error in errors if error["type"] == "extra_forbidden"}
    for error in errors:
        if error["type"] != "missing" or error["loc"][:-1] not in unknown:
            yield _mistake(error)


def _mistake(error: ErrorDetails) -> str:
    *place, name = map(str, error["loc"]) if error["loc"] else ["locators"]
    if error["type"] != "extra_forbidden":
        return f"{'.'.join([*place, name])}: {error['msg']}"
    known = list((Locator if place else Locators).model_fields)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(known)}"
    where = f"the locator of {'.'.join(place)!r}" if place else "the locators"
    return f"unknown key {name!r} in {where}: {hint}"


def absolute(locators: Locators, folder: Path = Path()) -> Locators:
    """Return locators with absolute paths, because workers run elsewhere.

    Args:
        folder: base of relative paths. Default: the working directory.
    """

    def make_absolute(uri: str) -> str:
        if has_scheme(uri) or uri[:6].lower() == "file:/":
            return uri
        return str((local_path(uri) if uri.startswith("~") else folder / uri).resolve())

    splits = {
        split: locator.model_copy(
            update={
                "metadata": make_absolute(locator.metadata),
                "objects": locator.objects and make_absolute(locator.objects),
            }
        )
        for split, locator in locators.splits().items()
    }
    return Locators.model_validate({**splits, "misc": tuple(map(make_absolute, locators.misc))})


def metadata_of(split: Split, locator: Locator) -> str:
    """Return the name of a split's metadata for error messages."""
    return f"metadata of {split!r} ({locator.metadata})"


def known_columns(uri: str) -> tuple[str, ...] | None:
    """Return the columns of a metadata table from the first or last bytes of one file.

    `None` if these bytes do not contain them. Never raises; reading the full table reports errors.
    """
    from cerebro.data.tables.whole_tables import column_names, parquet_column_names

    try:
        file = table_files(uri).files[0]
        if file.format == "Parquet":
            with file.store.open(file.name) as content:
                return parquet_column_names(content)
        return column_names(file.name, file.store.head(file.name, _HEAD_BYTES))
    except (MetadataError, LocatorError, ObjectStoreError, OSError):
        return None


def open_metadata(
    locators: Locators, opened: Callable[[str], ObjectStore] = open_store
) -> dict[Split, TableStream]:
    """Open the metadata of all splits with one type for each column. Raises as `open_splits` does."""
    from cerebro.data.tables.splits import open_splits

    splits = locators.splits().items()
    return open_splits({split: (table_files(each.metadata, opened), each.types) for split, each in splits})


def preview_metadata(
    split: Split,
    locator: Locator,
    max_rows: int,
    opened: Callable[[str], ObjectStore] = open_store,
    stream: TableStream | None = None,
) -> Preview:
    """Return the first rows of a split's metadata, after checking them.

    A table of a few megabytes is checked in full.

    Args:
        max_rows: maximum number of rows.
        opened: opens the root of a store. Callers with restricted access pass another function than `open_store`.
        stream: the split's table from `open_metadata`. Default: infer types from this split alone.

    Raises:
        LocatorError, ObjectStoreError: a file is missing or cannot be read.
        MetadataError: the table is invalid, has no rows or no `id`, or has missing or duplicate ids.
    """
    from cerebro.data.tables.splits import open_tables

    where, files = metadata_of(split, locator), table_files(locator.metadata, opened)
    stream = stream or open_tables(files, locator.types)
    require_columns(where, stream.schema)
    table = stream.first(max_rows)
    if not table.num_rows:
        raise MetadataError(f"{where} has no rows: expected one row per example")
    ids = table.column("id").to_pylist()
    if any(value is None or value == "" for value in ids):
        at = next(number for number, value in enumerate(ids, start=1) if value in (None, ""))
        raise MetadataError(f"{where} has no 'id' in row {at:,}: give each row one")
    if len(set(ids)) < len(ids):
        raise MetadataError(
            f"{where} has the id {_first_duplicate(ids)!r} more than once: ids must be unique"
        )
    return Preview(table=table.slice(0, max_rows), rows=stream.num_rows, num_bytes=files.num_bytes)


def require_columns(where: str, schema: pa.Schema) -> None:
    """Require columns of a usable metadata table.

    Args:
        where: beginning of the error message.

    Raises:
        MetadataError: names are not unique, `id` is missing, or its type is not text or integer.
    """
    import pyarrow as pa

    from cerebro.data.tables.whole_tables import is_text

    names = schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MetadataError(
            f"{where} has the column {twice[0]!r} more than once: column names must be unique"
        )
    if "id" not in names:
        raise MetadataError(
            f"{where} has no column 'id' (its columns: {', '.join(names)}): add one with a unique value per row"
        )
    kind = schema.field("id").type
    if not (pa.types.is_integer(kind) or is_text(kind) or pa.types.is_null(kind)):
        raise MetadataError(f"{where} has ids of type {kind}: use whole numbers or text")


def _first_duplicate(values: list[Any]) -> Any:
    earlier: set[Any] = set()
    for value in values:
        if value in earlier:
            return value
        earlier.add(value)
    raise AssertionError("called without a duplicate")
