"""Message from a new supervisor to its launcher (`cerebro.local.cluster`), over a pipe: recorded, busy or refused.

The launcher blocks on the pipe instead of polling files. A supervisor that dies silently also closes the
pipe.
"""

from __future__ import annotations

import os
import select
from enum import StrEnum


class Announcement(StrEnum):
    """Outcome of a supervisor's start."""

    RECORDED = "recorded"  # the cluster's record is on disk; it shows the further progress
    BUSY = "busy"  # another supervisor runs, starts or cleans this home
    REFUSED = "refused"  # it cannot start; the message says why
    SILENT = "silent"  # the supervisor ended or sent no message in time


def announce(descriptor: int, what: Announcement, message: str = "") -> None:
    """Send a message and close the pipe. Without a launcher (negative descriptor, or it ended) do nothing."""
    if descriptor < 0:
        return
    try:
        os.write(descriptor, f"{what} {message}".encode())
        os.close(descriptor)
    except OSError:  # the launcher was killed or does not listen
        pass


def receive(descriptor: int, timeout_s: float) -> tuple[Announcement, str]:
    """Wait for the supervisor's message; return it and its text. The caller has closed its copy of the writing end."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    if not poller.poll(max(timeout_s, 0.0) * 1000):
        return Announcement.SILENT, f"it text nothing for {timeout_s:g} s"
    text = os.read(descriptor, 65536).decode(errors="replace")
    if not text:
        return Announcement.SILENT, "it ended at once"
    what, _, message = text.partition(" ")
    return Announcement(what), message
