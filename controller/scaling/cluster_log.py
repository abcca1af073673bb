"""The cluster log, read and written by the leading controller.

`controller.loop.cluster_facts` calls `reconcile` before the experiments decide. It writes only events of workers and
replicas, which `controller.scaling.cluster_decision` derives; experiments' logs are not touched.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from cerebro.contract.events import ClusterEvent, ReplicasChanged
from cerebro.contract.records import Replica
from cerebro.contract.rest import api
from cerebro.errors import IllegalEventError, UnreadableClusterLogError
from cerebro.state import ClusterState
from cerebro.state.snapshots import restored_cluster
from controller.loop.event_logging import line
from controller.scaling.cluster_decision import Life, decide, replicas
from controller.scaling.cluster_snapshot import ClusterSnapshot

log = logging.getLogger(__name__)


class ClusterLogStore(Protocol):
    """The calls to the store, as in `cerebro.runtime.kvs.client.KvsClient`."""

    def cluster_log(self, after: int = 0, *, wait_s: float = 0.0) -> tuple[ClusterEvent, ...]:
        """Return events of the cluster log after a cursor."""
        ...

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        """Return a stored fold of the log."""
        ...

    def write_cluster_log(self, request: api.ClusterLogRequest) -> api.ClusterLogAnswer:
        """Append events, unless the log has newer ones than the request's cursor."""
        ...


class ClusterLog:
    """The fold of the cluster log, and its writer. Owned by the loop; not thread-safe.

    Attributes:
        state: the fold.
    """

    def __init__(self, kvs: ClusterLogStore) -> None:
        self._kvs = kvs
        self.state = ClusterState()
        self._is_behind = True
        self._registered: dict[str, tuple[Replica, ...]] = {}

    def invalidate(self) -> None:
        """Read the log again: another controller may have written."""
        self._is_behind = True

    def read_on(self) -> None:
        """Read new events of another controller. Raises like `reconcile`."""
        if not self.state.seq:
            self.state = restored_cluster(self._kvs)
        while self._is_behind and (events := self._kvs.cluster_log(self.state.seq)):
            self._apply(events)
        self._is_behind = False

    def reconcile(
        self,
        term: int,
        snapshot: ClusterSnapshot,
        *,
        ending: Collection[Life] = (),
        busy: Collection[str] = (),
    ) -> bool:
        """Write new events; return True if there were any. Experiments then read on before they decide.

        Args:
            ending, busy: as for `controller.scaling.cluster_decision.decide`.

        Raises:
            ConflictError: another controller leads.
            RetryableError: the store is unavailable.
            UnreadableClusterLogError: an event is unreadable or does not fit.
        """
        self.read_on()
        news = tuple(self._news(snapshot, ending, busy))
        if not news:
            return False
        answer = self._kvs.write_cluster_log(
            api.ClusterLogRequest(term=term, after=self.state.seq, events=news)
        )
        self._apply(answer.events)
        self._is_behind = not answer.is_written
        for event in news if answer.is_written else ():
            about = {} if isinstance(event, ReplicasChanged) else {"worker": event.worker}
            log.info("%s", line(event), extra=about)
        return True

    def _news(
        self, snapshot: ClusterSnapshot, ending: Collection[Life], busy: Collection[str]
    ) -> Iterable[ClusterEvent]:
        events = decide(self.state, snapshot, ending=ending, busy=busy)
        registered = {name: view.replicas for name, view in snapshot.workers.items()}
        if not events and not _are_same(registered, self._registered):
            events = [*replicas(self.state, snapshot)]
            self._registered = registered
        return events

    def _apply(self, events: Iterable[ClusterEvent]) -> None:
        for event in events:
            try:
                self.state.apply(event)
            except IllegalEventError as cause:
                raise UnreadableClusterLogError.for_event("", event.seq, str(cause)) from cause
            self._registered = {}


def _are_same(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """True if both have identical objects: registrations that were not read again."""
    return one.keys() == other.keys() and all(value is other[name] for name, value in one.items())
