"""TensorBoard's files follow from the log: each value once, whatever was cut off, restarted or retried."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tensorboard.backend.event_processing import plugin_event_multiplexer
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS, STATUS_UNKNOWN
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from cerebro.analysis.downsample import FEWEST
from cerebro.contract.events import (
    EpochCompleted,
    Event,
    LivePoint,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    RunFinished,
    TaskAssigned,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.records import (
    ExperimentRecord,
    ExperimentSummary,
    Hyperparameters,
    Locator,
    Locators,
)
from cerebro.contract.tasks import FailureKind
from cerebro.errors import NotFoundError, StoreUnavailableError
from cerebro.kvs import KvsClient
from cerebro.state import ExperimentState, epoch_report
from cerebro.volumes import Volumes
from controller import event_file, projected, projection
from controller.event_file import FILE_NAME, EventFile
from controller.projected import LIVE_VALUES, additions, live_share
from controller.projection import Projection
from tests.state.stories import Story, unit


def volumes(root: Path) -> Volumes:
    return Volumes.from_environment({"CEREBRO_VOLUMES": str(root)})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses: neither to gather commits nor between two tries."""
    monkeypatch.setattr(projection, "_GATHER_S", 0.0)
    monkeypatch.setattr(projection, "_PAUSE_S", 0.0)


class LogStore:
    """The two reads of a client that the projection makes; may be away for some calls."""

    def __init__(self, log: Sequence[Event], live: Sequence[LivePoint] = ()) -> None:
        self.log, self.points = log, live
        self.fail_live = 0

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        record = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="m.csv")))
        summary = ExperimentSummary(experiment=record, last_seq=0, last_event=0.0, open_runs=())
        return (summary,)

    def events(self, experiment: str, after: int = 0) -> tuple[Event, ...]:
        return tuple(self.log[after : after + 7])

    def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
        if self.fail_live:
            self.fail_live -= 1
            raise StoreUnavailableError("away")
        return tuple(self.points[after : after + 3])


class Once(Projection):
    """A projection that writes what the log holds and returns, instead of waiting in a thread."""

    def __init__(self, store: LogStore, root: Path) -> None:
        client: Any = store
        super().__init__(client, volumes(root))

    def write(self) -> None:
        """Read the logs, write every entry."""
        self._read_logs()
        self.drain()

    def drain(self) -> None:
        """Write what was observed."""
        while not self._entries.empty():
            for entry in self._gather():
                while not self._is_written(entry):
                    pass
        for path in list(self._files):
            self._close(path)


def story() -> Story:
    """Two models, a retried unit, a lost checkpoint, validations; completed epochs."""
    told = Story()
    told.fit(validated=True)
    told.fail(unit(1, 0), 0, FailureKind.CRASH)
    told.train(1, 0, rows=10, loss=4.0, accuracy=0.25)
    told.train(1, 1, rows=30, loss=2.0, accuracy=0.5)
    told.train(1, 0, model="m01", loss=9.0)
    told.validate(1, loss=3.0)
    told.tell(epoch_report(told.state, told.run, 1))
    told.train(2, 0, rows=10, loss=1.5, accuracy=0.75)
    told.fail(unit(2, 1), 1, FailureKind.CHECKPOINT)
    told.train(2, 0, rows=10, loss=1.5, accuracy=0.75)
    told.train(2, 1, rows=30, loss=1.0, accuracy=1.0)
    told.validate(2, loss=2.5)
    told.tell(epoch_report(told.state, told.run, 2))
    return told


def points() -> list[LivePoint]:
    """Of a superseded attempt, of the one that was committed, of the redone unit, and of one without values."""
    given = [
        (unit(1, 0), 1, 5),
        (unit(1, 0), 2, 5),
        (unit(1, 0), 2, 8),
        (unit(1, 1), 1, 20),
        (unit(2, 0), 1, 5),
    ]
    given.append((unit(2, 0), 2, 5))
    made = [
        LivePoint(
            seq=seq, time=100.0 + seq, task=str(key), attempt=attempt, worker="worker-0", rows=rows,
            values={"loss": attempt + rows / 100},
        )
        for seq, (key, attempt, rows) in enumerate(given, start=1)
    ]  # fmt: skip
    silent = LivePoint(seq=7, time=107.0, task=str(unit(1, 1)), attempt=1, worker="worker-1", rows=25)
    return [*made, silent]


