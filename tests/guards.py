"""Rules for each test: no thread outlives it, and only marked tests start processes.

A pytest plugin, loaded by `tests/conftest.py`. It also protects failure reports from an error of CPython.
"""

from __future__ import annotations

import ast
import gc
import multiprocessing.util
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest

from tests.waiting import HANG_S

_LIBRARY_THREADS = {
    "fsspecIO": "fsspec keeps one event loop per process",
    "tqdm_monitor": "tqdm keeps one monitor per process",
    "asyncio_": "the default pool of an event loop, such as Playwright's, which ends with the loop",
    "Dummy-": "a native pool of torch or OpenMP that called Python once",
}
"""Prefix of a thread's name -> the library that keeps it for the whole process."""

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
_started: list[str] = []
"""Processes started by the current test."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Watch for processes, protect `ast.parse`, and seed hypothesis from the test order's seed."""
    seed = config.getoption("randomly_seed", None)
    if isinstance(seed, int) and hypothesis.core.global_force_seed is None:  # --hypothesis-seed wins
        hypothesis.core.global_force_seed = seed  # type: ignore[assignment]
    sys.addaudithook(_note_start)
    spawn = multiprocessing.util.spawnv_passfds

    def noted(path: bytes, args: Any, passfds: Any) -> int:
        _started.append(f"multiprocessing: {args}"[:200])
        return spawn(path, args, passfds)

    multiprocessing.util.spawnv_passfds = noted
    ast.parse = undisturbed(ast.parse)


def _note_start(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and arguments[1] == ["uname", "-p"]:
        return  # `platform.processor()`, called by the import of Keras
    if event in _STARTS:
        _started.append(f"{event}: {arguments[1] if event == 'subprocess.Popen' else arguments}"[:200])


def undisturbed(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return `parse` for one thread at a time, without garbage collection.

    Until 3.13, CPython counts the depth of all conversions to `ast` objects of an interpreter in one variable. Two that
    overlap (in two threads, or because a finalizer formats a traceback) raise ``SystemError: AST constructor recursion
    depth mismatch``. pytest parses the source of each failed test, so the report would fail.
    """
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

    def parsed(*arguments: Any, **keywords: Any) -> Any:
        with lock:
            is_collecting = gc.isenabled()
            gc.disable()
            try:
                return parse(*arguments, **keywords)
            finally:
                if is_collecting:
                    gc.enable()

    return parsed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """`-q` omits the header."""
    seed = terminalreporter.config.getoption("randomly_seed", None)
    if seed is not None:
        terminalreporter.write_line(f"the same order and examples again: --randomly-seed={seed}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Reset the count: processes of the last test have ended, and this test's fixtures may start new ones."""
    _started.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests whose fixtures start processes or run commands, before `-m` selects."""
    for item in items:
        for name in ("processes", "commands"):
            if isinstance(item, pytest.Function) and name in item.fixturenames:
                item.add_marker(name)


@pytest.fixture(scope="session")
def processes() -> None:
    """Requested by each fixture that starts processes; its tests run in the serial stage."""


@pytest.fixture(scope="session")
def commands() -> None:
    """Requested by fixtures whose process only answers, such as `helm` or a database: load changes no result."""


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, or that starts a process without a mark.

    Threads of fixtures with a wider scope, which are set up earlier, may stay.
    """
    before = set(threading.enumerate())
    yield
    if _left(before):
        gc.collect()  # unreferenced pools end their threads
    for thread in _left(before):
        thread.join(HANG_S)
    left = _left(before)
    is_marked = any(request.node.get_closest_marker(name) for name in ("processes", "commands"))
    started = [] if is_marked else _started[:]
    frames = sys._current_frames()
    stacks = [
        f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident])[-4:])}"
        for thread in left
        if thread.ident in frames
    ]
    if left:
        pytest.fail("these threads outlive the test; end them in it:\n" + "\n".join(stacks), pytrace=False)
    if started:
        pytest.fail(
            "the test starts processes: mark it with pytest.mark.processes, or let the fixture that starts them ask "
            "for the fixture `processes`:\n" + "\n".join(started),
            pytrace=False,
        )


def _left(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and not thread.name.startswith(tuple(_LIBRARY_THREADS))
    ]
