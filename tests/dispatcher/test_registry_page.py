"""The page of registered models."""

from __future__ import annotations

import pytest

from cerebro.contract.stored.registry import RegisteredModel, UnreadableVersion
from tests.dispatcher.fakes import Bench
from tests.dispatcher.gallery import registered_models


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
