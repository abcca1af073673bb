"""A call in a forked process returns its result or raises its error, and does not change the caller's state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cerebro.runtime.isolation import forked
from tests.waiting import HANG_S

CALLS = """
import os, signal, threading
from cerebro.errors import ConflictError, SpecError
from cerebro.runtime.isolation.forked import in_fork

def spoil():
    os.environ["LEFT"] = "1"
    return os.getpid()

def refuse():
    raise SpecError("no such model")

def odd():
    class Odd(Exception): pass
    raise Odd("of user code")

print(in_fork(spoil, "m00") != os.getpid(), "LEFT" in os.environ)
for call in (refuse, odd, lambda: os.kill(os.getpid(), signal.SIGKILL)):
    try:
        in_fork(call, "m00")
    except (SpecError, ConflictError) as error:
        print(type(error).__name__, error)
stop = threading.Event()
threading.Thread(target=stop.wait).start()
print(in_fork(os.getpid, "m00") == os.getpid())
stop.set()
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_call_in_a_fork_returns_only_its_result() -> None:
    """Exceptions reach the caller. A process with threads runs the call without a fork."""
    done = subprocess.run(
        [sys.executable, "-c", CALLS],
        env=os.environ | {"PYTHONUNBUFFERED": ""},  # buffered output is written once
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "True False",
        "SpecError no such model",
        "ConflictError Odd: of user code",
        "ConflictError the process of m00 ended with signal 9 before it had a result",
        "True",
    ], done.stderr


GARBAGE = """
import gc, os
from cerebro.runtime.isolation.process_exit import fork

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        os.write(1, b"collected " + str(os.getpid() == parent).encode())

parent = os.getpid()
gc.disable()
Cycle()
if fork() == 0:
    gc.collect()
    os._exit(0)
os.wait()
gc.collect()
"""


@pytest.mark.processes
def test_a_fork_does_not_collect_the_garbage_of_its_parent() -> None:
    """A finaliser may join a thread that only the parent has, and the fork would wait for ever."""
    done = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, text=True, check=True)
    assert done.stdout == "collected True"


def test_signals_are_not_blocked_after_a_failed_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no SIGTERM would end the process any more."""

    def fail() -> int:
        raise BlockingIOError("no process can be created")

    monkeypatch.setattr(forked, "fork", fail)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(BlockingIOError):
        forked.lasting_threads()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
