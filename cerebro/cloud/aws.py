"""The one door to AWS: every call by boto3 goes through here, and every error comes out as `AwsError`.

`look` reads; `change` changes, is shown to the user, and in a dry run is only shown.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import boto3
import botocore.config
import botocore.exceptions

from cerebro.cloud.journal import Journal
from cerebro.errors import ProvisionError

Session: TypeAlias = boto3.Session
"""Credentials, and a region."""

_CONFIGURATION = botocore.config.Config(
    connect_timeout=10, read_timeout=60, retries={"mode": "adaptive", "max_attempts": 8}
)
_GONE = ("NotFound", "NoSuch", "DoesNotExist", "NonExistent")


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
    """With the credentials of this process's environment and files. A profile that does not exist shows at first use.

    Raises:
        NoCredentialsError: AWS_PROFILE names no profile.
    """
    try:
        return boto3.Session(region_name=region)
    except botocore.exceptions.BotoCoreError as problem:
        raise NoCredentialsError("aws", "", str(problem)) from problem


class Aws:
    """One region of one account. Clients are made when first used."""

    def __init__(
        self,
        session: Session,
        *,
        region: str,
        journal: Journal,
        show: Callable[[str], None],
        is_dry: bool,
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
        partitions = self._session.get_available_partitions()
        return sorted(
            {region for part in partitions for region in self._session.get_available_regions("eks", part)}
        )

    def look(self, service: str, operation: str, **arguments: Any) -> Any:
        """What an operation that only reads answers.

        Raises:
            AwsError: refused, or no answer.
        """
        return self._call(service, operation, arguments)

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        """The items under `key` over all pages of an answer."""
        if self.is_offline:
            return
        paginator = self._client(service).get_paginator(operation)
        try:
            for page in paginator.paginate(**arguments):
                yield from page.get(key, [])
        except botocore.exceptions.ClientError as problem:
            raise _translated(f"{service} {operation}", problem) from problem
        except botocore.exceptions.BotoCoreError as problem:
            raise _unanswered(f"{service} {operation}", problem) from problem

    def change(
        self, service: str, operation: str, *, dry: Mapping[str, Any] | None = None, **arguments: Any
    ) -> Any:
        """Do what an operation does and return its answer; in a dry run only show it and return `dry`."""
        given = shlex.quote(json.dumps(arguments, sort_keys=True))
        line = f"aws {service} {operation.replace('_', '-')} --region {self.region} --cli-input-json {given}"
        self._show(f"$ {line}")
        self._journal.note(f"$ {line}")
        if self._is_dry:
            return dict(dry or {})
        return self._call(service, operation, arguments)

    def _call(self, service: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        try:
            return getattr(self._client(service), operation)(**arguments)
        except botocore.exceptions.ClientError as problem:
            error = _translated(f"{service} {operation}", problem)
            self._journal.note(f"  {error}")
            raise error from problem
        except botocore.exceptions.BotoCoreError as problem:
            raise _unanswered(f"{service} {operation}", problem) from problem

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._session.client(
                service, region_name=self.region, config=_CONFIGURATION
            )
        return self._clients[service]


_EXPIRED = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "AuthFailure",
    }
)


def _translated(call: str, problem: botocore.exceptions.ClientError) -> AwsError:
    said = problem.response.get("Error", {})
    code, message = str(said.get("Code", "")), str(said.get("Message", problem))
    return (NoCredentialsError if code in _EXPIRED else AwsError)(call, code, message)


def _unanswered(call: str, problem: botocore.exceptions.BotoCoreError) -> AwsError:
    missing = (
        botocore.exceptions.NoCredentialsError,
        botocore.exceptions.PartialCredentialsError,
        botocore.exceptions.TokenRetrievalError,
        botocore.exceptions.SSOError,
        botocore.exceptions.ProfileNotFound,
    )
    return (NoCredentialsError if isinstance(problem, missing) else AwsError)(call, "", str(problem))
