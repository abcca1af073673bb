"""Processes that parse user input have limits on output, time and memory."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from dispatcher.sandbox.bounded_processes import MAX_BYTES, BoundedProcesses
from tests.waiting import HANG_S

pytestmark = pytest.mark.commands


def test_a_long_answer_is_complete() -> None:
    """Also with a long question and a long answer."""
    question = json.dumps(["x" * 1000] * 3000).encode()
    said = BoundedProcesses("json.tool", at_once=1).run(question, timeout_s=HANG_S)
    assert json.loads(said.output) == json.loads(question)
    assert (said.code, said.is_late, said.is_cut) == (0, False, False)


def test_a_child_with_too_much_output_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output up to the limit counts and is marked as incomplete."""
    monkeypatch.setattr("dispatcher.sandbox.bounded_processes.MAX_BYTES", 100_000)
    said = BoundedProcesses("json.tool", at_once=1).run(
        json.dumps(["x" * 1000] * 3000).encode(), timeout_s=HANG_S
    )
    assert len(said.output) == 100_000 < MAX_BYTES
    assert (said.is_cut, said.is_late) == (True, False)


def test_a_child_over_its_cpu_limit_is_late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel's CPU limit ends it before the wall-clock timeout."""
    (tmp_path / "busy.py").write_text(
        "from dispatcher.sandbox.bounded_processes import limit_process\n"
        "limit_process(memory_bytes=1 << 30, cpu_s=1)\n"
        "while True: pass\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    said = BoundedProcesses("busy", at_once=1).run(b"", timeout_s=HANG_S)
    assert said.is_late


def test_a_child_may_exit_without_reading_its_input() -> None:
    """The child may exit before it reads the question."""
    said = BoundedProcesses("this", at_once=1).run(b"x" * 3_000_000, timeout_s=HANG_S)
    assert said.code == 0
    assert b"Zen of Python" in said.output


@pytest.mark.parametrize("has_keys", [True, False])
def test_secrets_are_removed_from_the_environment(
    has_keys: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The cluster's token is always removed; object-store keys unless the child needs them."""
    for name in ("CEREBRO_TOKEN", "AWS_SECRET_ACCESS_KEY", "S3_KEY", "HARMLESS"):
        monkeypatch.setenv(name, "x")
    (tmp_path / "telling.py").write_text("import json, os; print(json.dumps(sorted(os.environ)))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    said = BoundedProcesses("telling", at_once=1, has_keys=has_keys).run(b"", timeout_s=HANG_S)
    names = {"CEREBRO_TOKEN", "AWS_SECRET_ACCESS_KEY", "S3_KEY", "HARMLESS"} & set(json.loads(said.output))
    assert names == ({"AWS_SECRET_ACCESS_KEY", "S3_KEY"} if has_keys else set()) | {"HARMLESS"}


@pytest.mark.parametrize(
    ("program", "ending"),
    [
        (
            "import pandas_of_no_image",
            "its process ended with exit status 1: ModuleNotFoundError: No module named 'pandas_of_no_image'",
        ),
        ("raise SystemExit(3)", "its process ended with exit status 3"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "its process was ended by SIGKILL, as happens where the machine or container has no memory left",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "its process was ended by SIGSEGV"),
        (
            "import os, sys; sys.exit('no access with ' + os.environ['AWS_SECRET_ACCESS_KEY'])",
            "its process ended with exit status 1: no access with ...",
        ),
        (
            "import sys; sys.stderr.write('x' * 3_000_000 + chr(10)); sys.exit('the end')",
            "its process ended with exit status 1: the end",
        ),
    ],
)
def test_a_dead_child_is_reported_with_its_last_line(
    program: str, ending: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The status or signal and the last line of stderr, with keys removed."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-long-secret-key")
    (tmp_path / "dying.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    said = BoundedProcesses("dying", at_once=1, has_keys=True).run(b"", timeout_s=HANG_S)
    assert said.ending == ending
    assert not said.is_late
