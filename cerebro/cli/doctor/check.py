"""A finding of ``cerebro doctor``, and what the checks look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from cerebro.local.home import ClusterHome, ClusterInfo


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"  # as it should be
    WARN = "warn"  # works, but not as well or as long as it could
    FAIL = "fail"  # something will not work


class Finding(NamedTuple):
    """What was found, and what to do about it (empty if nothing)."""

    verdict: Verdict
    message: str
    mend: str = ""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is examined: a home, the user's environment, the number of workers, the cluster if one runs."""

    home: ClusterHome
    environment: Mapping[str, str]
    workers: int
    info: ClusterInfo | None


def ok(message: str) -> Finding:
    """Nothing to do."""
    return Finding(Verdict.OK, message)


def warn(message: str, mend: str) -> Finding:
    """Something that may bite later."""
    return Finding(Verdict.WARN, message, mend)


def fail(message: str, mend: str) -> Finding:
    """Something that does not work."""
    return Finding(Verdict.FAIL, message, mend)
