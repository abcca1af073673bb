"""Reasons why pods of the worker set are not created, from the set's events. Pure.

`controller.kubernetes.orchestrator` reads the events and passes them to `creation_failures`. A refused pod (quota,
policy, a claim being deleted) does not exist and cannot be read. The StatefulSet's controller records each try in an
event on the set, and retries with pauses of up to a quarter of an hour; events are kept for an hour. Kubernetes:
`StatefulPodControl.CreateStatefulPod` and `recordPodEvent` (the messages), "Event v1 core" (fields).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from controller.kubernetes import reasons

_TRY = re.compile(r"\bPod (\S+) in StatefulSet \S+ (?:successful|failed error: (.*))", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class PodCreation:
    """Result of the newest try to create or delete a pod in an event.

    Attributes:
        pod: name of the pod.
        time: RFC 3339, in UTC: texts sort like times.
        problem: Kubernetes' message, or "" on success.
    """

    pod: str
    time: str
    problem: str = ""


def read_creation(event: Mapping[str, Any]) -> PodCreation | None:
    """Read an event of the API server; `None` for other subjects."""
    found = _TRY.search(str(event.get("message") or ""))
    if found is None:
        return None
    return PodCreation(pod=found[1], time=time_of(event), problem=(found[2] or "").strip())


def time_of(event: Mapping[str, Any]) -> str:
    """Return the last time of an event, as `PodCreation.time`."""
    series, metadata = event.get("series"), event.get("metadata")
    times = (
        series.get("lastObservedTime") if isinstance(series, Mapping) else None,
        event.get("lastTimestamp"),
        event.get("eventTime"),
        metadata.get("creationTimestamp") if isinstance(metadata, Mapping) else None,
    )
    return next((str(time) for time in times if time), "")


def creation_failures(missing: Set[str], tries: Iterable[PodCreation]) -> dict[str, str]:
    """Return missing pods with a failed newest try, and the reasons."""
    newest: dict[str, PodCreation] = {}
    for each in tries:
        known = newest.get(each.pod)
        if each.pod in missing and (known is None or each.time >= known.time):
            newest[each.pod] = each
    return {pod: _problem_text(each.problem) for pod, each in sorted(newest.items()) if each.problem}


def _problem_text(problem: str) -> str:
    cures = [cure for part, cure in reasons.REFUSED.items() if part.lower() in problem.lower()]
    return f"Kubernetes does not create it: {'; '.join((problem, *cures))}"
