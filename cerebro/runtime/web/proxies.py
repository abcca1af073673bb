"""Connections to other machines, through the proxy that the environment names.

`kvs.transport`, the client's file downloads, the MLflow export and the dispatcher's OIDC get their connection pools
from `pool`. The variables are `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in capital or small letters.
This machine, private networks and services of a cluster are always reached directly.
"""

from __future__ import annotations

import ipaddress
import os
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3

from cerebro.errors import ClusterError

_CLUSTER_SUFFIXES = (".svc", ".local", ".localhost", ".internal")


def proxy_of(address: str, environment: Mapping[str, str]) -> str:
    """Return the URL of the proxy for an address; "" for a direct connection."""
    parts = urlsplit(address)
    host = (parts.hostname or "").lower().rstrip(".")
    known = {name.lower(): value for name, value in sorted(environment.items()) if value}
    proxy = known.get(f"{parts.scheme}_proxy") or known.get("all_proxy", "")
    if not proxy or _is_near(host):
        return ""
    proxies = {"no": known.get("no_proxy", "")}
    place = parts.netloc.rpartition("@")[2]
    if urllib.request.proxy_bypass_environment(place, proxies):  # type: ignore[attr-defined]
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def pool(
    address: str, *, environment: Mapping[str, str] | None = None, **options: Any
) -> urllib3.PoolManager:
    """Create a connection pool for one address, with the options of `urllib3.PoolManager`.

    Args:
        environment: environment variables; default: this process's.

    Raises:
        ClusterError: the proxy is not an http or https address. The message has no credentials.
    """
    proxy = proxy_of(address, os.environ if environment is None else environment)
    if not proxy:
        return urllib3.PoolManager(**options)
    try:
        parts = urlsplit(proxy)
        headers = None
        if parts.username:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers = urllib3.make_headers(proxy_basic_auth=credentials)
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **options)
    except (ValueError, urllib3.exceptions.HTTPError) as error:
        reason = (
            str(error) if isinstance(error, urllib3.exceptions.ProxySchemeUnknown) else "not a valid address"
        )
        raise ClusterError(
            f"the proxy for {address}, from HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, cannot be used: {reason}. Correct it "
            "or add the host to NO_PROXY"
        ) from error


def _is_near(host: str) -> bool:
    """True if a host is this machine, on a private network, or a service of the cluster."""
    try:
        return not ipaddress.ip_address(host.partition("%")[0]).is_global
    except ValueError:
        return "." not in host or host.endswith(_CLUSTER_SUFFIXES)
