"""Verification: sub-epochs re-executed by another worker and compared. Pure.

Hopping makes it possible: each sub-epoch starts from an immutable checkpoint; another worker may have the partition.
A difference means that one worker is faulty or that the code is not deterministic; a third worker decides. The result
of a re-execution never becomes a model's state.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from cerebro.contract.events import TaskCommitted
from cerebro.contract.records import COMPUTES, Hyperparameters
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state.models.completed_sub_epoch import CompletedSubEpoch
from cerebro.state.models.model import Model
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.task import Task
from cerebro.state.workers import Ended, Worker

TOLERANCE = 1e-3
"""Relative difference below which metrics are equal, on GPUs and between kinds of devices."""
MAX_UNCLEAR = 2
"""Limit of open disagreements, and of disagreements without a faulty worker.

The first limit delays new verifications. The second ends them: nondeterministic code would accuse every machine."""


class VerificationState(StrEnum):
    """State of a verification."""

    WAITING = "waiting"  # for a re-execution
    EQUAL = "equal"  # the re-execution agrees
    DIFFERS = "differs"  # a third worker must decide
    JUDGED = "judged"  # decided: `Verification.wrong`, or no worker
    DROPPED = "dropped"  # cancelled: `Verification.note`


OPEN = frozenset({VerificationState.WAITING, VerificationState.DIFFERS})


class Reexecution(NamedTuple):
    """One re-execution of a sub-epoch."""

    worker: str
    is_exact: bool
    differences: tuple[str, ...]
    digest: str
    metrics: Mapping[str, float]


@dataclass(kw_only=True)
class Verification:
    """Verification of one committed sub-epoch.

    Attributes:
        sub_epoch: its key.
        number: sub-epochs its model had trained before.
        completed: its result.
        start_checkpoint: checkpoint it started from; `None` for the first.
        hyperparams: hyperparameters in use.
        arithmetic: `arithmetic_of` its worker.
        selected_after: committed sub-epochs of the run at selection.
        wrong: the faulty worker, if known.
        note: further findings, for people.
    """

    sub_epoch: TaskKey
    number: int
    completed: CompletedSubEpoch
    start_checkpoint: CheckpointRef | None
    hyperparams: Hyperparameters
    arithmetic: str
    selected_after: int
    state: VerificationState = VerificationState.WAITING
    reexecutions: list[Reexecution] = field(default_factory=list)
    wrong: str = ""
    note: str = ""
    is_over: bool = False
    """True if the run ended before a third worker could decide."""

    @property
    def is_open(self) -> bool:
        """True if a re-execution is due."""
        return self.state in OPEN and not self.is_over

    @property
    def next_key(self) -> TaskKey:
        """Key of the next re-execution."""
        return self.sub_epoch._replace(kind="verify", reexecution=len(self.reexecutions) + 1)

    @property
    def seen_by(self) -> frozenset[str]:
        """Workers that have computed the sub-epoch; the next one must differ."""
        return frozenset({self.completed.worker, *(reexecution.worker for reexecution in self.reexecutions)})

    @property
    def files(self) -> frozenset[str]:
        """Checkpoints it needs while open."""
        return frozenset(
            {self.completed.checkpoint.name, *([self.start_checkpoint.name] if self.start_checkpoint else [])}
        )


@dataclass(kw_only=True)
class Verifications:
    """Verifications of a run, by sub-epoch key, in the order of selection.

    Attributes:
        unverified: reason -> number of selected sub-epochs that cannot be verified.
    """

    known: dict[str, Verification] = field(default_factory=dict)
    unverified: dict[str, int] = field(default_factory=dict)
    unblamed: int = 0
    """Decided verifications without a faulty worker."""
    _open: dict[str, Verification] = field(default_factory=dict)
    """Open verifications, a small part of `known`."""

    def open(self) -> Iterator[Verification]:
        """Yield the open verifications."""
        if not self.is_hopeless:
            yield from self._open.values()

    def of(self, key: TaskKey) -> Verification | None:
        """Return the open verification with this key for its next re-execution."""
        found = self.get(key)
        return found if found is not None and found.is_open and found.next_key == key else None

    def get(self, key: TaskKey) -> Verification | None:
        """Return the verification for a re-execution's key, even a cancelled one."""
        return self.known.get(str(_sub_epoch_of(key)))

    def needed(self, model: str, *, but: Verification | None = None) -> set[str]:
        """Return the checkpoints of a model that open verifications except `but` need."""
        of_model = (found for found in self.open() if found.sub_epoch.model == model and found is not but)
        return {name for found in of_model for name in found.files}

    def due(self) -> Iterator[Verification]:
        """Yield verifications to schedule, disagreements first."""
        differing = [
            verification for verification in self.open() if verification.state is VerificationState.DIFFERS
        ]
        yield from differing
        if len(differing) < MAX_UNCLEAR:
            yield from (
                verification
                for verification in self.open()
                if verification.state is VerificationState.WAITING
            )

    @property
    def is_hopeless(self) -> bool:
        """True if disagreements without a faulty worker suggest nondeterministic code."""
        return self.unblamed >= MAX_UNCLEAR

    def select(self, verification: Verification) -> None:
        """Add a verification."""
        self.known[str(verification.sub_epoch)] = self._open[str(verification.sub_epoch)] = verification

    def settle(self, verification: Verification) -> None:
        """Update the counts after a change of state."""
        if not verification.is_open:
            self._open.pop(str(verification.sub_epoch), None)
            self.unblamed += verification.state is VerificationState.JUDGED and not verification.wrong

    def drop(self, sub_epoch: TaskKey, note: str) -> None:
        """Cancel a verification, for example because its sub-epoch is trained again."""
        verification = self.known.get(str(sub_epoch))
        if verification is not None and verification.is_open:
            verification.state, verification.note = VerificationState.DROPPED, note
            self.settle(verification)

    def end(self) -> None:
        """Close open verifications when the run ends; cancel the ones not begun."""
        for verification in list(self._open.values()):
            if verification.state is VerificationState.WAITING:
                self.drop(
                    verification.sub_epoch,
                    "not done: no other worker had the time for it before the run ended",
                )
            verification.is_over = True
            self._open.pop(str(verification.sub_epoch), None)


