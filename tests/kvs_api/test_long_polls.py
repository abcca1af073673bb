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
    with Service(service.database, limits=ConnectionLimits(connections=connections)) as limited_service:
        client = limited_service.client()
        client.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
        client.close()
        until(lambda: not limited_service.connections, "the client has left")
        yield limited_service


def connect(service: Service, content: bytes = b"") -> socket.socket:
    """Connect and send `content`."""
    connection = socket.create_connection(("127.0.0.1", service.port), timeout=HANG_S)
    connection.sendall(content)
    return connection


def test_a_reader_that_leaves_is_forgotten_at_once(service: Service) -> None:
    with limited(service, 20) as small:
        connect(small, READ).close()
        until(lambda: not small.connections and not small.waiting, "nobody waits")


def test_waiting_requests_are_answered_at_the_end(service: Service) -> None:
    """Waiting requests are answered at once, and so are later ones."""
    with limited(service, 20) as small, connect(small, READ) as before:
        until(lambda: small.waiting == 1, "one waits")
        small.answer_waiting()
        assert b'{"events":[]}' in answer(before)
        with connect(small, READ) as after:
            assert b'{"events":[]}' in answer(after)


@pytest.mark.parametrize("readers", [15, 16, 19, 20, 30])
def test_waiting_readers_do_not_use_up_the_connections(service: Service, readers: int) -> None:
    """At most 15 of 20 connections may wait, for any number of readers.

    Other callers are served, even if they connect first and send later.
    """
    with limited(service, 20) as small, ExitStack() as stack:
        waiting = [stack.enter_context(connect(small, READ)) for _ in range(15)]
        until(lambda: small.waiting == 15, "15 wait")
        for _ in range(readers - 15):
            newest = stack.enter_context(connect(small, READ))
            (early,), _, _ = select.select(waiting, [], [], HANG_S)
            assert b'{"events":[]}' in answer(early)
            early.close()
            waiting = [*(each for each in waiting if each is not early), newest]
        for delay_s in (0.0, 0.1):
            with connect(small) as caller:
                threading.Event().wait(delay_s)
                caller.sendall(NOW)
                assert b"200 OK" in answer(caller)
        until(lambda: small.waiting == 15, "15 wait")
