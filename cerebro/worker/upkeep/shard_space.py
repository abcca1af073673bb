"""Free space on the shard volume: remove partitions and downloads of unused data sets.

`Housekeeping` calls `act`. The store lists unused data sets (`cerebro.contract.records.Reclaim`) and removes a data set
from that list in the step that starts a run on it. So a listed data set may be removed unless a task for it has arrived
since the request. Folders are moved aside in one step and removed by a thread (`cerebro.runtime.trash`): a later task
finds a complete partition or no files. Checkpoints and the shared volume are not touched.
"""

from __future__ import annotations

import logging
import threading
import time

from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.trash import Removal, move_aside
from cerebro.runtime.volumes import Volumes

log = logging.getLogger(__name__)

_KINDS = ("datasets", "downloads", "frozen")
"""Folders of the volume that have a folder for each data set."""


class Reclaimer:
    """Removes unused data sets. Any thread may call `touch`; one calls the rest.

    Attributes:
        removal: removes folders that were moved aside.
    """

    def __init__(self, kvs: KvsClient, volumes: Volumes) -> None:
        self._kvs, self._volumes = kvs, volumes
        self._trash = volumes.trash(volumes.shards)
        self._seq = 0
        self._lock = threading.Lock()
        self._touched: dict[str, float] = {}
        """Data set -> monotonic time at which its latest task arrived."""
        self.removal = Removal()

    def touch(self, dataset: str) -> None:
        """Record that a task for the data set has arrived. Call it before the task starts."""
        with self._lock:
            self._touched[dataset] = time.monotonic()

    def act(self, seq: int) -> bool:
        """Remove unused data sets if the list has a new number, `seq`.

        Returns:
            True if the list changed, so the worker's replicas may have changed.

        Raises:
            RetryableError: the store is away.
        """
        self.sweep()
        if seq == self._seq:
            return False
        began = time.monotonic()
        reclaim = self._kvs.reclaim()
        try:
            # The list has every deleted data set; most were never on this worker.
            held = self.held().intersection(reclaim.datasets)
            remaining = [dataset for dataset in held if not self._is_moved(dataset, began)]
            self._seq = -1 if remaining else reclaim.seq
        except OSError as error:
            log.warning("unused partitions stay for now: %s", error)
        self.sweep()
        return True

    def clear_rendezvous_root(self, worker: str) -> None:
        """Move aside the rendezvous folders of an earlier process of the worker. Call it before the first task."""
        try:
            move_aside(self._volumes.rendezvous_root(worker), self._trash)
        except OSError as error:
            log.warning("rendezvous folders of earlier ranks stay for now: %s", error)

    def sweep(self) -> None:
        """Remove folders that this or an earlier process moved aside."""
        try:
            self.removal.sweep([self._trash])
        except OSError as error:
            log.warning("%s cannot be read, so its folders stay for now: %s", self._trash, error)

    def held(self) -> set[str]:
        """Return the data sets with files on the volume.

        Raises:
            OSError: the volume cannot be read.
        """
        folders = [self._volumes.shards / kind for kind in _KINDS]
        return {path.name for folder in folders if folder.exists() for path in folder.iterdir()}

    def _is_moved(self, dataset: str, listed_at: float) -> bool:
        """Move a data set's folders aside. Return False if a task for it has arrived since `listed_at`."""
        with self._lock:
            if self._touched.get(dataset, -1.0) >= listed_at:
                return False
            for kind in _KINDS:
                folder = self._volumes.shards / kind / dataset
                if move_aside(folder, self._trash):
                    log.info("reclaiming %s", folder)
        return True
