"""The controller's pod finds its API server from the kubelet's settings."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from kubernetes.client import Configuration
from kubernetes.config import incluster_config

from cerebro.errors import ClusterError, RetryableError
from controller.kubernetes import KubernetesOrchestrator, in_cluster
from tests.certificates import of_this_machine
from tests.controller.kubernetes.emulator import NAMESPACE, SET, Emulator
from tests.controller.kubernetes.serving import serving

HOST = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    for name, content in (("token", "t"), ("ca.crt", "c"), ("namespace", "here\n")):
        (folder / name).write_text(content)
    return folder


def test_a_pod_knows_its_server_and_its_namespace(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another namespace may be configured, IPv6 addresses get brackets, and proxies are ignored."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org:3128")
    configuration, namespace = in_cluster(HOST, mounted=mounted)
    assert (configuration.host, namespace) == ("https://10.96.0.1:443", "here")
    assert configuration.ssl_ca_cert == str(mounted / "ca.crt")
    assert configuration.verify_ssl
    assert not configuration.proxy
    assert in_cluster(HOST, "there", mounted)[1] == "there"
    ipv6 = in_cluster({**HOST, "KUBERNETES_SERVICE_HOST": "fd00::1"}, mounted=mounted)[0]
    assert ipv6.host == "https://[fd00::1]:443"


@pytest.mark.parametrize("missing", ["token", "ca.crt", "namespace"])
def test_an_unmounted_service_account_is_an_error(mounted: Path, missing: str) -> None:
    """The error names the pod setting."""
    (mounted / missing).unlink()
    with pytest.raises(ClusterError, match="set automountServiceAccountToken to true"):
        in_cluster(HOST, mounted=mounted)


def _in_pod(server: Configuration, mounted: Path) -> KubernetesOrchestrator:
    """Return an orchestrator with a pod's environment and TLS."""
    address = urlsplit(server.host)
    values = {"KUBERNETES_SERVICE_HOST": address.hostname or "", "KUBERNETES_SERVICE_PORT": str(address.port)}
    return KubernetesOrchestrator(*in_cluster(values, NAMESPACE, mounted), SET)


@pytest.mark.commands
def test_a_replaced_token_is_reread(
    mounted: Path, tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter rereads the token after a minute; the kubelet replaces it about once an hour."""
    context, certificate = of_this_machine(tmp_path)
    shutil.copy(certificate, mounted / "ca.crt")
    now = datetime.datetime(2026, 11, 21)
    clock = SimpleNamespace(datetime=SimpleNamespace(now=lambda: now), timedelta=datetime.timedelta)
    monkeypatch.setattr(incluster_config, "datetime", clock)
    emulator.token = "t"
    with serving(emulator, context) as server:
        orchestrator = _in_pod(server, mounted)
        orchestrator.scale(4)
        (mounted / "token").write_text("new")
        emulator.token = "new"
        with pytest.raises(ClusterError, match=r"HTTP 401.*token is not valid"):
            orchestrator.scale(5)
        now += datetime.timedelta(minutes=1)
        orchestrator.scale(6)
    assert emulator.objects["statefulsets"][SET]["spec"]["replicas"] == 6


@pytest.mark.commands
def test_no_request_reaches_a_server_with_an_unknown_certificate(
    mounted: Path, tmp_path: Path, emulator: Emulator
) -> None:
    """The client does not even send its token."""
    context, _ = of_this_machine(tmp_path)
    of_this_machine(mounted)
    (mounted / "ca.pem").rename(mounted / "ca.crt")
    with (
        serving(emulator, context) as server,
        pytest.raises(RetryableError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        _in_pod(server, mounted).scale(4)
    assert emulator.requests == []
