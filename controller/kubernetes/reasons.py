"""Kubernetes' reasons and messages -> their effect on tasks, and remedies for users: tables only.

`reading` and `pod_creation` look them up. `{}` in a text is Kubernetes' message. Remedies name chart values.
Kinds: `PREEMPTED` if the task cannot be the cause; `CRASH`, a lost worker, if it may be: these are counted, so a
sub-epoch that ends one pod after another fails eventually.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from cerebro.contract.tasks.failures import FailureKind

_TAKEN, _LOST, _MEMORY = FailureKind.PREEMPTED, FailureKind.CRASH, FailureKind.OUT_OF_MEMORY


class Meaning(NamedTuple):
    """The effect on a task, and the message."""

    kind: FailureKind
    text: str


DISRUPTIONS: Final[Mapping[str, Meaning]] = {
    "EvictionByEvictionAPI": Meaning(_TAKEN, "evicted, as when a node is drained"),
    "PreemptionByScheduler": Meaning(
        _TAKEN, "a pod of higher priority takes its place: see priorityClasses.worker"
    ),
    "DeletionByTaintManager": Meaning(
        _TAKEN, "its node was tainted, as before a spot instance is reclaimed, or does not answer"
    ),
    "DeletionByPodGC": Meaning(_TAKEN, "its node was removed from the cluster"),
    "TerminationByKubelet": Meaning(_TAKEN, "its node shuts down or needs its resources: {}"),
}
"""Reasons of the pod condition `DisruptionTarget`. Documentation: "Disruptions", "Pod disruption conditions"."""

DELETED: Final = Meaning(
    _TAKEN, "the pod is deleted: by hand, by a smaller number of workers or by an upgrade"
)
"""A deletion without that condition."""

ENDS: Final[Mapping[str, Meaning]] = {
    "Evicted": Meaning(_LOST, "evicted by its node: {}"),
    "NodeLost": Meaning(_LOST, "its node does not answer: {}"),
    "Terminated": Meaning(_TAKEN, "its node shut down: {}"),
    "NodeShutdown": Meaning(_TAKEN, "its node shut down: {}"),
    "Shutdown": Meaning(_TAKEN, "its node shut down: {}"),
    "Preempting": Meaning(_TAKEN, "its node gave its resources to a critical pod: {}"),
    "NodeAffinity": Meaning(_TAKEN, "refused by its node, whose labels have changed: {}"),
    "UnexpectedAdmissionError": Meaning(_TAKEN, "refused by its node, as when GPUs fail: {}"),
    "DeadlineExceeded": Meaning(_TAKEN, "activeDeadlineSeconds of the pod has passed"),
}
"""``status.reason`` of a pod in the phase Failed.

Documentation: "Node-pressure Eviction", "Node Shutdowns", "Pod Lifecycle". A node's admission adds the
resource's name ("OutOfcpu", "OutOfnvidia.com/gpu").
"""

PRESSURES: Final[Mapping[str, Meaning]] = {
    "ephemeral": Meaning(_LOST, "raise worker.tmpSize, or give nodes more disk"),
    "EmptyDir": Meaning(_LOST, "raise worker.tmpSize or worker.sharedMemory"),
    "memory": Meaning(
        _MEMORY,
        "raise worker.resources.*.requests.memory to the used memory: pods below their request are spared",
    ),
    "DiskPressure": Meaning(_LOST, "give nodes more disk"),
    "PIDPressure": Meaning(_LOST, "start fewer processes in a container"),
}
"""Causes in the kubelet's message on an eviction. Documentation: "Node-pressure Eviction"."""

CONTAINER_ENDS: Final[Mapping[str, Meaning]] = {
    "Completed": Meaning(_TAKEN, "ended by itself, as it does when asked to"),
    "ContainerStatusUnknown": Meaning(_LOST, "its node lost track of it, as after a restart of the node"),
    "ContainerCannotRun": Meaning(_LOST, "could not be started: {}"),
    "StartError": Meaning(_LOST, "could not be started: {}"),
}
"""Reasons of a container's `terminated` state, besides OOMKilled and Error. Documentation: "Pod Lifecycle"."""

