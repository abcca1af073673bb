"""Experiments in every state, one app over them, and the addresses of all its pages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cerebro.contract.events import (
    DeletionRequested,
    EpochCompleted,
    ExperimentArchived,
    LivePoint,
    ModelStopRequested,
    RunRequested,
    RunStarted,
    SchedulePlanned,
    SchedulerChanged,
    TagsChanged,
)
from cerebro.contract.records import (
    AuditEntry,
    CodeRecord,
    ExperimentRecord,
    ExperimentSummary,
    GpuUsage,
    Locator,
    Locators,
    Reclaim,
    UsageSample,
    WorkerSetStatus,
    WorkerStatus,
    WorkerUsage,
)
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlPlan, EtlRequest, PartitionPlan
from cerebro.contract.stored.registry import ModelVersion, RegisteredModel, Registration
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.runtime.volumes import Volumes
from cerebro.state import epoch_report
from dispatcher.pages import live_pages
from dispatcher.settings import Links
from tests.dispatcher.fakes import Bench, FakeStore, settings
from tests.dispatcher.search_logs import log_of
from tests.dispatcher.stories import CODE, NOW, Story, running_story, status

TABS = tuple("" if tab == "overview" else f"/{tab}" for tab, _, _ in live_pages.TABS)
"""Tabs of an experiment, relative to its address."""

FORMS = (
    "/add",
    "/clone?model=m00&start=best&hp.layers=x",
    "/change?model=m01&hp.layers=3",
    "/extend?model=m00,m01",
)
"""Model forms, relative to an experiment's address."""

STATES = ("digits", "new", "preparing", "broken", "done", "steered", "old", "gone")
"""Names of the experiments, each in another state."""


@dataclass(kw_only=True)
class GalleryStore(FakeStore):
    """A store that supports the archived, deleted and open filters of the list."""

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        states = {name: self.stories[name].state for name in self.records}
        return tuple(
            summary.model_copy(
                update={
                    "is_archived": state.is_archived,
                    "is_deleting": state.deletion is not None,
                    "open_runs": tuple(run.id for run in state.runs.values() if run.is_open),
                }
            )
            for summary in super().experiments()
            for state in (states[summary.experiment.name],)
        )

    def __post_init__(self) -> None:
        self.stories: dict[str, Story] = {}

    def add(self, story: Story) -> None:
        super().add(story)
        self.stories[story.record.name] = story


def gallery(folder: Path) -> Bench:
    """Build all of `STATES`, with logs, checkpoints and failed rows on volumes in `folder`."""
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(folder)})
    store = GalleryStore()
    bench = Bench(
        store=store,
        settings=settings(
            volumes=volumes,
            links=Links(
                tensorboard="http://127.0.0.1:6006",
                notebook="http://127.0.0.1:8888",
                docs="http://127.0.0.1:9/web-page",
            ),
        ),
    )
    for story in (
        _digits(store, volumes), Story("new"), _preparing(store, volumes), _broken(), _done(), _steered(),
        _old(), _deleted_story(), _search(),
    ):  # fmt: skip
        store.add(story)
    usage = WorkerUsage(
        cores_used=3.5, cores=4, memory_bytes=7 << 30, memory_limit_bytes=8 << 30,
        gpus=(GpuUsage(name="H200", used_share=0.9, memory_bytes=100 << 30, memory_total_bytes=139 << 30),),
        shards_used_bytes=9 << 30, shards_total_bytes=10 << 30,
    )  # fmt: skip
    store.statuses = [
        _busy(status("worker-0", running="digits/fit-1/train/m05/e1/p0"), usage),
        status("worker-1"),
    ]
    store.statuses.append(status("worker-2", silent_s=400.0))
    store.samples = {"worker-0": tuple(UsageSample(time=NOW - 30 * i, usage=usage) for i in range(60, 0, -1))}
    store.waiting = (api.QueueEntry(experiment="digits", run="fit-1"),)
    store.entries = (AuditEntry(time=NOW - 50, by="ada", what="deleted experiment whales"),)
    store.registered = registered_models()
    store.unneeded = Reclaim(seq=1, datasets=("d-whales",))
    store.worker_set = WorkerSetStatus(pods={"worker-3": "no node has a free GPU"})
    return bench


