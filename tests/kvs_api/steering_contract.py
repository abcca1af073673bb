"""Store contract: reopened runs, archives, deletion, reclaimed data sets, usage.

Part of `tests.kvs_api.contract.StoreContract`.
"""

from __future__ import annotations

import pytest

from cerebro.contract.events import (
    ClientEvent,
    DeletionRequested,
    ExperimentArchived,
    LocatorsChanged,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    RunResumed,
    RunStopRequested,
    SchedulerChanged,
    TagsChanged,
)
from cerebro.contract.records import ExperimentRecord, Locator, Locators, Reclaim, WorkerUsage
from cerebro.contract.rest import api
from cerebro.errors import ConflictError, NotFoundError
from tests.kvs_api.bench import FINISHED, LOCATORS, TASK, Bench, live_point, note, requested, started, worker

REOPENING: list[ClientEvent] = [
    RunResumed(run="etl-1", by="ann"),
    ModelResumed(run="etl-1", model="m00", by="ann"),
    ModelRetried(run="etl-1", model="m00", by="ann"),
]


def ended(bench: Bench) -> Bench:
    """Add a run that has ended."""
    bench.store.append("one", requested("etl-1"))
    assert bench.decide(note(started()), note(FINISHED), after=1) == ["done", "done"]
    return bench


def relocated(bench: Bench) -> LocatorsChanged:
    """Return other locators from a client that has read the whole log."""
    locators = Locators(train=Locator(metadata="elsewhere.csv"))
    return LocatorsChanged(locators=locators, after=len(bench.log()), by="ann")


def deleted(bench: Bench) -> None:
    """Request the deletion and execute it as the leader."""
    bench.store.append("one", DeletionRequested(by="ann"))
    bench.store.delete_experiment("one", bench.term)


