"""Requests to a Kubernetes API server: plain REST, no patience. Foreign errors become types here.

Knows HTTP, the API's `Status` objects and the framing of watches. Knows nothing of pods. Safe for use by several
threads. Why no client library: docs/decisions/0010-kubernetes-over-rest.md.

Kubernetes documentation: "Kubernetes API Concepts".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import urllib3

from cerebro.errors import CerebroError, ClusterError, RetryableError
from controller.kubernetes.access import Access

Object = Mapping[str, Any]
"""A decoded JSON object."""

_SUCCESS = 300
_CONFLICT, _GONE, _TOO_MANY = 409, 410, 429
_SERVER_ERROR = 500
_MAX_LINE = 8 << 20
"""Bytes of one watch event. etcd takes objects of 1.5 MB at most: what is longer is no event."""


class GoneError(RetryableError):
    """The resource version is too old (HTTP 410): what happened since is to be listed."""


class ChangedError(RetryableError):
    """Somebody else changed the object meanwhile (HTTP 409)."""


class UnavailableError(RetryableError):
    """The server did not answer in time, not in full or not in its own format, or asks for patience.

    Attributes:
        after_s: how long it asks to be left alone (``Retry-After``); 0: it does not say.
    """

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class ApiServer:
    """An API server.

    Args:
        timeout_s: how long a connection, and then each piece of an answer, is waited for.
    """

    def __init__(self, access: Access, *, timeout_s: float) -> None:
        self._access, self._timeout_s = access, timeout_s
        # Retries are the callers': urllib3's would repeat a refused request, and not know what 410 means.
        self._http = urllib3.PoolManager(
            maxsize=4, retries=False, ca_certs=str(access.ca_file) if access.ca_file else None
        )

    def get(self, path: str, query: Mapping[str, str]) -> Object:
        """Read an object or a list.

        Raises:
            GoneError, UnavailableError, ClusterError: see there; `ClusterError`: the server refuses.
        """
        return self._answer("GET", f"{path}?{urlencode(query)}")

    def patch(self, path: str, change: Object) -> Object:
        """Change some fields of an object (JSON merge patch); doing it again changes nothing.

        Raises:
            ChangedError, UnavailableError, ClusterError: as for `get`.
        """
        return self._answer("PATCH", path, json.dumps(change).encode())

    @contextmanager
    def watch(self, path: str, query: Mapping[str, str], *, lasts_s: int) -> Iterator[Iterator[Object]]:
        """The events of a watch, as they come, until the server ends it after `lasts_s` seconds or before.

        Raises:
            GoneError, UnavailableError, ClusterError: on entering; and while events are read, the first two.
        """
        full = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(lasts_s)}
        response = self._request("GET", f"{path}?{urlencode(full)}", read_s=lasts_s + self._timeout_s)
        try:
            yield _events(response)
        finally:
            # What is left of a stream is of no use: the connection cannot serve another request.
            response.close()
            response.release_conn()

    def _answer(self, method: str, target: str, body: bytes | None = None) -> Object:
        response = self._request(method, target, body=body, read_s=self._timeout_s)
        try:
            return _object(response.read())
        except urllib3.exceptions.HTTPError as cause:
            raise UnavailableError(f"broke off its answer ({type(cause).__name__})") from cause
        finally:
            response.release_conn()

    def _request(
        self, method: str, target: str, *, body: bytes | None = None, read_s: float
    ) -> urllib3.BaseHTTPResponse:
        def send() -> urllib3.BaseHTTPResponse:
            return self._http.request(
                method,
                self._access.server + target,
                body=body,
                headers=self._headers(is_patch=body is not None),
                timeout=urllib3.Timeout(connect=self._timeout_s, read=read_s),
                preload_content=False,
            )

        try:
            try:
                response = send()
            except urllib3.exceptions.ProtocolError:
                # A kept connection that the server was just closing. All requests here may be sent twice.
                response = send()
            if response.status < _SUCCESS:
                return response
            content = response.read()
        except urllib3.exceptions.HTTPError as cause:
            raise UnavailableError(f"does not answer ({type(cause).__name__}: {cause})") from cause
        response.release_conn()
        raise _error(f"{method} {target.partition('?')[0]}", response.status, content, response.headers)

    def _headers(self, *, is_patch: bool) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "cerebro-controller"}
        if is_patch:
            headers["Content-Type"] = "application/merge-patch+json"
        if self._access.token_file:
            try:
                headers["Authorization"] = f"Bearer {self._access.token_file.read_text().strip()}"
            except OSError as cause:
                raise UnavailableError(f"cannot be asked: no token ({cause})") from cause
        return headers


def _events(response: urllib3.BaseHTTPResponse) -> Iterator[Object]:
    """Events of a stream: a JSON object a line, in pieces of any size."""
    buffer = bytearray()
    try:
        while piece := response.read1(65536):
            buffer += piece
            *lines, rest = buffer.split(b"\n")
            buffer = bytearray(rest)
            yield from (_event(bytes(line)) for line in lines if line.strip())
            if len(buffer) > _MAX_LINE:
                raise UnavailableError(f"sent an event of more than {_MAX_LINE} bytes")
    except urllib3.exceptions.HTTPError as cause:
        raise UnavailableError(f"broke off a watch ({type(cause).__name__})") from cause
    if buffer.strip():
        raise UnavailableError("broke off a watch within an event")


def _event(line: bytes) -> Object:
    event = _object(line)
    content = event.get("object")
    if not isinstance(content, Mapping) or not isinstance(event.get("type"), str):
        raise UnavailableError(f"sent an event that is none: {line[:200]!r}")
    if event["type"] != "ERROR":
        return event
    code = content.get("code")
    if code == _GONE:
        raise GoneError(str(content.get("message", "")))
    raise UnavailableError(f"ended a watch with error {code}: {content.get('message', '')}")


def _object(content: bytes) -> Object:
    try:
        found = json.loads(content)
    except ValueError as cause:
        raise UnavailableError(f"sent what is no JSON: {content[:200]!r}") from cause
    if not isinstance(found, dict):
        raise UnavailableError(f"sent JSON that is no object: {content[:200]!r}")
    return found


def _error(request: str, status: int, content: bytes, headers: Mapping[str, str]) -> CerebroError:
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, LookupError, TypeError):
        message = content[:200].decode(errors="replace")
    said = f"answers HTTP {status} to {request}: {message}"
    if status == _GONE:
        return GoneError(said)
    if status == _CONFLICT:
        return ChangedError(said)
    if status == _TOO_MANY or status >= _SERVER_ERROR:
        return UnavailableError(said, _seconds(headers.get("Retry-After", "")))
    return ClusterError(f"{said}{_CURES.get(status, '')}")


_CURES: Mapping[int, str] = {
    401: "; the controller's service account token is not valid (deleted, expired, of another cluster)",
    403: "; the controller's Role lacks this verb: `helm upgrade` restores the chart's Role",
    404: "; the name in CEREBRO_WORKER_SET or CEREBRO_NAMESPACE is wrong, or the StatefulSet was deleted",
}
"""What to do about an answer that trying again does not change."""


def _seconds(text: str) -> float:
    """Of ``Retry-After``. A date, the header's other form, API servers do not send."""
    return float(text) if text.isdecimal() else 0.0
