"""A configured proxy signs in browsers by a header; nothing else trusts that header."""

from __future__ import annotations

import re
from ipaddress import ip_network

import pytest
from werkzeug.test import TestResponse

from dispatcher.access.guard import person
from dispatcher.settings import AuthProxy
from tests.dispatcher.access.surface import BEARER, LOCAL, VIEW
from tests.dispatcher.fakes import Bench, settings
from tests.dispatcher.stories import running_story


def proxied(header: str = "X-Forwarded-User") -> Bench:
    proxy = AuthProxy(header=header, networks=(ip_network("10.1.0.0/16"),))
    bench = Bench(settings=settings(auth_proxy=proxy))
    bench.store.add(running_story())
    return bench


def send_request(
    bench: Bench, address: str, user: str = "ada@example.org", path: str = "/experiments"
) -> TestResponse:
    headers = {"Accept": "text/html", "X-Forwarded-User": user}
    place = {"REMOTE_ADDR": address}
    return bench.app.test_client().get(path, headers=headers, environ_overrides=place, base_url=LOCAL)


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_a_trusted_proxy_signs_people_in(address: str) -> None:
    assert send_request(proxied(), address).status_code == 200


@pytest.mark.parametrize("address", ["10.2.0.1", "127.0.0.1", "::1", "192.168.0.1", ""])
def test_identity_headers_of_other_addresses_are_ignored(address: str) -> None:
    """Otherwise every client could claim any identity."""
    assert send_request(proxied(), address).status_code == 303


def test_an_unconfigured_identity_header_is_ignored(bench: Bench) -> None:
    """A header with another name is ignored, too."""
    assert send_request(bench, "10.1.2.3").status_code == 303
    assert send_request(proxied("X-Remote-User"), "10.1.2.3").status_code == 303
    assert send_request(proxied(), "10.1.2.3", user=" ").status_code == 303


def test_proxied_browser_still_needs_form_tokens() -> None:
    """A browser sends the proxy's cookie with requests of other sites, too."""
    bench = proxied()
    client = bench.app.test_client()
    place = {"environ_overrides": {"REMOTE_ADDR": "10.1.2.3"}, "base_url": LOCAL}
    headers = {"Accept": "text/html", "X-Forwarded-User": "ada"}
    path, fields = "/experiments/digits/actions", {"action": "stop_run", "run": "fit-1"}
    assert client.post(path, data=fields, headers=headers, **place).status_code == 403
    page = client.get("/start", headers=headers, **place).text
    token = re.search(r'name="csrf" value="([^"]+)"', page)
    assert token
    answer = client.post(path, data=fields | {"csrf": token[1]}, headers=headers, **place)
    assert answer.status_code == 303
    assert bench.store.logs["digits"][-1].by == "ada"  # type: ignore[union-attr]


@pytest.mark.parametrize("header", ["Basic YWRhOng=", "Bearer of-the-proxys-own"])
def test_an_authorization_header_of_the_proxy_is_no_wrong_token(header: str) -> None:
    """nginx with auth_basic forwards its own Authorization header. It must not count as a wrong token."""
    bench = proxied()
    client = bench.app.test_client()
    place = {"environ_overrides": {"REMOTE_ADDR": "10.1.2.3"}, "base_url": LOCAL}
    headers = {"Accept": "text/html", "X-Forwarded-User": "ada", "Authorization": header}
    for _ in range(7):
        assert client.get(VIEW, headers=headers, **place).status_code == 200
        assert client.get("/experiments", headers=headers, **place).status_code == 200
    assert client.get("/experiments/none", headers=headers, **place).mimetype == "text/html"
    assert client.get(VIEW, headers=headers | {"Host": "evil.example"}, **place).status_code == 421
    assert client.get(VIEW, headers=headers | {"Sec-Fetch-Site": "cross-site"}, **place).status_code == 403
    assert client.get(VIEW, headers=BEARER, **place).status_code == 200


def test_the_api_ignores_identity_headers() -> None:
    """The store's API accepts only tokens."""
    assert send_request(proxied(), "10.1.2.3", path="/api/v1/experiments").status_code == 401


@pytest.mark.parametrize("name", ["controller", "Admin", "autoscaler", "c0ntroller"])
def test_people_with_reserved_names_get_a_suffix(name: str) -> None:
    """A proxy user named like a service gets a suffix, so logs stay unambiguous."""
    assert person(name) == f"{name} (a person)"
    assert person("ada") == "ada"
