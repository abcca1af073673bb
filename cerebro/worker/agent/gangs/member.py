"""This worker's ranks in an attempt that another worker leads.

`Execution.join` runs a `MemberRun` for an inbox item with a member number above 0. It starts local children and passes
messages between them and the leader. Only the leader reports to the store.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from cerebro.contract.base import Contract
from cerebro.contract.tasks.bodies import TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.worker.agent.drain import Drain
from cerebro.worker.agent.gangs.endpoint import GangEndpoint
from cerebro.worker.agent.gangs.handshake import HandshakeError
from cerebro.worker.agent.gangs.remote import JOIN_S
from cerebro.worker.agent.lease import name_of
from cerebro.worker.agent.mailbox import Mailbox
from cerebro.worker.agent.processes.process import ChildProcess
from cerebro.worker.child.rank_page import PAGE, RankPage
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import (
    TO_MEMBER,
    Done,
    Failed,
    FromChild,
    Preempted,
    Progress,
    RankPosition,
    Ranks,
    Ready,
    Rendezvous,
    Saved,
    StartRank,
    ToMember,
    WorkerLeaves,
)

log = logging.getLogger(__name__)

_NOTE_S = 1.0
"""Seconds between two progress notes."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Resources for this worker's ranks.

    Attributes:
        children: one for each rank here.
        codes: user code that a child lacks, by hash.
        folder: new folder for the ranks' page.
    """

    children: Sequence[ChildProcess]
    codes: Mapping[str, str]
    folder: Path


class MemberRun:
    """One worker's part of an attempt. Used by one slot's thread.

    Args:
        item: a gang's sub-epoch; `member` is this worker's number.
        endpoint: this worker's endpoint.
        log_path: the attempt's log; ranks have their own in the same folder.
        mailbox: wakes it after a change of the attempt or the drain.
        is_lost: returns True if the attempt was revoked.
    """

    def __init__(
        self,
        item: InboxItem,
        endpoint: GangEndpoint,
        *,
        log_path: Path,
        mailbox: Mailbox,
        drain: Drain,
        is_lost: Callable[[], bool],
    ) -> None:
        body = item.body
        assert isinstance(body, TrainTask)
        assert body.gang is not None
        self._item, self._body, self._address = item, body, body.gang.address
        self._ranks = body.gang.ranks_of(item.member)
        self._endpoint, self._log_path = endpoint, log_path
        self._mailbox, self._drain, self._is_lost = mailbox, drain, is_lost
        self._lines: list[Channel[ToMember]] = []
        """Connections to the leader, by local rank."""
        self._prepared = Prepared(children=(), codes={}, folder=Path())
        self._page: RankPage | None = None
        self._is_running: set[int] = set()
        """Local ranks that have started and not ended."""
        self._has_announced_leaving = False

    def follow(self, prepare: Callable[[], Prepared | Failure]) -> bool:
        """Take part until the leader has committed the attempt or is gone.

        Returns:
            True if all ranks ended normally, so their processes can be reused.
        """
        with ExitStack() as stack:
            try:
                for rank in self._ranks:
                    end = self._endpoint.connect(self._address, name_of(self._item), rank)
                    stack.enter_context(end)
                    self._lines.append(Channel(end, TO_MEMBER))
            except (OSError, HandshakeError) as error:
                log.warning("%s: the worker that leads cannot be reached: %s", self._item.task, error)
                return True  # the leader notices the missing ranks
            stack.callback(self._close_page)
            prepared = prepare()
            if isinstance(prepared, Failure):
                self._fail(0, prepared)  # of the first local rank; the leader then ends the attempt
                return True
            self._prepared = prepared
            return self._follow()

    def _follow(self) -> bool:
        with selectors.DefaultSelector() as selector:
            for number, (line, child) in enumerate(zip(self._lines, self._prepared.children, strict=True)):
                selector.register(line, selectors.EVENT_READ, (self._receive_from_leader, number))
                selector.register(child.channel, selectors.EVENT_READ, (self._receive_from_child, number))
                selector.register(child.end, selectors.EVENT_READ, (self._handle_exit, number))
            selector.register(self._mailbox, selectors.EVENT_READ)
            noted = time.monotonic()
            while not self._is_over():
                for key, _ in selector.select(_NOTE_S):
                    if key.data is None:
                        self._mailbox.drain()
                        continue
                    handle, number = key.data
                    if not handle(number):
                        with suppress(KeyError, ValueError):  # an ended child's descriptors are gone with it
                            selector.unregister(key.fileobj)
                if time.monotonic() - noted >= _NOTE_S:
                    noted = time.monotonic()
                    self._note()
        is_in_peace = not self._is_running
        for number in self._is_running:
            # Report before killing, which may take long: the others see their connections close.
            self._fail(number, Failure(kind=FailureKind.MEMBER_LOST, message="its worker has ended it"))
        if not is_in_peace:
            for child in self._prepared.children:
                child.kill()
        return is_in_peace

    def _is_over(self) -> bool:
        if self._is_lost() or self._drain.is_superseded or any(line.is_closed for line in self._lines):
            return True
        if self._drain.is_requested and not self._has_announced_leaving:
            self._has_announced_leaving = True
            self._send(0, WorkerLeaves(reason=self._drain.why, grace_s=self._drain.remaining_s))
        return self._drain.is_requested and self._drain.remaining_s <= 0

    def _receive_from_leader(self, number: int) -> bool:
        line, child = self._lines[number], self._prepared.children[number]
        while (message := line.pending()) is not None:
            if isinstance(message, StartRank):
                self._begin(number, message.ranks)
            else:
                child.send(message)
        return not line.is_closed

    def _begin(self, number: int, ranks: Ranks) -> None:
        if self._page is None:
            RankPage.make(self._prepared.folder / PAGE, ranks.size)
            self._page = RankPage(self._prepared.folder / PAGE, ranks.size)
        local_ranks = ranks.model_copy(
            update={"folder": self._prepared.folder, "address": self._endpoint.host}
        )
        path = self._log_path.with_suffix(f".rank{ranks.rank}.log")
        child = self._prepared.children[number]
        if not child.is_alive():
            self._fail(number, child.reap())
            return
        self._is_running.add(number)
        with suppress(OSError):  # it has ended, as its descriptor shows
            child.run(
                self._body,
                self._item.attempt,
                dict(self._prepared.codes),
                path,
                received_at=time.monotonic(),
                ranks=local_ranks,
            )
        if child.is_ready:
            self._send(number, Ready())

    def _receive_from_child(self, number: int) -> bool:
        child = self._prepared.children[number]
        while (message := child.channel.pending()) is not None:
            self._take(number, message)
        return not child.channel.is_closed

    def _take(self, number: int, message: FromChild) -> None:
        child = self._prepared.children[number]
        match message:
            case Ready():
                child.is_ready = True
            case Done() | Preempted():
                self._is_running.discard(number)
            case Failed():
                self._is_running.discard(number)
                message = message.model_copy(update={"failure": child.explained(message.failure)})
            case Progress() | Saved() | Rendezvous():  # only rank 0, on the leading worker, sends them
                child.channel.refuse(message)
                return
        self._send(number, message)

    def _handle_exit(self, number: int) -> bool:
        child = self._prepared.children[number]
        if child.end >= 0:
            self._receive_from_child(number)  # messages sent before it ended count
        if number in self._is_running:
            failure = child.reap()
            self._is_running.discard(number)
            self._fail(number, failure)
        return False

    def _note(self) -> None:
        if self._page is None:
            return
        batches, operations = self._page.batches(), self._page.operations()
        for number, rank in enumerate(self._ranks):
            self._send(number, RankPosition(batch=batches[rank], operations=operations[rank]))

    def _fail(self, number: int, failure: Failure) -> None:
        self._send(number, Failed(failure=failure, failed_at=0.0))

    def _send(self, number: int, message: Contract) -> None:
        with suppress(OSError):  # the reader notices a closed connection
            self._lines[number].send(message)

    def _close_page(self) -> None:
        if self._page is not None:
            self._page.close()


def decline(item: InboxItem, endpoint: GangEndpoint, why: str) -> None:
    """Notify the leader that this worker does not take part."""
    assert isinstance(item.body, TrainTask)
    assert item.body.gang is not None
    failure = Failure(kind=FailureKind.PREEMPTED, message=why)
    rank = item.body.gang.ranks_of(item.member)[0]
    with (
        suppress(OSError, HandshakeError),
        endpoint.connect(item.body.gang.address, name_of(item), rank) as end,
    ):
        Channel(end, TO_MEMBER).send(Failed(failure=failure, failed_at=0.0))
        end.shutdown(socket.SHUT_WR)
        end.settimeout(JOIN_S)
        end.recv(1)  # until the leader has read it
