"""Tables as CSV that a spreadsheet shows and does not execute.

A spreadsheet takes a cell that begins with ``=``, ``+``, ``-`` or ``@`` for a formula, and user code may have named a
hyper-parameter or a failure so. Such a text gets an apostrophe before it, which spreadsheets hide (OWASP, "CSV
Injection"). Every text stands in quotes: where commas are decimal marks a spreadsheet parts cells at semicolons, and
what follows one would be a cell of its own. Numbers stay numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from dispatcher.reading.columns import Cell

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A whole table, lines ended as RFC 4180 wants it."""
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow([_harmless(name) for name in header])
    writer.writerows([_harmless(cell) for cell in row] for row in rows)
    return file.getvalue()


def _harmless(cell: Cell) -> Cell:
    if isinstance(cell, str) and cell.lstrip(" ").startswith(_FORMULA):
        return f"'{cell}"
    return cell
