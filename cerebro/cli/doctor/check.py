"""Types of ``cerebro doctor``: `Case`, the input of each check, and `Finding`, its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from cerebro.local.home import ClusterHome, ClusterInfo


class Verdict(StrEnum):
    """Result of a check."""

    OK = "ok"  # No problem.
    WARN = "warn"  # Works, but less well or less long than it could.
    FAIL = "fail"  # Something will fail.


class Finding(NamedTuple):
    """Result of a check, with a remedy unless it is `OK`."""

    verdict: Verdict
    message: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Subject of the checks: home, environment, number of workers, and the cluster if one runs."""

    home: ClusterHome
    environment: Mapping[str, str]
    workers: int
    info: ClusterInfo | None


def ok(message: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(Verdict.OK, message)


def warn(message: str, remedy: str) -> Finding:
    """Return a finding that may cause problems later."""
    return Finding(Verdict.WARN, message, remedy)


def fail(message: str, remedy: str) -> Finding:
    """Return a finding that will cause failures."""
    return Finding(Verdict.FAIL, message, remedy)
