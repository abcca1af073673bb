"""Workers that do nothing, for `control_plane`: the real agent with its real protocol, whose tasks are waits.

``python -m benchmarks.idlers COUNT SECONDS`` runs that many of them as threads of one process; they find the store as
any worker does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace

from cerebro.agent.loop import Agent, Resources
from cerebro.agent.settings import Settings
from cerebro.contract.tasks import KINDS, CheckpointRef, EtlTask, Failure, InboxItem, TaskResult
from cerebro.kvs import KvsClient

ROWS = 100
"""Rows each partition is said to have."""


class Idler(Agent):
    """An agent that has no child: a unit is a wait of so many seconds, an ETL task takes no time."""

    seconds = 0.0

    def _answer(self, item: InboxItem) -> TaskResult | Failure:
        if isinstance(item.body, EtlTask):
            return TaskResult(rows=ROWS)
        time.sleep(self.seconds)
        checkpoint = CheckpointRef(name=f"{item.task}-a{item.attempt}.pt", checksum="0" * 16, size=1)
        return TaskResult(rows=ROWS, metrics={"loss": 1.0}, checkpoint=checkpoint)


def main() -> None:
    """Work until SIGTERM."""
    count, seconds = int(sys.argv[1]), float(sys.argv[2])
    Idler.seconds = seconds
    settings = Settings.from_environment(os.environ | {"CEREBRO_WORKER": "worker"})
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for number in range(count):
        resources = Resources(gpus=(), holdings=(), host="", pid=os.getpid())
        # Each worker is a process of its own in truth, so none shares connections with another.
        kvs = KvsClient(settings.server, settings.token)
        worker = Idler(kvs, replace(settings, worker=f"worker-{number}"), dict.fromkeys(KINDS, ""), resources)
        threading.Thread(target=worker.run, daemon=True).start()
    signal.pause()


if __name__ == "__main__":
    main()