def file_of(root: Path, model: str = "m00") -> Path:
    return volumes(root).model_metrics("one", "fit-1", model) / FILE_NAME


def file_of_run(root: Path) -> Path:
    return volumes(root).run_metrics("one", "fit-1") / FILE_NAME


def contents(root: Path) -> dict[Path, bytes]:
    """All event files below a folder."""
    return {path.relative_to(root): path.read_bytes() for path in root.rglob(FILE_NAME)}


def records(path: Path) -> list[tuple[str, int, float, float]]:
    """(tag, step, time, value) of a file, as TensorBoard reads it."""
    found = []
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag.startswith("_hparams_"):
                continue
            number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
            found.append((value.tag, event.step, event.wall_time, round(number, 5)))
    return found


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with the files of the story, written at one go."""
    Once(LogStore(story().log, points()), tmp_path / "whole").write()
    return tmp_path / "whole"


def test_units_epochs_and_live_values_are_drawn(written: Path) -> None:
    """Units by number, epochs as means weighted by rows and as validated, live values by rows seen so far."""
    accumulator = EventAccumulator(str(file_of(written).parent)).Reload()
    series = {
        tag: [(event.step, round(event.value, 4)) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }
    assert series == {
        "unit/train/loss": [(1, 4.0), (2, 2.0), (3, 1.5), (4, 1.0)],
        "unit/train/accuracy": [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)],
        "epoch/train/loss": [(1, 2.5), (2, 1.125)],
        "epoch/train/accuracy": [(1, 0.4375), (2, 0.9375)],
        "epoch/valid/loss": [(1, 3.0), (2, 2.5)],
        "live/loss": [(5, 2.05), (8, 2.08), (30, 1.2), (45, 1.05)],
    }


def test_each_model_has_a_file_of_its_own(written: Path) -> None:
    """Of its own values only."""
    assert [(tag, value) for tag, _, _, value in records(file_of(written, "m01"))] == [
        ("unit/train/loss", 9.0)
    ]


def test_a_run_has_a_file_with_how_well_its_epochs_were_scheduled(written: Path) -> None:
    """Makespan, lower bound, gap and idle time of all workers, at the time the epoch was complete."""
    log = story().log
    told = [event for event in log if isinstance(event, EpochCompleted)]
    assert records(file_of_run(written)) == [
        (f"schedule/{name}", report.epoch, report.time, round(value, 5))
        for report in told
        for name, value in (
            ("gap", report.makespan_s / report.lower_bound_s - 1),
            ("idle_s", sum(report.idle_s.values())),
            ("lower_bound_s", report.lower_bound_s),
            ("makespan_s", report.makespan_s),
        )
    ]
    assert {path.parent for path in contents(written)} == {
        file.parent.relative_to(written)
        for file in (file_of(written), file_of(written, "m01"), file_of_run(written))
    }


def test_a_retried_attempt_and_a_redone_unit_leave_no_duplicates(written: Path) -> None:
    """Each (tag, step) is there once, though one attempt failed and one unit was committed twice."""
    found = [(tag, step) for tag, step, _, _ in records(file_of(written))]
    assert len(found) == len(set(found))


def test_a_restart_adds_nothing(written: Path) -> None:
    """A projection that starts on complete files leaves their bytes as they are."""
    before = contents(written)
    Once(LogStore(story().log, points()), written).write()
    assert contents(written) == before


@pytest.mark.parametrize("of", [file_of, file_of_run])
def test_a_file_torn_at_any_byte_is_completed(written: Path, of: Callable[[Path], Path]) -> None:
    """Cut at byte n, for every seventh n: the next start writes exactly what is missing."""
    path = of(written)
    whole = path.read_bytes()
    # Seven shares no factor with the records' lengths: over the file, cuts fall on each place within a record.
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        Once(LogStore(story().log, points()), written).write()
        assert path.read_bytes() == whole, f"cut at byte {cut}"


@pytest.mark.parametrize("zeros", [1, 12, 16, 100, 4096])
def test_blocks_that_were_never_written_are_no_records(written: Path, zeros: int) -> None:
    """After a power cut a file may end in zeros; they are cut off, not counted."""
    path = file_of(written)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes(zeros))
    Once(LogStore(story().log, points()), written).write()
    assert path.read_bytes() == whole


def test_a_controller_that_stops_anywhere_leaves_the_rest_to_its_successor(
    written: Path, tmp_path: Path
) -> None:
    """For every length of the log seen before the stop, the file ends up the same."""
    log, whole = story().log, contents(written)
    for length in range(len(log) + 1):
        root = tmp_path / str(length)
        Once(LogStore(log[:length], points()), root).write()
        Once(LogStore(log, points()), root).write()
        assert contents(root) == whole, f"stopped after event {length}"


def test_two_readers_of_the_log_write_each_event_once(written: Path, tmp_path: Path) -> None:
    """The controller's loop shows events that the projection has read by itself, perhaps more than once."""
    log = story().log
    observed = Once(LogStore(log, points()), tmp_path / "again")
    for _ in range(2):
        state = ExperimentState(name="one")
        for event in log:
            state.apply(event)
            observed.observe(state, event)
    observed.write()
    assert contents(tmp_path / "again") == contents(written)


