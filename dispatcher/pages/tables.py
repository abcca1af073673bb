"""Tables: order, pages and CSV. Pure. Views of all tables use it; filters are in `dispatcher.models.query`."""

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
"""Value of a cell; `None` for a missing value."""

_NUMBERS = frozenset({int, float})
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


# --- order ------------------------------------------------------------------------------------------


def sort_keys(sort: str) -> list[tuple[str, bool]]:
    """Parse ``state,-best`` into (column, is descending), most important first."""
    keys = [key.strip() for key in sort.split(",") if key.strip()]
    return [(key.removeprefix("-"), key.startswith("-")) for key in keys]


def ordered(rows: Sequence[T], value: Callable[[T], Any], *, is_descending: bool) -> list[T]:
    """Sort rows by a value: numbers, then texts, then NaN. Missing values are last in both directions. Stable."""
    present = [(found, row) for row in rows if (found := value(row)) is not None]
    # Most columns contain only numbers, which need no key. NaN differs from itself.
    is_plain = all(type(found) in _NUMBERS and found == found for found, _ in present)
    present.sort(key=itemgetter(0) if is_plain else lambda each: _sort_key(each[0]), reverse=is_descending)
    missing = [row for row in rows if value(row) is None] if len(present) < len(rows) else []
    return [row for _, row in present] + missing


def text(value: Any) -> str:
    """Return the text of a value for search and comparison."""
    return value if isinstance(value, str) else json.dumps(value)


def number(value: Any) -> float | None:
    """Return the value as a number; `None` for other types, including truth values."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        float(value)
    except OverflowError:  # an integer that no float can represent
        return math.inf if value > 0 else -math.inf
    return value  # exact, also above 2**53


def _sort_key(value: Any) -> tuple[int, float, str]:
    found = number(value)
    if found is None:
        return 1, 0.0, text(value).casefold()
    return (2, 0.0, "") if math.isnan(found) else (0, found, "")


# --- pages ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Paged:
    """Fields of a table's page, counted from 1. `matching` of `total` rows match the query."""

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

    def fields(self, total: int) -> dict[str, int]:
        """Return the fields of `Paged`."""
        return {name: getattr(self, name) for name in ("page", "pages", "size", "matching")} | {
            "total": total
        }


def page_of(rows: Sequence[T], page: int, size: int) -> Page[T]:
    """Return page `page` (from 1) with up to `size` rows. Past the end, the last page."""
    pages = max(1, -(-len(rows) // size))
    page = min(max(1, page), pages)
    shown = rows[(page - 1) * size : page * size]
    return Page(rows=shown, page=page, pages=pages, size=size, matching=len(rows))


# --- files ------------------------------------------------------------------------------------------


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table as CSV (RFC 4180) that spreadsheets do not execute.

    A spreadsheet treats a cell that starts with ``=``, ``+``, ``-`` or ``@`` as a formula, and user code may choose
    names of hyperparameters and failures. Such texts get a leading apostrophe, which spreadsheets hide (OWASP, "CSV
    Injection"). All texts are quoted, because spreadsheets with decimal commas separate cells at semicolons. Numbers
    stay numbers.
    """
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([_escape_formula(cell) for cell in row] for row in chain([header], rows))
    return file.getvalue()


def _escape_formula(cell: Cell) -> Cell:
    if isinstance(cell, str) and cell.lstrip(" ").startswith(_FORMULA):
        return f"'{cell}"
    return cell
