"""What the ranks of one attempt say, as if one child process said it.

Rank 0 is the one that is listened to while they train; of the others it counts how they end.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from cerebro.contract.tasks import Failure, FailureKind, TaskResult
from cerebro.worker.agent.gangs.remote import RemoteRank
from cerebro.worker.agent.process import ChildProcess
from cerebro.worker.agent.verdict import RankEnd

_SPEAK_S = 0.3
"""How long the others may take to say what they know, after the first has failed."""
_LOST_S = 0.4
"""And once more, where all that was heard is that a peer is lost: which one, is known in a moment."""

Message = dict[str, Any]

Rank = ChildProcess | RemoteRank
"""A process of this worker, or one of another worker of a gang."""


class GroupChannel:
    """What the ranks say, as if one child said it: see `Channel`.

    Args:
        children: by rank.
        conclude: called once in an attempt, when no more is to be heard; returns how it ended.

    Attributes:
        is_closed: never. A rank whose end is gone has failed, and that is told as a message.
        answers: by rank: a result, or `None` of one that was left between two batches.
        ends: by rank: how it failed.
        may_leave: whether the attempt was asked to end.
        leaving: why another worker of a gang has asked for that; empty if none has.
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
        """Another attempt begins."""
        self.answers: dict[int, TaskResult | None] = {}
        self.ends: dict[int, RankEnd] = {}
        self.may_leave = self._has_concluded = False
        self.leaving = ""

    def close(self) -> None:
        """Give the descriptor back."""
        self._sources.close()

    def fileno(self) -> int:
        """For a selector: readable when a rank has said something, or has ended."""
        return self._sources.fileno()

    @property
    def strays(self) -> int:
        """How many lines were no messages, from all ranks."""
        return sum(child.channel.strays for child in self._children)

    @property
    def stray(self) -> str:
        """One of these, for people."""
        return next((child.channel.stray for child in self._children if child.channel.stray), "")

    def drop(self, message: Message) -> None:
        """Count a message that was understood by nobody."""
        self._children[0].channel.drop(message)

    def pending(self) -> Message | None:
        """What one child would have said, if there is anything."""
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
        """Whether all ranks have told how they ended."""
        return len(self.answers) + len(self.ends) == len(self._children)

    def _hear(self) -> Message | None:
        for rank, child in enumerate(self._children):
            # Asked first: what it said before it ended counts.
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
            # User code's own doing. Whoever follows the attempt says so.
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
        """What the agent of another worker says of its rank, and not the rank itself; false if it is nothing such."""
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
        """Its descriptors stay readable: no more is to be heard of it."""
        for descriptor in (child.channel.fileno(), child.end):
            with suppress(OSError, ValueError):  # it was forgotten before
                self._sources.unregister(descriptor)
