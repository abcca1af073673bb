"""Failed rows in words: each in a line."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.data.manifests import FailedRow

NAMED = 20
"""Rows named at most."""


def named(rows: Sequence[FailedRow]) -> str:
    """What is put behind a sentence about failed rows: a line per row. Their tracebacks are left out.

    The sentence has no colon at its end: where there is one line only, it stands alone.
    """
    told = [f"  row {row.id!r}: {row.error.partition(chr(10))[0]}" for row in rows[:NAMED]]
    more = [f"  and {len(rows) - NAMED:,} more"] if len(rows) > NAMED else []
    return "\n".join(["", *told, *more])
