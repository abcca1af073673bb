"""The client checks locators before it reserves a name, if it can judge them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.client import visibility
from cerebro.contract.records import Locator, Locators
from cerebro.errors import LocatorError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Create a data set."""
    (tmp_path / "data/images").mkdir(parents=True)
    for name in ("train.csv", "words.txt"):
        (tmp_path / "data" / name).write_text("id\n1\n")
    return tmp_path / "data"


def located(
    folder: Path, *, metadata: str = "train.csv", objects: str = "images", misc: str = "words.txt"
) -> Locators:
    train = Locator(metadata=f"{folder}/{metadata}", objects=f"file://{folder}/{objects}")
    return Locators(train=train, misc=(f"{folder}/{misc}",))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"metadata": "trian.csv"}, r"metadata of 'train': .*/data/trian\.csv does not exist"),
        (
            {"metadata": "images"},
            r"metadata of 'train': there is no table in the folder .*/images: expected files",
        ),
        ({"objects": "pictures"}, r"objects of 'train': object root .*/pictures is not a folder"),
        ({"misc": "word.txt"}, r"misc: .*/word\.txt does not exist"),
    ],
)
def test_a_missing_file_is_reported(data: Path, changed: dict[str, str], message: str) -> None:
    """The error names the locator's field."""
    with pytest.raises(LocatorError, match=message):
        visibility.check_here(located(data, **changed))


class Mounts:
    """A pod's file systems: `mounted` folders are mount points, besides the root and the home."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path, mounted: list[Path]) -> None:
        for folder in (home, *mounted):
            folder.mkdir(exist_ok=True)
        monkeypatch.setattr("os.path.ismount", lambda path: Path(path) in [Path("/"), home, *mounted])
        monkeypatch.setenv("HOME", str(home))


def test_a_path_on_the_local_file_system_is_refused_in_the_cluster(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the root file system or in the home. The error suggests the shared volume."""
    shared, home = tmp_path / "shared", tmp_path / "home"
    Mounts(monkeypatch, home, [shared])
    for folder in (data, home / "data"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.csv").touch()
        with pytest.raises(
            LocatorError, match=rf"workers cannot read it: move it to the shared volume {shared}"
        ):
            visibility.check_inside(Locators(train=Locator(metadata=f"{folder}/train.csv")), shared)


def test_files_on_the_shared_volume_are_checked_in_the_cluster(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers mount the same volume, so a file missing here is missing there."""
    Mounts(monkeypatch, tmp_path / "home", [data])
    visibility.check_inside(located(data), data)
    with pytest.raises(LocatorError, match=r"trian\.csv does not exist"):
        visibility.check_inside(located(data, metadata="trian.csv"), data)


def test_undecidable_paths_are_checked_by_the_controller(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other mounted file systems, which workers may have, too, and paths absent here."""
    shared = tmp_path / "shared"
    Mounts(monkeypatch, tmp_path / "home", [shared, data])
    visibility.check_inside(located(data), shared)
    visibility.check_inside(Locators(train=Locator(metadata="/datasets/of/workers/train.csv")), shared)


def test_a_path_in_a_closed_folder_is_no_error(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers may have the permission that this user lacks."""
    exists = Path.exists

    def closed(path: Path) -> bool:
        # A double, since file modes do not restrict root.
        if path.is_relative_to(data):
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", closed)
    visibility.check_inside(located(data), tmp_path / "shared")
    visibility.check_outside(located(data), "http://cluster")
