"""Live points: number per second that the store persists from workers' reports.

Redis (which flushes every write before it answers) and kvs_api are the real processes. Threads of one process send
reports over HTTP like 8 workers: each names a running attempt and carries 100 points with loss and accuracy, like one
or two seconds of a sub-epoch with short batches. Afterwards every point exists once, numbered without gaps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.services import ControlPlane, control_plane
from cerebro.contract.events import LivePoint
from cerebro.contract.records import ExperimentRecord, Locator, Locators, WorkerRecord
from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import Position, TrainTask
from cerebro.errors import ClusterError
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.kvs.client import KvsClient

BAR = 5_000.0
WORKERS, POINTS, REPORTS = 8, 100, 40
_NAME = "points"
_LEASE_S = 600.0


def measure() -> dict[str, float]:
    """Return the points per second from the first report to the last answer, and the CPU time by process."""
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name, control_plane(Path(name)) as plane:
        kvs = KvsClient(plane.server, plane.token)
        os.kill(plane.pids["controller"], signal.SIGTERM)
        term = _lead(kvs)
        kvs.create_experiment(
            ExperimentRecord(name=_NAME, locators=Locators(train=Locator(metadata="train.csv")))
        )
        for number in range(WORKERS):
            _begin(kvs, term, number)
        busy = {service: plane.pids[service] for service in ("redis", "kvs_api")}
        before = {service: _cpu_s(pid) for service, pid in busy.items()}
        began = time.monotonic()
        _report_all(plane)
        seconds = time.monotonic() - began
        used = {f"cpu_{service}": _cpu_s(pid) - before[service] for service, pid in busy.items()}
        _check(kvs)
    sent = float(WORKERS * REPORTS * POINTS)
    return {"per_s": sent / seconds, "points": sent, "seconds": seconds, "bar": BAR, **used}


def benchmark() -> Figure:
    """Measure the rate."""
    found = measure()
    return Figure(
        what=f"durable metric points through kvs_api, reports of {POINTS} from {WORKERS} workers",
        measured=f"{found['points']:,.0f} points in {found['seconds']:.2f} s",
        ratio=found["per_s"],
        bar=BAR,
        sense="at least",
        measure="points/s",
        notes=(
            "every point is on disk when its report is answered, is there once, and is numbered without a gap",
            "the senders share the cores; processor seconds: "
            + ", ".join(f"{key[4:]} {value:.1f}" for key, value in found.items() if key.startswith("cpu_")),
        ),
    )


# --- senders -------------------------------------------------------------------------------------


def _report_all(plane: ControlPlane) -> None:
    environment = os.environ | {"CEREBRO_SERVER": plane.server, "CEREBRO_TOKEN": plane.token}
    done = subprocess.run(
        with_parent_death_signal([sys.executable, "-m", "benchmarks.points"]),
        env=environment,
        check=False,
        timeout=300,
    )
    if done.returncode != 0:
        raise ClusterError("the reports were not all taken: see above")


def _send() -> None:
    """Send all reports, with a thread per worker."""
    server, token = os.environ["CEREBRO_SERVER"], os.environ["CEREBRO_TOKEN"]
    refused: list[int] = []

    def work(number: int) -> None:
        kvs = KvsClient(server, token)
        for report in range(REPORTS):
            if not kvs.report(f"worker-{number}", _report(number, report)).current:
                refused.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if refused:
        sys.exit(f"reports of workers {refused} were refused")


def _report(number: int, report: int) -> api.ReportRequest:
    points = tuple(
        LivePoint(
            task=_task(number),
            attempt=1,
            rows=32 * batch,
            total_rows=1_000_000,
            batch=batch,
            values={"loss": 2.3 / (1 + batch), "accuracy": 1 - 0.9 / (1 + batch)},
        )
        for batch in range(report * POINTS, (report + 1) * POINTS)
    )
    return api.ReportRequest(incarnation="a", lease_s=_LEASE_S, live={_NAME: points})


# --- the store -----------------------------------------------------------------------------------


def _lead(kvs: KvsClient) -> int:
    """Return the term of a separate leadership; the controller has no work here, and resigns."""
    deadline = time.monotonic() + 30
    while (answer := kvs.lead("benchmark", _LEASE_S)).term == 0:
        if time.monotonic() > deadline:
            raise ClusterError(f"{answer.holder} leads: its lease did not end")
        time.sleep(0.05)
    return answer.term


def _task(number: int) -> str:
    return f"fit-1/train/m{number:02}/e1/p0"


def _begin(kvs: KvsClient, term: int, number: int) -> None:
    """Register a worker with a running attempt."""
    worker, task = f"worker-{number}", _task(number)
    kvs.register(WorkerRecord(worker=worker, incarnation="a", weight=1.0, cores=1, kinds=("train",)))
    body = TrainTask(
        key=task,
        experiment=_NAME,
        run="fit-1",
        model=f"m{number:02}",
        hyperparams={},
        code="0" * 64,
        dataset="d",
        seed=0,
        hang_timeout_s=_LEASE_S,
        epoch=1,
        partition=0,
        sub_epoch=0,
        position=Position(),
        checkpoint=None,
        keep=(),
    )
    step = api.Assign(task=task, attempt=1, worker=worker, incarnation="a", body=body)
    kvs.decide(_NAME, api.DecideRequest(term=term, after=0, steps=(step,)))
    start = api.Start(experiment=_NAME, task=task, attempt=1)
    kvs.report(worker, api.ReportRequest(incarnation="a", lease_s=_LEASE_S, steps=(start,)))


def _check(kvs: KvsClient) -> None:
    """Check that each point exists once, numbered without gaps."""
    seqs: list[int] = []
    batches: dict[str, list[int]] = {}
    while points := kvs.live(_NAME, len(seqs)):
        seqs += [point.seq for point in points]
        for point in points:
            batches.setdefault(point.task, []).append(point.batch)
    expected = list(range(REPORTS * POINTS))
    if seqs != list(range(1, len(seqs) + 1)) or any(found != expected for found in batches.values()):
        raise ClusterError(f"of {WORKERS * len(expected)} points {len(seqs)} are there, or not in order")


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    _send()
