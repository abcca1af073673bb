"""Removal of pruned files from disk.

Level-triggered: a new leader checks all pruned models of open runs and finds most files gone. So a controller
may die anywhere: the event precedes the first removal, and a run ends only after its files are gone, or none
could be removed for a minute.

After a model's training has ended, the controller owns its folder. It removes everything not kept:
savepoints, remains of dead writers, and bases without users. For a model that may train further, it removes
only committed checkpoints by name, because no attempt writes these names again.

A thread removes files, because large files take long and a hung volume must not stop the loop. It removes
only while this controller leads in the term of the request: otherwise a new experiment with the same name may own
the files.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cerebro.data.files.checkpoint_files import outdated
from cerebro.runtime.volumes import Volumes
from cerebro.state import Model, ModelState, Run

log = logging.getLogger(__name__)

_TRY_AGAIN_S = 5.0
"""Seconds before a failed removal is retried."""
_PATIENCE_S = 60.0
"""Maximum seconds without progress for which a run's end waits. Volumes may be slow, and files many."""
_SOON_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """Files of one model to remove.

    Attributes:
        model: id of the model.
        folder: the model's folder.
        keep: names of files that stay.
        named: names of files to remove; `None` for all others.
    """

    model: str
    folder: Path
    keep: frozenset[str]
    named: frozenset[str] | None

    @classmethod
    def of(cls, volumes: Volumes, experiment: str, run: Run, model: Model) -> Leftovers:
        """Return the files to remove by the log. If the model trains again, its next commit removes the rest."""
        own_files = {sub_epoch.checkpoint.name for sub_epoch in model.known_sub_epochs}
        # Compacted sub-epochs with files kept for verifications or as parent checkpoints.
        own_files.update(
            file
            for verification in run.verifications.known.values()
            if verification.sub_epoch.model == model.id
            for file in verification.files
        )
        own_files.update(
            sub_epoch.checkpoint.name
            for sub_epoch in run.checkpoints.parent_checkpoints_of(model, run.models)
        )
        kept_files = run.kept_checkpoints(model) & own_files
        is_trained_on = model.state is ModelState.ACTIVE or model.busy is not None
        named = _names(set() if is_trained_on else own_files - kept_files)
        return cls(
            model=model.id,
            folder=volumes.model_checkpoints(experiment, run.id, model.id),
            keep=_names(kept_files),
            named=named if is_trained_on or not model.is_pruned else None,
        )

    def remove(self, went: Callable[[], None] = lambda: None) -> None:
        """Remove the files. Idempotent.

        Args:
            went: called after each file.

        Raises:
            OSError: a file cannot be removed.
        """
        try:
            found = {path.name: path for path in self.folder.iterdir()}
            paths = outdated(self.folder, sys.maxsize, self.keep) if self.named is None else found.values()
        except FileNotFoundError:
            return
        for path in paths:
            if self.named is None or path.name in self.named:
                path.unlink(missing_ok=True)
                went()
        if self.named is None and not self.keep:
            with contextlib.suppress(OSError):  # it contains foreign files
                self.folder.rmdir()


def _names(checkpoints: Iterable[str]) -> frozenset[str]:
    return frozenset(Path(name).name for name in checkpoints)


class _Unfinished(NamedTuple):
    """Unfinished models: with failed removals, or with uncertain leadership."""

    stuck: list[str]
    unsure: list[str]


@dataclass(kw_only=True)
class _Handed:
    """A run's removals, shared with the thread.

    Attributes:
        num_processed: number of processed entries of `RunCheckpoints.pruned`.
        known: their number at the last check; more than `num_processed` while the thread works.
        batch: the pending removal; it returns the unfinished models.
        since: time of the last progress or submission; 0 if all is done. The thread writes it during a batch.
        again: models to retry, and the time.
        is_off: True to stop removing.
    """

    num_processed: int = 0
    known: int = 0
    batch: Future[_Unfinished] | None = None
    since: float = 0.0
    again: dict[str, float] = field(default_factory=dict)
    is_off: bool = False


class PrunedFiles:
    """Removes pruned files. Owned by the loop; not thread-safe.

    Args:
        leads: True if this controller certainly leads in that term; called by the thread.
        clock: monotonic seconds.
    """

    def __init__(
        self, volumes: Volumes, leads: Callable[[int], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._volumes, self._leads, self._clock = volumes, leads, clock
        self._thread = ThreadPoolExecutor(1, "pruning")
        self._runs: dict[tuple[str, str], _Handed] = {}

    def close(self) -> None:
        """Start no more removals."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def invalidate(self) -> None:
        """Start over, because another controller has led."""
        for name, _ in list(self._runs):
            self.forget(name)

    def forget(self, experiment: str) -> None:
        """Forget a deleted experiment; a later one with its name is different."""
        for of in [of for of in self._runs if of[0] == experiment]:
            self._runs.pop(of).is_off = True

    def keep(self, runs: Collection[tuple[str, str]]) -> None:
        """Forget all other runs (experiment, run) after their removals: they have ended.

        A run that resumes later is checked from the start.
        """
        self._runs = {
            of: handed
            for of, handed in self._runs.items()
            if of in runs or (handed.batch is not None and not handed.batch.done())
        }

    def reconcile(self, experiment: str, run: Run, term: int) -> None:
        """Remove newly pruned files, and retry failed removals.

        Args:
            term: term of the leadership.
        """
        if not run.checkpoints.pruned:
            return
        handed, now = self._runs.setdefault((experiment, run.id), _Handed()), self._clock()
        handed.known = len(run.checkpoints.pruned)
        if handed.batch is not None:
            if not handed.batch.done():
                return
            undone = handed.batch.result()
            handed.again |= dict.fromkeys(undone.stuck, now + _TRY_AGAIN_S) | dict.fromkeys(
                undone.unsure, now
            )
            handed.batch, handed.since = None, handed.since if undone.unsure else 0.0
        due = [name for name, at in handed.again.items() if at <= now]
        models = dict.fromkeys((*run.checkpoints.pruned[handed.num_processed :], *due))
        handed.num_processed = handed.known
        for name in models:
            handed.again.pop(name, None)
        if models:
            found = [Leftovers.of(self._volumes, experiment, run, run.models[name]) for name in models]
            handed.since = handed.since or now
            handed.batch = self._thread.submit(self._remove, handed, found, term)

    def is_busy(self, experiment: str, run: str) -> bool:
        """True if the run's end must wait for its files, as of the last `reconcile`."""
        handed = self._runs.get((experiment, run))
        if handed is None or not handed.since or self._clock() - handed.since > _PATIENCE_S:
            return False
        if handed.num_processed < handed.known or handed.batch is None or not handed.batch.done():
            return True
        return bool(handed.batch.result().unsure)

    def wake_s(self) -> float:
        """Return the seconds until `reconcile` has work; infinity if unknown."""
        return min((_SOON_S for of in self._runs if self.is_busy(*of)), default=float("inf"))

    def _remove(self, handed: _Handed, found: Iterable[Leftovers], term: int) -> _Unfinished:
        undone = _Unfinished([], [])

        def went() -> None:
            handed.since = self._clock()

        for each in found:
            if handed.is_off or not self._leads(term):
                undone.unsure.append(each.model)
                continue
            try:
                each.remove(went)
                went()
            except OSError as error:
                # An administrator must repair the volume; the other models continue.
                log.warning("pruned checkpoints in %s stay for now: %s", each.folder, error)
                undone.stuck.append(each.model)
        return undone
