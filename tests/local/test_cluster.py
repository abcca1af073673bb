"""Start, join and stop a cluster, concurrently and after crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cerebro.errors import ClusterError
from cerebro.local import cluster
from cerebro.local.home import ClusterHome, ClusterInfo, find_running
from cerebro.local.supervision import processes
from cerebro.runtime.usage import cores
from tests.local.conftest import MakeCluster
from tests.local.fakes import STUBBORN, Fake


def test_a_second_start_joins_the_first(make_cluster: MakeCluster) -> None:
    """The cluster runs independently of the process that started it. Another number of workers is an error."""
    fake = make_cluster(Fake(name="one"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    first = fake.start(workers=3)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert _parent_of(first.supervisor.pid) != os.getpid()
    assert fake.start() == first
    assert fake.start(workers=3) == first
    assert cluster.join(fake.home.path) == first
    with pytest.raises(ClusterError, match="runs with 3 workers, not 2"):
        fake.start(workers=2)


def test_concurrent_starts_create_one_cluster(make_cluster: MakeCluster) -> None:
    fake = make_cluster(Fake(name="one"), Fake(name="two", stage=1))
    with ThreadPoolExecutor(4) as pool:
        infos = [start.result() for start in [pool.submit(fake.start) for _ in range(4)]]
    assert len({info.supervisor for info in infos}) == 1
    # Between fork and exec a process briefly has no environment.
    fake.eventually(lambda: len(processes.marked(fake.home.path)) == 2 or None)


def test_clusters_with_different_homes_are_separate(make_cluster: MakeCluster) -> None:
    """Ports and tokens differ too."""
    one, two = make_cluster(Fake(name="one")), make_cluster(Fake(name="one"))
    first, second = one.start(), two.start()
    assert first.supervisor != second.supervisor
    assert not set(first.ports.values()) & set(second.ports.values())
    assert first.token() != second.token()
    one.stop()
    assert find_running(two.home) == second


def test_stop_and_start_keep_the_addresses_and_the_token(make_cluster: MakeCluster) -> None:
    """Bookmarks of the web page stay valid."""
    fake = make_cluster(Fake(name="one"))
    first, token = fake.start(), fake.home.token()
    assert fake.stop()
    second = fake.start()
    assert second.supervisor != first.supervisor
    assert (second.kvs, second.dispatcher, second.token()) == (first.kvs, first.dispatcher, token)


def test_a_start_while_the_cluster_stops_waits_for_it(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_GRACE_S", "0.5")
    fake = make_cluster(Fake(name="mule", program=STUBBORN))
    first = fake.start()
    fake.wrote("mule", "deaf")
    processes.send(first.supervisor, signal.SIGTERM)
    fake.eventually(lambda: fake.info().state == "stopping" or None)
    second = fake.start()
    assert second.supervisor != first.supervisor
    assert not processes.is_alive(first.supervisor)


def test_a_supervisor_that_does_not_answer_is_killed(make_cluster: MakeCluster) -> None:
    """Its services end too."""
    fake = make_cluster(Fake(name="one"))
    info = fake.start()
    service = fake.process("one")
    processes.send(info.supervisor, signal.SIGSTOP)
    assert cluster.stop(fake.home.path, timeout_s=0.2)
    assert not processes.is_alive(service)
    assert find_running(fake.home) is None


def test_joining_a_missing_cluster_names_the_start_command(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no local cluster runs at .*/empty: start one with `cerebro up`"):
        cluster.join(tmp_path / "empty")


def test_a_cluster_of_another_version_is_not_joined(make_cluster: MakeCluster) -> None:
    """The error names both versions and the remedy."""
    fake = make_cluster(Fake(name="one"))
    info = fake.start()
    for change, message in (
        ({"version": "0.0.1"}, r"runs Cerebro 0\.0\.1 .* this is Cerebro .*cerebro down"),
        ({"python_version": "3.8.1"}, r"runs Python 3\.8\.1 .* this is Python 3\..*cerebro down"),
    ):
        _alter(fake.home, info, **change)
        with pytest.raises(ClusterError, match=message):
            fake.start()
        with pytest.raises(ClusterError, match=message):
            cluster.join(fake.home.path)


@pytest.mark.parametrize(
    ("devices", "said", "what"),
    [
        (0, "", "devices is '0', expected a number of devices for each worker, from 1"),
        (None, "many", "CEREBRO_DEVICES is 'many', expected a number"),
        (5, "", r"devices is 5, but this machine has 4 processor core\(s\): a worker may have at most 4"),
        (None, "5", r"CEREBRO_DEVICES is 5, but this machine has 4 processor core\(s\)"),
    ],
)
def test_an_impossible_number_of_devices_is_an_error(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, devices: int | None, said: str, what: str
) -> None:
    """The check runs before anything is created."""
    monkeypatch.setattr(cores, "available", lambda: 4)
    monkeypatch.setenv("CEREBRO_DEVICES", said)
    fake = make_cluster(Fake(name="one"))
    with pytest.raises(ClusterError, match=what):
        fake.start(devices=devices)
    assert fake.home.read() is None


def test_an_invalid_setting_is_refused_before_services_start(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the controller would crash repeatedly and only its log would say why."""
    monkeypatch.setenv("CEREBRO_OPEN_RUNS", "0")
    fake = make_cluster(Fake(name="one"))
    with pytest.raises(ClusterError, match="CEREBRO_OPEN_RUNS is '0', expected a number of at least 1"):
        fake.start()
    assert fake.home.read() is None


def test_a_record_that_cannot_be_read_is_none(make_cluster: MakeCluster) -> None:
    """A power failure may truncate the file; the cluster must still start."""
    fake = make_cluster(Fake(name="one"))
    fake.home.create()
    for text in ("", "{", "[]", '{"home": 3}', '{"services": [1], "supervisor": {}}'):
        fake.home.record.write_text(text)
        assert fake.home.read() is None
    assert fake.start().state == "ready"


def test_a_start_that_is_interrupted_leaves_nothing(make_cluster: MakeCluster) -> None:
    """Ctrl-C during a start ends the services already running."""
    fake = make_cluster(Fake(name="one"), Fake(name="slow", ready=False, stage=1))
    program = (
        "import sys; from cerebro.local import cluster; cluster.start(sys.argv[1], supervisor=sys.argv[2:])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(fake.home.path), *fake.command], stderr=subprocess.DEVNULL
    ) as starting:
        process = processes.identify(starting.pid)
        assert process is not None
        while not any(service.state == "ready" for service in fake.services()):
            assert not processes.wait_gone(process, 0.02)
        starting.send_signal(signal.SIGINT)
    assert find_running(fake.home) is None
    assert processes.marked(fake.home.path) == ()


def _alter(home: ClusterHome, info: ClusterInfo, **change: object) -> None:
    write: Callable[[ClusterInfo], None] = home.write
    write(replace(info, **change))  # type: ignore[arg-type]


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
