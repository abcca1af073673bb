"""Behaviour specific to S3: broken transfers, unreachable stores, credentials."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from cerebro.data.objects import open_store
from cerebro.data.objects.s3 import S3Store
from cerebro.errors import LocatorError, ObjectStoreError
from tests.data.objects.s3 import BUCKET, put, s3_server

CONTENT = bytes(range(256)) * 20_000


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[str]:
    """A server with one object."""
    with s3_server() as endpoint:
        put("folder/object", CONTENT)
        yield endpoint


class _BreakingBody:
    """A body that breaks off after one piece, a given number of times."""

    def __init__(self, body: Any, breaks: list[int]) -> None:
        self._body, self._breaks = body, breaks

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        """Yield pieces until the connection breaks."""
        from botocore.exceptions import ResponseStreamingError

        for chunk in self._body.iter_chunks(size):
            yield chunk
            if self._breaks:
                self._breaks.pop()
                raise ResponseStreamingError(error="connection reset")


def _breaking(store: Any, breaks: list[int], requests: list[str]) -> None:
    get = store._client.get_object

    def get_object(**options: Any) -> Any:
        requests.append(options.get("Range", ""))
        answer = get(**options)
        return {**answer, "Body": _BreakingBody(answer["Body"], breaks)}

    store._client.get_object = get_object


@pytest.mark.parametrize("most", [0, 10, (1 << 20) + 1, len(CONTENT) + 1])
def test_only_the_first_bytes_are_read(most: int) -> None:
    """Up to the limit; a small object completely."""
    store = S3Store(f"s3://{BUCKET}/folder")
    assert store.head("object", most) == CONTENT[:most]


def test_errors_contain_no_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session token with a line break cannot be sent, and the client's error contains it."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-a-session\n")
    with pytest.raises(ObjectStoreError) as refused:
        open_store(f"s3://{BUCKET}/folder").read("object")
    assert "ValueError" in str(refused.value)
    assert "token-of-a-session" not in str(refused.value)


def test_an_interrupted_transfer_resumes() -> None:
    """The client requests only the missing bytes, and the content is complete."""
    store = open_store(f"s3://{BUCKET}/folder")
    requests: list[str] = []
    _breaking(store, [1, 2], requests)
    assert store.read("object") == CONTENT
    assert requests == ["", f"bytes={1 << 20}-", f"bytes={2 << 20}-"]


def test_a_repeatedly_interrupted_transfer_fails() -> None:
    """Retries are bounded; the error is retryable and names the object."""
    store = open_store(f"s3://{BUCKET}/folder")
    requests: list[str] = []
    _breaking(store, list(range(99)), requests)
    with pytest.raises(ObjectStoreError, match=r"folder/object.*try again later"):
        store.read("object")
    assert len(requests) == 5


def test_an_unreachable_store_is_a_retryable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing answer is not the user's mistake."""
    with socket.socket() as closed:  # bound without listen, so connections are refused immediately
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # botocore's backoff
        with pytest.raises(ObjectStoreError, match="cannot be reached"):
            open_store(f"s3://{BUCKET}/folder").read("object")


def test_an_absent_bucket_is_named() -> None:
    """The locator is wrong, so the error is not retryable."""
    store = open_store("s3://no-such-bucket/folder")
    with pytest.raises(LocatorError, match=r"no-such-bucket.*check the locator"):
        store.read("object")
    with pytest.raises(LocatorError, match="no-such-bucket"):
        store.check()


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variables to set."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(LocatorError, match="AWS_ACCESS_KEY_ID"):
        open_store(f"s3://{BUCKET}/folder").read("object")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AccessDenied", 403, LocatorError),
        ("SlowDown", 503, ObjectStoreError),
        ("InternalError", 500, ObjectStoreError),
        ("RequestTimeout", 400, ObjectStoreError),
    ],
)
def test_user_errors_and_transient_errors_have_different_types(
    code: str, status: int, kind: type[Exception]
) -> None:
    """User errors and transient errors have different types; both have the store's code."""
    from botocore.exceptions import ClientError

    store: Any = open_store(f"s3://{BUCKET}/folder")

    def refuse(**options: Any) -> Any:
        raise ClientError(
            {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}},
            "HeadObject",
        )

    store._client.head_object = refuse
    with pytest.raises(kind, match=code):
        store.exists("object")


def test_an_address_without_a_bucket_is_an_error() -> None:
    """For a store and for an object."""
    with pytest.raises(LocatorError, match="names no bucket"):
        open_store("s3://")
