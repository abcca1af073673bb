"""Scratch folders are removed after their process ends, normally or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from controller.storage.scratch import scratch_folder

_HOLD = """
import sys
from pathlib import Path
from controller.storage.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_scratch_folder_is_removed_at_the_end(tmp_path: Path) -> None:
    """An exception in the block changes nothing."""

    def fail() -> None:
        with scratch_folder(tmp_path / "made") as folder:
            (folder / "deep").mkdir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.processes
def test_the_next_process_removes_scratch_of_a_killed_one(tmp_path: Path) -> None:
    """Folders of other live processes stay."""
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with scratch_folder(tmp_path) as ours:
            assert set(tmp_path.iterdir()) == {theirs, ours}
        other.kill()
    assert theirs.exists()
    with scratch_folder(tmp_path) as ours:
        assert list(tmp_path.iterdir()) == [ours]
