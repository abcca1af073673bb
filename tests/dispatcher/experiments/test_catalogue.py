"""Rows of the experiment list load in the background, once each, within the cache limit."""

from __future__ import annotations

import pytest

from cerebro.contract.records import ExperimentSummary
from dispatcher.experiments import catalogue
from dispatcher.experiments.catalogue import UPDATE_S, Catalogue
from dispatcher.experiments.view import ListQuery
from dispatcher.read_models.reader import Reader
from tests.dispatcher.fakes import Clock, FakeStore
from tests.dispatcher.stories import Story


class CatalogueBench:
    """A catalogue over a store in memory, with no time to load rows in the foreground."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, experiments: int) -> None:
        self.store, self.clock, self.looked = FakeStore(), Clock(), 0
        for number in range(experiments):
            story = Story(f"x-{number}")
            story.workers_join(1)
            self.store.add(story)
        self.reader = Reader(self.store, clock=self.clock, monotonic=self.clock)
        self.catalogue = Catalogue(self.reader)
        monkeypatch.setattr(catalogue, "PAGE_READ_S", -1.0)
        is_current = Catalogue._is_current

        def counted(this: Catalogue, summary: ExperimentSummary) -> bool:
            self.looked += 1
            return is_current(this, summary)

        monkeypatch.setattr(Catalogue, "_is_current", counted)

    def fill(self, steps: int) -> bool:
        """Run background steps; return True if no work remains after `steps`."""
        return not all(self.reader.background._step_next() for _ in range(steps))

    def read(self) -> int:
        return self.catalogue.view(ListQuery()).read


def test_filling_reads_each_row_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CatalogueBench(monkeypatch, 300)
    assert bench.read() == 0
    assert bench.fill(steps=1000)
    assert bench.looked < 5 * 300
    assert bench.read() == 300


def test_open_lists_are_not_rebuilt_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CatalogueBench(monkeypatch, 20)
    bench.read()
    versions = set()
    for _ in range(20):
        bench.fill(steps=1)
        versions.add(bench.catalogue.version())
    assert len(versions) <= 2
    bench.clock.now += UPDATE_S
    assert bench.catalogue.version() not in versions  # the version changes when new rows have been read
    bench.clock.now += UPDATE_S
    assert bench.catalogue.version() == bench.catalogue.version()


def test_a_row_is_read_again_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = CatalogueBench(monkeypatch, 3)
    bench.read()
    bench.store.is_away = True
    bench.fill(steps=5)
    bench.store.is_away = False
    bench.clock.now += 10
    bench.read()
    assert bench.fill(steps=20)
    assert bench.read() == 3


def test_an_archived_experiment_is_missing_from_the_next_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its row is cached and its log unchanged."""
    bench = CatalogueBench(monkeypatch, 2)
    assert bench.read() == 0
    assert bench.fill(steps=100)
    assert len(bench.catalogue.view(ListQuery()).rows) == 2
    summaries = bench.store.experiments()
    archived = (summaries[0].model_copy(update={"is_archived": True}), *summaries[1:])
    monkeypatch.setattr(bench.store, "experiments", lambda: archived)
    bench.reader.invalidate("x-0")
    assert [row.name for row in bench.catalogue.view(ListQuery()).rows] == ["x-1"]
