"""The input and output of a section, and its parts: each has a time limit, and its failure is a row."""

from __future__ import annotations

import gc
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

GB = 1e9
_ON_CPU = 10
"""Factor on a part's limit in a rehearsal on a CPU."""
_ERROR = 300
"""Maximum characters of an error in the table; the JSON file has all."""


class PartTimeoutError(BaseException):
    """A part reached its limit. No `Exception`, so the measured code does not catch it."""


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


def part(setting: Setting, what: str, seconds: float, work: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """Yield the rows of one part of a section. Its failure, or its end at a limit, is a row, too.

    Call it in the main thread: a signal ends the part.

    Args:
        what: name of the part in such a row.
        seconds: limit of the part on a GPU. It never exceeds the section's deadline.
    """
    if setting.remaining_s() < 1:
        yield Row(what=what, measured="no time was left", values={})
        return
    limit_s = min(seconds * (1 if setting.is_gpu else _ON_CPU), setting.remaining_s())
    end = time.monotonic() + limit_s
    try:
        with _alarm_at(end):
            rows = iter(work())
        while True:
            with _alarm_at(end):
                row = next(rows, None)
            if row is None:
                return
            yield row
    except PartTimeoutError:
        yield Row(what=what, measured=f"ended at its limit of {limit_s:.0f} s", values={}, holds=False)
    except Exception as error:  # noqa: BLE001 - it is reported, and the other parts still run
        yield failed(what, error)
    finally:
        gc.collect()
        if setting.is_gpu:
            torch.cuda.empty_cache()  # no effect before CUDA starts


def failed(what: str, error: BaseException) -> Row:
    """Return the row of a part or section that raised an error."""
    line = f"{type(error).__name__}: {error}".strip()
    text = "".join(traceback.format_exception(error))
    return Row(what=what, measured=f"FAILED: {line[:_ERROR]}", values={}, holds=False, text=text)


@contextmanager
def _alarm_at(end: float) -> Iterator[None]:
    """Raise `PartTimeoutError` in the block at this time, or at the time of a block around it."""

    def on_alarm(*_: object) -> None:
        raise PartTimeoutError

    began = time.monotonic()
    outer_s, _ = signal.getitimer(signal.ITIMER_REAL)
    outer_end = began + outer_s if outer_s else None
    previous = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, _until(min(end, outer_end or end)))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        if outer_end is not None:
            signal.setitimer(signal.ITIMER_REAL, _until(outer_end))


def _until(end: float) -> float:
    """Return the seconds until a time, at least a moment: a timer of zero is none."""
    return max(0.001, end - time.monotonic())
