"""A dispatcher with one experiment."""

from __future__ import annotations

import pytest

from tests.dispatcher.fakes import Bench
from tests.dispatcher.stories import running_story


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.add(running_story())
    return bench
