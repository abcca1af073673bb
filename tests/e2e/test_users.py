"""Two people in two browsers, on services that each have their own token."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cerebro import Experiment
from cerebro.contract.accounts.identity import Role, TokenRequest
from cerebro.errors import ForbiddenError
from cerebro.runtime.kvs.client import KvsClient
from tests.e2e.browser import Complaints, violations, window
from tests.e2e.harness import write_table
from tests.e2e.specs import TinyETL, TinyTraining
from tests.kvs_api.real import Database, Service
from tests.kvs_api.users.people import OPERATOR, SERVICES
from tests.servers import reserved_port
from tests.waiting import HANG_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    Windows = tuple[BrowserContext, BrowserContext]

pytestmark = pytest.mark.slow

SPACE = [{"tag": tag, "lr": 0.05, "batch_size": 5} for tag in "ab"]


@dataclass
class Shared:
    """A cluster with users: kvs_api in this process, the other services as processes."""

    service: Service
    folder: Path
    page: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, role: Role, *command: str, **variables: str) -> None:
        """Start a service with its own token only."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CEREBRO_")},
            "CEREBRO_SERVER": self.service.address,
            "CEREBRO_TOKEN": SERVICES[role],
            "CEREBRO_VOLUMES": str(self.folder / "volumes"),
            "CEREBRO_VOLUME_LOGS": str(self.folder / "logs"),
            **variables,
        }
        with (self.folder / f"{role}.txt").open("wb") as log:
            self.processes.append(
                subprocess.Popen([sys.executable, "-m", *command], env=environment, stdout=log, stderr=log)
            )

    def person(self, name: str, *projects: str) -> str:
        """Create a member and return its token."""
        client = self.service.client(OPERATOR)
        token = client.make_token(TokenRequest(name=name, projects=projects))
        client.close()
        return token.token


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    """One worker, a controller and a dispatcher."""
    for name in ("volumes", "logs", "shards"):
        (tmp_path / name).mkdir()
    with (
        reserved_port() as port,
        Database(tmp_path) as database,
        Service(
            database, max_body_bytes=48 << 20, has_users=True, service_tokens=SERVICES, token=OPERATOR
        ) as service,
    ):
        bind = f"127.0.0.1:{port}"
        shared = Shared(service, tmp_path, f"http://{bind}")
        shared.start(Role.CONTROLLER, "controller")
        shared.start(Role.DISPATCHER, "dispatcher", CEREBRO_BIND=bind, CEREBRO_AUTH_MODE="users")
        shared.start(
            Role.WORKER,
            *("cerebro.worker.agent", "--handlers", *_handlers()),
            CEREBRO_WORKER="worker-0",
            CEREBRO_CORES="1",
            CEREBRO_DEVICES="1",
            CEREBRO_VOLUME_SHARDS=str(tmp_path / "shards"),
        )
        KvsClient(shared.page, "", retry_for_s=HANG_S).api_prefix()
        yield shared
        for process in shared.processes:
            process.terminate()
        for process in shared.processes:
            process.wait(HANG_S)


def _handlers() -> tuple[str, ...]:
    from cerebro.local.supervision.services import _HANDLERS

    return _HANDLERS


@pytest.fixture
def windows(browser: Browser) -> Iterator[Windows]:
    """Open one browser window per person."""
    with window(browser) as one, window(browser) as other:
        yield one, other


def sign_in(context: BrowserContext, place: Shared, token: str, complaints: Complaints) -> Page:
    """Sign in and return the page."""
    page = complaints.listen(context.new_page())
    page.goto(f"{place.page}/experiments")
    page.get_by_label("Your token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{place.page}/experiments")
    return page


def test_two_users_share_a_cluster_with_their_own_rights(
    windows: Windows, shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Services with minimal rights preprocess and train Ada's experiment.

    Ada controls it, Bob of another project can only read it, and the history names both.
    """
    monkeypatch.setenv("CEREBRO_CACHE", str(tmp_path / "cache"))
    ada, bob = (
        shared.person("ada", "vision"),
        shared.person("bob", "text"),
    )
    locators = {
        split: write_table(tmp_path / f"{split}.csv", rows) for split, rows in (("train", 20), ("valid", 6))
    }
    with pytest.warns(UserWarning, match="exists on this machine"):
        experiment = Experiment("digits", locators=locators, server=shared.page, token=ada)
    experiment.run_etl(TinyETL(), progress=False)
    result = experiment.run_fit(TinyTraining(), SPACE, epochs=1, metric="loss", mode="min", progress=False)
    assert result.failures() == {}
    assert result.best.load()["models"]

    with pytest.raises(ForbiddenError, match="is in project 'vision', and bob is not"):
        Experiment.attach("digits", server=shared.page, token=bob).run_test(split="valid", progress=False)

    complaints = Complaints()
    hers, his = (
        sign_in(context, shared, token, complaints)
        for context, token in zip(windows, (ada, bob), strict=True)
    )
    for page in (hers, his):
        page.goto(f"{shared.page}/experiments/digits/models/m00")
        page.wait_for_selector("text=finished")
    assert hers.locator("text=Clone").count()
    assert not his.locator("text=Clone").count()
    hers.goto(f"{shared.page}/experiments/digits")
    hers.locator("#more summary").click()
    hers.get_by_role("button", name="Archive").click()
    hers.wait_for_selector("text=archived")
    his.goto(f"{shared.page}/experiments/digits/history")
    his.wait_for_selector("text=ada")
    assert "The store records the user" in his.inner_text("main")
    assert his.locator("#more").count() == 0
    his.goto(f"{shared.page}/experiments?archived=all")
    assert his.locator("input[value=digits]").is_disabled()
    hers.goto(f"{shared.page}/account")
    hers.get_by_label("Purpose").fill("nightly")
    hers.get_by_role("button", name="Create a token").click()
    hers.wait_for_selector("#made")
    match = re.search(r"ck_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", hers.content())
    assert match
    assert Experiment.attach("digits", server=shared.page, token=match[0]).result().best.id == result.best.id
    assert violations(hers) == []
    if folder := os.environ.get("CEREBRO_TEST_PICTURES"):
        for name, page in (("ada", hers), ("bob", his)):
            for path in (
                "experiments?archived=all",
                "experiments/digits",
                "account",
                "experiments/digits/history",
                "cluster",
            ):
                page.goto(f"{shared.page}/{path}")
                page.screenshot(path=f"{folder}/{name}-{re.sub('[^a-z]', '-', path)}.png", full_page=True)
    complaints.check(allowed=("Failed to load resource", "[DOM]"))
