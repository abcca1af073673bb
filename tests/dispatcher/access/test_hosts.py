"""The dispatcher answers only to its own host names, except for probes."""

from __future__ import annotations

import pytest

from tests.dispatcher.access.surface import BEARER
from tests.dispatcher.fakes import Bench, settings


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:7080", "", "[::2]"])
def test_foreign_host_name_is_refused(bench: Bench, host: str) -> None:
    """With DNS rebinding, an attacker's host name resolves to this machine; not even the sign-in answers."""
    client = bench.app.test_client()
    for path in ("/sign-in", "/experiments", "/static/style.css"):
        answer = client.get(path, headers={"Host": host, **BEARER})
        assert answer.status_code == 421
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost:7080", "LOCALHOST", "127.0.0.1", "[::1]:7080", "cerebro.example.org"]
)
def test_own_host_names(host: str) -> None:
    """Loopback names and configured names are accepted."""
    bench = Bench(settings=settings(public_hosts=frozenset({"cerebro.example.org"})))
    assert bench.app.test_client().get("/sign-in", headers={"Host": host}).status_code == 200


def test_listening_on_all_addresses_does_not_accept_every_name() -> None:
    """0.0.0.0 is an address to listen on, not a name to be called by."""
    bench = Bench(settings=settings(host="0.0.0.0"))
    assert bench.app.test_client().get("/sign-in", headers={"Host": "0.0.0.0:7080"}).status_code == 421


@pytest.mark.parametrize(
    ("host", "status"),
    [("10.1.2.3:30080", 200), ("[fd00::1]:80", 200), ("cerebro.example.org", 421), ("1.2.3", 421)],
)
def test_listening_on_all_addresses_accepts_numeric_addresses(host: str, status: int) -> None:
    """A numeric address is safe, because no name server can point it elsewhere."""
    app = Bench(settings=settings(host="0.0.0.0")).app
    assert app.test_client().get("/sign-in", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("host", ["10.1.2.3:30080", "kubernetes-probe", ""])
@pytest.mark.parametrize("path", ["/health", "/live"])
def test_probes_answer_under_any_name(host: str, path: str) -> None:
    """The kubelet probes the pod by its IP address."""
    app = Bench(settings=settings(host="0.0.0.0")).app
    assert app.test_client().get(path, headers={"Host": host}).status_code == 200


def test_health_needs_nothing(bench: Bench) -> None:
    """Health needs no token and no store."""
    bench.store.is_away = True
    answer = bench.app.test_client().get("/health")
    assert (answer.status_code, answer.json) == (200, {"status": "ok", "api": "/api"})
