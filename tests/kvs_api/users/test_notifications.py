"""Notification targets: who may add, see, test and remove them; addresses stay secret."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from cerebro.contract.accounts.identity import Role
from cerebro.contract.stored.notifications import (
    KINDS,
    MAX_TARGETS,
    Coverage,
    EventKind,
    NotificationTarget,
    covers,
    masked,
)
from kvs_api.store import keys
from tests.kvs_api.users.people import OPERATOR, SERVICES, Place

SECRET = "T0secret0T"
SLACK = f"slack://{SECRET}/B0other0/C0third0"
TARGETS = "/v1/notifications"


def added(place: Place, secret: str, **fields: object) -> NotificationTarget:
    answer = place.ask(secret, f"POST {TARGETS}", {"url": SLACK, **fields})
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text
    return NotificationTarget.model_validate_json(answer.data)


def listed(place: Place, secret: str) -> list[str]:
    answer = place.ask(secret, f"GET {TARGETS}")
    assert SECRET not in answer.text
    return [each["id"] for each in (answer.json or {})["targets"]]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (SLACK, "slack://..."),
        ("mailto://ann:password@example.org?to=bob@example.org", "mailto://..."),
        ("jsons://ann:password@hooks.example.org:8080/path?token=abc", "jsons://hooks.example.org/..."),
        ("JSON://10.0.0.7/secret", "json://10.0.0.7/..."),
        ("tgram://bottoken/chat", "tgram://..."),
    ],
)
def test_a_masked_address_has_the_scheme_and_the_host_of_web_servers_only(url: str, shown: str) -> None:
    """The host of other services is a secret."""
    assert masked(url) == shown


def test_users_see_and_remove_their_own_targets(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Others get 404. Audit list and log have no secret."""
    ada, bob = place.person("ada"), place.person("bob")
    with caplog.at_level(logging.DEBUG):
        target = added(place, ada, events=["failed"])
        assert (target.coverage, target.events, target.author) == (Coverage.OWNER, (EventKind.FAILED,), "ada")
        assert (listed(place, ada), listed(place, bob), listed(place, OPERATOR)) == (
            [target.id],
            [],
            [target.id],
        )
        assert place.ask(bob, f"DELETE {TARGETS}/{target.id}").status_code == 404
        assert place.ask(bob, f"POST {TARGETS}/{target.id}/test").status_code == 404
        assert place.ask(ada, f"DELETE {TARGETS}/{target.id}").status_code == 204
    assert listed(place, OPERATOR) == []
    audit = [what for who, what in place.audited() if who == "ada"]
    assert audit[-2:] == [
        f"added notification target {target.id}: slack://... for own runs",
        f"removed notification target {target.id}: slack://...",
    ]
    assert SECRET not in caplog.text


def test_members_share_the_targets_of_their_project(place: Place) -> None:
    """Members see, test and remove them; viewers and others do not."""
    ada, bob, eve = (
        place.person(name, Role.MEMBER, project)
        for name, project in (("ada", "vision"), ("bob", "vision"), ("eve", "text"))
    )
    target = added(place, ada, project="vision")
    assert (listed(place, bob), listed(place, eve)) == ([target.id], [])
    assert place.ask(bob, f"POST {TARGETS}/{target.id}/test").status_code == 200
    viewer = place.person("vic", Role.VIEWER, "vision")
    assert place.ask(viewer, f"DELETE {TARGETS}/{target.id}").status_code == 403
    other = place.ask(eve, f"POST {TARGETS}", {"url": SLACK, "project": "vision"})
    assert (other.status_code, "eve is not in project 'vision'" in other.text) == (403, True)
    assert place.ask(bob, f"DELETE {TARGETS}/{target.id}").status_code == 204


def test_a_target_is_suspended_while_its_author_lacks_the_right(place: Place) -> None:
    """A token without the project, or an expired one, gives none; the controller sees the reason."""
    made = place.made(name="ada", role=Role.MEMBER, projects=("vision",))
    admin = place.made(name="amy", role=Role.ADMIN)
    of_project, of_cluster = (
        added(place, made.token, project="vision"),
        added(place, admin.token, covers_cluster=True),
    )
    own = added(place, made.token)

    def suspended() -> dict[str, str]:
        answer = place.ask(SERVICES[Role.CONTROLLER], "GET /v1/outbox")
        return {each["target"]["id"]: each.get("suspended", "") for each in (answer.json or {})["targets"]}

    assert suspended() == {of_project.id: "", of_cluster.id: "", own.id: ""}
    assert place.ask(OPERATOR, f"POST {TARGETS}/{of_project.id}/test").status_code == 200
    for token in (made, admin):
        assert place.ask(OPERATOR, f"DELETE /v1/tokens/{token.record.id}").status_code == 204
    place.made(name="ada", role=Role.MEMBER, projects=("text",))
    assert suspended() == {
        of_project.id: "ada has no valid token in project vision, so nothing is sent",
        of_cluster.id: "amy has no valid token of an admin, so nothing is sent",
        own.id: "",
    }
    answer = place.ask(OPERATOR, f"GET {TARGETS}").json or {}
    status = answer["statuses"][of_project.id]
    assert "ada has no valid token" in status["error"]
    (target,) = (each for each in answer["targets"] if each["id"] == of_project.id)
    assert 0 < target["tested"] == status["tested"], "the page would wait for a test message"
    refused = place.ask(OPERATOR, f"POST {TARGETS}/{of_project.id}/test")
    assert (refused.status_code, "is suspended: ada has no valid token" in refused.text) == (409, True)
    place.made(name="ada", role=Role.MEMBER, projects=("vision",))
    assert suspended()[of_project.id] == ""


