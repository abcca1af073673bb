"""The adapter before an API server that answers late, wrongly, not at all, or as it should."""

from __future__ import annotations

import logging
import threading

import pytest

from controller.kubernetes.watching import TIMEOUT_S, WATCH_S
from controller.scaling.arrivals import Arrivals
from tests.controller.kubernetes.emulator import SET, Emulator, Fault, Request, creation, of_pod, worker_set
from tests.controller.kubernetes.pods import condition, deleted, pod
from tests.controller.kubernetes.watching import Watched

FIRST, SECOND = f"{SET}-0", f"{SET}-1"


# --- an API server as it should be -------------------------------------------------------------------


def test_all_pages_of_the_pods_are_listed_and_those_of_others_left_out(emulator: Emulator) -> None:
    """A pod counts if the StatefulSet owns it; or if nobody does and it has a name of the set's."""
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


def test_the_life_of_a_pod_is_followed(watched: Watched) -> None:
    """Asked to leave, gone, and back as another one: each is seen without a new list."""
    watched.emulator.put("pods", deleted(pod(0)))
    watched.until(lambda fleet: fleet is not None and fleet.pods[FIRST].leaving is not None)
    watched.emulator.delete("pods", FIRST)
    watched.until(lambda fleet: fleet is not None and FIRST not in fleet.pods)
    watched.emulator.put("pods", pod(0, "another"))
    watched.until(lambda fleet: fleet is not None and fleet.pods.get(FIRST) is not None)
    watched.sees_the_truth()
    assert len([r for r in watched.emulator.requests if r.resource == "pods" and r.verb == "list"]) == 2, (
        "one list of two pages"
    )


def test_a_watch_that_ends_is_continued_where_it_was(watched: Watched) -> None:
    """Nothing is listed again, and a bookmark moves the place on."""
    watched.emulator.bookmark()
    watched.emulator.end_watches()
    watched.emulator.put("pods", pod(1, "another"))
    watched.sees_the_truth()
    watches = [r for r in watched.emulator.requests if r.resource == "pods" and r.verb == "watch"]
    versions = [int(r.query["resourceVersion"]) for r in watches]
    assert versions == sorted(versions)
    assert all(r.query["timeoutSeconds"] == str(WATCH_S) for r in watches)
    assert len([r for r in watched.emulator.requests if r.resource == "pods" and r.verb == "list"]) == 2


def test_scaling_asks_for_a_number_and_its_effect_is_seen(watched: Watched) -> None:
    """A pod whose ordinal is not below the number will not come back."""
    watched.orchestrator.scale(2)
    fleet = watched.until(lambda fleet: fleet is not None and fleet.size == 2)
    assert fleet is not None
    assert [fleet.is_wanted(name) for name in (FIRST, SECOND, f"{SET}-2")] == [True, True, False]


QUOTA = 'pods "cerebro-worker-1" is forbidden: exceeded quota: team, requested: requests.memory=384Mi'


def test_a_pod_that_is_not_made_is_explained_by_the_events_of_its_set(watched: Watched) -> None:
    """It does not exist, so it cannot tell itself; once it is made, nothing is left to explain."""
    watched.emulator.delete("pods", SECOND)
    watched.emulator.put("events", creation(SECOND, QUOTA))
    fleet = watched.until(lambda fleet: fleet is not None and SECOND in fleet.unmade)
    assert fleet is not None
    assert "exceeded quota: team" in fleet.unmade[SECOND]
    assert "raise the namespace's ResourceQuota" in fleet.unmade[SECOND]
    assert fleet.troubles() == {SECOND: fleet.unmade[SECOND]}
    watched.emulator.put("pods", pod(1))
    watched.until(lambda fleet: fleet is not None and not fleet.unmade)


def test_a_node_that_is_being_made_is_told_until_the_pod_has_it(watched: Watched) -> None:
    """By the events of whoever makes nodes, of this very pod; the page says so while workers start."""
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
    assert fleet.troubles()[SECOND].startswith("a node is being made for it; until then no node fits: 0/3")
    arrivals = Arrivals()
    arrivals.see([], fleet, 0.0)
    assert arrivals.told == "workers are starting: 0 of 3; a node is being made"
    watched.emulator.put("pods", pod(1))
    watched.until(lambda fleet: fleet is not None and not fleet.expected)


