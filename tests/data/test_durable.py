"""Files are written atomically, and a full disk is reported."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from cerebro.data.files.durable import DurableFile, Written, checksum, discard_leftovers, verify, write_json
from cerebro.errors import ShardCorruptError, StorageFullError, VolumeError


def test_nothing_appears_before_commit(tmp_path: Path) -> None:
    """The old content stays until the commit."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    file = DurableFile(path)
    file.write(b"new")
    assert path.read_bytes() == b"old"
    written = file.commit()
    assert path.read_bytes() == b"new"
    assert written == checksum(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_discarded_file_leaves_no_trace(tmp_path: Path) -> None:
    """Discarding twice is safe."""
    file = DurableFile(tmp_path / "file")
    file.write(b"new")
    file.discard()
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_file_do_not_interfere(tmp_path: Path) -> None:
    """Each attempt writes its own temporary file; the last commit wins."""
    first, second = DurableFile(tmp_path / "file"), DurableFile(tmp_path / "file")
    first.write(b"first")
    second.write(b"second")
    second.commit()
    first.commit()
    assert (tmp_path / "file").read_bytes() == b"first"


def test_temporary_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    """Temporary files of killed writers are recognised; other files stay."""
    (tmp_path / "kept").touch()
    file = DurableFile(tmp_path / "file")
    discard_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    file.discard()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The error names the folder and its free bytes; the previous content stays."""
    write_json(tmp_path / "file", {"a": 1})

    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFullError, match=rf"{tmp_path} \(\d+ bytes free\)"):
        write_json(tmp_path / "file", {"a": 2})
    assert json.loads((tmp_path / "file").read_bytes()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_error_of_the_disk_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input/output error is reported as an error of the volume, not as a full disk."""

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(VolumeError, match="input/output") as raised:
        write_json(tmp_path / "file", {})
    assert raised.value.path == str(tmp_path)


def test_changed_bytes_are_found(tmp_path: Path) -> None:
    """A changed byte, a changed length and a missing file."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    written = checksum(path)
    verify(path, written)
    path.write_bytes(b"c0ntent")
    with pytest.raises(ShardCorruptError, match="checksum"):
        verify(path, written)
    with pytest.raises(ShardCorruptError, match="cannot be read"):
        verify(tmp_path / "absent", Written(num_bytes=0, checksum=""))
