"""After truncation, restarts or failures, the files have the same content."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cerebro.runtime.kvs.client import KvsClient
from cerebro.state.experiment import fold
from cerebro.state.snapshots import packed
from controller.projections import tensorboard as projection
from controller.projections.event_file import EventFile
from controller.projections.records import EVENTS_WITH_RECORDS
from controller.projections.tensorboard import TensorBoardFiles
from tests.controller.projection.written import (
    LogStore,
    Once,
    contents,
    file_of,
    file_of_run,
    points,
    story,
    volumes,
)
from tests.waiting import until


def test_a_restart_adds_nothing(written: Path) -> None:
    """A projection that starts on complete files does not change them."""
    before = contents(written)
    Once(LogStore(story().log, points()), written).write()
    assert contents(written) == before


def test_a_start_from_a_snapshot_continues_the_files(tmp_path: Path, written: Path) -> None:
    """After any settled event; a repeated sub-epoch adds no data."""
    log = story().log
    for number in range(1, len(log)):
        folder = tmp_path / str(number)
        first = Once(LogStore(log[:number], points()), folder)
        first.write()
        assert first.is_settled("one", number) or not any(
            isinstance(e, EVENTS_WITH_RECORDS) for e in log[:number]
        )
        store = LogStore(log, points())
        store.kept = packed(fold("one", log[:number]))
        Once(store, folder).write()
        assert contents(folder) == contents(written), f"after event {number}"


def test_unwritten_events_are_not_settled(tmp_path: Path) -> None:
    """Unread entries are not settled either."""
    files, log = Once(LogStore(story().log, points()), tmp_path), story().log
    files._read_logs()
    assert not files.is_settled("one", len(log))
    files.drain()
    assert files.is_settled("one", len(log))
    assert not files.is_settled("one", len(log) + 1)
    assert not files.is_settled("two", 1)


@pytest.mark.parametrize("of", [file_of, file_of_run])
def test_a_file_torn_at_any_byte_is_completed(written: Path, of: Callable[[Path], Path]) -> None:
    """For a cut at each seventh byte, the next start writes exactly the missing part."""
    path = of(written)
    whole = path.read_bytes()
    # Seven shares no factor with the record lengths, so cuts reach each position within a record.
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        Once(LogStore(story().log, points()), written).write()
        assert path.read_bytes() == whole, f"cut at byte {cut}"


def test_the_next_controller_writes_the_rest_after_a_stop_anywhere(written: Path, tmp_path: Path) -> None:
    """For each prefix of the log before the stop, the final file is the same."""
    log, whole = story().log, contents(written)
    for length in range(len(log) + 1):
        root = tmp_path / str(length)
        Once(LogStore(log[:length], points()), root).write()
        Once(LogStore(log, points()), root).write()
        assert contents(root) == whole, f"stopped after event {length}"


def test_a_store_outage_leaves_no_gap(written: Path, tmp_path: Path) -> None:
    """The commit is written when the store returns; later commits wait."""
    store = LogStore(story().log, points())
    store.fail_live = 3
    Once(store, tmp_path / "again").write()
    assert contents(tmp_path / "again") == contents(written)


def test_a_full_metrics_volume_leaves_no_gap(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a partial write, the rest follows without duplicates."""
    flush, left = EventFile.flush, [6]

    def full_now_and_then(self: EventFile) -> None:
        flush(self)
        if left[0]:
            left[0] -= 1
            # Half of the last record is lost, as on a full disk.
            size = os.fstat(self._file.fileno()).st_size
            self._file.truncate(size - 9)
            raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(EventFile, "flush", full_now_and_then)
    Once(LogStore(story().log, points()), tmp_path / "again").write()
    assert left == [0]
    assert contents(tmp_path / "again") == contents(written)


def test_more_models_than_the_open_file_limit_are_written(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The projection closes and reopens files in turn."""
    monkeypatch.setattr(projection, "_MAX_OPEN", 1)
    Once(LogStore(story().log, points()), tmp_path / "again").write()
    assert contents(tmp_path / "again") == contents(written)


def test_the_thread_writes_events_that_an_earlier_process_missed(written: Path, tmp_path: Path) -> None:
    """A real thread with a client's types completes the files."""
    store: Any = LogStore(story().log, points())
    client: KvsClient = store
    running = TensorBoardFiles(client, volumes(tmp_path / "again"))
    running.start()
    whole, path = file_of(written).read_bytes(), file_of(tmp_path / "again")
    until(lambda: path.exists() and path.read_bytes() == whole, "the file is completed")
    running.stop()
