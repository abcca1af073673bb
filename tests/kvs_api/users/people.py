"""An in-process kvs_api in users mode, with calls by person."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from cerebro.contract.accounts.identity import ACTS_FOR, MadeToken, Principal, Role, Scope, TokenRequest
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from kvs_api.api.access import Access
from kvs_api.api.app import App
from kvs_api.settings import Settings
from kvs_api.store.store import Store
from tests.dispatcher.fakes import Clock
from tests.kvs_api.in_process import Answer, InThisThread, send_request
from tests.kvs_api.real import Database

OPERATOR = "the-token-of-the-cluster"
SERVICES = {
    role: f"{role}-{'0' * 32}" for role in (Role.CONTROLLER, Role.WORKER, Role.DISPATCHER, Role.EXPORT)
}
LOCATORS = Locators(train=Locator(metadata="/data/train.csv"))


def users(url: str, **changes: Any) -> Settings:
    """Return settings for users mode."""
    values: dict[str, Any] = {"has_users": True, "service_tokens": SERVICES, "token": OPERATOR}
    return Settings(host="127.0.0.1", port=0, redis_url=url, **(values | changes))


@dataclass(kw_only=True)
class Place:
    """A store in users mode, with requests by token."""

    app: App
    store: Store
    tokens: dict[str, str] = field(default_factory=dict)

    def ask(
        self, secret: str, route: str, content: object = None, *, acts_for: Principal | str = ""
    ) -> Answer:
        """Send a request with a token.

        `content` is a model, bytes, or a JSON value.
        """
        method, path = route.split(" ", 1)
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        if acts_for:
            headers[ACTS_FOR] = acts_for if isinstance(acts_for, str) else acts_for.model_dump_json()
        if isinstance(content, BaseModel):
            content = content.model_dump_json().encode()
        data = content if isinstance(content, bytes) or content is None else json.dumps(content).encode()
        return send_request(self.app, method, path, data, headers)

    def made(self, secret: str = OPERATOR, **fields: Any) -> MadeToken:
        """Make a token with another one."""
        answer = self.ask(secret, "POST /v1/tokens", TokenRequest(**fields))
        assert answer.status_code == 200, answer.text
        return MadeToken.model_validate_json(answer.data)

    def person(self, name: str, role: Role = Role.MEMBER, *projects: str, **fields: Any) -> str:
        """Make a person and return their token."""
        return self.made(name=name, role=role, projects=projects, **fields).token

    def create(self, secret: str, name: str = "one", **fields: Any) -> Answer:
        """Create an experiment."""
        record = ExperimentRecord(name=name, locators=LOCATORS, **fields)
        return self.ask(secret, f"PUT /v1/experiments/{name}", record)

    def append(self, secret: str, event: BaseModel, name: str = "one", **more: Any) -> Answer:
        """Append an event."""
        return self.ask(secret, f"POST /v1/experiments/{name}/events", event, **more)

    def events(self, name: str = "one") -> list[dict[str, Any]]:
        """Return the log."""
        found = self.ask(OPERATOR, f"GET /v1/experiments/{name}/events").json
        assert found is not None
        return list(found["events"])

    def audited(self) -> list[tuple[str, str]]:
        """Return the audit list as (who, what)."""
        return [(entry.by, entry.what) for entry in self.store.audit()]


def opened(database: Database, **changes: Any) -> Place:
    """Open a place over an empty database."""
    store = Store(database.url)
    return Place(app=App(users(database.url, **changes), store, InThisThread()), store=store)


@dataclass(kw_only=True)
class Timed:
    """`Access` with adjustable clocks."""

    access: Access
    clock: Clock
    monotonic: Clock


def timed(place: Place, url: str) -> Timed:
    """Return access to a place's tokens with test clocks."""
    clock, monotonic = Clock(), Clock()
    access = Access(users(url), place.store, clock=clock, monotonic=monotonic)
    return Timed(access=access, clock=clock, monotonic=monotonic)


__all__ = ["OPERATOR", "SERVICES", "Place", "Scope", "opened", "timed", "users"]
