"""Store contract: the controller's steps are compare-and-set, and only the leader's take effect.

Part of `tests.kvs_api.contract.StoreContract`.
"""

from __future__ import annotations

import pytest

from cerebro.contract.events import PreemptionRequested, TaskAssigned, TaskCommitted, TaskRevoked
from cerebro.contract.rest import api
from cerebro.contract.search import OwnProcedure, SearchRequest
from cerebro.contract.search_tasks import ActionsRequest, SearchAnswer, SuggestAction
from cerebro.contract.tasks.bodies import SearchTask
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import ConflictError
from cerebro.search.wire_format import packed
from tests.kvs_api.bench import LONG_S, OTHER, PAUSED, SHORT_S, TASK, Bench, body, note, requested, worker


class DecisionContract:
    """Tests with a new `bench` each."""

    # --- the controller's steps ------------------------------------------------------------------

    def test_an_assignment_is_in_the_log_and_in_the_inbox(self, bench: Bench) -> None:
        """Either both are written or neither."""
        bench.run_until("assigned")
        event = bench.log()[-1]
        assert isinstance(event, TaskAssigned)
        assert (event.task, event.attempt, event.worker) == (TASK, 1, "worker-0")
        (item,) = bench.store.inbox("worker-0", "a", 0, wait_s=0)
        assert (item.experiment, item.task, item.attempt, item.cancel) == ("one", TASK, 1, False)
        assert item.body == body()

    def test_a_request_of_a_search_is_in_the_inbox_and_its_answer_in_the_log(self, bench: Bench) -> None:
        """The request needs no device, so it runs next to a task that has one."""
        bench.run_until("running")
        question = ActionsRequest(
            search=SearchRequest(procedure=OwnProcedure(code="1" * 64, name="Mine")),
            epochs=9,
            metric="loss",
            mode="min",
            seed=7,
            workers=1,
            largest_batch=8,
            log=packed([], []),
        )
        key = "fit-1/search/actions-0"
        given = SearchTask(
            key=key, experiment="one", run="fit-1", dataset="d", hang_timeout_s=9.0, request=question
        )
        assert bench.assign(task=key, devices=(), given=given) == "done"
        assert bench.store.inbox("worker-0", "a", 0, wait_s=0)[-1].body == given
        assert bench.step("start", task=key) == "done"
        answer = SearchAnswer(actions=((SuggestAction(count=3),), ()))
        commit = api.Commit(experiment="one", task=key, attempt=1, result=TaskResult(answer=answer))
        assert bench.report(commit).outcomes[0].outcome == "done"
        committed = bench.log()[-1]
        assert isinstance(committed, TaskCommitted)
        assert committed.result.answer == answer

    def test_an_assignment_that_is_sent_twice_counts_once(self, bench: Bench) -> None:
        """The second one answers "already" and posts nothing."""
        bench.run_until("assigned")
        assert bench.assign() == "already"
        assert bench.inbox() == [(TASK, 1, False)]
        assert bench.types() == ["TaskAssigned"]

    @pytest.mark.parametrize("attempt", [2, 3])
    def test_the_first_attempt_is_attempt_one(self, bench: Bench, attempt: int) -> None:
        """Attempt numbers have no gaps."""
        bench.store.register(worker("a"))
        assert bench.assign(attempt) == "refused"
        assert (bench.log(), bench.inbox()) == ((), [])

    @pytest.mark.parametrize("state", ["commit", "fail", "revoke"])
    def test_a_task_is_reassigned_only_with_the_next_attempt_number(self, bench: Bench, state: str) -> None:
        """The ended attempt's number and a number with a gap are refused."""
        bench.run_until(state)
        assert bench.assign(1) == "refused"
        assert bench.assign(3) == "refused"
        assert bench.assign(2) == "done"
        assert bench.inbox()[-1] == (TASK, 2, False)

    @pytest.mark.parametrize("state", ["assigned", "running"])
    def test_an_open_attempt_excludes_a_second_attempt(self, bench: Bench, state: str) -> None:
        bench.run_until(state)
        assert bench.assign(2) == "refused"
        assert bench.inbox() == [(TASK, 1, False)]

    def test_a_restarted_worker_gets_no_task_of_its_predecessor(self, bench: Bench) -> None:
        """An assignment names the worker's incarnation; unknown workers get nothing either."""
        bench.store.register(worker("b"))
        assert bench.assign(incarnation="a") == "refused"
        assert bench.assign(name="worker-9") == "refused"
        assert (bench.log(), bench.inbox("b")) == ((), [])

    def test_a_running_lease_is_respected(self, bench: Bench) -> None:
        """Without `force` only an expired lease can be revoked."""
        bench.run_until("running")
        assert bench.revoke() == "refused"
        assert bench.types() == ["TaskAssigned", "TaskStarted"]
        assert bench.step("renew", lease_s=SHORT_S) == "done"
        bench.pass_a_moment()
        assert bench.revoke() == "done"

    def test_force_ends_a_running_lease(self, bench: Bench) -> None:
        """A user can stop a run at once."""
        bench.run_until("running")
        assert bench.revoke(force=True) == "done"
        event = bench.log()[-1]
        assert isinstance(event, TaskRevoked)
        assert (event.task, event.attempt, event.reason) == (TASK, 1, "idle")

    @pytest.mark.parametrize("state", ["assigned", "revoke"])
    def test_a_cancellation_reaches_the_inbox_once(self, bench: Bench, state: str) -> None:
        """Repeated steps post nothing new."""
        bench.run_until(state)
        assert bench.revoke() == ("done" if state == "assigned" else "already")
        assert bench.revoke() == "already"
        assert bench.inbox() == [(TASK, 1, False), (TASK, 1, True)]

    @pytest.mark.parametrize("state", ["commit", "fail"])
    def test_an_ended_attempt_is_not_revoked(self, bench: Bench, state: str) -> None:
        """A late revocation is refused, with or without `force`."""
        bench.run_until(state)
        assert bench.revoke() == "refused"
        assert bench.revoke(force=True) == "refused"

    def test_only_the_named_attempt_is_revoked(self, bench: Bench) -> None:
        bench.run_until("fail")
        assert bench.assign(2) == "done"
        assert bench.revoke(1) == "refused"
        assert bench.inbox() == [(TASK, 1, False), (TASK, 2, False)]

    def test_steps_are_applied_in_order_and_independently(self, bench: Bench) -> None:
        """A refused step affects no other step."""
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

    def test_a_decision_without_the_newest_event_is_refused(self, bench: Bench) -> None:
        """A client's command or another decision may have been written in between."""
        bench.store.register(worker("a"))
        bench.store.append("one", requested("etl-1"))
        assign = api.Assign(task=TASK, attempt=1, worker="worker-0", incarnation="a", body=body())
        assert bench.decide(assign, note(PAUSED), after=0) == ["refused", "refused"]
        assert bench.decide(assign, note(PAUSED), after=1) == ["done", "done"]
        other = assign.model_copy(update={"task": OTHER})
        assert bench.decide(other, after=1) == ["refused"], "it was made without the first one"
        assert bench.decide(assign, note(PAUSED), after=1) == ["already", "already"], "a repetition is known"

    def test_reports_of_workers_invalidate_no_decision(self, bench: Bench) -> None:
        """Reports are too frequent; the store compares each task separately."""
        bench.run_until("running")
        other = api.Assign(task=OTHER, attempt=1, worker="worker-0", incarnation="a", body=body(OTHER))
        assert bench.decide(other, after=1) == ["done"]

    @pytest.mark.parametrize("end", ["", "commit", "fail", "revoke"])
    def test_a_model_has_one_open_sub_epoch(self, bench: Bench, end: str) -> None:
        """Other models and runs are not affected."""
        bench.store.register(worker("a", devices=8))
        sub_epoch = "fit-1/train/m0/e1/p0"
        assert bench.assign(task=sub_epoch, devices=(0,)) == "done"
        assert bench.step("start", task=sub_epoch) == "done"
        assert bench.assign(task="fit-1/train/m1/e1/p0", devices=(1,)) == "done"
        assert bench.assign(task="fit-2/train/m0/e1/p0", devices=(2,)) == "done"
        assert bench.assign(task="fit-1/train/m0/e1/p1", devices=(3,)) == "refused"
        if end in ("commit", "fail"):
            assert bench.step(end, task=sub_epoch) == "done"
        elif end:
            assert bench.revoke(task=sub_epoch, force=True) == "done"
        outcome = bench.assign(task="fit-1/train/m0/e1/p1", devices=(4,))
        assert outcome == ("done" if end else "refused")

    # --- leadership ------------------------------------------------------------------------------

    def test_a_term_belongs_to_a_process(self, bench: Bench) -> None:
        """A second process of the same name gets a new term, and the first one stops."""
        first = bench.store.lead("twin", LONG_S).term
        assert first == 0, "controller-0 leads"
        assert bench.store.lead("controller-0", LONG_S, process="other").term == 0
        second = bench.store.lead("controller-0", LONG_S, process="other", is_start=True).term
        assert second == bench.term + 1, "it takes over from a process that it replaces"
        assert bench.store.lead("controller-0", LONG_S).term == 0, "that one waits, if it is still there"
        assert bench.store.lead("controller-0", LONG_S, process="other").term == second
        with pytest.raises(ConflictError):
            bench.decide(note(PAUSED))

    def test_one_controller_leads(self, bench: Bench) -> None:
        """While its lease runs, other controllers get its name."""
        assert bench.store.lead("controller-1", LONG_S) == api.LeaderAnswer(term=0, holder="controller-0")
        assert bench.store.lead("controller-0", LONG_S).term == bench.term

    def test_a_successor_fences_the_leader_before_it(self, bench: Bench) -> None:
        """Steps of the old term are refused after a successor's election."""
        bench.store.lead("controller-0", SHORT_S)
        bench.pass_a_moment()
        assert bench.store.lead("controller-1", LONG_S).term == bench.term + 1
        with pytest.raises(ConflictError, match="term"):
            bench.decide(note(PAUSED))
        assert bench.log() == ()
        assert bench.decide(note(PAUSED), term=bench.term + 1) == ["done"]

    def test_the_leader_publishes_the_runs_in_progress(self, bench: Bench) -> None:
        """The queue includes it, and omitted fields stay.

        A new leader's first value is ignored, because its predecessor may have started more.
        """
        first = api.Attended(runs=(api.AttendedRun(experiment="one", run="fit-1", devices=2),), devices=4)
        bench.store.lead("controller-0", LONG_S, open_runs=3, attended=first)
        bench.store.lead("controller-0", SHORT_S, open_runs=3)
        assert (bench.store.queued().open_runs, bench.store.queued().attended) == (3, first)
        bench.pass_a_moment()
        bench.store.lead("controller-1", LONG_S, open_runs=3, attended=api.Attended())
        assert bench.store.queued().attended == first
        bench.store.lead("controller-1", LONG_S, open_runs=3, attended=api.Attended(devices=1))
        assert bench.store.queued().attended == api.Attended(devices=1)

    def test_preemption_of_a_running_attempt_is_requested_once(self, bench: Bench) -> None:
        """Inbox and log change together; the attempt continues until the worker releases or commits it."""
        bench.run_until("running")
        assert [bench.ask(), bench.ask()] == ["done", "already"]
        event = bench.log()[-1]
        assert isinstance(event, PreemptionRequested)
        assert (event.task, event.attempt, event.worker) == (TASK, 1, "worker-0")
        assert event.reason == "its model was stopped"
        _, item = bench.store.inbox("worker-0", "a", 0, wait_s=0)
        assert (item.task, item.attempt, item.cancel, item.preempt) == (TASK, 1, False, event.reason)
        assert bench.step("commit") == "done"

    @pytest.mark.parametrize("state", ["assigned", "commit", "fail", "revoke"])
    def test_an_attempt_that_does_not_run_cannot_be_preempted(self, bench: Bench, state: str) -> None:
        """Waiting attempts are revoked instead."""
        bench.run_until(state)
        before = bench.log(), bench.inbox()
        assert bench.ask() == "refused"
        assert (bench.log(), bench.inbox()) == before
