"""The whole cluster stops or is killed and starts again; `cerebro down` leaves no process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from cerebro.local import cleaning, cluster
from cerebro.local.supervision import processes
from tests import shared_memory
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import ROWS, Lab
from tests.e2e.specs import TinyETL, TinyTraining
from tests.waiting import HANG_S

pytestmark = pytest.mark.slow


def test_a_run_outlives_its_cluster(own_lab: MakeLab) -> None:
    """The cluster is stopped in one sub-epoch and killed in another; each restart continues the run."""
    lab = own_lab()
    experiment = lab.prepared()
    fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("a", 1), ("b", 3)]), tags="ab")
    lab.gate.knock()
    assert cluster.stop(lab.home.path)
    restart(lab)
    while lab.gate.knock().what != "a 1":
        pass
    lab.gate.open()
    lab.gate.close()
    while lab.gate.knock().what != "b 3":
        pass
    supervisor = lab.info().supervisor
    services = [service.process for service in lab.info().services if service.process]
    processes.send(supervisor, signal.SIGKILL)
    assert all(processes.wait_gone(process, HANG_S) for process in [supervisor, *services])
    restart(lab)
    lab.gate.open()
    assert lab.result(fit, experiment).failures() == {}
    lab.check(experiment)


def restart(lab: Lab) -> None:
    """Start the cluster again without any cleanup."""
    cluster.start(lab.home.path, workers=2, tensorboard=False, timeout_s=HANG_S)


def test_down_leaves_nothing(own_lab: MakeLab) -> None:
    """During user code, `cerebro down` ends every process and frees all ports and shared memory."""
    before = shared_memory.unused()
    lab = own_lab()
    experiment = lab.experiment()
    etl = lab.spawn(lambda: experiment.run_etl(TinyETL(gate=lab.gate.port, held=3), progress=False))
    knock = lab.gate.knock()
    user_code = processes.identify(knock.pid)
    info = lab.info()
    done = subprocess.run(
        [sys.executable, "-m", "cerebro.cli", "down"],
        env={**os.environ, "CEREBRO_HOME": str(lab.home.path)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert user_code is None or not processes.is_alive(user_code)
    assert not processes.is_alive(info.supervisor)
    assert processes.marked(lab.home.path) == ()
    assert cleaning.leftovers(lab.home) == ()
    for port in info.ports.values():
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert not info.socket.exists()
    shared_memory.check_none_left(before)
    restart(lab)
    lab.gate.open()
    assert sum(lab.result(etl, experiment).kept_rows.values()) == sum(ROWS.values())
