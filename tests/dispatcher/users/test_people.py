"""People sign in as themselves, see everything, and can change only their own work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cerebro.contract.accounts.identity import Role, operator_word
from cerebro.contract.events import RunStopRequested
from cerebro.errors import UnauthorizedError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from dispatcher.access import identities
from tests.dispatcher.fakes import Browser
from tests.dispatcher.users.signed import Signed, signed
from tests.kvs_api.real import Service
from tests.kvs_api.users.people import OPERATOR, SERVICES

STOP = {"action": "stop_run", "run": "etl-1"}


@pytest.fixture
def people(place: Signed) -> dict[str, str]:
    """Tokens of three people; ada of project vision has an experiment."""
    tokens = {
        "ada": place.person("ada", Role.MEMBER, "vision"),
        "bob": place.person("bob", Role.MEMBER, "text"),
        "vera": place.person("vera", Role.VIEWER),
    }
    place.experiment(tokens["ada"], "digits")
    return tokens


def test_a_person_signs_in_with_their_own_token(place: Signed, people: dict[str, str]) -> None:
    """The token defines the name; a name typed in the form is ignored."""
    browser = Browser(place.app)
    assert browser.post("/sign-in", {"token": people["ada"], "name": "mallory"}).status_code == 303
    page = browser.get("/experiments").text
    assert "ada" in page
    assert "mallory" not in page
    assert any(by == "ada" and what.startswith("signed in by token ") for by, what in place.audited())


@pytest.mark.parametrize("given", ["", "wrong", "ck_0123456789abcdef_" + "a" * 43, SERVICES[Role.WORKER]])
def test_tokens_of_services_are_refused(place: Signed, given: str) -> None:
    """A service's token opens no page, neither by form nor by header."""
    browser = Browser(place.app)
    answer = browser.post("/sign-in", {"token": given})
    assert answer.status_code == 401
    assert "oken" in answer.text
    header = {"Authorization": f"Bearer {given or 'x'}"}
    for path in ("/experiments", "/api/views/experiments", "/api/volumes/shared/x"):
        answer = browser.client.get(path, headers=header, base_url="http://127.0.0.1:7080")
        assert answer.status_code in (401, 403, 429), path


def test_the_clusters_token_signs_in(place: Signed, people: dict[str, str]) -> None:
    """The operator has the rights of an admin."""
    browser = place.browser(OPERATOR)
    assert browser.post("/experiments/digits/actions", STOP, form="/start").status_code == 303
    assert place.client().events("digits")[-1].by == "admin"  # type: ignore[union-attr]


def test_a_command_on_the_page_has_the_name_of_its_user(place: Signed, people: dict[str, str]) -> None:
    """The store sets the name from the token."""
    browser = place.browser(people["ada"])
    assert browser.post("/experiments/digits/actions", STOP, form="/start").status_code == 303
    event = place.client().events("digits")[-1]
    assert isinstance(event, RunStopRequested)
    assert event.by == "ada"
    assert "ada" in browser.get("/experiments/digits/history").text


@pytest.mark.parametrize("name", ["bob", "vera"])
def test_users_outside_the_project_can_only_read(place: Signed, people: dict[str, str], name: str) -> None:
    """Neither the page nor its fragments have buttons, and a forged command gets 403."""
    mine, theirs = place.browser(people["ada"]), place.browser(people[name])
    for path in ("/experiments/digits", "/fragments/experiments/digits"):
        assert 'value="stop_run"' in mine.get(path).text, path
        answer = theirs.get(path)
        assert answer.status_code == 200
        assert 'value="stop_run"' not in answer.text, path
        assert 'value="stop_run"' in mine.get(path).text, path
    refused = theirs.post("/experiments/digits/actions", STOP, form="/account")
    assert refused.status_code == 403
    why = "is viewer" if name == "vera" else "is in project &#39;vision&#39;, and bob is not"
    assert why in refused.text
    assert len(place.client().events("digits")) == 1


