"""Settings of the C allocator in child processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cerebro.runtime.usage.memory import own_group
from cerebro.worker.agent.devices import Share
from cerebro.worker.agent.processes import allocator
from cerebro.worker.agent.processes.process import ChildProcess, ChildSpec
from cerebro.worker.agent.settings import Settings

GIB = 1 << 30


def test_freed_memory_is_kept_up_to_a_sixteenth_of_the_limit() -> None:
    """A container of 1 GiB keeps 64 MiB, one of 64 GiB at most 512 MiB."""
    small, large = allocator.tuned({}, GIB), allocator.tuned({}, 64 * GIB)
    assert small["MALLOC_TRIM_THRESHOLD_"] == str(64 << 20)
    assert large["MALLOC_TRIM_THRESHOLD_"] == str(512 << 20)


def environment_of_child(root: Path) -> bytes:
    """Return the environment of a child process from /proc."""
    values = {"CEREBRO_TOKEN": "x", "CEREBRO_WORKER": "worker-0", "CEREBRO_VOLUMES": str(root)}
    share = Share(threads=1)
    setting = ChildSpec(
        handler="tests.worker.agent.fake_handler", python=sys.executable, archive="", share=share
    )
    child = ChildProcess(setting, Settings.from_environment(values), own_group())
    try:
        found = b""
        while not found and child.is_alive():  # exec clears the environment for a moment
            found = Path(f"/proc/{child.pid}/environ").read_bytes()
        return found
    finally:
        child.kill()


@pytest.mark.commands
def test_a_child_process_starts_with_the_allocator_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty GLIBC_TUNABLES disables the setting."""
    for name in allocator.DECIDED_BY_USER:
        monkeypatch.delenv(name, raising=False)
    assert b"\0MALLOC_TRIM_THRESHOLD_=" in environment_of_child(tmp_path)
    monkeypatch.setenv("GLIBC_TUNABLES", "")
    assert b"\0MALLOC_TRIM_THRESHOLD_=" not in environment_of_child(tmp_path)
