"""Files that user code made unreadable are repaired, and the failure says so."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cerebro.errors import VolumeError
from cerebro.worker.child.lost_access import restore


def denied(path: Path) -> PermissionError:
    """Make the kernel's error; root would not get it."""
    return PermissionError(errno.EACCES, "Permission denied", str(path))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    found = tmp_path / "checkpoints" / "one" / "fit-1" / "u0.pt"
    found.parent.mkdir(parents=True)
    found.write_text("weights")
    return found


@pytest.mark.parametrize("mode", [0o000, 0o044, 0o200])
def test_the_mode_of_a_file_is_restored(checkpoint: Path, tmp_path: Path, mode: int) -> None:
    """Another error may be raised from the denial; other mode bits stay."""
    checkpoint.chmod(mode)
    try:
        raise VolumeError("the volume refuses") from denied(checkpoint)
    except VolumeError as error:
        found = restore(error, [tmp_path / "checkpoints"])
    assert f"{checkpoint} (mode {mode:04o})" in found
    assert "CEREBRO_SANDBOX=on" in found
    assert checkpoint.stat().st_mode & 0o777 == mode | 0o600
    assert restore(denied(checkpoint), [tmp_path / "checkpoints"]) == ""


def test_the_mode_of_other_files_is_not_changed(checkpoint: Path, tmp_path: Path) -> None:
    """Files outside the volumes, read-only files and link targets keep their mode."""
    other = tmp_path / "other"
    other.write_text("x")
    other.chmod(0o000)
    link = checkpoint.with_name("link")
    link.symlink_to(other)
    read_only = checkpoint.with_name("read-only")
    read_only.touch(0o444)
    for path in (
        other,
        link,
        read_only,
        checkpoint.parent / ".." / ".." / ".." / "other",
        checkpoint.with_name("none"),
    ):
        assert restore(denied(path), [tmp_path / "checkpoints"]) == ""
    assert restore(FileNotFoundError(errno.ENOENT, "", str(checkpoint)), [tmp_path / "checkpoints"]) == ""
    assert other.stat().st_mode & 0o777 == 0o000
