"""Requests that wait without a thread, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from cerebro.runtime.long_polls import LongPoll, current
from cerebro.runtime.serving import ConnectionLimits, _Channel, create_server
from tests.dispatcher.serving import end
from tests.waiting import HANG_S, until

LIMIT_S = HANG_S
ASKED = b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"


class Waiting:
    """An app with one thread, or more: each request waits for so many seconds, or until it is woken, and is then
    answered with its own body and how often it was asked."""

    def __init__(self, limits: ConnectionLimits | None = None, threads: int = 1) -> None:
        self.parked: list[LongPoll] = []
        self._asked: dict[LongPoll, int] = {}
        self._sockets: dict[int, Any] = {}
        self.server = create_server(
            self._app,
            host="127.0.0.1",
            port=0,
            threads=threads,
            sockets=self._sockets,
            limits=limits or ConnectionLimits(),
        )
        self._loop = threading.Thread(target=self.server.run, daemon=True)
        self._loop.start()

    def _app(self, environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        poll = current()
        assert poll is not None
        body = environ["wsgi.input"].read()
        if environ["PATH_INFO"] == "/now":
            start("200 OK", [("Content-Length", "3")])
            return [b"now"]
        self._asked[poll] = self._asked.get(poll, 0) + 1
        if self._asked[poll] == 1 or not (poll.is_over or environ["PATH_INFO"] == "/woken"):
            self.parked.append(poll)
            poll.park(0.2 if environ["PATH_INFO"] == "/short" else LIMIT_S)
        answer = body + b" %d" % self._asked[poll]
        start("200 OK", [("Content-Length", str(len(answer)))])
        return [answer]

    def ask(self, path: bytes) -> socket.socket:
        """A request that waits."""
        known = len(self.parked)
        connection = socket.create_connection(("127.0.0.1", int(self.server.effective_port)), timeout=LIMIT_S)
        connection.sendall(ASKED % path)
        until(lambda: len(self.parked) > known, "the request waits")
        return connection

    def close(self) -> None:
        """Answer no more."""
        end(self.server, self._sockets, self._loop)


def answered(connection: socket.socket) -> bytes:
    told = b""
    while not told.partition(b"\r\n\r\n")[2]:
        told += connection.recv(1 << 16)
    return told.partition(b"\r\n\r\n")[2]


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    made = Waiting()
    yield made
    made.close()


def test_a_request_that_is_woken_is_asked_again_as_it_was(waiting: Waiting) -> None:
    """With its body; twice at one thread, in any order, and the connection is good for the next one."""
    with waiting.ask(b"woken") as first, waiting.ask(b"woken") as second:
        for poll in reversed(waiting.parked[:2]):
            poll.wake()
            poll.wake()
        assert answered(second) == b"body 2"
        assert answered(first) == b"body 2"
        first.sendall(ASKED % b"short")
        assert answered(first) == b"body 2"


def test_a_wait_that_is_over_is_answered_on_time(waiting: Waiting) -> None:
    """Also if one that waits longer came before."""
    with waiting.ask(b"long"):
        began = time.monotonic()
        with waiting.ask(b"short") as short:
            assert answered(short) == b"body 2"
        assert time.monotonic() - began > 0.15


def test_a_wait_is_no_shorter_for_the_one_before_on_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose answer its reader has before the thread that gave it is done with it."""
    waiting, is_seen = Waiting(threads=2), threading.Event()
    rest = _Channel._rest

    def slow(channel: _Channel) -> None:
        if channel._poll is not None and channel._poll.is_over:
            is_seen.wait(LIMIT_S)
        rest(channel)

    monkeypatch.setattr(_Channel, "_rest", slow)
    with waiting.ask(b"short") as connection:
        assert answered(connection) == b"body 2"
        connection.sendall(ASKED % b"long")
        until(lambda: len(waiting.parked) == 2, "both wait")
        first, second = waiting.parked
        assert first is not second
        assert not second.is_over
        is_seen.set()
        second.end()
        assert answered(connection) == b"body 2"
    waiting.close()


def test_a_reader_that_leaves_gives_its_connection_back(waiting: Waiting) -> None:
    """At once, not when its wait is over."""
    waiting.ask(b"long").close()
    until(lambda: not waiting.server.active_channels, "no connection is left")


def test_whoever_waits_at_the_end_is_answered_and_nobody_waits_after_it(waiting: Waiting) -> None:
    """Those that wait, and one that comes later."""
    with waiting.ask(b"long") as before:
        waiting.server.answer_waiting()
        assert answered(before) == b"body 2"
        with waiting.ask(b"long") as after:
            assert answered(after) == b"body 2"


@pytest.mark.parametrize("readers", [15, 16, 19, 20, 30])
def test_readers_that_wait_leave_connections_for_others(readers: int) -> None:
    """However many ask, of 20 connections at most 15 wait. Beyond that those that came first are answered with what
    there is, and every new caller is served, one that sends its request some time after it has connected, too."""
    made = Waiting(ConnectionLimits(connections=20))
    with ExitStack() as stack:
        stack.callback(made.close)
        waiting = [stack.enter_context(made.ask(b"long")) for _ in range(readers)]
        for delay_s in (0.0, 0.1) * 5:
            address = ("127.0.0.1", int(made.server.effective_port))
            with socket.create_connection(address, timeout=LIMIT_S) as caller:
                threading.Event().wait(delay_s)
                caller.sendall(ASKED % b"now")
                assert answered(caller) == b"now"
        assert [poll.is_over for poll in made.parked[:readers]] == [n < readers - 15 for n in range(readers)]
        if readers > 15:
            assert answered(waiting[0]) == b"body 2"


def test_callers_that_have_just_come_are_not_closed_for_others() -> None:
    """All other connections are taken by requests that wait or are being answered."""
    made = Waiting(ConnectionLimits(connections=4))
    with ExitStack() as stack:
        stack.callback(made.close)
        for _ in range(3):
            stack.enter_context(made.ask(b"long"))
        address = ("127.0.0.1", int(made.server.effective_port))
        caller = stack.enter_context(socket.create_connection(address, timeout=LIMIT_S))
        until(lambda: len(made.server.active_channels) == 4, "four connections")
        threading.Event().wait(0.1)
        caller.sendall(ASKED % b"now")
        assert answered(caller) == b"now"
