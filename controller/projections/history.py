"""Results of sub-epochs, stored for later runs, and read for new ones.

The loop calls it; not thread-safe. Estimates are made in `controller.projections.priors`.

A report is the sums over a range of event numbers. The store counts a
range only once, so a controller that dies, or leads while another one still does, counts nothing twice and
omits nothing. (The last sub-epochs of an inactive log may be missing if the controller died before it
reported them: a later one starts from a snapshot.)
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, Protocol

from cerebro.contract.events import Event, TaskCommitted
from cerebro.contract.records import CodeRecord, Hyperparameters
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.stored.history import (
    History,
    HistoryAnswer,
    HistoryRequest,
    SubEpochHistory,
    SubEpochKey,
)
from cerebro.contract.trials import DeviceKind
from cerebro.errors import ConflictError, PermanentError
from cerebro.state import CompletedSubEpoch, ExperimentState, Run, TaskKey
from controller.decisions.core import Core
from controller.projections.priors import Priors
from controller.projections.sub_epoch_times import shown_by, technique_of

log = logging.getLogger(__name__)

_EVERY_S, _MANY = 10.0, 200
"""Seconds, and number of sub-epochs, between two reports. Unreported ones are in the log, for the next controller."""

_AT_ONCE = 1000
"""Maximum sub-epochs of a request."""


class HistoryStore(Protocol):
    """The calls to the store, as in `cerebro.runtime.kvs.client.KvsClient`."""

    def history(self) -> History:
        """Return the whole history."""
        ...

    def count_history(self, request: HistoryRequest) -> HistoryAnswer:
        """Add the results of events."""
        ...

    def code(self, sha256: str) -> CodeRecord:
        """Return code by its hash."""
        ...


class Shown(NamedTuple):
    """The result of one sub-epoch."""

    seq: int
    code: str
    """Hash of the code."""
    dataset: str
    hyperparams: Hyperparameters
    device: DeviceKind | None
    parallel_plan: str
    """The plan's name as in `SubEpochKey.of`."""
    row: SubEpochHistory


@dataclass(kw_only=True)
class _Log:
    """The counted part of an experiment's log."""

    upto: int
    waiting: deque[Shown] = field(default_factory=deque)
    since: float = 0.0
    """Arrival of the first waiting result."""


def shown(state: ExperimentState, event: Event) -> Shown | None:
    """Return the result in an event that `state` has just applied, or `None`."""
    if not isinstance(event, TaskCommitted):
        return None
    key = TaskKey.parse(event.task)
    run = state.runs[key.run]
    if key.kind != "train" or not isinstance(run.plan, FitPlan) or not isinstance(run.request, FitRequest):
        return None
    model = run.models[key.model or ""]
    sub_epoch = model.sub_epochs[-1]
    row = _row(sub_epoch)
    if row is None:
        return None
    return Shown(
        event.seq,
        run.request.code,
        run.plan.dataset,
        model.hyperparams_of(len(model.sub_epochs) - 1),
        state.workers[sub_epoch.worker].device,
        _parallel_plan(sub_epoch),
        row,
    )


def _row(sub_epoch: CompletedSubEpoch) -> SubEpochHistory | None:
    rows, seconds, fixed_s = shown_by(sub_epoch)
    if rows <= 0 or seconds <= 0:
        return None
    return SubEpochHistory.of(rows=rows, seconds=seconds, fixed_s=fixed_s, peak_bytes=sub_epoch.peak_bytes)


def priors(
    rows: Mapping[str, SubEpochHistory], state: ExperimentState, run: Run, *, code: str = ""
) -> Priors:
    """Return the priors of a started fit run.

    Args:
        code: fingerprint of its spec; the hash of its code by default.
    """
    assert isinstance(run.plan, FitPlan)
    assert isinstance(run.request, FitRequest)
    devices = {worker.device for worker in state.workers.values() if worker.trains}
    return Priors(rows, code=code or run.request.code, dataset=run.plan.dataset, devices=devices)


def _parallel_plan(sub_epoch: CompletedSubEpoch) -> str:
    workers = f" on {1 + len(sub_epoch.other_members)} workers" if sub_epoch.other_members else ""
    return f"{technique_of(sub_epoch.parallel_plan)}{workers}"