def test_a_store_that_is_away_for_a_moment_leaves_no_gap(written: Path, tmp_path: Path) -> None:
    """The commit is written once the store is back; those behind it wait."""
    store = LogStore(story().log, points())
    store.fail_live = 3
    Once(store, tmp_path / "again").write()
    assert contents(tmp_path / "again") == contents(written)


def test_a_full_metrics_volume_leaves_no_gap(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of a commit reached the file before the error, the rest follows and nothing comes twice."""
    flush, left = EventFile.flush, [6]

    def full_now_and_then(self: EventFile) -> None:
        flush(self)
        if left[0]:
            left[0] -= 1
            # Half of the last record is lost, as when the disk fills up within it.
            size = os.fstat(self._file.fileno()).st_size
            self._file.truncate(size - 9)
            raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(EventFile, "flush", full_now_and_then)
    Once(LogStore(story().log, points()), tmp_path / "again").write()
    assert left == [0]
    assert contents(tmp_path / "again") == contents(written)


def test_more_models_than_open_files(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are closed and opened again as their turn comes."""
    monkeypatch.setattr(projection, "_MAX_OPEN", 1)
    Once(LogStore(story().log, points()), tmp_path / "again").write()
    assert contents(tmp_path / "again") == contents(written)


def test_records_are_framed_as_tensorboard_wants_them(written: Path) -> None:
    """Length, checksum, data, checksum: the file is read to its last byte."""
    content, end, count = file_of(written).read_bytes(), 0, 0
    while end < len(content):
        (length,) = struct.unpack("<Q", content[end : end + 8])
        end += 16 + length
        count += 1
    assert end == len(content)
    # Beside the values: the file's version, the session's start, its end.
    assert count == len(records(file_of(written))) + 3


def test_the_thread_writes_what_an_earlier_life_left_out(written: Path, tmp_path: Path) -> None:
    """Started for real, with a client's own types, it completes the files by itself."""
    store: Any = LogStore(story().log, points())
    client: KvsClient = store
    running = Projection(client, volumes(tmp_path / "again"))
    running.start()
    whole, path = file_of(written).read_bytes(), file_of(tmp_path / "again")
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_bytes() == whole):
        assert time.monotonic() < deadline, "the file is not completed"


# --- hyper-parameters ----------------------------------------------------------------------------


def sessions(path: Path) -> list[tuple[str, Any]]:
    """What a file says to the HParams plugin: (what, message), in order."""
    found = []
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                which = data.WhichOneof("data")
                found.append((which, getattr(data, which)))
    return found


def test_a_file_begins_with_the_models_hyperparameters(written: Path) -> None:
    """Once, and before all values; what is neither text nor number nor truth value is told as JSON."""
    ((what, start), _) = sessions(file_of(written))
    assert what == "session_start_info"
    assert {name: value.number_value for name, value in start.hparams.items()} == {"batch_size": 1, "lr": 0.1}
    first = next(e for e in EventFileLoader(str(file_of(written))).Load() if e.summary.value)
    assert first.summary.value[0].tag == "_hparams_/session_start_info"


