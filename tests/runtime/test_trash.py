"""Several processes move folders aside and remove them on one volume at the same time."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import cerebro.runtime.trash as trash_module
from cerebro.runtime.trash import Removal, empty, move_aside
from tests.clocks import set_monotonic


@pytest.fixture
def trash(tmp_path: Path) -> Path:
    return tmp_path / ".trash"


def make_folder(folder: Path) -> Path:
    """Make a folder with content."""
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("x")
    return folder


def test_a_folder_is_moved_to_the_trash_in_one_step(tmp_path: Path, trash: Path) -> None:
    """Works repeatedly for the same folder name."""
    for _ in range(2):
        assert move_aside(make_folder(tmp_path / "one"), trash)
        assert not (tmp_path / "one").exists()
    assert not move_aside(tmp_path / "one", trash)
    assert len(list(trash.iterdir())) == 2


def test_a_folder_is_moved_although_the_trash_was_just_removed(
    tmp_path: Path, trash: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trash thread may remove the empty trash just before the move."""
    rename = Path.rename
    removed: list[Path] = []

    def late(path: Path, target: Path) -> Path:
        if not removed:
            removed.append(trash)
            trash.rmdir()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    assert move_aside(make_folder(tmp_path / "one"), trash)
    assert removed
    assert not (tmp_path / "one").exists()


def test_folders_moved_while_the_trash_is_emptied_are_deleted_too(
    tmp_path: Path, trash: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the folder would remain until the process restarts."""
    rmtree, left = shutil.rmtree, [make_folder(tmp_path / "two"), make_folder(tmp_path / "three")]
    move_aside(make_folder(tmp_path / "one"), trash)

    def busy(folder: Path, **options: Any) -> None:
        rmtree(folder, **options)
        if left:
            move_aside(left.pop(), trash)

    monkeypatch.setattr(shutil, "rmtree", busy)
    empty(trash)
    assert not left
    assert list(tmp_path.iterdir()) == []


def test_a_failed_removal_is_retried_later_and_does_not_delay_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that cannot be written is retried after a pause and does not delay others."""
    trashes = [tmp_path / name / ".trash" for name in ("bad", "good")]
    for trash in trashes:
        move_aside(make_folder(trash.parent / "one"), trash)
    removal = Removal()
    with monkeypatch.context() as patch:
        rmtree = shutil.rmtree

        def refuse(folder: Path, **options: Any) -> None:
            if "bad" in folder.parts:
                raise PermissionError("read-only file system")
            rmtree(folder, **options)

        patch.setattr(shutil, "rmtree", refuse)
        assert not removal.sweep(trashes)
        removal.thread.join()
    assert [trash.exists() for trash in trashes] == [True, False]
    assert removal.is_busy
    assert not removal.sweep(trashes)
    assert not removal.thread.is_alive()
    later = time.monotonic() + 3600
    set_monotonic(monkeypatch, lambda: later, trash_module)
    assert not removal.sweep(trashes)
    removal.thread.join()
    assert removal.sweep(trashes)
