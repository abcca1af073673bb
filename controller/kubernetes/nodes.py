"""Whether a node is being made for a pod that fits on none: what the events of pods say of it. Pure.

Whoever makes nodes tells it of the pod that the node is for: the cluster autoscaler as `TriggeredScaleUp`, or
`NotTriggerScaleUp` if none would help; Karpenter (and what is made of it, such as EKS Auto Mode) as `Nominated` with
the claim of the node, or `FailedScheduling` in words of its own. Events are kept for an hour, and a node that was begun
may come to nothing: the newest of them counts, while the pod still waits.

Cluster autoscaler: `EventingScaleUpStatusProcessor`. Karpenter: `NominatePodEvent`, `PodFailedToScheduleEvent`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.kubernetes.making import time_of
from controller.scaling.orchestrator import Pod

_CLAIMS = ("nodeclaim/", "machine/")
"""Of a node that is not there yet, as Karpenter names it, by version; one that is there is ``node/``."""
_REFUSAL = "Failed to schedule pod"
"""With which Karpenter's words begin; the scheduler's do not."""


@dataclass(frozen=True, kw_only=True)
class NodeNews:
    """What an event tells.

    Attributes:
        pod: uid of the pod that it is about: a later one of the same name has another.
        time: RFC 3339, in UTC: texts sort as times do.
        is_made: whether a node is being made for it.
    """

    pod: str
    time: str
    is_made: bool


def read_news(event: Mapping[str, Any]) -> NodeNews | None:
    """Of an event as the API server gives it; `None` of one that is about something else."""
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
    """Names of the pods that fit on no node, and for which one is being made."""
    newest: dict[str, NodeNews] = {}
    for each in news:
        known = newest.get(each.pod)
        if known is None or (each.time, known.is_made) >= (known.time, each.is_made):
            newest[each.pod] = each
    return frozenset(
        name
        for name, pod in pods.items()
        if pod.is_pending and (told := newest.get(pod.uid)) is not None and told.is_made
    )
