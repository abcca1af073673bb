"""Stack dumps of user-code processes, written to the task's log on request.

The agent's `ChildProcess` and `ChildGroup` call `dump`, for a suspected hang or a user's request; the task loop calls
`enable`. A process dumps its own stacks with Python's faulthandler, even when busy, without a debugger or special
rights. A process stopped by a signal or waiting for a disk cannot respond within the limit of 1 s.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from cerebro.worker.child.fork_server import members

_SIGNAL = signal.SIGUSR1
_PAUSE_S = 0.02
_WAIT_S = 1.0
"""Maximum seconds to wait for the answers."""
_QUIET_S = 0.1
"""Seconds without growth after which a dump is complete. A busy machine may pause it between lines."""
_MAX_BYTES = 16 << 10
"""Maximum bytes of a dump."""


def enable() -> None:
    """Make this process and its forks dump stacks at a signal, to the current descriptor 2."""
    faulthandler.register(_SIGNAL, file=2, all_threads=True, chain=False)


@contextmanager
def enabled() -> Iterator[None]:
    """Dump stacks at a signal within the block."""
    enable()
    try:
        yield
    finally:
        faulthandler.unregister(_SIGNAL)


class DumpTarget(NamedTuple):
    """Target of a request.

    Attributes:
        group: process group.
        log: file it writes to.
    """

    group: int
    log: Path


def dump(groups: Sequence[DumpTarget]) -> list[str]:
    """Request dumps from all groups at once, and return the new text in each log.

    Returns:
        Text by group, newest calls first; "" without an answer.
    """
    logs = [_Log(target.log) for target in groups]
    signalled = [log if _signal(target.group) else None for target, log in zip(groups, logs, strict=True)]
    waited_for = [log for log in signalled if log is not None]
    deadline = time.monotonic() + _WAIT_S
    while waited_for and (now := time.monotonic()) < deadline:
        time.sleep(min(_PAUSE_S, deadline - now))
        waited_for = [log for log in waited_for if not log.is_written()]
    return [log.text() if log is not None else "" for log in signalled]


_WORDS = {
    "R": "runs",
    "S": "waits",
    "D": "waits for a disk or a volume, where no signal reaches it",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
}


def states(group: int) -> str:
    """Describe the kernel state of a group's processes, for people."""
    descriptions = []
    for process in members(group):
        state = next((value for name, value in _status(process) if name == "State"), "")
        descriptions.append(f"process {process} {_WORDS.get(state[:1], 'has ended')}")
    return ", ".join(descriptions) or "none is left"


class _Log:
    """The text appended to a file after creation."""

    def __init__(self, path: Path) -> None:
        self._path, self._begin = path, _size(path)
        self._end, self._grew = self._begin, 0.0

    def is_written(self) -> bool:
        """True after new text has arrived and then stopped growing. Call repeatedly."""
        size, now = _size(self._path), time.monotonic()
        if size < self._begin:  # its middle was removed in the meantime
            self._begin, self._end = max(0, size - _MAX_BYTES), 0
        if size > self._end:
            self._end, self._grew = size, now
        return self._end > self._begin and now - self._grew >= _QUIET_S

    def text(self) -> str:
        """Return the new text, limited to a failure's maximum."""
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._begin)
            return file.read(_MAX_BYTES).decode(errors="replace").strip()
        return ""


def _signal(group: int) -> bool:
    """Signal processes that can respond. Return True if there are any."""
    responsive = [process for process in members(group) if _is_enabled(process)]
    for process in responsive:
        with suppress(ProcessLookupError):
            os.kill(process, _SIGNAL)
    return bool(responsive)


def _is_enabled(process: int) -> bool:
    """True if it handles the signal, which would kill it otherwise."""
    for name, value in _status(process):
        if name == "SigCgt":
            return bool(int(value, 16) >> (_SIGNAL - 1) & 1)
    return False


def _status(process: int) -> Iterator[tuple[str, str]]:
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            yield name, value.strip()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
