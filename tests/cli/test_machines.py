"""`cerebro check`, `quarantine`, `release`, and the machine state in `status`."""

from __future__ import annotations

from typing import cast

import pytest

from cerebro.cli import main
from cerebro.cli.administration import machines
from cerebro.cli.administration.cluster_status import worker_lines
from cerebro.contract.records import PodRef
from cerebro.contract.stored.health import (
    CheckRequest,
    CheckResult,
    HealthAnswer,
    Probe,
    Quarantine,
    WorkerCheck,
    WorkerHealth,
)
from cerebro.contract.tasks.bodies import KINDS
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state.worker_quarantine import health_words, slow_factors
from research.simulation.store import VirtualStore
from tests.kvs_api.bench import worker


class Answering(VirtualStore):
    """A store whose workers check themselves immediately; workers in `bad` report a problem."""

    bad = frozenset({"worker-1"})

    def request_check(self, worker: str, request: CheckRequest) -> WorkerHealth:
        answer = super().request_check(worker, request)
        probe = Probe(name="memory", problem="1 word" if worker in self.bad else "", seconds=0.5)
        rate = Probe(name="arithmetic", seconds=2.0, rate=50.0)
        result = CheckResult(incarnation="a", probes=(rate, probe), device="H200", seconds=3.2)
        self.report_check(worker, result)
        return answer


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Answering:
    store = Answering(lambda: 1000.0)
    for number in range(3):
        record = worker("a", f"worker-{number}")
        store.register(record.model_copy(update={"kinds": KINDS, "host": f"node-{number}"}))
    monkeypatch.setattr(machines, "cluster_client", lambda home: cast(KvsClient, store))
    return store


def test_check_prints_the_result_of_each_part(store: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    """For one worker or all; the exit status shows a problem."""
    assert main(["check", "worker-0"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "worker-0 (H200, 3.2 s): nothing is wrong",
        "  arithmetic: as expected (2.00 s, 50.0 products/s)",
        "  memory: as expected (0.50 s)",
    ]
    assert main(["check"]) == 1
    assert "worker-1 (H200, 3.2 s): FAILED: memory: 1 word" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "quarantine worker-7 --reason r",
            "no worker 'worker-7' is registered; there is: worker-0, worker-1",
        ),
        ("release worker-7", "no worker 'worker-7' is registered"),
        ("release worker-0", "worker-0 is not quarantined: there is nothing to release"),
        ("check worker-7", "no worker 'worker-7' is registered"),
    ],
)
def test_an_impossible_command_prints_one_sentence(
    store: Answering, capsys: pytest.CaptureFixture[str], command: str, says: str
) -> None:
    """One line with the choices."""
    assert main(command.split()) == 1
    assert says in capsys.readouterr().err


def test_quarantine_excludes_a_worker_and_release_readmits_it(
    store: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command prints its consequence."""
    assert main(["quarantine", "worker-1", "--reason", " "]) == 1
    assert "--reason is empty" in capsys.readouterr().err
    assert main(["quarantine", "worker-1", "--reason", "its fan is loud"]) == 0
    assert "Undo it with `cerebro release worker-1`" in capsys.readouterr().out
    assert store.workers_health().quarantined() == {"worker-1"}
    assert main(["quarantine", "worker-0", "--reason", "r"]) == 1
    assert "worker-0, worker-1 would be 2 of 3 workers, more than half" in capsys.readouterr().err
    assert main(["release", "worker-1"]) == 0
    assert store.workers_health().quarantined() == set()


def test_status_states_why_a_worker_is_quarantined(store: Answering) -> None:
    """It shows the user, the reason, and the command for the node, which Cerebro may not change."""
    pod = PodRef(name="cerebro-worker-1", uid="1", container="train")
    first, second, third = store.workers()
    second = second.model_copy(update={"record": second.record.model_copy(update={"pod": pod})})
    by_rule = Quarantine(reason="its check failed: memory", by="controller", time=1.0)
    by_ada = Quarantine(reason="its fan is loud", by="ada", time=1.0)
    failed = WorkerCheck(
        requested=1.0, reason="r", by="ada", ended=2.0, result=CheckResult(incarnation="a", problem="it hung")
    )
    known = HealthAnswer(
        workers={
            "worker-0": WorkerHealth(quarantine=by_ada),
            "worker-1": WorkerHealth(quarantine=by_rule),
            "worker-2": WorkerHealth(check=failed),
        }
    )
    lines = worker_lines([first, second, third], health=known)
    assert "quarantined (by ada): its fan is loud" in lines[1]
    assert "its check failed: memory. If its node is broken: kubectl cordon node-1" in lines[2]
    assert "idle; its check failed: it hung" in lines[3]


def test_a_slow_worker_is_labelled() -> None:
    """More than 1.5 times the median of workers with the same devices; other devices are not compared."""

    def checked(rate: float, device: str = "H200") -> WorkerHealth:
        probe = Probe(name="arithmetic", seconds=2.0, rate=rate)
        result = CheckResult(incarnation="a", probes=(probe,), device=device)
        return WorkerHealth(check=WorkerCheck(requested=1.0, reason="r", by="a", ended=2.0, result=result))

    known = HealthAnswer(
        workers={
            "worker-0": checked(100.0),
            "worker-1": checked(90.0),
            "worker-2": checked(40.0),
            "worker-3": checked(1.0, "1 core"),
        }
    )
    assert slow_factors(known) == {"worker-2": 90.0 / 40.0}
    store = VirtualStore(lambda: 0.0)
    store.register(worker("a", "worker-2"))
    assert (
        health_words(store.workers(), known, 3.0)["worker-2"]
        == "slow: its check took 2.2 times the median of equal devices"
    )


def test_a_user_without_a_name_is_recorded_by_number(
    store: Answering, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container may run under a user id without an entry in /etc/passwd."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    assert main(["quarantine", "worker-0", "--reason", "smoke"]) == 0
    found = store.workers_health().workers["worker-0"].quarantine
    assert found is not None
    assert found.by == "uid 4711"
    assert main(["release", "worker-0"]) == 0
    assert main(["check", "worker-2"]) == 0
    check = store.workers_health().workers["worker-2"].check
    assert check is not None
    assert check.by == "uid 4711"
