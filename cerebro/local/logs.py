"""Output files of a local cluster's services: opened for appending, kept small, read from the end.

`ServiceProcess` opens them; ``cerebro logs`` and error messages read them. Logs of tasks are in their own folders and
are written by workers.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

_LARGEST_BYTES = 10_000_000
START_MARK = "--- started "


def open_log(path: Path) -> int:
    """Open a log for appending, write a line that marks the start of a process, and return the descriptor.

    A log of more than 10 MB is renamed to ``NAME.1`` first, which replaces an older one.
    """
    if path.exists() and path.stat().st_size > _LARGEST_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{START_MARK}{time.strftime('%Y-%m-%d %H:%M:%S')} ---\n".encode())
    except OSError:  # a full disk must not keep a service from running
        pass
    return descriptor


def tail(path: Path, lines: int, *, last_start: bool = False) -> list[str]:
    """Return the last lines of a log, or an empty list without a file.

    Args:
        path: the log.
        lines: maximum number of lines.
        last_start: True to return only lines of the newest process.
    """
    try:
        finished = subprocess.run(["tail", "-n", str(lines), str(path)], capture_output=True, check=False)
    except OSError:  # the program `tail` is missing; an error message must still be possible
        return []
    found = finished.stdout.decode(errors="replace").splitlines()
    if last_start:
        starts = [index for index, line in enumerate(found) if line.startswith(START_MARK)]
        found = found[starts[-1] + 1 :] if starts else found
    return found
