"""Cost of a long run: a controller's restart, a client's attach, the page's first answer, and the log's size.

Each is measured with the whole log in the database, and with snapshots and segments. Redis, kvs_api, controller and
dispatcher are the real processes. The log is written straight into the database with a record of each task, like
`benchmarks.web_store`; its numbers are random, because measured ones compress as badly. Then the controller's own calls
move it (`controller.loop.log_keeper`).

``python -m benchmarks.growth 1000000 --after`` measures only that many sub-epochs, after the move.
"""

from __future__ import annotations

import gc
import itertools
import sys
import tempfile
import time
import tracemalloc
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random

import redis

from benchmarks.figure import Figure
from benchmarks.services import ControlPlane, control_plane
from benchmarks.web_store import Writer
from cerebro.client.connection import connect
from cerebro.client.session import Session
from cerebro.contract.events import (
    EpochCompleted,
    Event,
    RunRequested,
    RunStarted,
    TaskAssigned,
    TaskCommitted,
    TaskStarted,
    WorkerJoined,
)
from cerebro.contract.records import Hyperparameters, Replica
from cerebro.contract.rest import api
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult, Timings
from cerebro.errors import ClusterError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state import ExperimentState
from controller.loop.log_keeper import Progress, Rule
from controller.loop.snapshot_process import SnapshotQuestion, make_snapshot

SUB_EPOCHS = (10_000, 100_000)
MODELS, WORKERS = 100, 20
_SHORT_SUB_EPOCHS, _MANY_MODELS, _FEW_WORKERS = 10_000, 1_000, 5
"""Sub-epochs (two epochs), models and workers of the run for the comparison of halves."""
_NAME, _RUN, _DATASET = "long", "fit-1", "long-0123456789abcdef"
_LONGEST_S = 1800.0
_POLL_S = 0.05


def benchmark() -> list[Figure]:
    """Compare the longer log with the bars, and before with after the move."""
    few, many = (measure(sub_epochs) for sub_epochs in SUB_EPOCHS)
    case = f"{SUB_EPOCHS[1]:,} sub-epochs in the history"
    before, after = many["before"], many["after"]

    def seconds(what: str, name: str, bar: float) -> Figure:
        return Figure(
            what=f"{case}: {what}",
            measured=f"{after[name]:.2f} s; {before[name]:.2f} s without snapshots",
            ratio=after[name],
            bar=bar,
            sense="at most",
            measure="s",
        )

    def megabytes(what: str, name: str, bar: float) -> Figure:
        return Figure(
            what=f"{case}: {what}",
            measured=f"{after[name] / 2**20:.0f} MB; {before[name] / 2**20:.0f} MB before",
            ratio=after[name] / 2**20,
            bar=bar,
            sense="at most",
            measure="MB",
        )

    return [
        seconds("controller's process begun to next decision", "decided_s", 5.0),
        seconds("page's first answer", "page_s", 1.0),
        seconds("Experiment.attach", "attach_s", 2.0),
        megabytes("Redis", "redis", 512),
        megabytes("segments on the volume", "segments", 400),
        megabytes("controller", "controller", 300),
        megabytes("dispatcher", "dispatcher", 300),
        Figure(
            what=f"a controller that starts over: {SUB_EPOCHS[1]:,} sub-epochs against {SUB_EPOCHS[0]:,}",
            measured=f"{after['decided_s']:.2f} s, {few['after']['decided_s']:.2f} s",
            ratio=after["decided_s"] / few["after"]["decided_s"],
            bar=1.5,
            sense="at most",
        ),
        _of_halves(),
    ]


