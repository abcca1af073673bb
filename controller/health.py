"""Whether the controller works: its loop turns, be it leading, a standby, or waiting for a store that is away."""

from __future__ import annotations

HUNG_S = 300.0
"""Longest honest turn: cutting a very large metadata table is one. Starting anew sooner would begin it ever again."""


def hung(turned: float, now: float) -> str:
    """What is wrong with a loop that last turned at `turned` (seconds, as `now`); empty if nothing is."""
    still_s = now - turned
    return f"the loop has not turned for {still_s:.0f} s" if still_s > HUNG_S else ""