def test_hyperparameters_of_any_type_are_told(tmp_path: Path) -> None:
    """Whatever JSON can say."""
    told = Story()
    given: Hyperparameters = {"batch_size": 1, "lr": 0.5, "name": "<script>"}
    given |= {"is_wide": True, "layers": [8, 4], "none": None}
    told.fit(models=1, hyperparams={"m00": given})
    told.train(1, 0)
    Once(LogStore(told.log), tmp_path).write()
    ((_, start),) = sessions(file_of(tmp_path))
    kinds = {name: value.WhichOneof("kind") for name, value in start.hparams.items()}
    assert kinds == {
        "batch_size": "number_value", "lr": "number_value", "name": "string_value",
        "is_wide": "bool_value", "layers": "string_value", "none": "string_value",
    }  # fmt: skip
    assert start.hparams["layers"].string_value == "[8, 4]"


def test_only_what_has_trained_all_its_epochs_counts_as_a_success(written: Path) -> None:
    """TensorBoard keeps the first end that it reads, so a model that may go on gets none."""
    assert [what for what, _ in sessions(file_of(written))] == ["session_start_info", "session_end_info"]
    assert sessions(file_of(written))[-1][1].status == STATUS_SUCCESS
    assert [what for what, _ in sessions(file_of(written, "m01"))] == ["session_start_info"]


def test_tensorboard_shows_models_with_hyperparameters_and_metrics(written: Path) -> None:
    """Its HParams plugin, asked as its page asks it: a row per model, with the newest value of each metric."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(volumes(written).tensorboard))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(written))
    context = backend_context.Context(TBContext(data_provider=provider, logdir=str(written)))
    tags = ("epoch/valid/loss", "unit/train/loss")
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=10,
        allowed_statuses=[STATUS_UNKNOWN, STATUS_SUCCESS],
        col_params=[api_pb2.ColParams(metric=api_pb2.MetricName(tag=tag)) for tag in tags],
    )
    found = list_session_groups.Handler(RequestContext(), context, "", request).run().session_groups
    rows = {
        group.name: (
            round(group.hparams["lr"].number_value, 3),
            {one.name.tag: round(one.value, 3) for one in group.metric_values if one.name.tag in tags},
            group.sessions[0].status,
        )
        for group in found
    }
    assert rows == {
        "one/fit-1/m00": (0.1, {"epoch/valid/loss": 2.5, "unit/train/loss": 1.0}, STATUS_SUCCESS),
        "one/fit-1/m01": (0.2, {"unit/train/loss": 9.0}, STATUS_UNKNOWN),
    }


def continued() -> tuple[Sequence[Event], list[int]]:
    """A run whose models go on after it had ended: one was stopped and resumed, one failed and was retried. And how
    long the log was each time that the run had ended."""
    told = Story()
    told.fit(models=2)
    told.epoch(1, loss=3.0)
    told.tell(ModelStopRequested(run="fit-1", model="m00"))
    told.fail(unit(1, 0, "m01"), 0, FailureKind.USER_ERROR)
    told.tell(RunFinished(run="fit-1", outcome="failed"))
    ends = [len(told.log)]
    told.tell(ModelResumed(run="fit-1", model="m00"))
    told.epoch(2, loss=2.0)
    told.tell(RunFinished(run="fit-1", outcome="finished"))
    ends.append(len(told.log))
    told.tell(ModelRetried(run="fit-1", model="m01"))
    told.epoch(1, model="m01", loss=5.0)
    told.epoch(2, model="m01", loss=4.0)
    told.tell(RunFinished(run="fit-1", outcome="finished"))
    return told.log, [*ends, len(told.log)]


def test_models_that_go_on_do_so_in_the_same_files(tmp_path: Path) -> None:
    """Resumed or retried after the run had ended: nothing is written again, the end comes when there is one."""
    log, ends = continued()
    Once(LogStore(log), tmp_path / "whole").write()
    for model in ("m00", "m01"):
        path = file_of(tmp_path / "whole", model)
        assert [what for what, _ in sessions(path)] == ["session_start_info", "session_end_info"]
        assert [step for tag, step, _, _ in records(path) if tag == "epoch/train/loss"] == [1, 2]
    for length in ends:
        Once(LogStore(log[:length]), tmp_path / "again").write()
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")


def test_files_of_models_that_went_on_are_completed_too(tmp_path: Path) -> None:
    """Torn between hyper-parameters and end, or within either: as any other record."""
    log, _ = continued()
    Once(LogStore(log), tmp_path).write()
    path = file_of(tmp_path, "m01")
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        Once(LogStore(log), tmp_path).write()
        assert path.read_bytes() == whole, f"cut at byte {cut}"


# --- size ----------------------------------------------------------------------------------------


def test_of_many_live_values_extremes_and_the_last_are_kept(tmp_path: Path) -> None:
    """A unit has its share of the values of a model's run; a spike in it survives."""
    told = Story()
    told.fit(models=1)
    told.train(1, 0, rows=10_000)
    values = [1.0] * 10_000
    values[1234], values[4321] = 99.0, -99.0
    made = [
        LivePoint(
            seq=n,
            time=100.0 + n / 10_000,
            task=str(unit(1, 0)),
            attempt=1,
            worker="worker-0",
            rows=n,
            values={"loss": v},
        )
        for n, v in enumerate(values, start=1)
    ]

    class Paged(LogStore):
        def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
            return tuple(self.points[after : after + 1000])

    Once(Paged(told.log, made), tmp_path).write()
    drawn = [(step, value) for tag, step, _, value in records(file_of(tmp_path)) if tag == "live/loss"]
    assert len(drawn) <= LIVE_VALUES // 4  # two epochs of two units
    assert {(1235, 99.0), (4322, -99.0), (10_000, 1.0)} <= set(drawn)
    assert drawn == sorted(drawn)


