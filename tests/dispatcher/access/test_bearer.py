"""A bearer token opens every route, and repeated wrong tokens are rate-limited."""

from __future__ import annotations

import pytest

from tests.dispatcher.access.surface import BEARER, LOCAL, VIEW
from tests.dispatcher.fakes import TOKEN, Bench


def test_bearer_token_opens_every_route(bench: Bench) -> None:
    """No form token is needed, since a browser never sends this header by itself."""
    client = bench.app.test_client()
    assert client.get("/experiments", headers=BEARER, base_url=LOCAL).status_code == 200
    fields = {"name": "new", "train_metadata": "/data/train.csv"}
    assert client.post("/start", data=fields, headers=BEARER, base_url=LOCAL).status_code == 303
    assert "new" in bench.store.records


@pytest.mark.parametrize(
    "header", ["Bearer wrong", "Bearer", "Basic " + TOKEN, TOKEN, "Bearer \u00e9", f"Bearer {TOKEN}x"]
)
def test_wrong_bearer_token(bench: Bench, header: str) -> None:
    """Also when a valid session cookie is sent too."""
    client = bench.signed_in().client
    answer = client.get("/experiments", headers={"Authorization": header}, base_url=LOCAL)
    assert answer.status_code == 401


def test_guessing_by_header_is_slowed_down(bench: Bench) -> None:
    """The answer names the wait. Sessions and the right token are not delayed."""
    browser = bench.signed_in()
    client = bench.app.test_client()
    wrong = {"Authorization": "Bearer no"}
    for path in ("/experiments", "/api/v1/queue", VIEW, "/experiments", VIEW):
        assert client.get(path, headers=wrong, base_url=LOCAL).status_code == 401
    for path in ("/experiments", "/api/v1/queue", VIEW):
        answer = client.get(path, headers=wrong, base_url=LOCAL)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "60"), path
    assert client.get("/experiments", headers=BEARER, base_url=LOCAL).status_code == 200
    assert client.get(VIEW, headers=BEARER, base_url=LOCAL).status_code == 200
    assert browser.get("/experiments").status_code == 200
    bench.monotonic.now += 61
    assert client.get("/experiments", headers=wrong, base_url=LOCAL).status_code == 401


@pytest.mark.parametrize("header", ["Basic " + TOKEN, "Bearer", "Bearer  ", TOKEN])
def test_a_malformed_header_does_not_count_as_an_attempt(bench: Bench, header: str) -> None:
    """A malformed header is not compared with the token, so it does not count as an attempt."""
    client = bench.app.test_client()
    for path in ("/experiments", VIEW, "/api/v1/queue") * 4:
        assert client.get(path, headers={"Authorization": header}, base_url=LOCAL).status_code == 401
    assert bench.browser().post("/sign-in", {"token": TOKEN}).status_code == 303
