"""Requests to a Cerebro service: connections, the token, retries, and the service's errors as ours.

`KvsClient` inherits from `Transport`; nothing else sends requests to kvs_api. A call is retried until `retry_for_s` has
passed after a refused connection, a 502, 503 or 504, or a proxy's HTML page. After a 500 of kvs_api it is retried
twice, because that error may depend on the request. So every call must be safe to repeat. Threads can share a client; a
blocking read occupies one pooled connection.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import urllib3
from pydantic import BaseModel, ValidationError

from cerebro import errors
from cerebro.contract.rest import api
from cerebro.runtime.web import proxies
from cerebro.runtime.web.addresses import bracketed

Answer = TypeVar("Answer", bound=BaseModel)

_TRY_AGAIN = frozenset({500, 502, 503, 504})
_SERVER_ERROR, _SERVER_ERROR_TRIES = 500, 3
_MAX_PAUSE_S = 0.5
_SUCCESS = 300
_NO_CONTENT = 204
"""No page, although Flask in the dispatcher gives this answer without a body the type of HTML."""
_TOO_LARGE = 413
_CONNECT_S = 5.0
_BEGIN = 100
"""Number of first bytes of an answer that show whether it is a page."""


class Transport:
    """Requests to the service at `address`.

    Args:
        address: base URL, such as ``http://127.0.0.1:7070``.
        token: bearer token.
        retry_for_s: seconds to retry while the service or its store is away.
        timeout_s: seconds to wait for an answer of one try, in addition to a blocking read; a hanging server counts as
            away.
        pool: connections kept open; at least one per thread that blocks.
        explain_absence: returns why the service is away and a remedy, or an empty text. Called after `retry_for_s`.
        write_headers: returns the headers of the next write: the user (`ACTS_FOR`) or the controller's term
            (`api.TERM`).
        ca_file: certificates to trust for ``https://`` instead of the system's; ``SSL_CERT_FILE`` names the system's.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        retry_for_s: float = 60.0,
        timeout_s: float = 30.0,
        pool: int = 8,
        explain_absence: Callable[[], str] = str,
        ca_file: str | None = None,
        write_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.address = bracketed(address.rstrip("/"))
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._explain_absence = explain_absence
        self._write_headers = write_headers
        self._http = proxies.pool(
            self.address,
            maxsize=pool,
            headers={
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/json",
                # Nothing reads these two; parsing them would take the server a tenth of its time.
                "Accept-Encoding": urllib3.util.SKIP_HEADER,
                "User-Agent": urllib3.util.SKIP_HEADER,
            },
            # This class retries: urllib3 would not distinguish an absent store from a refused request.
            retries=False,
            ca_certs=ca_file,
        )

    def close(self) -> None:
        """Close pooled connections. Calling twice is safe."""
        self._http.clear()

    def call(
        self,
        method: str,
        path: str,
        answer: type[Answer],
        body: BaseModel | None = None,
        *,
        wait_s: float = 0.0,
    ) -> Answer:
        """Send a model and parse the answer as a model. The service may block for `wait_s` seconds."""
        content = body.model_dump_json().encode() if body is not None else None
        return self.answered(answer, method, path, self.send(method, path, content, wait_s))

    def answered(
        self,
        answer: type[Answer],
        method: str,
        path: str,
        content: bytes,
    ) -> Answer:
        """Parse the answer of kvs_api.

        Raises:
            StoreUnavailableError: it is no JSON, so something else than kvs_api answered.
            ValidationError: it is JSON of another form.
        """
        try:
            return answer.model_validate_json(content)
        except ValidationError as cause:
            if not any(
                each["type"] == "json_invalid"
                for each in cause.errors(include_input=False, include_url=False)
            ):
                raise
            raise errors.StoreUnavailableError(
                f"{self.address} did not answer {method} {path.partition('?')[0]} with JSON ({content[:80]!r}): check "
                "whether a proxy answers in place of kvs_api"
            ) from cause

    def send(
        self,
        method: str,
        path: str,
        content: bytes | None,
        wait_s: float,
        headers: Mapping[str, str] | None = None,
        *,
        accepts_pages: bool = False,
    ) -> bytes:
        """Send a request, with retries for `retry_for_s` seconds.

        Args:
            accepts_pages: True returns an HTML page like any answer. By default it is retried, as a proxy may send one.

        Raises:
            StoreUnavailableError: no service answers.
            ServerError: kvs_api failed three times.
            CerebroError: the service refused the request.
        """
        deadline = time.monotonic() + self._retry_for_s
        if method != "GET":
            headers = {**(headers or {}), **self._write_headers()}
        pause_s, num_errors = 0.02, 0
        while True:
            away: urllib3.exceptions.HTTPError | None = None
            try:
                response = self._http.request(
                    method,
                    self.address + path,
                    body=content,
                    headers={**self._http.headers, **headers} if headers else None,
                    timeout=urllib3.Timeout(
                        connect=min(_CONNECT_S, self._timeout_s), read=wait_s + self._timeout_s
                    ),
                )
            except urllib3.exceptions.HTTPError as cause:
                if cause.args and isinstance(cause.args[0], ssl.SSLCertVerificationError):
                    raise errors.ClusterError(
                        f"the certificate of {self.address} is not trusted ({cause.args[0].verify_message}): name the "
                        "file of the authority that signed it in SSL_CERT_FILE or REQUESTS_CA_BUNDLE"
                    ) from cause
                problem, away = f"{type(cause).__name__}: {cause}", cause
                status = 0
            else:
                status = response.status
                is_foreign = not accepts_pages and status != _NO_CONTENT and _is_page(response)
                if status < _SUCCESS and not is_foreign:
                    return response.data or b""
                if status == _TOO_LARGE:
                    size = f"{len(content or b'') / 2**20:,.1f} MiB"
                    raise errors.BadRequestError(
                        f"{self.address} refused {method} {path}: {size} are too much. "
                        "Send fewer models at once, or put large values into a file under `misc` in the locators"
                    )
                if status not in _TRY_AGAIN and not (is_foreign and status < _SUCCESS):
                    raise _error_of(status, response.data)
                problem = f"HTTP {status}" + (
                    " with a page, as a proxy or a sign-in sends it" if is_foreign else ""
                )
                if status == _SERVER_ERROR and not is_foreign:
                    num_errors, pause_s = num_errors + 1, _MAX_PAUSE_S
                    if num_errors == _SERVER_ERROR_TRIES or time.monotonic() + pause_s > deadline:
                        said = _message(response.data) or problem
                        raise errors.ServerError(
                            f"kvs_api at {self.address} failed ({said}): see `cerebro logs kvs_api`"
                        )
            if time.monotonic() + pause_s > deadline:
                raise errors.StoreUnavailableError(
                    self._explain_absence()
                    or f"kvs_api at {self.address} did not answer for {self._retry_for_s:g} s ({problem}): "
                    "see `cerebro status` and `cerebro logs kvs_api`"
                ) from away
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)


def _is_page(response: urllib3.BaseHTTPResponse) -> bool:
    """Return True for HTML, which kvs_api never sends; a proxy may give it no type, or a wrong one."""
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml"):
        return True
    return (response.data or b"")[:_BEGIN].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _message(content: bytes) -> str:
    try:
        return api.Problem.model_validate_json(content).message
    except ValueError:
        return ""


def _error_of(status: int, content: bytes) -> errors.CerebroError:
    try:
        problem = api.Problem.model_validate_json(content)
    except ValueError:
        return errors.BadRequestError(f"kvs_api answered HTTP {status} without a reason: {content[:200]!r}")
    kind = getattr(errors, problem.error, errors.BadRequestError)
    return (
        kind(problem.message)
        if issubclass(kind, errors.CerebroError)
        else errors.BadRequestError(problem.message)
    )