def test_events_that_are_not_to_be_had_hide_no_pod(
    emulator: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    """A Role of an earlier chart does not allow them: all else is seen as before, and what is missing is said."""
    emulator.rules = tuple(rule for rule in emulator.rules if rule["resources"] != ["events"])
    with caplog.at_level(logging.INFO), Watched(emulator).watching() as watched:
        watched.sees_the_truth()
        watched.until(lambda _: "nothing tells why pods are not made" in caplog.text)
        assert "only silence tells" not in caplog.text


def test_only_what_the_role_allows_is_asked(watched: Watched) -> None:
    """The emulator enforces the Role; every rule and verb of it is needed."""
    watched.orchestrator.scale(3)
    allowed = {
        (resource, verb)
        for rule in watched.emulator.rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    def asked() -> set[tuple[str, str]]:
        return {(request.resource, request.verb) for request in watched.emulator.requests}

    watched.until_asked(lambda: asked() >= allowed)
    assert asked() == allowed


def test_without_the_stateful_set_there_is_no_fleet(
    emulator: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    """Said by name; once it is made, its pods are found."""
    emulator.delete("statefulsets", SET)
    with caplog.at_level(logging.INFO), Watched(emulator).watching() as watched:
        watched.until(lambda _: f"has no StatefulSet {SET} in namespace cerebro" in caplog.text)
        assert watched.orchestrator.fleet() is None
        emulator.put("statefulsets", worker_set(3))
        watched.sees_the_truth()


def test_a_set_that_is_made_anew_may_select_by_other_labels(watched: Watched) -> None:
    """Its pods are seen: what tells them is their owner."""
    emulator = watched.emulator
    anew, its_own = worker_set(1), pod(0, "another")
    anew["spec"]["selector"] = {"matchLabels": {"release": "two"}}
    its_own["metadata"]["labels"] = {"release": "two", "statefulset.kubernetes.io/pod-name": FIRST}
    for name in list(emulator.objects["pods"]):
        emulator.delete("pods", name)
    emulator.delete("statefulsets", SET)
    emulator.put("statefulsets", anew)
    emulator.put("pods", its_own)
    watched.until(lambda fleet: fleet is not None and fleet.size == 1 and fleet.pods.keys() == {FIRST})


# --- one that is not ---------------------------------------------------------------------------------


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
def test_after_any_fault_of_a_watch_the_truth_is_seen_again(watched: Watched, fault: Fault) -> None:
    """What happened meanwhile included, a deletion too, of which no later event tells."""
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
def test_a_list_that_fails_is_asked_for_again(emulator: Emulator, fault: Fault) -> None:
    """Until one is whole."""
    emulator.fail(fault, fault, fault)
    with Watched(emulator).watching() as watched:
        watched.sees_the_truth()


def test_a_past_that_the_server_has_forgotten_is_listed_anew(watched: Watched) -> None:
    """410 Gone comes as an event of the watch that would go on there."""
    with watched.emulator.news:
        watched.emulator.end_watches()
        watched.emulator.delete("pods", SECOND)
        watched.emulator.compact()
    watched.sees_the_truth()


def test_a_list_that_changes_between_its_pages_is_begun_again(emulator: Emulator) -> None:
    """Its further pages are gone then."""
    changed = threading.Event()

    def change(request: Request) -> None:
        if "continue" in request.query and not changed.is_set():
            changed.set()
            emulator.delete("pods", FIRST)

    emulator.hold = change
    with Watched(emulator).watching() as watched:
        watched.sees_the_truth()
    assert changed.is_set()


def test_silence_makes_the_view_out_of_date(watched: Watched) -> None:
    """A connection that died without a word is not taken for one without news; the next sign of life ends it."""
    watched.now += WATCH_S + TIMEOUT_S
    assert watched.orchestrator.fleet() is not None
    watched.now += 0.1
    assert watched.orchestrator.fleet() is None
    watched.emulator.bookmark()
    watched.sees_the_truth()


def test_nobody_waits_for_a_server_that_is_late(emulator: Emulator) -> None:
    """`fleet` answers at once, that it does not know."""
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


def test_what_a_watch_broke_off_is_unknown_until_it_is_listed(watched: Watched) -> None:
    """Better no view than one that may lag: silence tells then."""
    answer = threading.Event()

    def late(request: Request) -> None:
        if request.verb == "list":
            answer.wait()

    watched.emulator.hold = late
    watched.emulator.fail(Fault(verb="watch"), Fault(verb="watch"))
    watched.until(lambda fleet: fleet is None)
    answer.set()
    watched.sees_the_truth()


def test_a_refusal_is_said_once_with_the_verb_it_lacks(
    emulator: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at every try; and its end is said too."""
    rules, emulator.rules = emulator.rules, ()
    with caplog.at_level(logging.INFO), Watched(emulator).watching() as watched:
        watched.until_asked(lambda: [r.resource for r in emulator.requests].count("statefulsets") > 2)
        assert caplog.text.count('cannot list resource "statefulsets"') == 1
        assert "the controller's Role lacks this verb" in caplog.text
        emulator.rules = rules
        watched.sees_the_truth()
        assert f"StatefulSet {SET}: seen again" in caplog.text
