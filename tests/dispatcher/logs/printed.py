"""Write the output of the running experiment's sub-epochs to a log volume."""

from __future__ import annotations

from pathlib import Path

from cerebro.runtime.volumes import Volumes
from dispatcher.logs.view import Source

M07 = "fit-1/train/m07/e1/p0"
M05 = "fit-1/train/m05/e1/p0"


def write(volumes: Volumes, task: str, content: bytes, attempt: int = 1) -> Path:
    path = volumes.task_log("digits", task, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def source(task: str = M05, attempt: int = 1) -> Source:
    return Source(
        task=task,
        attempt=attempt,
        what="",
        model="m05",
        worker="worker-0",
        started=1,
        ended=0,
        outcome="running",
    )
