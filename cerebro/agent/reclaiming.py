"""Making room on the shard volume: partitions and downloads of data sets that no experiment uses any more.

The store names them (`cerebro.contract.records.Reclaim`), and takes a data set off that list in the step that starts a
run on it. So what was listed when the worker asked may go, unless a task for it has come since. Folders are moved aside
in one step and removed by a thread: a task that comes next finds all of a partition or nothing of it.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from pathlib import Path

from cerebro.kvs import KvsClient
from cerebro.volumes import Volumes

log = logging.getLogger(__name__)


class Reclaimer:
    """`touch` may be called by any thread, the rest by one.

    Attributes:
        removal: the thread that removes what was moved aside; the newest, if it was ever begun.
    """

    def __init__(self, kvs: KvsClient, volumes: Volumes) -> None:
        self._kvs, self._volumes = kvs, volumes
        self._seq = 0
        self._lock = threading.Lock()
        self._touched: dict[str, float] = {}
        """Data set -> when a task for it came last."""
        self.removal = threading.Thread()

    def touch(self, dataset: str) -> None:
        """A task for the data set has come, and is not begun before this returns."""
        with self._lock:
            self._touched[dataset] = time.monotonic()

    def act(self, seq: int) -> bool:
        """Reclaim what may be reclaimed, if the list has changed: its number is `seq` by now.

        Returns:
            Whether the list had changed, so that the worker's holdings may have.

        Raises:
            RetryableError: the store is away.
        """
        if seq == self._seq:
            return False
        asked = time.monotonic()
        reclaim = self._kvs.reclaim()
        try:
            kept = [dataset for dataset in reclaim.datasets if not self._is_moved(dataset, asked)]
            self._seq = -1 if kept else reclaim.seq
        except OSError as error:
            log.warning("partitions that nobody uses stay for now: %s", error)
        self.sweep()
        return True

    def sweep(self) -> None:
        """Remove what was moved aside, now or by a process before this one."""
        trash = self._volumes.trash(self._volumes.shards)
        if trash.exists() and not self.removal.is_alive():
            self.removal = threading.Thread(target=_remove, args=(trash,), name="removal", daemon=True)
            self.removal.start()

    def _is_moved(self, dataset: str, asked: float) -> bool:
        """Whether nothing of the data set is left where tasks look for it."""
        trash = self._volumes.trash(self._volumes.shards)
        with self._lock:
            if self._touched.get(dataset, -1.0) >= asked:
                return False
            for kind in ("datasets", "downloads"):
                folder = self._volumes.shards / kind / dataset
                if not folder.exists():
                    continue
                trash.mkdir(parents=True, exist_ok=True)
                try:
                    folder.rename(trash / f"{kind}-{dataset}.{time.time_ns()}")
                except FileNotFoundError:
                    continue  # another worker on this volume was first
                log.info("reclaiming %s", folder)
        return True


def _remove(trash: Path) -> None:
    try:
        shutil.rmtree(trash)
    except FileNotFoundError:
        pass  # another worker on this volume removes it, too
    except OSError as error:
        log.warning("cannot remove %s: %s", trash, error)
