"""The log keeper: when it compacts logs, to what position, and its handling of errors."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cerebro.contract.events import RunFinished, RunStarted
from cerebro.contract.records import ExperimentRecord, ExperimentSummary
from cerebro.contract.runs import EtlPlan, PartitionPlan
from cerebro.contract.stored.segments import SegmentAnswer, SegmentRequest, SegmentsAnswer
from cerebro.errors import ConflictError, NotFoundError, StoreUnavailableError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state import ExperimentState
from cerebro.state.snapshots import restored, restored_cluster
from controller.loop.log_keeper import LogKeeper, Progress, Rule
from controller.loop.snapshot_process import SnapshotQuestion, make_snapshot
from tests.kvs_api.bench import JOINED, LOCATORS, Bench, note, requested, worker
from tests.kvs_api.cluster_log_contract import write_events
from tests.kvs_api.real import TOKEN, Service
from tests.kvs_api.test_contract import pass_a_moment

RULE = Rule(every=100, resting=10, keep=20, segment=40)
QUESTION = SnapshotQuestion(server="", token="", experiment="", until=0, least=0, term=0)


@dataclass
class Logs:
    """A store of logs that tracks only their lengths."""

    rests: dict[str, int] = field(default_factory=dict)
    cuts: list[tuple[str, SegmentRequest]] = field(default_factory=list)
    made: list[tuple[str, int]] = field(default_factory=list)
    problem: Exception | None = None

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        return tuple(
            ExperimentSummary(
                experiment=ExperimentRecord(name=name, locators=LOCATORS),
                last_seq=seq,
                last_event=1.0,
                open_runs=(),
            )
            for name, seq in self.rests.items()
        )

    def segments(self, experiment: str) -> SegmentsAnswer:
        return SegmentsAnswer()

    def cut(self, experiment: str, request: SegmentRequest) -> SegmentAnswer:
        self.cuts.append((experiment, request))
        return SegmentAnswer()

    def make(self, question: SnapshotQuestion) -> int:
        if self.problem is not None:
            raise self.problem
        self.made.append((question.experiment, question.until))
        return question.until

    def keeper(self, *, term: int = 3, settled: bool = True) -> LogKeeper:
        keeper = LogKeeper(
            kvs=self,
            make=self.make,
            leadership=lambda: term,
            is_settled=lambda name, seq: settled,
            show=lambda name: None,
            question=QUESTION,
            rule=RULE,
        )
        keeper.reconcile(0.0)
        return keeper


def test_a_growing_log_is_compacted_at_intervals() -> None:
    """The log is truncated up to the snapshot."""
    logs = Logs()
    keeper = logs.keeper()
    for number, seq in enumerate((90, 120, 180, 230)):
        keeper.report("one", Progress(seq=seq, grows=True))
        keeper.reconcile(100.0 + number)
    assert logs.made == [("one", 120), ("one", 230)]
    assert [(request.until, request.keep, request.least) for _, request in logs.cuts] == [
        (120, 20, 40),
        (120, 20, 40),
        (230, 20, 40),
    ]
    keeper.reconcile(200.0)
    assert len(logs.cuts) == 3


def test_events_missing_in_tensorboard_files_are_not_compacted() -> None:
    """A new controller would never show events before the snapshot."""
    logs = Logs()
    keeper = logs.keeper(settled=False)
    keeper.report("one", Progress(seq=500, grows=True))
    keeper.reconcile(100.0)
    assert (logs.made, logs.cuts) == ([], [])


def test_live_points_are_removed_only_after_a_settled_snapshot() -> None:
    """Later points may be missing from TensorBoard's files."""
    logs, settled = Logs(), [True]
    keeper = logs.keeper()
    keeper.is_settled = lambda name, seq: settled[0]
    keeper.report("one", Progress(seq=120, grows=True, live_before=7.0))
    keeper.reconcile(100.0)
    settled[0] = False
    keeper.report("one", Progress(seq=500, grows=False, live_before=999.0))
    keeper.reconcile(101.0)
    assert [(request.until, request.live_before) for _, request in logs.cuts] == [(120, 7.0), (120, 7.0)]


