"""Messages of an attempt's ranks, merged into the messages of a single child.

Progress comes from rank 0. The other ranks contribute their results and failures.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from cerebro.contract.tasks import Failure, FailureKind, TaskResult
from cerebro.worker.agent.gangs.remote import RemoteRank
from cerebro.worker.agent.processes.process import ChildProcess
from cerebro.worker.health.root_cause import RankEnd

_SPEAK_S = 0.3
"""Seconds for other ranks to report after the first failure."""
_LOST_S = 0.4
"""Extra seconds if only lost peers were reported: the root cause usually arrives in a moment."""

Message = dict[str, Any]

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

    def __init__(self, children: Sequence[Rank], conclude: Callable[[], Message]) -> None:
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
        """Give the descriptor back."""
        self._sources.close()

    def fileno(self) -> int:
        """Return a descriptor for select: readable after a rank's message or end."""
        return self._sources.fileno()

    @property
    def strays(self) -> int:
        """Number of lines that were not messages, from all ranks."""
        return sum(child.channel.strays for child in self._children)

    @property
    def stray(self) -> str:
        """One such line, for people."""
        return next((child.channel.stray for child in self._children if child.channel.stray), "")

    def drop(self, message: Message) -> None:
        """Count a message that no receiver understood."""
        self._children[0].channel.drop(message)

    def pending(self) -> Message | None:
        """Return the next merged message, or `None`."""
        message = self._hear()
        if message is None and not self._has_concluded and (self.ends or self.is_over()):
            self.await_others()
            self._has_concluded = True
            message = self._conclude()
        return message

    def await_others(self) -> None:
        """After the first failure: let the others speak, but not for long."""
        began = time.monotonic()
        while not self.is_over():
            is_lost = all(end.is_lost_peer for end in self.ends.values())
            left_s = began + _SPEAK_S + _LOST_S * is_lost - time.monotonic()
            if left_s <= 0:
                return
            self._sources.poll(left_s)
            self._hear()

    def is_over(self) -> bool:
        """True if all ranks have reported their end."""
        return len(self.answers) + len(self.ends) == len(self._children)

    def _hear(self) -> Message | None:
        for rank, child in enumerate(self._children):
            # Check first: messages sent before it ended count.
            is_gone = not child.is_alive()
            while (message := child.channel.pending()) is not None:
                try:
                    told = self._take(rank, message)
                except (LookupError, TypeError, ValueError):
                    child.channel.drop(message)
                    continue
                if told is not None:
                    return told
            if is_gone or child.channel.is_closed:
                if not self._has_ended(rank):
                    self.ends[rank] = RankEnd(rank=rank, at=time.monotonic(), failure=None)
                self._forget(child)
        return None

    def _take(self, rank: int, message: Message) -> Message | None:
        what, child = message["is"], self._children[rank]
        if what == "ready":
            child.is_ready = True
            return message if all(child.is_ready for child in self._children) else None
        if what == "meets" and rank == 0:
            for other in self._children[1:]:
                other.tell({"do": "meet", "at": str(message["at"])})
            return None
        if isinstance(child, RemoteRank) and self._take_remote(child, message):
            return None
        if self._has_ended(rank):
            raise ValueError(what)  # it has said all that it has to say
        if what == "failed":
            # Clocks of two machines cannot be compared.
            is_here = not isinstance(child, RemoteRank)
            at = float(message["at"]) if is_here else time.monotonic()
            failure = Failure.model_validate(message["failure"])
            if failure.kind is FailureKind.PREEMPTED and not is_here:
                self.leaving = failure.message
            self.ends[rank] = RankEnd(rank=rank, at=at, failure=failure)
        elif what == "preempted" and self.may_leave:
            self.answers[rank] = None
        elif what == "preempted":
            # User code raised it. The attempt's follower reports that.
            failure = Failure(kind=FailureKind.PREEMPTED, message="nobody asked it to end")
            self.ends[rank] = RankEnd(rank=rank, at=time.monotonic(), failure=failure)
        elif what == "done":
            self.answers[rank] = TaskResult.model_validate(message["result"])
        elif rank == 0:
            return message
        else:
            raise ValueError(what)
        return None

    def _take_remote(self, rank: RemoteRank, message: Message) -> bool:
        """Handle a message of the remote agent rather than its rank. Return False for others."""
        if message["is"] == "at":
            rank.batch, rank.operations = int(message["batch"]), int(message["operations"])
        elif message["is"] == "leaving":
            self.may_leave, self.leaving = True, str(message["why"])
            self._children[0].tell({"do": "end", "why": self.leaving, "left_s": float(message["left_s"])})
        else:
            return False
        return True

    def _has_ended(self, rank: int) -> bool:
        return rank in self.answers or rank in self.ends

    def _forget(self, child: Rank) -> None:
        """Unregister an ended rank: its descriptors stay readable."""
        for descriptor in (child.channel.fileno(), child.end):
            with suppress(OSError, ValueError):  # it was forgotten before
                self._sources.unregister(descriptor)
