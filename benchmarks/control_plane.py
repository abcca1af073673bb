"""Control plane: makespan of many short sub-epochs relative to the ideal, on workers that only wait.

Redis (which flushes every write before it answers), kvs_api and the controller are the real processes. The workers are
real agents without a child process, as threads of one process. A wait starts when a child would start to train: for all
but a model's first sub-epoch, when the store is asked for the sub-epoch. 125 models train on 16 partitions once, each
partition on one worker, so each worker has exactly 125 sub-epochs, ideally 125 x 0.25 s. A second run has 4 workers
with 4 devices each, and 500 models on 4 partitions. The makespan runs from the request to the end of the run, by the
store's clock.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.gap import gaps_s
from benchmarks.services import ControlPlane, control_plane
from cerebro.contract.events import Event, RunFinished, RunRequested, TaskCommitted, TaskRevoked, TaskStarted
from cerebro.contract.records import ExperimentRecord, Hyperparameters, Locator, Locators
from cerebro.contract.runs import EtlRequest, FitRequest, Request
from cerebro.errors import ClusterError
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.kvs.client import KvsClient
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.usercode.encoding import encode

BAR = 1.05
SUB_EPOCHS, SLOTS, SUB_EPOCH_S = 2000, 16, 0.25
_NAME = "control-plane"
_LONGEST_S = 300.0
_SAME_REQUEST_S = 0.001


def measure(workers: int = SLOTS) -> dict[str, float]:
    """Return the makespan, its ratio to the ideal one, and the rest by cause.

    Args:
        workers: number of workers that share the device slots.
    """
    with (
        tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name,
        control_plane(Path(name)) as plane,
        _idlers(plane, workers) as idlers,
    ):
        kvs = KvsClient(plane.server, plane.token)
        _prepare(kvs, Path(name), workers)
        pids = {**plane.pids, "workers": idlers}
        before = {service: _cpu_s(pid) for service, pid in pids.items()}
        _run(kvs, "fit-1", _fit(kvs, SUB_EPOCHS // workers))
        used = {f"cpu_{service}": _cpu_s(pid) - before[service] for service, pid in pids.items()}
        return {**_found(_events(kvs)), **used, "bar": BAR}


def benchmark() -> list[Figure]:
    """Measure both clusters."""
    return [
        _figure(measure(SLOTS), f"{SLOTS} do-nothing workers"),
        _figure(measure(4), f"4 do-nothing workers of {SLOTS // 4} devices"),
    ]


def _figure(found: dict[str, float], who: str) -> Figure:
    return Figure(
        what=f"control plane: {found['sub_epochs']:,.0f} sub-epochs of {SUB_EPOCH_S:g} s on {who}",
        measured=f"{found['makespan_s']:.2f} s, ideal {found['ideal_s']:.2f} s",
        ratio=found["ratio"],
        bar=BAR,
        sense="at most",
        notes=(
            f"median from start to commit of a sub-epoch in the store: {found['median_sub_epoch_ms']:.0f} ms (95 % "
            f"within "
            f"{found['p95_sub_epoch_ms']:.0f} ms); commit and next start come in one request",
            f"first start {found['first_start_ms']:.0f} ms after the request; the workers ended within "
            f"{found['tail_s']:.2f} s of each other",
            f"{found['late']:.0f} sub-epochs had to wait for their assignment, {found['waited_s']:.2f} s in all; "
            f"{found['revoked']:.0f} queued sub-epochs were revoked for an idle worker",
            "processor seconds: "
            + ", ".join(f"{key[4:]} {value:.1f}" for key, value in found.items() if key.startswith("cpu_")),
        ),
    )


# --- the run -------------------------------------------------------------------------------------------------------


@contextmanager
def _idlers(plane: ControlPlane, workers: int) -> Iterator[int]:
    environment = os.environ | {"CEREBRO_SERVER": plane.server, "CEREBRO_TOKEN": plane.token}
    environment["CEREBRO_VOLUMES"] = tempfile.gettempdir()
    command = [
        sys.executable,
        "-m",
        "benchmarks.idlers",
        str(workers),
        str(SUB_EPOCH_S),
        str(SLOTS // workers),
    ]
    process = subprocess.Popen(with_parent_death_signal(command), env=environment, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _prepare(kvs: KvsClient, folder: Path, workers: int) -> None:
    """Create an experiment with one training partition per worker."""
    deadline = time.monotonic() + _LONGEST_S
    while len(kvs.workers()) < workers:
        if time.monotonic() > deadline:
            raise ClusterError("the do-nothing workers did not register")
        time.sleep(0.05)
    metadata = folder / "train.csv"
    metadata.write_text("id\n" + "".join(f"{row}\n" for row in range(100 * workers)))
    locators = Locators(train=Locator(metadata=str(metadata)))
    kvs.create_experiment(ExperimentRecord(name=_NAME, locators=locators))
    code = kvs.put_code(encode(ETLSpec()))
    _run(kvs, "etl-1", EtlRequest(code=code.sha256, code_fingerprint=code.fingerprint))


def _fit(kvs: KvsClient, number: int) -> FitRequest:
    code = kvs.put_code(encode(SubEpochSpec()))
    models: tuple[Hyperparameters, ...] = tuple(
        {"batch_size": 10, "lr": 0.1 / n} for n in range(1, number + 1)
    )
    return FitRequest(code=code.sha256, models=models, epochs=1, metric="loss", mode="min")


def _run(kvs: KvsClient, run: str, request: Request) -> None:
    """Request a run and wait for its end without reading its events."""
    kvs.append(_NAME, RunRequested(run=run, request=request))
    deadline = time.monotonic() + _LONGEST_S
    while kvs.queue():
        if time.monotonic() > deadline:
            raise ClusterError(f"{run} did not end within {_LONGEST_S:g} s")
        time.sleep(0.2)
    ends = [event for event in _events(kvs) if isinstance(event, RunFinished) and event.run == run]
    if not ends or ends[-1].outcome != "finished":
        raise ClusterError(f"{run} did not finish: {ends}")


def _events(kvs: KvsClient) -> list[Event]:
    found: list[Event] = []
    while events := kvs.events(_NAME, found[-1].seq if found else 0):
        found.extend(events)
    return found


# --- figures -------------------------------------------------------------------------------------------------------


def _found(events: list[Event]) -> dict[str, float]:
    fit = [event for event in events if getattr(event, "task", getattr(event, "run", "")).startswith("fit-1")]
    requested = next(event.time for event in fit if isinstance(event, RunRequested))
    ended = next(event.time for event in fit if isinstance(event, RunFinished))
    starts = [event.time for event in fit if isinstance(event, TaskStarted)]
    sub_epochs = sum(isinstance(event, TaskCommitted) for event in fit)
    gaps, lasts = gaps_s(fit)
    durations = _durations_s(fit)
    ideal = sub_epochs * SUB_EPOCH_S / SLOTS
    return {
        "sub_epochs": sub_epochs,
        "makespan_s": ended - requested,
        "ideal_s": ideal,
        "ratio": (ended - requested) / ideal,
        "first_start_ms": 1000 * (min(starts) - requested),
        "median_sub_epoch_ms": 1000 * statistics.median(durations),
        "p95_sub_epoch_ms": 1000 * statistics.quantiles(durations, n=20)[-1],
        "late": sum(gap > _SAME_REQUEST_S for gap in gaps),
        "waited_s": sum(gaps),
        "tail_s": max(lasts) - min(lasts),
        "revoked": sum(isinstance(event, TaskRevoked) for event in fit),
    }


def _durations_s(events: list[Event]) -> list[float]:
    """Return the seconds from each sub-epoch's start to its commit."""
    started: dict[str, float] = {}
    durations = []
    for event in events:
        if isinstance(event, TaskStarted):
            started[event.task] = event.time
        elif isinstance(event, TaskCommitted):
            durations.append(event.time - started[event.task])
    return durations


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
