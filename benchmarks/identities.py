"""Cost of identities: requests to kvs_api with and without users, on one database, with 1,000 tokens in turn.

Requests to both alternate, so that other work on the machine affects both equally. Loopback only.
"""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import urllib3

from benchmarks.figure import Figure
from benchmarks.services import control_plane
from cerebro.contract.accounts.identity import MadeToken, Role, TokenRequest
from cerebro.contract.events import PriorityChanged, RunRequested
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EtlRequest
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.kvs.client import KvsClient

TOKENS, REQUESTS = 1000, 3000
BAR_MS = 0.2
_NAME = "one"


def benchmark() -> list[Figure]:
    """Measure a read, and a member's command."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cerebro-bench-")))
        plane = stack.enter_context(control_plane(folder, ("redis", "kvs_api")))
        users = stack.enter_context(_with_users(plane.database, plane.token, folder))
        operator = KvsClient(users, plane.token)
        tokens = [_new_token(operator, number).token for number in range(TOKENS)]
        ours = KvsClient(users, tokens[0])
        locators = Locators(train=Locator(metadata="/data/train.csv"))
        ours.create_experiment(ExperimentRecord(name=_NAME, locators=locators))
        ours.append(_NAME, RunRequested(run="etl-1", request=_request()))
        command = PriorityChanged(run="etl-1", priority=0).model_dump_json().encode()
        figures = []
        for what, method, path, body in (
            ("a read", "GET", f"/v1/experiments/{_NAME}", None),
            ("a member's command", "POST", f"/v1/experiments/{_NAME}/events", command),
        ):
            one, many = _timed_requests(method, path, body, (plane.server, [plane.token]), (users, tokens))
            figures.append(
                Figure(
                    what=f"identities: {what}, p50 with {TOKENS:,} tokens in turn, more than with one token",
                    measured=f"{many:.2f} ms, {one:.2f} ms with one token",
                    ratio=many - one,
                    bar=BAR_MS,
                    sense="at most",
                    measure="ms",
                    notes=(f"{many - one:+.3f} ms over {REQUESTS:,} requests each, alternating",),
                )
            )
        return figures


def _request() -> EtlRequest:
    return EtlRequest(code="0" * 64, code_fingerprint="1" * 64)


def _new_token(operator: KvsClient, number: int) -> MadeToken:
    name = f"person-{number}"
    return operator.make_token(TokenRequest(name=name, role=Role.MEMBER, projects=("vision",)))


def _timed_requests(
    method: str, path: str, body: bytes | None, *sides: tuple[str, list[str]]
) -> tuple[float, ...]:
    """Return the median milliseconds of each side."""
    took: list[list[float]] = [[] for _ in sides]
    turns = [itertools.cycle(tokens) for _, tokens in sides]
    with urllib3.PoolManager(maxsize=4, retries=False) as http:
        for number in range(REQUESTS + 2 * TOKENS):
            for side, (address, _) in enumerate(sides):
                headers = {"Authorization": f"Bearer {next(turns[side])}", "Content-Type": "application/json"}
                began = time.perf_counter()
                answer = http.request(method, address + path, body=body, headers=headers)
                ended = time.perf_counter()
                assert answer.status == 200, answer.data
                if number >= 2 * TOKENS:  # every token was used before
                    took[side].append(ended - began)
    return tuple(statistics.median(times) * 1000 for times in took)


@contextmanager
def _with_users(database: Path, token: str, folder: Path) -> Iterator[str]:
    """Start kvs_api with users on the same database and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        bind = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {
        **os.environ,
        "CEREBRO_AUTH_MODE": "users",
        "CEREBRO_BIND": bind,
        "CEREBRO_REDIS_URL": f"unix://{database}",
        "CEREBRO_TOKEN": token,
    }
    command = with_parent_death_signal((sys.executable, "-m", "kvs_api"))
    with (folder / "users.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        KvsClient(f"http://{bind}", token).health()
        yield f"http://{bind}"
    finally:
        process.terminate()
        process.wait()
