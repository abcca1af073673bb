"""Store contract: quarantine of workers and its limits, checks, incidents.

Part of `tests.kvs_api.contract.StoreContract`.
"""

from __future__ import annotations

import pytest

from cerebro.contract.records import Replica
from cerebro.contract.stored.health import (
    CONTROLLER,
    CheckRequest,
    CheckResult,
    IncidentRequest,
    PaceRequest,
    Probe,
    QuarantineWorkerRequest,
    ReleaseRequest,
)
from cerebro.contract.tasks.bodies import KINDS
from cerebro.errors import ConflictError, NotFoundError
from tests.kvs_api.bench import LONG_S, Bench, worker

MINE = QuarantineWorkerRequest(reason="it smells", by="ada")


def crowd(bench: Bench, number: int, **changes: object) -> None:
    """Register several workers of all kinds."""
    for each in range(number):
        record = worker("a", f"worker-{each}").model_copy(
            update={"kinds": KINDS, "replicas": (Replica(dataset="d", partition=each),)}
        )
        bench.store.register(record.model_copy(update=changes))


class MachineContract:
    """Tests with a new `bench` each."""

    def test_a_quarantined_worker_is_known_until_it_is_released(self, bench: Bench) -> None:
        """The store keeps author, reason and time, and notifies users of both changes."""
        crowd(bench, 2)
        assert bench.store.workers_health().workers == {}
        bench.store.quarantine_worker("worker-1", MINE)
        known = bench.store.workers_health()
        assert known.quarantined() == {"worker-1"}
        mark = known.of("worker-1").quarantine
        assert mark is not None
        assert (mark.reason, mark.by) == ("it smells", "ada")
        bench.store.release_worker("worker-1", ReleaseRequest(by="bob"))
        known = bench.store.workers_health()
        assert known.quarantined() == set()
        assert known.of("worker-1").since >= mark.time > 0
        assert [(each.what, each.worker, each.by) for each in known.incidents] == [
            ("quarantined", "worker-1", "ada"),
            ("released", "worker-1", "bob"),
        ]

    def test_a_repeated_quarantine_counts_once_and_a_user_overrides_a_rule(self, bench: Bench) -> None:
        """A rule never replaces a user's quarantine."""
        term = bench.store.lead("controller-0", LONG_S).term
        crowd(bench, 2)
        by_rule = QuarantineWorkerRequest(reason="it failed", term=term)
        for _ in range(2):
            bench.store.quarantine_worker("worker-1", by_rule)
        assert len(bench.store.workers_health().incidents) == 1
        for request in (MINE, MINE, by_rule):
            bench.store.quarantine_worker("worker-1", request)
        mark = bench.store.workers_health().of("worker-1").quarantine
        assert mark is not None
        assert mark.by == "ada"
        assert [each.by for each in bench.store.workers_health().incidents] == [CONTROLLER, "ada"]

    def test_an_unknown_worker_cannot_be_quarantined(self, bench: Bench) -> None:
        """Release and check are refused too; the message lists the existing workers."""
        crowd(bench, 2)
        with pytest.raises(NotFoundError, match=r"no worker 'worker-7'.*worker-0, worker-1"):
            bench.store.quarantine_worker("worker-7", MINE)
        with pytest.raises(NotFoundError, match="no worker 'worker-7'"):
            bench.store.release_worker("worker-7", ReleaseRequest())
        with pytest.raises(NotFoundError, match="no worker 'worker-7'"):
            bench.store.request_check("worker-7", CheckRequest(reason="why not"))
        with pytest.raises(NotFoundError, match="no worker 'worker-7'"):
            bench.store.report_check("worker-7", CheckResult(incarnation="a"))
        with pytest.raises(ConflictError, match="worker-0 is not quarantined"):
            bench.store.release_worker("worker-0", ReleaseRequest())

    def test_the_last_worker_cannot_be_quarantined(self, bench: Bench) -> None:
        crowd(bench, 2)
        bench.store.quarantine_worker("worker-1", MINE)
        with pytest.raises(ConflictError, match="worker-0 is the last worker that trains"):
            bench.store.quarantine_worker("worker-0", MINE)

    def test_quarantine_of_more_than_half_of_the_workers_is_refused(self, bench: Bench) -> None:
        """The limit is two of four workers."""
        crowd(bench, 4)
        for number in (0, 2):
            bench.store.quarantine_worker(f"worker-{number}", MINE)
        with pytest.raises(ConflictError, match=r"worker-0, worker-1, worker-2 would be 3 of 4 workers"):
            bench.store.quarantine_worker("worker-1", MINE)

    def test_a_worker_with_the_only_replica_cannot_be_quarantined(self, bench: Bench) -> None:
        """The message names the partitions that would be lost; partitions with another replica do not count."""
        crowd(bench, 3, kinds=("train", "valid"))
        with pytest.raises(ConflictError, match="only worker-1 holds partition 1 of d, and no other"):
            bench.store.quarantine_worker("worker-1", MINE)
        twice = worker("a", "worker-2").model_copy(
            update={
                "kinds": ("train",),
                "replicas": (Replica(dataset="d", partition=1), Replica(dataset="d", partition=2)),
            }
        )
        bench.store.register(twice)
        bench.store.quarantine_worker("worker-1", MINE)

    def test_a_removed_worker_loses_its_health_record(self, bench: Bench) -> None:
        """A later worker of the same name is a new machine, but a restarted process is not."""
        crowd(bench, 2)
        bench.store.quarantine_worker("worker-1", MINE)
        bench.store.register(worker("b", "worker-1"))
        assert bench.store.workers_health().quarantined() == {"worker-1"}
        bench.store.remove_worker("worker-1")
        assert bench.store.workers_health().workers == {}

    def test_a_check_is_requested_once_and_its_result_reported(self, bench: Bench) -> None:
        """The check is in the worker's inbox; a second one waits for the result of the first."""
        crowd(bench, 2)
        for _ in range(2):
            bench.store.request_check("worker-1", CheckRequest(reason="two models failed", by="ada"))
        items = bench.store.inbox("worker-1", "a", 0, wait_s=0)
        assert [(item.check, item.task) for item in items] == [("two models failed", "")]
        check = bench.store.workers_health().of("worker-1").check
        assert check is not None
        assert (check.ended, check.by) == (None, "ada")
        result = CheckResult(incarnation="a", probes=(Probe(name="memory", problem="1 word"),))
        for _ in range(2):
            bench.store.report_check("worker-1", result)
        known = bench.store.workers_health()
        check = known.of("worker-1").check
        assert check is not None
        assert (check.result, check.ended is not None) == (result, True)
        assert [(each.what, each.evidence) for each in known.incidents] == [
            ("check failed", "memory: 1 word")
        ]
        bench.store.request_check("worker-1", CheckRequest(reason="once more"))
        assert len(bench.store.inbox("worker-1", "a", 0, wait_s=0)) == 2

    def test_a_former_leader_is_refused(self, bench: Bench) -> None:
        crowd(bench, 2)
        old = bench.store.lead("controller-0", 0.0001).term
        bench.pass_a_moment()
        assert bench.store.lead("controller-1", LONG_S).term > old
        for call in (
            lambda: bench.store.quarantine_worker("worker-1", QuarantineWorkerRequest(reason="r", term=old)),
            lambda: bench.store.request_check("worker-1", CheckRequest(reason="r", term=old)),
            lambda: bench.store.report_incident(IncidentRequest(worker="worker-1", what="w", term=old)),
            lambda: bench.store.report_pace(
                "worker-1", PaceRequest(is_slow=True, factor=2.0, sub_epochs=9, term=old)
            ),
        ):
            with pytest.raises(ConflictError, match="term"):
                call()
        assert bench.store.workers_health().incidents == ()

    def test_a_repeated_incident_is_reported_once(self, bench: Bench) -> None:
        term = bench.store.lead("controller-0", LONG_S).term
        crowd(bench, 2)
        spared = IncidentRequest(worker="worker-1", what="not quarantined", evidence="e", term=term)
        for request in (spared, spared, spared.model_copy(update={"worker": "worker-0"}), spared):
            bench.store.report_incident(request)
        found = bench.store.workers_health().incidents
        assert [(each.worker, each.what, each.by) for each in found] == [
            ("worker-1", "not quarantined", CONTROLLER),
            ("worker-0", "not quarantined", CONTROLLER),
        ]

    def test_a_slow_worker_is_labelled_until_it_recovers(self, bench: Bench) -> None:
        """Users get one notice per change, the latest factor is kept, and unknown workers are ignored."""
        term = bench.store.lead("controller-0", LONG_S).term
        crowd(bench, 2, host="node-a")
        slow = PaceRequest(is_slow=True, factor=2.0, sub_epochs=5, term=term)
        for request in (slow, slow, slow.model_copy(update={"factor": 3.0, "sub_epochs": 9})):
            bench.store.report_pace("worker-1", request)
        pace = bench.store.workers_health().of("worker-1").pace
        assert pace is not None
        assert (pace.factor, pace.sub_epochs, pace.host) == (3.0, 9, "node-a")
        for _ in range(2):
            bench.store.report_pace(
                "worker-1", PaceRequest(is_slow=False, factor=1.1, sub_epochs=12, term=term)
            )
        known = bench.store.workers_health()
        assert known.of("worker-1").pace is None
        assert [(each.worker, each.what, each.by) for each in known.incidents] == [
            ("worker-1", "slow", CONTROLLER),
            ("worker-1", "no longer slow", CONTROLLER),
        ]
        with pytest.raises(NotFoundError, match="no worker 'worker-7'"):
            bench.store.report_pace("worker-7", slow)
