"""Sub-epochs that are done once more, by another worker, and compared: which they are, and what came of it. Pure.

Only hopping can do that: every sub-epoch begins with an immutable checkpoint, and another worker may hold its
partition. A difference tells that one of the two computes wrongly, or that the code does not repeat itself. Which of
it, a third worker tells. What a redo trains is nobody's state, whatever comes of it.
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
from cerebro.contract.tasks import CheckpointRef, Failure, FailureKind
from cerebro.state.keys import TaskKey
from cerebro.state.models import Model
from cerebro.state.tasks import Task
from cerebro.state.visits import Visit
from cerebro.state.workers import Ended, Worker

TOLERANCE = 1e-3
"""Relative difference of a metric that counts as none, where bits need not be equal: on GPUs, and between devices of
different kinds."""
MOST_UNCLEAR = 2
"""So many audits of a run may wait for a third worker before others begin, and so many may find nobody to blame before
nothing more is audited: code that does not repeat itself would have every machine checked, again and again."""


class AuditState(StrEnum):
    """Where an audit stands."""

    WAITING = "waiting"  # for a redo
    EQUAL = "equal"  # done again, it is as it was committed
    DIFFERS = "differs"  # it is not; a third worker is to tell which of the two is wrong
    JUDGED = "judged"  # a third worker has told: `Audit.wrong`, or nobody
    DROPPED = "dropped"  # it came to nothing: `Audit.note`


OPEN = frozenset({AuditState.WAITING, AuditState.DIFFERS})


class Redo(NamedTuple):
    """A sub-epoch done once more."""

    worker: str
    is_exact: bool
    differences: tuple[str, ...]
    digest: str
    metrics: Mapping[str, float]


@dataclass(kw_only=True)
class Audit:
    """Of one committed sub-epoch.

    Attributes:
        sub-epoch: its key. number: how many sub-epochs its model had trained before.
        visit: what it left. before: the checkpoint that it began with; `None`: it was the first.
        hyperparams: with which it was trained.
        arithmetic: of the worker that trained it, as of `arithmetic_of`.
        drawn_after: sub-epochs that the run had committed by then.
        wrong: worker that computed wrongly, if that was found.
        note: in words, what was found beyond the state.
    """

    sub_epoch: TaskKey
    number: int
    visit: Visit
    before: CheckpointRef | None
    hyperparams: Hyperparameters
    arithmetic: str
    drawn_after: int
    state: AuditState = AuditState.WAITING
    redos: list[Redo] = field(default_factory=list)
    wrong: str = ""
    note: str = ""
    is_over: bool = False
    """Its run ended before a third worker could tell."""

    @property
    def is_open(self) -> bool:
        """Whether a redo of it is to come."""
        return self.state in OPEN and not self.is_over

    @property
    def next_key(self) -> TaskKey:
        """Of the task that is to do it once more."""
        return self.sub_epoch._replace(kind="audit", redo=len(self.redos) + 1)

    @property
    def seen_by(self) -> frozenset[str]:
        """Workers that have done the sub-epoch; another one is to do it next."""
        return frozenset({self.visit.worker, *(redo.worker for redo in self.redos)})

    @property
    def files(self) -> frozenset[str]:
        """Names of the checkpoints that it needs while it is open."""
        return frozenset({self.visit.file, *([self.before.name] if self.before else [])})


@dataclass(kw_only=True)
class Audits:
    """Of a run, by the key of their sub-epoch, in the order in which they were drawn.

    Attributes:
        unaudited: sub-epochs that were drawn and could not be audited: why -> how many.
    """

    known: dict[str, Audit] = field(default_factory=dict)
    unaudited: dict[str, int] = field(default_factory=dict)
    unblamed: int = 0
    """How many were judged, with nobody to blame."""
    _open: dict[str, Audit] = field(default_factory=dict)
    """Those that are: few, of perhaps many."""

    def open(self) -> Iterator[Audit]:
        """Those that wait for a redo."""
        if not self.is_hopeless:
            yield from self._open.values()

    def of(self, key: TaskKey) -> Audit | None:
        """The open one whose next redo has this key."""
        audit = self.get(key)
        return audit if audit is not None and audit.is_open and audit.next_key == key else None

    def get(self, key: TaskKey) -> Audit | None:
        """The one whose redo has this key, even if it has come to nothing while the redo was on its way."""
        return self.known.get(str(_sub_epoch_of(key)))

    def needed(self, model: str, *, but: Audit | None = None) -> set[str]:
        """Names of checkpoints of a model that must not be removed, for other audits than `but`."""
        of_model = (audit for audit in self.open() if audit.sub_epoch.model == model and audit is not but)
        return {name for audit in of_model for name in audit.files}

    def due(self) -> Iterator[Audit]:
        """Those of which a redo is to be given, what differs first."""
        differing = [audit for audit in self.open() if audit.state is AuditState.DIFFERS]
        yield from differing
        if len(differing) < MOST_UNCLEAR:
            yield from (audit for audit in self.open() if audit.state is AuditState.WAITING)

    @property
    def is_hopeless(self) -> bool:
        """Whether so many have found nobody to blame that the code is the likely cause."""
        return self.unblamed >= MOST_UNCLEAR

    def draw(self, audit: Audit) -> None:
        """One more is to be done."""
        self.known[str(audit.sub_epoch)] = self._open[str(audit.sub_epoch)] = audit

    def settle(self, audit: Audit) -> None:
        """Its state is another one."""
        if not audit.is_open:
            self._open.pop(str(audit.sub_epoch), None)
            self.unblamed += audit.state is AuditState.JUDGED and not audit.wrong

    def drop(self, sub_epoch: TaskKey, note: str) -> None:
        """It comes to nothing: its sub-epoch is done again, say."""
        audit = self.known.get(str(sub_epoch))
        if audit is not None and audit.is_open:
            audit.state, audit.note = AuditState.DROPPED, note
            self.settle(audit)

    def end(self) -> None:
        """The run has ended: what was not done is not to be done any more, and needs nothing."""
        for audit in list(self._open.values()):
            if audit.state is AuditState.WAITING:
                self.drop(
                    audit.sub_epoch, "not done: no other worker had the time for it before the run ended"
                )
            audit.is_over = True
            self._open.pop(str(audit.sub_epoch), None)


def is_drawn(seed: int, sub_epoch: TaskKey, share: float) -> bool:
    """Whether a sub-epoch is among those that are audited. The same for whoever asks, whenever: only seed, run and
    sub-epoch count."""
    digest = hashlib.sha256(f"audit/{seed}/{sub_epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def see_commit(
    audits: Audits,
    task: Task,
    model: Model,
    *,
    seed: int,
    share: float,
    dataset: str,
    committed: int,
    workers: Mapping[str, Worker],
) -> None:
    """A sub-epoch was committed, as its model knows already: perhaps it is to be audited.

    Args:
        committed: sub-epochs of the run, this one among them.
    """
    sub_epoch = task.key
    if (
        not share
        or str(sub_epoch) in audits.known
        or audits.is_hopeless
        or not is_drawn(seed, sub_epoch, share)
    ):
        return
    visit, number = model.visits[-1], len(model.visits) - 1
    why = "ran out of memory before it was trained" if task.exhausted else ""
    if why := why or _unfit(audits, model, visit, dataset, workers):
        audits.unaudited[why] = audits.unaudited.get(why, 0) + 1
        return
    audits.draw(
        Audit(
            sub_epoch=sub_epoch,
            number=number,
            visit=visit,
            before=model.visits[number - 1].checkpoint if number else None,
            hyperparams=model.hyperparams_of(number),
            arithmetic=arithmetic_of(workers[visit.worker]),
            drawn_after=committed,
        )
    )


def _unfit(audits: Audits, model: Model, visit: Visit, dataset: str, workers: Mapping[str, Worker]) -> str:
    """Why a sub-epoch cannot be audited; empty if it can."""
    if visit.parallel_plan is not None or visit.others:
        return "trained by a way, or by several workers"
    if not visit.cores:
        return "by a worker of a version that does not say with how many threads"
    if model.inherited and len(model.visits) - 1 == model.inherited:
        return "began with the checkpoint of another model"
    if any(audit.sub_epoch.model == model.id for audit in audits.open()):
        return "another sub-epoch of the model waited to be audited"
    if not any(may_redo(w, dataset, visit.partition) for w in workers.values() if w.name != visit.worker):
        return "no other worker held the partition"
    return ""


def may_redo(worker: Worker, dataset: str, partition: int) -> bool:
    """Whether a worker can do a sub-epoch on this partition once more."""
    return worker.is_alive and "audit" in worker.kinds and (dataset, partition) in worker.replicas


def is_exact(audit: Audit, worker: Worker) -> bool:
    """Whether a worker computes the bits that the one had which trained the sub-epoch."""
    return bool(audit.arithmetic) and audit.arithmetic == arithmetic_of(worker)


def arithmetic_of(worker: Worker) -> str:
    """What processors have in common that compute the same bits, as the worker tells; empty of a worker that computes
    on GPUs, and where it is not known."""
    if worker.device is None or worker.device.kind != "cpu":
        return ""
    return next((kind for kind in worker.kinds if kind.startswith(COMPUTES)), "")


# --- what comes of a redo -------------------------------------------------------------------------


def see_redo(audits: Audits, event: TaskCommitted, workers: Mapping[str, Worker]) -> None:
    """A redo was committed: compare, judge, and keep for the workers what it says of their machines."""
    key, outcome = TaskKey.parse(event.task), event.result.audit
    audit = audits.of(key)
    if audit is None or outcome is None:
        return
    redo = Redo(
        event.worker, outcome.is_exact, outcome.differences, outcome.digest, dict(event.result.metrics)
    )
    audit.redos.append(redo)
    if len(audit.redos) == 1:
        audit.state = AuditState.DIFFERS if redo.differences else AuditState.EQUAL
        audits.settle(audit)
        if redo.differences:
            audit.note = f"differs in {_named(redo.differences)}"
            for name in (audit.visit.worker, redo.worker):
                _doubt(workers, name, event, audit)
        return
    audit.state = AuditState.JUDGED
    audit.wrong, audit.note = judged(audit)
    audits.settle(audit)
    if audit.wrong in workers:
        failure = _failure(audit, f"an audit found that it computes wrongly: {audit.sub_epoch}: {audit.note}")
        _tell(
            workers[audit.wrong],
            Ended(
                event.time, event.task, audit.sub_epoch.model or "", failure, is_device=True, is_certain=True
            ),
        )


def judged(audit: Audit) -> tuple[str, str]:
    """Of a sub-epoch that was done three times: who computed wrongly, if that can be told, and what was found, in
    words."""
    first, second = audit.redos
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
            f"{audit.visit.worker}, which trained it"
        )
    if audit.visit.resumed_rows:
        return "", (
            f"{where}; the sub-epoch went on from a savepoint, and done again without one it comes out as on "
            f"{first.worker} and {second.worker}: the code keeps something that its savepoints lack"
        )
    return audit.visit.worker, (
        f"{audit.visit.worker} computed wrongly when it trained the sub-epoch ({where}): {first.worker} and "
        f"{second.worker} "
        f"agree. What {audit.sub_epoch.model} has learned since then comes from it"
    )


def see_failure(audits: Audits, key: TaskKey, failure: Failure, *, is_final: bool) -> None:
    """An attempt at a redo failed. Nothing but the audit suffers from it."""
    if is_final or failure.kind in (FailureKind.CHECKPOINT, FailureKind.OUT_OF_MEMORY):
        audits.drop(_sub_epoch_of(key), f"could not be done again: {failure.line}")


def apart(first: Mapping[str, float], second: Mapping[str, float]) -> list[str]:
    """Names of metrics that differ by more than `TOLERANCE`, or that one of the two lacks."""
    return [
        name
        for name in {**first, **second}
        if not (
            name in first
            and name in second
            and math.isclose(first[name], second[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE**2)
        )
    ]


def _agree(first: Redo, second: Redo) -> bool:
    if first.is_exact and second.is_exact:
        return bool(first.digest) and first.digest == second.digest
    return not apart(first.metrics, second.metrics)


def _sub_epoch_of(key: TaskKey) -> TaskKey:
    return key._replace(kind="train", redo=None)


def _named(names: Collection[str], most: int = 3) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _doubt(workers: Mapping[str, Worker], name: str, event: TaskCommitted, audit: Audit) -> None:
    """One of the two is wrong, so both are to check their machines."""
    if name in workers:
        other = audit.redos[0].worker if name == audit.visit.worker else audit.visit.worker
        failure = _failure(audit, f"{audit.sub_epoch} {audit.note} when {name} and {other} do it")
        _tell(workers[name], Ended(event.time, event.task, audit.sub_epoch.model or "", failure))


def _tell(worker: Worker, ended: Ended) -> None:
    worker.has_failures = True
    worker.ended.append(ended)


def _failure(audit: Audit, message: str) -> Failure:
    return Failure(kind=FailureKind.DEVICE, message=message, may_be_device=True)
