"""The log of a cluster's commands: what was run, what it printed, how it ended. Appended to, never read by the code."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path


class Journal:
    """Lines into a file; safe to make for a folder that has one."""

    def __init__(self, path: Path | None, now: Callable[[], datetime]) -> None:
        """No path: nothing is kept, as in a dry run."""
        self.path = path
        self._now = now

    def note(self, line: str) -> None:
        """Append a line with the time."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{self._now().isoformat(timespec='seconds')} {line}\n")
