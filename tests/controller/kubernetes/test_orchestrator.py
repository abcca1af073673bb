"""The adapter with a correct, slow, faulty or absent API server."""

from __future__ import annotations

import logging
import threading

import pytest

from controller.kubernetes.watching import TIMEOUT_S, WATCH_S
from controller.scaling.arrivals import Arrivals
from tests.controller.kubernetes.emulator import SET, Emulator, Fault, Request, creation, of_pod, worker_set
from tests.controller.kubernetes.pods import condition, pod
from tests.controller.kubernetes.watching import Watched

FIRST, SECOND = f"{SET}-0", f"{SET}-1"


# --- Correct server ---


def test_all_pages_of_pods_are_listed_without_foreign_pods(emulator: Emulator) -> None:
    """A pod counts if the StatefulSet owns it, or if it has no owner and a name of the set."""
    other, orphan, foundling, stranger = pod(7), pod(8), pod(9), pod(10)
    other["metadata"]["ownerReferences"][0] |= {"name": "redis"}
    del orphan["metadata"]["ownerReferences"], foundling["metadata"]["ownerReferences"]
    foundling["metadata"]["name"] = "redis-0"
    stranger["metadata"] |= {"ownerReferences": [], "labels": {"app": "something-else"}}
    for content in (other, orphan, foundling, stranger):
        emulator.put("pods", content)
    with Watched(emulator).watching() as watched:
        fleet = watched.until(lambda fleet: fleet is not None)
    assert fleet is not None
    assert fleet.pods.keys() == {FIRST, SECOND, f"{SET}-2", f"{SET}-8"}
    assert fleet.size == 3


def test_a_watch_that_ends_continues_at_its_position(watched: Watched) -> None:
    """The adapter does not list again, and a bookmark advances the position."""
    watched.emulator.bookmark()
    watched.emulator.end_watches()
    watched.emulator.put("pods", pod(1, "another"))
    watched.sees_the_truth()
    watches = [r for r in watched.emulator.requests if r.resource == "pods" and r.verb == "watch"]
    versions = [int(r.query["resourceVersion"]) for r in watches]
    assert versions == sorted(versions)
    assert all(r.query["timeoutSeconds"] == str(WATCH_S) for r in watches)
    assert len([r for r in watched.emulator.requests if r.resource == "pods" and r.verb == "list"]) == 2


QUOTA = 'pods "cerebro-worker-1" is forbidden: exceeded quota: team, requested: requests.memory=384Mi'


def test_events_of_the_worker_set_explain_a_missing_pod(watched: Watched) -> None:
    """A missing pod cannot explain itself; the explanation disappears when the pod exists."""
    watched.emulator.delete("pods", SECOND)
    watched.emulator.put("events", creation(SECOND, QUOTA))
    fleet = watched.until(lambda fleet: fleet is not None and SECOND in fleet.not_created)
    assert fleet is not None
    assert "exceeded quota: team" in fleet.not_created[SECOND]
    assert "raise the namespace's ResourceQuota" in fleet.not_created[SECOND]
    assert fleet.pod_problems() == {SECOND: fleet.not_created[SECOND]}
    watched.emulator.put("pods", pod(1))
    watched.until(lambda fleet: fleet is not None and not fleet.not_created)


def test_a_new_node_is_reported_until_the_pod_is_scheduled(watched: Watched) -> None:
    """The events of the node autoscaler for this pod appear while it waits."""
    uid = pod(1)["metadata"]["uid"]
    nowhere = condition(
        "PodScheduled", "False", "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu."
    )
    watched.emulator.put("pods", pod(1, phase="Pending", conditions=[nowhere], containerStatuses=[]))
    watched.emulator.put("events", of_pod("another", "TriggeredScaleUp", "pod triggered scale-up"))
    watched.emulator.put("events", of_pod(uid, "TriggeredScaleUp", "pod triggered scale-up: [{gpu 1->2}]"))
    fleet = watched.until(lambda fleet: fleet is not None and bool(fleet.expected))
    assert fleet is not None
    assert fleet.expected == {SECOND}
    assert fleet.pod_problems()[SECOND].startswith(
        "a node is being made for it; until then no node fits: 0/3"
    )
    arrivals = Arrivals()
    arrivals.observe([], fleet, 0.0)
    assert arrivals.progress_text == "workers are starting: 0 of 3; a node is being made"
    watched.emulator.put("pods", pod(1))
    watched.until(lambda fleet: fleet is not None and not fleet.expected)


