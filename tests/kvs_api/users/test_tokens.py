"""Tokens of people and programs: shown once, stored hashed, limited in time and rights."""

from __future__ import annotations

import json
import logging
import re
import time
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.accounts.identity import (
    RANK,
    TOKEN,
    MadeToken,
    Principal,
    Role,
    Scope,
    TokenRequest,
    granted,
)
from cerebro.contract.records import ExperimentRecord
from cerebro.errors import UnauthorizedError
from kvs_api.api.access import FRESH_S
from kvs_api.api.app import App
from kvs_api.settings import Settings
from tests.kvs_api.bench import requested
from tests.kvs_api.in_process import InThisThread
from tests.kvs_api.real import Service
from tests.kvs_api.users.people import LOCATORS, OPERATOR, SERVICES, Place, timed, users


def test_a_token_is_shown_once_and_its_secret_is_not_stored(service: Service, place: Place) -> None:
    """Neither lists nor the database contain it."""
    token = place.made(name="ada", label="laptop")
    found = TOKEN.fullmatch(token.token)
    assert found
    assert token.record.id == found[1]
    assert round((token.record.expires - token.record.created) / 86400) == 90
    listed = place.ask(OPERATOR, "GET /v1/tokens").text
    assert token.record.id in listed
    assert found[2] not in listed
    with redis.Redis.from_url(service.database.url) as client:
        stored = [client.dump(key) for key in client.scan_iter("*")]
    assert not any(found[2].encode() in (content or b"") for content in stored)
    assert place.audited() == [("admin", f"made token {token.record.id} for ada: member, 90 days")]


def test_a_token_identifies_its_owner(place: Place) -> None:
    """The token gives its role and projects."""
    answer = place.ask(place.person("ada", Role.MEMBER, "vision"), "GET /v1/whoami").json
    assert answer is not None
    assert {name: answer[name] for name in ("name", "role", "projects", "kind")} == {
        "name": "ada", "role": "member", "projects": ["vision"], "kind": "program",
    }  # fmt: skip


@pytest.mark.parametrize(
    "given", ["", "ck_", "ck_0123456789abcdef_" + "a" * 43, "x" * 5000, "ck_0123456789abcdef_ü", "Bearer"]
)
def test_an_unknown_token_is_refused(place: Place, given: str) -> None:
    """The response is 401 with the remedy, and does not reveal which names exist."""
    place.person("ada")
    answer = place.ask(given, "GET /v1/whoami")
    assert answer.status_code == 401
    assert answer.json is not None
    assert "ada" not in answer.text
    assert "token" in answer.json["message"]


def test_a_wrong_secret_is_refused_like_an_unknown_token(place: Place) -> None:
    """An id from a list gives no access."""
    token = place.made(name="ada")
    wrong = f"ck_{token.record.id}_{'a' * 43}"
    unknown = f"ck_{'0' * 16}_{'a' * 43}"
    assert place.ask(wrong, "GET /v1/whoami").text == place.ask(unknown, "GET /v1/whoami").text


def test_the_error_about_an_expired_token_has_the_date(service: Service, place: Place) -> None:
    """Only a caller with the right secret gets this message."""
    new_token, at = place.made(name="ada", days=1), timed(place, service.database.url)
    at.clock.now = new_token.record.expires - 1
    assert at.access.authenticate(f"Bearer {new_token.token}").name == "ada"  # type: ignore[union-attr]
    at.clock.now = new_token.record.expires
    with pytest.raises(UnauthorizedError, match=rf"{new_token.record.id} expired on \d{{4}}-\d\d-\d\d"):
        at.access.authenticate(f"Bearer {new_token.token}")


def test_a_revoked_token_ends_within_seconds_everywhere(service: Service, place: Place) -> None:
    """This includes processes that just verified it, and sessions started with it."""
    new_token, at = place.made(name="ada"), timed(place, service.database.url)
    at.clock.now = time.time()
    assert at.access.authenticate(f"Bearer {new_token.token}") is not None
    assert place.ask(OPERATOR, f"DELETE /v1/tokens/{new_token.record.id}").status_code == 204
    at.monotonic.now += FRESH_S
    with pytest.raises(UnauthorizedError, match="revoked"):
        at.access.authenticate(f"Bearer {new_token.token}")
    with pytest.raises(UnauthorizedError, match="revoked"):
        at.access.authenticate(f"Bearer {SERVICES[Role.DISPATCHER]}", f"token {new_token.record.id}")
    assert FRESH_S < 5


