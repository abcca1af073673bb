"""Extraction is atomic and safe to repeat."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from cerebro.errors import StorageFullError
from cerebro.usercode.archive import extract, pack


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    source = tmp_path / "source"
    (source / "package").mkdir(parents=True)
    (source / "package" / "__init__.py").write_bytes(b"")
    (source / "model.py").write_bytes(b"x = 1")
    return pack(source)


def test_extracting_again_does_nothing(content: bytes, tmp_path: Path) -> None:
    """An existing complete folder stays, even if the archive differs."""
    extract(content, tmp_path / "volume" / "out")
    before = (tmp_path / "volume" / "out" / "model.py").stat().st_mtime_ns
    extract(content, tmp_path / "volume" / "out")
    assert (tmp_path / "volume" / "out" / "model.py").stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "volume").iterdir()] == ["out"]


def test_two_processes_at_once(content: bytes, tmp_path: Path) -> None:
    """Both succeed and one folder appears."""
    together = threading.Barrier(4)
    problems: list[BaseException] = []

    def unpack() -> None:
        together.wait()
        try:
            extract(content, tmp_path / "volume" / "out")
        except BaseException as problem:  # noqa: BLE001 - handed to the test's own thread
            problems.append(problem)

    threads = [threading.Thread(target=unpack) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert [path.name for path in (tmp_path / "volume").iterdir()] == ["out"]


def test_full_disk_leaves_nothing(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is retryable and names the archive and the folder."""

    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(StorageFullError, match=r"no space to write in .*volume"):
        extract(content, tmp_path / "volume" / "out", name="code.zip")
    assert list((tmp_path / "volume").iterdir()) == []


def test_leftovers_of_a_killed_process_are_removed_later(content: bytes, tmp_path: Path) -> None:
    """Only old temporary folders are removed, because a new one may be in use."""
    old, young = tmp_path / ".out.unpacking-old", tmp_path / ".out.unpacking-young"
    old.mkdir()
    young.mkdir()
    os.utime(old, (1, 1))
    extract(content, tmp_path / "out")
    assert not old.exists()
    assert young.exists()
