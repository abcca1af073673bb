"""The guards of `tests/guards.py` fail tests that break a rule."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent

GUARDED = """
import subprocess, sys, threading
import pytest

let_go = threading.Event()

@pytest.fixture
def kept():
    thread = threading.Thread(target=let_go.wait, name="kept")
    thread.start()
    yield
    let_go.set()
    thread.join()

@pytest.fixture
def started(processes):
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_ended(kept): pass
def test_left():
    threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()
def test_unmarked():
    subprocess.run([sys.executable, "-c", ""], check=True)
@pytest.mark.processes
def test_marked():
    subprocess.run([sys.executable, "-c", ""], check=True)
def test_marked_by_its_fixture(started): pass

@pytest.fixture
def rendered(commands):
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_that_runs_a_command(rendered): pass
"""


@pytest.fixture
def guarded(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Write a folder of test files."""
    monkeypatch.setenv("TEST_HANG_S", "0.1")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\nmarkers = processes\n    commands")
    pytester.makepyfile(GUARDED)
    return pytester


@pytest.mark.commands
def test_remaining_threads_and_unmarked_processes_are_named(guarded: pytest.Pytester) -> None:
    """Threads of a fixture may live as long as the fixture; marks of the test or its fixtures allow processes."""
    result = guarded.runpytest_subprocess("-p", "tests.guards", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=6, errors=2)
    result.stdout.fnmatch_lines_random(
        ["*ERROR*test_left*", "*ERROR*test_unmarked*", "*outlive the test*", "left:"]
    )


class Parsing:
    """Garbage whose finalizer parses, as in the report of an unraisable exception."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.parse("1 + 1")


def test_a_report_survives_garbage_that_parses() -> None:
    """With the plain `ast.parse` of CPython 3.11 each case raises SystemError."""
    source = "\n".join(f"x{line} = (a + b * {line}, [1, 2, 3])" for line in range(500))
    was = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(5):
            Parsing()
            ast.parse(source)
    finally:
        gc.set_threshold(*was)
