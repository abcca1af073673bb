"""`FailureRule`: a user's reaction to failed attempts whose log matches a pattern.

A plain record. `cerebro.contract.failure_rules` validates it, and workers search the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class FailureRule:
    """Reaction to a failed attempt whose log matches a pattern.

    Attributes:
        name: label of the failure on the page and in `cerebro status`.
        pattern: regular expression of Python's `re`, at most 200 characters. It is searched for in the last 64 KiB of
            the attempt's log and in its error message; ``^`` and ``$`` match at every line.
        action: ``"label"`` (default): only label the failure. ``"no_retry"``: no further attempt.
            ``"retry_elsewhere"``: retry on another worker if possible, up to `max_attempts`.

    Example::

        FailureRule("solver", "cusolver.*failed", "retry_elsewhere")
    """

    name: str
    pattern: str
    action: Literal["label", "no_retry", "retry_elsewhere"] = "label"
