"""What every store promises, as one class of tests: run against the real one and against the simulated one.

A subclass gives the fixture `bench`. Nothing here knows which store it is.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cerebro.contract import api
from cerebro.contract.events import (
    RunFinished,
    RunRequested,
    RunStopRequested,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
    WorkerLost,
)
from cerebro.contract.records import ExperimentRecord, Holding, Locator, Locators
from cerebro.errors import ConflictError, NotFoundError
from tests.kvs_api.bench import (
    FAILURE,
    JOINED,
    LOCATORS,
    LONG_S,
    OTHER,
    RESULT,
    SHORT_S,
    TASK,
    Bench,
    body,
    live_point,
    note,
    requested,
    worker,
    worker_step,
)
from tests.kvs_api.crew_contract import CrewContract
from tests.kvs_api.steering_contract import SteeringContract


class StoreContract(CrewContract, SteeringContract):
    """The tests; `bench` is made anew for each."""

    @pytest.fixture
    def bench(self) -> Bench:
        """Given by the subclass."""
        raise NotImplementedError

    # --- experiments -----------------------------------------------------------------------------

    def test_creating_the_same_experiment_again_finds_it(self, bench: Bench) -> None:
        """A repeated call returns the record of the first."""
        again = ExperimentRecord(name="one", locators=LOCATORS, author="somebody else")
        assert bench.store.create_experiment(again) == bench.store.experiment("one")

    def test_a_name_holds_one_experiment(self, bench: Bench) -> None:
        """Other locators, or another archive, under a known name are refused and change nothing."""
        before = bench.store.experiment("one")
        moved = ExperimentRecord(name="one", locators=Locators(test=Locator(metadata="test.csv")))
        with pytest.raises(ConflictError, match="'one'"):
            bench.store.create_experiment(moved)
        with pytest.raises(ConflictError, match="'one'"):
            bench.store.create_experiment(ExperimentRecord(name="one", locators=LOCATORS, archive="2" * 64))
        assert bench.store.experiment("one") == before

    def test_an_unknown_experiment_is_not_found(self, bench: Bench) -> None:
        """Reads, requests and decisions name what is missing."""
        step = note(JOINED)
        request = api.DecideRequest(term=bench.term, after=0, steps=(step,))
        calls: list[Callable[[], object]] = [
            lambda: bench.store.experiment("two"),
            lambda: bench.store.events("two"),
            lambda: bench.store.live("two"),
            lambda: bench.store.append("two", requested("etl-1")),
            lambda: bench.store.decide("two", request),
        ]
        for call in calls:
            with pytest.raises(NotFoundError, match="'two'"):
                call()

    # --- the log ---------------------------------------------------------------------------------

    def test_a_request_counts_once(self, bench: Bench) -> None:
        """The same request sent again returns the first one's number and adds nothing."""
        first = bench.store.append("one", requested("etl-1"))
        bench.store.append("one", requested("etl-2"))
        assert bench.store.append("one", requested("etl-1")) == first == 1
        assert bench.types() == ["RunRequested", "RunRequested"]
        assert [entry.run for entry in bench.store.queue()] == ["etl-1", "etl-2"]

    def test_a_run_id_holds_one_request(self, bench: Bench) -> None:
        """Another request under a known run id is refused."""
        bench.store.append("one", requested("etl-1"))
        with pytest.raises(ConflictError, match="'etl-1'"):
            bench.store.append("one", requested("etl-1", seed=1))
        assert len(bench.log()) == 1

    def test_events_are_numbered_densely_and_read_after_a_cursor(self, bench: Bench) -> None:
        """Numbers start at 1 and have no gap, whoever writes; times never go back."""
        bench.store.append("one", requested("etl-1"))
        bench.run_until("commit")
        bench.store.append("one", RunStopRequested(run="etl-1"))
        log = bench.log()
        assert [event.seq for event in log] == list(range(1, 6))
        assert [event.time for event in log] == sorted(event.time for event in log)
        assert bench.store.events("one", 3) == log[3:]
        assert bench.store.events("one", 5) == ()

    def test_text_of_any_language_comes_back(self, bench: Bench) -> None:
        """Names of people and messages survive every layer between client and log."""
        text = 'Žofie said: "日本" 🙂 \\ \n\t\u0001 {}'
        bench.store.append("one", requested("etl-1").model_copy(update={"author": text}))
        event = bench.log()[0]
        assert isinstance(event, RunRequested)
        assert event.author == text

    def test_open_runs_queue_in_the_order_of_their_requests(self, bench: Bench) -> None:
        """Over all experiments, the oldest first; a run that ended is gone."""
        bench.store.create_experiment(ExperimentRecord(name="two", locators=LOCATORS))
        for experiment, run in (("two", "etl-1"), ("one", "etl-1"), ("two", "etl-2")):
            bench.store.append(experiment, requested(run))
        bench.decide(note(RunFinished(run="etl-1", outcome="finished")))
        queue = [(entry.experiment, entry.run) for entry in bench.store.queue()]
        assert queue == [("two", "etl-1"), ("two", "etl-2")]

    def test_a_note_that_is_sent_twice_is_written_once(self, bench: Bench) -> None:
        """A controller that got no answer asks again from the same cursor: nothing is doubled."""
        assert bench.decide(note(JOINED), after=0) == ["done"]
        assert bench.decide(note(JOINED), after=0) == ["already"]
        assert bench.types() == ["WorkerJoined"]

    def test_a_note_may_be_written_again_by_who_has_read_it(self, bench: Bench) -> None:
        """The same worker may be lost and join again: that is news, not a repetition."""
        lost = WorkerLost(worker="worker-0", incarnation="a", reason="silent")
        for step in (note(JOINED), note(lost), note(JOINED), note(lost)):
            assert bench.decide(step) == ["done"]
        assert bench.types() == ["WorkerJoined", "WorkerLost"] * 2

    def test_a_run_that_was_never_queued_may_end(self, bench: Bench) -> None:
        """The end of a run is only a fact; taking it off the queue needs no entry there."""
        assert bench.decide(note(RunFinished(run="etl-9", outcome="failed"))) == ["done"]
        assert bench.store.queue() == ()

    # --- the controller's steps ------------------------------------------------------------------

    def test_an_assignment_is_in_the_log_and_in_the_inbox(self, bench: Bench) -> None:
        """Both or neither."""
        bench.run_until("assigned")
        event = bench.log()[-1]
        assert isinstance(event, TaskAssigned)
        assert (event.task, event.attempt, event.worker) == (TASK, 1, "worker-0")
        (item,) = bench.store.inbox("worker-0", "a", 0, wait_s=0)
        assert (item.experiment, item.task, item.attempt, item.cancel) == ("one", TASK, 1, False)
        assert item.body == body()

    def test_an_assignment_that_is_sent_twice_counts_once(self, bench: Bench) -> None:
        """The second says so and posts nothing."""
        bench.run_until("assigned")
        assert bench.assign() == "already"
        assert bench.inbox() == [(TASK, 1, False)]
        assert bench.types() == ["TaskAssigned"]

    @pytest.mark.parametrize("attempt", [2, 3])
    def test_the_first_attempt_is_attempt_one(self, bench: Bench, attempt: int) -> None:
        """A number that leaves a gap is refused."""
        bench.store.register(worker("a"))
        assert bench.assign(attempt) == "refused"
        assert (bench.log(), bench.inbox()) == ((), [])

    @pytest.mark.parametrize("state", ["commit", "fail", "revoke"])
    def test_a_task_is_assigned_again_under_the_next_number_only(self, bench: Bench, state: str) -> None:
        """After an attempt ended, its number and one further on are refused."""
        bench.run_until(state)
        assert bench.assign(1) == "refused"
        assert bench.assign(3) == "refused"
        assert bench.assign(2) == "done"
        assert bench.inbox()[-1] == (TASK, 2, False)

    @pytest.mark.parametrize("state", ["assigned", "running"])
    def test_an_open_attempt_excludes_another(self, bench: Bench, state: str) -> None:
        """One attempt at a time, whatever its number."""
        bench.run_until(state)
        assert bench.assign(2) == "refused"
        assert bench.inbox() == [(TASK, 1, False)]

    def test_a_worker_that_registered_anew_gets_nothing_meant_for_its_predecessor(self, bench: Bench) -> None:
        """An assignment names the incarnation it was decided for; so it does for a worker nobody knows."""
        bench.store.register(worker("b"))
        assert bench.assign(incarnation="a") == "refused"
        assert bench.assign(name="worker-9") == "refused"
        assert (bench.log(), bench.inbox("b")) == ((), [])

    def test_a_running_lease_is_respected(self, bench: Bench) -> None:
        """Without force an attempt is taken back only once its lease has run out."""
        bench.run_until("running")
        assert bench.revoke() == "refused"
        assert bench.types() == ["TaskAssigned", "TaskStarted"]
        assert bench.step("renew", lease_s=SHORT_S) == "done"
        bench.pass_a_moment()
        assert bench.revoke() == "done"

    def test_force_ends_a_running_lease(self, bench: Bench) -> None:
        """A user who stops a run need not wait."""
        bench.run_until("running")
        assert bench.revoke(force=True) == "done"
        event = bench.log()[-1]
        assert isinstance(event, TaskRevoked)
        assert (event.task, event.attempt, event.reason) == (TASK, 1, "idle")

    @pytest.mark.parametrize("state", ["assigned", "revoke"])
    def test_a_cancellation_reaches_the_inbox_once(self, bench: Bench, state: str) -> None:
        """The worker hears of it, however often the step is sent."""
        bench.run_until(state)
        assert bench.revoke() == ("done" if state == "assigned" else "already")
        assert bench.revoke() == "already"
        assert bench.inbox() == [(TASK, 1, False), (TASK, 1, True)]

    @pytest.mark.parametrize("state", ["commit", "fail"])
    def test_what_has_ended_is_not_taken_back(self, bench: Bench, state: str) -> None:
        """A revocation that comes too late is refused, forced or not."""
        bench.run_until(state)
        assert bench.revoke() == "refused"
        assert bench.revoke(force=True) == "refused"

    def test_only_the_named_attempt_is_taken_back(self, bench: Bench) -> None:
        """A revocation of the attempt before leaves the present one alone."""
        bench.run_until("fail")
        assert bench.assign(2) == "done"
        assert bench.revoke(1) == "refused"
        assert bench.inbox() == [(TASK, 1, False), (TASK, 2, False)]

    def test_steps_are_taken_in_order_and_each_by_itself(self, bench: Bench) -> None:
        """A refused step neither hides the others' outcomes nor undoes them."""
        bench.store.register(worker("a"))
        outcomes = bench.decide(
            api.Assign(task=TASK, attempt=1, worker="worker-0", incarnation="a", body=body()),
            api.Assign(task=OTHER, attempt=2, worker="worker-0", incarnation="a", body=body(OTHER)),
            api.Revoke(task=TASK, attempt=1, worker="worker-0", reason="idle"),
            api.Assign(task=OTHER, attempt=1, worker="worker-0", incarnation="a", body=body(OTHER)),
        )
        assert outcomes == ["done", "refused", "done", "done"]
        assert bench.types() == ["TaskAssigned", "TaskRevoked", "TaskAssigned"]
        assert bench.inbox() == [(TASK, 1, False), (TASK, 1, True), (OTHER, 1, False)]

    def test_a_decision_answers_with_the_log_after_the_cursor(self, bench: Bench) -> None:
        """The controller sees what it just wrote, and what came before it."""
        bench.store.append("one", requested("etl-1"))
        request = api.DecideRequest(term=bench.term, after=0, steps=(note(JOINED),))
        answer = bench.store.decide("one", request)
        assert answer.events == bench.log()
        assert [event.type for event in answer.events] == ["RunRequested", "WorkerJoined"]

    # --- leadership ------------------------------------------------------------------------------

    def test_one_controller_leads(self, bench: Bench) -> None:
        """While its lease runs, the holder keeps its term and everybody else is told who leads."""
        assert bench.store.lead("controller-1", LONG_S) == api.LeaderAnswer(term=0, holder="controller-0")
        assert bench.store.lead("controller-0", LONG_S).term == bench.term

    def test_a_successor_fences_the_leader_before_it(self, bench: Bench) -> None:
        """Once a lease ran out another may lead; steps of the old term are then refused and change nothing."""
        bench.store.lead("controller-0", SHORT_S)
        bench.pass_a_moment()
        assert bench.store.lead("controller-1", LONG_S).term == bench.term + 1
        with pytest.raises(ConflictError, match="term"):
            bench.decide(note(JOINED))
        assert bench.log() == ()
        assert bench.decide(note(JOINED), term=bench.term + 1) == ["done"]

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

    @pytest.mark.parametrize("op", ["start", "renew", "commit", "fail"])
    def test_another_attempt_is_refused(self, bench: Bench, op: str) -> None:
        """Neither the attempt before nor the one to come may speak for the present one."""
        bench.run_until("fail")
        assert bench.assign(2) == "done"
        assert bench.step("start", 2) == "done"
        before = bench.log()
        for attempt in (1, 3):
            assert bench.step(op, attempt) == "refused"
        assert bench.log() == before

    def test_a_task_nobody_assigned_is_refused(self, bench: Bench) -> None:
        """A worker cannot give itself work."""
        bench.store.register(worker("a"))
        for op in ("start", "renew", "commit", "fail"):
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

    def test_a_worker_nobody_knows_is_not_current(self, bench: Bench) -> None:
        """It must register; it has no inbox."""
        assert bench.report(name="worker-9") == api.ReportAnswer(current=False)
        assert bench.inbox(name="worker-9") == []

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

    def test_a_report_may_tell_of_new_holdings(self, bench: Bench) -> None:
        """They replace what was registered; of a fenced process, or one nobody knows, they do not count."""
        bench.store.register(worker("a"))
        made = (Holding(dataset="d", partition=3),)
        request = api.ReportRequest(incarnation="a", lease_s=1, holdings=made)
        assert bench.store.report("worker-0", request).current
        assert bench.store.workers()[0].record == worker("a").model_copy(update={"holdings": made})
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

    def test_points_that_come_with_the_commit_still_count(self, bench: Bench) -> None:
        """A report's points belong before its steps."""
        bench.run_until("running")
        answer = bench.report(worker_step("commit", 1), live=[live_point()])
        assert [outcome.outcome for outcome in answer.outcomes] == ["done"]
        assert len(bench.store.live("one")) == 1

    def test_a_report_sent_twice_leaves_its_points_once(self, bench: Bench) -> None:
        """A worker that got no answer sends the same again, perhaps after a later report of another thread."""
        bench.run_until("running")
        for rows in (1, 2, 1, 2):
            bench.report(live=[live_point(rows=rows)])
        assert [point.rows for point in bench.store.live("one")] == [1, 2]
