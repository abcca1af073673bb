"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"  # works, but not as one may expect
    UNKNOWN = "?"  # could not be looked up
    FAIL = "FAIL"  # nothing is made


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was looked at, what is so, and what to do about it."""

    verdict: Verdict
    name: str
    message: str
    mend: str = ""


def ok(name: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(verdict=Verdict.OK, name=name, message=message)


def warn(name: str, message: str, mend: str = "") -> Finding:
    """Something to know."""
    return Finding(verdict=Verdict.WARN, name=name, message=message, mend=mend)


def unknown(name: str, message: str, mend: str = "") -> Finding:
    """Something that could not be looked up."""
    return Finding(verdict=Verdict.UNKNOWN, name=name, message=message, mend=mend)


def fail(name: str, message: str, mend: str = "") -> Finding:
    """Something to mend first."""
    return Finding(verdict=Verdict.FAIL, name=name, message=message, mend=mend)
