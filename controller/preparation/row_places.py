"""Partitions of training rows by their columns: classes spread evenly, groups kept together.

A first pass counts the values of the columns (`observe`), `plan` decides, and a second pass over the rows, in the order
of their keys, gets each row's partition (`places`). Memory grows with the number of classes and groups, not of rows.
The result depends on the rows only, not on their order in the files.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from cerebro.data.tables.table_stream import Rows
from cerebro.errors import MetadataError
from controller.preparation.partition import rows_in_use, shares

UNUSED = -1
"""Place of a row that the data set leaves out (`EtlRequest.fraction`)."""
MOST_CLASSES = 1000
"""Classes of a stratified cut. A column with more values has probably no classes."""
_PATTERN = 1000
"""Maximum length of a pattern, and its length for weights that are no integers."""

Places = NDArray[np.int32]


class RowPlaces(Protocol):
    """Partitions of rows. Single use: all rows are observed, then planned, then placed in the order of their keys."""

    def observe(self, rows: Rows) -> None:
        """Count rows.

        Raises:
            MetadataError: a column has unsuitable values.
        """

    def plan(self, weights: Sequence[float], fraction: float) -> list[int]:
        """Return the number of rows of each partition.

        Raises:
            MetadataError: a partition would have no rows.
        """

    def places(self, batch: pa.RecordBatch) -> Places:
        """Return the partition of each row, or `UNUSED`."""


def row_places(where: str, schema: pa.Schema, *, stratify: str, group: str, seed: int) -> RowPlaces | None:
    """Return the places by these columns; `None` without any.

    Args:
        where: name of the metadata, for messages.

    Raises:
        MetadataError: a column is missing, or has lists or objects.
    """
    for option, name in (("stratify", stratify), ("group", group)):
        if name and name not in schema.names:
            raise MetadataError(
                f"{option}={name!r}, but {where} has no such column: choose one of {', '.join(schema.names)}"
            )
        if name and pa.types.is_nested(schema.field(name).type):
            raise MetadataError(
                f"{option}={name!r}, but this column of {where} has {schema.field(name).type} values: choose a column "
                "of text or numbers"
            )
    if group:
        return Grouped(where, group, stratify, seed)
    return Stratified(where, stratify) if stratify else None


class _Coded(NamedTuple):
    """Values of a column: the distinct ones, and the number of each row's value among them."""

    values: list[Any]
    codes: NDArray[np.int64]


def _coded(batch: pa.RecordBatch, name: str) -> _Coded:
    encoded = batch.column(name)
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    # A NaN is a missing value: it differs from itself, so it cannot be a key.
    values = [None if value != value else value for value in encoded.dictionary.to_pylist()]
    codes = encoded.indices.cast(pa.int64()).fill_null(len(values)).to_numpy(zero_copy_only=False)
    return _Coded([*values, None], codes)