class SteeringContract:
    """Tests with a new `bench` each."""

    # --- commands --------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "event",
        [
            *REOPENING,
            RunStopRequested(run="etl-1", by="ann"),
            ModelStopRequested(run="etl-1", model="m00", by="ann"),
            SchedulerChanged(run="etl-1", scheduler="fifo", by="ann"),
        ],
    )
    def test_a_command_is_in_the_log_with_its_author(self, bench: Bench, event: ClientEvent) -> None:
        """A command for an unknown run is refused."""
        with pytest.raises(NotFoundError, match="'etl-1'"):
            bench.store.append("one", event)
        bench.store.append("one", requested("etl-1"))
        assert bench.store.append("one", event) == 2
        assert bench.log()[1].model_copy(update={"seq": 0, "time": 0.0}) == event

    @pytest.mark.parametrize("event", REOPENING)
    def test_a_run_that_ended_is_queued_again_once(self, bench: Bench, event: ClientEvent) -> None:
        """Repeated commands change nothing; the run is last in the queue."""
        ended(bench).store.append("one", requested("etl-2"))
        for _ in range(2):
            bench.store.append("one", event)
        assert [entry.run for entry in bench.store.queue()] == ["etl-2", "etl-1"]

    def test_a_resumed_open_run_keeps_its_queue_position(self, bench: Bench) -> None:
        """A resumed run stays ahead of later ones."""
        for run in ("etl-1", "etl-2"):
            bench.store.append("one", requested(run))
        bench.store.append("one", RunResumed(run="etl-1"))
        assert [entry.run for entry in bench.store.queue()] == ["etl-1", "etl-2"]

    def test_a_run_does_not_end_before_new_commands_are_read(self, bench: Bench) -> None:
        """The controller must read a user's resume before it ends the run."""
        bench.store.append("one", requested("etl-1"))
        assert bench.decide(note(FINISHED), after=0) == ["refused"]
        assert [entry.run for entry in bench.store.queue()] == ["etl-1"]
        assert bench.decide(note(FINISHED), after=1) == ["done"]
        # The response was lost, and a command arrived before the controller's retry.
        bench.store.append("one", RunResumed(run="etl-1"))
        assert bench.decide(note(FINISHED), after=1) == ["already"]
        assert [entry.run for entry in bench.store.queue()] == ["etl-1"]

    def test_a_run_that_is_not_open_is_dequeued(self, bench: Bench) -> None:
        """The controller must have read the whole log, because a later event may have reopened the run."""
        ended(bench).store.append("one", ModelResumed(run="etl-1", model="nobody"))
        count = len(bench.log())
        assert bench.decide(api.Dequeue(run="etl-1"), after=count - 1) == ["refused"]
        assert bench.decide(api.Dequeue(run="etl-1"), after=count) == ["done"]
        assert bench.decide(api.Dequeue(run="etl-1"), after=count) == ["already"]
        assert bench.store.queue() == ()
        assert len(bench.log()) == count

    def test_archiving_can_be_undone(self, bench: Bench) -> None:
        """The list of experiments shows it."""
        for is_archived in (True, False):
            bench.store.append("one", ExperimentArchived(is_archived=is_archived, by="ann"))
            assert [summary.is_archived for summary in bench.store.experiments()] == [is_archived]

    def test_tags_are_in_the_log(self, bench: Bench) -> None:
        """Of an experiment, or of a model of a known run."""
        ended(bench)
        event = TagsChanged(tags={"stage": "final", "old": None}, by="ann")
        of_model = TagsChanged(tags={"note": "good"}, run="etl-1", model="m00", by="ann")
        for each in (event, of_model):
            seq = bench.store.append("one", each)
            (stored,) = bench.store.events("one", after=seq - 1)
            assert stored.model_copy(update={"seq": 0, "time": 0.0}) == each
        with pytest.raises(NotFoundError):
            bench.store.append("one", of_model.model_copy(update={"run": "fit-9"}))

    # --- locators --------------------------------------------------------------------------------

    def test_new_locators_replace_the_old_locators(self, bench: Bench) -> None:
        """The record changes, and the log has the event."""
        before = ended(bench).store.experiment("one")
        moved = relocated(bench)
        bench.store.append("one", moved)
        assert bench.types()[-1] == "LocatorsChanged"
        after = bench.store.experiment("one")
        assert after == before.model_copy(update={"locators": moved.locators})
        assert bench.store.create_experiment(after) == after
        with pytest.raises(ConflictError, match="'one'"):
            bench.store.create_experiment(before)

    def test_new_locators_are_refused_if_a_run_is_open_or_newer(self, bench: Bench) -> None:
        """A run that is open or was requested later keeps its locators."""
        early = relocated(bench)
        before = bench.store.experiment("one")
        bench.store.append("one", requested("etl-1"))
        for event in (early, relocated(bench)):
            with pytest.raises(ConflictError, match="'one'"):
                bench.store.append("one", event)
        assert bench.store.experiment("one") == before
        assert bench.types() == ["RunRequested"]

    # --- deletion --------------------------------------------------------------------------------

    def test_an_experiment_with_open_runs_is_not_deleted(self, bench: Bench) -> None:
        """This covers queued and running runs; other experiments do not matter."""
        bench.store.append("one", requested("etl-1"))
        with pytest.raises(ConflictError, match="'one'"):
            bench.store.append("one", DeletionRequested(by="ann"))
        assert bench.types() == ["RunRequested"]
        bench.store.create_experiment(ExperimentRecord(name="one-b", locators=LOCATORS))
        assert bench.store.append("one-b", DeletionRequested(by="ann")) == 1

    def test_an_experiment_in_deletion_accepts_no_request(self, bench: Bench) -> None:
        """Runs are not reopened, the name stays reserved, and a second command changes nothing."""
        seq = ended(bench).store.append("one", DeletionRequested(by="ann"))
        for event in (requested("etl-2"), relocated(bench), *REOPENING):
            with pytest.raises(ConflictError, match="being deleted"):
                bench.store.append("one", event)
        with pytest.raises(ConflictError, match="being deleted"):
            bench.store.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
        assert bench.store.append("one", DeletionRequested(by="bob")) == seq
        assert bench.store.append("one", requested("etl-1")) == 1  # a repeated request, accepted earlier
        assert bench.store.queue() == ()
        assert bench.store.deleting() == ("one",)
        assert [summary.is_deleting for summary in bench.store.experiments()] == [True]

    def test_a_deleted_experiment_is_forgotten(self, bench: Bench) -> None:
        """Only an audit entry remains; late reports change nothing."""
        bench.run_until("running")
        bench.report(live=[live_point()])
        deleted(bench)
        for call in (bench.log, lambda: bench.store.live("one"), lambda: bench.store.experiment("one")):
            with pytest.raises(NotFoundError, match="'one'"):
                call()
        assert bench.store.experiments() == ()
        assert bench.store.deleting() == ()
        assert [(entry.by, entry.what) for entry in bench.store.audit()] == [
            ("ann", "deleted experiment one")
        ]
        assert bench.step("commit") == "refused"
        assert bench.report(live=[live_point()]).current
        with pytest.raises(NotFoundError, match="'one'"):
            bench.store.delete_experiment("one", bench.term)
        assert len(bench.store.audit()) == 1

    def test_the_name_of_a_deleted_experiment_is_free(self, bench: Bench) -> None:
        """A new experiment of the name starts empty, without the old tasks."""
        bench.run_until("running")
        deleted(bench)
        moved = ExperimentRecord(name="one", locators=LOCATORS, archive="2" * 64)
        assert bench.store.create_experiment(moved).archive == "2" * 64
        assert bench.log() == ()
        assert bench.store.live("one") == ()
        assert bench.store.append("one", requested("etl-1", seed=7)) == 1
        assert bench.assign(1) == "done"
        assert bench.inbox()[-1] == (TASK, 1, False)

    def test_only_the_leader_deletes_and_only_after_a_command(self, bench: Bench) -> None:
        with pytest.raises(ConflictError, match="nobody asked to delete"):
            bench.store.delete_experiment("one", bench.term)
        bench.store.append("one", DeletionRequested(by="ann"))
        with pytest.raises(ConflictError, match="term"):
            bench.store.delete_experiment("one", bench.term + 1)
        assert bench.store.experiment("one").name == "one"
        assert bench.store.audit() == ()

    def test_unused_data_sets_are_reclaimed(self, bench: Bench) -> None:
        """Data sets in another experiment's runs stay; workers are notified of the new list."""
        bench.store.create_experiment(ExperimentRecord(name="two", locators=LOCATORS))
        bench.store.register(worker("a"))
        assert (bench.store.reclaim(), bench.report().reclaim) == (Reclaim(), 0)
        ended(bench)
        other = Bench(store=bench.store, pass_a_moment=bench.pass_a_moment, experiment="two")
        other.decide(note(started(dataset="shared")))
        bench.store.append("one", requested("etl-2"))
        bench.decide(note(started("etl-2", dataset="shared")))
        bench.decide(note(FINISHED.model_copy(update={"run": "etl-2"})))
        deleted(bench)
        reclaim = bench.store.reclaim()
        assert reclaim.datasets == ("d",)
        assert bench.report().reclaim == reclaim.seq > 0

    def test_a_data_set_that_is_used_again_is_not_reclaimed(self, bench: Bench) -> None:
        """A run that starts on it protects it."""
        deleted(ended(bench))
        before = bench.store.reclaim()
        fresh = Bench(store=bench.store, pass_a_moment=bench.pass_a_moment)
        fresh.decide(note(started()))
        after = fresh.store.reclaim()
        assert (before.datasets, after.datasets) == (("d",), ())
        assert after.seq > before.seq

    # --- usage -----------------------------------------------------------------------------------

    def test_usage_has_the_newest_sample_and_a_history(self, bench: Bench) -> None:
        """The history keeps a sample per half minute; a restarted worker continues it, and a removal deletes it."""
        with pytest.raises(NotFoundError, match="'worker-0'"):
            bench.store.usage("worker-0")
        bench.store.register(worker("a"))
        assert bench.store.workers()[0].usage is None
        for cores_used in (0.5, 1.5):
            usage = WorkerUsage(cores=2, cores_used=cores_used)
            bench.store.report("worker-0", api.ReportRequest(incarnation="a", lease_s=1, usage=usage))
        bench.store.register(worker("b"))
        bench.report(incarnation="b")
        assert bench.store.workers()[0].usage == WorkerUsage(cores=2, cores_used=1.5)
        assert [sample.usage.cores_used for sample in bench.store.usage("worker-0")] == [0.5]
        bench.store.remove_worker("worker-0")
        bench.store.register(worker("c"))
        assert bench.store.usage("worker-0") == ()
