"""Worker pods as `kubectl get pod -o json` prints them."""

from __future__ import annotations

import copy
from typing import Any

from tests.controller.kubernetes.emulator import NAMESPACE, SET

Json = dict[str, Any]

IMAGE = "registry.example.org/cerebro/cerebro-worker:0.1.0"

_RUNNING = {"running": {"startedAt": "2026-11-21T06:00:12Z"}}


def pod(ordinal: int = 0, uid: str = "", *, gpus: int = 0, **status: Any) -> Json:
    """A running pod; `status` replaces status fields."""
    name = f"{SET}-{ordinal}"
    uid = uid or f"6f1c2a9e-0000-4000-8000-{ordinal:012d}"
    limits: Json = {"memory": "4Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "creationTimestamp": "2026-11-21T06:00:00Z",
            "generateName": f"{SET}-",
            "labels": {
                "app": "cerebro",
                "apps.kubernetes.io/pod-index": str(ordinal),
                "component": "worker",
                "controller-revision-hash": f"{SET}-7d9c5b6f4d",
                "statefulset.kubernetes.io/pod-name": name,
            },
            "name": name,
            "namespace": NAMESPACE,
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "blockOwnerDeletion": True,
                    "controller": True,
                    "kind": "StatefulSet",
                    "name": SET,
                    "uid": "5e7",
                }
            ],
            "uid": uid,
        },
        "spec": {
            "containers": [
                {"image": IMAGE, "name": "etl", "resources": {"limits": {"memory": "2Gi"}}},
                {"image": IMAGE, "name": "worker", "resources": {"limits": limits}},
            ],
            "nodeName": "node-a",
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 40,
        },
        "status": {
            "conditions": [
                {"type": "PodReadyToStartContainers", "status": "True", "lastProbeTime": None},
                {"type": "Initialized", "status": "True", "lastProbeTime": None},
                {"type": "Ready", "status": "True", "lastProbeTime": None},
                {"type": "ContainersReady", "status": "True", "lastProbeTime": None},
                {"type": "PodScheduled", "status": "True", "lastProbeTime": None},
            ],
            "containerStatuses": [container("etl"), container("worker")],
            "hostIP": "10.0.0.7",
            "phase": "Running",
            "podIP": "10.244.0.12",
            "qosClass": "Burstable",
            "startTime": "2026-11-21T06:00:00Z",
            **status,
        },
    }


def container(name: str, state: Json = _RUNNING, last: Json | None = None, restarts: int = 0) -> Json:
    return {
        "containerID": "containerd://5f3b",
        "image": IMAGE,
        "imageID": "sha256:9c1d",
        "lastState": {"terminated": last} if last else {},
        "name": name,
        "ready": "running" in state,
        "restartCount": restarts,
        "started": "running" in state,
        "state": state,
    }


def terminated(reason: str, code: int, message: str = "") -> Json:
    """The terminated state of a container."""
    said = {"message": message} if message else {}
    return {
        "containerID": "containerd://5f3a",
        "exitCode": code,
        "finishedAt": "2026-11-21T06:04:00Z",
        "reason": reason,
        "startedAt": "2026-11-21T06:00:10Z",
        **said,
    }


def waiting(reason: str, message: str = "") -> Json:
    """The waiting state of a container."""
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def condition(kind: str, status: str, reason: str, message: str = "") -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastProbeTime": None}


def deleted(content: Json, *conditions: Json) -> Json:
    """Return the pod during its deletion grace period."""
    content = copy.deepcopy(content)
    content["metadata"] |= {"deletionTimestamp": "2026-11-21T06:05:40Z", "deletionGracePeriodSeconds": 40}
    content["status"].setdefault("conditions", []).extend(conditions)
    return content
