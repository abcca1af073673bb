"""Store contract: the life of an attempt, fenced processes, live points.

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
    """Tests with a new `bench` each."""

    # --- workers ---------------------------------------------------------------------------------

    def test_a_worker_starts_renews_and_commits_an_attempt(self, bench: Bench) -> None:
        """Renewals write no event."""
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
        """The event has the failure."""
        bench.run_until(state)
        assert bench.step("fail") == "done"
        event = bench.log()[-1]
        assert isinstance(event, TaskFailed)
        assert event.failure == FAILURE

    @pytest.mark.parametrize(("state", "op"), [("running", "start"), ("commit", "commit"), ("fail", "fail")])
    def test_a_report_that_is_sent_twice_counts_once(self, bench: Bench, state: str, op: str) -> None:
        """The second one gets "already"."""
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
        """Follows the state table of a task; most important, a late commit is refused."""
        bench.run_until(state)
        before = bench.log()
        assert bench.step(op) == "refused"
        assert bench.log() == before

    @pytest.mark.parametrize("op", ["start", "renew", "save2", "commit", "fail"])
    def test_another_attempt_number_is_refused(self, bench: Bench, op: str) -> None:
        """Both earlier and later attempt numbers are refused."""
        bench.run_until("fail")
        assert bench.assign(2) == "done"
        assert bench.step("start", 2) == "done"
        before = bench.log()
        for attempt in (1, 3):
            assert bench.step(op, attempt) == "refused"
        assert bench.log() == before

    def test_a_savepoint_is_reported_once_and_renews_the_lease(self, bench: Bench) -> None:
        """The event has the file and position; repeated and older savepoints are "already"."""
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
    def test_only_a_running_attempt_can_have_savepoints(self, bench: Bench, state: str) -> None:
        """A worker that lost its attempt must not set the resume position."""
        bench.run_until(state)
        before = bench.log()
        assert bench.step("save2") == "refused"
        assert bench.log() == before

    def test_the_next_attempt_starts_its_savepoints_from_the_beginning(self, bench: Bench) -> None:
        """Its batches restart, so an earlier batch than the previous attempt's is accepted."""
        bench.run_until("running")
        assert bench.step("save5") == "done"
        assert bench.step("fail") == "done"
        assert bench.assign(2) == "done"
        assert bench.step("start", 2) == "done"
        assert (bench.step("save2", 1), bench.step("save2", 2)) == ("refused", "done")

    def test_an_unassigned_task_is_refused(self, bench: Bench) -> None:
        bench.store.register(worker("a"))
        for op in ("start", "renew", "save2", "commit", "fail"):
            assert bench.step(op) == "refused"
        assert bench.log() == ()

    def test_registering_again_fences_the_previous_process(self, bench: Bench) -> None:
        """Its reports are refused, its inbox is empty, and the successor does not inherit its lease."""
        bench.run_until("running")
        bench.store.register(worker("b"))
        answer = bench.report(worker_step("commit", 1), live=[live_point()])
        assert answer == api.ReportAnswer(current=False)
        assert bench.inbox("a") == bench.inbox("b") == []
        assert bench.step("commit", incarnation="b") == "refused"
        assert bench.types() == ["TaskAssigned", "TaskStarted"]
        assert bench.store.live("one") == ()

    def test_registering_twice_loses_no_assignment(self, bench: Bench) -> None:
        """A repeated registration keeps the inbox."""
        bench.run_until("assigned")
        bench.store.register(worker("a"))
        assert bench.inbox() == [(TASK, 1, False)]
        assert bench.step("start") == "done"

    def test_workers_are_listed_by_name_with_their_latest_report(self, bench: Bench) -> None:
        """The registration describes the worker, and reports give its current state."""
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

    def test_a_report_may_list_new_replicas(self, bench: Bench) -> None:
        """They replace the registered ones; reports of fenced or unknown processes are ignored."""
        bench.store.register(worker("a"))
        new_replicas = (Replica(dataset="d", partition=3),)
        request = api.ReportRequest(incarnation="a", lease_s=1, replicas=new_replicas)
        assert bench.store.report("worker-0", request).current
        assert bench.store.workers()[0].record == worker("a").model_copy(update={"replicas": new_replicas})
        assert not bench.store.report("worker-9", request).current
        bench.store.register(worker("b"))
        assert not bench.store.report("worker-0", request).current
        assert [status.record for status in bench.store.workers()] == [worker("b")]

    def test_a_leaving_worker_is_marked_until_it_returns(self, bench: Bench) -> None:
        """Later reports do not change this, and it may finish its attempts. Its next process clears it."""
        bench.run_until("running")
        leaving = api.ReportRequest(incarnation="a", lease_s=LONG_S, leaving="SIGTERM")
        bench.store.report("worker-0", leaving)
        assert bench.step("commit") == "done"
        assert bench.store.workers()[0].leaving == "SIGTERM"
        bench.store.register(worker("b"))
        assert bench.store.workers()[0].leaving == ""

    # --- live points -----------------------------------------------------------------------------

    def test_live_points_are_numbered_and_name_their_worker(self, bench: Bench) -> None:
        """The sender's number and name are ignored."""
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
        """Points of attempts that are not running are dropped; the rest of the report counts."""
        bench.run_until(state)
        assert bench.report(live=[live_point()]).current
        assert bench.store.live("one") == ()

    def test_live_points_of_superseded_attempts_are_dropped(self, bench: Bench) -> None:
        """The next attempt sends the same rows again."""
        bench.run_until("fail")
        assert bench.assign(2) == "done"
        assert bench.step("start", 2) == "done"
        bench.report(live=[live_point(1), live_point(2), live_point(3)])
        assert [point.attempt for point in bench.store.live("one")] == [2]

    def test_a_report_sent_twice_leaves_its_points_once(self, bench: Bench) -> None:
        """A worker without a response repeats its report, possibly after a later one from another thread."""
        bench.run_until("running")
        for rows in (1, 2, 1, 2):
            bench.report(live=[live_point(rows=rows)])
        assert [point.rows for point in bench.store.live("one")] == [1, 2]
