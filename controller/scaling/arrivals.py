"""Pods that are wanted and whose workers are not there yet: how long they are waited for, and with what. Pure, but for
what is remembered; belongs to the loop, not thread-safe.

- After the number of workers was changed, or a pod went, its partitions are not made anew for a minute.
- While a cluster wakes that rested (`controller.scaling.autoscaler.rest`), for ten: the pods' volumes hold all that
  there was, and their nodes may have to be made first. Meanwhile each run does what those that are there can do.
- After the number was raised, plans of ETL wait for ten minutes: they cut the data for the workers that are there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from cerebro.contract.records import WorkerStatus
from controller.scaling.cluster_snapshot import are_coming
from controller.scaling.orchestrator import Fleet

FILLING_S = 60.0
"""A pod whose image is on its node takes a few seconds; one that takes longer is not worth standing still."""
WAITED_S = 600.0
"""A node is made in some minutes."""
STALLED_S = 900.0
"""By then no node will come for a pod."""

_KINDS = frozenset({"train", "etl"})


class Arrivals:
    """What is known of one worker set; times are seconds of any one clock."""

    def __init__(self) -> None:
        self._filling: tuple[int, float] | None = None
        """How many pods are wanted, and since when some of them are to come."""
        self._size: int | None = None
        self._raised_at = -math.inf
        self._is_waking = False
        self._pending: dict[str, float] = {}
        """Pods that find no node, or are not made -> since when."""
        self._fleet: Fleet | None = None
        self._here = 0
        self._now = 0.0

    def see(
        self, statuses: Iterable[WorkerStatus], fleet: Fleet | None, now: float, *, is_waking: bool = False
    ) -> None:
        """Look at the workers that are registered, and at the pods; `None`: nobody tells of them now.

        Args:
            is_waking: workers come again that were given back.
        """
        self._now, self._fleet, self._is_waking = now, fleet, is_waking
        if fleet is None:
            self._filling = None
            return
        statuses = tuple(statuses)
        if fleet.size > (self._size if self._size is not None else 0 if is_waking else fleet.size):
            self._raised_at = now
        self._size = fleet.size
        self._here = _here(statuses, fleet)
        if self._here >= fleet.size:
            self._raised_at = -math.inf
        if not are_coming(statuses, fleet):
            self._filling = None
        elif self._filling is None or self._filling[0] != fleet.size:
            self._filling = (fleet.size, now)
        troubles = fleet.troubles()
        stuck = [name for name in troubles if fleet.is_wanted(name) and _has_no_node(name, fleet)]
        self._pending = {name: self._pending.get(name, now) for name in stuck}

    @property
    def is_filling(self) -> bool:
        """Whether what nobody holds may come with pods that are on their way."""
        is_new = self._filling is not None and self._now - self._filling[1] < FILLING_S
        return is_new or (self._is_waking and self.is_awaited)

    @property
    def is_awaited(self) -> bool:
        """Whether more workers were asked for a short while ago, and are not all there."""
        return self._now - self._raised_at < WAITED_S

    @property
    def told(self) -> str:
        """How far they are, for people; empty if none are awaited, and no node is being made for one."""
        if self._fleet is None:
            return ""
        is_made = any(map(self._fleet.is_wanted, self._fleet.expected))
        if not self.is_awaited and not is_made:
            return ""
        node = "; a node is being made" if is_made else ""
        return f"workers are starting: {self._here} of {self._fleet.size}{node}"

    def stalled(self) -> tuple[int, str] | None:
        """(how many workers to be content with, why): the last of those that are wanted have found no node for a
        quarter of an hour. A set gives up its last pods only, so one that is stuck before others stays."""
        if self._fleet is None:
            return None
        size, why = self._fleet.size, ""
        while size and (pod := _named(self._fleet, size - 1)) in self._pending:
            if self._now - self._pending[pod] < STALLED_S:
                break
            size, why = size - 1, f"{pod} had not found a node after 15 min: {self._fleet.troubles()[pod]}"
        return (size, why) if why else None


def _here(statuses: Iterable[WorkerStatus], fleet: Fleet) -> int:
    """Pods that are wanted, and whose workers have all registered, as far as others show which those are."""
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for status in statuses:
        if status.record.pod is not None and not status.is_lost:
            kinds[status.record.pod.uid].update(_KINDS.intersection(status.record.kinds))
    all_kinds = set[str]().union(*kinds.values())
    return sum(
        bool(all_kinds) and kinds[pod.uid] == all_kinds
        for name, pod in fleet.pods.items()
        if fleet.is_wanted(name)
    )


def _named(fleet: Fleet, ordinal: int) -> str:
    """The pod of an ordinal, of those that are there or could not be made."""
    return next((n for n in (*fleet.pods, *fleet.unmade) if n.rpartition("-")[2] == str(ordinal)), "")


def _has_no_node(name: str, fleet: Fleet) -> bool:
    return name in fleet.unmade or fleet.pods[name].is_pending
