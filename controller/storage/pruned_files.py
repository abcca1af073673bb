"""Taking from the disk what the log says is pruned.

Level-triggered: whoever begins to lead goes through all models of open runs that were pruned, and finds most of it
gone already. So a controller may die anywhere: the event comes before the first file goes, and a run ends only once its
files are gone, or cannot be removed: nothing of it has gone for a minute.

A model that is trained no further belongs to nobody but the controller: all of its folder goes that is not kept, with
savepoints, what dead writers have left, and bases that no file names any more. Of one that may yet be trained only
checkpoints that were committed go, by name: no attempt ever writes a file of that name again.

A thread removes, because a large file takes long, and a volume that hangs must not stop the loop. It removes nothing
unless this controller leads, in the term in which it was told: else the files may be those of a new experiment of the
same name.
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

from cerebro.data.checkpoint_files import outdated
from cerebro.runtime.volumes import Volumes
from cerebro.state import Model, ModelState, Run

log = logging.getLogger(__name__)

_TRY_AGAIN_S = 5.0
"""After something could not be removed."""
_PATIENCE_S = 60.0
"""So long the end of a run waits for another one of its files to go. A volume may be slow, and files many."""
_SOON_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What is to go of one model.

    Attributes:
        model: its id.
        folder: with its files.
        keep: names of files that stay.
        named: names of those that go; `None`: all but these.
    """

    model: str
    folder: Path
    keep: frozenset[str]
    named: frozenset[str] | None

    @classmethod
    def of(cls, volumes: Volumes, experiment: str, run: Run, model: Model) -> Leftovers:
        """As the log has it now. Of a model that is trained again, its next commit removes what is to go."""
        own = {visit.file for visit in model.known_visits}
        # Archived visits whose files were kept for others: those that audits read, and those that models begin with.
        own.update(
            file
            for audit in run.audits.known.values()
            if audit.sub_epoch.model == model.id
            for file in audit.files
        )
        own.update(visit.file for visit in run.origins_of(model))
        kept = run.kept_checkpoints(model) & own
        is_trained_on = model.state is ModelState.ACTIVE or model.busy is not None
        named = _names(set() if is_trained_on else own - kept)
        return cls(
            model=model.id,
            folder=volumes.model_checkpoints(experiment, run.id, model.id),
            keep=_names(kept),
            named=named if is_trained_on or not model.is_pruned else None,
        )

    def remove(self, went: Callable[[], None] = lambda: None) -> None:
        """Safe to be called again, wherever the first call ended.

        Args:
            went: called after each file.

        Raises:
            OSError: something cannot be removed.
        """
        try:
            found = {path.name: path for path in self.folder.iterdir()}
            gone = outdated(self.folder, sys.maxsize, self.keep) if self.named is None else found.values()
        except FileNotFoundError:
            return
        for path in gone:
            if self.named is None or path.name in self.named:
                path.unlink(missing_ok=True)
                went()
        if self.named is None and not self.keep:
            with contextlib.suppress(OSError):  # something is in it that is not ours
                self.folder.rmdir()


def _names(checkpoints: Iterable[str]) -> frozenset[str]:
    return frozenset(Path(name).name for name in checkpoints)


class _Left(NamedTuple):
    """Models that were not done: those of which something could not be removed, and those of which nobody knew whether
    this controller leads."""

    stuck: list[str]
    unsure: list[str]


@dataclass(kw_only=True)
class _Handed:
    """What the thread was told of a run.

    Attributes:
        told: how many of `Run.pruned`.
        known: how many there were when it was last looked at; more than `told` while the thread is at work.
        batch: what it is to remove; it ends with the models that it could not do.
        since: when something last went, or was handed over to an idle thread; 0 if all is done. While there is a batch
            the thread writes it.
        again: models to be done again, and when.
        is_off: nothing more of it is to be removed.
    """

    told: int = 0
    known: int = 0
    batch: Future[_Left] | None = None
    since: float = 0.0
    again: dict[str, float] = field(default_factory=dict)
    is_off: bool = False


class PrunedFiles:
    """Belongs to the loop; not thread-safe.

    Args:
        leads: whether this controller leads for certain, in that term; asked by the thread.
        clock: seconds; it does not go back.
    """

    def __init__(
        self, volumes: Volumes, leads: Callable[[int], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._volumes, self._leads, self._clock = volumes, leads, clock
        self._thread = ThreadPoolExecutor(1, "pruning")
        self._runs: dict[tuple[str, str], _Handed] = {}

    def close(self) -> None:
        """Begin no more removals."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def look_again(self) -> None:
        """Another controller has led: what is gone by now nobody knows."""
        for name, _ in list(self._runs):
            self.forget(name)

    def forget(self, experiment: str) -> None:
        """It is being deleted; one of its name that is made later is another one."""
        for of in [of for of in self._runs if of[0] == experiment]:
            self._runs.pop(of).is_off = True

    def keep(self, runs: Collection[tuple[str, str]]) -> None:
        """Forget other runs than these (experiment, run) once the thread has done with them: they have ended. One that
        goes on later is gone through anew."""
        self._runs = {
            of: handed
            for of, handed in self._runs.items()
            if of in runs or (handed.batch is not None and not handed.batch.done())
        }

    def tend(self, experiment: str, run: Run, term: int) -> None:
        """Have removed what was pruned since the last call, and what could not be removed then.

        Args:
            term: of the leadership.
        """
        if not run.pruned:
            return
        handed, now = self._runs.setdefault((experiment, run.id), _Handed()), self._clock()
        handed.known = len(run.pruned)
        if handed.batch is not None:
            if not handed.batch.done():
                return
            left = handed.batch.result()
            handed.again |= dict.fromkeys(left.stuck, now + _TRY_AGAIN_S) | dict.fromkeys(left.unsure, now)
            handed.batch, handed.since = None, handed.since if left.unsure else 0.0
        due = [name for name, at in handed.again.items() if at <= now]
        models = dict.fromkeys((*run.pruned[handed.told :], *due))
        handed.told = handed.known
        for name in models:
            handed.again.pop(name, None)
        if models:
            found = [Leftovers.of(self._volumes, experiment, run, run.models[name]) for name in models]
            handed.since = handed.since or now
            handed.batch = self._thread.submit(self._remove, handed, found, term)

    def is_busy(self, experiment: str, run: str) -> bool:
        """Whether the end of a run is to wait for its files to go, as of the last `tend`."""
        handed = self._runs.get((experiment, run))
        if handed is None or not handed.since or self._clock() - handed.since > _PATIENCE_S:
            return False
        if handed.told < handed.known or handed.batch is None or not handed.batch.done():
            return True
        return bool(handed.batch.result().unsure)

    def wake_s(self) -> float:
        """Seconds until `tend` has something to do; infinite if that is not known."""
        return min((_SOON_S for of in self._runs if self.is_busy(*of)), default=float("inf"))

    def _remove(self, handed: _Handed, found: Iterable[Leftovers], term: int) -> _Left:
        left = _Left([], [])

        def went() -> None:
            handed.since = self._clock()

        for each in found:
            if handed.is_off or not self._leads(term):
                left.unsure.append(each.model)
                continue
            try:
                each.remove(went)
                went()
            except OSError as error:
                # Somebody has to mend the volume; until then the others go on.
                log.warning("pruned checkpoints in %s stay for now: %s", each.folder, error)
                left.stuck.append(each.model)
        return left
