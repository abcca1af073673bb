"""Attempts in a time range of a log, for compacted sub-epochs. Pure.

The state before the range is not needed: each task event becomes a small *move*, and attempts are assembled from moves.
If an attempt began before the range, the timings in its commit give the start; the devices are unknown
(`Pieced.guessed`).

An undone sub-epoch (lost checkpoint) shows when its partition is assigned or committed again in the same epoch. If that
happens after the range, the sub-epoch still appears committed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.contract.events import Event, TaskAssigned, TaskCommitted, TaskFailed, TaskRevoked, TaskStarted
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks import FailureKind, Member
from cerebro.state.models.committed_sub_epoch import Visit
from cerebro.state.reports.timeline import Try
from cerebro.state.tasks.keys import TaskKey
from cerebro.state.tasks.task import Attempt

_ASSIGNED, _STARTED = "assigned", "started"


class Move(NamedTuple):
    """One event of an attempt. Times are seconds of the store's clock."""

    time: float
    task: str
    attempt: int
    worker: str
    what: str
    """`assigned`, `started`, or an `Attempt.outcome`."""
    devices: tuple[int, ...] = (0,)
    parallel_plan: ParallelPlan | None = None
    others: tuple[Member, ...] = ()
    visit: Visit | None = None
    """The visit of a committed sub-epoch, without facts from the assignment."""
    start_s: float = 0.0


def moves(events: Iterable[Event]) -> Iterator[Move]:
    """Yield the moves of a part of a log, in order."""
    for event in events:
        match event:
            case TaskAssigned():
                named = event.time, event.task, event.attempt, event.worker
                yield Move(*named, _ASSIGNED, event.devices, event.parallel_plan, event.others)
            case TaskStarted():
                yield Move(event.time, event.task, event.attempt, event.worker, _STARTED)
            case TaskCommitted():
                yield _commit(event)
            case TaskFailed():
                is_given_back = event.failure.kind is FailureKind.PREEMPTED
                what = f"revoked: {event.failure.message}" if is_given_back else str(event.failure.kind)
                yield Move(event.time, event.task, event.attempt, event.worker, what)
            case TaskRevoked():
                yield Move(event.time, event.task, event.attempt, event.worker, f"revoked: {event.reason}")


def _commit(event: TaskCommitted) -> Move:
    key, result = TaskKey.parse(event.task), event.result
    visit = None
    if key.kind == "train" and result.checkpoint is not None and key.epoch and key.partition is not None:
        attempt = Attempt(number=event.attempt, worker=event.worker, assigned=0.0, ended=event.time)
        visit = Visit.of(
            epoch=key.epoch,
            partition=key.partition,
            attempt=attempt,
            result=result,
            checkpoint=result.checkpoint,
        )
    named = event.time, event.task, event.attempt, event.worker
    return Move(*named, "committed", visit=visit, start_s=result.timings.start_s)


@dataclass(kw_only=True, slots=True)
class _Piece:
    key: TaskKey
    attempt: Attempt
    visit: Visit | None = None
    is_guessed: bool = False

    def overlaps(self, since: float, until: float) -> bool:
        began = self.attempt.started or self.attempt.assigned
        return began <= until and (not self.attempt.outcome or self.attempt.ended >= since)


@dataclass(frozen=True, kw_only=True)
class Pieced:
    """Attempts in a window.

    Attributes:
        tries: attempts in the order of appearance; open ones have no outcome.
        guessed: keys of tasks with an attempt that began before the range.
    """

    tries: list[Try]
    guessed: frozenset[str]


