"""One call in a forked process: its changes to process state reach neither the caller nor later calls.

`cerebro.client.replay` trains each model `in_fork`; the worker's child calls `lasting_threads` before it forks task
processes. The result travels as a pickle.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from cerebro.errors import ConflictError
from cerebro.runtime.isolation.parent_death import end_with
from cerebro.runtime.isolation.process_exit import end_after, fork

Result = TypeVar("Result")

_HARMLESS = frozenset({"jemalloc_bg_thd"})


def lasting_threads() -> list[str]:
    """Return the names of the threads that a fork of this process would lose: all but the main thread."""
    _fork_once()
    own_thread, found = str(os.getpid()), []
    for entry in os.scandir("/proc/self/task"):
        with suppress(OSError):
            found += [(entry.name, Path(entry.path, "comm").read_text().strip())]
    return sorted(name for number, name in found if number != own_thread and name not in _HARMLESS)


def in_fork(work: Callable[[], Result], name: str) -> Result:
    """Call a function in a forked process; in this process if it has threads, which a fork would lose.

    Args:
        name: name of the work, for messages.

    Returns:
        The result, which can be pickled; an error of the function is raised here.

    Raises:
        ConflictError: the process died.
    """
    if lasting_threads():
        return work()
    parent, (read, write) = os.getpid(), os.pipe()
    pid, former_mask = _fork_with_signals_blocked()
    if pid == 0:

        def run() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)
            end_with(parent)
            os.close(read)
            content = _outcome(work)
            with os.fdopen(write, "wb") as file:
                file.write(content)

        end_after(run)
    os.close(write)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)
        with os.fdopen(read, "rb") as file:
            content = file.read()
    except BaseException:  # such as SystemExit at a signal: the caller now removes files that the fork uses
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code or not content:
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        raise ConflictError(f"the process of {name} ended with {how} before it had a result")
    result, error = pickle.loads(content)
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def _outcome(work: Callable[[], object]) -> bytes:
    try:
        return pickle.dumps((work(), None))
    except Exception as error:  # noqa: BLE001 - the caller raises it
        try:
            pickle.loads(content := pickle.dumps((None, error)))
        except Exception:  # noqa: BLE001 - an error of user code that can't be sent
            return pickle.dumps((None, ConflictError(f"{type(error).__name__}: {error}")))
        return content


def _fork_once() -> None:
    """Make libraries such as OpenBLAS end their threads, as they do before a fork."""
    pid, former_mask = _fork_with_signals_blocked()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)


def _fork_with_signals_blocked() -> tuple[int, set[int]]:
    """Fork; return the process id, 0 in the fork, and the signal mask that both processes must restore.

    The hooks around a fork would swallow the `SystemExit` of a signal handler.

    Raises:
        OSError: no process can be created. The mask is as before.
    """
    former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        return fork(), former_mask
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)
        raise
