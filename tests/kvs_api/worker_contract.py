"""What every store promises workers: an attempt's life, fenced processes, and live points.

Part of `tests.kvs_api.contract.StoreContract`.
"""

from __future__ import annotations

import pytest

from cerebro.contract.events import SubEpochSaved, TaskAssigned, TaskCommitted, TaskFailed, TaskStarted
from cerebro.contract.records import Replica
from cerebro.contract.rest import api
from tests.kvs_api.bench import (
    FAILURE,
    LONG_S,
    RESULT,
    SHORT_S,
    TASK,
    Bench,
    live_point,
    savepoint,
    worker,
    worker_step,
)


class WorkerContract:
    """The tests; `bench` is made anew for each."""

    # --- workers ---------------------------------------------------------------------------------

    def test_a_worker_takes_an_attempt_through_its_life(self, bench: Bench) -> None:
        """Assigned, started, renewed without an event, committed."""
        bench.run_until("running")
        assert bench.step("renew") == "done"
        assert bench.step("commit") == "done"
        assigned, started, committed = bench.log()
        assert isinstance(assigned, TaskAssigned)
        assert isinstance(started, TaskStarted)
        assert isinstance(committed, TaskCommitted)
        assert (committed.task, committed.attempt, committed.worker) == (TASK, 1, "worker-0")
        assert committed.result == RESULT

    @pytest.mark.parametrize("state", ["assigned", "running"])
    def test_an_attempt_may_fail_before_or_after_it_started(self, bench: Bench, state: str) -> None:
        """The event carries the failure."""
        bench.run_until(state)
        assert bench.step("fail") == "done"
        event = bench.log()[-1]
        assert isinstance(event, TaskFailed)
        assert event.failure == FAILURE

    @pytest.mark.parametrize(("state", "op"), [("running", "start"), ("commit", "commit"), ("fail", "fail")])
    def test_a_report_that_is_sent_twice_counts_once(self, bench: Bench, state: str, op: str) -> None:
        """The second is told that it was done; the log does not grow."""
        bench.run_until(state)
        before = bench.log()
        assert bench.step(op) == "already"
        assert bench.log() == before

    @pytest.mark.parametrize(
        ("state", "op"),
        [
            ("assigned", "commit"),
            ("assigned", "renew"),
            ("commit", "start"),
            ("commit", "renew"),
            ("commit", "fail"),
            ("fail", "start"),
            ("fail", "renew"),
            ("fail", "commit"),
            ("revoke", "start"),
            ("revoke", "renew"),
            ("revoke", "commit"),
            ("revoke", "fail"),
        ],
    )
    def test_a_step_that_does_not_fit_the_state_is_refused(self, bench: Bench, state: str, op: str) -> None:
        """The table of a task's life, from the store's side; above all: a late commit is refused."""
        bench.run_until(state)
        before = bench.log()
        assert bench.step(op) == "refused"
        assert bench.log() == before

    @pytest.mark.parametrize("op", ["start", "renew", "save2", "commit", "fail"])
    def test_another_attempt_is_refused(self, bench: Bench, op: str) -> None:
        """Neither the attempt before nor the one to come may speak for the present one."""
        bench.run_until("fail")
        assert bench.assign(2) == "done"
        assert bench.step("start", 2) == "done"
        before = bench.log()
        for attempt in (1, 3):
            assert bench.step(op, attempt) == "refused"
        assert bench.log() == before

    def test_a_savepoint_is_told_once_and_renews_the_lease(self, bench: Bench) -> None:
        """Its event carries the file and the place; what is told again, or late, is known already."""
        bench.run_until("assigned")
        assert bench.step("start", lease_s=SHORT_S) == "done"
        assert bench.step("save2") == "done"
        bench.pass_a_moment()
        assert bench.revoke() == "refused"
        assert [bench.step(op) for op in ("save2", "save5", "save2", "save5")] == [
            "already",
            "done",
            "already",
            "already",
        ]
        saved = [event for event in bench.log() if isinstance(event, SubEpochSaved)]
        assert [event.savepoint for event in saved] == [savepoint(2), savepoint(5)]
        assert {(event.task, event.attempt, event.worker) for event in saved} == {(TASK, 1, "worker-0")}

    @pytest.mark.parametrize("state", ["assigned", "commit", "fail", "revoke"])
    def test_only_what_runs_can_be_saved(self, bench: Bench, state: str) -> None:
        """Above all: a worker that lost its attempt tells nobody where to go on."""
        bench.run_until(state)
        before = bench.log()
        assert bench.step("save2") == "refused"
        assert bench.log() == before

    def test_the_next_attempt_saves_anew(self, bench: Bench) -> None:
        """From a batch that the one before had passed already, if it began at the beginning."""
        bench.run_until("running")
        assert bench.step("save5") == "done"
        assert bench.step("fail") == "done"
        assert bench.assign(2) == "done"
        assert bench.step("start", 2) == "done"
        assert (bench.step("save2", 1), bench.step("save2", 2)) == ("refused", "done")

    def test_a_task_nobody_assigned_is_refused(self, bench: Bench) -> None:
        """A worker cannot give itself work."""
        bench.store.register(worker("a"))
        for op in ("start", "renew", "save2", "commit", "fail"):
            assert bench.step(op) == "refused"
        assert bench.log() == ()

    def test_registering_anew_fences_the_previous_process(self, bench: Bench) -> None:
        """Its reports count no more, its inbox is empty, and its successor does not inherit its lease."""
        bench.run_until("running")
        bench.store.register(worker("b"))
        answer = bench.report(worker_step("commit", 1), live=[live_point()])
        assert answer == api.ReportAnswer(current=False)
        assert bench.inbox("a") == bench.inbox("b") == []
        assert bench.step("commit", incarnation="b") == "refused"
        assert bench.types() == ["TaskAssigned", "TaskStarted"]
        assert bench.store.live("one") == ()

    def test_registering_twice_loses_no_assignment(self, bench: Bench) -> None:
        """A registration whose answer got lost is sent again; what was assigned meanwhile stays in the inbox."""
        bench.run_until("assigned")
        bench.store.register(worker("a"))
        assert bench.inbox() == [(TASK, 1, False)]
        assert bench.step("start") == "done"

    def test_workers_are_listed_by_name_with_their_latest_report(self, bench: Bench) -> None:
        """Registration says what a worker is, reports say how it is."""
        for name in ("worker-1", "worker-0"):
            bench.store.register(worker("a", name))
        request = api.ReportRequest(
            incarnation="a", lease_s=1, checkpoint_free_bytes=1 << 50, running="one/etl-1/etl/train/p0"
        )
        bench.store.report("worker-1", request)
        first, second = bench.store.workers()
        assert (first.record, second.record) == (worker("a", "worker-0"), worker("a", "worker-1"))
        assert (first.checkpoint_free_bytes, first.running) == (None, None)
        assert (second.checkpoint_free_bytes, second.running) == (1 << 50, "one/etl-1/etl/train/p0")
        assert 0 <= first.silent_s < 60

    def test_a_report_may_tell_of_new_replicas(self, bench: Bench) -> None:
        """They replace what was registered; of a fenced process, or one nobody knows, they do not count."""
        bench.store.register(worker("a"))
        made = (Replica(dataset="d", partition=3),)
        request = api.ReportRequest(incarnation="a", lease_s=1, replicas=made)
        assert bench.store.report("worker-0", request).current
        assert bench.store.workers()[0].record == worker("a").model_copy(update={"replicas": made})
        assert not bench.store.report("worker-9", request).current
        bench.store.register(worker("b"))
        assert not bench.store.report("worker-0", request).current
        assert [status.record for status in bench.store.workers()] == [worker("b")]

    def test_a_worker_that_leaves_says_so_until_it_is_back(self, bench: Bench) -> None:
        """Whatever it reports afterwards; what it has it may still end. Its next process is there to stay."""
        bench.run_until("running")
        leaving = api.ReportRequest(incarnation="a", lease_s=LONG_S, leaving="SIGTERM")
        bench.store.report("worker-0", leaving)
        assert bench.step("commit") == "done"
        assert bench.store.workers()[0].leaving == "SIGTERM"
        bench.store.register(worker("b"))
        assert bench.store.workers()[0].leaving == ""

    # --- live points -----------------------------------------------------------------------------

    def test_live_points_are_numbered_and_name_their_worker(self, bench: Bench) -> None:
        """Whatever number or name the sender put in."""
        bench.run_until("running")
        bench.report(live=[live_point(rows=1), live_point(rows=2)])
        bench.report(live=[live_point(rows=3)])
        points = bench.store.live("one")
        assert [(p.seq, p.rows, p.worker) for p in points] == [
            (1, 1, "worker-0"),
            (2, 2, "worker-0"),
            (3, 3, "worker-0"),
        ]
        assert bench.store.live("one", 2) == points[2:]

    @pytest.mark.parametrize("state", ["assigned", "commit", "fail", "revoke"])
    def test_live_points_count_while_the_attempt_runs(self, bench: Bench, state: str) -> None:
        """Points of an attempt that has not started, or has ended, are dropped; the report is not."""
        bench.run_until(state)
        assert bench.report(live=[live_point()]).current
        assert bench.store.live("one") == ()

    def test_live_points_of_superseded_attempts_are_dropped(self, bench: Bench) -> None:
        """What the next attempt says again is not there twice."""
        bench.run_until("fail")
        assert bench.assign(2) == "done"
        assert bench.step("start", 2) == "done"
        bench.report(live=[live_point(1), live_point(2), live_point(3)])
        assert [point.attempt for point in bench.store.live("one")] == [2]

    def test_a_report_sent_twice_leaves_its_points_once(self, bench: Bench) -> None:
        """A worker that got no answer sends the same again, perhaps after a later report of another thread."""
        bench.run_until("running")
        for rows in (1, 2, 1, 2):
            bench.report(live=[live_point(rows=rows)])
        assert [point.rows for point in bench.store.live("one")] == [1, 2]
