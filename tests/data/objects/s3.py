"""A local S3 server for tests."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "cerebro-tests"


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server with an empty bucket, point the AWS variables to it, and yield the endpoint.

    Without moto the test is skipped on a laptop and fails in CI.
    """
    if importlib.util.find_spec("moto") is None:
        assert not os.environ.get("CI"), "moto is missing: pip install 'moto[server]'"
        pytest.skip("needs moto: pip install 'moto[server]'")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            patch.setattr("botocore.session.create_loader", lambda *_: _descriptions())
            client().create_bucket(Bucket=BUCKET)
            yield f"http://{host}:{port}"
    finally:
        server.stop()


def client() -> Any:
    """Make a client for the running server."""
    return _client_of(os.environ["AWS_ENDPOINT_URL"])


@functools.cache
def _client_of(endpoint: str) -> Any:
    import boto3

    return boto3.session.Session().client("s3", endpoint_url=endpoint)


@functools.cache
def _descriptions() -> Any:
    """Load botocore's description of S3 once; loading it per client is slow."""
    from botocore.loaders import create_loader

    return create_loader()


def put(name: str, content: bytes) -> None:
    client().put_object(Bucket=BUCKET, Key=name, Body=content)
