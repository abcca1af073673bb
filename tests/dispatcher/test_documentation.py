"""The documentation site that the page serves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dispatcher.documentation import page
from dispatcher.settings import Links
from tests.dispatcher.fakes import Bench, settings
from tests.dispatcher.stories import running_story

TAB = "/experiments/digits/curves"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A built site next to a file that it must not serve."""
    folder = tmp_path / "site"
    (folder / "web-page").mkdir(parents=True)
    (folder / "index.html").write_text("<h1>Start</h1>")
    (folder / "web-page" / "index.html").write_text("<script>a=1</script><script src=x.js></script>")
    (folder / "x.js").write_text("b=1")
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr(page, "FOLDER", folder)
    return folder


def bench(**links: str) -> Bench:
    found = Bench(settings=settings(links=Links(**links)))
    found.store.add(running_story())
    return found


def test_each_tab_links_its_heading_on_the_built_site(site: Path) -> None:
    """A setting replaces the address."""
    assert 'href="/documentation/web-page/#curves"' in bench().signed_in().get(TAB).text
    elsewhere = bench(docs="https://docs.example/web-page/").signed_in().get(TAB).text
    assert 'href="https://docs.example/web-page/#curves"' in elsewhere


def test_without_a_site_there_is_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "FOLDER", tmp_path / "nothing")
    browser = bench().signed_in()
    assert "Documentation of the tab" not in browser.get(TAB).text
    assert browser.get("/documentation/").status_code == 404
    assert browser.get("/documentation/index.html").status_code == 404


def test_only_files_of_the_site_are_served_and_only_to_users(site: Path) -> None:
    """Folders show their index page."""
    browser = bench().signed_in()
    assert browser.get("/documentation/").text == "<h1>Start</h1>"
    assert browser.get("/documentation/x.js").text == "b=1"
    assert browser.get("/documentation/web-page").headers["Location"] == "/documentation/web-page/"
    for path in ("../secret", "%2e%2e/secret", "web-page/../../secret", "/etc/passwd"):
        assert browser.get(f"/documentation/{path}").status_code == 404
    assert bench().browser().get("/documentation/x.js").status_code == 303


def test_only_the_sites_own_inline_scripts_run(site: Path) -> None:
    """By their hashes."""
    policy = bench().signed_in().get("/documentation/web-page/").headers["Content-Security-Policy"]
    (scripts,) = re.findall(r"script-src ([^;]*)", policy)
    assert scripts == "'self' 'sha256-wi/qXXQo5c9H72NUyXySI8ldbc3D4NIwD/eQVrH/PYU='"
