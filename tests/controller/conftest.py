"""Fixtures for all controller tests."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from controller.scaling.autoscaler import forecast


@pytest.fixture(scope="session", autouse=True)
def make_all_samples() -> Iterator[None]:
    """Lift the forecast's time limit, so that results do not depend on the machine's speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "LIMIT_S", math.inf)
        yield
