"""Checks of ``cerebro doctor`` on environment variables that name a cluster (``CEREBRO_*``) or an S3 store (``AWS_*``).

Opens a TCP connection to a configured S3 endpoint (at most 3 s), but signs no request, so credentials are not tested.
"""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

from cerebro.cli.doctor.check import Case, Finding, fail, ok, warn

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REACH_S = 3.0


def server(case: Case) -> Finding:
    """Check that notebooks use the intended cluster."""
    address = case.environment.get("CEREBRO_SERVER")
    if not address:
        return ok("notebooks use the local cluster")
    if not case.environment.get("CEREBRO_TOKEN"):
        return fail(
            f"CEREBRO_SERVER is {address}, but CEREBRO_TOKEN is not set",
            "set the token as well; for the local cluster: unset CEREBRO_SERVER",
        )
    return warn(
        f"CEREBRO_SERVER is set: notebooks use {address}, not the local cluster",
        "to use the local cluster: unset CEREBRO_SERVER",
    )


def object_store(case: Case) -> Finding:
    """Check the variables for s3:// locators, and that the endpoint answers."""
    env = case.environment
    endpoint = next((env[name] for name in _ENDPOINTS if env.get(name)), "")
    problem = _credentials_problem(env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY"))
    if problem:
        return fail(problem, "set both, or neither and use a profile (AWS_PROFILE) or an instance role")
    if endpoint:
        problem = _endpoint_problem(endpoint)
        if problem:
            return fail(problem, "check AWS_ENDPOINT_URL: it is an address such as http://localhost:9000")
    if case.info is not None and (differing := _differing(case, case.info.supervisor.pid)):
        return warn(
            f"the running cluster was started with different values of {', '.join(differing)}",
            "to use the present values: cerebro down && cerebro up (experiments stay)",
        )
    return ok(f"endpoint {endpoint}" if endpoint else "no endpoint set: s3:// is Amazon's")


def _credentials_problem(key: str | None, secret: str | None) -> str:
    if bool(key) == bool(secret):
        return ""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    present, absent = names if key else names[::-1]
    return f"{present} is set, {absent} is not"


def _endpoint_problem(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError as cause:
        return f"the endpoint {endpoint!r} is no address: {cause}"
    if not parts.hostname or port is None:
        return f"the endpoint {endpoint!r} does not begin with http:// or https:// and a host"
    try:
        socket.create_connection((parts.hostname, port), timeout=_REACH_S).close()
    except OSError as cause:
        return f"the endpoint {endpoint} cannot be reached: {cause}"
    return ""


def _differing(case: Case, supervisor: int) -> list[str]:
    """Return names of variables that differ in the cluster; values are secret."""
    text = Path(f"/proc/{supervisor}/environ").read_bytes().decode(errors="surrogateescape")
    cluster_environment = dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
    names = sorted(name for name in {*cluster_environment, *case.environment} if name.startswith("AWS_"))
    return [name for name in names if cluster_environment.get(name) != case.environment.get(name)]