def registered_models() -> tuple[RegisteredModel, ...]:
    """A model with three versions, including a failed one, and an alias."""
    source = Registration(
        experiment="digits", run="fit-1", model="m03", epoch=4, code="0" * 64, hyperparams={"lr": 0.1, "width": 64},
        checkpoint=CheckpointRef(name="digits/fit-1/m03/u1.pt", checksum="xxh3_64:0", size=3_000_000),
        metric="accuracy", value=0.9, author="ada",
    )  # fmt: skip
    of = ExperimentRecord(name="digits", locators=Locators(train=Locator(metadata="m.csv")))
    copy = source.checkpoint.model_copy(update={"name": ".registry/digits/v1/model.pt"})
    model_version = ModelVersion(
        name="digits",
        version=1,
        state="ready",
        created=NOW - 90,
        source=source,
        experiment=of,
        checkpoint=copy,
    )
    failed = model_version.model_copy(
        update={
            "version": 2,
            "state": "failed",
            "checkpoint": None,
            "error": "digits/fit-1/m03/u1.pt is gone",
        }
    )
    copying = model_version.model_copy(update={"version": 3, "state": "copying", "checkpoint": None})
    return (
        RegisteredModel(name="digits", versions=(model_version, failed, copying), aliases={"champion": 1}),
    )


def tabs() -> list[str]:
    """Pages to check in every look: the list, the cluster, and all tabs of a running experiment."""
    tab_paths = [
        f"/experiments/digits{tab}" for tab in (*TABS, "/models/m00", "/models/m07", "/delete", *FORMS)
    ]
    return ["/experiments", "/start", "/cluster", "/registry", "/notifications", *tab_paths]


def paths() -> list[str]:
    """All pages that differ: every tab of a running experiment, and the special pages of the others."""
    page_paths = [
        "/experiments",
        "/experiments?archived=all&q=d",
        "/experiments?q=nothing-like-it",
        "/start",
        "/cluster",
        "/registry",
        "/notifications",
        "/compare",
        "/compare?pick=digits/m00,done/m01,asha/m02,digits/nobody&all=1",
    ]
    page_paths += ["/start/digits", "/nowhere"]
    of_digits = [f"/experiments/digits{tab}" for tab in TABS]
    more = [
        "/models?pick=m00,m01&sort=best", "/models?filter=lr+%3E%3E", "/models?filter=state+%3D+nothing",
        "/models/m00", "/models/m07", "/models/nobody", "/logs?task=fit-1/train/m07/e1/p0", "/logs?q=Error",
        "/logs?q=[&regex=1", "/delete", *FORMS, "/change?model=m07", "/prioritize?model=m01&priority=1",
    ]  # fmt: skip
    others = [f"/experiments/{name}{tab}" for name in STATES[1:] for tab in ("", "/models", "/logs")]
    some = [
        "new/curves",
        "new/analysis",
        "new/schedule",
        "new/data",
        "new/code",
        "new/checkpoints",
        "new/history",
    ]
    some += [
        "asha/search",
        "asha/search?axis=time&log=1",
        "asha/analysis",
        "preparing/data",
        "done/schedule",
        "done/history",
        "steered/history",
        "broken/schedule",
    ]
    return [
        *page_paths, *of_digits, *(f"/experiments/digits{each}" for each in more), *others,
        *(f"/experiments/{each}" for each in some),
    ]  # fmt: skip


# --- the experiments -----------------------------------------------------------------------------


def _digits(store: FakeStore, volumes: Volumes) -> Story:
    story = running_story()
    story.append(epoch_report(story.state, story.state.runs["fit-1"], 1))
    plan: dict[str, object] = {"makespan_s": 12.1, "dispatch_s": 13.4, "lower_bound_s": 12.0, "seconds": 0.5}
    plan["order"] = [
        ("worker-0", "m00", 2, 0, 1.0),
        ("worker-1", "m01", 2, 1, 1.0),
        ("worker-0", "m01", 2, 0, 4.0),
    ]
    story.append(SchedulePlanned.model_validate({"run": "fit-1", "source": "planner/cyclic", **plan}))
    story.append(TagsChanged(tags={"stage": "baseline", "note": "Two lines\nof text."}, by="ada"))
    story.append(TagsChanged(tags={"keep": "", "note": "plateau"}, run="fit-1", model="m00", by="ada"))
    store.codes[CODE] = CodeRecord(
        sha256=CODE, fingerprint=CODE, class_name="Digits", source="class Digits:\n    pass", encoded="x"
    )
    store.points["digits"] = [
        LivePoint(task="fit-1/train/m04/e1/p1", attempt=1, rows=64 * i, values={"loss": 1.0 / i})
        for i in range(1, 9)
    ]
    for index in range(8):
        text = f"model m{index:02}\nepoch 1\n\x1b[33mWARNING\x1b[0m slow\nValueError: shapes differ\n"
        write_log(volumes, "digits", f"fit-1/train/m{index:02}/e1/p0", text)
    for model in ("m00", "m01"):
        path = volumes.checkpoint(f"{model}/e1p0")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return story


