"""Deleting experiments: what they left on the volumes, and what the store knows of them.

Level-triggered: an experiment that is to be deleted is found in the store, at take-over and whenever the cluster's bell
rings, until the store has forgotten it; so a deletion that was cut short anywhere goes on. Its folders are moved aside,
a rename each; then the store forgets it, which frees its name, and says in the same step which data sets nobody uses
any more: those are moved aside, too, while workers do the same with their shards.

What was moved aside is removed by a thread, because a big folder takes minutes and the controller has to lead
meanwhile. Everything else is the loop's: so no run is started on a data set between the look and the move, and nobody
who has lost the leadership removes what a new experiment of the same name has made.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cerebro.errors import NotFoundError
from cerebro.kvs import KvsClient
from cerebro.volumes import Volumes

log = logging.getLogger(__name__)

_TRY_AGAIN_S = 10.0
"""After something could not be moved aside or removed."""


class Deletion:
    """Belongs to the loop; not thread-safe.

    Args:
        forget: is told that nothing is to be written for an experiment any more.

    Attributes:
        removal: the thread that removes what was moved aside; the newest, if it was ever begun.
    """

    def __init__(self, kvs: KvsClient, volumes: Volumes, forget: Callable[[str], None]) -> None:
        self._kvs, self._volumes, self._forget = kvs, volumes, forget
        self._is_due = True
        self.removal = threading.Thread()
        self._rests_until = 0.0

    def look_again(self) -> None:
        """Somebody may wish a deletion, or another controller may have begun one."""
        self._is_due = True

    def tend(self, term: int) -> None:
        """Delete what is to be deleted. To be called by the leader, and not while a plan is being made.

        Args:
            term: of the leadership.

        Raises:
            RetryableError: the store is away.
            ConflictError: another controller leads.
        """
        if not self._is_due or time.monotonic() < self._rests_until:
            return
        try:
            for name in self._kvs.deleting():
                self._delete(name, term)
            for dataset in self._kvs.reclaim().datasets:
                move_aside(self._volumes, self._volumes.shared, "datasets", dataset)
            self._is_due = not self._is_swept()
        except OSError as error:
            # Somebody has to mend the volume; until then the experiment is shown as being deleted.
            log.warning("cannot delete yet: %s", error)
            self._rests_until = time.monotonic() + _TRY_AGAIN_S

    def _delete(self, name: str, term: int) -> None:
        self._forget(name)
        volumes = self._volumes
        move_aside(volumes, volumes.checkpoints, name)
        move_aside(volumes, volumes.metrics, name)
        move_aside(volumes, volumes.logs, "tasks", name)
        move_aside(volumes, volumes.shared, "predictions", name)
        try:
            self._kvs.delete_experiment(name, term)
        except NotFoundError:
            pass  # asked twice: the answer was lost
        log.info("deleted experiment %s", name)

    def _is_swept(self) -> bool:
        """Whether nothing moved aside is left, or is being removed by now."""
        if self.removal.is_alive():
            return False
        volumes = self._volumes
        roots = (volumes.checkpoints, volumes.metrics, volumes.logs, volumes.shared)
        trash = [volumes.trash(root) for root in roots if volumes.trash(root).exists()]
        if not trash:
            return True
        self.removal = threading.Thread(target=remove, args=(trash,), name="removal", daemon=True)
        self.removal.start()
        self._rests_until = time.monotonic() + 1.0
        return False


def move_aside(volumes: Volumes, root: Path, *names: str) -> None:
    """Move the folder of these names below a volume's root into the trash of that volume; nothing if there is none.

    Raises:
        OSError: the volume does not allow it.
    """
    folder, trash = root.joinpath(*names), volumes.trash(root)
    if folder.exists():
        trash.mkdir(parents=True, exist_ok=True)
        folder.rename(trash / f"{folder.name}.{time.time_ns()}")


def remove(folders: list[Path]) -> None:
    """Remove folders with all that is in them. What cannot be removed is told, and left for the next time."""
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            pass  # somebody else removes it, too
        except OSError as error:
            log.warning("cannot remove %s: %s", folder, error)
            time.sleep(_TRY_AGAIN_S)
