"""Verification: drawn sub-epochs, required checkpoints, and results of re-executions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import (
    RunFinished,
    RunResumed,
    RunStopRequested,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.records import COMPUTES
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult, VerificationOutcome
from cerebro.contract.trials import DeviceKind
from cerebro.errors import IllegalEventError
from cerebro.state import ModelState, TaskKey, TaskState, epoch_report
from cerebro.state.tasks.verification_texts import lines, result_text
from cerebro.state.tasks.verifications import (
    Reexecution,
    Verification,
    VerificationState,
    is_exact,
    is_selected,
    judged,
)
from cerebro.state.workers import Worker
from tests.state.completed_sub_epochs import COMPLETED
from tests.state.stories import DATASET, Story, sub_epoch


def checkpoint(name: str) -> CheckpointRef:
    return CheckpointRef(name=name, checksum="-", size=1)


class Verified(Story):
    """A fit that verifies each sub-epoch, on workers that hold all partitions.

    Digests identify states.
    """

    def __init__(self, *, workers: int = 3, partitions: int = 2) -> None:
        super().__init__(workers=workers)
        self.fit(epochs=2, partitions=partitions, hyperparams={"m00": {"batch_size": 8}})
        self.run.request = self.run.fit_request.model_copy(update={"verify": 1.0})
        for worker in self.state.workers.values():
            worker.kinds |= {"verify", f"{COMPUTES}here"}
            worker.device = DeviceKind(kind="cpu", name="1 core")
            worker.replicas |= {(DATASET, partition) for partition in range(partitions)}

    def trains(self, key: TaskKey, worker: int, *, attempt: int = 1) -> None:
        """Assign, start and commit a sub-epoch."""
        model = self.run.models[key.model or ""]
        name = f"one/fit-1/{model.id}/u{len(model.sub_epochs):05}-a{attempt}.pt"
        result = TaskResult(rows=5, cores=2, metrics={"loss": 0.5}, checkpoint=checkpoint(name))
        self._done(key, worker, attempt, result)

    def reexecution(
        self, key: TaskKey, worker: int, *, digest: str = "0" * 16, differs: bool = False
    ) -> None:
        """Execute the next re-execution of a sub-epoch."""
        verification = self.run.verifications.get(key)
        assert verification is not None
        names = ("state['models'][0]['weight']",) if differs else ()
        outcome = VerificationOutcome(is_exact=True, differences=names, digest=digest)
        self._done(
            verification.next_key, worker, 1, TaskResult(rows=5, metrics={"loss": 0.5}, verification=outcome)
        )

    def _done(self, key: TaskKey, worker: int, attempt: int, result: TaskResult) -> None:
        named: dict[str, Any] = {"task": str(key), "attempt": attempt, "worker": f"worker-{worker}"}
        self.append(TaskAssigned(**named), TaskStarted(**named), TaskCommitted(**named, result=result))

    def verification(self, key: TaskKey) -> Verification:
        found = self.run.verifications.get(key)
        assert found is not None
        return found


# --- Selection ---


@given(st.integers(0, 1 << 40), st.floats(0, 1), st.floats(0, 1))
def test_the_draw_depends_on_seed_run_and_sub_epoch_only(seed: int, share: float, more: float) -> None:
    """The draw is reproducible; a larger share includes a smaller one; 0 draws nothing and 1 everything."""
    keys = [sub_epoch(epoch, partition) for epoch in range(1, 5) for partition in range(5)]
    drawn = [is_selected(seed, key, share) for key in keys]
    assert drawn == [is_selected(seed, key, share) for key in keys]
    low, high = sorted((share, more))
    assert all(is_selected(seed, key, high) for key in keys if is_selected(seed, key, low))
    assert not any(is_selected(seed, key, 0.0) for key in keys)
    assert all(is_selected(seed, key, 1.0) for key in keys)


def test_a_pending_verification_is_dropped_when_its_epoch_is_compacted() -> None:
    """Only the log still has its position, so the fold drops the verification."""
    story = Verified()
    story.run.compaction.threshold = 0
    for epoch, partition in ((1, 0), (1, 1), (2, 0), (2, 1)):
        story.trains(sub_epoch(epoch, partition), partition)
    assert [str(verification.sub_epoch) for verification in story.run.verifications.due()] == [
        str(sub_epoch(1, 0))
    ]
    story.append(epoch_report(story.state, story.run, 1))
    assert story.run.models["m00"].compacted_epochs == 1
    assert not [*story.run.verifications.due()]
    assert result_text(story.verification(sub_epoch(1, 0))).startswith("its epoch was compacted")
    assert story.run.verifications.needed("m00") == set()


def test_about_the_requested_share_is_drawn() -> None:
    """One in a hundred of ten thousand, within three standard deviations."""
    keys = [sub_epoch(epoch, partition) for epoch in range(1, 101) for partition in range(100)]
    assert 70 <= sum(is_selected(3, key, 0.01) for key in keys) <= 130


def test_a_sub_epoch_is_verified_only_if_another_worker_has_its_partition() -> None:
    """A model has one pending verification at a time, which limits the stored checkpoints."""
    story = Verified()
    for worker in ("worker-1", "worker-2"):
        story.state.workers[worker].replicas = {(DATASET, 1)}
    story.trains(sub_epoch(1, 0), 0)
    assert story.run.verifications.known == {}
    story.trains(sub_epoch(1, 1), 0)
    assert [*story.run.verifications.known] == [str(sub_epoch(1, 1))]
    story.trains(sub_epoch(2, 1), 0)
    assert story.run.verifications.unverified == {
        "no other worker held the partition": 1,
        "another sub-epoch of the model waited to be verified": 1,
    }


# --- Required checkpoints ---


def test_checkpoints_of_a_verification_are_kept_until_it_finishes() -> None:
    """The fold keeps the input and output checkpoint while the model trains, and no longer."""
    story = Verified(partitions=4)
    for partition in range(4):
        story.trains(sub_epoch(1, partition), 0)
        if partition == 0:
            story.reexecution(sub_epoch(1, 0), 1)
    verification = story.verification(sub_epoch(1, 1))
    first, second = (f"one/fit-1/m00/u{number:05}-a1.pt" for number in (0, 1))
    assert verification.files == {first, second}
    assert {first, second} <= story.run.kept_checkpoints(story.model())
    assert not {first, second} & story.run.kept_checkpoints(story.model(), but=verification)
    story.reexecution(sub_epoch(1, 1), 2)
    assert not {first, second} & story.run.kept_checkpoints(story.model())


def test_the_end_of_a_run_ends_its_verifications() -> None:
    """Pending verifications release their checkpoints; found differences stay. A resumed run verifies other
    sub-epochs."""
    story = Verified()
    story.trains(sub_epoch(1, 0), 0)
    story.reexecution(sub_epoch(1, 0), 1, differs=True)
    story.append(RunStopRequested(run="fit-1"), RunFinished(run="fit-1", outcome="stopped"))
    assert story.run.verifications.needed("m00") == set()
    assert "no third worker has decided" in result_text(story.verification(sub_epoch(1, 0)))
    story.append(RunResumed(run="fit-1", by="ada"))
    story.trains(sub_epoch(1, 1), 0)
    assert story.verification(sub_epoch(1, 1)).state is VerificationState.WAITING
    story.append(RunStopRequested(run="fit-1"), RunFinished(run="fit-1", outcome="stopped"))
    assert result_text(story.verification(sub_epoch(1, 1))).startswith("not done: ")
    assert lines(story.run.verifications)[0] == "verification: 1 came to nothing, 1 differs"


def test_a_reopened_sub_epoch_drops_its_verification() -> None:
    """Its checkpoint was lost. A re-execution under way does not affect the new sub-epoch."""
    story = Verified()
    story.trains(sub_epoch(1, 0), 0)
    reexecution: dict[str, Any] = {
        "task": str(story.verification(sub_epoch(1, 0)).next_key),
        "attempt": 1,
        "worker": "worker-1",
    }
    following: dict[str, Any] = {"task": str(sub_epoch(1, 1)), "attempt": 1, "worker": "worker-0"}
    lost = Failure(kind=FailureKind.CHECKPOINT, message="gone")
    story.append(TaskAssigned(**following), TaskStarted(**following), TaskFailed(**following, failure=lost))
    assert not story.model().sub_epochs
    story.append(
        TaskAssigned(**reexecution), TaskStarted(**reexecution)
    )  # the re-execution was already queued
    outcome = VerificationOutcome(is_exact=True, differences=("state",), digest="1" * 16)
    story.append(TaskCommitted(**reexecution, result=TaskResult(verification=outcome)))
    story.trains(sub_epoch(1, 0), 0, attempt=2)
    verification = story.verification(sub_epoch(1, 0))
    assert (verification.state, verification.reexecutions) == (VerificationState.DROPPED, [])
    assert all(
        not worker.has_failures or worker.name == "worker-0" for worker in story.state.workers.values()
    )


def test_a_worker_does_not_verify_its_own_sub_epoch() -> None:
    """The fold refuses the assignment."""
    story = Verified()
    story.trains(sub_epoch(1, 0), 0)
    key = str(story.verification(sub_epoch(1, 0)).next_key)
    with pytest.raises(IllegalEventError, match="has done the sub-epoch before"):
        story.append(TaskAssigned(task=key, attempt=1, worker="worker-0"))
    with pytest.raises(IllegalEventError, match="nothing is to be verified"):
        story.append(TaskAssigned(task="fit-1/verify/m00/e2/p1/reexecution-1", attempt=1, worker="worker-1"))


# --- Results ---


def test_a_reexecution_does_not_change_its_model() -> None:
    """It adds no sub-epoch, checkpoint or validation."""
    story = Verified()
    story.trains(sub_epoch(1, 0), 0)
    sub_epochs, kept = list(story.model().sub_epochs), story.model().busy
    story.reexecution(sub_epoch(1, 0), 1, differs=True)
    assert (list(story.model().sub_epochs), story.model().busy) == (sub_epochs, kept)
    assert story.run.progress()[0] == 1


@pytest.mark.parametrize("limit", [8 << 30, 0])
def test_a_verification_ends_after_it_kills_a_worker(limit: int) -> None:
    """The controller reports a container killed for memory, with or without a known limit."""
    story = Verified()
    story.trains(sub_epoch(1, 0), 0)
    key = story.verification(sub_epoch(1, 0)).next_key
    named: dict[str, Any] = {"task": str(key), "attempt": 1, "worker": "worker-1"}
    killed = TaskRevoked(
        **named, reason="worker-1: OOMKilled", loss=FailureKind.OUT_OF_MEMORY, limit_bytes=limit
    )
    story.append(TaskAssigned(**named), TaskStarted(**named), killed)
    assert result_text(story.verification(sub_epoch(1, 0))) == "could not be done again: worker-1: OOMKilled"
    assert story.run.task(key).state is TaskState.FAILED
    assert not [*story.run.verifications.due()]
    assert story.model().state is ModelState.ACTIVE


@pytest.mark.parametrize(
    ("second", "differs", "wrong", "words"),
    [
        ("a" * 16, False, "worker-1", "worker-2 agrees with worker-0, which trained it"),
        ("b" * 16, True, "worker-0", "What m00 has learned since then comes from it"),
        ("c" * 16, True, "", "the code does not repeat itself"),
    ],
)
def test_a_third_worker_decides_which_worker_is_wrong(
    second: str, differs: bool, wrong: str, words: str
) -> None:
    """The worker that disagrees with two others is at fault; with three different results, none. Both
    disputed workers check their hardware at once."""
    story = Verified()
    story.trains(sub_epoch(1, 0), 0)
    story.reexecution(sub_epoch(1, 0), 1, digest="b" * 16, differs=True)
    assert "no third worker has decided" in result_text(story.verification(sub_epoch(1, 0)))
    doubted = {name for name, w in story.state.workers.items() if any(e.is_doubtful for e in w.ended)}
    assert doubted == {"worker-0", "worker-1"}
    story.reexecution(sub_epoch(1, 0), 2, digest=second, differs=differs)
    verification = story.verification(sub_epoch(1, 0))
    assert (verification.state, verification.wrong) == (VerificationState.JUDGED, wrong)
    assert words in result_text(verification)
    blamed = {name for name, w in story.state.workers.items() if any(e.is_certain for e in w.ended)}
    assert blamed == ({wrong} if wrong else set())
    assert lines(story.run.verifications)[1:] == [f"fit-1/train/m00/e1/p0: {result_text(verification)}"]


def verification_of(*reexecutions: Reexecution, resumed_rows: int = 0) -> Verification:
    return Verification(
        sub_epoch=sub_epoch(1, 0),
        number=0,
        completed=COMPLETED._replace(resumed_rows=resumed_rows),
        start_checkpoint=None,
        hyperparams={},
        arithmetic="",
        selected_after=1,
        reexecutions=[*reexecutions],
    )


def test_an_incomplete_savepoint_blames_no_machine() -> None:
    """A sub-epoch resumed from a savepoint differs from two full ones: the report blames the code."""
    reexecution = Reexecution("worker-1", True, ("state['models'][0]['weight']",), "b" * 16, {})
    wrong, words = judged(
        verification_of(reexecution, reexecution._replace(worker="worker-2"), resumed_rows=3)
    )
    assert wrong == ""
    assert words.endswith("the code keeps something that its savepoints lack")


def test_metrics_close_to_both_results_blame_no_worker() -> None:
    """On GPUs the third result may be close to both."""
    first = Reexecution("worker-1", False, ("loss",), "", {"loss": 1.0015})
    second = Reexecution("worker-2", False, (), "", {"loss": 1.0008})
    wrong, words = judged(verification_of(first, second))
    assert (wrong, words) == ("", "differs in loss on worker-1; worker-2 agrees with both, up to 0.001")


def test_only_equal_processors_are_compared_bit_for_bit() -> None:
    """GPUs, unknown processors and different processors are compared with a tolerance."""

    def worker(kind: str, *kinds: str) -> Worker:
        return Worker(
            name="w",
            incarnation="a",
            weight=1.0,
            kinds=frozenset(kinds),
            volume="w",
            replicas=set(),
            device=DeviceKind.model_validate({"kind": kind, "name": "x"}),
        )

    verification = verification_of()
    verification.arithmetic = f"{COMPUTES}here"
    assert is_exact(verification, worker("cpu", f"{COMPUTES}here"))
    assert not is_exact(verification, worker("cpu", f"{COMPUTES}there"))
    assert not is_exact(verification, worker("cpu"))
    assert not is_exact(verification, worker("gpu", f"{COMPUTES}here"))
    verification.arithmetic = ""
    assert not is_exact(verification, worker("cpu"))
