"""A worker removes unused data sets from its volume."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro.contract.records import Reclaim
from cerebro.runtime.volumes import Volumes
from cerebro.worker.upkeep.shard_space import Reclaimer


class Shelf:
    """A worker's volume with partitions, and a store with a list of unused data sets."""

    def __init__(self, folder: Path) -> None:
        self.volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)})
        self.reclaim = Reclaim()
        self.num_requests = 0
        self.on_asked: Any = lambda: None
        kvs: Any = SimpleNamespace(reclaim=self._answer)
        self.reclaimer = Reclaimer(kvs, self.volumes)
        for dataset in ("old", "new"):
            for path in (self.partition(dataset), self.volumes.downloads(dataset, "train") / "object"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(dataset)

    def _answer(self) -> Reclaim:
        self.num_requests += 1
        self.on_asked()
        return self.reclaim

    def partition(self, dataset: str) -> Path:
        """Return a file of a partition."""
        return self.volumes.partition(dataset, "train", 0) / "partition.json"

    def act(self) -> bool:
        """Act as after a report, and wait for the removal."""
        has_changed = self.reclaimer.act(self.reclaim.seq)
        self.wait()
        return has_changed

    def wait(self) -> None:
        """Wait for the removal to finish."""
        if self.reclaimer.removal.thread.ident is not None:
            self.reclaimer.removal.thread.join()

    def trash(self) -> Path:
        """Return the trash folder."""
        return self.volumes.trash(self.volumes.shards)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_unused_data_sets_are_removed_and_others_stay(shelf: Shelf) -> None:
    """Partitions and downloads are removed, replicas are reported again, and the trash is empty."""
    shelf.reclaim = Reclaim(seq=1, datasets=("old",))
    assert shelf.act()
    assert sorted(path.name for path in shelf.volumes.shards.glob("*/*")) == ["new", "new"]
    assert not shelf.trash().exists()


def test_the_list_is_read_only_when_it_has_changed(shelf: Shelf) -> None:
    """Reports arrive every two seconds, so an unchanged list is not read again."""
    assert not shelf.act()
    assert shelf.num_requests == 0
    shelf.reclaim = Reclaim(seq=4, datasets=("unknown",))
    assert [shelf.act(), shelf.act(), shelf.num_requests] == [True, False, 1]


def test_a_data_set_is_kept_for_a_newer_task(shelf: Shelf) -> None:
    """The list may be older than the task, so it is read again."""
    shelf.reclaim = Reclaim(seq=1, datasets=("old",))
    shelf.on_asked = lambda: shelf.reclaimer.touch("old")
    assert shelf.act()
    assert shelf.partition("old").exists()
    shelf.on_asked = lambda: None
    assert shelf.act()
    assert not shelf.partition("old").exists()


def test_a_volume_that_does_not_answer_is_no_error(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker may not need the volume now."""

    def refuse(_: Path) -> bool:
        raise OSError("stale file handle")

    shelf.reclaim = Reclaim(seq=1, datasets=("old",))
    monkeypatch.setattr(Path, "exists", refuse)
    assert shelf.act()
    shelf.reclaimer.sweep()


def test_a_volume_that_cannot_be_written_is_retried(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker continues to run."""

    def refuse(*_: object) -> None:
        raise PermissionError("read-only file system")

    shelf.reclaim = Reclaim(seq=1, datasets=("old",))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        assert shelf.act()
    assert shelf.partition("old").exists()
    assert shelf.act()
    assert not shelf.partition("old").exists()
