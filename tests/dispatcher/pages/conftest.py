"""An app over a store with two workers, and a signed-in browser."""

from __future__ import annotations

import pytest

from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.stories import status


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.statuses = [status("worker-0"), status("worker-1")]
    return bench


@pytest.fixture
def browser(bench: Bench) -> Browser:
    return bench.signed_in()
