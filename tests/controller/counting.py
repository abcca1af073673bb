"""How much work a function does, apart from how long it takes on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(function: Callable[[], Any]) -> int:
    """How many functions it calls in all, and built-in ones; each value that a generator gives counts as well."""
    count = 0

    def see(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
