"""Interpretation of pod objects, without I/O."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.tasks.failures import FailureKind
from controller.kubernetes.reading import read_pod
from controller.scaling.orchestrator import Pod
from tests.controller.kubernetes.pods import IMAGE, condition, container, deleted, pod, terminated, waiting

TAKEN, LOST, MEMORY = FailureKind.PREEMPTED, FailureKind.CRASH, FailureKind.OUT_OF_MEMORY

Json = dict[str, Any]


def disrupted(reason: str, message: str = "") -> Json:
    return condition("DisruptionTarget", "True", reason, message)


def ended(*ends: Json) -> list[Json]:
    return [container(name, {"terminated": end}) for name, end in zip(("etl", "worker"), ends, strict=True)]


def failed(reason: str, message: str, **status: Any) -> Json:
    """A pod that its node stopped or refused; the kubelet gives the reason in the status."""
    return pod(phase="Failed", reason=reason, message=message, containerStatuses=[], **status)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ((), "deleted: by hand, by a smaller number"),
        ((disrupted("EvictionByEvictionAPI", "Eviction API: evicting"),), "node is drained"),
        ((disrupted("PreemptionByScheduler"),), "higher priority"),
        ((disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),), "tainted"),
        ((disrupted("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown."),),
         "imminent node shutdown"),
        ((disrupted("SomethingNew"),), "deleted"),
        ((condition("DisruptionTarget", "False", "EvictionByEvictionAPI"),), "deleted: by hand"),
    ],
)  # fmt: skip
def test_a_deleted_pod_is_leaving_and_preempted(conditions: tuple[Json, ...], said: str) -> None:
    """For any reason, the attempt there is not charged."""
    read = read_pod(deleted(pod(), *conditions))
    assert read.leaving is not None
    assert read.leaving.kind is TAKEN
    assert said in read.leaving.reason
    assert read.dead is None


def test_an_unresponsive_node_does_not_prove_that_a_pod_is_dead() -> None:
    """Its processes may still run, so only the lease decides when to stop waiting."""
    said = "Node node-a which was running pod cerebro-worker-0 is unresponsive"
    content = deleted(pod(reason="NodeLost", message=said))
    read = read_pod(content)
    assert read.dead is None
    assert read.leaving is not None
    assert read.leaving.kind is LOST
    assert "unresponsive" in read.leaving.reason


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        (failed("Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "
                "Container worker was using 3Gi, request is 384Mi, has larger consumption of memory. "),
         MEMORY, "worker.resources.*.requests.memory"),
        (failed("Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 4Gi. "),
         LOST, "worker.tmpSize"),
        (failed("Evicted", 'Usage of EmptyDir volume "tmp" exceeds the limit "4Gi". '), LOST, "worker.tmpSize"),
        (failed("Evicted", "The node had condition: [DiskPressure]. "), LOST, "more disk"),
        (failed("Evicted", "Pod was evicted"), LOST, "Pod was evicted"),
        (failed("Terminated", "Pod was terminated in response to imminent node shutdown."), TAKEN, "shut down"),
        (failed("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed"), TAKEN, "labels"),
        (failed("UnexpectedAdmissionError", "Pod was rejected: Allocate failed due to no healthy devices present; "
                "cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected"), TAKEN, "no healthy devices"),
        (failed("OutOfnvidia.com/gpu", "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu"),
         TAKEN, "OutOfnvidia.com/gpu"),
        (failed("", "", conditions=[disrupted("DeletionByPodGC", "PodGC: node no longer exists")]), TAKEN, "removed"),
        (pod(phase="Failed", containerStatuses=ended(terminated("Error", 1), terminated("OOMKilled", 137))),
         MEMORY, "container worker: OOMKilled"),
        (pod(phase="Failed", containerStatuses=ended(terminated("Completed", 0), terminated("Error", 139))),
         LOST, "SIGSEGV"),
        (deleted(pod(phase="Failed", containerStatuses=ended(terminated("Completed", 0), terminated("Error", 137)))),
         TAKEN, "deleted"),
        (pod(phase="Succeeded", containerStatuses=ended(terminated("Completed", 0), terminated("Completed", 0))),
         TAKEN, "ended by itself"),
        (pod(phase="Failed", containerStatuses=[]), LOST, "has ended"),
    ],
)  # fmt: skip
def test_an_ended_pod_is_dead_with_a_reason(content: Json, kind: FailureKind, said: str) -> None:
    """The user sees the reason and a fix; the kind decides the cost for a task."""
    read = read_pod(content)
    assert read.dead is not None
    assert read.dead.kind is kind
    assert said in read.dead.reason
    assert read.leaving is None
    assert read.problem == ""


@pytest.mark.parametrize(
    ("end", "kind", "said"),
    [
        (terminated("OOMKilled", 137), MEMORY, "memory limit of 4Gi"),
        (terminated("OOMKilled", 137), MEMORY, "raise worker.resources.worker.limits.memory"),
        (terminated("Error", 137), LOST, "exit code 137 (SIGKILL)"),
        (terminated("Error", 139), LOST, "exit code 139 (SIGSEGV)"),
        (terminated("Error", 1, "Traceback: boom"), LOST, "exit code 1: Traceback: boom"),
        (terminated("Error", 143), TAKEN, "asked to"),
        (terminated("Completed", 0), TAKEN, "asked to"),
        (terminated("StartError", 128, "exec: no such file"), LOST, "no such file"),
        (terminated("ContainerStatusUnknown", 137, "The container could not be located"), LOST, "lost track"),
    ],
)
@pytest.mark.parametrize("is_back", [True, False])
def test_the_exit_of_a_container_is_reported(end: Json, kind: FailureKind, said: str, is_back: bool) -> None:
    """Before a restart the exit is in `state`, afterwards in `lastState`."""
    status = (
        container("worker", last=end, restarts=1) if is_back else container("worker", {"terminated": end})
    )
    read = read_pod(pod(containerStatuses=[container("etl"), status]))
    exits = read.exits
    assert exits.keys() == {"worker"}
    assert read.ended == ({} if is_back else exits)
    assert exits["worker"].kind is kind
    assert said in exits["worker"].reason
    assert exits["worker"].limit_bytes == (4 << 30 if kind is MEMORY else 0)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'), IMAGE),
        (waiting("ImagePullBackOff"), "images.pullSecrets"),
        (waiting("ErrImagePull", "rpc error: code = NotFound"), "code = NotFound"),
        (waiting("InvalidImageName", "couldn't parse image name"), "images.*.repository"),
        (
            waiting("CreateContainerConfigError", 'secret "cerebro-auth" not found'),
            'secret "cerebro-auth" not found',
        ),
        (waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container"), "kubectl logs --previous"),
    ],
)
def test_a_container_that_cannot_start_has_a_reason(state: Json, said: str) -> None:
    """The text names a fix."""
    read = read_pod(pod(phase="Pending", containerStatuses=[container("etl"), container("worker", state)]))
    assert said in read.problem
    assert read.problem.startswith("container worker: ")


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        (
            "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available",
            "worker.gpus",
        ),
        ("0/1 nodes are available: 1 Insufficient memory.", "requests.memory"),
        ("0/1 nodes are available: 1 node(s) were unschedulable.", "kubectl uncordon"),
        (
            "0/2 nodes are available: 2 node(s) had untolerated taint {nvidia.com/gpu: present}.",
            "worker.tolerations",
        ),
        (
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            "worker.nodeSelector",
        ),
        (
            "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            "classes under storage",
        ),
        ("0/2 nodes are available: 2 node(s) had volume node affinity conflict.", "in that zone"),
    ],
)
def test_an_unschedulable_pod_reports_what_is_missing(message: str, cure: str) -> None:
    """The text has the scheduler's words and the chart value."""
    unscheduled = [condition("PodScheduled", "False", "Unschedulable", message)]
    read = read_pod(pod(phase="Pending", conditions=unscheduled, containerStatuses=[]))
    assert message in read.problem
    assert cure in read.problem