@dataclass(kw_only=True)
class Pieces:
    """Attempts of a run, assembled move by move.

    Args:
        run: its id.
        chosen: filter for tasks; all by default.
    """

    run: str
    chosen: Callable[[TaskKey], bool] = lambda key: True
    _pieces: dict[tuple[str, int], _Piece] = field(default_factory=dict)
    _queue_position: dict[tuple[str, int, int], _Piece] = field(default_factory=dict)
    """(model, epoch, partition) -> the valid commit."""

    def take(self, found: Iterable[Move]) -> None:
        """Add the next moves of the log."""
        prefix = f"{self.run}/"
        for move in found:
            if move.task.startswith(prefix) and self.chosen(key := TaskKey.parse(move.task)):
                self._take(move, key)

    def _take(self, move: Move, key: TaskKey) -> None:
        piece = self._pieces.get((move.task, move.attempt))
        if piece is None:
            piece = _Piece(key=key, attempt=_begun(move), is_guessed=move.what != _ASSIGNED)
            self._pieces[move.task, move.attempt] = piece
        attempt = piece.attempt
        match move.what:
            case "assigned":
                if key.kind == "train":
                    self._undo(key)
            case "started":
                attempt.started, attempt.has_run = move.time, True
            case outcome:
                attempt.ended, attempt.outcome = move.time, outcome
                if outcome == "committed":
                    self._commit(piece, move)

    def _commit(self, piece: _Piece, move: Move) -> None:
        attempt, visit, key = piece.attempt, move.visit, piece.key
        if attempt.has_run:
            attempt.start_s = min(max(0.0, move.start_s), attempt.ended - attempt.started)
        elif visit is not None:
            # Without process start: nothing bounds the worker's value.
            took = visit.load_s + visit.compute_s + visit.save_s
            attempt.started, attempt.has_run = move.time - took, True
        if visit is None:
            return
        piece.visit = visit._replace(
            started=attempt.started,
            start_s=attempt.start_s,
            devices=attempt.devices,
            parallel_plan=attempt.parallel_plan,
            others=attempt.others,
        )
        self._undo(key)
        for partition in key.partitions:
            self._queue_position[key.model or "", key.epoch or 0, partition] = piece

    def _undo(self, key: TaskKey) -> None:
        """Undo earlier commits in the same place."""
        for partition in key.partitions:
            piece = self._queue_position.pop((key.model or "", key.epoch or 0, partition), None)
            if piece is not None:
                piece.visit = None

    def lacks_beginnings(self, since: float, until: float) -> bool:
        """True if an attempt in the window has an unknown assignment."""
        return any(piece.is_guessed and piece.overlaps(since, until) for piece in self._pieces.values())

    def is_open(self, until: float) -> bool:
        """True if an attempt that began by `until` has no known end."""
        return any(not p.attempt.outcome and p.overlaps(-math.inf, until) for p in self._pieces.values())

    def window(self, since: float, until: float) -> Pieced:
        """Return the attempts between two times (the store's clock, seconds)."""
        here = [piece for piece in self._pieces.values() if piece.overlaps(since, until)]
        return Pieced(
            tries=[Try(piece.key, piece.attempt, piece.visit) for piece in here],
            guessed=frozenset(str(piece.key) for piece in here if piece.is_guessed),
        )

    @property
    def held(self) -> int:
        """Number of known attempts."""
        return len(self._pieces)

    def epochs(self) -> dict[str, int]:
        """Return model -> newest epoch with a valid commit."""
        found: dict[str, int] = {}
        for model, epoch, _ in self._queue_position:
            found[model] = max(epoch, found.get(model, 0))
        return found

    def let_go(self, is_over: Callable[[TaskKey], bool]) -> list[Try]:
        """Forget sub-epochs that no later move can affect; return the committed ones in the order of commits."""
        over = [each for each, piece in self._pieces.items() if piece.attempt.outcome and is_over(piece.key)]
        gone = [self._pieces.pop(each) for each in over]
        for key in {piece.key for piece in gone}:
            for partition in key.partitions:
                self._queue_position.pop((key.model or "", key.epoch or 0, partition), None)
        found = [Try(piece.key, piece.attempt, piece.visit) for piece in gone if piece.visit is not None]
        return sorted(found, key=lambda tried: tried.attempt.ended)


def _begun(move: Move) -> Attempt:
    """An attempt seen for the first time."""
    return Attempt(
        number=move.attempt,
        worker=move.worker,
        assigned=move.time,
        devices=move.devices,
        parallel_plan=move.parallel_plan,
        others=move.others,
    )
