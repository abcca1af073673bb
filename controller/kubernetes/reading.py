"""Reads a pod object of the API server as the controller's `Pod`: why it ends or does not start, and its resources.

Pure. `controller.kubernetes.orchestrator` calls `read_pod` for each change of a pod; `reasons` has the meanings.

Kubernetes documentation: "Pod Lifecycle" (phases, conditions, container states, termination), "Pod v1 core"
(fields).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from cerebro.contract.tasks.failures import FailureKind
from controller.kubernetes import reasons
from controller.kubernetes.reasons import Meaning
from controller.scaling.orchestrator import Exit, Memory, Pod

_SIGNALLED = 128
"""Offset of the exit code of a process ended by a signal, in shells and container runtimes."""

_TELLING = (FailureKind.OUT_OF_MEMORY, FailureKind.CRASH, FailureKind.PREEMPTED)
"""Kinds of ends, the most informative first."""


def read_pod(pod: Mapping[str, Any]) -> Pod:
    """Read a pod from the API server. Missing fields and fields of another type count as absent."""
    metadata, status = _part(pod, "metadata"), _part(pod, "status")
    dead, exits = _dead(pod), _exits(pod)
    return Pod(
        uid=str(metadata.get("uid", "")),
        leaving=_leaving(status) if metadata.get("deletionTimestamp") and dead is None else None,
        dead=dead,
        exits=exits,
        ended={name: exits[name] for name in _idle(status) if name in exits},
        problem="" if dead else _pod_problem(pod),
        is_pending=not dead and _condition(status, "PodScheduled").get("status") == "False",
        gpus=_gpus(pod),
        memory=_memory(pod),
        unresized=_unresized(status),
    )


# --- how it ends -------------------------------------------------------------------------------------


def _leaving(status: Mapping[str, Any]) -> Exit:
    """Return why a pod is deleted, during its grace period.

    Only for deleted pods: the condition `DisruptionTarget` alone may be withdrawn.
    """
    if status.get("reason") == "NodeLost":
        # The control plane marked it. Its processes may still run, so the lease decides.
        return _said(reasons.ENDS["NodeLost"], str(status.get("message", "")))
    return _disruption(status) or _said(reasons.DELETED, "")


def _disruption(status: Mapping[str, Any]) -> Exit | None:
    condition = _condition(status, "DisruptionTarget")
    meaning = reasons.DISRUPTIONS.get(str(condition.get("reason")))
    if condition.get("status") != "True" or meaning is None:
        return None
    return _said(meaning, str(condition.get("message", "")))


def _dead(pod: Mapping[str, Any]) -> Exit | None:
    """Return why no container runs or will run.

    A phase alone is not certain: an evicted pod is Failed while the kubelet still ends its containers.
    """
    status = _part(pod, "status")
    phase = status.get("phase")
    if phase not in ("Failed", "Succeeded") or any(
        _part(container, "state").get("running") is not None for container in _containers(status)
    ):
        return None
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    if reason == "Evicted":
        return _evicted(message)
    if reason.startswith("OutOf"):
        return Exit(reason=f"refused by its node ({reason}): {message}", kind=FailureKind.PREEMPTED)
    if reason in reasons.ENDS:
        return _said(reasons.ENDS[reason], message)
    if _part(pod, "metadata").get("deletionTimestamp") or _disruption(status) is not None:
        # A process killed after its grace period did not fail: it was taken away.
        return _leaving(status)
    # The most informative end.
    ends = sorted(_exits(pod).items(), key=lambda item: _TELLING.index(item[1].kind))
    if ends:
        name, end = ends[0]
        return Exit(reason=f"container {name}: {end.reason}", kind=end.kind, limit_bytes=end.limit_bytes)
    kind = FailureKind.PREEMPTED if phase == "Succeeded" else FailureKind.CRASH
    return Exit(
        reason=": ".join(filter(None, (f"the pod has ended ({reason or phase})", message))), kind=kind
    )


def _evicted(message: str) -> Exit:
    meaning = reasons.ENDS["Evicted"]
    for word, (kind, cure) in reasons.PRESSURES.items():
        if word in message:
            return Exit(reason=f"{meaning.text.format(message.strip())}: {cure}", kind=kind)
    return _said(meaning, message)


def _exits(pod: Mapping[str, Any]) -> dict[str, Exit]:
    """Return the last end of a process for each container."""
    found = {}
    for container in _containers(_part(pod, "status")):
        end = _ended(container, pod)
        if end is not None:
            found[str(container.get("name", ""))] = end
    return found


def _ended(container: Mapping[str, Any], pod: Mapping[str, Any]) -> Exit | None:
    ended = _part(container, "state").get("terminated") or _part(container, "lastState").get("terminated")
    name = str(container.get("name", ""))
    return _exit(name, ended, _spec(pod, name)) if isinstance(ended, Mapping) else None


def _idle(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield containers without a running process: ended, or waiting for a start."""
    for container in _containers(status):
        state = _part(container, "state")
        if state.get("running") is None and (state.get("terminated") or state.get("waiting")):
            yield str(container.get("name", ""))


