"""Keeps logs short: has folds of them kept as snapshots, and what is in a snapshot moved out of the database.

`Rule` says when. While a log grows a snapshot is made each so many events, so that a controller that starts
again folds no more than these; once it rests one is made of all of it. What is cut off a log is in a snapshot by then:
to go on after a crash nobody needs a segment.

Nothing is in a snapshot that is not in TensorBoard's files yet: whoever starts from it shows them nothing of before.

A thread of its own, because a snapshot takes seconds and a volume may be slow. It may be killed anywhere: what it has
not done is found undone, and done the next time. What fails is tried again later, and disturbs nobody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cerebro.contract.records import ExperimentSummary
from cerebro.contract.segments import SegmentAnswer, SegmentRequest, SegmentsAnswer
from cerebro.errors import CerebroError, NotFoundError
from cerebro.state.snapshots import snapshot_format
from controller.snapshot_process import SnapshotQuestion

log = logging.getLogger(__name__)

_LOOK_S = 5.0
_SWEEP_S = 600.0
"""Between two looks at experiments that nobody works on."""
_TRY_AGAIN_S = 60.0
_SETTLED_S = 60.0
"""After the controller has begun to lead: processes of kvs_api of the version before, which know no segments, are
replaced by then."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a log is folded.

    Attributes:
        seq: number of the newest event.
        grows: whether somebody works on the experiment.
        live_before: live points from before then are in TensorBoard's files once `seq` is, seconds; 0: not known.
    """

    seq: int
    grows: bool
    live_before: float = 0.0


class KeepingStore(Protocol):
    """What is asked of the store, as `cerebro.runtime.kvs.KvsClient` does it."""

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """All experiments."""
        ...

    def segments(self, experiment: str) -> SegmentsAnswer:
        """What of a log is in files."""
        ...

    def cut(self, experiment: str, request: SegmentRequest) -> SegmentAnswer:
        """Move the oldest entries of a log out of the database."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When which of a log is kept where.

    Attributes:
        every: events between two snapshots of a log that grows: some seconds of folding.
        resting: a log that rests is left as it is, if fewer are new.
        keep: entries of a log that grows which stay in the database: whoever follows it reads these.
        segment: entries that are cut off a log that grows, at least: many small files compress badly.
    """

    every: int = 30_000
    resting: int = 300
    keep: int = 2_000
    segment: int = 10_000

    def least(self, progress: Progress) -> int:
        """New events of which a snapshot is made."""
        return self.every if progress.grows else self.resting

    def cut(self, progress: Progress, snapshot: int, term: int) -> SegmentRequest:
        """What is to be cut off a log, as far as it is in a snapshot."""
        keep, least = (self.keep, self.segment) if progress.grows else (1, self.resting)
        return SegmentRequest(
            term=term, until=snapshot, keep=keep, least=least, live_before=progress.live_before
        )


@dataclass
class LogKeeper:
    """Told by the loop how far logs are; `start` begins.

    Args:
        kvs: the store.
        make: makes a snapshot, and says which event is its newest (`controller.snapshot_process.made`).
        leadership: the term in which this controller leads for certain, 0 if it does not; safe in any thread.
        is_settled: whether all of a log up to an event is in TensorBoard's files.
        question: server and token of kvs_api, to be filled in.
        rule: when which of a log is kept where.
    """

    kvs: KeepingStore
    make: Callable[[SnapshotQuestion], int]
    leadership: Callable[[], int]
    is_settled: Callable[[str, int], bool]
    question: SnapshotQuestion
    rule: Rule = Rule()
    _told: dict[str, Progress] = field(default_factory=dict)
    _snapshots: dict[str, int] = field(default_factory=dict)
    _rests_until: dict[str, float] = field(default_factory=dict)
    _swept: float = float("-inf")
    _led: tuple[int, float] = 0, 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Begin, in a thread that lives as long as the process."""
        threading.Thread(target=self._run, name="log-keeper", daemon=True).start()

    def tell(self, experiment: str, progress: Progress) -> None:
        """How far a log is; the cluster's has no name. Returns at once; safe in any thread."""
        with self._lock:
            self._told[experiment] = progress

    def known(self, experiment: str) -> int:
        """The number of the newest event of a log that this was told of; less than none, if it was told of none."""
        told = self._told.get(experiment)
        return told.seq if told is not None else -self.rule.every

    def forget(self, experiment: str) -> None:
        """The experiment is deleted, and its name may be given to another one."""
        with self._lock:
            for known in (self._told, self._snapshots, self._rests_until):
                known.pop(experiment, None)

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            try:
                self.tend(time.monotonic())
            except Exception:
                # Whatever it is that we did not foresee: logs are longer for it, and all else goes on.
                log.exception("logs are not kept short just now")

    def tend(self, now: float) -> None:
        """Do what is due. Blocks; `now` is on a clock that only grows, seconds."""
        term = self.leadership()
        if term != self._led[0]:
            self._led = term, now
        if not term or now < self._led[1] + _SETTLED_S:
            return
        if now >= self._swept + _SWEEP_S:
            self._swept = now
            self._sweep()
        with self._lock:
            told = dict(self._told)
        for name, progress in told.items():
            if now >= self._rests_until.get(name, now):
                self._keep(name, progress, term, now)

    def _sweep(self) -> None:
        """Those that nobody works on: their logs rest."""
        for summary in self.kvs.experiments():
            if not summary.open_runs and not summary.is_deleting and summary.unreadable is None:
                before = summary.last_event
                self.tell(
                    summary.experiment.name, Progress(seq=summary.last_seq, grows=False, live_before=before)
                )

    def _keep(self, name: str, progress: Progress, term: int, now: float) -> None:
        try:
            if name not in self._snapshots:
                made = [
                    each for each in self.kvs.segments(name).snapshots if each.format == snapshot_format()
                ]
                self._snapshots[name] = max((each.seq for each in made), default=0)
            known = self._snapshots[name]
            least = self.rule.least(progress)
            is_due = progress.seq - known >= least
            if is_due and (not name or self.is_settled(name, progress.seq)):
                asked = {"experiment": name, "until": progress.seq, "least": least, "term": term}
                known = self.make(self.question.model_copy(update=asked))
                self._snapshots[name] = known
            if known:
                while (
                    self.leadership() == term
                    and self.kvs.cut(name, self.rule.cut(progress, known, term)).moved
                ):
                    pass
        except NotFoundError:
            self.forget(name)
            return
        except CerebroError as error:
            self._rests_until[name] = now + _TRY_AGAIN_S
            log.warning("the log of %s stays as long as it is for now: %s", name or "the cluster", error)
            return
        if not progress.grows:
            with self._lock:
                if self._told.get(name) == progress:
                    del self._told[name]