@pytest.mark.parametrize("units", [1, 4, 125, 126, 1_600, 100_000])
def test_live_values_of_a_model_are_bounded(units: int) -> None:
    """Whatever the number of its units: about 500, of the first unit on, and more than half of them are used."""
    shares = [live_share(unit, units) for unit in range(units)]
    assert shares[0] >= FEWEST
    assert LIVE_VALUES / 2 < sum(shares) <= LIVE_VALUES
    assert all(share == 0 or share >= FEWEST for share in shares)


def test_units_without_a_share_draw_no_live_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their other values are there."""
    monkeypatch.setattr(projected, "LIVE_VALUES", 8)
    told = Story()
    told.fit(models=1, epochs=4)
    for epoch in (1, 2):
        for partition in (0, 1):
            told.train(epoch, partition, rows=10, loss=1.0)
    units = [unit(epoch, partition) for epoch in (1, 2) for partition in (0, 1)]
    made = [
        LivePoint(seq=n, time=100.0, task=str(one), attempt=1, worker="w", rows=5, values={"loss": 1.0})
        for n, one in enumerate(units, start=1)
    ]
    Once(LogStore(told.log, made), tmp_path).write()
    found = records(file_of(tmp_path))
    # Eight units, eight values: every fourth unit has four.
    assert [step for tag, step, _, _ in found if tag == "live/loss"] == [5]
    assert [step for tag, step, _, _ in found if tag == "unit/train/loss"] == [1, 2, 3, 4]


def long_story() -> tuple[Sequence[Event], Sequence[LivePoint]]:
    """A run whose units report as they train: 20 of them, 30 points each before its commit."""
    told, made = Story(), list[LivePoint]()
    told.fit(models=1, epochs=10)
    for epoch in range(1, 11):
        for partition in (0, 1):
            for row in range(30):
                point = LivePoint(
                    seq=len(made) + 1, time=told.time + 0.5, task=str(unit(epoch, partition)), attempt=1, worker="w",
                    rows=row, values={"loss": 1.0},
                )  # fmt: skip
                made.append(point)
            told.train(epoch, partition, rows=30, loss=1.0)
    return told.log, made


def test_a_restart_holds_the_points_of_the_commit_that_it_writes(tmp_path: Path) -> None:
    """Not those of all the run: live points are read as far as the commit, and dropped once it is written."""
    log, made = long_story()

    class Counted(LogStore):
        furthest = 0

        def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
            found = super().live(experiment, after)
            self.furthest = max(self.furthest, after + len(found))
            return found

    store = Counted(log, made)
    own = Once(store, tmp_path)
    own._read_logs()
    held, entries = [], own._gather()
    for done, entry in enumerate(entries):
        assert own._is_written(entry)
        held.append(sum(map(len, own._live["one"]._points.values())))
        if done == 2:  # start, commit and end of the first unit
            assert store.furthest < 60
    assert store.furthest == len(made)
    assert max(held) < 60
    assert held[-1] == 0
    own.forget("one")


def test_points_of_attempts_that_ended_in_vain_are_dropped(tmp_path: Path) -> None:
    """Failed for good or taken back; and those of a unit that was done again."""
    told = Story()
    told.fit(models=3)
    told.train(1, 0, loss=1.0)
    told.fail(unit(1, 1), 1, FailureKind.CHECKPOINT)
    told.train(1, 0, loss=1.0)
    told.fail(unit(1, 0, "m01"), 0, FailureKind.USER_ERROR)
    taken = unit(1, 1, "m02")
    told.tell(TaskAssigned(task=str(taken), attempt=1, worker="worker-1"))
    told.tell(TaskStarted(task=str(taken), attempt=1, worker="worker-1"))
    told.tell(TaskRevoked(task=str(taken), attempt=1, worker="worker-1", reason="stopped"))
    reporting = [(unit(1, 0), 1), (unit(1, 0), 2), (unit(1, 1), 1), (unit(1, 0, "m01"), 1), (taken, 1)]
    made = [
        LivePoint(seq=n, time=100.0, task=str(key), attempt=attempt, worker="w", rows=1, values={"loss": 1.0})
        for n, (key, attempt) in enumerate(reporting, start=1)
    ]
    own = Once(LogStore(told.log, made), tmp_path)
    own.write()
    assert own._live["one"]._points == {}
    assert contents(tmp_path).keys() == {file_of(tmp_path).relative_to(tmp_path)}


# --- what cannot be written ----------------------------------------------------------------------


def test_numbers_beyond_what_a_file_can_hold(tmp_path: Path) -> None:
    """An integer that no double holds is told as text, a value that no 32-bit float holds as the largest."""
    told = Story()
    told.fit(
        models=1, hyperparams={"m00": {"batch_size": 1, "lr": 0.1, "huge": 10**400, "small": -(10**400)}}
    )
    told.train(1, 0, loss=1e300)
    Once(LogStore(told.log), tmp_path).write()
    ((_, start),) = sessions(file_of(tmp_path))
    assert start.hparams["huge"].string_value == str(10**400)
    assert start.hparams["small"].string_value == str(-(10**400))
    ((_, _, _, value),) = records(file_of(tmp_path))
    assert value == pytest.approx(3.4028235e38)


def test_what_cannot_be_written_holds_nobody_up(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out as a whole and told with its cause; what comes after is written, and no more by the next life."""
    scalar = event_file._scalar

    def unforeseen(one: event_file.Scalar) -> Any:
        if (one.tag, one.step) == ("unit/train/loss", 2):
            raise ValueError("nobody thought of this")
        return scalar(one)

    monkeypatch.setattr(event_file, "_scalar", unforeseen)
    root = tmp_path / "own"
    Once(LogStore(story().log, points()), root).write()
    of_unit = [
        r for r in records(file_of(written)) if not (r[0].startswith(("unit", "live")) and r[1] in (2, 30))
    ]
    left = [r for r in of_unit if r[:2] not in (("epoch/train/loss", 1), ("epoch/train/accuracy", 1))]
    assert records(file_of(root)) == left
    assert contents(root).keys() == contents(written).keys()
    assert "fit-1/train/m00/e1/p1" in caplog.text
    assert "nobody thought of this" in caplog.text
    before = contents(root)
    Once(LogStore(story().log, points()), root).write()
    assert contents(root) == before


