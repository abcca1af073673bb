"""The process that user code is forked into."""

from __future__ import annotations

import subprocess
import sys

ORPHANED = """
import os, signal, time
from cerebro.worker.agent import forking

fork, own = os.fork, os.getpid()

def to_an_orphan():
    if fork():
        os.kill(own, signal.SIGKILL)
    while os.getppid() == own:
        time.sleep(0.001)
    return 0

os.fork = to_an_orphan
forking.serve(lambda unread: bytes(os.write(1, b"worked") * 0))
"""


def test_a_process_whose_parent_died_as_it_was_forked_does_nothing() -> None:
    """Nobody would end it: its leash holds it to a parent that it still has."""
    # All of them write to the pipe, which ends with the last of them.
    found = subprocess.run([sys.executable, "-c", ORPHANED], capture_output=True, timeout=60, check=False)
    assert found.stdout == b""