WAITS: Final[Mapping[str, str]] = {
    "ErrImagePull": "image {image} cannot be pulled: check images.registry, images.tag and images.pullSecrets ({})",
    "ImagePullBackOff": "image {image} cannot be pulled: check images.registry, images.tag and images.pullSecrets ({})",
    "ErrImageNeverPull": "image {image} is not on the node: load it there, or set images.pullPolicy to IfNotPresent",
    "ImageInspectError": "image {image} is damaged on the node: remove it there ({})",
    "RegistryUnavailable": "the registry of image {image} does not answer: {}",
    "InvalidImageName": "{image} is no name of an image: check images.registry, images.*.repository and images.tag",
    "CreateContainerConfigError": "a Secret or ConfigMap is missing or lacks a key: {}",
    "CreateContainerError": "the container cannot be made: {}",
    "RunContainerError": "the container cannot be started: {}",
    "CrashLoopBackOff": "it ends again and again, and is started with growing pauses: see `kubectl logs --previous`",
    "PreStartHookError": "its hook failed: {}",
    "PostStartHookError": "its hook failed: {}",
}
"""Persistent reasons of a container's `waiting` state. Documentation: "Images", "Pod Lifecycle"."""

UNSCHEDULABLE: Final[Mapping[str, str]] = {
    "Insufficient nvidia.com/gpu": "add nodes with free NVIDIA GPUs and their device plugin, or lower worker.gpus",
    "Insufficient amd.com/gpu": "add nodes with free AMD GPUs and their device plugin, or lower worker.gpus",
    "Insufficient cpu": "add nodes, or lower worker.resources.*.requests.cpu or worker.replicas",
    "Insufficient memory": "add nodes, or lower worker.resources.*.requests.memory or worker.replicas",
    "Insufficient ephemeral-storage": "add nodes with more disk",
    "Too many pods": "add nodes",
    "PersistentVolumeClaim": "no volume is found for a claim: check the classes under storage and worker.shards",
    "volume node affinity": "the worker's shards lie where no node fits: add a node in that zone",
    "were unschedulable": "a node is cordoned: kubectl uncordon NODE, or add nodes",
    "untolerated taint": "check worker.tolerations",
    "node affinity/selector": "check worker.nodeSelector and worker.affinity",
    "topology spread": "check worker.topologySpreadConstraints",
    "anti-affinity": "check worker.affinity",
}
"""Parts of the scheduler's message -> remedy, ignoring case.

Documentation: "Assigning Pods to Nodes", "Taints and Tolerations", "Pod Topology Spread Constraints".
"""

REFUSED: Final[Mapping[str, str]] = {
    "exceeded quota": "raise the namespace's ResourceQuota, or lower worker.replicas or worker.resources",
    "failed quota": "the namespace's ResourceQuota requires a value that worker.resources does not set: set it there",
    "is being deleted": "it goes when no pod uses it any more (`kubectl get pvc`); a new, empty one is made then",
    "violates PodSecurity": "the namespace enforces a Pod Security profile: see storage.handOver, or change its label",
    "per Container is": "the namespace's LimitRange: change worker.resources or the range",
    "per Pod is": "the namespace's LimitRange: change worker.resources or the range",
    "no PriorityClass": "set priorityClasses.create to true, or name an existing class",
    "serviceaccount": "`helm upgrade` restores the chart's service accounts",
    "admission webhook": "a policy of the cluster refuses it: ask who runs the cluster",
    "failed calling webhook": "a webhook that the cluster asks about pods does not answer: ask who runs the cluster",
}
"""Parts of the message on a refused pod or claim -> remedy, ignoring case.

Documentation: "Resource Quotas", "Limit Ranges", "Pod Security Admission", "Dynamic Admission Control".
"""

GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu")
"""Documentation: "Schedule GPUs". GPUs are given in limits, as integers."""
