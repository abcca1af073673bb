"""A cluster of three workers, and an adapter that watches it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controller.kubernetes.emulator import Emulator
from tests.controller.kubernetes.pods import pod
from tests.controller.kubernetes.watching import Watched


@pytest.fixture
def emulator() -> Emulator:
    emulator = Emulator()
    emulator.scale(3)
    for ordinal in range(3):
        emulator.put("pods", pod(ordinal))
    return emulator


@pytest.fixture
def watched(emulator: Emulator) -> Iterator[Watched]:
    with Watched(emulator).watching() as watched:
        watched.sees_the_truth()
        yield watched
