"""Detect state in user code's variables that a savepoint would miss.

`Savepoints` creates a `Variables` at the first batch and asks for problems before it takes an undeclared savepoint.
Nothing is saved or changed here.

A savepoint contains only declared state. A running sum in a variable of `train` would silently restart at zero. So if
user code only tracks its optimizer, its variables are inspected: those changed since before the loop, and those that
count batches, which `enumerate` starts at 0. State outside values, such as another iterator's position, is not visible.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
import xxhash

import cerebro

_METRIC = ("update", "compute", "reset")
"""Methods of metric objects, such as torchmetrics'."""

Marks = dict[tuple[CodeType, str], Any]
"""Function and variable -> a mark that is equal while the value is unchanged."""

_DEEP, _MANY, _LARGE = 3, 1_000, 1 << 20
"""Limits of an inspection: depth, items and bytes."""

_LIBRARIES = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_CEREBRO = tuple(f"{path}/" for path in cerebro.__path__)
"""Inspected wherever it is installed: its loops have the user's spec in a variable."""


class Variables:
    """Variables of the functions between user code's loop and the platform's call.

    Args:
        outer: the platform's function that calls user code.
        inner: the platform's generator that returns batches to user code's loop.
        held: identities of values that savepoints contain anyway.
    """

    def __init__(self, outer: CodeType, inner: CodeType, held: Collection[int]) -> None:
        self._outer, self._inner, self._held = outer, inner, held
        self._previous_marks = self._marks()

    def problem(self, batches: int) -> str:
        """Return why resuming without these variables would differ, or "".

        Args:
            batches: number of batches returned since creation.
        """
        now = self._marks()
        if now is None or self._previous_marks is None:
            return "reads the data loader in a thread or a function of its own"
        for (code, name), mark in now.items():
            if code not in {known for known, _ in self._previous_marks}:
                return f"goes on with its loop in another function, {code.co_name}()"
            if (code, name) in self._previous_marks:
                if self._previous_marks[code, name] != mark:
                    return f"keeps something in its variable {name!r}"
            elif mark in (("int", batches - 1), ("int", batches)):
                return f"counts batches in its variable {name!r}, which would start again"
        return ""

    def _marks(self) -> Marks | None:
        """Return the variables' marks; `None` if the loop is in another thread or not below user code's call."""
        frame: FrameType | None = sys._getframe(1)
        found: Marks = {}
        is_users = False
        while frame is not None and frame.f_code is not self._outer:
            file = frame.f_code.co_filename
            if is_users and (file.startswith(_CEREBRO) or not file.startswith(_LIBRARIES)):
                found |= {
                    (frame.f_code, name): self._mark(value, 0) for name, value in frame.f_locals.items()
                }
            is_users = is_users or frame.f_code is self._inner
            frame = frame.f_back
        return found if frame is not None and is_users else None

    def _mark(self, value: Any, depth: int) -> Any:
        if not isinstance(value, type) and all(hasattr(value, name) for name in _METRIC):
            # Its sums are in no state_dict. Without a count, it is equal to no later one.
            return id(value), getattr(value, "update_count", object())
        is_code = isinstance(value, (type, CodeType)) or (
            callable(value) and not hasattr(value, "state_dict")
        )
        if is_code or id(value) in self._held or getattr(value, "gi_code", None) is self._inner:
            return id(value)
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
            # The type distinguishes counts from truth values; the text makes NaN equal to itself.
            return (
                (type(value).__name__, value) if type(value) is int else (type(value).__name__, repr(value))
            )
        if isinstance(value, torch.Tensor):
            return id(value), value._version
        if isinstance(value, np.ndarray):
            is_small = value.nbytes <= _LARGE and not value.dtype.hasobject
            return id(value), xxhash.xxh3_64_intdigest(value.tobytes()) if is_small else 0
        if isinstance(value, torch.nn.Module):
            return id(value), tuple(tensor._version for tensor in (*value.parameters(), *value.buffers()))
        if hasattr(value, "state_dict") or hasattr(value, "__next__"):
            return object()  # an opaque state, equal to no later one
        # A tuple is compared by content: an equal one may be another object.
        return type(value) is tuple or id(value), tuple(self._inside(value, depth))

    def _inside(self, value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, (list, tuple, set, frozenset, deque)):
            items: Collection[Any] = value
        else:
            held = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
            items = [*held, *held.values()] if len(held) <= _MANY else held
        yield len(items)
        if depth < _DEEP and len(items) <= 2 * _MANY:
            for item in items:
                yield self._mark(item, depth + 1)
