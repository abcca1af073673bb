"""Snapshots of logs, and moving old entries out of the database.

`Rule` says when. A growing log gets a snapshot every `every` events, so a restarted controller folds no more
than these; an inactive log gets one of all events. Entries are cut only after a snapshot has them, so
recovery needs no segment. A snapshot contains only events that TensorBoard's files have too, because a reader
that starts there shows them nothing earlier.

It has its own thread, because a snapshot takes seconds and a volume may be slow. It may be killed anywhere:
unfinished work is found and done the next time. Failed work is retried later and delays nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cerebro.contract.records import ExperimentSummary
from cerebro.contract.stored.segments import SegmentAnswer, SegmentRequest, SegmentsAnswer
from cerebro.errors import CerebroError, NotFoundError
from cerebro.state.snapshots import snapshot_format
from controller.loop.snapshot_process import SnapshotQuestion

log = logging.getLogger(__name__)

_POLL_S = 5.0
_SWEEP_S = 600.0
"""Seconds between two scans for inactive experiments."""
_TRY_AGAIN_S, _LONGEST_S = 60.0, 3600.0
"""Seconds to wait after a failure, and the maximum after many."""
_SETTLED_S = 60.0
"""Seconds after the start of the term until old processes of kvs_api, which know no segments, are replaced."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The folded part of a log.

    Attributes:
        seq: number of the newest event.
        created: creation time of the experiment in seconds; another one may get its name later.
        grows: True for an active experiment.
        live_before: time in seconds before which all live points are in TensorBoard's files once `seq` is; 0
            if unknown.
    """

    seq: int
    created: float = 0.0
    grows: bool
    live_before: float = 0.0


class _NewestSnapshot(NamedTuple):
    """Event number of a log's newest snapshot, and its `live_before`."""

    seq: int
    live_before: float = 0.0


