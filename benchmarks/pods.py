"""Pods deleted in a run, on a cluster where the chart is installed: ``python -m benchmarks.pods [-n NAMESPACE]``.

Not part of ``make bench``, because it needs a cluster: `kubectl` on PATH with a context, a release `cerebro` with two
workers and the notebook. Three runs: a worker's pod is deleted in the first, one of kvs-api in the second, the
controller's in the third. All times are the store's clock, from the event log; memory is the resident memory of each
container's first process after the runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from benchmarks.pods_job import EPOCHS, MODELS

AFTER = 8
"""Committed sub-epochs, out of 24, before the pod is deleted."""
_JOB = Path(__file__).with_name("pods_job.py")

Log = list[dict[str, Any]]


class Cluster:
    """Queries through `kubectl`."""

    def __init__(self, namespace: str) -> None:
        self._kubectl = ["kubectl", "-n", namespace]

    def pod(self, component: str) -> str:
        """Return the name of a running pod of the component."""
        selector = f"app.kubernetes.io/component={component}"
        found = self.output("get", "pods", "-l", selector, "-o", "jsonpath={.items[0].metadata.name}")
        if not found:
            raise SystemExit(f"no pod of {component}: is the chart installed in this namespace (-n)?")
        return found

    def output(self, *arguments: str) -> str:
        """Return the output of a command, which must succeed."""
        return subprocess.run(
            [*self._kubectl, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    def disturbed(self, name: str, pod: str) -> tuple[Log, float]:
        """Return the log of a fit during which the pod was deleted, and the time of the deletion."""
        command = [*self._kubectl, "exec", "-i", "deployment/cerebro-notebook", "--", "python", "-", name]
        job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert job.stdin is not None
        assert job.stdout is not None
        job.stdin.write(_JOB.read_text())
        job.stdin.close()
        log: Log = []
        deleted = 0.0
        for line in job.stdout:
            if line.startswith("{"):
                log.append(json.loads(line))
            elif line.split() == ["committed", str(AFTER)]:
                deleted = time.time()
                self.output("delete", "pod", pod, "--wait=false")
        if job.wait() or not deleted:
            raise SystemExit(f"the job {name} failed: see above")
        return log, deleted

    def memory_mb(self, component: str) -> float:
        """Return the resident memory of the component's process."""
        status = self.output("exec", self.pod(component), "--", "cat", "/proc/1/status")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pods", description=__doc__)
    parser.add_argument("-n", "--namespace", default="cerebro")
    cluster = Cluster(parser.parse_args().namespace)
    stamp = f"pods-{int(time.time())}"
    figures = [_worker(*cluster.disturbed(f"{stamp}-worker", "cerebro-worker-1"))]
    for component in ("kvs-api", "controller"):
        log, deleted = cluster.disturbed(f"{stamp}-{component}", cluster.pod(component))
        figures.append(_service(component, log, deleted))
    for component in ("controller", "dispatcher", "kvs-api"):
        memory = cluster.memory_mb(component)
        figures.append(
            Figure(
                what=f"memory of {component} after the runs",
                measured=f"{memory:.0f} MB",
                ratio=memory,
                bar=150,
                sense="at most",
                measure="MB",
            )
        )
    for figure in figures:
        sys.stdout.write(" | ".join(figure.cells()) + "\n")
        sys.stdout.writelines(f"  {note}\n" for note in figure.notes)


def _worker(log: Log, deleted: float) -> Figure:
    """Measure the time from the return of a partition's holder to the restart of the interrupted sub-epoch."""
    interrupted = [
        e for e in log if e["type"] in ("TaskFailed", "TaskRevoked") and e["worker"] == "cerebro-worker-1"
    ]
    if not interrupted:
        raise SystemExit("no sub-epoch was interrupted: the pod was deleted between two of them; try again")
    task = interrupted[0]["task"]
    back = [e["time"] for e in log if e["type"] == "WorkerJoined" and e["worker"] == "cerebro-worker-1"][-1]
    again = [e["time"] for e in log if e["type"] == "TaskStarted" and e["task"] == task][-1]
    return Figure(
        what="pod of a worker deleted in a run: from its return to its sub-epoch's new start",
        measured=f"{again - back:.2f} s",
        ratio=again - back,
        bar=5,
        sense="at most",
        measure="s",
        notes=(
            f"the sub-epoch was released {interrupted[0]['time'] - deleted:.2f} s after the deletion, the new pod "
            f"had "
            f"registered after {back - deleted:.1f} s",
            _outcome(log),
        ),
    )


def _service(component: str, log: Log, deleted: float) -> Figure:
    """Measure the longest time that a worker idled after the deletion."""
    idle = 0.0
    for worker in ("cerebro-worker-0", "cerebro-worker-1"):
        events = [
            e for e in log if e.get("worker") == worker and e["type"] in ("TaskCommitted", "TaskStarted")
        ]
        for before, after in pairwise(events):
            if (
                before["type"] == "TaskCommitted"
                and after["type"] == "TaskStarted"
                and after["time"] > deleted
            ):
                idle = max(idle, after["time"] - before["time"])
    return Figure(
        what=f"pod of {component} deleted in a run: longest idle time of a worker",
        measured=f"{idle:.2f} s",
        ratio=idle,
        bar=10,
        sense="at most",
        measure="s",
        notes=(_outcome(log),),
    )


def _outcome(log: Log) -> str:
    commits = [e["task"] for e in log if e["type"] == "TaskCommitted" and "/train/m" in e["task"]]
    failed = [e for e in log if e["type"] == "TaskFailed" and e["failure"]["kind"] != "preempted"]
    if len(commits) != len(set(commits)) or len(commits) != 2 * MODELS * EPOCHS:
        raise SystemExit(f"{len(commits)} sub-epochs were committed, {len(set(commits))} different ones")
    return f"{len(commits)} sub-epochs, each committed once; failed attempts: {len(failed)}"


if __name__ == "__main__":
    main()
