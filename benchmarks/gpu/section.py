"""The input and output of a section."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The machine and the size of the measurements.

    Attributes:
        kind: type of the device, `"cuda"` or `"cpu"`.
        is_small: True for a rehearsal with small models and few rows.
        folder: existing empty folder for the section's files.
        deadline: `time.monotonic()` when a section stops to start work.
    """

    kind: str
    is_small: bool
    folder: Path
    deadline: float

    @property
    def device(self) -> torch.device:
        """Device with its number."""
        return torch.device("cuda:0" if self.kind == "cuda" else "cpu")

    @property
    def is_gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.kind == "cuda"

    def remaining_s(self) -> float:
        """Return the seconds until the deadline."""
        return self.deadline - time.monotonic()

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the seconds of a piece of work on the device."""
        self.synchronize()
        began = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - began


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        what: the measured quantity or the check.
        measured: the finding in words, with units.
        values: the same numbers for programs.
        holds: True or False for a check; `None` for a figure without one.
        text: longer text, such as a message to the user; for the JSON file.
    """

    what: str
    measured: str
    values: dict[str, Any]
    holds: bool | None = None
    text: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the row for the JSON file."""
        return asdict(self)
