"""`MlflowServer`: calls of an MLflow tracking server's REST API, with size limits and retries. Knows no experiment.

An export needs few JSON calls, so it does without MLflow's package. Sources: "MLflow REST API"; the limits are from
``mlflow/utils/validation.py``. An answer can be lost after the request took effect, so a retried call knows that it
may have been executed.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import urllib3

from cerebro.errors import ExportError, TrackerUnavailableError
from cerebro.runtime.web import proxies

MAX_METRICS, MAX_PARAMS, MAX_REQUEST_BYTES = 800, 100, 500_000
"""Limits of one request. MLflow allows 1,000 items (100 parameters, 100 tags) and 1 MB."""
MAX_NAME, MAX_PARAM, MAX_TAG = 250, 6000, 5000

_TIMEOUT_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0
_TOO_MANY, _SUCCESS, _SERVER_ERROR = 429, 300, 500
_REFUSED = {401: "asks for a sign-in", 403: "refuses the export's requests"}
_NOT_FOUND = 404

Done = TypeVar("Done")


class MlflowServer:
    """Connection to one MLflow server; not thread-safe.

    Args:
        address: such as ``http://mlflow:5000``.
        environment: source of ``MLFLOW_TRACKING_TOKEN``, or ``MLFLOW_TRACKING_USERNAME`` and ``_PASSWORD``, the
            variables of MLflow's own client.
        patience_s: seconds to retry a call while the server does not answer, or answers 429 or 5xx. Default 120.
    """

    def __init__(
        self,
        address: str,
        environment: Mapping[str, str],
        *,
        patience_s: float = 120.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ExportError(
                f"{address!r} is no address of an MLflow server: expected one such as http://mlflow:5000, as --url or "
                "in MLFLOW_TRACKING_URI"
            )
        self.address = address.rstrip("/")
        self._patience_s, self._sleep, self._clock = patience_s, sleep, clock
        self._http = proxies.pool(
            address,
            environment=environment,
            headers=_sign_in(environment),
            retries=False,
            timeout=urllib3.Timeout(connect=5.0, read=_TIMEOUT_S),
            ca_certs=environment.get("REQUESTS_CA_BUNDLE") or None,
        )

    def retry(self, do: Callable[[bool], Done]) -> Done:
        """Call `do` until the server answers or `patience_s` has passed.

        Args:
            do: receives True if an earlier try may have taken effect.

        Raises:
            TrackerUnavailableError: no answer within `patience_s`.
            ExportError: the server refused the request.
        """
        deadline, pause_s, is_retry = self._clock() + self._patience_s, _FIRST_PAUSE_S, False
        while True:
            try:
                return do(is_retry)
            except TrackerUnavailableError as problem:
                is_retry = True
                pause_s = max(pause_s, problem.retry_after_s)
                if self._clock() + pause_s > deadline:
                    raise TrackerUnavailableError(
                        f"MLflow at {self.address} did not answer for {self._patience_s:g} s ({problem}). Repeat the "
                        "command: it continues where this one stopped"
                    ) from problem
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Read, with retries."""
        encoded = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        return self.retry(lambda _: self.call("GET", f"{path}?{encoded}" if encoded else path))

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Send an idempotent request, with retries."""
        return self.retry(lambda _: self.call("POST", path, body))

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one request, without retries.

        Args:
            path: relative to ``/api/2.0/mlflow/``.

        Raises:
            TrackerUnavailableError: no answer, or status 429 or 5xx.
            ExportError: a refusal. Its `code` is MLflow's, such as ``RESOURCE_DOES_NOT_EXIST``.
        """
        content = json.dumps(body, ensure_ascii=False).encode() if body is not None else None
        answer = self._request(method, f"/api/2.0/mlflow/{path}", content, "application/json")
        try:
            found = json.loads(answer)
        except ValueError as cause:
            raise self._not_mlflow(f"{answer[:100]!r}") from cause
        if not isinstance(found, dict):
            raise self._not_mlflow(f"{answer[:100]!r}")
        return found

    def upload(self, name: str, file: Path) -> None:
        """Write a file to the server's artifact store; replace an existing one.

        Args:
            name: path relative to the artifact root.
        """

        def put(_: bool) -> None:
            with file.open("rb") as content:
                self._request(
                    "PUT",
                    f"/api/2.0/mlflow-artifacts/artifacts/{quote(name)}",
                    content,
                    "application/octet-stream",
                    {"Content-Length": str(file.stat().st_size)},
                )

        self.retry(put)

    def _request(
        self,
        method: str,
        path: str,
        content: Any,
        kind: str,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        try:
            answer = self._http.urlopen(
                method,
                self.address + path,
                body=content,
                headers={**self._http.headers, "Content-Type": kind, **(headers or {})},
            )
        except urllib3.exceptions.HTTPError as cause:
            if cause.args and isinstance(cause.args[0], ssl.SSLCertVerificationError):
                raise ExportError(
                    f"the certificate of {self.address} is not trusted ({cause.args[0].verify_message}): name the file "
                    "of the authority that signed it in SSL_CERT_FILE or REQUESTS_CA_BUNDLE"
                ) from cause
            raise TrackerUnavailableError(f"{type(cause).__name__}: {cause}"[:300]) from cause
        if answer.status < _SUCCESS:
            return answer.data
        if answer.status == _TOO_MANY or answer.status >= _SERVER_ERROR:
            problem = TrackerUnavailableError(f"HTTP {answer.status}: {_error_of(answer.data)[1]}")
            problem.retry_after_s = _seconds(answer.headers.get("Retry-After", ""))
            raise problem
        raise self._refusal(answer.status, answer.data, f"{method} {path}")

    def _refusal(self, status: int, content: bytes, request: str) -> ExportError:
        code, message = _error_of(content)
        if status in _REFUSED:
            return ExportError(
                f"MLflow at {self.address} {_REFUSED[status]} (HTTP {status}): set MLFLOW_TRACKING_TOKEN, or "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, of an account with write access"
            )
        if status == _NOT_FOUND and not code:
            return self._not_mlflow(f"HTTP {status}")
        error = ExportError(f"MLflow at {self.address} refuses {request} (HTTP {status}, {code}): {message}")
        error.code = code
        return error

    def _not_mlflow(self, found: str) -> ExportError:
        return ExportError(
            f"{self.address} answers, but is no MLflow tracking server ({found}): give the address that "
            "MLFLOW_TRACKING_URI has for MLflow's own client, as --url"
        )


def _sign_in(environment: Mapping[str, str]) -> dict[str, str]:
    if token := environment.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    name, password = (environment.get(f"MLFLOW_TRACKING_{request}") for request in ("USERNAME", "PASSWORD"))
    return urllib3.make_headers(basic_auth=f"{name}:{password or ''}") if name else {}


def _error_of(content: bytes) -> tuple[str, str]:
    try:
        found = json.loads(content)
        return str(found.get("error_code", "")), str(found.get("message", ""))[:300]
    except (ValueError, AttributeError):
        return "", content[:200].decode(errors="replace")


def _seconds(text: str) -> float:
    return min(float(text), 60.0) if text.isdecimal() else 0.0
