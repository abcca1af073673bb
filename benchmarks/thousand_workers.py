"""A thousand agents over HTTP at one kvs_api, with a real Redis and a real controller, on two cores.

Every agent waits for its inbox and reports every two seconds; each trains sub-epochs of half a minute, in a run of
1,000 models on 1,000 partitions. The services are the real processes, as the local cluster starts them. Two processes
simulate the agents (`benchmarks.agents`), each with an event loop that sends real agents' requests. Real agents have
separate machines. So both processes share one core, the other core serves the services alone, and the notes report the
small part that the agents take. The notes also report the delays of the agents' clocks, which are included in the
reported seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from benchmarks.services import ControlPlane, control_plane
from cerebro.contract.events import Event, RunFinished, RunRequested, RunStarted, TaskAssigned
from cerebro.contract.records import ExperimentRecord, Hyperparameters, Locator, Locators
from cerebro.contract.runs import EtlRequest, FitRequest, Request
from cerebro.errors import ClusterError
from cerebro.runtime.isolation.parent_death import with_parent_death_signal
from cerebro.runtime.kvs.client import KvsClient
from cerebro.spec import ETLSpec, SubEpochSpec
from cerebro.usercode.encoding import encode

AGENTS, MODELS = 1000, 1000
SUB_EPOCH_S = 30.0
"""Mean seconds of a sub-epoch."""
MEASURED_S = 30.0
REPORT_P99_MS, MEMORY_MB, DECIDED_S = 200.0, 300.0, 1.0

_NAME = "thousand-workers"
_GENERATORS = 2
_LONGEST_S = 240.0
_FILES = 16_384


@dataclass(frozen=True, kw_only=True)
class Found:
    """The measurements."""

    agents: int
    reports: tuple[float, ...]
    """Seconds of each report."""
    late: tuple[float, ...]
    """Seconds that an agent woke late, because the generator was busy."""
    commits: int
    refused: int
    early: int
    """Inbox reads with an early, empty answer."""
    memory_mb: float
    rest_mb: float
    decided_s: float
    cpu: dict[str, float]
    """CPU seconds of each service, and of the agents, during the measurement."""

    @property
    def p99_ms(self) -> float:
        """99th percentile of a report's milliseconds."""
        return 1e3 * statistics.quantiles(self.reports, n=100)[-1]


def measure(agents: int = AGENTS, models: int = MODELS, seconds: float = MEASURED_S) -> Found:
    """Measure one run on one cluster."""
    _raise_open_files()
    with (
        tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name,
        control_plane(Path(name)) as plane,
        contextlib.ExitStack() as stack,
    ):
        share = agents // _GENERATORS
        generators = [stack.enter_context(_generator(plane, n * share, share)) for n in range(_GENERATORS)]
        kvs = KvsClient(plane.server, plane.token)
        _prepare(kvs, Path(name), agents)
        rest_mb = _memory_mb(plane.pids["kvs_api"], "VmRSS")
        kvs.append(_NAME, RunRequested(run="fit-1", request=_fit(kvs, models)))
        decided_s = _decided_s(kvs, agents)
        time.sleep(5.0)  # until all have started
        pids = {**plane.pids, **{f"agents {n}": each.pid for n, each in enumerate(generators)}}
        before = {service: _cpu_s(pid) for service, pid in pids.items()}
        for each in generators:
            _send(each, "measure")
        time.sleep(seconds)
        used = {service: _cpu_s(pid) - before[service] for service, pid in pids.items()}
        told = [_read_report(each) for each in generators]
        memory_mb = _memory_mb(plane.pids["kvs_api"], "VmHWM")
    reports = tuple(each for found in told for each in found["reports"])
    if len(reports) < agents * seconds / 8:
        raise ClusterError(f"only {len(reports)} reports of {agents} agents were answered in {seconds:g} s")
    return Found(
        agents=agents,
        reports=reports,
        late=tuple(each for found in told for each in found["late"]),
        commits=sum(found["commits"] for found in told),
        refused=sum(found["refused"] for found in told),
        early=sum(found["early"] for found in told),
        memory_mb=memory_mb,
        rest_mb=rest_mb,
        decided_s=decided_s,
        cpu=used,
    )


