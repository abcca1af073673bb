"""The supervisor starts, restarts and ends fake services."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cerebro.errors import ClusterError
from cerebro.local import cluster
from cerebro.local.home import ClusterHome, ClusterInfo, find_running
from cerebro.local.supervision import processes
from cerebro.local.supervision.processes import ProcessId, identify
from cerebro.local.supervision.services import Service
from cerebro.local.supervision.supervisor import ClusterState, Supervisor
from tests.local.conftest import MakeCluster
from tests.local.fakes import BROKEN, STEADY, STUBBORN, Fake, FakeCluster
from tests.waiting import HANG_S

WITH_RUNAWAY = f"""
import os, subprocess, sys, pathlib
runaway = subprocess.Popen([sys.executable, '-c', {STEADY!r}], start_new_session=True)
pathlib.Path(os.environ['FAKE_HOME'], 'runaway').write_text(str(runaway.pid))
{STEADY}
"""


def test_a_killed_service_is_restarted(make_cluster: MakeCluster) -> None:
    """It has a new process, and the log says how the old one ended."""
    fake = make_cluster(Fake(name="one"), Fake(name="two"))
    fake.start()
    other = fake.process("two")
    killed = fake.process("one")
    after = fake.restarted("one", fake.kill("one"))
    assert after.restarts == 1
    assert fake.process("two") == other
    log = fake.home.log("supervisor").read_text()
    assert killed is not None
    assert after.process is not None
    assert f"service one pid={killed.pid} was ended by SIGKILL" in log
    (started,) = [
        line for line in log.splitlines() if f"service one starting pid={after.process.pid}" in line
    ]
    assert "SIGKILL" not in started


def test_child_processes_of_a_killed_service_end(make_cluster: MakeCluster) -> None:
    """Child processes in their own sessions end, too."""
    fake = make_cluster(Fake(name="one", program=WITH_RUNAWAY), Fake(name="two"))
    fake.start()
    first, runaway = fake.eventually(lambda: _runaway(fake))
    fake.kill("one")
    assert processes.wait_gone(runaway, HANG_S)
    second, successor = fake.eventually(lambda: _runaway(fake, but=runaway))
    assert first != second
    assert processes.is_alive(successor)


def test_stop_leaves_no_process_and_no_secret(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes child processes in their own sessions. Record and logs contain no secrets of the shell."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    fake = make_cluster(Fake(name="one", program=WITH_RUNAWAY), Fake(name="two", stage=1))
    info = fake.start()
    runaway = fake.eventually(lambda: _process_in(fake.home.path / "runaway"))
    assert fake.stop()
    assert not processes.is_alive(runaway)
    assert not processes.is_alive(info.supervisor)
    record = fake.home.read()
    assert record is not None
    assert record.state == ClusterState.STOPPED
    assert {service.process for service in record.services} == {None}
    texts = [fake.home.record.read_text(), *(path.read_text() for path in fake.home.logs.iterdir())]
    assert not any("hush-hush" in text or info.token() in text for text in texts)


def test_a_service_that_ignores_sigterm_is_killed(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL follows after the grace period."""
    monkeypatch.setenv("FAKE_GRACE_S", "0.2")
    fake = make_cluster(Fake(name="mule", program=STUBBORN))
    fake.start()
    mule = fake.process("mule")
    fake.wrote("mule", "deaf")
    assert fake.stop()
    assert not processes.is_alive(mule)


def test_services_end_with_a_killed_supervisor(make_cluster: MakeCluster) -> None:
    """This includes services that ignore SIGTERM."""
    fake = make_cluster(Fake(name="one"), Fake(name="mule", program=STUBBORN))
    supervisor = fake.start().supervisor
    services = [fake.process("one"), fake.process("mule")]
    processes.send(supervisor, signal.SIGKILL)
    assert all(processes.wait_gone(process, HANG_S) for process in services)


def test_a_start_after_a_killed_supervisor_needs_no_cleaning(make_cluster: MakeCluster) -> None:
    """The next start removes surviving children and a stale socket."""
    fake = make_cluster(Fake(name="one", program=WITH_RUNAWAY))
    before = fake.start()
    runaway = fake.eventually(lambda: _process_in(fake.home.path / "runaway"))
    before.socket.touch()
    processes.send(before.supervisor, signal.SIGKILL)
    processes.wait_gone(before.supervisor, HANG_S)
    assert processes.is_alive(runaway)
    assert find_running(fake.home) is None
    fake.will_run(Fake(name="one"))
    after = fake.start()
    assert not processes.is_alive(runaway)
    assert not after.socket.exists()
    assert after.ports == before.ports


def test_a_service_that_cannot_start_fails_the_cluster(make_cluster: MakeCluster) -> None:
    """The error shows the service's last output, and the other services end."""
    fake = make_cluster(Fake(name="one"), Fake(name="sad", program=BROKEN, stage=1, ready=False))
    with pytest.raises(ClusterError, match=r"(?s)sad ended with exit status 3.*3 in a row.*named happiness"):
        fake.start()
    assert find_running(fake.home) is None
    assert processes.marked(fake.home.path) == ()


@pytest.mark.slow
def test_a_service_that_is_never_ready_is_named(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the late service, and all services end."""
    fake = make_cluster(Fake(name="slow", program=f"print('thinking', flush=True); {STEADY}", ready=False))
    log = fake.home.log("slow")

    def now() -> float:
        """Freeze time until the service has started."""
        return 1000.0 if log.exists() and "thinking" in log.read_text() else 0.0

    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=now))
    with pytest.raises(ClusterError, match=r"(?s)after 30 s: slow not ready.*thinking"):
        fake.start(timeout_s=30.0)
    assert find_running(fake.home) is None


# --- in this process ----------------------------------------------------------------------------


class _FullDisk(ClusterHome):
    """A home that fails its first two writes of the record."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.refusals = 2

    def write(self, info: ClusterInfo) -> None:
        if self.refusals > 0:
            self.refusals -= 1
            raise OSError(28, "No space left on device")
        super().write(info)


@pytest.mark.processes
def test_a_full_disk_does_not_end_a_cluster(
    tmp_path: Path, some_info: Callable[[ClusterHome], ClusterInfo]
) -> None:
    """The supervisor retries the write, and the services keep running."""
    home = _FullDisk(tmp_path)
    home.create()
    service = _service("one", "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()")
    states: list[str] = []
    supervisor = Supervisor(
        home, [service], some_info(home), on_record=lambda info: states.append(info.state)
    )
    assert supervisor.run() is ClusterState.STOPPED
    assert home.refusals == 0
    assert states[-1] == "stopped"


@pytest.fixture
def some_info() -> Callable[[ClusterHome], ClusterInfo]:
    def make(home: ClusterHome) -> ClusterInfo:
        me = identify(os.getpid())
        assert me is not None
        return ClusterInfo(
            home=home.path,
            state="starting",
            version=cluster.version(),
            python="python",
            python_version="3.11.0",
            supervisor=me,
            since=time.time(),
            workers=1,
            ports={},
            socket=home.socket,
        )

    return make


def _service(name: str, program: str) -> Service:
    from tests.local.fakes import python

    return Service(name=name, command=tuple(python(program)), environment={}, stage=0, ready=lambda: True)


def _runaway(fake: FakeCluster, but: ProcessId | None = None) -> tuple[ProcessId, ProcessId] | None:
    runaway = _process_in(fake.home.path / "runaway")
    parent = fake.service("one").process
    return (parent, runaway) if parent and runaway and runaway != but else None


def _process_in(path: Path) -> ProcessId | None:
    text = path.read_text() if path.exists() else ""
    return identify(int(text)) if text else None