def test_a_log_that_cannot_be_read_leaves_the_others(tmp_path: Path, written: Path) -> None:
    """One experiment's log does not fold: that of the next is written all the same."""

    class Two(LogStore):
        def experiments(self) -> tuple[ExperimentSummary, ...]:
            (one,) = super().experiments()
            broken = one.experiment.model_copy(update={"name": "broken"})
            return (one.model_copy(update={"experiment": broken}), one)

        def events(self, experiment: str, after: int = 0) -> tuple[Event, ...]:
            found = super().events(experiment, after)
            return found[1:] if experiment == "broken" else found

    Once(Two(story().log, points()), tmp_path / "own").write()
    assert contents(tmp_path / "own") == contents(written)


def test_each_model_has_one_start_however_many_units_it_has() -> None:
    """It is made with the first unit, not at every commit."""
    told = story()
    state, starts = ExperimentState(name="one"), []
    for event in told.log:
        state.apply(event)
        starts += [what.key for what in additions(state, event) if what.key.endswith("/start")]
    assert starts == ["fit-1/m00/start", "fit-1/m01/start"]


# --- deletion, lag -------------------------------------------------------------------------------


def test_a_forgotten_experiment_is_written_no_more(written: Path) -> None:
    """What waited is dropped and no file is touched; one of the same name is then written from its beginning."""
    store = LogStore(story().log, points())
    own = Once(store, written)
    own._read_logs()
    assert not own._entries.empty()
    own.forget("one")
    shutil.rmtree(volumes(written).tensorboard / "one")
    own.drain()
    assert not (volumes(written).tensorboard / "one").exists()
    Once(store, written.parent / "fresh").write()
    own.write()
    assert contents(written) == contents(written.parent / "fresh")


