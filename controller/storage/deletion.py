"""Deleting experiments: what they left on the volumes, and what the store knows of them.

Level-triggered: an experiment that is to be deleted is found in the store, at take-over and after each notification,
until the store has forgotten it; so a deletion that was cut short anywhere goes on. Its folders are moved aside,
a rename each; then the store forgets it, which frees its name, and says in the same step which data sets nobody uses
any more: those are moved aside, too, while workers do the same with their shards.

What was moved aside is removed by a thread (`cerebro.runtime.trash`), because a big folder takes minutes and the
controller has to lead meanwhile. Everything else is the loop's: so no run is started on a data set between the look and
the move. The lease is renewed between the two, and nothing is moved if anybody else has led since the look: who has
lost the leadership removes nothing that a new experiment of the same name has made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cerebro.errors import ConflictError, NotFoundError
from cerebro.runtime.kvs import KvsClient
from cerebro.runtime.trash import Removal, move_aside
from cerebro.runtime.volumes import Volumes

log = logging.getLogger(__name__)

_TRY_AGAIN_S = 10.0
"""After something could not be moved aside."""

_LOOK_S = 1.0
"""Between two looks while something is being removed, or is stuck."""


class Deletion:
    """Belongs to the loop; not thread-safe.

    Args:
        forget: is told that nothing is to be written for an experiment any more.
        renew: renews the lease of the leadership now; returns its term, 0 if another controller leads.

    Attributes:
        removal: removes what was moved aside.
    """

    def __init__(
        self, kvs: KvsClient, volumes: Volumes, forget: Callable[[str], None], renew: Callable[[], int]
    ) -> None:
        self._kvs, self._volumes, self._forget, self._renew = kvs, volumes, forget, renew
        self._is_due = True
        self._rests_until = 0.0
        self._stuck: dict[str, float] = {}
        """What could not be moved aside -> when to try again. The rest goes on meanwhile."""
        self.removal = Removal()

    def look_again(self) -> None:
        """Somebody may have asked for a deletion, or another controller may have begun one."""
        self._is_due = True

    def tend(self, term: int) -> None:
        """Delete one experiment that is to be deleted; once there is none, the data sets that nobody uses any more.

        To be called by the leader, and not while a plan is being made.

        Args:
            term: of the leadership.

        Raises:
            RetryableError: the store is away.
            ConflictError: another controller leads, or has led.
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
            self._rests_until = now + _LOOK_S

    @contextmanager
    def _or_later(self, what: str) -> Iterator[None]:
        """Somebody has to mend the volume: until then this is left as it is, and nothing else waits for it."""
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
            pass  # asked twice: the answer was lost
        log.info("deleted experiment %s", name)

    def _reclaim(self, term: int) -> None:
        """Move aside the data sets that nobody uses any more."""
        folder = self._volumes.shared / "datasets"
        with self._or_later("data sets that nobody uses"):
            # The list names whatever was ever deleted; most of it is gone.
            held = {path.name for path in folder.iterdir()} if folder.exists() else set()
            for dataset in held.intersection(self._kvs.reclaim().datasets).difference(self._stuck):
                with self._or_later(dataset):
                    self._require_term(term)
                    self._move_aside(self._volumes.shared, "datasets", dataset)

    def _require_term(self, term: int) -> None:
        """Nobody else may have led since the store was asked what is to go: it may be there anew."""
        if self._renew() != term:
            raise ConflictError(
                f"leadership term {term} has ended: the list of what is to be deleted is read again"
            )

    def _move_aside(self, volume: Path, *names: str) -> None:
        move_aside(volume.joinpath(*names), self._volumes.trash(volume))

    def _written(self) -> tuple[Path, ...]:
        volumes = self._volumes
        return (volumes.checkpoints, volumes.metrics, volumes.logs, volumes.shared)
