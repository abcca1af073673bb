"""Disk usage is measured in the background, within limits, and lists what can be reclaimed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cerebro.contract.records import ExperimentSummary
from cerebro.runtime.volumes import Volumes
from dispatcher.cluster.disks import Disks, measure
from dispatcher.cluster.volumes import volumes
from tests.dispatcher.stories import NOW, record


@pytest.fixture
def places(tmp_path: Path) -> Volumes:
    """Create volumes with files of two experiments, only one is in the store."""
    found = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    for path in (
        found.checkpoints / "digits" / "fit-1" / "m00" / "x.pt",
        found.checkpoints / "gone" / "fit-1" / "x.pt",
        found.checkpoints / ".trash" / "old" / "x.pt",
        found.logs / "tasks" / "digits" / "x.log",
        found.logs / "kvs_api.log",
        found.shared / "datasets" / "d1" / "valid" / "x",
        found.shared / "datasets" / "d2" / "valid" / "x",
        found.shards / "worker-0" / "datasets" / "d1" / "x",
        found.shards / "worker-0" / "downloads" / "d1" / "x",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(8192))
    (found.checkpoints / "digits" / "link").symlink_to("/usr")
    return found


def roots(places: Volumes) -> dict[str, Path]:
    return {name: getattr(places, name) for name in ("checkpoints", "metrics", "logs", "shared", "shards")}


def listed(name: str, **changes: object) -> ExperimentSummary:
    return ExperimentSummary.model_validate(
        {"experiment": record(name), "last_seq": 1, "last_event": NOW, "open_runs": ()} | changes
    )


def test_usage_of_volumes_is_grouped_by_experiment_and_data_set(places: Volumes) -> None:
    """Usage is grouped by experiment and data set. Links are not followed; a missing volume is reported."""
    found = measure(roots(places), lambda: NOW)
    assert found.is_complete
    sizes = found.folders
    assert sizes["checkpoints", "experiment", "digits"] == 8192
    assert sizes["checkpoints", "trash", ""] == 8192
    assert sizes["logs", "experiment", "digits"] == 8192
    assert sizes["shards", "dataset", "d1"] == 8192
    assert sizes["shards", "downloads", "worker-0"] == 8192
    assert "not mounted here" in found.spaces["metrics"].problem
    assert found.spaces["logs"].total_bytes > found.spaces["logs"].free_bytes > 0


def test_a_scan_is_bounded(places: Volumes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that reaches its limit is reported as incomplete."""
    monkeypatch.setattr("dispatcher.cluster.disks.MAX_FILES", 3)
    assert not measure(roots(places), lambda: NOW).is_complete


def test_reclaimable_files_are_listed(places: Volumes) -> None:
    """Files of absent or archived experiments, unused data sets, downloads and deleted files."""
    measured = measure(roots(places), lambda: NOW)
    view = volumes(
        measured,
        is_measuring=False,
        summaries=(listed("digits", is_archived=True),),
        unneeded=frozenset({"d2"}),
    )
    assert {(each.what, each.num_bytes) for each in view.reclaimable} == {
        ("experiment digits", 16384), ("files of gone", 8192), ("data set d2", 8192), ("downloads of worker-0", 8192),
        ("deleted files", 8192),
    }  # fmt: skip
    assert view.reclaimable_bytes == 49152
    kept = volumes(measured, is_measuring=False, summaries=(listed("digits"),), unneeded=frozenset())
    assert not any(each.what == "experiment digits" for each in kept.reclaimable)
    assert view.rows[0].experiments == (("digits", 8192), ("gone", 8192))


def test_pages_do_not_wait_for_a_scan(places: Volumes) -> None:
    """The first page says that the scan is running; a recent scan is not repeated."""
    now = [NOW]
    disks = Disks(places, lambda: now[0])
    assert disks.newest() == (None, True)
    disks.wait()
    measured, is_looking = disks.newest()
    assert measured is not None
    assert not is_looking
    now[0] += 61
    again, is_looking = disks.newest()
    assert again is measured
    assert is_looking
    disks.wait()


def test_a_failed_scan_is_not_repeated_immediately(places: Volumes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every poll of every viewer would start another scan."""
    tries: list[float] = []

    def fails(*_: object) -> None:
        tries.append(now[0])
        raise OSError("stale file handle")

    monkeypatch.setattr("dispatcher.cluster.disks.measure", fails)
    now = [NOW]
    disks = Disks(places, lambda: now[0])
    for _ in range(3):
        disks.newest()
        disks.wait()
    assert tries == [NOW]
    assert disks.newest() == (None, False)
    now[0] += 61
    disks.newest()
    disks.wait()
    assert tries == [NOW, NOW + 61]


class Broken:
    """A folder whose listing fails midway, as on a lost server."""

    def __enter__(self) -> Broken:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Broken:
        return self

    def __next__(self) -> None:
        raise OSError("stale file handle")


def test_folder_that_cannot_be_listed_hides_no_other(
    places: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other folders are still measured."""
    listed = os.scandir

    def scandir(path: Path) -> object:
        return Broken() if path.name == "gone" else listed(path)

    monkeypatch.setattr("dispatcher.cluster.disks.os.scandir", scandir)
    folders = measure(roots(places), lambda: NOW).folders
    assert folders["checkpoints", "experiment", "digits"] == 8192
    assert ("checkpoints", "experiment", "gone") not in folders
