"""Explanations of missing pods from the worker set's events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.kubernetes.pod_creation import PodCreation, creation_failures, read_creation
from tests.controller.kubernetes.emulator import SET, creation

FIRST, SECOND = f"{SET}-0", f"{SET}-1"


@pytest.mark.parametrize(
    ("problem", "cure"),
    [
        ('pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=3', "ResourceQuota"),
        ("pvc shards-cerebro-worker-1 is being deleted", "a new, empty one"),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsUser=0', "storage.handOver"),
        ("maximum memory usage per Container is 1Gi, but limit is 4Gi", "LimitRange"),
        ("no PriorityClass with name lab-cerebro-worker was found", "priorityClasses.create"),
        ('admission webhook "policy.example.org" denied the request', "who runs the cluster"),
        ("something that nobody has seen yet", "something"),
    ],
)
def test_a_refused_pod_is_explained_with_a_fix(problem: str, cure: str) -> None:
    """The text quotes Kubernetes and names the chart value."""
    attempt = read_creation(creation(SECOND, problem))
    assert attempt is not None
    explanation = creation_failures({SECOND}, [attempt])[SECOND]
    assert explanation.startswith(f"Kubernetes does not create it: {problem}")
    assert cure in explanation


@given(
    st.lists(
        st.tuples(st.sampled_from([FIRST, SECOND]), st.integers(0, 59), st.sampled_from(["", "quota"])),
        unique_by=lambda item: item[:2],
    ),
    st.sets(st.sampled_from([FIRST, SECOND])),
)
def test_the_newest_attempt_explains_a_missing_pod(
    tries: list[tuple[str, int, str]], missing: set[str]
) -> None:
    """For each missing pod, in any event order; a successful attempt is no explanation."""
    attempts = [
        PodCreation(pod=pod, time=f"2026-11-21T06:00:{second:02d}Z", problem=why)
        for pod, second, why in tries
    ]
    expected = set()
    for pod in missing:
        of_pod = sorted((second, why) for name, second, why in tries if name == pod)
        expected |= {pod} if of_pod and of_pod[-1][1] else set()
    assert set(creation_failures(missing, attempts)) == expected


_ODD = st.sampled_from((None, 7, "", "x", [], ["x"], {}, {"lastObservedTime": 7}))


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("message", "series", "lastTimestamp", "metadata", "eventTime"), _ODD)
    )
)
def test_malformed_events_are_read(fields: dict[str, Any]) -> None:
    """Any field may be missing or have a wrong type."""
    pod_creation = read_creation(creation(SECOND, "no") | fields)
    assert pod_creation is None or pod_creation.pod == SECOND or "message" in fields
