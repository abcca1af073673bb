"""Outside addresses go through the environment's proxy; this machine, private networks and the cluster never do."""

from __future__ import annotations

import pytest
import urllib3

from cerebro.errors import ClusterError
from cerebro.exports.mlflow_server import MlflowServer
from cerebro.runtime.kvs.transport import Transport
from cerebro.runtime.web import proxies

PROXY = "http://proxy.example.org:3128"


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_outside_addresses_go_through_the_proxy(variable: str) -> None:
    """Upper-case and lower-case variable names are equivalent."""
    assert proxies.proxy_of("https://mlflow.example.org", {variable: PROXY}) == PROXY
    assert proxies.proxy_of("https://93.184.216.34:8443/x", {variable: PROXY}) == PROXY
    assert proxies.proxy_of("https://[2606:2800:220:1::1]/", {variable: PROXY}) == PROXY
    assert proxies.proxy_of("https://mlflow.example.org", {variable: ""}) == ""


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:7070", "[::1]:7070", "localhost:7070", "10.0.0.7:7070", "192.168.1.2",
        "[fd00::7]:7070", "169.254.1.1", "cerebro-kvs-api:7070", "mlflow.mlflow.svc:5000",
        "mlflow.mlflow.svc.cluster.local:5000", "ip-10-0-0-1.ec2.internal",
    ],
)  # fmt: skip
def test_near_addresses_bypass_the_proxy(host: str) -> None:
    environment = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), PROXY)
    assert proxies.proxy_of(f"http://{host}", environment) == ""


@pytest.mark.parametrize(
    "excepted", ["example.org", ".example.org", "mlflow.example.org", "a.b,mlflow.example.org:5000", "*"]
)
def test_no_proxy_exempts_addresses(excepted: str) -> None:
    """`NO_PROXY` has the usual syntax."""
    environment = {"HTTP_PROXY": PROXY, "NO_PROXY": excepted}
    assert proxies.proxy_of("http://mlflow.example.org:5000", environment) == ""
    assert bool(proxies.proxy_of("http://example.com", environment)) == (excepted != "*")


def test_exports_and_clients_use_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy's user and password are used, and near addresses stay direct."""
    for variable in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://ann:p%40ss@proxy.example.org:3128")
    outside = Transport("https://cerebro.example.org", "token")._http
    assert isinstance(outside, urllib3.ProxyManager)
    assert outside.proxy is not None
    assert outside.proxy.host == "proxy.example.org"
    assert outside.proxy_headers == urllib3.make_headers(proxy_basic_auth="ann:p@ss")
    assert not isinstance(Transport("http://127.0.0.1:7070", "token")._http, urllib3.ProxyManager)
    server = MlflowServer("https://mlflow.example.org", {"HTTPS_PROXY": PROXY})
    assert isinstance(server._http, urllib3.ProxyManager)


@pytest.mark.parametrize(
    ("proxy", "reason"),
    [
        ("socks5h://me:secret@10.0.0.1:1080", "unsupported scheme socks5h"),
        ("ftp://10.0.0.1", "unsupported scheme ftp"),
        ("http://[::1", "not a valid address"),
        ("http://me:secret@proxy:port", "not a valid address"),
        ("://", "no scheme"),
    ],
)
def test_an_unusable_proxy_is_refused_by_name(proxy: str, reason: str) -> None:
    """Without its password. Addresses that need no proxy stay usable."""
    environment = {"ALL_PROXY": proxy}
    with pytest.raises(ClusterError, match=reason) as refused:
        proxies.pool("http://cluster.example.com", environment=environment)
    assert "ALL_PROXY" in str(refused.value)
    assert "secret" not in str(refused.value)
    proxies.pool("http://127.0.0.1:80", environment=environment)
