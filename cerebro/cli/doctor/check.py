"""A finding of ``cerebro doctor``, and what the checks look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cerebro.local.home import ClusterHome, ClusterInfo


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"  # as it should be
    WARN = "warn"  # works, but not as well or as long as it could
    FAIL = "fail"  # something will not work


@dataclass(frozen=True, kw_only=True)
class Check:
    """What was looked at, what was found, and what to do about it (empty if nothing)."""

    name: str
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


def good(name: str, message: str) -> Check:
    """Nothing to do."""
    return Check(name=name, verdict=Verdict.OK, message=message)


def doubtful(name: str, message: str, mend: str) -> Check:
    """Something that may bite later."""
    return Check(name=name, verdict=Verdict.WARN, message=message, mend=mend)


def failed(name: str, message: str, mend: str) -> Check:
    """Something that does not work."""
    return Check(name=name, verdict=Verdict.FAIL, message=message, mend=mend)
