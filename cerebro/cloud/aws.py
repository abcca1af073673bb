"""AWS reads and waits through boto3, for `world`, `preflight` and `site`. Executables make changes (`runner`).

botocore handles retries, pages and waiters. Every error becomes an `AwsError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import boto3
import botocore.config
import botocore.exceptions
import jmespath

from cerebro.errors import ProvisionError

Session: TypeAlias = boto3.Session
"""Credentials and a region."""

_CONFIGURATION = botocore.config.Config(
    connect_timeout=10, read_timeout=60, retries={"mode": "adaptive", "max_attempts": 8}
)


class AwsError(ProvisionError):
    """AWS refused a call, or did not answer."""

    def __init__(self, call: str, code: str, message: str) -> None:
        """Create an error; `code` is AWS's, such as ``AccessDenied``, or empty without an answer."""
        self.code = code
        super().__init__(f"{call}: {code + ': ' if code else ''}{message}")


def open_session(region: str) -> Session:
    """Open a session with the credentials of this process's environment and files.

    Raises:
        AwsError: the profile in AWS_PROFILE does not exist.
    """
    with _translated("aws"):
        return boto3.Session(region_name=region)


class Aws:
    """One region of one account. Clients are created at their first use."""

    def __init__(self, session: Session, region: str) -> None:
        """Create without a call; missing credentials show at the first call."""
        self.region = region
        self._session = session
        self._clients: dict[str, Any] = {}

    def regions_known_offline(self) -> list[str]:
        """Return the regions with EKS that the installed botocore knows."""
        parts = self._session.get_available_partitions()
        return sorted({each for part in parts for each in self._session.get_available_regions("eks", part)})

    def read(self, service: str, operation: str, **arguments: Any) -> Any:
        """Call an operation that only reads.

        Raises:
            AwsError: refused, or no answer.
        """
        with _translated(f"{service} {operation}"):
            return getattr(self._client(service), operation)(**arguments)

    def find(self, service: str, operation: str, expression: str, **arguments: Any) -> list[Any]:
        """Return the items that a JMESPath expression selects, over all pages of an answer.

        Raises:
            AwsError: refused, or no answer.
        """
        if not self._client(service).can_paginate(operation):
            return jmespath.search(expression, self.read(service, operation, **arguments)) or []
        with _translated(f"{service} {operation}"):
            pages = self._client(service).get_paginator(operation).paginate(**arguments)
            return [item for item in pages.search(expression) if item is not None]

    def wait(self, service: str, waiter: str, **arguments: Any) -> None:
        """Wait with one of boto3's waiters; the caller checks the result.

        Raises:
            ProvisionError: the waiter's time is over.
            AwsError: refused, or no answer.
        """
        with _translated(f"{service} {waiter}"):
            waiter_object = self._client(service).get_waiter(waiter)
            try:
                waiter_object.wait(**arguments)
            except botocore.exceptions.WaiterError as problem:
                if "Max attempts exceeded" in str(problem):
                    minutes = waiter_object.config.delay * waiter_object.config.max_attempts / 60
                    target = " ".join(map(str, arguments.values()))
                    advice = "give the same command again to continue waiting"
                    raise ProvisionError(
                        f"{target}: not settled within {minutes:.0f} minutes; {advice}"
                    ) from problem
                if "terminal failure state" not in str(problem):
                    raise _refused(waiter, problem.last_response.get("Error", {}), problem) from problem

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            with _translated(service):
                self._clients[service] = self._session.client(
                    service, region_name=self.region, config=_CONFIGURATION
                )
        return self._clients[service]


@contextmanager
def _translated(call: str) -> Iterator[None]:
    try:
        yield
    except botocore.exceptions.ClientError as problem:
        raise _refused(call, problem.response.get("Error", {}), problem) from problem
    except botocore.exceptions.BotoCoreError as problem:
        raise AwsError(call, "", str(problem)) from problem


def _refused(call: str, error: dict[str, Any], problem: Exception) -> AwsError:
    return AwsError(call, str(error.get("Code", "")), str(error.get("Message", problem)))
