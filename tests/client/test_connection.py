"""Which cluster a client talks to, and that a wrong token is told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.connection import connect
from cerebro.errors import ClusterError, UnauthorizedError
from tests.kvs_api.conftest import service, shared_service
from tests.kvs_api.real import TOKEN, Service

__all__ = ["service", "shared_service"]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing configured, and no local cluster to start."""
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.delenv("CEREBRO_TOKEN", raising=False)

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a local cluster was started")

    monkeypatch.setattr("cerebro.connection.cluster.start", start)


def test_a_given_address_is_used(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the token given; volumes are where the environment says."""
    monkeypatch.setenv("CEREBRO_VOLUMES", str(tmp_path))
    found = connect(service.address, TOKEN)
    assert found.kvs.address == service.address
    assert found.volumes.shared == tmp_path / "shared"
    assert TOKEN not in repr(found)


def test_the_environment_names_a_cluster(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Address and token; what is given beats it."""
    monkeypatch.setenv("CEREBRO_SERVER", service.address + "/")
    monkeypatch.setenv("CEREBRO_TOKEN", TOKEN)
    assert connect().kvs.address == service.address
    with pytest.raises(UnauthorizedError):
        connect(token="another")


def test_a_wrong_token_is_told_when_connecting(service: Service) -> None:
    """Not at the first call that needs it: health would answer without one."""
    with pytest.raises(UnauthorizedError, match="token"):
        connect(service.address, "wrong")


def test_an_address_without_a_token_is_refused(service: Service) -> None:
    """With the two ways to give one."""
    with pytest.raises(ClusterError, match=r"token=.*CEREBRO_TOKEN"):
        connect(service.address)


def test_without_an_address_the_local_cluster_is_started() -> None:
    """Nothing else is tried."""
    with pytest.raises(AssertionError, match="a local cluster was started"):
        connect()
