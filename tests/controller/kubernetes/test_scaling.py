"""Requests for a number of workers, and errors of the API server."""

from __future__ import annotations

import pytest

from cerebro.errors import ClusterError, RetryableError
from tests.controller.kubernetes.emulator import SET, Fault
from tests.controller.kubernetes.watching import Watched


def test_the_worker_set_scales_to_zero_and_back(watched: Watched) -> None:
    """All pods stop, and a later size restores them."""
    watched.orchestrator.scale(0)
    for ordinal in range(3):
        watched.emulator.delete("pods", f"{SET}-{ordinal}")
    watched.sees_the_truth()
    fleet = watched.orchestrator.fleet()
    assert fleet is not None
    assert (fleet.size, fleet.pods, fleet.is_wanted(f"{SET}-0")) == (0, {}, False)
    watched.orchestrator.scale(3)
    assert watched.emulator.objects["statefulsets"][SET]["spec"]["replicas"] == 3


@pytest.mark.parametrize(
    ("faults", "error", "said"),
    [
        ([Fault(verb="patch", status=409)] * 5, RetryableError, "HTTP 409"),
        ([Fault(verb="patch", status=429, headers={"Retry-After": "1"})], RetryableError, "HTTP 429"),
        ([Fault(verb="patch", status=500)], RetryableError, "HTTP 500"),
        ([Fault(verb="patch")], RetryableError, "does not answer as it should"),
        ([Fault(verb="patch", status=403, body=b'{"message": "cannot patch"}')], ClusterError, "Role lacks this verb"),
        ([Fault(verb="patch", status=404, body=b'{"message": "not found"}')], ClusterError, "CEREBRO_WORKER_SET"),
        ([Fault(verb="patch", status=422, body=b'{"message": "invalid"}')], ClusterError, "invalid"),
    ],
)  # fmt: skip
def test_a_failed_scaling_states_whether_to_retry(
    watched: Watched, faults: list[Fault], error: type[Exception], said: str
) -> None:
    """The exception type decides; the message quotes the server."""
    watched.emulator.fail(*faults)
    with pytest.raises(error, match=f"cannot scale StatefulSet {SET} to 4.*{said}"):
        watched.orchestrator.scale(4)
    assert watched.emulator.objects["statefulsets"][SET]["spec"]["replicas"] == 3
