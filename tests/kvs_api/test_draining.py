"""kvs_api drains on SIGTERM: it answers blocked readers and finishes running requests."""

from __future__ import annotations

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import urllib3

from cerebro.contract.records import ExperimentRecord
from tests.kvs_api.bench import LOCATORS
from tests.kvs_api.real import TOKEN, Replica
from tests.kvs_api.test_blocking_reads import wait_until_blocked
from tests.waiting import HANG_S

LIMIT_S = HANG_S


def test_a_blocked_reader_is_answered_and_continues_with_the_successor(replica: Replica) -> None:
    """The empty response makes the client read again from the successor."""
    process = replica.start()
    client = replica.client()
    client.create_experiment(ExperimentRecord(name="one", locators=LOCATORS))
    with ThreadPoolExecutor() as pool:
        blocked = pool.submit(lambda: client.events("one", wait_s=25.0))
        wait_until_blocked(replica)
        process.send_signal(signal.SIGTERM)
        assert blocked.result(LIMIT_S) == ()
        assert process.wait(LIMIT_S) == 0
        again = pool.submit(lambda: client.experiment("one"))
        replica.start()
        assert again.result(LIMIT_S).name == "one"


def test_a_request_in_flight_is_finished(replica: Replica) -> None:
    """Its body arrives after the signal; new connections are refused."""
    process = replica.start()
    content = b"GET /v1/queue HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 4\r\n\r\n"
    with socket.create_connection(("127.0.0.1", replica.port), timeout=LIMIT_S) as connection:
        connection.sendall(content % TOKEN.encode())
        replica.client().queue()
        process.send_signal(signal.SIGTERM)
        refused = urllib3.Retry(connect=0)
        with urllib3.PoolManager(retries=refused) as http:
            deadline = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline:
                try:
                    http.request("GET", f"http://127.0.0.1:{replica.port}/live")
                except urllib3.exceptions.HTTPError:
                    break
        connection.sendall(b"body")
        assert b"200 OK" in connection.recv(1 << 16)
    assert process.wait(LIMIT_S) == 0
