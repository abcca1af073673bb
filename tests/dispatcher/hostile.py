"""An experiment that contains markup in every text a user controls."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cerebro.contract.events import (
    ModelStopRequested,
    RunRequested,
    RunStarted,
    RunStopRequested,
    SchedulerChanged,
)
from cerebro.contract.records import (
    AuditEntry,
    CodeRecord,
    WorkerSetStatus,
)
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.runtime.volumes import Volumes
from cerebro.usercode.archive import pack
from tests.dispatcher.fakes import Bench, settings
from tests.dispatcher.gallery import GalleryStore, write_failed_row, write_log
from tests.dispatcher.stories import CODE, NOW, Story, status

SCRIPT, IMAGE = "<script>window.x=1</script>", "<img src=q onerror=window.x=1>"
"""Text that pages must escape. `IMAGE` has no slash, so it can be part of a sub-epoch's key."""


def hostile(folder: Path) -> Bench:
    """Build an experiment with markup in models, hyperparameters, metrics, author, rows, errors, output, code and
    files.
    """
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)})
    store = GalleryStore()
    bench = Bench(store=store, settings=settings(volumes=volumes))
    code = CodeRecord(
        sha256=CODE, fingerprint=CODE, class_name=SCRIPT, source=f"# {SCRIPT}\nx = '{IMAGE}'", encoded="x",
        author=SCRIPT,
    )  # fmt: skip
    store.codes[CODE] = code
    source = folder / "code"
    source.mkdir(parents=True)
    (source / f"{IMAGE}.py").write_text("x = 1")
    archive = pack(source)
    sha256 = hashlib.sha256(archive).hexdigest()
    store.archives[sha256] = archive
    story = Story("evil", author=SCRIPT, archive=sha256)
    story.workers_join()
    story.etl(failed=1)
    rates: tuple[dict[str, object], ...] = tuple(
        {IMAGE: i, f"a{SCRIPT}": 0.1 * (i + 1), "kind": SCRIPT, "optimizer": IMAGE if i % 2 else SCRIPT}
        for i in range(4)
    )
    request = FitRequest(code=CODE, models=rates, epochs=2, metric=SCRIPT, mode="max")  # type: ignore[arg-type]
    story.append(RunRequested(run="fit-1", request=request, author=SCRIPT))
    names = [IMAGE, f"{IMAGE}2", "<b>m02</b>".replace("/", ""), "m03"]
    plan = FitPlan(dataset="d1", models=dict(zip(names, rates, strict=True)), partitions={0: 898, 1: 898})  # type: ignore[arg-type]
    story.append(RunStarted(run="fit-1", plan=plan))
    for index, model in enumerate(names[:2]):
        for partition in range(2):
            metrics = {SCRIPT: 0.5 + 0.1 * index + 0.01 * partition, f"b{IMAGE}": 1.0}
            result = TaskResult(
                rows=898, metrics=metrics, checkpoint=_checkpoint(f"evil/fit-1/m{index}", partition)
            )
            story.run_task(f"fit-1/train/{model}/e1/p{partition}", f"worker-{partition}", result)
    story.fail(
        f"fit-1/train/{names[2]}/e1/p0", "worker-0", f"ValueError: {SCRIPT}", f"Traceback\n{SCRIPT}\n{IMAGE}"
    )
    story.run_task("fit-1/train/m03/e1/p1", "worker-1", None)
    story.pause(f"no room: {SCRIPT}")
    for event in (
        ModelStopRequested(run="fit-1", model="m03", by=SCRIPT),
        SchedulerChanged(run="fit-1", scheduler=SCRIPT, by=IMAGE),
        RunStopRequested(run="fit-1", by=SCRIPT),
    ):
        story.append(event)
    store.add(story)
    store.statuses = [status("worker-0"), status("worker-1")]
    for model in names:
        write_log(
            volumes,
            "evil",
            f"fit-1/train/{model}/e1/p0",
            f"{SCRIPT}\n\x1b[31m{IMAGE}\x1b[0m\nERROR {SCRIPT}\n",
        )
    write_failed_row(volumes, SCRIPT, f"{IMAGE} is no number")
    store.entries = (AuditEntry(time=NOW, by=SCRIPT, what=f"deleted experiment {IMAGE}"),)
    store.worker_set = WorkerSetStatus(pods={SCRIPT: IMAGE})
    return bench


def _checkpoint(name: str, partition: int) -> CheckpointRef:
    return CheckpointRef(
        name=f"{name}/u0000{partition}-e001-p000{partition}-a1.pt", checksum="0" * 16, size=1
    )
