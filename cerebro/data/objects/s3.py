"""A bucket of S3, or of a compatible service, as an object store (`RemoteStore`). Read-only.

Endpoint, region and credentials come from the standard AWS variables (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`...).
boto3 is imported when a store is created. Only this module translates its errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cerebro.data.objects.remote import Info, RemoteStore
from cerebro.data.objects.store import CHUNK_BYTES, object_name
from cerebro.errors import LocatorError, ObjectStoreError

_ATTEMPTS = 5
_NOT_FOUND = 404
_SERVER_ERROR = 500
_TRANSIENT = frozenset(
    {"SlowDown", "Throttling", "RequestTimeout", "RequestTimeTooSkewed", "PreconditionFailed"}
)


class S3Store(RemoteStore):
    """Objects are keys of a bucket under a prefix: ``s3://bucket/prefix``.

    Bucket and prefix are used literally: the store decodes no escapes and keeps every slash.
    """

    def __init__(self, uri: str) -> None:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise LocatorError(f"{uri} needs boto3, which is not installed: pip install boto3") from error
        bucket, _, prefix = uri[len("s3://") :].partition("/")
        if not bucket:
            raise LocatorError(f"{uri} names no bucket: expected s3://bucket/prefix")
        super().__init__(uri)
        self._bucket = bucket
        self._root = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
        """Prefix of all keys."""
        config = Config(
            retries={"mode": "standard", "max_attempts": _ATTEMPTS},  # exponential, with jitter
            connect_timeout=5,
            read_timeout=60,
            max_pool_connections=64,
        )
        self._client: Any = boto3.session.Session().client("s3", config=config)

    def info(self, name: str) -> Info | None:
        """Return size and ETag; `None` if the object does not exist."""
        key = self._key(name)
        try:
            with self._translated(name):
                answer = self._client.head_object(Bucket=self._bucket, Key=key)
        except LocatorError as error:
            if _status(error.__cause__) == _NOT_FOUND:
                return None
            raise
        return Info(int(answer["ContentLength"]), str(answer["ETag"]).strip('"'))

    def head(self, name: str, most: int) -> bytes:
        """Return the object's first bytes, at most `most`, in one request."""
        content = bytearray()
        for chunk in self.chunks(name):
            content += chunk
            if len(content) >= most:
                break
        return bytes(content[:most])

    def part(self, name: str, start: int, most: int) -> bytes:
        """Return at most `most` bytes from offset `start`, which must be inside the object."""
        key = self._key(name)
        with self._translated(name):
            answer = self._client.get_object(
                Bucket=self._bucket, Key=key, Range=f"bytes={start}-{start + most - 1}"
            )
            content: bytes = answer["Body"].read()
        return content

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield names that start with `prefix`, sorted."""
        pages = self._client.get_paginator("list_objects_v2")
        with self._translated(prefix):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._root + prefix):
                yield from (item["Key"].removeprefix(self._root) for item in page.get("Contents", []))

    def has_folder(self, name: str) -> bool:
        """Return True if there are objects below `name`."""
        prefix = f"{self._key(name)}/"
        with self._translated(name):
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, MaxKeys=1)
        return bool(answer.get("KeyCount"))

    def in_folder(self, name: str) -> Iterator[str]:
        """Yield names of objects directly below `name`, sorted; "" is the root."""
        prefix = f"{self._key(name)}/" if name else self._root
        pages = self._client.get_paginator("list_objects_v2")
        with self._translated(name):
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix, Delimiter="/"):
                keys = (item["Key"] for item in page.get("Contents", []))
                yield from (key.removeprefix(self._root) for key in keys if not key.endswith("/"))

    def folders(self, name: str) -> Iterator[str]:
        """Yield names of folders directly below `name`, sorted."""
        pages = self._client.get_paginator("list_objects_v2")
        with self._translated(name):
            for page in pages.paginate(Bucket=self._bucket, Prefix=f"{self._key(name)}/", Delimiter="/"):
                prefixes = (item["Prefix"] for item in page.get("CommonPrefixes", []))
                yield from (key.removeprefix(self._root).rstrip("/") for key in prefixes)

    def check(self) -> None:
        """Require a readable root; see `ObjectStore`. A prefix without any object counts as missing."""
        with self._translated(""):
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._root, MaxKeys=1)
        if self._root and not answer.get("KeyCount"):
            raise LocatorError(f"there are no objects under {self.uri}: check the locator")

    def _key(self, name: str) -> str:
        return self._root + object_name(name)

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content. botocore retries the start; a broken transfer continues at its offset."""
        key, done, version = self._key(name), 0, ""
        for remaining_attempts in reversed(range(_ATTEMPTS)):
            condition = {"Range": f"bytes={done}-", "IfMatch": version} if done else {}
            with self._translated(name):
                answer = self._client.get_object(Bucket=self._bucket, Key=key, **condition)
                version = answer["ETag"]
                try:
                    for chunk in answer["Body"].iter_chunks(CHUNK_BYTES):
                        done += len(chunk)
                        yield chunk
                    return
                except _broken_transfers():
                    if remaining_attempts == 0:
                        raise

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        from botocore import exceptions

        where = f"s3://{self._bucket}/{self._root}{name}"
        try:
            yield
        except exceptions.NoCredentialsError as error:
            raise LocatorError(
                f"{where}: no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from error
        except exceptions.ClientError as error:
            code, status = error.response["Error"]["Code"], _status(error)
            if status == _NOT_FOUND:
                raise LocatorError(f"{where} does not exist ({code}): check the locator") from error
            if status >= _SERVER_ERROR or code in _TRANSIENT:
                raise ObjectStoreError(f"{where}: the store answered {code}: try again later") from error
            raise LocatorError(f"{where} cannot be read ({code}): check locator and credentials") from error
        except (exceptions.BotoCoreError, *_broken_transfers()) as error:
            raise ObjectStoreError(
                f"{where} cannot be reached ({_safe_text(error)}): try again later"
            ) from error


def is_absent(error: LocatorError) -> bool:
    """Return True if an address is malformed, or the store says the object does not exist."""
    return error.__cause__ is None or _status(error.__cause__) == _NOT_FOUND


def _safe_text(error: Exception) -> str:
    from botocore.exceptions import HTTPClientError

    # The message of a header error contains the header's value, which may be a session token.
    wrapped = getattr(error, "kwargs", {}).get("error")
    return type(wrapped).__name__ if type(error) is HTTPClientError else str(error)


def _broken_transfers() -> tuple[type[Exception], ...]:
    from botocore import exceptions
    from urllib3.exceptions import HTTPError

    return (
        exceptions.ReadTimeoutError,
        exceptions.ResponseStreamingError,
        exceptions.IncompleteReadError,
        HTTPError,
    )


def _status(error: BaseException | None) -> int:
    response = getattr(error, "response", {})
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
