"""Executables are found on a given PATH, their output is shown live, and Ctrl-C ends them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cerebro.cloud.runner import CommandError, Runner
from tests.waiting import HANG_S


class Bench:
    """A folder on PATH, a log, and the shown lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.log = folder / "log" / "cluster.log"

    def runner(self, *, is_dry: bool = False) -> Runner:
        environment = {"PATH": f"{self.folder}:/usr/bin:/bin", "GREETING": "hello"}
        return Runner(environment=environment, log=self.log, show=self.lines.append, is_dry=is_dry)

    def script(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A PATH with only the shell's tools and the test's executables."""
    return Bench(tmp_path)


def test_output_is_shown_and_kept(bench: Bench) -> None:
    """Both streams, line by line, with the given environment and without a shell."""
    bench.script("tool", 'echo "$GREETING $1"; echo oops >&2')
    bench.runner().change("tool", "two words; rm -rf /")
    assert bench.lines == ["$ tool 'two words; rm -rf /'", "  hello two words; rm -rf /", "  oops"]
    assert "hello two words" in bench.log.read_text()


def test_a_failure_keeps_status_and_last_lines(bench: Bench) -> None:
    """The last fifteen lines."""
    bench.script("tool", "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); done; exit 3")
    with pytest.raises(CommandError) as failure:
        bench.runner().change("tool")
    assert failure.value.status == 3
    assert failure.value.last_lines == tuple(f"line {index}" for index in range(25, 40))


_INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from cerebro.cloud.runner import Runner

def show(line):
    if line.endswith("ready"):
        os.kill(os.getpid(), signal.SIGINT)

log = Path(sys.argv[1]) / "log"
runner = Runner(environment={"PATH": sys.argv[1] + ":/usr/bin:/bin"}, log=log, show=show, is_dry=False)
try:
    runner.change("tool")
except KeyboardInterrupt:
    print("passed on")
"""


def test_ctrl_c_ends_the_executable_and_is_passed_on(bench: Bench) -> None:
    """The runner waits for the executable, so it cannot continue in the background.

    The test uses a separate process, since other libraries (OR-Tools) install SIGINT handlers.
    """
    bench.script(
        "tool", "trap 'echo ended >> \"$0.ended\"; exit 130' INT; echo ready; while :; do sleep 0.01; done"
    )
    interrupted = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(bench.folder)],
        capture_output=True, text=True, timeout=HANG_S, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert interrupted.stdout == "passed on\n"
    assert (bench.folder / "tool.ended").read_text() == "ended\n"
