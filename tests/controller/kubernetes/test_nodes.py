"""Nodes under construction, as reported by events of pods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.kubernetes.nodes import NodeNews, expected, read_news
from controller.scaling.orchestrator import Pod
from tests.controller.kubernetes.emulator import of_pod


@pytest.mark.parametrize(
    ("reason", "message", "is_made"),
    [
        ("TriggeredScaleUp", "pod triggered scale-up: [{gpu-pool 1->2 (max: 8)}]", True),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached", False),
        ("Nominated", "Pod should schedule on: nodeclaim/default-75hvl", True),
        ("Nominated", "Pod should schedule on: machine/default-75hvl", True),
        ("Nominated", "Pod should schedule on: node/ip-10-0-0-7", False),
        (
            "FailedScheduling",
            'Failed to schedule pod, all instance types exceed limits for nodepool "gpu"',
            False,
        ),
        ("FailedScheduling", "0/3 nodes are available: 3 Insufficient cpu.", None),
        ("Pulled", "Container image is on the machine/ already", None),
    ],
)
def test_only_node_autoscalers_report_new_nodes(reason: str, message: str, is_made: bool | None) -> None:
    """Only the cluster autoscaler and Karpenter report new nodes; other events and existing nodes do not count."""
    news = read_news(of_pod("a", reason, message))
    assert (news and news.is_made) == is_made


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 59), st.booleans()), unique_by=lambda i: i[:2])
)
def test_the_newest_event_of_a_pending_pod_counts(reports: list[tuple[str, int, bool]]) -> None:
    """Events may arrive in any order; those for scheduled or deleted pods are ignored."""
    pods = {"w-0": Pod(uid="a", is_pending=True), "w-1": Pod(uid="b"), "w-2": Pod(uid="c", is_pending=True)}
    news = [
        NodeNews(pod=uid, time=f"2026-11-21T06:00:{second:02d}Z", is_made=is_made)
        for uid, second, is_made in reports
    ]
    of_pod = sorted((second, is_made) for uid, second, is_made in reports if uid == "a")
    assert expected(pods, news) == ({"w-0"} if of_pod and of_pod[-1][1] else set())


_ODD = st.sampled_from((None, 7, "", "x", [], ["x"], {}, {"uid": 7}))


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("message", "reason", "involvedObject", "series"), _ODD))
)
def test_malformed_events_are_read(fields: dict[str, Any]) -> None:
    """Any field may be missing or have a wrong type."""
    read_news(of_pod("a", "TriggeredScaleUp", "so") | fields)