def test_users_see_and_revoke_only_their_tokens(place: Place) -> None:
    """Other people's tokens give 404, not 403; an admin sees all."""
    ada, bob = place.made(name="ada"), place.made(name="bob")
    mine = place.ask(ada.token, "GET /v1/tokens").json
    assert mine is not None
    assert [each["id"] for each in mine["tokens"]] == [ada.record.id]
    assert place.ask(ada.token, f"DELETE /v1/tokens/{bob.record.id}").status_code == 404
    everybodys = place.ask(OPERATOR, "GET /v1/tokens").json
    assert everybodys is not None
    assert [each["id"] for each in everybodys["tokens"]] == [bob.record.id, ada.record.id]
    assert place.ask(ada.token, f"DELETE /v1/tokens/{ada.record.id}").status_code == 204


def test_tokens_made_with_a_token_end_with_it(place: Place) -> None:
    """A stolen short-lived token cannot make longer-lived ones, and its revocation revokes them."""
    first = place.made(name="ada", days=1)
    second = place.made(first.token, days=365)
    third = place.made(second.token, days=365)
    assert third.record.expires == second.record.expires == first.record.expires
    assert place.ask(OPERATOR, f"DELETE /v1/tokens/{first.record.id}").status_code == 204
    assert place.ask(OPERATOR, "GET /v1/tokens").json == {"tokens": []}


def test_tokens_that_an_admin_makes_for_others_outlive_the_admins_token(place: Place) -> None:
    """Otherwise a lost laptop would end everyone's work."""
    root = place.made(name="root", role=Role.ADMIN, days=1)
    ada = place.made(root.token, name="ada")
    assert ada.record.expires > root.record.expires
    place.ask(OPERATOR, f"DELETE /v1/tokens/{root.record.id}")
    assert [each.id for each in place.store.tokens()] == [ada.record.id]


@pytest.mark.parametrize(
    ("token_fields", "why"),
    [
        ({"name": "bob"}, "made by bob, or by an admin"),
        ({"role": "admin"}, "cannot be admin"),
        ({"projects": ["vision", "secret"]}, "not in project secret"),
        ({"scopes": ["control"]}, "needs the scope 'control'"),
    ],
)
def test_users_cannot_grant_rights_that_they_lack(
    place: Place, token_fields: dict[str, Any], why: str
) -> None:
    """The response is 403 with the excess right."""
    ada = place.person("ada", Role.MEMBER, "vision")
    answer = place.ask(ada, "POST /v1/tokens", token_fields)
    assert answer.status_code == 403
    assert why in answer.text


