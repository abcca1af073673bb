"""Waiting requests hold a connection but no thread, and leave connections for others."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from cerebro.contract.records import ExperimentRecord
from cerebro.runtime.web.serving import ConnectionLimits
from tests.kvs_api.bench import LOCATORS
from tests.kvs_api.real import TOKEN, Service
from tests.kvs_api.test_many_readers import READ, answer
from tests.waiting import HANG_S, until

NOW = f"GET /v1/queue HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()


@contextmanager
def limited(service: Service, connections: int) -> Iterator[Service]:
    """Another service over the same database with an experiment and few connections."""
    with Service(service.database, limits=ConnectionLimits(connections=connections)) as made:
        client = made.client()
        client.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
        client.close()
        until(lambda: not made.connections, "the client has left")
        yield made


def connect(service: Service, content: bytes = b"") -> socket.socket:
    """Connect and send `content`."""
    connection = socket.create_connection(("127.0.0.1", service.port), timeout=HANG_S)
    connection.sendall(content)
    return connection


def test_a_reader_that_leaves_is_forgotten_at_once(service: Service) -> None:
    with limited(service, 20) as made:
        connect(made, READ).close()
        until(lambda: not made.connections and not made.waiting, "nobody waits")


def test_waiting_requests_are_answered_at_the_end(service: Service) -> None:
    """Waiting requests are answered at once, and so are later ones."""
    with limited(service, 20) as made, connect(made, READ) as before:
        until(lambda: made.waiting == 1, "one waits")
        made.answer_waiting()
        assert b'{"events":[]}' in answer(before)
        with connect(made, READ) as after:
            assert b'{"events":[]}' in answer(after)


@pytest.mark.parametrize("readers", [15, 16, 19, 20, 30])
def test_waiting_readers_do_not_use_up_the_connections(service: Service, readers: int) -> None:
    """At most 15 of 20 connections may wait, for any number of readers.

    Other callers are served, even if they connect first and send later.
    """
    with limited(service, 20) as made, ExitStack() as stack:
        waiting = [stack.enter_context(connect(made, READ)) for _ in range(15)]
        until(lambda: made.waiting == 15, "15 wait")
        for _ in range(readers - 15):
            newest = stack.enter_context(connect(made, READ))
            (early,), _, _ = select.select(waiting, [], [], HANG_S)
            assert b'{"events":[]}' in answer(early)
            early.close()
            waiting = [*(each for each in waiting if each is not early), newest]
        for delay_s in (0.0, 0.1):
            with connect(made) as caller:
                threading.Event().wait(delay_s)
                caller.sendall(NOW)
                assert b"200 OK" in answer(caller)
        until(lambda: made.waiting == 15, "15 wait")
