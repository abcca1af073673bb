"""A real local cluster started, killed and stopped through the command line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.local import cleaning, cluster
from cerebro.local.home import ClusterHome, ClusterInfo, find_running
from cerebro.local.supervision import ports, processes, readiness
from examples import digits
from tests import shared_memory
from tests.local.fakes import FakeCluster
from tests.waiting import HANG_S

pytestmark = [pytest.mark.slow, pytest.mark.processes]

SERVICES = ("redis", "kvs_api", "controller", "dispatcher", "worker-0", "worker-1", "tensorboard")


class RealCluster(FakeCluster):
    """A home for a cluster started by the command line."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environment = {
            name: text for name, text in os.environ.items() if not name.startswith("CEREBRO_")
        }

    def command_line(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``cerebro`` for this home."""
        command = [sys.executable, "-m", "cerebro.cli", *arguments, "--home", str(self.home.path)]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, check=False)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealCluster]:
    before = shared_memory.unused()
    found = RealCluster(tmp_path)
    yield found
    info = find_running(found.home)
    found.command_line("down")
    _check_nothing_is_left(found.home, info)
    shared_memory.check_none_left(before)


def _check_nothing_is_left(home: ClusterHome, info: ClusterInfo | None) -> None:
    assert processes.marked(home.path) == ()
    assert cleaning.leftovers(home) == ()
    assert not home.socket.exists()
    assert find_running(home) is None
    for port in info.ports.values() if info else ():
        with socket.socket() as client:
            assert client.connect_ex((ports.HOST, port)) != 0


def test_a_cluster_starts_shows_its_status_and_ends(real: RealCluster) -> None:
    """Up, status, doctor, logs and down, as a user types them."""
    up = real.command_line("up")
    assert (up.returncode, up.stderr) == (0, "")
    real.eventually(lambda: real.service("tensorboard").state == "ready" or None)
    status = real.command_line("status")
    assert status.returncode == 0, status.stdout
    assert all(name in status.stdout for name in (*SERVICES, "supervisor", "no experiments yet"))
    doctor = real.command_line("doctor")
    assert doctor.returncode == 0, doctor.stdout
    assert "does not answer" not in doctor.stdout
    assert real.home.scratch.stat().st_mode & 0o077 == 0
    assert real.command_line("logs", "kvs_api").returncode == 0
    assert real.command_line("down").stdout == f"The cluster at {real.home.path} has ended.\n"


def test_an_experiment_file_is_executed(real: RealCluster, tmp_path: Path) -> None:
    """The example of docs/experiment-file.md on the digits writes its tables and the report."""
    examples = Path(__file__).parents[2] / "examples"
    page = (examples.parent / "docs" / "experiment-file.md").read_text(encoding="utf-8")
    (tmp_path / "digits.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    (tmp_path / "digits.py").write_text((examples / "digits.py").read_text(encoding="utf-8"))
    digits.lay_out(str(tmp_path / "data"))
    tried = real.command_line("run", str(tmp_path / "digits.yaml"), "--dry-run")
    assert "nothing failed, nothing was sent" in tried.stdout, tried.stderr
    done = real.command_line("run", str(tmp_path / "digits.yaml"))
    assert done.returncode == 0, done.stderr
    results = tmp_path / "results" / "digits"
    rows = {path.stem: len(path.read_text().splitlines()) - 1 for path in results.glob("*.csv")}
    assert rows["leaderboard"] == 4
    assert rows["test"] == 1
    assert rows["predictions"] == digits.SPLITS["test"]
    assert (results / "report.html").stat().st_size


def test_every_service_restarts_after_a_kill(real: RealCluster) -> None:
    """SIGKILL each service in turn, then all: each restarts at its address."""
    assert real.command_line("up").returncode == 0
    before = real.info()
    real.eventually(lambda: real.service("tensorboard").state == "ready" or None)
    for name in SERVICES:
        assert real.restarted(name, real.kill(name)).restarts == 1
    for name, process in {name: real.kill(name) for name in SERVICES}.items():
        real.restarted(name, process)
    assert real.info().ports == before.ports
    assert readiness.http(before.ports["kvs_api"])()


def test_a_killed_supervisor_leaves_no_process_and_up_works_again(real: RealCluster) -> None:
    """SIGKILL of the supervisor ends all services; the next start has the same addresses and token."""
    assert real.command_line("up", "--no-tensorboard").returncode == 0
    before, token = real.info(), real.home.token()
    services = [service.process for service in before.services if service.process]
    processes.send(before.supervisor, signal.SIGKILL)
    assert all(processes.wait_gone(process, HANG_S) for process in services)
    assert real.command_line("status").returncode == 1
    assert real.command_line("up", "--no-tensorboard").returncode == 0
    after = real.info()
    assert (after.ports, after.token()) == ({**before.ports}, token)


def test_ctrl_c_ends_a_cluster_in_the_foreground(real: RealCluster) -> None:
    """The terminal shows the addresses; Ctrl-C ends everything with status 0."""
    command = [sys.executable, "-m", "cerebro.cli", "up", "--foreground", "--no-tensorboard"]
    command += ["--home", str(real.home.path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=real.environment
    ) as terminal:
        assert terminal.stdout is not None
        assert terminal.stdout.readline().startswith("Ready: web page http://127.0.0.1:")
        info = real.info()
        terminal.send_signal(signal.SIGINT)
        assert terminal.wait(timeout=HANG_S) == 0
    _check_nothing_is_left(real.home, info)


def test_a_deep_home_works(tmp_path: Path) -> None:
    """If the database's socket path is too long, the socket is elsewhere and `down` removes it."""
    home = ClusterHome(tmp_path / ("deep/" * 25))
    info = cluster.start(home.path, workers=1, tensorboard=False, timeout_s=HANG_S)
    try:
        assert info.socket.parent != home.run
        assert info.socket.exists()
    finally:
        cluster.stop(home.path)
    assert not info.socket.parent.exists()
