"""The export loop follows all logs as they grow, appear and disappear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from cerebro.contract.events import Event, TaskStarted
from cerebro.contract.records import ExperimentSummary
from cerebro.errors import ExportError, TrackerUnavailableError, UnreadableError
from cerebro.exports.export_loop import ExperimentExport, ExportLoop
from cerebro.exports.projection import PageKey, Projection, Row
from tests.exports.logged import LogStore, as_exported, expected, record, story


class FakeExport:
    """An export that records its rows and can fail."""

    def __init__(self) -> None:
        self.rows: dict[PageKey, list[Row]] = {}
        self.fails = 0
        self.settled = 0

    def cursor(self, page_key: PageKey) -> int:
        return self.rows[page_key][-1].seq if page_key in self.rows else 0

    def send(self, rows: Mapping[PageKey, Sequence[Row]]) -> None:
        for page_key, some in rows.items():
            if self.fails:
                self.fails -= 1
                raise TrackerUnavailableError("away")
            new = [row for row in some if row.seq > self.cursor(page_key)]
            if new:
                self.rows.setdefault(page_key, []).extend(new)

    def settle(self) -> None:
        self.settled += 1

    def exported(self) -> dict[PageKey, list[tuple[str, int, int, float]]]:
        return {page_key: [as_exported(row) for row in rows] for page_key, rows in self.rows.items()}


def test_rejected_rows_are_resent_first() -> None:
    """A tracker with outages gets all rows in order."""
    kept, log = FakeExport(), story().log
    followed = ExperimentExport(LogStore(log), record(), lambda _: kept)
    for _ in range(4):
        kept.fails = 1
        with pytest.raises(TrackerUnavailableError):
            followed.catch_up()
        assert not kept.settled
        if followed.seq == len(log):
            break
    followed.catch_up()
    assert kept.exported() == expected(log)
    assert kept.settled == 1


def test_a_log_is_exported_up_to_its_unreadable_event() -> None:
    """The error names the event."""
    log = story().log[:20]
    bad = TaskStarted(seq=21, time=500.0, task="fit-1/train/m09/e1/p0", attempt=1, worker="worker-0")
    kept = FakeExport()
    with pytest.raises(UnreadableError, match="event 21 of experiment 'one'"):
        ExperimentExport(LogStore([*log, bad], page=50), record(), lambda _: kept).catch_up()
    assert kept.exported() == expected(log)
    assert kept.settled == 1


class Several(LogStore):
    """A store whose experiments change."""

    def __init__(self, logs: dict[str, Sequence[Event]]) -> None:
        super().__init__(())
        self.logs, self.created = logs, dict.fromkeys(logs, 1.0)

    def experiments(self) -> tuple[ExperimentSummary, ...]:
        return tuple(
            ExperimentSummary(
                experiment=record(name, self.created[name]), last_seq=len(log), last_event=0.0, open_runs=()
            )
            for name, log in self.logs.items()
        )

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        return self.logs[experiment][after : after + 7]


def test_created_and_deleted_experiments_are_followed() -> None:
    """A recreated experiment has new pages."""
    log, runs = story().log, dict[str, FakeExport]()
    store = Several({"one": log[:10]})

    def export(projection: Projection) -> FakeExport:
        return runs.setdefault(projection.identity, FakeExport())

    follower = ExportLoop(store, export)
    follower.poll()
    store.logs |= {"one": log, "two": log[:20]}
    store.created["two"] = 1.0
    follower.poll()
    del store.logs["two"]
    follower.poll()
    store.logs["one"], store.created["one"] = log[:15], 2.0
    follower.poll()
    assert {name: kept.exported() for name, kept in runs.items()} == {
        "one@1.000000": expected(log),
        "two@1.000000": expected(log[:20]),
        "one@2.000000": expected(log[:15]),
    }


def test_a_refused_experiment_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged once, and the export is retried when the log grows."""
    log, kept = story().log, FakeExport()
    store = Several({"bad": log[:10], "good": log})

    class Refused(FakeExport):
        def send(self, rows: Mapping[PageKey, Sequence[Row]]) -> None:
            raise ExportError("not you")

    follower = ExportLoop(store, lambda projection: kept if projection.record.name == "good" else Refused())
    for _ in range(3):
        follower.poll()
    assert caplog.text.count("the export of bad stopped") == 1
    assert kept.exported() == expected(log)
    store.logs["bad"] = log[:12]
    follower.poll()
    assert caplog.text.count("the export of bad stopped") == 2