class RunHistory:
    """Reports results of sub-epochs, and reads priors.

    Args:
        monotonic: elapsed seconds.
    """

    def __init__(self, store: HistoryStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._monotonic = store, monotonic
        self._logs: dict[str, _Log] = {}
        self._fingerprints: dict[str, str] = {}
        self._warned = 0

    # --- reports ---------------------------------------------------------------------------------

    def open(self, experiment: str, term: int) -> None:
        """Read the counted part of a log before the log is loaded. Raises like `reconcile`."""
        if experiment not in self._logs:
            self._count(experiment, HistoryRequest(term=term, experiment=experiment, after=0, upto=0))

    def apply(self, state: ExperimentState, event: Event) -> None:
        """Collect the result in `event`, which was applied to `state`."""
        known = self._logs.get(state.name)
        if known is None or event.seq <= known.upto:
            return
        found = shown(state, event)
        if found is not None:
            known.since = known.since if known.waiting else self._monotonic()
            known.waiting.append(found)

    def begin(self, state: ExperimentState) -> None:
        """Continue a log from this fold; its events were reported before (`is_settled`)."""

    def is_settled(self, experiment: str, seq: int) -> bool:
        """True if no result of a log's first `seq` events is unreported. Thread-safe."""
        known = self._logs.get(experiment)
        try:
            return known is None or known.waiting[0].seq > seq
        except IndexError:
            return True

    def forget(self, experiment: str) -> None:
        """Forget a deleted experiment."""
        self._logs.pop(experiment, None)

    def reconcile(self, term: int) -> None:
        """Report results that have waited long enough. Usually cheap.

        Raises:
            ConflictError: another controller leads.
            RetryableError: the store is unavailable.
        """
        now = self._monotonic()
        for experiment, known in [*self._logs.items()]:
            if known.waiting and (now - known.since >= _EVERY_S or len(known.waiting) >= _MANY):
                self._send_report(experiment, known, term)

    def _send_report(self, experiment: str, known: _Log, term: int) -> None:
        batch = [*islice(known.waiting, _AT_ONCE)]
        sub_epochs: dict[str, SubEpochHistory] = {}
        for each in batch:
            key = str(self._key(each))
            sub_epochs[key] = sub_epochs[key].with_more(each.row) if key in sub_epochs else each.row
        request = HistoryRequest(
            term=term, experiment=experiment, after=known.upto, upto=batch[-1].seq, sub_epochs=sub_epochs
        )
        self._count(experiment, request)

    def _count(self, experiment: str, request: HistoryRequest) -> None:
        try:
            answer = self._store.count_history(request)
        except ConflictError:
            raise
        except PermanentError as error:
            # The experiment is gone, or the store refuses: the history is optional.
            log.info("what sub-epochs of %s have shown is not kept: %s", experiment, error)
            self._logs.pop(experiment, None)
            return
        known = self._logs.setdefault(experiment, _Log(upto=answer.upto))
        # Skip the events that another controller has counted; the rest is reported next.
        known.upto = answer.upto
        while known.waiting and known.waiting[0].seq <= answer.upto:
            known.waiting.popleft()

    def _key(self, each: Shown) -> SubEpochKey:
        return SubEpochKey.of(
            code=self._fingerprint(each.code),
            dataset=each.dataset,
            hyperparams=each.hyperparams,
            device=each.device,
            parallel_plan=each.parallel_plan,
        )

    def _fingerprint(self, code: str) -> str:
        """Return the fingerprint of a spec's content, independent of its encoding."""
        if code not in self._fingerprints:
            try:
                self._fingerprints[code] = self._store.code(code).fingerprint
            except PermanentError:
                self._fingerprints[code] = code
        return self._fingerprints[code]

    # --- priors ----------------------------------------------------------------------------------

    def inform(self, core: Core, run: Run) -> None:
        """Give a started fit run its priors, once. Raises `RetryableError`."""
        is_fit = isinstance(run.plan, FitPlan) and isinstance(run.request, FitRequest)
        if not is_fit or not run.models or core.expects(run):
            return
        core.expect(run, self._priors(core.state, run))

    def _priors(self, state: ExperimentState, run: Run) -> Priors | None:
        assert isinstance(run.request, FitRequest)
        try:
            found = self._store.history()
        except PermanentError as error:
            log.info("%s of %s begins without a history: %s", run.id, state.name, error)
            return None
        if found.unreadable > self._warned:
            log.warning(
                "%d rows of the history cannot be read and are ignored: they are damaged, or a newer version wrote "
                "them; `cerebro forget history` removes all",
                found.unreadable,
            )
        self._warned = max(self._warned, found.unreadable)
        return priors(found.sub_epochs, state, run, code=self._fingerprint(run.request.code))
