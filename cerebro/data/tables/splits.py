"""The tables of a data set's splits, opened with one type for each column.

It does not know the meaning of columns other than `id`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args

import pyarrow as pa

from cerebro.contract.base import Split
from cerebro.contract.records import ColumnType
from cerebro.data.tables.cell_types import joined
from cerebro.data.tables.parquet_stream import ParquetStream, unify_schemas
from cerebro.data.tables.table_files import TableFiles
from cerebro.data.tables.table_stream import TableStream
from cerebro.data.tables.text_stream import TextStream
from cerebro.errors import MetadataError


class SplitTypesError(MetadataError):
    """Two splits have incompatible types for a column."""


def open_tables(
    files: TableFiles, types: Mapping[str, str], other_types: Mapping[str, str] = MappingProxyType({})
) -> TableStream:
    """Open the rows of table files.

    Args:
        files: the files.
        types: types of text columns from the locator.
        other_types: types from the locators of other splits, by column.

    Raises:
        LocatorError: a file cannot be read.
        MetadataError: a file is not a table, columns differ from the first file's, or types refer to missing columns or
            to Parquet.
    """
    if files.format == "Parquet":
        if types:
            raise MetadataError(
                f"{files.uri} is Parquet, which has types of its own: leave `types` out of the locator"
            )
        return ParquetStream(files)
    return TextStream(files, types, other_types)


def open_splits(tables: Mapping[Split, tuple[TableFiles, Mapping[str, str]]]) -> dict[Split, TableStream]:
    """Open the tables of several splits and give each column one type.

    Args:
        tables: split -> its files and the types in its locator. Types apply to the text files of all splits.

    Raises:
        LocatorError, MetadataError: as `open_tables` raises.
        SplitTypesError: two splits have incompatible types for a column.
    """
    all_types: dict[str, str] = {}
    for _, types in tables.values():
        all_types.update(types)
    streams = {split: open_tables(files, types, all_types) for split, (files, types) in tables.items()}
    for name in dict.fromkeys(name for stream in streams.values() for name in stream.schema.names):
        # `require_columns` refuses duplicate names.
        _unify(name, {split: each for split, each in streams.items() if each.schema.names.count(name) == 1})
    return streams


def _unify(name: str, streams: Mapping[Split, TableStream]) -> None:
    kinds = {split: stream.schema.field(name).type for split, stream in streams.items()}
    if len(set(kinds.values())) <= 1:
        return
    kinds.update((split, pa.null()) for split, stream in streams.items() if name in stream.empty)
    fixed = {split: kinds[split] for split, stream in streams.items() if name in stream.fixed}
    kind, is_free = joined([*kinds.values()]), all(pa.types.is_null(each) for each in fixed.values())
    if not is_free:
        try:
            kind = unify_schemas([pa.schema([(name, each)]) for each in fixed.values()]).field(name).type
        except pa.ArrowException as error:
            listed = " and ".join(f"{each} in {split!r}" for split, each in fixed.items())
            raise SplitTypesError(
                f"column {name!r} is {listed}: a column needs one type in all splits, so write the tables with one"
            ) from error
        if any(name not in stream.fixed and name not in stream.empty for stream in streams.values()):
            kind = _as_of_text(kind)
    problems = {split: stream.retype(name, kind) for split, stream in streams.items()}
    split, problem = next(((split, each) for split, each in problems.items() if each), ("", ""))
    if problem and is_free:
        for stream in streams.values():
            stream.retype(name, pa.string())
    elif problem:
        alias = next((each for each in get_args(ColumnType) if pa.type_for_alias(each) == kind), None)
        named = (
            f"Give the text files 'types': {{{name!r}: {alias!r}}} in the locator, or write"
            if alias
            else "Write"
        )
        raise SplitTypesError(
            f"column {name!r} is {kind} in {next(iter(fixed))!r}, but {problem} in {split!r}: a column needs one type "
            f"in all splits. {named} the tables with one type"
        )


def _as_of_text(kind: pa.DataType) -> pa.DataType:
    """Return the closest type to a Parquet column's that CSV cells can be converted to."""
    if pa.types.is_signed_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.string() if pa.types.is_large_string(kind) else kind