def _of_halves() -> Figure:
    """Compare the fold's memory for both halves of a run with many models."""
    state, sub_epochs, began = ExperimentState(name=_NAME), 0, time.time()
    taken: list[int] = []
    tracemalloc.start()
    for after_s, event in story(_SHORT_SUB_EPOCHS, models=_MANY_MODELS, workers=_FEW_WORKERS):
        began += after_s
        state.apply(event.model_copy(update={"seq": state.seq + 1, "time": began}))
        sub_epochs += isinstance(event, TaskCommitted)
        if isinstance(event, TaskCommitted) and sub_epochs in (_SHORT_SUB_EPOCHS // 2, _SHORT_SUB_EPOCHS):
            gc.collect()
            taken.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    half, whole = taken
    return Figure(
        what=f"{_SHORT_SUB_EPOCHS:,} sub-epochs in a run of {_MANY_MODELS:,} models: memory of the second half, of "
        f"the first",
        measured=f"{half / 1e6:.1f} MB, then {whole / 1e6:.1f} MB",
        ratio=(whole - half) / half,
        bar=0.1,
        sense="at most",
    )


def measure(sub_epochs: int, *, has_before: bool = True) -> dict[str, dict[str, float]]:
    """Measure a log before and after the move; measuring before takes at least as long as the rest."""
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as name:
        folder = Path(name)
        with control_plane(folder, ("redis", "kvs_api")) as plane, Writer(plane.database) as writer:
            writer.experiment(_NAME, story(sub_epochs), began=time.time() - 86_400, run=_RUN)
            for key in _tasks(sub_epochs):
                writer.task(_NAME, key, "worker-0")
        before = _looked(folder, "newcomer-1") if has_before else {}
        with control_plane(folder, ("redis", "kvs_api")) as plane:
            moving_s = _move(plane)
        after = _looked(folder, "newcomer-2") | {"moving_s": moving_s}
        after["segments"] = float(sum(path.stat().st_size for path in folder.rglob("*.segment")))
        after["snapshots"] = float(sum(path.stat().st_size for path in folder.rglob("*.snapshot")))
        return {"before": before | {"segments": 0.0}, "after": after}


def _move(plane: ControlPlane) -> float:
    """Move the log like a controller, and return the seconds."""
    kvs, rule = KvsClient(plane.server, plane.token), Rule()
    (summary,) = kvs.experiments()
    while not (term := kvs.lead("keeper", 3600.0).term):
        time.sleep(_POLL_S)
    began = time.monotonic()
    created = summary.experiment.created
    progress = Progress(seq=summary.last_seq, created=created, grows=True)
    question = SnapshotQuestion(
        server=plane.server,
        token=plane.token,
        experiment=_NAME,
        created=created,
        until=summary.last_seq,
        least=1,
        term=term,
    )
    snapshot = make_snapshot(question)
    while kvs.cut(_NAME, rule.cut(progress, snapshot, term)).moved:
        pass
    kvs.lead("keeper", 0.001)
    return time.monotonic() - began


def _looked(folder: Path, newcomer: str) -> dict[str, float]:
    """Measure the cost of starting from the log."""
    with control_plane(folder, ("redis", "kvs_api")) as plane:
        name_newcomer(KvsClient(plane.server, plane.token), newcomer)
        with redis.Redis(unix_socket_path=str(plane.database)) as database:
            taken = float(database.info("memory")["used_memory"])
        began = time.monotonic()
        connection = connect(plane.server, plane.token)
        Session(connection, connection.kvs.experiment(_NAME)).state()
        attach_s = time.monotonic() - began
    with control_plane(folder, ("redis", "kvs_api", "dispatcher")) as plane:
        began = time.monotonic()
        _page(plane)
        page_s = time.monotonic() - began
        dispatcher = _rss(plane.pids["dispatcher"])
    with control_plane(folder) as plane:
        began = plane.begun["controller"]
        kvs = KvsClient(plane.server, plane.token)
        (summary,) = kvs.experiments()
        while not kvs.events(_NAME, summary.last_seq):
            if time.monotonic() > began + _LONGEST_S:
                raise ClusterError(f"the controller did not decide within {_LONGEST_S:g} s")
            time.sleep(_POLL_S)
        decided_s = time.monotonic() - began
        controller = _rss(plane.pids["controller"])
    return {
        "decided_s": decided_s,
        "attach_s": attach_s,
        "page_s": page_s,
        "redis": taken,
        "controller": controller,
        "dispatcher": dispatcher,
    }


def _page(plane: ControlPlane) -> None:
    """Request the experiment's overview until it shows the whole log."""
    request = urllib.request.Request(
        f"{plane.page}/api/views/experiments/{_NAME}", headers={"Authorization": f"Bearer {plane.token}"}
    )
    began = time.monotonic()
    while True:
        with urllib.request.urlopen(request, timeout=60) as answer:
            if b'"is_complete":false' not in answer.read().replace(b" ", b""):
                return
        if time.monotonic() > began + _LONGEST_S:
            raise ClusterError("the page is not complete")
        time.sleep(_POLL_S)


def _rss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) * 1024
    return 0.0


