"""Tables: which rows come first, one page of them, and all of them as CSV. Pure."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Cell = str | int | float | bool | None
"""What stands in a table: `None` where a row has nothing there."""

_NUMBERS = frozenset({int, float})
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


# --- order ------------------------------------------------------------------------------------------


def sort_keys(sort: str) -> list[tuple[str, bool]]:
    """``state,-best`` as names of columns, the most important first, each with whether it descends."""
    keys = [key.strip() for key in sort.split(",") if key.strip()]
    return [(key.removeprefix("-"), key.startswith("-")) for key in keys]


def ordered(rows: Sequence[T], value: Callable[[T], Any], *, is_descending: bool) -> list[T]:
    """Rows by their value: numbers, then texts, then NaN; those without one last, whichever way. Equal ones stay in
    their order."""
    known = [(found, row) for row in rows if (found := value(row)) is not None]
    # Most columns hold nothing but numbers, which need no key; NaN differs from itself.
    is_plain = all(type(found) in _NUMBERS and found == found for found, _ in known)
    known.sort(key=itemgetter(0) if is_plain else lambda each: _place(each[0]), reverse=is_descending)
    rest = [row for row in rows if value(row) is None] if len(known) < len(rows) else []
    return [row for _, row in known] + rest


def text(value: Any) -> str:
    """A value as it is searched and compared as text."""
    return value if isinstance(value, str) else json.dumps(value)


def number(value: Any) -> float | None:
    """A value as a number; `None` if it is none. Truth values are none."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        float(value)
    except OverflowError:  # a whole number that no float can hold
        return math.inf if value > 0 else -math.inf
    return value  # exact, also beyond 2**53


def _place(value: Any) -> tuple[int, float, str]:
    found = number(value)
    if found is None:
        return 1, 0.0, text(value).casefold()
    return (2, 0.0, "") if math.isnan(found) else (0, found, "")


# --- pages ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Paged:
    """What the view of a table says of its page: number `page` of `pages`, both from 1, of up to `size` rows each;
    `matching` of `total` rows fit what was asked for."""

    page: int
    pages: int
    size: int
    matching: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Page(Generic[T]):
    """Page number `page` of `pages`, both from 1, of `matching` rows."""

    rows: Sequence[T]
    page: int
    pages: int
    size: int
    matching: int

    def of(self, total: int) -> dict[str, int]:
        """The fields of `Paged`."""
        return {name: getattr(self, name) for name in ("page", "pages", "size", "matching")} | {
            "total": total
        }


def page_of(rows: Sequence[T], page: int, size: int) -> Page[T]:
    """Page number `page`, from 1, of `size` rows each; past the end it is the last."""
    pages = max(1, -(-len(rows) // size))
    page = min(max(1, page), pages)
    shown = rows[(page - 1) * size : page * size]
    return Page(rows=shown, page=page, pages=pages, size=size, matching=len(rows))


# --- files ------------------------------------------------------------------------------------------


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A whole table as CSV that a spreadsheet shows and does not execute, lines ended as RFC 4180 wants it.

    A spreadsheet takes a cell that begins with ``=``, ``+``, ``-`` or ``@`` for a formula, and user code may have named
    a hyper-parameter or a failure so. Such a text gets an apostrophe before it, which spreadsheets hide (OWASP, "CSV
    Injection"). Every text stands in quotes: where commas are decimal marks a spreadsheet parts cells at semicolons,
    and what follows one would be a cell of its own. Numbers stay numbers.
    """
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([_harmless(cell) for cell in row] for row in chain([header], rows))
    return file.getvalue()


def _harmless(cell: Cell) -> Cell:
    if isinstance(cell, str) and cell.lstrip(" ").startswith(_FORMULA):
        return f"'{cell}"
    return cell
