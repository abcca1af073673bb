"""Forecasts in tests make all their samples, on a slow machine as well."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from controller.scaling.autoscaler import forecast


@pytest.fixture(scope="session", autouse=True)
def make_all_samples() -> Iterator[None]:
    """Lift the time limit, which depends on the machine's speed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast, "LIMIT_S", math.inf)
        yield