def _exit(name: str, ended: Mapping[str, Any], spec: Mapping[str, Any]) -> Exit:
    reason, code = str(ended.get("reason") or ""), _number(ended.get("exitCode"))
    if reason == "OOMKilled":
        limit = _part(_part(spec, "resources"), "limits").get("memory")
        beyond = f"its memory limit of {limit}" if limit else "the memory of its node: it has no memory limit"
        key = f"worker.resources.{name}.limits.memory"
        return Exit(
            reason=f"OOMKilled: container {name} went beyond {beyond}; make batches or models smaller, or "
            f"{'raise' if limit else 'set'} {key} in the chart's values",
            kind=FailureKind.OUT_OF_MEMORY,
            limit_bytes=_bytes(limit),
        )
    if reason in reasons.CONTAINER_ENDS:
        return _said(reasons.CONTAINER_ENDS[reason], str(ended.get("message") or ""))
    if code in (0, _SIGNALLED + signal.SIGTERM):
        # The kubelet sends SIGTERM; a process without a handler yet dies from it.
        return _said(reasons.CONTAINER_ENDS["Completed"], "")
    said = f"ended with exit code {code}{_signal_name(code)}"
    message = str(ended.get("message") or "").strip()
    return Exit(reason=f"{said}: {message}" if message else said, kind=FailureKind.CRASH)


def _signal_name(code: int) -> str:
    try:
        return f" ({signal.Signals(code - _SIGNALLED).name})"
    except ValueError:
        return ""


# --- why it does not run -----------------------------------------------------------------------------


def _pod_problem(pod: Mapping[str, Any]) -> str:
    """Return the first persistent reason why the pod does not run."""
    status = _part(pod, "status")
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        message = str(scheduled.get("message") or scheduled.get("reason") or "").strip()
        cures = [cure for part, cure in reasons.UNSCHEDULABLE.items() if part.lower() in message.lower()]
        return f"no node fits: {'; '.join((message, *cures))}"
    for container in _containers(status, "initContainerStatuses", "containerStatuses"):
        waiting = _part(_part(container, "state"), "waiting")
        text = reasons.WAITS.get(str(waiting.get("reason")))
        if text is not None:
            message = str(waiting.get("message") or waiting["reason"]).strip()
            said = text.format(message, image=container.get("image", ""))
            return f"container {container.get('name', '')}: {said}{_last_end(container, pod)}"
    return ""


def _last_end(container: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """Return the last end of a container that waits for its restart."""
    end = _ended(container, pod)
    return f" (the last time: {end.reason})" if end else ""


# --- resources ---------------------------------------------------------------------------------------


def _gpus(pod: Mapping[str, Any]) -> int:
    limits = [
        _part(_part(container, "resources"), "limits")
        for container in _list(_part(pod, "spec"), "containers")
    ]
    return sum(_number(of.get(resource)) for of in limits for resource in reasons.GPU_RESOURCES)


_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18} | {
    unit: 1 << 10 * (power + 1) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
}
"""Suffixes of memory quantities. Documentation: "Quantity", "Resource Management for Pods and Containers"."""


def _memory(pod: Mapping[str, Any]) -> dict[str, Memory]:
    found = {}
    for container in _list(_part(pod, "spec"), "containers"):
        resources = _part(container, "resources")
        request, limit = (_bytes(_part(resources, which).get("memory")) for which in ("requests", "limits"))
        if limit:
            found[str(container.get("name", ""))] = Memory(request, limit)
    return found


def _bytes(quantity: object) -> int:
    """Return bytes; 0 for an invalid quantity."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)([kMGTPE]|[KMGTPE]i)?", str(quantity))
    return int(float(found[1]) * _SUFFIXES[found[2] or ""]) if found else 0


def _unresized(status: Mapping[str, Any]) -> str:
    """Return why a resize has no effect: the node has no room, now or ever."""
    pending = _condition(status, "PodResizePending")
    if pending.get("status") != "True":
        return ""
    return str(pending.get("message") or pending.get("reason") or "its node does not say why").strip()


# --- parts of an object ------------------------------------------------------------------------------


def _said(meaning: Meaning, message: str) -> Exit:
    text = meaning.text.format(message.strip() or "no more is known")
    return Exit(reason=text, kind=meaning.kind)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((c for c in _list(status, "conditions") if c.get("type") == kind), {})


def _containers(status: Mapping[str, Any], *fields: str) -> Iterator[Mapping[str, Any]]:
    for field in fields or ("containerStatuses",):
        yield from _list(status, field)


def _spec(pod: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    containers = _list(_part(pod, "spec"), "containers")
    return next((spec for spec in containers if spec.get("name") == container), {})


def _part(of: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = of.get(field)
    return value if isinstance(value, Mapping) else {}


def _list(of: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    value = of.get(field)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _number(value: object) -> int:
    """Return an integer, which the API gives as a number or a quantity's text."""
    return int(str(value)) if re.fullmatch(r"\d+", str(value)) else 0