def test_the_list_offers_commands_for_own_experiments_only(place: Signed, people: dict[str, str]) -> None:
    """The checkboxes of other experiments are disabled."""
    place.experiment(people["bob"], "words")
    for browser, off in (
        (place.browser(people["ada"]), ["words"]),
        (place.browser(people["vera"]), ["digits", "words"]),
        (place.browser(OPERATOR), []),
    ):
        page = browser.get("/fragments/experiments?sort=name").text
        found = re.findall(r'name="name" value="(\w+)"[^>]* disabled', page)
        assert found == off
    bob = place.browser(people["bob"])
    answer = bob.post("/experiments/actions", {"action": "archive", "name": "digits"}, form="/account")
    assert answer.status_code == 409
    assert "is in project &#39;vision&#39;" in answer.text


def test_a_session_ends_with_its_token(place: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one second, the dispatcher's cache time, also for polls.

    The store's own cache is tested in test_tokens.py.
    """
    monkeypatch.setattr("kvs_api.api.access.FRESH_S", 0.0)
    token = place.made(name="ada")
    browser = place.browser(token.token)
    assert browser.get("/fragments/experiments").status_code == 200
    place.client().revoke_token(token.record.id)
    assert browser.get("/fragments/experiments").status_code == 200
    place.monotonic.now += 1.0
    assert browser.get("/fragments/experiments").status_code == 303
    assert browser.get("/experiments").status_code == 303


def test_signing_out_ends_a_copied_cookie_at_every_process(users_service: Service, place: Signed) -> None:
    """The token and its other sessions stay valid."""
    token = place.person("ada")
    mine, elsewhere = place.browser(token), place.browser(token)
    cookie = mine.client.get_cookie("cerebro-7080", "127.0.0.1")
    assert cookie
    with signed(users_service) as other:
        copy = Browser(other.app)
        copy.client.set_cookie("cerebro-7080", cookie.value, domain="127.0.0.1")
        assert copy.get("/experiments").status_code == 200
        assert mine.post("/sign-out", {}, form="/account").status_code == 303
        other.monotonic.now += 1.0
        assert copy.get("/experiments").status_code == 303
    assert elsewhere.get("/experiments").status_code == 200


def test_programs_reach_the_store_with_their_own_tokens(place: Signed, people: dict[str, str]) -> None:
    """The dispatcher forwards their token, so they have the same rights as at the store."""
    headers = {"Authorization": f"Bearer {people['bob']}"}
    client = place.app.test_client()
    assert client.get("/api/v1/whoami", headers=headers).json["name"] == "bob"  # type: ignore[index]
    body = RunStopRequested(run="etl-1", by="ada").model_dump_json()
    answer = client.post("/api/v1/experiments/digits/events", data=body, headers=headers)
    assert (answer.status_code, answer.json["error"]) == (403, "ForbiddenError")  # type: ignore[index]
    ada = {"Authorization": f"Bearer {people['ada']}"}
    assert client.post("/api/v1/experiments/digits/events", data=body, headers=ada).status_code == 200
    acting = headers | {"Cerebro-Acts-For": "operator"}
    assert client.get("/api/v1/whoami", headers=acting).json["name"] == "bob"  # type: ignore[index]


def test_signed_in_users_create_and_revoke_tokens(place: Signed, people: dict[str, str]) -> None:
    """On the account page, each shown once; an admin makes tokens for others, too."""
    ada = place.browser(people["ada"])
    page = ada.post("/account/tokens", {"label": "laptop", "days": "7"}, form="/account").text
    found = re.search(r"ck_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", page)
    assert found
    assert place.client(found[0]).whoami().name == "ada"
    later = ada.get("/account").text
    assert found[0] not in later
    assert found[0].split("_")[1] in later
    ended = ada.post("/account/tokens/revoke", {"token": found[0].split("_")[1]}, form="/account")
    assert ended.status_code == 303
    assert found[0].split("_")[1] not in ada.get("/account").text
    wrong = ada.post("/account/tokens", {"days": "1000"}, form="/account")
    assert (wrong.status_code, "days" in wrong.text) == (400, True)
    fields = {"name": "grace", "role": "member", "projects": "vision, text", "days": "5"}
    page = place.browser(OPERATOR).post("/account/tokens", fields, form="/account").text
    found = re.search(r"ck_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", page)
    assert found
    assert place.client(found[0]).whoami().projects == ("vision", "text")
    assert ada.post("/account/tokens", fields, form="/account").status_code == 403


def test_there_is_no_account_without_users(place: Signed) -> None:
    """Nor a route to make tokens."""
    from tests.dispatcher.fakes import Bench

    browser = Bench().signed_in()
    assert browser.get("/account").status_code == 404
    assert "/account" not in browser.get("/experiments").text


def test_downloads_are_audited(place: Signed, people: dict[str, str]) -> None:
    """With the person; a missing file makes no entry."""
    client: KvsClient = place.client(people["ada"])
    client.close()
    headers = {"Authorization": f"Bearer {people['ada']}"}
    assert place.app.test_client().get("/api/volumes/shared/none", headers=headers).status_code == 404
    assert not any("downloaded" in what for _, what in place.audited())


def test_a_download_in_pieces_is_audited_once(
    users_service: Service, place: Signed, people: dict[str, str], tmp_path: Path
) -> None:
    """Ranges in any order make one entry, also without the first range.

    Another person or a long pause makes a new entry, a refused request none, and each whole download one.
    """
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    folder = volumes.shared / "predictions"
    folder.mkdir(parents=True)
    (folder / "x.arrow").write_bytes(bytes(100))
    path = "/api/volumes/shared/predictions/x.arrow"
    with signed(users_service, volumes=volumes) as there:

        def fetch(who: str, piece: str = "", status: int = 206) -> None:
            headers = {"Authorization": f"Bearer {people[who]}"} | (
                {"Range": f"bytes={piece}"} if piece else {}
            )
            answer = there.app.test_client().get(path, headers=headers)
            assert answer.status_code == status
            answer.close()

        def downloads() -> list[str]:
            return [by for by, what in place.audited() if what == "downloaded shared/predictions/x.arrow"]

        fetch("ada", "999-", 416)
        assert downloads() == []
        for piece in ("50-99", "0-49", "50-99"):
            fetch("ada", piece)
        assert downloads() == ["ada"]
        fetch("bob", "1-")
        there.monotonic.now += 601.0
        fetch("ada", "0-")
        assert downloads() == ["ada", "bob", "ada"]
        fetch("bob", status=200)
        fetch("bob", status=200)
        assert downloads() == ["ada", "bob", "ada", "bob", "bob"]


def test_a_session_of_the_clusters_token_ends_when_it_changes(
    users_service: Service, place: Signed, people: dict[str, str]
) -> None:
    """The operator must enter the new token; sessions of people stay valid.

    Neither the cookie nor requests to the store contain a token.
    """
    operator, ada = place.browser(OPERATOR), place.browser(people["ada"])
    assert operator.get("/fragments/experiments").status_code == 200
    word = operator_word(OPERATOR)
    assert OPERATOR not in word
    with Service(
        users_service.database, has_users=True, service_tokens=SERVICES, token="another-" * 5
    ) as changed:
        store = KvsClient(changed.address, SERVICES[Role.DISPATCHER], retry_for_s=1.0)
        assert store.whoami(acts_for=operator_word("another-" * 5)).name == "admin"
        with pytest.raises(UnauthorizedError, match="no longer the cluster's token: sign in again"):
            store.whoami(acts_for=word)
        store.close()
        place.store.address = changed.address
        place.monotonic.now += 1.0
        assert operator.get("/fragments/experiments").status_code == 303
        assert ada.get("/fragments/experiments").status_code == 200
    place.store.address = users_service.address
    assert any(what.startswith("signed in by operator from ") for _, what in place.audited())


def test_a_store_of_another_version_is_reported_to_the_operator(
    place: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form says so after the sign-in."""
    for word in ("operator", "operator of tomorrow", "another word"):
        place.monotonic.now += 2.0
        with monkeypatch.context() as other:
            other.setattr(identities, "operator_word", lambda _, said=word: said)
            answer = Browser(place.app).post("/sign-in", {"token": OPERATOR})
        assert answer.status_code == 401
        assert "different versions" in answer.text
    place.monotonic.now += 2.0
    assert Browser(place.app).post("/sign-in", {"token": OPERATOR}).status_code == 303