def test_the_number_of_tokens_per_user_is_limited(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response is 409 with the current number; ended tokens do not count."""
    monkeypatch.setattr("kvs_api.accounts.tokens.MAX_TOKENS", 2)
    place.person("ada")
    last = place.made(name="ada")
    answer = place.ask(OPERATOR, "POST /v1/tokens", {"name": "ada"})
    assert (answer.status_code, "has 2 tokens, at most 2" in answer.text) == (409, True)
    place.ask(OPERATOR, f"DELETE /v1/tokens/{last.record.id}")
    place.person("ada")


def test_the_audit_list_is_bounded_and_read_from_the_newest_entry(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each entry is also in the service's log, which may be kept longer."""
    monkeypatch.setattr("kvs_api.accounts.audit.MAX_ENTRIES", 300)
    with caplog.at_level(logging.INFO, logger="kvs_api.accounts.audit"):
        for number in range(1000):
            place.store.note("ada", f"did {number}")
    assert "audit by=ada what=did 0" in caplog.text
    kept = place.store.audit(5000)
    assert 300 <= len(kept) < 900  # Redis trims in blocks
    assert kept[-1].what == "did 999"
    entries = place.ask(OPERATOR, "GET /v1/audit?last=2").json
    assert entries is not None
    assert [entry["what"] for entry in entries["entries"]] == ["did 998", "did 999"]
    assert place.ask(OPERATOR, "GET /v1/audit?last=x").status_code == 400


def test_an_unreadable_token_gives_no_access(service: Service, place: Place) -> None:
    """Other tokens stay usable."""
    token, other = place.made(name="ada"), place.made(name="bob")
    with redis.Redis.from_url(service.database.url) as client:
        client.hset(f"cerebro:2:token:{token.record.id}", "record", "{}")
    assert place.ask(token.token, "GET /v1/whoami").status_code == 401
    assert [each.id for each in place.store.tokens()] == [other.record.id]


def test_service_tokens_are_long_and_differ() -> None:
    """Equal tokens would give one service the other's rights."""
    environment = {"CEREBRO_TOKEN": "t" * 40, "CEREBRO_AUTH_MODE": "users", "CEREBRO_WORKER_TOKEN": "w" * 40}
    found = Settings.from_environment(environment)
    assert found.service_tokens == {Role.WORKER: "w" * 40}
    assert "w" * 40 not in repr(found)
    assert "w" * 40 in found.secrets
    for wrong, why in (
        ({"CEREBRO_WORKER_TOKEN": "short"}, "CEREBRO_WORKER_TOKEN has 5 characters"),
        ({"CEREBRO_WORKER_TOKEN": "t" * 40}, "must all differ"),
        ({"CEREBRO_CONTROLLER_TOKEN": "w" * 40}, "must all differ"),
        ({"CEREBRO_AUTH_MODE": "user"}, "expected token or users"),
    ):
        with pytest.raises(Exception, match=re.escape(why)):
            Settings.from_environment(environment | wrong)
    assert not Settings.from_environment({"CEREBRO_TOKEN": "t"}).has_users


PROJECTS = ("vision", "text", "secret")
_ASKED = st.builds(
    TokenRequest,
    name=st.none() | st.sampled_from(("ada", "bob", "root")),
    role=st.none() | st.sampled_from(RANK),
    projects=st.none() | st.lists(st.sampled_from(PROJECTS), unique=True).map(tuple),
    scopes=st.none() | st.lists(st.sampled_from(list(Scope)), unique=True, max_size=4).map(tuple),
)
_MAKERS = st.builds(
    Principal,
    name=st.sampled_from(("ada", "bob")),
    role=st.sampled_from((Role.VIEWER, Role.MEMBER)),
    projects=st.lists(st.sampled_from(PROJECTS[:2]), unique=True).map(tuple),
    scopes=st.none() | st.lists(st.sampled_from(list(Scope)), unique=True).map(tuple),
)


@given(maker=_MAKERS, requests=st.lists(_ASKED, min_size=1, max_size=6))
@settings(max_examples=500)
def test_no_order_of_calls_gains_rights(maker: Principal, requests: list[TokenRequest]) -> None:
    """No chain of tokens made with tokens has more rights than the first."""
    reached, first = [maker], maker
    for request in requests:
        for who in tuple(reached):
            token_request = granted(request, who)
            if isinstance(token_request, str):
                continue
            reached.append(token_request)
            assert token_request.name == first.name
            assert {scope for scope in Scope if token_request.may(scope)} <= {
                scope for scope in Scope if first.may(scope)
            }
            assert set(token_request.projects) <= set(first.projects)
            assert token_request.identity == first.identity
            assert token_request.projects or not first.projects or not token_request.may(Scope.CREATE)


@given(token_request=_ASKED, role=st.sampled_from(list(SERVICES)))
def test_a_service_makes_no_tokens(token_request: TokenRequest, role: Role) -> None:
    assert isinstance(granted(token_request, Principal(name=role, role=role, kind="service")), str)


@pytest.mark.parametrize("token_fields", [{"projects": []}, {"projects": [], "scopes": ["create"]}])
def test_a_token_without_a_project_does_not_escape_quotas(place: Place, token_fields: dict[str, Any]) -> None:
    """No quota would count its experiments. Tokens without the scope `create` may be in no project."""
    ada = place.person("ada", Role.MEMBER, "vision")
    answer = place.ask(ada, "POST /v1/tokens", token_fields)
    assert (answer.status_code, "name at least one of vision" in answer.text) == (403, True)
    reads = place.made(ada, projects=(), scopes=(Scope.READ,)).token
    assert place.create(reads).status_code == 403
    nobody = place.person("bob")
    assert place.create(place.made(nobody, projects=()).token, "two").status_code == 200


def test_an_ended_session_outlives_its_cookie(service: Service, place: Place) -> None:
    """The database keeps it for more than seven days, for all processes."""
    dispatcher, path = SERVICES[Role.DISPATCHER], f"/v1/sessions/{'a' * 32}"
    assert place.ask(dispatcher, f"GET {path}").json == {"has_ended": False}
    for _ in range(2):
        assert place.ask(dispatcher, f"DELETE {path}").status_code == 204
    assert Place(app=App(users(service.database.url), place.store, InThisThread()), store=place.store).ask(
        dispatcher, f"GET {path}"
    ).json == {"has_ended": True}
    assert place.ask(dispatcher, f"GET /v1/sessions/{'b' * 32}").json == {"has_ended": False}
    with redis.Redis.from_url(service.database.url) as client:
        assert 7 * 86400 < int(client.ttl(f"cerebro:2:session:{'a' * 32}")) <= 8 * 86400


# --- names -------------------------------------------------------------------------------------------

RESERVED = [
    "admin",
    "Admin",
    "operator",
    "controller",
    "CONTROLLER",
    "autoscaler",
    "worker",
    "export",
    "search",
]
LOOK_ALIKES = [
    "\u0430dmin",
    "adm\u0131n",
    "adm1n",
    "\uff41dmin",
    "a\u0301dmin",
    "ad-min",
    "adrnin",
    "c0ntroller",
    "kvs api",
    "kvs-api",
    "\u03f2ontroller",
    "\u1d00\u1d05\u1d0d\u026a\u0274",
]


@pytest.mark.parametrize("name", [*RESERVED, *LOOK_ALIKES, "oidc:" + "0" * 32])
def test_reserved_names_are_refused(place: Place, name: str) -> None:
    """Look-alike spellings are refused for each role, because logs use the names for operator and services."""
    for role in RANK:
        answer = place.ask(OPERATOR, "POST /v1/tokens", {"name": name, "role": role})
        assert (answer.status_code, "choose another" in answer.text) == (403, True)
    somebody = Principal(name=name, role=Role.MEMBER)
    answer = place.ask(
        SERVICES[Role.DISPATCHER], "GET /v1/whoami", acts_for=json.dumps(somebody.model_dump(mode="json"))
    )
    assert answer.status_code == 403


def test_names_that_differ_only_in_spelling_are_refused(place: Place) -> None:
    """The response is 409 with the existing name."""
    place.person("Zo\u00eb")
    for other in ("zo\u00eb", "Zoe\u0308"):
        answer = place.ask(OPERATOR, "POST /v1/tokens", {"name": other})
        assert (answer.status_code, "differs only in spelling" in answer.text) == (409, True)
    place.person("Zo\u00eb")


def test_a_person_with_the_same_name_owns_nothing_of_another_person(place: Place) -> None:
    """For people from an identity provider the id counts, not the name."""
    dispatcher = SERVICES[Role.DISPATCHER]

    def ada(number: int) -> Principal:
        return Principal(name="ada", role=Role.MEMBER, id=f"oidc:{number:032x}")

    record = ExperimentRecord(name="one", locators=LOCATORS)
    assert place.ask(dispatcher, "PUT /v1/experiments/one", record, acts_for=ada(1)).status_code == 200
    mine = MadeToken.model_validate_json(place.ask(dispatcher, "POST /v1/tokens", {}, acts_for=ada(1)).data)
    named = place.person("ada")
    first, second = ada(1), ada(2)
    assert place.append(dispatcher, requested("etl-1"), acts_for=second).status_code == 403
    assert place.append(named, requested("etl-1")).status_code == 403
    for other in (second, None):
        secret = dispatcher if other else named
        acting: dict[str, Any] = {"acts_for": other} if other else {}
        assert mine.record.id not in place.ask(secret, "GET /v1/tokens", **acting).text
        assert place.ask(secret, f"DELETE /v1/tokens/{mine.record.id}", **acting).status_code == 404
    renamed = first.model_copy(update={"name": "ada lovelace"})
    assert place.append(dispatcher, requested("etl-1"), acts_for=renamed).status_code == 200
    assert place.append(mine.token, requested("etl-2")).status_code == 200
    refused = place.append(named, requested("etl-3"))
    assert "is ada's" in refused.text


@pytest.mark.parametrize(
    "identity", ["operator", "ada", "oidc:", "oidc:" + "g" * 32, "oidc:" + "0" * 32 + "\n"]
)
def test_ids_made_up_by_the_dispatcher_are_refused(place: Place, identity: str) -> None:
    """Malformed ids and the operator's id are refused."""
    somebody = {"name": "eve", "role": "member", "kind": "person", "id": identity}
    answer = place.ask(SERVICES[Role.DISPATCHER], "GET /v1/whoami", acts_for=json.dumps(somebody))
    assert answer.status_code == 403
