"""The process scan handles names that are not text."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cerebro.local.supervision import processes
from cerebro.runtime.isolation.process_exit import fork
from cerebro.runtime.usage.memory import peak_bytes

pytestmark = pytest.mark.processes

_PR_SET_NAME = 15


@pytest.fixture
def child() -> Iterator[int]:
    """Start a child process whose name is not valid UTF-8."""
    library, (ready, named) = ctypes.CDLL(None), os.pipe()
    pid = fork()
    if not pid:
        try:
            library.prctl(_PR_SET_NAME, b"\xff) 1", 0, 0, 0)
            os.write(named, b"1")
            os.close(named)
            os.kill(os.getpid(), 19)
        finally:
            os._exit(0)
    os.read(ready, 1)
    yield pid
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    os.close(ready)
    os.close(named)


def test_a_process_name_with_invalid_bytes_hides_no_process(child: int) -> None:
    """`cerebro status` scans all processes of the machine."""
    assert processes.identify(child) is not None
    assert processes.resident_bytes([os.getpid()])[os.getpid()] > processes.resident_bytes([child])[child] > 0
    assert peak_bytes(Path(f"/proc/{child}")) > 0


def test_a_thread_is_no_process() -> None:
    """A pid may become the number of a thread after its process has ended."""
    with ThreadPoolExecutor(1) as pool:
        thread = processes.ProcessId(pool.submit(threading.get_native_id).result(), "boot/1")
        assert not processes.send(thread, signal.SIGCONT)
        assert processes.wait_gone(thread, 0.0)
