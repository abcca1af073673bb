"""Deletion of experiments from volumes and store.

Level-triggered: the store lists experiments to delete at take-over and after each notification until it has
forgotten them, so an interrupted deletion continues. An experiment's folders are renamed into the trash. Then
the store forgets it, which frees its name, and returns in the same step the data sets without users. These
are moved aside too, and workers do the same with their shards.

A thread (`cerebro.runtime.trash`) removes the trash, because a large folder takes minutes. The loop does the
rest, so no run starts on a data set between check and move. It renews the lease between the two and moves
nothing if another controller has led: a former leader never removes files of a new experiment with the same
name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cerebro.errors import ConflictError, NotFoundError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.trash import Removal, move_aside
from cerebro.runtime.volumes import Volumes

log = logging.getLogger(__name__)

_TRY_AGAIN_S = 10.0
"""Seconds before a failed move is retried."""

_POLL_S = 1.0
"""Seconds between two checks while a removal runs or fails."""


class Deletion:
    """Deletes experiments. Owned by the loop; not thread-safe.

    Args:
        forget: called before deletion to stop all writing for an experiment.
        renew: renews the lease; returns the term, or 0 if another controller leads.

    Attributes:
        removal: removes the trash.
    """

    def __init__(
        self, kvs: KvsClient, volumes: Volumes, forget: Callable[[str], None], renew: Callable[[], int]
    ) -> None:
        self._kvs, self._volumes, self._forget, self._renew = kvs, volumes, forget, renew
        self._is_due = True
        self._rests_until = 0.0
        self._stuck: dict[str, float] = {}
        """Failed moves -> time of the next try. The others continue."""
        self.removal = Removal()

    def invalidate(self) -> None:
        """Check again: there may be a new request, or one begun by another controller."""
        self._is_due = True

    def reconcile(self, term: int) -> None:
        """Delete one experiment; without any, the unused data sets.

        For the leader only, and not while a plan is being made.

        Args:
            term: term of the leadership.

        Raises:
            RetryableError: the store is unavailable.
            ConflictError: another controller leads or has led.
        """
        if not self._is_due or time.monotonic() < self._rests_until:
            return
        now = time.monotonic()
        self._stuck = {what: until for what, until in self._stuck.items() if now < until}
        waiting = [name for name in self._kvs.deleting() if name not in self._stuck]
        if waiting:
            with self._or_later(waiting[0]):
                self._delete(waiting[0], term)
            return
        self._reclaim(term)
        is_swept = False
        with self._or_later("what was moved aside"):
            is_swept = self.removal.sweep([self._volumes.trash(volume) for volume in self._written()])
        self._is_due = bool(self._stuck) or not is_swept
        if self._is_due:
            self._rests_until = now + _POLL_S

    @contextmanager
    def _or_later(self, what: str) -> Iterator[None]:
        """Postpone this item after a volume error; an administrator must repair the volume."""
        try:
            yield
        except OSError as error:
            log.warning("cannot delete %s yet: %s", what, error)
            self._stuck[what] = time.monotonic() + _TRY_AGAIN_S

    def _delete(self, name: str, term: int) -> None:
        self._forget(name)
        volumes = self._volumes
        self._require_term(term)
        self._move_aside(volumes.checkpoints, name)
        self._move_aside(volumes.metrics, volumes.tensorboard.name, name)
        self._move_aside(volumes.logs, "tasks", name)
        self._move_aside(volumes.shared, "predictions", name)
        self._move_aside(volumes.shared, volumes.events.name, name)
        try:
            self._kvs.delete_experiment(name, term)
        except NotFoundError:
            pass  # a repeated request: the first answer was lost
        log.info("deleted experiment %s", name)

    def _reclaim(self, term: int) -> None:
        """Move unused data sets aside."""
        folder = self._volumes.shared / "datasets"
        with self._or_later("unused data sets"):
            # The list has all data sets ever deleted; most are gone.
            held = {path.name for path in folder.iterdir()} if folder.exists() else set()
            for dataset in held.intersection(self._kvs.reclaim().datasets).difference(self._stuck):
                with self._or_later(dataset):
                    self._require_term(term)
                    self._move_aside(self._volumes.shared, "datasets", dataset)

    def _require_term(self, term: int) -> None:
        """Raise unless this controller has led since the check: the files may be new."""
        if self._renew() != term:
            raise ConflictError(
                f"leadership term {term} has ended: the list of pending deletions is read again"
            )

    def _move_aside(self, volume: Path, *names: str) -> None:
        move_aside(volume.joinpath(*names), self._volumes.trash(volume))

    def _written(self) -> tuple[Path, ...]:
        volumes = self._volumes
        return (volumes.checkpoints, volumes.metrics, volumes.logs, volumes.shared)
