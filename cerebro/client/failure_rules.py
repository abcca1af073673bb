"""Failure rules of a run, as its user writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FailureRule:
    """What follows from failures whose log has something in it.

    Attributes:
        name: that the failure is labelled with.
        pattern: a regular expression of Python's `re`, of at most 200 characters; searched for in the last 64 KiB of
            the log of a failed attempt, and in what it failed of. ``^`` and ``$`` are of each line.
        action: ``"label"``: nothing else. ``"no_retry"``: there is no other attempt. ``"retry_elsewhere"``: there is
            one, on another worker if one can, until `max_attempts` are used up.
    """

    name: str
    pattern: str
    action: Literal["label", "no_retry", "retry_elsewhere"] = "label"
