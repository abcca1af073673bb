"""The one door to AWS: every call by boto3 goes through here, and every error comes out as `AwsError`.

`look` and `find` read; `change` changes, is shown to the user, and in a dry run is only shown. botocore does the rest:
retries, pages, and waiting. Its own waiters take a failed node group or stack for an error of the wait; those of
``data/waiters.json`` end as soon as nothing moves any more, and the caller looks at what came of it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import boto3
import botocore.config
import botocore.exceptions
import botocore.waiter
import jmespath

from cerebro.cloud.runner import Journal
from cerebro.errors import ProvisionError

Session: TypeAlias = boto3.Session
"""Credentials, and a region."""

_CONFIGURATION = botocore.config.Config(
    connect_timeout=10, read_timeout=60, retries={"mode": "adaptive", "max_attempts": 8}
)
_WAITERS = Path(__file__).parent / "data" / "waiters.json"
_GONE = ("NotFound", "NoSuch", "DoesNotExist", "NonExistent")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure")  # fmt: skip  # noqa: E501
_UNUSABLE = (
    botocore.exceptions.NoCredentialsError,
    botocore.exceptions.PartialCredentialsError,
    botocore.exceptions.TokenRetrievalError,
    botocore.exceptions.SSOError,
    botocore.exceptions.ProfileNotFound,
)


class AwsError(ProvisionError):
    """AWS refused a call, or did not answer."""

    def __init__(self, call: str, code: str, message: str) -> None:
        """`code` is AWS's own, such as ``AccessDenied``; empty if there was no answer."""
        self.code = code
        super().__init__(f"{call}: {code + ': ' if code else ''}{message}")

    @property
    def is_absence(self) -> bool:
        """Whether the thing asked for does not exist."""
        return any(word in self.code for word in _GONE) or "does not exist" in str(self)


class NoCredentialsError(AwsError):
    """There are no credentials, or they have expired."""


def open_session(region: str) -> Session:
    """With the credentials of this process's environment and files.

    Raises:
        NoCredentialsError: AWS_PROFILE names no profile.
    """
    with _translated("aws"):
        return boto3.Session(region_name=region)


class Aws:
    """One region of one account. Clients are made when first used."""

    def __init__(
        self, session: Session, *, region: str, journal: Journal, show: Callable[[str], None], is_dry: bool
    ) -> None:
        """Without effects: whether there are credentials shows at the first call."""
        self.region = region
        self._session = session
        self._journal = journal
        self._show = show
        self._is_dry = is_dry
        self._clients: dict[str, Any] = {}
        self.is_offline = False
        """Set by a dry run without credentials: lists are empty then."""

    @property
    def has_credentials(self) -> bool:
        """Whether any are configured; whether AWS takes them only a call tells."""
        try:
            return self._session.get_credentials() is not None
        except botocore.exceptions.BotoCoreError:
            return False

    def regions_known_offline(self) -> list[str]:
        """Regions with EKS, as the installed botocore knows them."""
        parts = self._session.get_available_partitions()
        return sorted(
            {region for part in parts for region in self._session.get_available_regions("eks", part)}
        )

    def look(self, service: str, operation: str, **arguments: Any) -> Any:
        """What an operation that only reads answers.

        Raises:
            AwsError: refused, or no answer.
        """
        with _translated(f"{service} {operation}"):
            return getattr(self._client(service), operation)(**arguments)

    def find(self, service: str, operation: str, expression: str, **arguments: Any) -> list[Any]:
        """What a JMESPath expression finds in an answer, over all its pages.

        Raises:
            AwsError: refused, or no answer.
        """
        if self.is_offline:
            return []
        client = self._client(service)
        if not client.can_paginate(operation):
            return jmespath.search(expression, self.look(service, operation, **arguments)) or []
        with _translated(f"{service} {operation}"):
            pages = client.get_paginator(operation).paginate(**arguments)
            return [item for item in pages.search(expression) if item is not None]

    def change(self, service: str, operation: str, **arguments: Any) -> None:
        """Do what an operation does; in a dry run only show it.

        Raises:
            AwsError: refused, or no answer: then it may have been done or not.
        """
        given = shlex.quote(json.dumps(arguments, sort_keys=True))
        line = (
            f"$ aws {service} {operation.replace('_', '-')} --region {self.region} --cli-input-json {given}"
        )
        self._show(line)
        self._journal.note(line)
        if self._is_dry:
            return
        try:
            self.look(service, operation, **arguments)
        except AwsError as problem:
            self._journal.note(f"  {problem}")
            raise

    def wait(self, service: str, waiter: str, **arguments: Any) -> None:
        """Wait, by a waiter of ``data/waiters.json``, until something has settled; a dry run does not wait.

        Raises:
            ProvisionError: it has not within the waiter's time.
            AwsError: refused, or no answer.
        """
        if self._is_dry:
            return
        model = botocore.waiter.WaiterModel(json.loads(_WAITERS.read_text(encoding="utf-8")))
        given = model.get_waiter(waiter)
        what = f"{given.description} {list(arguments.values())[-1]}"
        most = f"{given.delay * given.max_attempts / 60:.0f} minutes"
        self._show(f"  waiting for {what} (at most {most}) ...")
        try:
            with _translated(f"{service} {waiter}"):
                made = botocore.waiter.create_waiter_with_client(waiter, model, self._client(service))
                made.wait(**arguments)
        except _TooLongError as late:
            raise ProvisionError(
                f"{what}: not settled within {most}; give the same command again to wait on"
            ) from late

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            with _translated(service):
                self._clients[service] = self._session.client(
                    service, region_name=self.region, config=_CONFIGURATION
                )
        return self._clients[service]


class _TooLongError(Exception):
    """A waiter has used up its attempts."""


@contextmanager
def _translated(call: str) -> Iterator[None]:
    try:
        yield
    except botocore.exceptions.WaiterError as problem:
        said = problem.last_response.get("Error") if isinstance(problem.last_response, dict) else None
        if said is None:
            raise _TooLongError from problem
        raise _refused(call, said, problem) from problem
    except botocore.exceptions.ClientError as problem:
        raise _refused(call, problem.response.get("Error", {}), problem) from problem
    except botocore.exceptions.BotoCoreError as problem:
        kind = NoCredentialsError if isinstance(problem, _UNUSABLE) else AwsError
        raise kind(call, "", str(problem)) from problem


def _refused(call: str, said: dict[str, Any], problem: Exception) -> AwsError:
    code = str(said.get("Code", ""))
    return (NoCredentialsError if code in _EXPIRED else AwsError)(
        call, code, str(said.get("Message", problem))
    )
