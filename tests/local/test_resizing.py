"""A running cluster gets more or fewer workers, with fake services."""

from __future__ import annotations

import pytest

from cerebro.errors import ClusterError
from cerebro.local import cluster, notebooks
from cerebro.local.supervision import processes
from tests.local.conftest import MakeCluster
from tests.local.fakes import STUBBORN, Fake
from tests.waiting import HANG_S

LIMIT_S = HANG_S


def test_workers_are_added_and_ended_while_the_others_run(make_cluster: MakeCluster) -> None:
    """The other processes keep running, and the record lists workers and metrics ports."""
    one, two, three = (Fake(name=name) for name in ("store", "worker-0", "worker-1"))
    fake = make_cluster(one, two)
    fake.start(workers=1)
    before = fake.process("store"), fake.process("worker-0")
    fake.will_run(one, two, three)
    info = cluster.scale(fake.home.path, 2, timeout_s=LIMIT_S)
    assert (info.workers, info.state) == (2, "ready")
    assert info.ports.keys() >= {"worker-0 metrics", "worker-1 metrics"}
    added = fake.process("worker-1")
    assert (fake.process("store"), fake.process("worker-0")) == before
    fake.will_run(one, two)
    info = cluster.scale(fake.home.path, 1, timeout_s=LIMIT_S)
    assert [service.name for service in info.services] == ["store", "worker-0"]
    assert not processes.is_alive(added)
    assert (fake.process("store"), fake.process("worker-0")) == before


def test_a_worker_that_does_not_end_is_killed(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL follows after its grace period, without delay for other workers."""
    monkeypatch.setenv("FAKE_GRACE_S", "0.3")
    one, deaf = Fake(name="worker-0"), Fake(name="worker-1", program=STUBBORN)
    fake = make_cluster(one, deaf)
    fake.start(workers=2)
    fake.wrote("worker-1", "deaf")
    process = fake.process("worker-1")
    fake.will_run(one)
    assert cluster.scale(fake.home.path, 1, timeout_s=LIMIT_S).workers == 1
    assert not processes.is_alive(process)


LINKED = "import os, signal; print('beside', os.environ['FAKE_LINKS'], flush=True); signal.pause()"


def test_a_notebook_is_added_to_a_cluster_that_runs(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the web page restarts, to add its link; a repeated start changes nothing."""
    monkeypatch.setattr(notebooks, "is_installed", lambda: True)
    worker, page = Fake(name="worker-0"), Fake(name="page", program=LINKED, renewed=True)
    fake = make_cluster(worker, page)
    cluster.start(fake.home.path, workers=1, notebook=False, supervisor=fake.command)
    fake.wrote("page", "beside")
    before = fake.process("worker-0"), fake.process("page")
    assert fake.info().notebook is None
    fake.will_run(worker, page, Fake(name="notebook", required=False))
    for _ in range(2):
        info = cluster.start(fake.home.path, notebook=True, supervisor=fake.command)
        assert (info.state, info.workers) == ("ready", 1)
        assert info.notebook is not None
    fake.wrote("page", " notebook ")
    assert fake.process("worker-0") == before[0]
    assert not processes.is_alive(before[1])
    assert fake.service("page").restarts == 1
    assert (fake.home.notebooks / "quickstart.ipynb").is_file()


def test_scaling_without_a_cluster_is_an_error(make_cluster: MakeCluster) -> None:
    """The error says how to start one."""
    with pytest.raises(ClusterError, match="cerebro up"):
        cluster.scale(make_cluster(Fake(name="worker-0")).home.path, 2, timeout_s=1.0)