class KeepingStore(Protocol):
    """The calls to the store, as in `cerebro.runtime.kvs.client.KvsClient`."""

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        """Return all experiments."""
        ...

    def segments(self, experiment: str) -> SegmentsAnswer:
        """Return the segments of a log."""
        ...

    def cut(self, experiment: str, request: SegmentRequest) -> SegmentAnswer:
        """Move the oldest entries of a log out of the database."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Thresholds for snapshots and segments.

    Attributes:
        every: events between two snapshots of a growing log: some seconds of folding.
        resting: minimum new events for a snapshot of an inactive log.
        keep: entries of a growing log that stay in the database for its followers.
        segment: minimum entries to cut off a growing log: small files compress badly.
    """

    every: int = 30_000
    resting: int = 300
    keep: int = 2_000
    segment: int = 10_000

    def least(self, progress: Progress) -> int:
        """Return the minimum new events for a snapshot."""
        return self.every if progress.grows else self.resting

    def cut(
        self, progress: Progress, snapshot: int, term: int, *, live_before: float = 0.0
    ) -> SegmentRequest:
        """Return the request to cut the entries that a snapshot has."""
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
    """Keeps logs short in a background thread. The loop reports their progress.

    Args:
        kvs: the store.
        make: makes a snapshot and returns its newest event number (`controller.loop.snapshot_process.make_snapshot`).
        leadership: returns the term that this controller certainly leads, else 0; thread-safe.
        is_settled: True if TensorBoard's files have a log up to an event.
        show: reads an inactive log for these files, because another controller may have led while it grew.
        question: server and token of kvs_api, to be completed.
        rule: thresholds.
    """

    kvs: KeepingStore
    make: Callable[[SnapshotQuestion], int]
    leadership: Callable[[], int]
    is_settled: Callable[[str, int], bool]
    show: Callable[[str], None]
    question: SnapshotQuestion
    rule: Rule = Rule()
    _progress: dict[str, Progress] = field(default_factory=dict)
    _snapshots: dict[tuple[str, float], _NewestSnapshot] = field(default_factory=dict)
    """By experiment and its creation time."""
    _cut: dict[tuple[str, float], Progress] = field(default_factory=dict)
    """Progress of logs at their last complete cut."""
    _shown: dict[str, int] = field(default_factory=dict)
    _rests: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Log -> end and length of its pause after a failure."""
    _swept: float = float("-inf")
    _led: tuple[int, float] = 0, 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start the thread, which lives as long as the process."""
        threading.Thread(target=self._run, name="log-keeper", daemon=True).start()

    def report(self, experiment: str, progress: Progress) -> None:
        """Report a log's progress; the cluster log has the name "". Returns at once; thread-safe."""
        with self._lock:
            self._progress[experiment] = progress

    def known(self, experiment: str) -> int:
        """Return the newest reported event number of a log; negative without a report."""
        progress = self._progress.get(experiment)
        return progress.seq if progress is not None else -self.rule.every

    def forget(self, experiment: str) -> None:
        """Forget a deleted experiment; its name may be used again."""
        with self._lock:
            self._progress.pop(experiment, None)

    def _run(self) -> None:
        while True:
            time.sleep(_POLL_S)
            try:
                self.reconcile(time.monotonic())
            except Exception:
                # An unexpected error only leaves logs longer.
                log.exception("logs are not kept short just now")

    def reconcile(self, now: float) -> None:
        """Do the work that is due. Blocks; `now` is monotonic seconds."""
        term = self.leadership()
        if term != self._led[0]:
            self._led = term, now
        if not term or now < self._led[1] + _SETTLED_S:
            return
        if now >= self._swept + _SWEEP_S:
            self._swept = now
            self._sweep()
        with self._lock:
            progress_by_log = dict(self._progress)
        # Growing logs first: after an upgrade there may be thousands of inactive ones.
        for name, progress in sorted(progress_by_log.items(), key=lambda each: not each[1].grows):
            if now >= self._rests.get(name, (now, 0.0))[0] and self.leadership() == term:
                self._keep(name, progress, term, now)

    def _sweep(self) -> None:
        """Process the logs of inactive experiments."""
        for summary in self.kvs.experiments():
            if not summary.open_runs and not summary.is_deleting and summary.unreadable is None:
                self.report(
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
            snapshot = self._ensure_snapshot(name, progress, term)
            if snapshot.seq and self._cut.get((name, progress.created)) != progress:
                request = self.rule.cut(progress, snapshot.seq, term, live_before=snapshot.live_before)
                while self.leadership() == term and self.kvs.cut(name, request).moved:
                    pass
                self._cut[name, progress.created] = progress
        except NotFoundError:
            self.forget(name)
            return
        except CerebroError as error:
            self._rest(name, now)
            log.warning("the log of %s is not shortened for now: %s", name or "the cluster", error)
            return
        except Exception:
            # An unexpected error only leaves this log longer; the others continue.
            self._rest(name, now)
            log.exception("the log of %s is not shortened for now", name or "the cluster")
            return
        self._rests.pop(name, None)
        if not progress.grows:
            with self._lock:
                if self._progress.get(name) == progress:
                    del self._progress[name]

    def _rest(self, name: str, now: float) -> None:
        pause_s = min(2 * self._rests.get(name, (0.0, _TRY_AGAIN_S / 2))[1], _LONGEST_S)
        self._rests[name] = now + pause_s, pause_s

    def _ensure_snapshot(self, name: str, progress: Progress, term: int) -> _NewestSnapshot:
        """Return the newest snapshot of a log, making one if due."""
        known = self._snapshots.get((name, progress.created))
        if known is None:
            found = [each for each in self.kvs.segments(name).snapshots if each.format == snapshot_format()]
            known = _NewestSnapshot(max((each.seq for each in found), default=0))
        least = self.rule.least(progress)
        if progress.seq - known.seq >= least and self._is_settled(name, progress):
            request_fields = {
                "experiment": name,
                "created": progress.created,
                "until": progress.seq,
                "least": least,
                "term": term,
            }
            seq = self.make(self.question.model_copy(update=request_fields))
            known = _NewestSnapshot(seq, progress.live_before)
        self._snapshots[name, progress.created] = known
        return known

    def _is_settled(self, name: str, progress: Progress) -> bool:
        if not name or self.is_settled(name, progress.seq):
            return True
        if not progress.grows and self._shown.get(name) != progress.seq:
            self._shown[name] = progress.seq
            self.show(name)
        return self.is_settled(name, progress.seq)
