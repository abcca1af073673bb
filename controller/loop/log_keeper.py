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
from typing import NamedTuple, Protocol

from cerebro.contract.records import ExperimentSummary
from cerebro.contract.segments import SegmentAnswer, SegmentRequest, SegmentsAnswer
from cerebro.errors import CerebroError, NotFoundError
from cerebro.state.snapshots import snapshot_format
from controller.loop.snapshot_process import SnapshotQuestion

log = logging.getLogger(__name__)

_LOOK_S = 5.0
_SWEEP_S = 600.0
"""Between two looks at experiments that nobody works on."""
_TRY_AGAIN_S, _LONGEST_S = 60.0, 3600.0
"""After a failure, and after many."""
_SETTLED_S = 60.0
"""After the controller has begun to lead: processes of kvs_api of the version before, which know no segments, are
replaced by then."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a log is folded.

    Attributes:
        seq: number of the newest event.
        created: of the experiment: another one may have its name later, seconds.
        grows: whether somebody works on the experiment.
        live_before: live points from before then are in TensorBoard's files once `seq` is, seconds; 0: not known.
    """

    seq: int
    created: float = 0.0
    grows: bool
    live_before: float = 0.0


class _Kept(NamedTuple):
    """The newest snapshot of a log: of which event; and live points from before when are in TensorBoard's files."""

    seq: int
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

    def cut(
        self, progress: Progress, snapshot: int, term: int, *, live_before: float = 0.0
    ) -> SegmentRequest:
        """What is to be cut off a log, as far as it is in a snapshot."""
        keep, least = (self.keep, self.segment) if progress.grows else (1, self.resting)
        return SegmentRequest(
            term=term,
            created=progress.created,
            until=snapshot,
            keep=keep,
            least=least,
            live_before=live_before,
        )


@dataclass
class LogKeeper:
    """Told by the loop how far logs are; `start` begins.

    Args:
        kvs: the store.
        make: makes a snapshot, and says which event is its newest (`controller.loop.snapshot_process.made`).
        leadership: the term in which this controller leads for certain, 0 if it does not; safe in any thread.
        is_settled: whether all of a log up to an event is in TensorBoard's files.
        show: reads a log that rests for these files: another controller may have led while it grew.
        question: server and token of kvs_api, to be filled in.
        rule: when which of a log is kept where.
    """

    kvs: KeepingStore
    make: Callable[[SnapshotQuestion], int]
    leadership: Callable[[], int]
    is_settled: Callable[[str, int], bool]
    show: Callable[[str], None]
    question: SnapshotQuestion
    rule: Rule = Rule()
    _told: dict[str, Progress] = field(default_factory=dict)
    _snapshots: dict[tuple[str, float], _Kept] = field(default_factory=dict)
    """By experiment and when that was created."""
    _cut: dict[tuple[str, float], Progress] = field(default_factory=dict)
    """Of logs that are cut as far as they may be: what they were then."""
    _shown: dict[str, int] = field(default_factory=dict)
    _rests: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Log -> until when it is left alone after a failure, and for how long that is."""
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
            self._told.pop(experiment, None)

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
        # Those that grow first: of those that rest there may be thousands, after an upgrade.
        for name, progress in sorted(told.items(), key=lambda each: not each[1].grows):
            if now >= self._rests.get(name, (now, 0.0))[0] and self.leadership() == term:
                self._keep(name, progress, term, now)

    def _sweep(self) -> None:
        """Those that nobody works on: their logs rest."""
        for summary in self.kvs.experiments():
            if not summary.open_runs and not summary.is_deleting and summary.unreadable is None:
                self.tell(
                    summary.experiment.name,
                    Progress(
                        seq=summary.last_seq,
                        created=summary.experiment.created,
                        grows=False,
                        live_before=summary.last_event,
                    ),
                )

    def _keep(self, name: str, progress: Progress, term: int, now: float) -> None:
        try:
            kept = self._kept(name, progress, term)
            if kept.seq and self._cut.get((name, progress.created)) != progress:
                request = self.rule.cut(progress, kept.seq, term, live_before=kept.live_before)
                while self.leadership() == term and self.kvs.cut(name, request).moved:
                    pass
                self._cut[name, progress.created] = progress
        except NotFoundError:
            self.forget(name)
            return
        except CerebroError as error:
            self._rest(name, now)
            log.warning("the log of %s stays as long as it is for now: %s", name or "the cluster", error)
            return
        except Exception:
            # Whatever it is that we did not foresee: this log is longer for it, and the others are kept.
            self._rest(name, now)
            log.exception("the log of %s stays as long as it is for now", name or "the cluster")
            return
        self._rests.pop(name, None)
        if not progress.grows:
            with self._lock:
                if self._told.get(name) == progress:
                    del self._told[name]

    def _rest(self, name: str, now: float) -> None:
        pause_s = min(2 * self._rests.get(name, (0.0, _TRY_AGAIN_S / 2))[1], _LONGEST_S)
        self._rests[name] = now + pause_s, pause_s

    def _kept(self, name: str, progress: Progress, term: int) -> _Kept:
        """The newest snapshot of a log, made now if it is due."""
        known = self._snapshots.get((name, progress.created))
        if known is None:
            found = [each for each in self.kvs.segments(name).snapshots if each.format == snapshot_format()]
            known = _Kept(max((each.seq for each in found), default=0))
        least = self.rule.least(progress)
        if progress.seq - known.seq >= least and self._is_settled(name, progress):
            asked = {
                "experiment": name,
                "created": progress.created,
                "until": progress.seq,
                "least": least,
                "term": term,
            }
            seq = self.make(self.question.model_copy(update=asked))
            known = _Kept(seq, progress.live_before)
        self._snapshots[name, progress.created] = known
        return known

    def _is_settled(self, name: str, progress: Progress) -> bool:
        if not name or self.is_settled(name, progress.seq):
            return True
        if not progress.grows and self._shown.get(name) != progress.seq:
            self._shown[name] = progress.seq
            self.show(name)
        return self.is_settled(name, progress.seq)
