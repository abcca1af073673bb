"""Run the platform as containers with the pods' restrictions: no root, a read-only root file system.

There is no Kubernetes: containers share the host's network and get each other's ports. tests/deploy/chart tests the
chart; this module tests the images.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import urllib3

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WORKERS = 2
TIMEOUT_S = 120.0
_AS_A_POD = (
    "--network=host", "--read-only", "--tmpfs=/tmp:exec,mode=1777", "--user=1000:1000", "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
)  # fmt: skip
_COMMON = ("shared", "checkpoints", "metrics", "code", "logs")


def image(name: str) -> str:
    """Return the tag that `make images` sets."""
    return f"cerebro/cerebro-{name}:{VERSION}"


def require() -> None:
    """Skip without Docker or images, in CI too, since CI has no Docker."""
    if shutil.which("docker") is None:
        pytest.skip("docker is not on PATH")
    if docker("info", check=False).returncode != 0:
        pytest.skip("docker's daemon does not answer")
    for name in ("control", "worker", "notebook"):
        if docker("image", "inspect", image(name), check=False).returncode != 0:
            pytest.skip(f"{image(name)} is not built: make images")


def docker(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a docker command; on failure show its output."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=600)
    assert not check or done.returncode == 0, f"docker {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
    return done


class Platform:
    """All services, with two workers of two containers each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token, self._password = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self._key = secrets.token_hex(3)
        self._started: list[str] = []
        workers = [f"worker-{number}" for number in range(WORKERS)]
        self.ports = _free_ports(
            ["redis", "kvs-api", "controller", "dispatcher", "notebook", *workers]
            + [f"{name}-etl" for name in workers]
        )
        for name in (*_COMMON, "store", *workers):
            path = folder / name
            path.mkdir()
            path.chmod(0o777)  # as an fsGroup would, since the container's user is not the test's

    # --- services --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all services and wait until they are healthy."""
        self._start_store()
        client = {"CEREBRO_SERVER": self.server, "CEREBRO_TOKEN": self.token}
        self.run(
            "controller",
            "control",
            ["python", "-m", "controller"],
            client | self._health("controller"),
            _COMMON,
        )
        bind = {"CEREBRO_BIND": f"127.0.0.1:{self.ports['dispatcher']}"}
        self.run("dispatcher", "control", ["python", "-m", "dispatcher"], client | bind, _COMMON)
        for number in range(WORKERS):
            self._start_worker(f"worker-{number}", client)
        for name in self.ports:
            if name not in ("redis", "notebook"):
                self.await_url(name, "/health")

    @property
    def server(self) -> str:
        """Return the base URL of kvs_api."""
        return f"http://127.0.0.1:{self.ports['kvs-api']}"

    def _start_store(self) -> None:
        settings = (
            f"--port {self.ports['redis']} --bind 127.0.0.1 --dir /data --appendonly yes --appendfsync always"
        )
        self.run(
            "redis",
            "control",
            ["valkey-server", *settings.split(), "--requirepass", self._password, "--save", ""],
            mounts={"store": "/data"},
        )
        variables = {
            "CEREBRO_BIND": f"127.0.0.1:{self.ports['kvs-api']}",
            "CEREBRO_REDIS_URL": f"redis://:{self._password}@127.0.0.1:{self.ports['redis']}/0",
            "CEREBRO_TOKEN": self.token,
        }
        self.run("kvs-api", "control", ["python", "-m", "kvs_api"], variables)

    def _start_worker(self, pod: str, client: Mapping[str, str]) -> None:
        for name, container, handlers in (
            (f"{pod}-etl", "etl", ["etl_worker", "cerebro.worker.searches"]),
            (pod, "worker", ["model_hopper", "trial_runner"]),
        ):
            variables = {
                "CEREBRO_WORKER": name,
                "CEREBRO_CORES": "1",
                "CEREBRO_POD": pod,
                "CEREBRO_POD_UID": f"uid-of-{pod}",
                "CEREBRO_CONTAINER": container,
            }
            command = ["python", "-m", "cerebro.worker.agent", "--handlers", *handlers]
            environment = {**client, **variables, **self._health(name)}
            self.run(name, "worker", command, environment, _COMMON, mounts={pod: "/volumes/shards"})

    def _health(self, name: str) -> dict[str, str]:
        return {"CEREBRO_HEALTH_BIND": f"127.0.0.1:{self.ports[name]}"}

    # --- containers ------------------------------------------------------------------------------

    def run(
        self,
        name: str,
        of: str,
        command: Iterable[str],
        environment: Mapping[str, str] | None = None,
        volumes: Iterable[str] = (),
        *,
        mounts: Mapping[str, str] | None = None,
    ) -> None:
        """Start a container in the background.

        Args:
            of: control, worker or notebook.
            volumes: mounted under their own names below /volumes.
            mounts: further folders of `folder`, and their mount points.
        """
        binds = {volume: f"/volumes/{volume}" for volume in volumes} | dict(mounts or {})
        options = [f"--volume={self.folder / source}:{target}" for source, target in binds.items()]
        options += [f"--env={key}={value}" for key, value in (environment or {}).items()]
        docker("run", "--detach", f"--name={self.name(name)}", *_AS_A_POD, *options, image(of), *command)
        self._started.append(name)

    def notebook(
        self, *command: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the notebook image until it exits, as a cell would."""
        client = {"CEREBRO_SERVER": self.server, "CEREBRO_TOKEN": self.token, **(environment or {})}
        options = [f"--volume={self.folder / volume}:/volumes/{volume}" for volume in _COMMON]
        options += [f"--env={key}={value}" for key, value in client.items()]
        return docker("run", "--rm", *_AS_A_POD, *options, image("notebook"), *command, check=False)

    def name(self, of: str) -> str:
        """Return a container's name, unique to this platform."""
        return f"cerebro-{self._key}-{of}"

    def state(self, of: str) -> dict[str, object]:
        """Return docker's state of a container."""
        found = docker("inspect", "--format={{json .State}}", self.name(of)).stdout
        state: dict[str, object] = json.loads(found)
        return state

    def logs(self, of: str) -> str:
        """Return a container's output."""
        done = docker("logs", self.name(of))
        return done.stdout + done.stderr

    def await_url(self, of: str, path: str) -> None:
        """Wait until a container answers a path with 200; on failure show its log."""
        url = f"http://127.0.0.1:{self.ports[of]}{path}"
        some = urllib3.Retry(5, status_forcelist=[503], backoff_factor=0.2, backoff_max=2)
        deadline = time.monotonic() + TIMEOUT_S
        with urllib3.PoolManager(timeout=10.0, retries=some) as http:
            while True:
                assert self.state(of)["Running"], f"{of} has ended:\n{self.logs(of)}"
                try:
                    answer = http.request("GET", url)
                except urllib3.exceptions.MaxRetryError as cause:
                    if time.monotonic() > deadline:
                        raise AssertionError(f"{url}: {cause}\n{self.logs(of)}") from cause
                    continue
                assert answer.status == 200, f"{url}: {answer.status} {answer.data[:300]!r}\n{self.logs(of)}"
                return

    def end(self) -> None:
        """Remove the containers."""
        if self._started:
            docker("rm", "--force", *map(self.name, self._started), check=False)


def _free_ports(names: Iterable[str]) -> dict[str, int]:
    with ExitStack() as stack:  # reserve all ports together, so they differ
        held = {name: stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for name in names}
        return {name: listening.getsockname()[1] for name, listening in held.items()}
