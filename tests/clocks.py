"""Replace the clock of chosen modules.

A clock for the whole process would stall the event loops of servers that other fixtures keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest


def set_monotonic(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float], *modules: ModuleType) -> None:
    """Replace `time.monotonic` in these modules until the end of the test."""
    for module in modules:
        monkeypatch.setattr(module, "time", SimpleNamespace(**{**vars(time), "monotonic": clock}))
