"""Behaviour specific to folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cerebro.data.objects import open_store
from cerebro.errors import LocatorError


def test_a_folder_needs_no_copy(tmp_path: Path) -> None:
    """Row functions read the files in place."""
    assert open_store(str(tmp_path)).local_root() == tmp_path


def test_addresses_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain paths, relative paths, ``~`` and ``file://`` with escapes."""
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "a").write_bytes(b"content")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for uri in [str(folder), "with space", "~/with space", f"file://{tmp_path}/with%20space"]:
        assert open_store(uri).read("a") == b"content"


@pytest.mark.parametrize("uri", ["http://host/x", "gs://bucket/x", "file://host/x"])
def test_addresses_of_an_unknown_kind_are_named(uri: str) -> None:
    """The error lists the supported schemes."""
    with pytest.raises(LocatorError, match=rf"{uri}.*expected"):
        open_store(uri)


def test_a_folder_is_not_an_object(tmp_path: Path) -> None:
    """A folder where a file is expected, and a file as root, both raise."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(LocatorError, match="is a folder or a device, expected a file"):
        open_store(str(tmp_path)).read("sub")
    with pytest.raises(LocatorError, match="is not a folder"):
        open_store(str(tmp_path / "file")).check()
    with pytest.raises(LocatorError, match="does not exist"):
        open_store(str(tmp_path / "file")).read("x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files_are_named(tmp_path: Path) -> None:
    """A permission error differs from a missing file."""
    (tmp_path / "file").touch(mode=0)
    with pytest.raises(LocatorError, match="permissions"):
        open_store(str(tmp_path)).read("file")
