"""Optional services of a local cluster: JupyterLab, and a metrics port per service."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest

from cerebro.errors import ClusterError
from cerebro.local import cluster, notebooks
from cerebro.local.home import ClusterHome
from cerebro.local.supervision.services import Service, ServiceOptions, health_port, services

SHELL = {
    "PATH": "/bin",
    "CEREBRO_SERVER": "http://elsewhere",
    "CEREBRO_TOKEN": "theirs",
    "AWS_PROFILE": "lab",
}


def listed(folder: Path, **chosen: Any) -> tuple[dict[str, Service], Mapping[str, int]]:
    """Return the services and ports of a cluster with one worker."""
    home = ClusterHome(folder)
    home.create()
    options = ServiceOptions(workers=1, tensorboard=False, **chosen)
    ports = {name: number for number, name in enumerate(options.listening, start=1)}
    return {one.name: one for one in services(options, home, ports, home.socket, SHELL)}, ports


def test_notebooks_join_their_own_cluster(tmp_path: Path) -> None:
    """CEREBRO_HOME selects the cluster, whatever the user's shell sets; variables of user code are passed on."""
    environment = listed(tmp_path, notebook=True)[0]["notebook"].environment
    assert environment["CEREBRO_HOME"] == str(tmp_path)
    assert environment["AWS_PROFILE"] == "lab"
    assert not {"CEREBRO_SERVER", "CEREBRO_TOKEN"} & environment.keys()


def test_jupyterlab_gets_only_a_digest_of_the_token(tmp_path: Path) -> None:
    """JupyterLab would print the plain token in URLs and files."""
    service = listed(tmp_path, notebook=True)[0]["notebook"]
    token = ClusterHome(tmp_path).token()
    said = " ".join([*service.command, *service.environment.values()])
    assert token not in said
    (option,) = [part for part in service.command if "hashed_password=" in part]
    algorithm, salt, digest = option.partition("=")[2].split(":")
    assert digest == hashlib.new(algorithm, f"{token}{salt}".encode()).hexdigest()
    assert "--ServerApp.ip=127.0.0.1" in service.command
    assert f"--ServerApp.root_dir={tmp_path / 'notebooks'}" in service.command


def test_notebooks_are_copied_once(tmp_path: Path) -> None:
    """A second call keeps the user's changes."""
    folder = tmp_path / "notebooks"
    notebooks.place(folder)
    assert S_IMODE(folder.stat().st_mode) == 0o700  # else the next start warns and closes it
    quickstart = folder / "quickstart.ipynb"
    assert (
        quickstart.read_bytes() == (Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb").read_bytes()
    )
    quickstart.write_text("mine")
    (folder / "own.ipynb").write_text("too")
    notebooks.place(folder)
    assert (quickstart.read_text(), (folder / "own.ipynb").read_text()) == ("mine", "too")


def test_a_missing_jupyterlab_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says how to install it, before any service starts."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ClusterError, match=r"JupyterLab is not installed.*cerebro-platform\[notebook\]"):
        cluster.start(tmp_path, notebook=True)
    assert not (tmp_path / "run").exists()
    assert cluster.notebook_options(None) == cluster.notebook_options(False) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert cluster.notebook_options(None) == cluster.notebook_options(True) == ["--notebook"]
    assert cluster.notebook_options(False) == []


def test_services_without_a_page_serve_metrics_on_their_own_port(tmp_path: Path) -> None:
    """These ports listen on loopback; other services serve metrics behind the token."""
    found, ports = listed(tmp_path)
    for name in ("controller", "worker-0", "kvs_api", "dispatcher"):
        assert found[name].environment["CEREBRO_HEALTH_BIND"] == f"127.0.0.1:{ports[health_port(name)]}"
        has_metrics = found[name].environment.get("CEREBRO_HEALTH_METRICS") != "0"
        assert (
            has_metrics == (name not in ("kvs_api", "dispatcher")) == health_port(name).endswith(" metrics")
        )


def test_the_supervisor_probes_each_required_service(tmp_path: Path) -> None:
    """It probes no other services, and uses their health ports."""
    found, _ = listed(tmp_path)
    needed = {name for name, service in found.items() if service.required}
    assert {name for name, service in found.items() if service.live} == needed
