"""More memory for a running pod: the request, and errors of the API server."""

from __future__ import annotations

import pytest

from cerebro.errors import ClusterError, RetryableError
from controller.kubernetes.access import RESIZE_RULES, RULES
from controller.kubernetes.reading import read_pod
from controller.scaling.orchestrator import Memory
from tests.controller.kubernetes.emulator import SET, Emulator, Fault
from tests.controller.kubernetes.pods import condition, pod
from tests.controller.kubernetes.watching import Watched

GIB = 1 << 30
POD = f"{SET}-1"


@pytest.fixture
def granted(emulator: Emulator, watched: Watched) -> Watched:
    """The chart permits larger memory limits for workers."""
    emulator.rules = (*RULES, *RESIZE_RULES)
    return watched


def of(content: object, container: str) -> Memory | None:
    """Return the memory of a container."""
    return read_pod(content).memory.get(container)  # type: ignore[arg-type]


def test_a_resize_changes_one_container_of_one_pod(granted: Watched) -> None:
    """The other container and pods stay unchanged, and the view shows the new size."""
    granted.orchestrator.resize(POD, "worker", Memory(GIB, 8 * GIB))
    pods = granted.emulator.objects["pods"]
    assert of(pods[POD], "worker") == (GIB, 8 * GIB)
    assert of(pods[POD], "etl") == (0, 2 * GIB)
    assert of(pods[f"{SET}-0"], "worker") == (0, 4 * GIB)
    granted.sees_the_truth()


def test_a_resize_adds_no_memory_request(granted: Watched) -> None:
    """A new memory request would change the quality-of-service class, which the server refuses."""
    granted.orchestrator.resize(POD, "worker", Memory(0, 8 * GIB))
    (patch,) = (request for request in granted.emulator.requests if request.verb == "patch")
    assert patch.body == {
        "spec": {"containers": [{"name": "worker", "resources": {"limits": {"memory": str(8 * GIB)}}}]}
    }


def test_a_resize_without_the_role_names_the_chart_value(watched: Watched) -> None:
    """The Role lacks the permission by default."""
    with pytest.raises(ClusterError, match=r"lacks pods/resize: `helm upgrade` with autoscaler\.resize=true"):
        watched.orchestrator.resize(POD, "worker", Memory(0, 8 * GIB))


def test_a_server_without_pod_resize_is_an_error(granted: Watched) -> None:
    """Servers before 1.33 give the same answer as for a deleted pod."""
    granted.emulator.resizes = False
    with pytest.raises(
        ClusterError, match=rf"pod {POD} to 8Gi.*offers no pods/resize.*before Kubernetes 1\.33"
    ):
        granted.orchestrator.resize(POD, "worker", Memory(0, 8 * GIB))


@pytest.mark.parametrize(
    ("faults", "error", "said"),
    [
        ([Fault(verb="patch", status=409)], None, ""),
        ([Fault(verb="patch", status=500)], RetryableError, "HTTP 500"),
        ([Fault(verb="patch")], RetryableError, "does not answer as it should"),
        ([Fault(verb="patch", status=422, body=b'{"message": "Pod QOS is immutable"}')], ClusterError, "immutable"),
    ],
)  # fmt: skip
def test_a_failed_resize_states_whether_to_retry(
    granted: Watched, faults: list[Fault], error: type[Exception] | None, said: str
) -> None:
    """The exception type decides, as for scaling."""
    granted.emulator.fail(*faults)
    if error is None:
        granted.orchestrator.resize(POD, "worker", Memory(0, 8 * GIB))
        return
    with pytest.raises(
        error, match=f"cannot raise the memory of container worker of pod {POD} to 8Gi.*{said}"
    ):
        granted.orchestrator.resize(POD, "worker", Memory(0, 8 * GIB))
    assert of(granted.emulator.objects["pods"][POD], "worker") == (0, 4 * GIB)


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("4Gi", 4 * GIB), ("1.5Gi", 3 * GIB // 2), (str(GIB), GIB), ("512Mi", GIB // 2), ("64Ki", 65536),
        ("2e9", 2 * 10**9), ("128974848k", 128974848000), ("1E", 10**18), ("lots", 0), ("", 0), (None, 0),
    ],
)  # fmt: skip
def test_memory_quantities_are_parsed(quantity: object, expected: int) -> None:
    """Invalid quantities count as no limit."""
    content = pod()
    content["spec"]["containers"][1]["resources"] = {"limits": {"memory": quantity}}
    assert (of(content, "worker") or Memory(0, 0)).limit == expected


def test_a_node_without_memory_for_a_resize_is_reported() -> None:
    """The kubelet reports it in a pod condition."""
    resize = condition("PodResizePending", "True", "Infeasible", "Node didn't have enough capacity: memory")
    assert read_pod(pod(conditions=[resize])).unresized == "Node didn't have enough capacity: memory"
    assert read_pod(pod()).unresized == ""
