"""What tests of every area share."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def pytest_runtest_setup() -> None:
    """Where time is limited (`.ci/run`), tests that it has no room for are skipped, rather than all of them lost."""
    end = os.environ.get("NO_TEST_STARTS_AFTER")
    if end and time.time() > float(end):
        pytest.skip("no time is left: NO_TEST_STARTS_AFTER has passed")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A test may print and log any text: of a report that goes to another process, UTF-8 carries all."""
    return _sendable((yield))


def _sendable(report: Any) -> Any:
    match report:
        case str():
            return report.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_sendable(key): _sendable(value) for key, value in report.items()}
        case list() | tuple():
            return type(report)(map(_sendable, report))
        case _:
            return report


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a module."""
    with chromium() as started:
        yield started
