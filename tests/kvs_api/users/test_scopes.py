"""The rights of each role on every route."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro.contract.accounts.identity import RANK, SCOPES, Principal, Role, Scope
from cerebro.contract.rest.routes import STORE
from kvs_api.api.app import App
from kvs_api.store.store import Store
from tests.kvs_api.in_process import InThisThread
from tests.kvs_api.real import Service
from tests.kvs_api.users.people import OPERATOR, SERVICES, Place, users

V, M, A, C, W, D, E = "viewer", "member", "admin", "controller", "worker", "dispatcher", "export"
PEOPLE, READERS, ALL = {V, M, A}, {V, M, A, C, D, E}, {V, M, A, C, W, D, E}

TABLE: dict[str, set[str]] = {
    "GET /openapi.json": READERS,
    "POST /v1/leader": {C},
    "GET /v1/experiments": READERS,
    "PUT /v1/experiments/{name}": {M, A},
    "GET /v1/experiments/{name}": READERS,
    "DELETE /v1/experiments/{name}": {C},
    "POST /v1/experiments/{name}/events": {M, A},
    "GET /v1/experiments/{name}/events": READERS,
    "PUT /v1/experiments/{name}/quarantine": {C},
    "DELETE /v1/experiments/{name}/quarantine": {A},
    "GET /v1/experiments/{name}/segments": READERS,
    "POST /v1/experiments/{name}/segments": {C},
    "GET /v1/experiments/{name}/snapshot": READERS,
    "PUT /v1/experiments/{name}/snapshot": {C},
    "GET /v1/cluster/log/segments": READERS,
    "POST /v1/cluster/log/segments": {C},
    "GET /v1/cluster/log/snapshot": READERS,
    "PUT /v1/cluster/log/snapshot": {C},
    "GET /v1/experiments/{name}/live": READERS,
    "POST /v1/experiments/{name}/stacks": {M, A},
    "GET /v1/experiments/{name}/stacks": READERS,
    "POST /v1/experiments/{name}/decisions": {C},
    "POST /v1/watch": READERS,
    "GET /v1/cluster/log": READERS,
    "POST /v1/cluster/log": {C},
    "GET /v1/queue": READERS,
    "GET /v1/audit": READERS,
    "POST /v1/audit": {D},
    "POST /v1/sign-in-codes": PEOPLE,
    "POST /v1/sign-in-codes/redeem": {D},
    "GET /v1/sessions/{name}": {D},
    "DELETE /v1/sessions/{name}": {D},
    "GET /v1/reclaim": {V, M, A, C, W, D},
    "GET /v1/workers": READERS,
    "PUT /v1/workers/{name}": {W},
    "DELETE /v1/workers/{name}": {A, C},
    "GET /v1/cluster/size": READERS,
    "PUT /v1/cluster/size": {A, C},
    "DELETE /v1/cluster/size": {A, C},
    "GET /v1/cluster/worker-set": READERS,
    "PUT /v1/cluster/worker-set": {C},
    "GET /v1/workers/{name}/usage": READERS,
    "POST /v1/workers/{name}/reports": {W},
    "POST /v1/workers/{name}/stacks": {W},
    "GET /v1/workers/{name}/inbox": {W},
    "GET /v1/cluster/health": READERS,
    "POST /v1/cluster/health": {C},
    "PUT /v1/workers/{name}/pace": {C},
    "PUT /v1/workers/{name}/quarantine": {A, C},
    "POST /v1/workers/{name}/release": {A, C},
    "POST /v1/workers/{name}/check": {A, C},
    "PUT /v1/workers/{name}/check": {W},
    "POST /v1/trials": READERS,
    "PUT /v1/trials": {C},
    "POST /v1/trials/forget": {A},
    "GET /v1/history": READERS,
    "POST /v1/history": {C},
    "DELETE /v1/history": {A},
    "GET /v1/registry": READERS,
    "GET /v1/registry/{name}": READERS,
    "POST /v1/registry/{name}": {M, A},
    "PUT /v1/registry/{name}": {C},
    "POST /v1/registry/{name}/aliases": {M, A},
    "PUT /v1/code/{sha256}": {M, A},
    "GET /v1/code/{sha256}": {V, M, A, C, W, D},
    "PUT /v1/archives/{sha256}": {M, A},
    "GET /v1/archives/{sha256}": {V, M, A, C, W, D},
    "GET /v1/notifications": READERS,
    "POST /v1/notifications": {M, A},
    "DELETE /v1/notifications/{name}": {M, A},
    "POST /v1/notifications/{name}/test": {M, A},
    "GET /v1/outbox": {C},
    "PUT /v1/outbox": {C},
    "GET /v1/quotas": READERS,
    "POST /v1/bytes": {C},
    "PUT /v1/quotas/{name}": {A},
    "GET /v1/whoami": ALL,
    "GET /v1/tokens": PEOPLE,
    "POST /v1/tokens": PEOPLE,
    "DELETE /v1/tokens/{token}": PEOPLE,
    "GET /metrics": READERS,
    "GET /v1/nothing": ALL,
}
"""Roles permitted on each route; all others get 403. Public routes are not listed."""


def secrets(place: Place) -> dict[str, str]:
    """Make a token for each role."""
    people = {role.value: place.person(f"{role}-ada", role, "vision") for role in RANK}
    return people | {role.value: secret for role, secret in SERVICES.items()}


def test_every_route_has_a_scope() -> None:
    """A route without a scope is closed to everyone."""
    assert all(each.scope not in (None, Scope.NONE) for each in STORE.values())
    assert {key for key, each in STORE.items() if each.scope is Scope.OPEN} == {"GET /health", "GET /live"}
    assert not any(Scope.NONE in scopes for scopes in SCOPES.values())


def test_the_table_of_routes_and_roles_is_exact(place: Place) -> None:
    """Forbidden roles get 403 before the request is parsed, and requests without a token are refused."""
    assert {key for key, each in STORE.items() if each.scope is not Scope.OPEN} == {
        key for key in TABLE if key not in ("GET /metrics", "GET /v1/nothing")
    }
    known = secrets(place)
    for route, allowed in TABLE.items():
        path = route.replace("{name}", "one").replace("{sha256}", "a" * 64).replace("{token}", "0" * 16)
        for role, secret in known.items():
            status = place.ask(secret, path, b"{").status_code
            assert (status not in (401, 403)) == (role in allowed), (route, role, status)
        assert place.ask("", path, b"{").status_code == 401
        assert place.ask(OPERATOR, path, b"{").status_code == place.ask(known[A], path, b"{").status_code


def test_a_token_may_have_fewer_scopes_than_its_role(place: Place) -> None:
    """A token with the read scope only reads, and cannot make a stronger one."""
    reads = place.made(name="ada", role=Role.ADMIN, scopes=(Scope.READ, Scope.TOKENS)).token
    assert place.ask(reads, "GET /v1/experiments").status_code == 200
    refused = place.create(reads)
    assert (refused.status_code, "without the scope 'create'" in refused.text) == (403, True)
    wider = place.ask(reads, "POST /v1/tokens", {"scopes": ["administer"]})
    assert (wider.status_code, wider.json["error"]) == (403, "ForbiddenError")
    child = place.made(reads).token
    assert place.create(child).status_code == 403
    assert place.ask(child, "PUT /v1/cluster/size", {"workers": 3}).status_code == 403


@pytest.mark.parametrize(
    "somebody",
    [
        Principal(name="eve", role=Role.CONTROLLER),
        Principal(name="eve", role=Role.ADMIN, kind="service"),
        Principal(name="eve", role=Role.ADMIN, token="0" * 16),
        "nonsense",
        "token",
        "token ../x",
        "operator",
        "operator " + "0" * 64,
    ],
)
def test_the_dispatcher_acts_only_for_people(place: Place, somebody: Any) -> None:
    """It cannot act for services, or for a person with a token that it does not name."""
    answer = place.ask(SERVICES[Role.DISPATCHER], "GET /v1/whoami", acts_for=somebody)
    assert answer.status_code in (401, 403)


def test_only_the_dispatcher_acts_for_users(place: Place) -> None:
    """Other roles get 403 for the header."""
    eve = Principal(name="eve", role=Role.ADMIN)
    for role, secret in secrets(place).items():
        answer = place.ask(secret, "GET /v1/whoami", acts_for=eve)
        assert answer.status_code == (200 if role == D else 403), role
    mine = place.made(name="ada", role=Role.VIEWER)
    identity = place.ask(SERVICES[Role.DISPATCHER], "GET /v1/whoami", acts_for=f"token {mine.record.id}")
    assert identity.json is not None
    assert (identity.json["name"], identity.json["role"]) == ("ada", "viewer")


def test_without_users_the_single_token_has_all_rights(service: Service) -> None:
    """The single token may do everything under any name, and other tokens are invalid."""
    store = Store(service.database.url)
    place = Place(app=App(users(service.database.url, has_users=False), store, InThisThread()), store=store)
    for route in TABLE:
        path = route.replace("{name}", "one").replace("{sha256}", "a" * 64).replace("{token}", "0" * 16)
        assert place.ask(OPERATOR, path, b"{").status_code not in (401, 403), route
        assert place.ask(SERVICES[Role.CONTROLLER], path, b"{").status_code == 401
    assert place.ask(OPERATOR, "GET /v1/whoami").status_code == 404