def test_requests_use_exactly_the_verbs_of_the_role(watched: Watched) -> None:
    """The emulator enforces the Role, and each rule and verb is necessary."""
    watched.orchestrator.scale(3)
    allowed = {
        (resource, verb)
        for rule in watched.emulator.rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    def used_verbs() -> set[tuple[str, str]]:
        return {(request.resource, request.verb) for request in watched.emulator.requests}

    watched.until_asked(lambda: used_verbs() >= allowed)
    assert used_verbs() == allowed


def test_without_the_stateful_set_there_is_no_fleet(
    emulator: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    """The message names the set; its pods appear once it exists."""
    emulator.delete("statefulsets", SET)
    with caplog.at_level(logging.INFO), Watched(emulator).watching() as watched:
        watched.until(lambda _: f"has no StatefulSet {SET} in namespace cerebro" in caplog.text)
        assert watched.orchestrator.fleet() is None
        emulator.put("statefulsets", worker_set(3))
        watched.sees_the_truth()


# --- Faulty server ---


@pytest.mark.parametrize(
    "fault",
    [
        Fault(verb="watch"),
        Fault(verb="watch", status=500),
        Fault(verb="watch", status=503, headers={"Retry-After": "0"}),
        Fault(verb="watch", status=429, headers={"Retry-After": "0"}),
        Fault(verb="watch", status=410),
        Fault(verb="watch", status=403, body=b'{"message": "no"}'),
        Fault(verb="watch", status=200, body=b"<html>a proxy</html>"),
        Fault(verb="watch", line=b"not json\n"),
        Fault(verb="watch", line=b"[1, 2]\n"),
        Fault(verb="watch", line=b'{"type": "MODIFIED"}\n'),
        Fault(verb="watch", line=b'{"type": "MODIFIED", "object": {}}\n'),
        Fault(verb="watch", line=b'{"type": "MODIFIED", "object": {"metadata": {"name": 7}}}\n'),
        Fault(verb="watch", line=b'{"type": "RENAMED", "object": {"metadata": {"name": "x"}}}\n'),
        Fault(verb="watch", line=b'{"type": "ERROR", "object": {"code": 410, "message": "too old"}}\n'),
        Fault(verb="watch", line=b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}\n'),
        Fault(verb="watch", line=b'{"type": "DELETED", "obj'),
    ],
    ids=lambda fault: f"{fault.status} {(fault.line or fault.body)[:40].decode()}",
)
def test_the_view_recovers_from_any_watch_fault(watched: Watched, fault: Fault) -> None:
    """This includes changes during the fault, such as a deletion without a later event."""
    with watched.emulator.news:
        watched.emulator.fail(fault, fault, fault)
        watched.emulator.delete("pods", SECOND)
        watched.emulator.put("pods", pod(5))
    watched.sees_the_truth()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(verb="list"),
        Fault(verb="list", status=500),
        Fault(verb="list", status=410),
        Fault(verb="list", status=429, headers={"Retry-After": "0"}),
        Fault(verb="list", status=200, body=b"{}"),
        Fault(verb="list", status=200, body=b'{"metadata": {"resourceVersion": "7"}, "items": [7]}'),
        Fault(verb="list", status=200, body=b'{"metadata": {"resourceVersion": "7"}, "items": [{}]}'),
    ],
    ids=lambda fault: f"{fault.status} {fault.body[:40].decode()}",
)
def test_a_failed_list_is_repeated(emulator: Emulator, fault: Fault) -> None:
    """The adapter retries until a list is complete."""
    emulator.fail(fault, fault, fault)
    with Watched(emulator).watching() as watched:
        watched.sees_the_truth()


def test_the_view_expires_after_silence(watched: Watched) -> None:
    """A silent connection may be dead, so the view expires; the next message restores it."""
    watched.now += WATCH_S + TIMEOUT_S
    assert watched.orchestrator.fleet() is not None
    watched.now += 0.1
    assert watched.orchestrator.fleet() is None
    watched.emulator.bookmark()
    watched.sees_the_truth()


def test_the_view_does_not_wait_for_a_slow_server(emulator: Emulator) -> None:
    """`fleet` returns None at once."""
    arrived, answer = threading.Event(), threading.Event()

    def late(_: Request) -> None:
        arrived.set()
        answer.wait()

    emulator.hold = late
    with Watched(emulator).watching() as watched:
        arrived.wait()
        assert watched.orchestrator.fleet() is None
        answer.set()
        watched.sees_the_truth()


def test_a_broken_watch_hides_the_view_until_the_next_list(watched: Watched) -> None:
    """An outdated view would be worse than none; lease silence then detects lost workers."""
    answer = threading.Event()

    def late(request: Request) -> None:
        if request.verb == "list":
            answer.wait()

    watched.emulator.hold = late
    watched.emulator.fail(Fault(verb="watch"), Fault(verb="watch"))
    watched.until(lambda fleet: fleet is None)
    answer.set()
    watched.sees_the_truth()


def test_a_missing_verb_is_reported_once(emulator: Emulator, caplog: pytest.LogCaptureFixture) -> None:
    """The message appears once, and again when access is granted."""
    rules, emulator.rules = emulator.rules, ()
    with caplog.at_level(logging.INFO), Watched(emulator).watching() as watched:
        watched.until_asked(lambda: [r.resource for r in emulator.requests].count("statefulsets") > 2)
        assert caplog.text.count('cannot list resource "statefulsets"') == 1
        assert "the controller's Role lacks this verb" in caplog.text
        emulator.rules = rules
        watched.sees_the_truth()
        assert f"StatefulSet {SET}: seen again" in caplog.text
