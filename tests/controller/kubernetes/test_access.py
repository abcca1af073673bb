"""How the controller's pod finds its API server: what the kubelet tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.errors import ClusterError
from controller.kubernetes import Access
from controller.settings import Settings

HOST = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    for name, content in (("token", "t"), ("ca.crt", "c"), ("namespace", "here\n")):
        (tmp_path / name).write_text(content)
    return tmp_path


def test_a_pod_knows_its_server_and_its_namespace(mounted: Path) -> None:
    """Another namespace may be named; an IPv6 address is put in brackets."""
    access = Access.in_cluster(HOST, mounted=mounted)
    assert access == Access(
        server="https://10.96.0.1:443",
        namespace="here",
        token_file=mounted / "token",
        ca_file=mounted / "ca.crt",
    )
    assert Access.in_cluster(HOST, "there", mounted).namespace == "there"
    assert (
        Access.in_cluster({**HOST, "KUBERNETES_SERVICE_HOST": "fd00::1"}, mounted=mounted).server
        == "https://[fd00::1]:443"
    )


def test_outside_a_pod_it_is_said_what_to_unset() -> None:
    """Before anything is started."""
    with pytest.raises(ClusterError, match="unset CEREBRO_WORKER_SET"):
        Settings.from_environment({"CEREBRO_TOKEN": "x", "CEREBRO_WORKER_SET": "cerebro-worker"})


@pytest.mark.parametrize("missing", ["token", "ca.crt", "namespace"])
def test_a_service_account_that_is_not_mounted_is_named(mounted: Path, missing: str) -> None:
    """With what to set in the pod."""
    (mounted / missing).unlink()
    with pytest.raises(ClusterError, match=rf"{missing} is missing: .*automountServiceAccountToken"):
        Access.in_cluster(HOST, mounted=mounted)


def test_without_a_worker_set_nobody_asks_for_a_cluster() -> None:
    """One machine is the default."""
    settings = Settings.from_environment({"CEREBRO_TOKEN": "x"})
    assert settings.access is None
    assert settings.worker_set == ""
