"""Process activity is read from /proc: processor time, runnable threads, uninterruptible waits."""

from __future__ import annotations

import os
from pathlib import Path

from cerebro.worker.health.activity import process_states, waits_in


def process(
    proc: Path, pid: int, *, parent: int, group: int, state: str = "S", ticks: int = 0, threads: str = ""
) -> None:
    """Create the /proc files of a process with an unusual name."""

    def stat(number: int, letter: str) -> str:
        fields = [letter, str(parent), str(group), *["0"] * 8, str(ticks), "0", "0", "0", *["0"] * 30]
        return f"{number} (a) R 1 (b) {' '.join(fields)}\n"

    folder = proc / str(pid)
    for number, letter in enumerate(threads or state, pid):
        (folder / "task" / str(number)).mkdir(parents=True)
        (folder / "task" / str(number) / "stat").write_text(stat(number, letter))
    (folder / "stat").write_text(stat(pid, state))
    (folder / "wchan").write_text("0" if state != "D" else "nfs_wait")


def test_a_process_group_and_its_descendants_are_found(tmp_path: Path) -> None:
    """Child processes with another process group are included, and other processes are not."""
    process(tmp_path, 10, parent=1, group=10)
    process(tmp_path, 11, parent=10, group=10, state="D", ticks=200)
    process(tmp_path, 12, parent=11, group=12, threads="SSR")
    process(tmp_path, 13, parent=1, group=10, state="T")
    process(tmp_path, 20, parent=1, group=20, state="R")
    (tmp_path / "self").mkdir()
    (tmp_path / "30").mkdir()
    found = {each.pid: each for each in process_states([10], proc=tmp_path)}
    assert list(found) == [10, 11, 12, 13]
    assert found[11].spent_s == 200 / os.sysconf("SC_CLK_TCK")
    assert [pid for pid, each in found.items() if each.is_runnable] == [12]
    assert [pid for pid, each in found.items() if each.is_in_kernel] == [11]
    assert [waits_in(pid, proc=tmp_path) for pid in (10, 11, 99)] == ["", "nfs_wait", ""]


def test_this_process_runs() -> None:
    """Reads the real kernel."""
    (state,) = [each for each in process_states([os.getpid()]) if each.pid == os.getpid()]
    assert state.is_runnable
    assert state.spent_s > 0