def name_newcomer(kvs: KvsClient, newcomer: str) -> None:
    """Record in the cluster log that a worker has joined."""
    joined = WorkerJoined(worker=newcomer, incarnation="a", weight=1.0, kinds=("test",))
    while not (term := kvs.lead("rival", 0.001).term):
        time.sleep(_POLL_S)
    after = 0
    while events := kvs.cluster_log(after):
        after += len(events)
    assert kvs.write_cluster_log(api.ClusterLogRequest(term=term, after=after, events=(joined,))).is_written


# --- synthetic events ---------------------------------------------------------------------------


def story(sub_epochs: int, models: int = MODELS, workers: int = WORKERS) -> Iterator[tuple[float, Event]]:
    """Yield the events of a run up to the end of an epoch, each with the seconds since the previous one."""
    random = Random(1)
    grid: list[Hyperparameters] = [{"batch_size": 32, "lr": 0.1 / (1 + n)} for n in range(models)]
    epochs = sub_epochs // (models * workers)
    request = FitRequest(
        code="0" * 64, models=tuple(grid), epochs=epochs + 1, metric="loss", mode="min", scheduler="lrptw"
    )
    names = {_model(number): each for number, each in enumerate(grid)}
    plan = FitPlan(dataset=_DATASET, models=names, partitions=dict.fromkeys(range(workers), 1000))
    yield 0.0, RunRequested(run=_RUN, request=request)
    for number in range(workers):
        held = (Replica(dataset=_DATASET, partition=number),)
        name = f"worker-{number}"
        yield (
            0.0,
            WorkerJoined(worker=name, incarnation="a", weight=1.0, kinds=("train",), replicas=held),
        )
    yield 0.0, RunStarted(run=_RUN, plan=plan)
    for epoch, turn in itertools.product(range(1, epochs + 1), range(models)):
        for number in range(workers):
            yield from _sub_epoch((turn + number * (models // workers)) % models, epoch, number, random)
        if turn == models - 1:
            bound = 0.1 * epoch * models
            idle = {f"worker-{number}": 1.0 for number in range(workers)}
            yield (
                0.0,
                EpochCompleted(
                    run=_RUN, epoch=epoch, makespan_s=1.1 * bound, lower_bound_s=bound, idle_s=idle
                ),
            )


def _sub_epoch(model: int, epoch: int, worker: int, random: Random) -> Iterator[tuple[float, Event]]:
    task, name = task_name(model, epoch, worker), f"worker-{worker}"
    yield random.random() / 1000, TaskAssigned(task=task, attempt=1, worker=name)
    yield random.random() / 1000, TaskStarted(task=task, attempt=1, worker=name)
    file = f"{_NAME}/{_RUN}/{_model(model)}/u{epoch * WORKERS + worker:05}-e{epoch:03}-p{worker:04}-a1.pt"
    result = TaskResult(
        rows=1000,
        cores=1,
        metrics={"loss": random.random(), "accuracy": random.random()},
        checkpoint=CheckpointRef(name=file, checksum=f"{random.getrandbits(64):016x}", size=10**8),
        timings=Timings(load_s=random.random() / 100, compute_s=random.random(), save_s=random.random() / 10),
        peak_bytes=5 * 10**8 + 4096 * random.randrange(10_000),
    )
    yield random.random() / 100, TaskCommitted(task=task, attempt=1, worker=name, result=result)


def _tasks(sub_epochs: int) -> Iterator[str]:
    epochs = range(1, sub_epochs // (MODELS * WORKERS) + 1)
    for epoch, model, worker in itertools.product(epochs, range(MODELS), range(WORKERS)):
        yield task_name(model, epoch, worker)


def task_name(model: int, epoch: int, partition: int) -> str:
    """Return the key of a sub-epoch of `story`."""
    return f"{_RUN}/train/{_model(model)}/e{epoch}/p{partition}"


def _model(number: int) -> str:
    return f"m{number:03}"


def main() -> None:
    """Print all figures, or the measurements for a number of sub-epochs."""
    if len(sys.argv) > 1:
        for when, found in measure(int(sys.argv[1]), has_before="--after" not in sys.argv).items():
            print(when, {name: round(value, 3) for name, value in found.items()})
        return
    for figure in benchmark():
        print(figure.cells(), *figure.notes, sep="\n  ")


if __name__ == "__main__":
    main()