def test_a_log_that_grew_under_another_controller_is_projected_first() -> None:
    """Without that, it would never be settled here."""
    logs, shown = Logs(rests={"long": 35}), list[str]()
    keeper = logs.keeper()
    keeper.is_settled, keeper.show = lambda name, seq: bool(shown), shown.append
    keeper.reconcile(100.0)
    assert shown == ["long"]
    assert logs.made == [("long", 35)]


@pytest.mark.parametrize("problem", [ConflictError("full"), StoreUnavailableError("away")])
def test_a_failed_compaction_is_retried_later(problem: Exception) -> None:
    """Other logs are compacted in the meantime."""
    logs = Logs(problem=problem)
    keeper = logs.keeper()
    keeper.report("one", Progress(seq=500, grows=True))
    keeper.reconcile(100.0)
    logs.problem = None
    keeper.report("two", Progress(seq=500, grows=True))
    keeper.reconcile(101.0)
    assert logs.made == [("two", 500)]
    keeper.reconcile(200.0)
    assert logs.made == [("two", 500), ("one", 500)]


def test_a_deleted_experiment_is_not_compacted_again() -> None:
    """The keeper never requests it again."""
    logs = Logs(problem=NotFoundError("gone"))
    keeper = logs.keeper()
    keeper.report("one", Progress(seq=500, grows=True))
    keeper.reconcile(100.0)
    logs.problem = None
    keeper.reconcile(200.0)
    assert logs.made == []


@pytest.mark.slow
def test_a_process_compacts_a_real_log_that_can_be_restored(kvs: KvsClient, service: Service) -> None:
    """The snapshot plus the rest equals the complete fold, for experiment and cluster. A second pass does nothing."""
    bench = Bench(store=kvs, pass_a_moment=pass_a_moment)
    for number in range(8):
        write_events(bench, JOINED.model_copy(update={"worker": f"worker-{number}"}))
    kvs.register(worker("a"))
    kvs.append("one", requested("etl-1"))
    parts = tuple(PartitionPlan(partition=number, worker="worker-0", rows=7) for number in range(12))
    bench.decide(note(RunStarted(run="etl-1", plan=EtlPlan(dataset="d", splits={"train": parts}))))
    for number in range(12):
        task = f"etl-1/etl/train/p{number}"
        assert (bench.assign(task=task), bench.step("start", task=task), bench.step("commit", task=task)) == (
            "done",
            "done",
            "done",
        )
    bench.decide(note(RunFinished(run="etl-1", outcome="finished")))
    keeper = LogKeeper(
        kvs=kvs,
        make=make_snapshot,
        leadership=lambda: bench.term,
        is_settled=lambda name, seq: True,
        show=lambda name: None,
        question=QUESTION.model_copy(update={"server": service.address, "token": TOKEN}),
        rule=Rule(every=8, resting=8, keep=1, segment=4),
    )
    whole, cluster = folded(kvs), kvs.cluster_log()
    keeper.reconcile(0.0)
    keeper.report("", Progress(seq=len(cluster), grows=True))
    for now in (100.0, 101.0):
        keeper.reconcile(now)
    kept = kvs.segments("one")
    assert [snapshot.seq for snapshot in kept.snapshots] == [whole.seq]
    assert kept.segments[-1].last == whole.seq - 1
    begun = restored(kvs, "one")
    assert begun == whole == folded(kvs)
    assert restored_cluster(kvs).seq == len(cluster)
    assert kvs.segments("").segments[-1].last == len(cluster) - 1
    kvs.append("one", requested("etl-2"))
    (event,) = kvs.events("one", begun.seq)
    begun.apply(event)
    assert begun == folded(kvs)


def folded(kvs: KvsClient) -> ExperimentState:
    """Return the fold of a whole log."""
    state = ExperimentState(name="one")
    while events := kvs.events("one", state.seq):
        for event in events:
            state.apply(event)
    return state
