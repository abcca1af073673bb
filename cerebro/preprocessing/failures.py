"""Failed rows in words: each in a line, the first with its traceback."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.data.manifests import FailedRow

NAMED = 20
"""Rows named at most."""


def failed_text(rows: Sequence[FailedRow]) -> str:
    """What is put behind a sentence about failed rows: a line per row, then the first one's traceback."""
    named = [f"  row {row.id!r}: {row.error.splitlines()[0] if row.error else ''}" for row in rows[:NAMED]]
    more = [f"  and {len(rows) - NAMED:,} more"] if len(rows) > NAMED else []
    return "\n".join([":", *named, *more, f"The first, row {rows[0].id!r}:", rows[0].traceback.rstrip()])
