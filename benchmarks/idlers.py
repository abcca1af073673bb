"""Workers for `control_plane`: the real agent with its real protocol, with waits as tasks.

``python -m benchmarks.idlers COUNT SECONDS [DEVICES]`` runs that many workers as threads of one process, each with that
many devices; they find the store like any worker.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace

from cerebro.contract.records import Replica
from cerebro.contract.tasks.bodies import KINDS, EtlTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import Failure
from cerebro.contract.tasks.inbox import InboxItem
from cerebro.contract.tasks.results import TaskResult
from cerebro.runtime.kvs.client import KvsClient
from cerebro.worker.agent.devices import WorkerDevices
from cerebro.worker.agent.execution import Execution
from cerebro.worker.agent.loop import Agent
from cerebro.worker.agent.reports import Resources
from cerebro.worker.agent.settings import Settings
from cerebro.worker.agent.slot import Slot

ROWS = 100
"""Reported rows of each partition."""


class Wait(Execution):
    """A sub-epoch waits for a time, and an ETL task takes no time; there is no child process."""

    def __init__(self, seconds: float, replicas: list[Replica]) -> None:
        self._seconds, self._new_slot = seconds, replicas
        self._begun: float | None = None
        self.previous = None

    def begin_early(self, item: InboxItem) -> None:
        """Start to wait."""
        self._begun = time.monotonic() if self.may_begin_early(item) else None

    def end_early(self) -> None:
        """Do nothing."""

    def run(self, item: InboxItem) -> list[tuple[InboxItem, TaskResult | Failure]]:
        """Wait for the rest of the time; a partition is ready at once."""
        if isinstance(item.body, EtlTask):
            self._new_slot.append(Replica(dataset=item.body.dataset, partition=item.body.partition))
            return [(item, TaskResult(rows=ROWS))]
        begun, self._begun, self.previous = self._begun or time.monotonic(), None, item.body
        time.sleep(max(0.0, begun + self._seconds - time.monotonic()))
        checkpoint = CheckpointRef(name=f"{item.task}-a{item.attempt}.pt", checksum="0" * 16, size=1)
        return [(item, TaskResult(rows=ROWS, metrics={"loss": 1.0}, checkpoint=checkpoint))]


class Idler(Agent):
    """An agent that waits."""

    def __init__(self, kvs: KvsClient, settings: Settings, seconds: float) -> None:
        self._seconds, self._replicas = seconds, list[Replica]()
        number = settings.devices or 1
        devices = WorkerDevices(max(settings.cores, number), number)
        resources = Resources(
            devices=devices, replicas=lambda: tuple(self._replicas), host="", pid=os.getpid()
        )
        super().__init__(kvs, settings, dict.fromkeys(KINDS, ""), resources)

    def _new_slot(self, devices: tuple[int, ...]) -> Slot:
        slot = super()._new_slot(devices)
        slot.execution = Wait(self._seconds, self._replicas)
        return slot


def main() -> None:
    """Run the workers until SIGTERM."""
    count, seconds = int(sys.argv[1]), float(sys.argv[2])
    devices = sys.argv[3] if len(sys.argv) > 3 else "1"
    settings = Settings.from_environment(
        os.environ | {"CEREBRO_WORKER": "worker", "CEREBRO_DEVICES": devices}
    )
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for number in range(count):
        # Real workers are separate processes, so these share no connections.
        kvs = KvsClient(settings.server, settings.token)
        worker = Idler(kvs, replace(settings, worker=f"worker-{number}"), seconds)
        threading.Thread(target=worker.run, daemon=True).start()
    signal.pause()


if __name__ == "__main__":
    main()