def is_selected(seed: int, sub_epoch: TaskKey, share: float) -> bool:
    """Return True if a sub-epoch is selected; depends only on seed, run and sub-epoch."""
    digest = hashlib.sha256(f"verify/{seed}/{sub_epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def observe_commit(
    verifications: Verifications,
    task: Task,
    model: Model,
    *,
    seed: int,
    share: float,
    dataset: str,
    committed: int,
    workers: Mapping[str, Worker],
) -> None:
    """Select a committed sub-epoch for verification or not; call it after the model has it.

    Args:
        committed: sub-epochs of the run, including this one.
    """
    sub_epoch = task.key
    if (
        not share
        or str(sub_epoch) in verifications.known
        or verifications.is_hopeless
        or not is_selected(seed, sub_epoch, share)
    ):
        return
    completed, number = model.sub_epochs[-1], len(model.sub_epochs) - 1
    why = "ran out of memory before it was trained" if task.exhausted else ""
    if why := why or _unfit(verifications, model, completed, dataset, workers):
        verifications.unverified[why] = verifications.unverified.get(why, 0) + 1
        return
    verifications.select(
        Verification(
            sub_epoch=sub_epoch,
            number=number,
            completed=completed,
            start_checkpoint=model.sub_epochs[number - 1].checkpoint.ref() if number else None,
            hyperparams=model.hyperparams_of(number),
            arithmetic=arithmetic_of(workers[completed.worker]),
            selected_after=committed,
        )
    )


def _unfit(
    verifications: Verifications,
    model: Model,
    sub_epoch: CompletedSubEpoch,
    dataset: str,
    workers: Mapping[str, Worker],
) -> str:
    """Why a sub-epoch cannot be verified, or an empty string."""
    if sub_epoch.parallel_plan is not None or sub_epoch.other_members:
        return "trained by a parallel plan, or by several workers"
    if not sub_epoch.cores:
        return "its number of threads is not known"
    if model.lineage.sub_epochs and len(model.sub_epochs) - 1 == model.lineage.sub_epochs:
        return "began with the checkpoint of another model"
    if any(verification.sub_epoch.model == model.id for verification in verifications.open()):
        return "another sub-epoch of the model waited to be verified"
    if not any(
        may_reexecute(w, dataset, sub_epoch.partition) for w in workers.values() if w.name != sub_epoch.worker
    ):
        return "no other worker held the partition"
    return ""


def may_reexecute(worker: Worker, dataset: str, partition: int) -> bool:
    """Return True if a worker can re-execute a sub-epoch on this partition."""
    return worker.is_alive and "verify" in worker.kinds and (dataset, partition) in worker.replicas


def is_exact(verification: Verification, worker: Worker) -> bool:
    """Return True if a worker computes the same bits as the original worker.

    A sub-epoch of a fused group is computed again alone, which rounds differently.
    """
    is_fused = verification.completed.is_fused
    return not is_fused and bool(verification.arithmetic) and verification.arithmetic == arithmetic_of(worker)


