"""How the client chooses a cluster and reports a wrong token."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cerebro import Experiment
from cerebro.client.connection import connect
from cerebro.client.session import Session
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.errors import ClusterError, UnauthorizedError
from cerebro.local.home import ClusterHome, ClusterInfo
from cerebro.local.supervision.processes import identify
from cerebro.runtime.kvs.client import KvsClient
from tests.kvs_api.real import TOKEN, Service


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all settings, and start no local cluster."""
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.delenv("CEREBRO_TOKEN", raising=False)

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a local cluster was started")

    monkeypatch.setattr("cerebro.client.connection.cluster.start", start)


def test_the_environment_names_a_cluster(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Address and token; arguments take precedence."""
    monkeypatch.setenv("CEREBRO_SERVER", service.address + "/")
    monkeypatch.setenv("CEREBRO_TOKEN", TOKEN)
    assert connect().kvs.address == service.address
    with pytest.raises(UnauthorizedError):
        connect(token="another")


def test_a_wrong_token_is_refused_when_connecting(service: Service) -> None:
    """The health check needs no token, so connecting makes another call."""
    with pytest.raises(UnauthorizedError, match="token"):
        connect(service.address, "wrong")


def test_an_experiment_shows_the_address_of_its_page(service: Service) -> None:
    """In a notebook as a link; without a known page, the store's address."""
    kvs = service.client()
    kvs.create_experiment(
        ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="/data/train.csv")))
    )
    experiment = Experiment.attach("one", server=service.address, token=TOKEN)
    assert repr(experiment) == f"<Experiment 'one' at {service.address}>"
    connection = replace(experiment.connection, page="http://127.0.0.1:7080")
    experiment._session = Session(connection, kvs.experiment("one"))
    assert repr(experiment) == "<Experiment 'one' at http://127.0.0.1:7080/experiments/one>"
    assert 'href="http://127.0.0.1:7080/experiments/one"' in experiment._repr_html_()


def test_a_home_precedes_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cerebro --home DIR` never reaches the cluster in ``CEREBRO_SERVER``."""
    monkeypatch.setenv("CEREBRO_SERVER", service.address)
    monkeypatch.setenv("CEREBRO_TOKEN", TOKEN)
    with pytest.raises(ClusterError, match="no local cluster runs"):
        connect(home="/nowhere", start=False)


def test_an_address_without_a_token_is_refused(service: Service) -> None:
    """The message names both ways to set it."""
    with pytest.raises(ClusterError, match=r"token=.*CEREBRO_TOKEN"):
        connect(service.address)


def _closed() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_an_error_about_an_unreachable_address_explains_remote_access(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message names the address, and how to reach a remote cluster."""
    monkeypatch.setattr("cerebro.client.connection._CONTACT_S", 0.0)
    address = _closed()
    message = rf"no Cerebro answers at {address} \(.*refused.*CEREBRO_SERVER.*port-forward service/.*7080"
    with pytest.raises(ClusterError, match=message):
        connect(address, TOKEN)


@pytest.mark.slow
@pytest.mark.parametrize("is_silent", [False, True])
def test_a_wrong_address_is_an_error(is_silent: bool) -> None:
    """The port refuses the connection, or accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}" if is_silent else _closed()
        with pytest.raises(ClusterError, match=address):
            connect(address, TOKEN)


def test_a_stopped_local_cluster_is_reported_as_stopped(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that starts it and continues its runs, instead of a refused connection."""
    port = int(service.address.rpartition(":")[2])
    home = ClusterHome(tmp_path)
    home.create()
    supervisor = identify(os.getpid())
    assert supervisor is not None
    info = ClusterInfo(
        home=tmp_path,
        state="ready",
        version="1",
        python="python",
        python_version="3.11",
        supervisor=supervisor,
        since=0.0,
        workers=1,
        ports={"kvs_api": port, "dispatcher": port},
        socket=tmp_path / "socket",
    )
    home.write(info)
    home.token_file.write_text(TOKEN)
    clients = []

    def client(*given: Any, **options: Any) -> KvsClient:
        clients.append(options["explain_absence"])
        return KvsClient(*given, **options)

    monkeypatch.setattr("cerebro.client.connection.cluster.start", lambda home: info)
    monkeypatch.setattr("cerebro.client.connection.KvsClient", client)
    connect()
    (stopped,) = clients
    assert stopped() == ""
    home.write(replace(info, supervisor=replace(supervisor, started="earlier")))
    assert re.search(rf"{tmp_path} was stopped.*`cerebro up`.*Experiment\.attach", stopped())