def _preparing(store: FakeStore, volumes: Volumes) -> Story:
    story = Story("preparing")
    story.workers_join()
    parts = tuple(PartitionPlan(partition=p, worker=f"worker-{p}", rows=500) for p in range(2))
    story.append(
        RunRequested(run="etl-1", request=EtlRequest(code=CODE, code_fingerprint=CODE), author="ada")
    )
    story.append(RunStarted(run="etl-1", plan=EtlPlan(dataset="d1", splits={"train": parts, "valid": parts})))
    story.run_task("etl-1/etl/train/p0", "worker-0", TaskResult(rows=490, rows_failed=10))
    story.run_task("etl-1/etl/train/p1", "worker-1", None)
    point = LivePoint(task="etl-1/etl/train/p1", attempt=1, rows=120, rows_failed=3, values={})
    store.points["preparing"] = [point]
    write_failed_row(volumes, "row-7", "cannot open image 7.png")
    return story


def _broken() -> Story:
    story = Story("broken")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    story.fail("fit-1/train/m00/e1/p0", "worker-0", "ValueError: shapes differ", "Traceback\n  ValueError")
    story.fail("fit-1/train/m01/e1/p1", "worker-1", "ValueError: shapes differ", "Traceback\n  ValueError")
    story.finish(error="all 2 models failed:\nm00: ValueError: shapes differ")
    return story


def _done() -> Story:
    story = Story("done")
    story.workers_join()
    story.etl(failed=3)
    story.fit(models=4, epochs=2)
    for epoch in (1, 2):
        for model in range(4):
            story.train(f"m{model:02}", epoch)
        idle = {"worker-0": 0.5, "worker-1": 1.0}
        story.append(
            EpochCompleted(
                run="fit-1", epoch=epoch, makespan_s=12.0 * epoch, lower_bound_s=11.0 * epoch, idle_s=idle
            )
        )
    story.finish()
    story.test()
    return story


def _steered() -> Story:
    story = Story("steered")
    story.workers_join()
    story.etl()
    story.fit(models=3)
    story.train("m00", 1)
    story.run_task("fit-1/train/m01/e1/p0", "worker-0", None)
    story.append(ModelStopRequested(run="fit-1", model="m01", by="ada"))
    story.append(ModelStopRequested(run="fit-1", model="m02", by="ada"))
    story.append(SchedulerChanged(run="fit-1", scheduler="random", by="ada"))
    story.pause("the checkpoint volume is full")
    return story


def _old() -> Story:
    story = Story("old")
    story.workers_join()
    story.etl()
    story.append(ExperimentArchived(is_archived=True, by="ada"))
    return story


def _search() -> Story:
    story = Story("asha")
    for event in log_of("asha"):
        story.append(event)
    return story


def _deleted_story() -> Story:
    story = Story("gone")
    story.workers_join()
    story.etl()
    story.append(DeletionRequested(by="ada"))
    return story


# --- pieces --------------------------------------------------------------------------------------


def _busy(known: WorkerStatus, usage: WorkerUsage) -> WorkerStatus:
    record = known.record.model_copy(update={"gpus": ("H200",), "host": "node-1"})
    return known.model_copy(update={"record": record, "usage": usage})


def write_log(volumes: Volumes, experiment: str, task: str, text: str) -> None:
    """Write the output of a task's first attempt."""
    path = volumes.task_log(experiment, task, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_failed_row(volumes: Volumes, row: str, error: str) -> None:
    """Write a row of the first partition that preprocessing rejected."""
    path = volumes.failed_rows("d1", "train", 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"rows": [{"id": row, "error": error, "traceback": error}], "total": 1}))