def test_gpus_of_all_containers_are_summed() -> None:
    """Both vendors count, and without a limit there are none."""
    content = pod(gpus=4)
    content["spec"]["containers"][0]["resources"]["limits"]["amd.com/gpu"] = 1
    assert read_pod(content).gpus == 5
    assert read_pod(pod()).gpus == 0


_JSON: st.SearchStrategy[Any] = st.sampled_from(
    (None, True, 7, -1, "", "x", [], [None], ["x"], [[]], [{}], {}, {"x": 7}, {"name": []})
)
"""One value of each type: random values took longer to build than to read."""


def _paths(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    return [path, *(found for key, value in inner for found in _paths(value, (*path, key)))]


_FULL = deleted(
    failed("Evicted", "memory") | {"x": 1},
    condition("PodScheduled", "False", "Unschedulable", "x"),
)
_FULL["status"]["containerStatuses"] = [
    container("worker", waiting("CrashLoopBackOff"), terminated("Error", 9))
]


@given(path=st.sampled_from([path for path in _paths(_FULL) if path]), value=_JSON)
def test_malformed_pods_are_read(path: tuple[Any, ...], value: Any) -> None:
    """Any field may be missing or have a wrong type; the other fields are read."""
    content = copy.deepcopy(_FULL)
    inner: Any = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert isinstance(read_pod(content), Pod)
