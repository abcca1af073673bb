"""A dispatcher over a real store with users, and one browser per person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flask import Flask

from cerebro.contract.accounts.identity import ACTS_FOR, MadeToken, Role, TokenRequest
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.runtime.kvs.client import KvsClient
from dispatcher.access.guard import acts_for
from dispatcher.app import create_app
from dispatcher.settings import Links, Settings
from tests.dispatcher.fakes import Browser, Clock, settings
from tests.kvs_api.bench import requested
from tests.kvs_api.real import Service
from tests.kvs_api.users.people import OPERATOR, SERVICES

LOCATORS = Locators(train=Locator(metadata="/data/train.csv"))


@dataclass(kw_only=True)
class Signed:
    """A dispatcher over a store with users."""

    app: Flask
    service: Service
    store: KvsClient
    clock: Clock
    monotonic: Clock

    def client(self, token: str = OPERATOR) -> KvsClient:
        """Make a store client with a person's token."""
        return self.service.client(token, retry_for_s=1.0)

    def made(self, **asked: object) -> MadeToken:
        """Make a token as the operator."""
        return self.client().make_token(TokenRequest.model_validate(asked))

    def person(self, name: str, role: Role = Role.MEMBER, *projects: str) -> str:
        """Make a token for a new person."""
        return self.made(name=name, role=role, projects=projects).token

    def browser(self, token: str) -> Browser:
        """Open a browser signed in with a token."""
        browser = Browser(self.app)
        answer = browser.post("/sign-in", {"token": token})
        assert answer.status_code == 303, answer.text
        return browser

    def experiment(self, token: str, name: str, project: str = "") -> None:
        """Create a person's experiment with a run."""
        kvs = self.client(token)
        kvs.create_experiment(ExperimentRecord(name=name, locators=LOCATORS, project=project))
        kvs.append(name, requested("etl-1"))

    def audited(self) -> list[tuple[str, str]]:
        """List actor and action of the audit entries."""
        return [(entry.by, entry.what) for entry in self.client().audit()]


def with_users(address: str, **changes: object) -> Settings:
    """Make settings for a cluster with users."""
    token = SERVICES[Role.DISPATCHER]
    return settings(server=address, token=token, has_users=True, links=Links(), **changes)


@contextmanager
def signed(service: Service, **changes: object) -> Iterator[Signed]:
    """Serve the pages over a store and close the connections afterwards."""
    user_settings = with_users(service.address, **changes)
    store = KvsClient(
        service.address,
        user_settings.token,
        retry_for_s=1.0,
        write_headers=lambda: {ACTS_FOR: somebody} if (somebody := acts_for()) else {},
    )
    clock, monotonic = Clock(), Clock()
    app = create_app(user_settings, store, clock=clock, monotonic=monotonic)
    app.testing = False
    yield Signed(app=app, service=service, store=store, clock=clock, monotonic=monotonic)
    store.close()
