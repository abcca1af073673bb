"""The page of registered models."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.contract.stored.registry import RegisteredModel, UnreadableVersion
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.gallery import gallery, registered_models
from tests.dispatcher.pages.seen import text_of


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_versions_and_aliases_are_shown(bench: Bench) -> None:
    """Newest first, with their origin and the error of a failed version."""
    bench.store.registered = registered_models()
    text = bench.signed_in().get("/registry").text
    assert text.index("digits-3") < text.index("digits-2") < text.index("digits-1")
    assert "<strong>champion</strong>" in text
    assert "digits/fit-1/m03/u1.pt is gone" in text
    assert "lr 0.1, width 64" in text


def test_known_models_are_shown_while_the_store_is_unavailable(bench: Bench) -> None:
    """All viewers share one request to the store per interval."""
    bench.store.registered = registered_models()
    browser = bench.signed_in()
    browser.get("/registry")
    bench.store.calls.clear()
    browser.get("/registry")
    assert "registry" not in bench.store.calls
    bench.monotonic.now += 60
    bench.store.is_away = True
    assert "champion" in browser.get("/registry").text


def test_an_unreadable_version_is_shown_with_its_reason(bench: Bench) -> None:
    """After the readable versions; also a model without any readable version."""
    digits, *others = registered_models()
    broken = UnreadableVersion(version=9, reason="version 9 of the registered model 'digits' cannot be read")
    none = RegisteredModel(name="lost", versions=(), unreadable=(broken,))
    bench.store.registered = (digits.model_copy(update={"unreadable": (broken,)}), none, *others)
    text = bench.signed_in().get("/registry").text
    assert text.count("version 9 of the registered model &#39;digits&#39; cannot be read") == 2
    assert "<strong>champion</strong>" in text


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return gallery(tmp_path).signed_in()


def test_a_model_is_registered_from_its_page(browser: Browser) -> None:
    """As a new version with an alias; the registry links its model and a download."""
    assert "Register m00" in browser.get("/experiments/digits/models/m00").text
    fields = {"run": "fit-1", "model": "m00", "name": "fresh", "alias": "champion"}
    assert browser.post("/experiments/digits/register", fields, form="/registry").status_code == 303
    page = browser.get("/registry").text
    assert "Remove champion from version 1" in page
    assert "/experiments/digits/models/m00?fit=fit-1" in page
    assert "/registry/fresh/1/file" in page


def test_a_form_that_is_sent_twice_adds_one_version(browser: Browser) -> None:
    """The second request finds the version of the first one."""
    fields = {"run": "fit-1", "model": "m00", "name": "fresh", "alias": "champion"}
    first, second = (
        browser.post("/experiments/digits/register", fields, form="/registry").headers["Location"]
        for _ in range(2)
    )
    assert first == second == "/registry?added=fresh/1@champion#fresh"


def test_a_failed_copy_is_reported_with_its_reason(tmp_path: Path) -> None:
    """A version without files gets no alias; registering the model again adds another version."""
    bench = gallery(tmp_path)
    browser = bench.signed_in()
    fields = {"run": "fit-1", "model": "m00", "name": "fresh", "alias": "champion"}
    bench.store.copying = "failed"
    answer = browser.post("/experiments/digits/register", fields, form="/registry")
    text = text_of(browser.get(answer.headers["Location"]).text)
    assert "The files of fresh/1 could not be copied: no space left. It has no alias." in text
    assert "being copied" not in text
    bench.store.copying = "ready"
    answer = browser.post("/experiments/digits/register", fields, form="/registry")
    assert answer.headers["Location"] == "/registry?added=fresh/2@champion#fresh"
    assert "Remove champion from version 2" in browser.get("/registry").text


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"name": "No"}, 400),
        ({"alias": "3"}, 400),
        ({"model": "nobody"}, 404),
        ({"model": "m06"}, 404),
    ],
)
def test_a_wrong_registration_is_refused(browser: Browser, changes: dict[str, str], status: int) -> None:
    """Invalid names; models that do not exist or have no checkpoint."""
    fields = {"run": "fit-1", "model": "m00", "name": "fresh", "alias": "champion"} | changes
    assert browser.post("/experiments/digits/register", fields, form="/registry").status_code == status
    assert "model-fresh" not in browser.get("/registry").text


def test_aliases_move_and_are_removed(browser: Browser) -> None:
    """Only to ready versions."""
    form = "/registry"
    alias = {"alias": "best", "version": "1"}
    assert browser.post("/registry/digits/aliases", alias, form=form).status_code == 303
    assert "<strong>best</strong>" in browser.get("/registry").text
    assert browser.post("/registry/digits/aliases", alias | {"version": "2"}, form=form).status_code == 409
    assert browser.post("/registry/digits/aliases", {"alias": "best"}, form=form).status_code == 400
    removed = {"alias": "best", "remove": "1"}
    assert browser.post("/registry/digits/aliases", removed, form=form).status_code == 303
    assert "<strong>best</strong>" not in browser.get("/registry").text


def test_a_version_is_downloaded(browser: Browser, tmp_path: Path) -> None:
    """Under its name and version; a version without files is not found."""
    file = tmp_path / "checkpoints" / ".registry" / "digits" / "v1" / "model.pt"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    answer = browser.get("/registry/digits/1/file")
    assert answer.data == b"weights"
    assert "digits-v1.pt" in answer.headers["Content-Disposition"]
    assert browser.get("/registry/digits/2/file").status_code == 404
