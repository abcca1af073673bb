"""Where a process of user code is: the stacks of its threads, which it writes into its task's log when it is asked.

A process says so by itself, by Python's faulthandler, whatever it is busy with: no debugger is needed, and no right to
look into it. One that a signal has stopped, or that waits for a disk, cannot answer.
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

from cerebro.worker.agent.forking import members

_SIGNAL = signal.SIGUSR1
_PAUSE_S = 0.02
_QUIET_S = 0.1
"""A log that has not grown for so long is at its end: on a busy machine a process may halt between two lines."""
_MOST_BYTES = 16 << 10


def offer() -> None:
    """Have this process, and those that it forks, write their stacks at a signal: to descriptor 2, whatever that is by
    then."""
    faulthandler.register(_SIGNAL, file=2, all_threads=True, chain=False)


@contextmanager
def offered() -> Iterator[None]:
    """`offer`, for as long as this lasts."""
    offer()
    try:
        yield
    finally:
        faulthandler.unregister(_SIGNAL)


class Asked(NamedTuple):
    """Whom to ask.

    Attributes:
        group: process group.
        log: into which it writes.
    """

    group: int
    log: Path


def written(groups: Sequence[Asked], *, within_s: float = 1.0) -> list[str]:
    """Ask the processes of groups that have offered to, all at once; returns what came into the log of each.

    Args:
        within_s: so long is waited at most, for all of them together.

    Returns:
        By group: newest calls first, empty if none of its processes answers.
    """
    logs = [_Log(asked.log) for asked in groups]
    told = [log if _signal(asked.group) else None for asked, log in zip(groups, logs, strict=True)]
    waited_for = [log for log in told if log is not None]
    deadline = time.monotonic() + within_s
    while waited_for and (now := time.monotonic()) < deadline:
        time.sleep(min(_PAUSE_S, deadline - now))
        waited_for = [log for log in waited_for if not log.is_written()]
    return [log.text() if log is not None else "" for log in told]


_WORDS = {
    "R": "runs",
    "S": "waits",
    "D": "waits for a disk or a volume, where no signal reaches it",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
}


def states(group: int) -> str:
    """What the kernel says of the processes of a group, for people."""
    told = []
    for process in members(group):
        state = next((value for name, value in _status(process) if name == "State"), "")
        told.append(f"process {process} {_WORDS.get(state[:1], 'has ended')}")
    return ", ".join(told) or "none is left"


class _Log:
    """What comes into a file from now on."""

    def __init__(self, path: Path) -> None:
        self._path, self._begin = path, _size(path)
        self._end, self._grew = self._begin, 0.0

    def is_written(self) -> bool:
        """Whether something came, and nothing more for a while. To be asked again and again."""
        size, now = _size(self._path), time.monotonic()
        if size < self._begin:  # its middle was left out meanwhile
            self._begin, self._end = max(0, size - _MOST_BYTES), 0
        if size > self._end:
            self._end, self._grew = size, now
        return self._end > self._begin and now - self._grew >= _QUIET_S

    def text(self) -> str:
        """Of it, as much as a failure has room for."""
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._begin)
            return file.read(_MOST_BYTES).decode(errors="replace").strip()
        return ""


def _signal(group: int) -> bool:
    """Whether there is somebody to answer."""
    asked = [process for process in members(group) if _has_offered(process)]
    for process in asked:
        with suppress(ProcessLookupError):
            os.kill(process, _SIGNAL)
    return bool(asked)


def _has_offered(process: int) -> bool:
    """Whether it catches the signal, which would end it otherwise."""
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
