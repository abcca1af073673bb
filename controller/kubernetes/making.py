"""Why pods of the worker set are not made: what the set's own events say of it. Pure.

A pod that is refused (a quota is used up, a policy forbids it, its claim is being deleted) does not exist, so nothing
of it can be read. The StatefulSet's controller tells of each try in an event on the set, and tries again with pauses of
up to a quarter of an hour; events are kept for an hour.

Kubernetes: `StatefulPodControl.CreateStatefulPod` and `recordPodEvent` (the messages), "Event v1 core" (fields).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from controller.kubernetes import reasons

_TRY = re.compile(r"\bPod (\S+) in StatefulSet \S+ (?:successful|failed error: (.*))", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Making:
    """What became of the newest try to make or delete a pod that an event tells of.

    Attributes:
        pod: its name.
        time: RFC 3339, in UTC: texts sort as times do.
        problem: what Kubernetes says of it; empty if it worked.
    """

    pod: str
    time: str
    problem: str = ""


def read_making(event: Mapping[str, Any]) -> Making | None:
    """Of an event as the API server gives it; `None` of one that is about something else."""
    found = _TRY.search(str(event.get("message") or ""))
    if found is None:
        return None
    return Making(pod=found[1], time=time_of(event), problem=(found[2] or "").strip())


def time_of(event: Mapping[str, Any]) -> str:
    """When what it tells has happened, the last time; as `Making.time`."""
    series, metadata = event.get("series"), event.get("metadata")
    times = (
        series.get("lastObservedTime") if isinstance(series, Mapping) else None,
        event.get("lastTimestamp"),
        event.get("eventTime"),
        metadata.get("creationTimestamp") if isinstance(metadata, Mapping) else None,
    )
    return next((str(time) for time in times if time), "")


def unmade(missing: Set[str], tries: Iterable[Making]) -> dict[str, str]:
    """Pods that are wanted and not there, and why: of those whose newest try failed."""
    newest: dict[str, Making] = {}
    for each in tries:
        known = newest.get(each.pod)
        if each.pod in missing and (known is None or each.time >= known.time):
            newest[each.pod] = each
    return {pod: _told(each.problem) for pod, each in sorted(newest.items()) if each.problem}


def _told(problem: str) -> str:
    cures = [cure for part, cure in reasons.REFUSED.items() if part.lower() in problem.lower()]
    return f"Kubernetes does not make it: {'; '.join((problem, *cures))}"