def pattern(weights: Sequence[float]) -> Places:
    """Return a sequence of partitions that deals rows by the weights when it is repeated: 0, 1, 2 for equal ones."""
    are_integers = all(float(weight).is_integer() for weight in weights)
    counts = [int(weight) for weight in weights] if are_integers else []
    by = math.gcd(*counts) or 1
    if not counts or sum(counts) // by > max(_PATTERN, len(weights)):
        counts = shares(max(_PATTERN, len(weights)), weights)
        by = math.gcd(*counts)
    places = [
        ((number + 0.5) * by / count, place)
        for place, count in enumerate(counts)
        for number in range(count // by)
    ]
    return np.array([place for _, place in sorted(places)], np.int32)


class Stratified:
    """Deals the rows of each class to the partitions in turn, so each has the same share of the class.

    Numbers of rows of a class differ by at most one between equal partitions. Missing values are a class.
    """

    def __init__(self, where: str, column: str) -> None:
        self._where, self._column = where, column
        self._rows: dict[Any, int] = {}
        self._begin: dict[Any, int] = {}
        self._used: dict[Any, int] = {}
        self._pattern: Places = np.zeros(1, np.int32)

    def observe(self, rows: Rows) -> None:
        """Count the rows of each class."""
        values, codes = _coded(rows.batch, self._column)
        for value, count in zip(values, np.bincount(codes, minlength=len(values)).tolist(), strict=True):
            if count:
                self._rows[value] = self._rows.get(value, 0) + count
        if len(self._rows) > MOST_CLASSES:
            raise MetadataError(
                f"stratify={self._column!r}, but this column of {self._where} has more than {MOST_CLASSES:,} different "
                "values: choose a column of classes"
            )

    def plan(self, weights: Sequence[float], fraction: float) -> list[int]:
        """Return the number of rows of each partition."""
        classes = sorted(self._rows, key=repr)
        num_rows = rows_in_use(sum(self._rows.values()), fraction)
        used = shares(num_rows, [self._rows[each] for each in classes])
        self._used = dict(zip(classes, used, strict=True))
        self._begin = dict(zip(classes, np.cumsum([0, *used]).tolist(), strict=False))
        self._pattern = pattern(weights)
        rounds, rest = divmod(num_rows, len(self._pattern))
        dealt = rounds * np.bincount(self._pattern, minlength=len(weights))
        dealt += np.bincount(self._pattern[:rest], minlength=len(weights))
        if num_rows >= len(weights) and not dealt.all():
            raise MetadataError(
                f"stratify={self._column!r} leaves worker {int(np.argmin(dealt))} without rows: {num_rows:,} rows of "
                f"{self._where} are too few for {len(weights)} workers of these sizes; use more rows or fewer workers"
            )
        return [int(count) for count in dealt]

    def places(self, batch: pa.RecordBatch) -> Places:
        """Return the partition of each row."""
        values, codes = _coded(batch, self._column)
        found = np.full(len(codes), UNUSED, np.int32)
        for code in np.unique(codes).tolist():
            value, rows = values[code], np.flatnonzero(codes == code)[: max(0, self._used[values[code]])]
            numbers = self._begin[value] + np.arange(len(rows))
            found[rows] = self._pattern[numbers % len(self._pattern)]
            self._begin[value] += len(rows)
            self._used[value] -= len(rows)
        return found


class Grouped:
    """Puts all rows of a group into one partition.

    The largest groups go first, each to the partition with the fewest rows for its weight. With classes, to the one
    whose shares of the classes and of the rows are then the most even.
    """

    def __init__(self, where: str, column: str, classes: str, seed: int) -> None:
        self._where, self._column, self._seed = where, column, seed
        self._classes = Stratified(where, classes) if classes else None
        self._class_column = classes
        self._rows: dict[Any, dict[Any, int]] = {}
        self._places: dict[Any, int] = {}

    def observe(self, rows: Rows) -> None:
        """Count the rows of each group, by class."""
        values, codes = _coded(rows.batch, self._column)
        absent = [code for code, value in enumerate(values) if value in (None, "")]
        if (missing := np.flatnonzero(np.isin(codes, absent))).size:
            raise MetadataError(
                f"group={self._column!r}, but {self._where} has no {self._column!r} in row "
                f"{rows.first + int(missing[0]):,} of {rows.file}: give each row a group"
            )
        classes = _Coded([None], np.zeros(len(codes), np.int64))
        if self._classes is not None:
            self._classes.observe(rows)
            classes = _coded(rows.batch, self._class_column)
        width = len(classes.values)
        pairs, counts = np.unique(codes * width + classes.codes, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            group, of_class = values[pair // width], classes.values[pair % width]
            found = self._rows.setdefault(group, {})
            found[of_class] = found.get(of_class, 0) + count

    def plan(self, weights: Sequence[float], fraction: float) -> list[int]:
        """Return the number of rows of each partition."""
        if len(self._rows) < len(weights):
            raise MetadataError(
                f"group={self._column!r} has {len(self._rows)} groups in {self._where} for {len(weights)} workers: "
                "each worker needs at least one; start fewer workers, or choose another column"
            )
        sizes = {group: sum(counts.values()) for group, counts in self._rows.items()}
        num_rows = rows_in_use(sum(sizes.values()), fraction)
        groups: list[Any] = []
        done = 0
        for group in sorted(sizes, key=self._key):
            if done >= num_rows and len(groups) >= len(weights):
                break
            groups.append(group)
            done += sizes[group]
        groups.sort(key=lambda group: (-sizes[group], self._key(group)))
        by_class = self._classes is not None
        self._places = self._evenly(groups, weights) if by_class else _by_size(groups, sizes, weights)
        counts = [0] * len(weights)
        for group, place in self._places.items():
            counts[place] += sizes[group]
        return counts

    def places(self, batch: pa.RecordBatch) -> Places:
        """Return the partition of each row."""
        values, codes = _coded(batch, self._column)
        return np.array([self._places.get(value, UNUSED) for value in values], np.int32)[codes]

    def _key(self, group: Any) -> tuple[int, str]:
        """Return a group's place in a shuffled order, which the seed decides."""
        text = repr(group)
        return xxhash.xxh3_64_intdigest(f"{self._seed}/{text}".encode()), text

    def _evenly(self, groups: Sequence[Any], weights: Sequence[float]) -> dict[Any, int]:
        classes = sorted({each for group in groups for each in self._rows[group]}, key=repr)
        number = {each: place for place, each in enumerate(classes)}
        share = np.array(weights, np.float64)[:, None] / sum(weights)
        filled = np.zeros((len(weights), len(classes) + 1))  # the last column: all rows
        sums = np.zeros(len(classes) + 1)
        for group in groups:
            for each, count in self._rows[group].items():
                sums[[number[each], -1]] += count
        found = {}
        for place, group in enumerate(groups):
            relative = np.zeros(len(sums))
            for each, count in self._rows[group].items():
                relative[[number[each], -1]] += count
            relative /= sums
            remaining_groups = len(groups) - place
            empty = np.flatnonzero(filled[:, -1] == 0)
            new_shares = (filled + relative) / share
            cost = (new_shares**2 - (filled / share) ** 2).sum(axis=1) * share[:, 0]
            chosen = int(empty[0]) if len(empty) >= remaining_groups else int(np.argmin(cost))
            filled[chosen] += relative
            found[group] = chosen
        return found


def _by_size(groups: Sequence[Any], sizes: Mapping[Any, int], weights: Sequence[float]) -> dict[Any, int]:
    """Return group -> partition; `groups` are in the order of their sizes. Each partition gets a group first."""
    heap = [(0.0, -weight, place) for place, weight in enumerate(weights)]
    heapq.heapify(heap)
    found = {}
    for group in groups:
        filled, negative, place = heap[0]
        found[group] = place
        heapq.heapreplace(heap, (filled - sizes[group] / negative, negative, place))
    return found
