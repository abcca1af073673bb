"""``cerebro open`` against a page over a real store."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.cli.program import main
from cerebro.contract.records import ExperimentRecord
from cerebro.runtime.kvs.client import KvsClient
from dispatcher.app import create_app
from tests.dispatcher.fakes import settings
from tests.dispatcher.serving import serving
from tests.dispatcher.users.signed import LOCATORS
from tests.kvs_api.real import TOKEN, Service


@pytest.fixture
def page(service: Service, kvs: KvsClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a page, which the environment names."""
    with serving(create_app(settings(server=service.address, token=TOKEN), kvs)) as address:
        monkeypatch.setenv("CEREBRO_SERVER", address)
        monkeypatch.setenv("CEREBRO_TOKEN", TOKEN)
        yield address


def test_the_printed_link_signs_in(page: str, kvs: KvsClient, capsys: pytest.CaptureFixture[str]) -> None:
    """At the page of an experiment, if one is named. The token is not printed."""
    kvs.create_experiment(ExperimentRecord(name="digits", locators=LOCATORS))
    assert main(["open", "digits", "--print"]) == 0
    said = capsys.readouterr().out
    link, _, code = said.splitlines()[-1].partition("#")
    assert link == f"{page}/sign-in?next=/experiments/digits"
    assert kvs.redeem_sign_in_code(code).acts_for == ""
    assert TOKEN not in said


def test_an_unknown_experiment_is_an_error(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["open", "digits", "--print"]) == 1
    assert "digits" in capsys.readouterr().err


def test_the_store_has_no_page(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what to set."""
    monkeypatch.setenv("CEREBRO_SERVER", service.address)
    monkeypatch.setenv("CEREBRO_TOKEN", TOKEN)
    assert main(["open"]) == 1
    assert "set CEREBRO_SERVER to the address of the page" in capsys.readouterr().err


@pytest.mark.processes
def test_the_browser_gets_the_link_in_a_private_file(page: str, kvs: KvsClient, tmp_path: Path) -> None:
    """Other users can read the command line of a browser, so the code is not in it."""
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(0o700)
    environment = {**os.environ, "BROWSER": str(browser), "CEREBRO_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "cerebro.cli", "open"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    link = done.stdout.splitlines()[-1]
    file = Path(seen.read_text().strip().removeprefix("file://"))
    assert link.startswith(f"{page}/sign-in#")
    assert link in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.processes
def test_without_a_browser_the_link_is_printed(page: str, tmp_path: Path) -> None:
    """Such as on a machine without a display."""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        [sys.executable, "-m", "cerebro.cli", "open"],
        env=environment | {"CEREBRO_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("This link signs a browser in")
    assert list(tmp_path.iterdir()) == []
