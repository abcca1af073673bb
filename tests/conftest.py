"""What tests of every area share."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.e2e.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def pytest_runtest_setup() -> None:
    """Where time is limited (`.ci/run`), tests that it has no room for are skipped, rather than all of them lost."""
    end = os.environ.get("NO_TEST_STARTS_AFTER")
    if end and time.time() > float(end):
        pytest.skip("no time is left: NO_TEST_STARTS_AFTER has passed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a module."""
    with chromium() as started:
        yield started