def test_what_was_read_of_a_forgotten_life_is_not_written(written: Path) -> None:
    """The experiment is forgotten while its log is being read: the rest of the old log is not that of the new one."""

    class Forgetful(LogStore):
        def events(self, experiment: str, after: int = 0) -> tuple[Event, ...]:
            found = super().events(experiment, after)
            if after == 7:  # once, with some of the log observed and more to come
                own.forget(experiment)
            return found

    own = Once(Forgetful(story().log, points()), written)
    before = contents(written)
    shutil.rmtree(volumes(written).tensorboard / "one")
    own.write()
    assert contents(written) == {}
    # Its successor shows the log of a new life from its beginning, and nothing of it counts as written.
    state = ExperimentState(name="one")
    for event in story().log:
        state.apply(event)
        own.observe(state, event)
    own.drain()
    assert contents(written) == before


def test_tensorboard_is_not_shown_what_is_being_removed(written: Path) -> None:
    """What was moved aside on the metrics volume lies beside its folder, not in it."""
    root, trash = volumes(written).tensorboard, volumes(written).trash(volumes(written).metrics)
    trash.mkdir()
    (root / "one").rename(trash / "one.1")
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(root))
    assert multiplexer.Runs() == {}


def test_a_deleted_experiment_stops_nobody(written: Path, tmp_path: Path) -> None:
    """Its live points are gone when they are asked for: what comes after is written all the same."""

    class Gone(LogStore):
        def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
            raise NotFoundError(f"no experiment {experiment!r} in the store")

    root = tmp_path / "own"
    Once(Gone(story().log), root).write()
    assert not records(file_of(root))
    assert records(file_of_run(root)) == records(file_of_run(written))


def test_what_waits_is_told(tmp_path: Path) -> None:
    """For how long the oldest commit has waited, while the store does not answer; 0 once all is written."""

    class Unreachable(LogStore):
        is_asked, may_answer = threading.Event(), threading.Event()

        def live(self, experiment: str, after: int = 0) -> tuple[LivePoint, ...]:
            self.is_asked.set()
            assert self.may_answer.wait(20)
            return super().live(experiment, after)

    store = Unreachable(story().log, points())
    own = Projection(cast(KvsClient, store), volumes(tmp_path))
    assert own.lag_s() == 0.0
    own.start()
    assert store.is_asked.wait(20)
    assert 0.0 < own.lag_s() < 60.0
    store.may_answer.set()
    deadline = time.monotonic() + 20
    while own.lag_s() > 0.0:
        assert time.monotonic() < deadline, "what waited is not written"
