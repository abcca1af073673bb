"""Count the work of a function independently of the machine's speed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(function: Callable[[], Any]) -> int:
    """Return the number of executed Python lines, including each loop iteration."""
    count = 0

    def observe(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return observe

    before = sys.gettrace()
    sys.settrace(observe)
    try:
        function()
    finally:
        sys.settrace(before)
    return count
