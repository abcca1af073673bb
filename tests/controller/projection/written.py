"""A synchronous projection, a log for it, and its files as TensorBoard reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from cerebro.contract.events import Event, LivePoint
from cerebro.contract.records import ExperimentRecord, ExperimentSummary, Locator, Locators
from cerebro.contract.rest.api import QueueEntry
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import StoreUnavailableError
from cerebro.runtime.volumes import Volumes
from cerebro.state import epoch_report
from controller.projections.event_file import FILE_NAME
from controller.projections.tensorboard import TensorBoardFiles
from tests.state.stories import Story, sub_epoch


def volumes(root: Path) -> Volumes:
    return Volumes.from_environment({"CEREBRO_VOLUMES": str(root)})


class LogStore:
    """The client reads that the projection needs; some calls may fail."""

    def __init__(self, log: Sequence[Event], live: Sequence[LivePoint] = ()) -> None:
        self.log, self.points = log, live
        self.fail_live = 0
        self.kept: bytes | None = None
        """A snapshot."""
        self.open: tuple[QueueEntry, ...] = ()

    def queue(self) -> tuple[QueueEntry, ...]:
        return self.open

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        record = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="m.csv")))
        summary = ExperimentSummary(experiment=record, last_seq=0, last_event=0.0, open_runs=())
        return (summary,)

    def events(self, experiment: str, after: int = 0) -> tuple[Event, ...]:
        return tuple(self.log[after : after + 7])

    def snapshot(self, experiment: str, of_format: str) -> bytes | None:
        return self.kept

    def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
        if self.fail_live:
            self.fail_live -= 1
            raise StoreUnavailableError("away")
        return tuple(self.points[after : after + 3])


class Once(TensorBoardFiles):
    """A projection that writes all pending entries and returns, without a thread."""

    def __init__(self, store: LogStore, root: Path) -> None:
        client: Any = store
        super().__init__(client, volumes(root))

    def write(self) -> None:
        """Read the logs and write all entries."""
        self._read_logs()
        self.drain()

    def drain(self) -> None:
        """Write pending entries."""
        while not self._entries.empty():
            for entry in self._gather():
                while not self._is_written(entry):
                    pass
                self._settle(entry)
        for path in list(self._files):
            self._close(path)


def story() -> Story:
    """Two models with a retried sub-epoch, a lost checkpoint, validations and complete epochs."""
    story = Story()
    story.fit(validated=True)
    story.fail(sub_epoch(1, 0), 0, FailureKind.CRASH)
    story.train(1, 0, rows=10, loss=4.0, accuracy=0.25)
    story.train(1, 1, rows=30, loss=2.0, accuracy=0.5)
    story.train(1, 0, model="m01", loss=9.0)
    story.validate(1, loss=3.0)
    story.append(epoch_report(story.state, story.run, 1))
    story.train(2, 0, rows=10, loss=1.5, accuracy=0.75)
    story.fail(sub_epoch(2, 1), 1, FailureKind.CHECKPOINT)
    story.train(2, 0, rows=10, loss=1.5, accuracy=0.75)
    story.train(2, 1, rows=30, loss=1.0, accuracy=1.0)
    story.validate(2, loss=2.5)
    story.append(epoch_report(story.state, story.run, 2))
    return story


def points() -> list[LivePoint]:
    """Points of a superseded attempt, a committed one, a re-executed sub-epoch, and one without values."""
    given = [
        (sub_epoch(1, 0), 1, 5),
        (sub_epoch(1, 0), 2, 5),
        (sub_epoch(1, 0), 2, 8),
        (sub_epoch(1, 1), 1, 20),
        (sub_epoch(2, 0), 1, 5),
    ]
    given.append((sub_epoch(2, 0), 2, 5))
    live_points = [
        LivePoint(
            seq=seq, time=100.0 + seq, task=str(key), attempt=attempt, worker="worker-0", rows=rows,
            values={"loss": attempt + rows / 100},
        )
        for seq, (key, attempt, rows) in enumerate(given, start=1)
    ]  # fmt: skip
    silent = LivePoint(seq=7, time=107.0, task=str(sub_epoch(1, 1)), attempt=1, worker="worker-1", rows=25)
    return [*live_points, silent]


def file_of(root: Path, model: str = "m00") -> Path:
    return volumes(root).model_metrics("one", "fit-1", model) / FILE_NAME


def file_of_run(root: Path) -> Path:
    return volumes(root).run_metrics("one", "fit-1") / FILE_NAME


def contents(root: Path) -> dict[Path, bytes]:
    return {path.relative_to(root): path.read_bytes() for path in root.rglob(FILE_NAME)}


def records(path: Path) -> list[tuple[str, int, float, float]]:
    """Return (tag, step, time, value) records as TensorBoard reads them."""
    found = []
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag.startswith("_hparams_"):
                continue
            number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
            found.append((value.tag, event.step, event.wall_time, round(number, 5)))
    return found


def sessions(path: Path) -> list[tuple[str, Any]]:
    """Return the file's messages for the HParams plugin in order, with their kinds."""
    found = []
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                which = data.WhichOneof("data")
                found.append((which, getattr(data, which)))
    return found
