"""Messages of an attempt's ranks, merged into the messages of a single child.

A `ChildGroup` owns it, and `AttemptRunner` reads it like a `Channel`. Progress and savepoints come from rank 0. The
other ranks contribute their results and failures. After the first failure the others have 0.3 s to report, or 10.3 s if
only lost connections were reported.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from cerebro.contract.base import Contract
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.worker.agent.gangs.remote import RemoteRank
from cerebro.worker.agent.processes.process import ChildProcess
from cerebro.worker.health.root_cause import RankEnd
from cerebro.worker.protocol.messages import (
    Answer,
    Done,
    Failed,
    FromChild,
    FromMember,
    Preempt,
    Preempted,
    Progress,
    RankPosition,
    Ready,
    Rendezvous,
    Saved,
    WorkerLeaves,
)

_SPEAK_S = 0.3
"""Seconds for other ranks to report after the first failure."""
_LOST_S = 10.0
"""Extra seconds if only lost peers were reported. On a busy machine the root cause arrives late."""

Rank = ChildProcess | RemoteRank
"""A process of this worker, or one of another worker of a gang."""


class GroupChannel:
    """Messages of all ranks, with the interface of `Channel`.

    Args:
        children: by rank.
        conclude: called once per attempt after the last message; returns the outcome.

    Attributes:
        is_closed: always False. A rank with a closed connection has failed, which is a message.
        answers: results by rank; `None` for a rank that was preempted.
        ends: failures by rank.
        may_leave: True if the attempt was preempted.
        leaving: another gang worker's reason for a preemption, or "".
    """

    is_closed = False

    def __init__(self, children: Sequence[Rank], conclude: Callable[[], Answer]) -> None:
        self._children, self._conclude = children, conclude
        self._sources = select.epoll()
        for child in children:
            self._sources.register(child.channel.fileno(), select.EPOLLIN)
            self._sources.register(child.end, select.EPOLLIN)
        self.begin()

    def begin(self) -> None:
        """Reset for another attempt."""
        self.answers: dict[int, TaskResult | None] = {}
        self.ends: dict[int, RankEnd] = {}
        self.may_leave = self._has_concluded = False
        self.leaving = ""

    def close(self) -> None:
        """Close the descriptor."""
        self._sources.close()

    def fileno(self) -> int:
        """Return a descriptor for select: readable after a rank's message or end."""
        return self._sources.fileno()

    @property
    def num_refused(self) -> int:
        """Number of received lines that are not messages, from all ranks."""
        return sum(child.channel.num_refused for child in self._children)

    @property
    def last_refused(self) -> str:
        """See `Channel.last_refused`, of the first rank with such a line."""
        found = (child.channel.last_refused for child in self._children if child.channel.num_refused)
        return next(found, "")

    def refuse(self, message: Contract) -> None:
        """See `Channel.refuse`. Only rank 0's messages leave this channel."""
        self._children[0].channel.refuse(message)

    def pending(self) -> FromChild | None:
        """Return the next merged message, or `None`."""
        message: FromChild | None = self._receive()
        if message is None and not self._has_concluded and (self.ends or self.is_over()):
            self.await_others()
            self._has_concluded = True
            message = self._conclude()
        return message

    def await_others(self) -> None:
        """Wait for the other ranks' reports after the first failure, at most `_SPEAK_S` or `_LOST_S` more."""
        began = time.monotonic()
        while not self.is_over():
            is_lost = all(end.is_lost_peer for end in self.ends.values())
            left_s = began + _SPEAK_S + _LOST_S * is_lost - time.monotonic()
            if left_s <= 0:
                return
            self._sources.poll(left_s)
            self._receive()

    def is_over(self) -> bool:
        """True if all ranks have reported their end."""
        return len(self.answers) + len(self.ends) == len(self._children)

    def _receive(self) -> FromChild | None:
        for rank, child in enumerate(self._children):
            # Check first: messages sent before it ended count.
            has_ended = not child.is_alive()
            while (message := child.channel.pending()) is not None:
                forwarded = self._take(rank, message)
                if forwarded is not None:
                    return forwarded
            if has_ended or child.channel.is_closed:
                if not self._has_ended(rank):
                    self.ends[rank] = RankEnd(rank=rank, at=time.monotonic(), failure=None)
                self._unregister(child)
        return None

    def _take(self, rank: int, message: FromChild | FromMember) -> FromChild | None:
        """Handle a rank's message. Return it if the follower of the attempt needs it."""
        child = self._children[rank]
        match message:
            case Ready():
                child.is_ready = True
                return message if all(child.is_ready for child in self._children) else None
            case RankPosition() if isinstance(child, RemoteRank):
                child.batch, child.operations = message.batch, message.operations
            case WorkerLeaves():
                self.may_leave, self.leaving = True, message.reason
                self._children[0].send(Preempt(reason=message.reason, grace_s=message.grace_s))
            case Rendezvous() if rank == 0:
                for other in self._children[1:]:
                    other.send(message)
            case Progress() | Saved() if rank == 0 and not self._has_ended(rank):
                return message
            case Done() | Failed() | Preempted() if not self._has_ended(rank):
                self._take_answer(rank, message)
            case _:
                child.channel.refuse(message)
        return None

    def _take_answer(self, rank: int, message: Answer) -> None:
        if isinstance(message, Done):
            self.answers[rank] = message.result
        elif isinstance(message, Failed):
            # Clocks of two machines cannot be compared.
            is_remote = isinstance(self._children[rank], RemoteRank)
            failure, at = message.failure, time.monotonic() if is_remote else message.failed_at
            if failure.kind is FailureKind.PREEMPTED and is_remote:
                self.leaving = failure.message
            self.ends[rank] = RankEnd(rank=rank, at=at, failure=failure)
        elif self.may_leave:
            self.answers[rank] = None
        else:
            # User code raised it. The attempt's follower reports that.
            failure = Failure(kind=FailureKind.PREEMPTED, message="it was not asked to end")
            self.ends[rank] = RankEnd(rank=rank, at=time.monotonic(), failure=failure)

    def _has_ended(self, rank: int) -> bool:
        return rank in self.answers or rank in self.ends

    def _unregister(self, child: Rank) -> None:
        """Unregister an ended rank: its descriptors stay readable."""
        for descriptor in (child.channel.fileno(), child.end):
            with suppress(OSError, ValueError):  # it was forgotten before
                self._sources.unregister(descriptor)