def test_a_removed_target_stays_removed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although somebody requests a test message at that time."""
    ada = place.person("ada")
    target = added(place, ada)
    visible = place.store._visible

    def removed_then(*asked: Any) -> Any:
        found = visible(*asked)
        place.store._redis.hdel(keys.NOTIFICATIONS, target.id)
        return found

    monkeypatch.setattr(place.store, "_visible", removed_then)
    assert place.ask(ada, f"POST {TARGETS}/{target.id}/test").status_code == 404
    assert listed(place, OPERATOR) == []


def test_only_admins_report_the_whole_cluster_or_send_to_any_server(place: Place) -> None:
    """Members could otherwise reach services that trust the controller, or read its files."""
    ada = place.person("ada")
    assert place.ask(ada, f"POST {TARGETS}", {"url": SLACK, "covers_cluster": True}).status_code == 403
    for url in (
        "json://127.0.0.1/x",
        "json://2130706433/x",
        "json://example.org/x",
        "mailto://u:p@example.org?smtp=127.0.0.1",
        f"{SLACK}?template=/etc/passwd",
    ):
        assert place.ask(ada, f"POST {TARGETS}", {"url": url}).status_code == 403
        assert added(place, OPERATOR, url=url).coverage is Coverage.OWNER
    assert added(place, OPERATOR, covers_cluster=True).coverage is Coverage.CLUSTER


def test_an_invalid_address_is_refused_without_repeating_it(place: Place) -> None:
    """The error says what is expected."""
    ada = place.person("ada")
    for url in (SECRET, f"slack://{SECRET} x", f"syslog://{SECRET}"):
        answer = place.ask(ada, f"POST {TARGETS}", {"url": url})
        assert (answer.status_code, SECRET in answer.text) == (400, False)


def test_a_user_has_a_maximum_number_of_targets(place: Place) -> None:
    """Others may still add theirs."""
    ada, bob = place.person("ada"), place.person("bob")
    for _ in range(MAX_TARGETS):
        added(place, ada)
    assert place.ask(ada, f"POST {TARGETS}", {"url": SLACK}).status_code == 409
    added(place, bob)


def test_the_controller_gets_addresses_and_nobody_else(place: Place) -> None:
    """The sender needs them."""
    added(place, place.person("ada"))
    assert SECRET in place.ask(SERVICES[Role.CONTROLLER], "GET /v1/outbox").text
    assert place.ask(SERVICES[Role.DISPATCHER], "GET /v1/outbox").status_code == 403


@pytest.mark.parametrize(
    ("coverage", "project", "found"),
    [
        (Coverage.OWNER, "", {"owned", "authored"}),
        (Coverage.PROJECT, "vision", {"in vision"}),
        (Coverage.CLUSTER, "", {"owned", "authored", "in vision", "other", "quarantine"}),
    ],
)
def test_a_target_covers_its_runs(coverage: Coverage, project: str, found: set[str]) -> None:
    """Own runs, runs of a project, or everything."""
    target = NotificationTarget(
        id="one",
        address="",
        events=KINDS,
        coverage=coverage,
        project=project,
        author="ada",
        owner="ada",
        created=1.0,
    )
    runs: dict[str, tuple[EventKind, str, str, tuple[str, ...]]] = {
        "owned": (EventKind.FAILED, "ada", "bob", ()),
        "authored": (EventKind.FAILED, "bob", "ada", ()),
        "in vision": (EventKind.FAILED, "bob", "bob", ("vision",)),
        "other": (EventKind.FAILED, "bob", "bob", ("text",)),
        "quarantine": (EventKind.QUARANTINE, "", "", ()),
    }
    for name, (kind, owner, author, projects) in runs.items():
        assert covers(target, kind, owner=owner, author=author, projects=projects) == (name in found)
