"""The page of notification targets on a cluster with users: the same rules as for `cerebro notify`."""

from __future__ import annotations

from cerebro.contract.accounts.identity import Role
from tests.dispatcher.users.signed import Signed

PAGE = "/notifications"
SLACK = {"url": "slack://T0secret0/B0/C0", "event": ["failed"]}


def test_users_see_their_own_targets_and_those_of_their_projects(place: Signed) -> None:
    """Members of the project test and remove its targets."""
    ada = place.browser(place.person("ada", Role.MEMBER, "vision"))
    bob = place.browser(place.person("bob", Role.MEMBER, "vision"))
    assert ada.post(PAGE, SLACK | {"runs": ""}).status_code == 303
    assert "own runs" in ada.get(PAGE).text
    assert "No notification target" in bob.get(PAGE).text
    assert ada.post(PAGE, SLACK | {"runs": "vision"}).status_code == 303
    text = bob.get(PAGE).text
    assert "project vision" in text
    own, shared = place.client().notifications().targets
    assert bob.post(f"{PAGE}/{own.id}/remove", {}, form=PAGE).status_code == 404
    assert bob.post(f"{PAGE}/{shared.id}/remove", {}, form=PAGE).status_code == 303


def test_users_may_not_add_what_the_command_refuses(place: Signed) -> None:
    """The page says why; a viewer has no form."""
    ada, slack = place.browser(place.person("ada")), dict[str, object](SLACK)
    assert "All runs" not in ada.get(PAGE).text
    for changes, why in (
        ({"runs": "*"}, "only admins"),
        ({"runs": "other"}, "is not in project"),
        ({"url": "json://127.0.0.1:1/"}, "public services"),
    ):
        answer = ada.post(PAGE, slack | changes)
        assert (answer.status_code, why in answer.text) == (403, True)
    viewer = place.browser(place.person("vera", Role.VIEWER))
    assert "Add a target" not in viewer.get(PAGE).text
