"""Simulated agents for `thousand_workers`: hundreds in one thread, with the real agent's requests.

``python -m benchmarks.agents FIRST COUNT SUB_EPOCH_S`` runs `COUNT` agents in one process. Each has the real agent's
two connections: it waits for its inbox on one, and reports every two seconds, with task starts and ends, on the other.
A partition is ready at once. A sub-epoch takes `SUB_EPOCH_S` seconds and is followed by the next queued one in the same
report. Requests have the paths, headers and bodies of `cerebro.runtime.kvs.client` and the real agent; the contract's
models build the bodies.

Commands come on standard input, one per line: ``measure`` starts to record report times, ``report`` prints them as JSON
and clears them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from cerebro.contract.records import Device, Replica, WorkerRecord, WorkerUsage
from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import KINDS, EtlTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.tasks.results import TaskResult

REPORT_S, LEASE_S, INBOX_S = 2.0, 10.0, 20.0
"""As in the agent's settings and loop."""
CROWDED_S = 1.0
_TIMEOUT_S = 60.0
ROWS = 100


class Connection(asyncio.Protocol):
    """A persistent connection for one request at a time, opened on demand and again after a failure."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._address = address
        self._head = f"Host: {address[0]}:{address[1]}\r\nAuthorization: Bearer {token}\r\n"
        self._head += "Content-Type: application/json\r\n"
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    async def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Return status and body of the answer; reopen a failed connection, like a client."""
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        content = f"{method} {path} HTTP/1.1\r\n{length}{self._head}\r\n".encode() + (body or b"")
        while True:
            with suppress(OSError):
                if self._transport is None:
                    loop = asyncio.get_running_loop()
                    await loop.create_connection(lambda: self, *self._address)
                assert self._transport is not None
                self._answer = asyncio.get_running_loop().create_future()
                self._transport.write(content)
                status, answer = await asyncio.wait_for(self._answer, _TIMEOUT_S)
                if status not in (502, 503, 504):
                    return status, answer
            await asyncio.sleep(0.05)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport, self._received = transport, bytearray()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending request."""
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("closed"))

    def data_received(self, data: bytes) -> None:
        """Collect a part of an answer."""
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end]).lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._received) < end + 4 + length or self._answer is None or self._answer.done():
            return
        body = bytes(self._received[end + 4 : end + 4 + length])
        del self._received[: end + 4 + length]
        self._answer.set_result((int(head[9:12]), body))


class Measured:
    """Seconds that reports took and that the loop was late, and unexpected answers."""

    def __init__(self) -> None:
        self.is_on = False
        self.clear()

    def clear(self) -> None:
        """Clear all records."""
        self.reports: list[float] = []
        self.late: list[float] = []
        self.inboxes: list[float] = []
        self.refused = self.commits = self.early = 0

    def report(self) -> dict[str, object]:
        """Return the records for the benchmark."""
        return {
            "reports": self.reports,
            "late": self.late,
            "inboxes": self.inboxes,
            "refused": self.refused,
            "commits": self.commits,
            "early": self.early,
        }


class SimulatedAgent:
    """A simulated worker."""

    def __init__(self, number: int, server: str, token: str, sub_epoch_s: float, measured: Measured) -> None:
        self.name, self._incarnation = f"worker-{number:04}", f"{number:032x}"
        place = urlsplit(server)
        address = place.hostname or "", place.port or 0
        self._inbox, self._reports = Connection(address, token), Connection(address, token)
        self._sub_epoch_s, self._measured = sub_epoch_s, measured
        self._replicas: list[Replica] = []
        self._are_replicas_told = True
        self._waiting: deque[InboxItem] = deque()
        self._running: InboxItem | None = None
        self._sending = asyncio.Lock()
        self._has_news = asyncio.Event()
        self._rng = random.Random(number)

    async def run(self) -> None:
        """Register, then read the inbox, report and work."""
        record = WorkerRecord(
            worker=self.name,
            incarnation=self._incarnation,
            weight=1.0,
            cores=1,
            machine_cores=2,
            devices=(Device(kind="cpu", name="1 core", threads=1),),
            kinds=KINDS,
            host=f"node-{self.name}",
            pid=1,
        )
        body = record.model_dump_json().encode()
        status, answer = await self._reports.ask("PUT", f"/v1/workers/{self.name}", body)
        if status != 200:
            raise RuntimeError(f"{self.name} was not registered: {status} {answer!r}")
        await asyncio.gather(self._read_inbox(), self._report_regularly(), self._work())

    async def _read_inbox(self) -> None:
        cursor = 0
        while True:
            path = f"/v1/workers/{self.name}/inbox?incarnation={self._incarnation}&after={cursor}&wait_s={INBOX_S}"
            began = time.perf_counter()
            status, answer = await self._inbox.ask("GET", path)
            items = api.InboxAnswer.model_validate_json(answer).items if status == 200 else ()
            if not items and time.perf_counter() - began < INBOX_S / 2:
                self._measured.early += self._measured.is_on
                await asyncio.sleep(CROWDED_S)
            for item in items:
                cursor = item.seq
                if item.body is not None:
                    self._waiting.append(item)
                elif item.cancel:
                    self._drop(item)
                self._has_news.set()

    def _drop(self, named: InboxItem) -> None:
        name = named.experiment, named.task, named.attempt
        self._waiting = deque(i for i in self._waiting if (i.experiment, i.task, i.attempt) != name)
        if self._running is not None and (named.task, named.attempt) == (
            self._running.task,
            self._running.attempt,
        ):
            self._running = None

    async def _report_regularly(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, REPORT_S))
        while True:
            running = self._running
            steps: list[api.Report] = [] if running is None else [api.Renew(**_named(running))]
            await self._report(steps, has_usage=True)
            due = time.perf_counter() + REPORT_S
            await asyncio.sleep(REPORT_S)
            if self._measured.is_on:
                self._measured.late.append(max(0.0, time.perf_counter() - due))

    async def _work(self) -> None:
        while True:
            if self._running is None:
                if not self._waiting:
                    self._has_news.clear()
                    await self._has_news.wait()
                    continue
                item = self._waiting.popleft()
                if await self._report([api.Start(**_named(item))]):
                    self._running = item
            item_now = self._running
            if item_now is not None:
                is_sub_epoch = not isinstance(item_now.body, EtlTask)
                await asyncio.sleep(self._rng.uniform(0.5, 1.5) * self._sub_epoch_s if is_sub_epoch else 0.0)
                await self._end(item_now)

    async def _end(self, item: InboxItem) -> None:
        """Commit, and start the next queued sub-epoch in the same report."""
        if self._running is not item:
            return
        if isinstance(item.body, EtlTask):
            self._replicas.append(Replica(dataset=item.body.dataset, partition=item.body.partition))
            self._are_replicas_told = False
            result = TaskResult(rows=ROWS)
        else:
            checkpoint = CheckpointRef(name=f"{item.task}-a{item.attempt}.pt", checksum="0" * 16, size=1)
            result = TaskResult(rows=ROWS, metrics={"loss": 1.0}, checkpoint=checkpoint)
        steps: list[api.Report] = [api.Commit(**_named(item), result=result)]
        following = self._waiting.popleft() if self._waiting else None
        if following is not None:
            steps.append(api.Start(**_named(following)))
        outcomes = await self._report(steps)
        self._running = following if following is not None and outcomes else None
        self._measured.commits += self._measured.is_on

    async def _report(self, steps: list[api.Report], *, has_usage: bool = False) -> bool:
        """Send steps; return True if all were applied."""
        async with self._sending:
            running = self._running
            replicas = None if self._are_replicas_told else tuple(self._replicas)
            request = api.ReportRequest(
                incarnation=self._incarnation,
                lease_s=LEASE_S,
                steps=tuple(steps),
                checkpoint_free_bytes=10**12,
                running=running.task if running is not None else None,
                replicas=replicas,
                usage=_usage(self._rng) if has_usage else None,
            )
            began = time.perf_counter()
            status, answer = await self._reports.ask(
                "POST", f"/v1/workers/{self.name}/reports", request.model_dump_json().encode()
            )
            taken = time.perf_counter() - began
        self._are_replicas_told |= replicas is not None and status == 200
        if self._measured.is_on:
            self._measured.reports.append(taken)
        if status != 200:
            self._measured.refused += 1
            return False
        outcomes = api.ReportAnswer.model_validate_json(answer).outcomes
        refused = [outcome for outcome in outcomes if outcome.outcome == "refused"]
        self._measured.refused += len(refused)
        return not refused


def _named(item: InboxItem) -> dict[str, Any]:
    return {"experiment": item.experiment, "task": item.task, "attempt": item.attempt}


def _usage(rng: random.Random) -> WorkerUsage:
    return WorkerUsage(
        cores_used=round(rng.random(), 3),
        cores=1,
        memory_bytes=rng.randrange(10**9),
        memory_limit_bytes=10**9,
        shards_used_bytes=10**9,
        shards_total_bytes=10**12,
    )


async def _serve(first: int, count: int, sub_epoch_s: float) -> None:
    server, token = os.environ["CEREBRO_SERVER"], os.environ["CEREBRO_TOKEN"]
    measured = Measured()
    agents = [SimulatedAgent(n, server, token, sub_epoch_s, measured) for n in range(first, first + count)]
    async with asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(agent.run())
            await asyncio.sleep(0.002)
        group.create_task(_obey(measured))


async def _obey(measured: Measured) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        if line.strip() == b"measure":
            measured.clear()
            measured.is_on = True
        elif line.strip() == b"report":
            print(json.dumps(measured.report()), flush=True)
            measured.clear()
    os._exit(0)


def main() -> None:
    """Run the agents until standard input ends."""
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))


if __name__ == "__main__":
    main()
