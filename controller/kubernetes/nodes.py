"""Pods that wait for a starting node, from the pods' events, for `controller.kubernetes.orchestrator`. Pure.

The cluster autoscaler reports `TriggeredScaleUp`, or `NotTriggerScaleUp` if no node would help. Karpenter and
its variants, such as EKS Auto Mode, report `Nominated` with the node's claim, or `FailedScheduling` in their
own words. Events are kept for an hour and a node may fail to start, so the newest event counts while the pod
waits. Cluster autoscaler: `EventingScaleUpStatusProcessor`. Karpenter: `NominatePodEvent`,
`PodFailedToScheduleEvent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.kubernetes.pod_creation import time_of
from controller.scaling.orchestrator import Pod

_CLAIMS = ("nodeclaim/", "machine/")
"""Karpenter's names for a starting node, by version; an existing one is ``node/``."""
_REFUSAL = "Failed to schedule pod"
"""Start of Karpenter's message; the scheduler's differs."""


@dataclass(frozen=True, kw_only=True)
class NodeNews:
    """The content of an event.

    Attributes:
        pod: uid of its pod; a later pod with the same name has another uid.
        time: RFC 3339, in UTC: texts sort like times.
        is_made: True if a node is starting for the pod.
    """

    pod: str
    time: str
    is_made: bool


def read_news(event: Mapping[str, Any]) -> NodeNews | None:
    """Read an event of the API server; `None` for other subjects."""
    of, reason, message = event.get("involvedObject"), event.get("reason"), str(event.get("message") or "")
    if not isinstance(of, Mapping):
        return None
    if reason == "Nominated":
        is_made = any(claim in message for claim in _CLAIMS)
    elif reason in ("TriggeredScaleUp", "NotTriggerScaleUp"):
        is_made = reason == "TriggeredScaleUp"
    elif reason == "FailedScheduling" and _REFUSAL in message:
        is_made = False
    else:
        return None
    return NodeNews(pod=str(of.get("uid", "")), time=time_of(event), is_made=is_made)


def expected(pods: Mapping[str, Pod], news: Iterable[NodeNews]) -> frozenset[str]:
    """Return names of pods that wait for a starting node."""
    newest: dict[str, NodeNews] = {}
    for each in news:
        known = newest.get(each.pod)
        if known is None or (each.time, known.is_made) >= (known.time, each.is_made):
            newest[each.pod] = each
    return frozenset(
        name
        for name, pod in pods.items()
        if pod.is_pending and (node_news := newest.get(pod.uid)) is not None and node_news.is_made
    )
