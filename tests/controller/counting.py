"""How much work a function does, apart from how long it takes on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(function: Callable[[], Any]) -> int:
    """How many lines of Python it runs in all, each turn of a loop anew, also of one within a line."""
    count = 0

    def see(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return see

    before = sys.gettrace()
    sys.settrace(see)
    try:
        function()
    finally:
        sys.settrace(before)
    return count