def benchmark() -> list[Figure]:
    """Measure all bars."""
    found = measure()
    case = f"{found.agents:,} agents over HTTP at one kvs_api"
    spent = ", ".join(f"{service} {value:.1f}" for service, value in found.cpu.items())
    return [
        Figure(
            what=f"{case}: a report, 99th percentile",
            measured=f"{found.p99_ms:.0f} ms, median {1e3 * statistics.median(found.reports):.1f} ms",
            ratio=found.p99_ms,
            bar=REPORT_P99_MS,
            sense="at most",
            measure="ms",
            notes=(
                f"{len(found.reports):,} reports and {found.commits:,} commits in {MEASURED_S:g} s, "
                f"{found.refused} refused; {found.early} reads of inboxes were answered before their time",
                f"agents woke {1e3 * statistics.quantiles(found.late, n=100)[-1]:.0f} ms too late at the 99th "
                "percentile, by their own load",
                f"processor seconds in {MEASURED_S:g} s: {spent}; "
                f"{1e3 * found.cpu['kvs_api'] / len(found.reports):.2f} ms of kvs_api for each report, all else that "
                "it did among it",
            ),
        ),
        Figure(
            what=f"{case}: memory of kvs_api at its highest",
            measured=f"{found.memory_mb:.0f} MB, {found.rest_mb:.0f} MB before the run",
            ratio=found.memory_mb,
            bar=MEMORY_MB,
            sense="at most",
            measure="MB",
        ),
        Figure(
            what=f"{case}: from the start of a run of {MODELS:,} models to the first {found.agents:,} assignments "
            "in the log",
            measured=f"{found.decided_s:.2f} s",
            ratio=found.decided_s,
            bar=DECIDED_S,
            sense="at most",
            measure="s",
        ),
    ]


# --- the agents ----------------------------------------------------------------------------------


@contextmanager
def _generator(plane: ControlPlane, first: int, count: int) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"CEREBRO_SERVER": plane.server, "CEREBRO_TOKEN": plane.token}
    last_core = str(max(os.sched_getaffinity(0)))
    agents = [sys.executable, "-m", "benchmarks.agents", str(first), str(count), str(SUB_EPOCH_S)]
    process = subprocess.Popen(
        ["taskset", "-c", last_core, *with_parent_death_signal(agents)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _send(generator: subprocess.Popen[str], word: str) -> None:
    assert generator.stdin is not None
    generator.stdin.write(word + "\n")
    generator.stdin.flush()


def _read_report(generator: subprocess.Popen[str]) -> dict[str, Any]:
    _send(generator, "report")
    assert generator.stdout is not None
    found: dict[str, Any] = json.loads(generator.stdout.readline())
    return found


def _raise_open_files() -> None:
    """Raise the limit, also for the services, which inherit it: each agent has two connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


# --- the run -------------------------------------------------------------------------------------


def _prepare(kvs: KvsClient, folder: Path, agents: int) -> None:
    """Create an experiment with one training partition per agent."""
    _until(lambda: len(kvs.workers()) >= agents, "the agents did not register")
    metadata = folder / "train.csv"
    metadata.write_text("id\n" + "".join(f"{row}\n" for row in range(100 * agents)))
    kvs.create_experiment(
        ExperimentRecord(name=_NAME, locators=Locators(train=Locator(metadata=str(metadata))))
    )
    code = kvs.put_code(encode(ETLSpec()))
    request: Request = EtlRequest(code=code.sha256, code_fingerprint=code.fingerprint)
    kvs.append(_NAME, RunRequested(run="etl-1", request=request))
    _until(lambda: not kvs.queue(), "etl-1 did not end")
    ends = [event for event in _events(kvs) if isinstance(event, RunFinished)]
    if not ends or ends[-1].outcome != "finished":
        raise ClusterError(f"etl-1 did not finish: {ends}")


def _fit(kvs: KvsClient, number: int) -> FitRequest:
    code = kvs.put_code(encode(SubEpochSpec()))
    models: tuple[Hyperparameters, ...] = tuple(
        {"batch_size": 10, "lr": 0.1 / n} for n in range(1, number + 1)
    )
    return FitRequest(code=code.sha256, models=models, epochs=1, metric="loss", mode="min")


def _decided_s(kvs: KvsClient, wanted: int) -> float:
    """Return the seconds from the fit's start to the last of `wanted` assignments, from the log."""
    found: list[Event] = []

    def assigned() -> list[TaskAssigned]:
        while events := kvs.events(_NAME, found[-1].seq if found else 0):
            found.extend(events)
        return [e for e in found if isinstance(e, TaskAssigned) and e.task.startswith("fit-1/train/")]

    _until(lambda: len(assigned()) >= wanted, f"fewer than {wanted} sub-epochs were assigned")
    started = next(e.time for e in found if isinstance(e, RunStarted) and e.run == "fit-1")
    return assigned()[wanted - 1].time - started


def _events(kvs: KvsClient) -> list[Event]:
    found: list[Event] = []
    while events := kvs.events(_NAME, found[-1].seq if found else 0):
        found.extend(events)
    return found


def _until(holds: Any, problem: str) -> None:
    deadline = time.monotonic() + _LONGEST_S
    while not holds():
        if time.monotonic() > deadline:
            raise ClusterError(f"{problem} within {_LONGEST_S:g} s")
        time.sleep(0.5)


# --- figures -------------------------------------------------------------------------------------


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int, line: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(each.split()[1]) for each in lines if each.startswith(line)) / 1024


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(os.linesep.join((" ".join(figure.cells()), *figure.notes)))


if __name__ == "__main__":
    main()