def arithmetic_of(worker: Worker) -> str:
    """Return the worker's class of bit-identical processors; empty for GPUs and if unknown."""
    if worker.device is None or worker.device.kind != "cpu":
        return ""
    return next((kind for kind in worker.kinds if kind.startswith(COMPUTES)), "")


# --- results of re-executions ---------------------------------------------------------------------


def observe_reexecution(
    verifications: Verifications, event: TaskCommitted, workers: Mapping[str, Worker]
) -> None:
    """Compare a committed re-execution and record the findings for the workers."""
    key, outcome = TaskKey.parse(event.task), event.result.verification
    verification = verifications.of(key)
    if verification is None or outcome is None:
        return
    reexecution = Reexecution(
        event.worker, outcome.is_exact, outcome.differences, outcome.digest, dict(event.result.metrics)
    )
    verification.reexecutions.append(reexecution)
    if len(verification.reexecutions) == 1:
        verification.state = VerificationState.DIFFERS if reexecution.differences else VerificationState.EQUAL
        verifications.settle(verification)
        if reexecution.differences:
            verification.note = f"differs in {_named(reexecution.differences)}"
            for name in (verification.completed.worker, reexecution.worker):
                _doubt(workers, name, event, verification)
        return
    verification.state = VerificationState.JUDGED
    verification.wrong, verification.note = judged(verification)
    verifications.settle(verification)
    if verification.wrong in workers:
        failure = _failure(
            verification,
            f"a verification found that it computes wrongly: {verification.sub_epoch}: {verification.note}",
        )
        workers[verification.wrong].record_end(
            Ended(
                event.time,
                event.task,
                verification.sub_epoch.model or "",
                failure,
                is_device=True,
                is_certain=True,
            )
        )


def judged(verification: Verification) -> tuple[str, str]:
    """Return the faulty worker, if known, and the findings, for a sub-epoch computed three times."""
    first, second = verification.reexecutions
    where = f"differs in {_named(first.differences)}"
    is_as_committed, is_as_first = not second.differences, _agree(first, second)
    if is_as_committed and is_as_first:
        return "", f"{where} on {first.worker}; {second.worker} agrees with both, up to {TOLERANCE:g}"
    if not (is_as_committed or is_as_first):
        return (
            "",
            f"{where}; done three times, it came out otherwise each time: the code does not repeat itself",
        )
    if is_as_committed:
        return first.worker, (
            f"{first.worker} computed wrongly when it did the sub-epoch again ({where}): {second.worker} agrees with "
            f"{verification.completed.worker}, which trained it"
        )
    if verification.completed.resumed_rows:
        return "", (
            f"{where}; the sub-epoch went on from a savepoint, and done again without one it comes out as on "
            f"{first.worker} and {second.worker}: the code keeps something that its savepoints lack"
        )
    return verification.completed.worker, (
        f"{verification.completed.worker} computed wrongly when it trained the sub-epoch ({where}): {first.worker} and "
        f"{second.worker} "
        f"agree. What {verification.sub_epoch.model} has learned since then comes from it"
    )


def observe_failure(verifications: Verifications, key: TaskKey, failure: Failure, *, is_final: bool) -> None:
    """Record the failure of a re-execution; it affects only the verification."""
    if is_final or failure.kind in (FailureKind.CHECKPOINT, FailureKind.OUT_OF_MEMORY):
        verifications.drop(_sub_epoch_of(key), f"could not be done again: {failure.line}")


def differing_metrics(first: Mapping[str, float], second: Mapping[str, float]) -> list[str]:
    """Return the metrics that differ by more than `TOLERANCE` or are missing on one side."""
    return [
        name
        for name in {**first, **second}
        if not (
            name in first
            and name in second
            and math.isclose(first[name], second[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE**2)
        )
    ]


def _agree(first: Reexecution, second: Reexecution) -> bool:
    if first.is_exact and second.is_exact:
        return bool(first.digest) and first.digest == second.digest
    return not differing_metrics(first.metrics, second.metrics)


def _sub_epoch_of(key: TaskKey) -> TaskKey:
    return key._replace(kind="train", reexecution=None)


def _named(names: Collection[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more


def _doubt(
    workers: Mapping[str, Worker], name: str, event: TaskCommitted, verification: Verification
) -> None:
    """Have both workers check their machines, since one is faulty."""
    if name in workers:
        other = (
            verification.reexecutions[0].worker
            if name == verification.completed.worker
            else verification.completed.worker
        )
        failure = _failure(
            verification, f"{verification.sub_epoch} {verification.note} when {name} and {other} do it"
        )
        workers[name].record_end(Ended(event.time, event.task, verification.sub_epoch.model or "", failure))


def _failure(verification: Verification, message: str) -> Failure:
    return Failure(kind=FailureKind.DEVICE, message=message, may_be_device=True)
