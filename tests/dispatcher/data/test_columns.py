"""The tab Data shows the columns of a complete data set, with warnings on top."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cerebro.contract.runs import EtlPlan, PartitionPlan
from cerebro.data.fields import Field, Layout
from cerebro.data.statistics.data import ShardObserver, write_statistics
from cerebro.runtime.volumes import Volumes
from dispatcher.data.process import Job, compute
from dispatcher.data.summaries import Summaries
from tests.dispatcher.fakes import Bench, settings
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import Story
from tests.waiting import until

PAGE = "/experiments/digits/data"


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    found = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    found.shared.mkdir()
    return found


@pytest.fixture
def bench(volumes: Volumes) -> Bench:
    made = Bench(settings=settings(volumes=volumes))
    story = Story("digits")
    story.workers_join()
    story.etl()
    made.store.add(story)
    return made


def write_sorted(volumes: Volumes) -> None:
    """Write statistics of two partitions with different labels."""
    fields = (Field(name="input", dtype="float64", shape=()), Field(name="<b>label", dtype="int64", shape=()))
    for number in range(2):
        observer = ShardObserver(898)
        values = [np.arange(898.0) + 898 * number, np.full(898, number)]
        observer.observe(Layout(fields=fields, structure={}, first_id=0), values)
        statistics = observer.result()
        assert statistics is not None
        write_statistics(volumes.statistics("d1", "train", number), statistics)


@pytest.mark.processes
def test_columns_with_bars_for_splits_and_partitions(bench: Bench, volumes: Volumes) -> None:
    """A child process compares the partitions; the page polls until it has."""
    write_sorted(volumes)
    browser = bench.signed_in()
    page = until(lambda: text if "Columns" in (text := browser.get(PAGE).text) else None, "columns")
    shown = text_of(page)
    assert "The partitions of train differ in field '<b>label' more than chance explains" in shown
    assert page.index("banner warn") < page.index("Rows per split") < page.index("columns-title")
    assert page.count('<svg class="bars"') == 6  # two columns, each for the split and two partitions
    assert 'aria-label="&lt;b&gt;label in train, partition 1: 0: 0.0%; 1: 100.0%"' in page
    assert "0 50 %, 1 50 %" in shown
    limited = text_of(browser.get(f"{PAGE}?columns=1").text)
    assert "1 of 2, those with warnings first" in limited


def test_data_sets_of_earlier_versions_have_no_columns(bench: Bench) -> None:
    """Without statistics the page shows progress only."""
    page = bench.signed_in().get(PAGE).text
    assert "columns-title" not in page
    assert "Rows per split" in page


def test_damaged_statistics_have_a_reason(volumes: Volumes) -> None:
    """Files of a wrong content are named; missing ones are counted."""
    write_sorted(volumes)
    names = tuple(f"datasets/d1/statistics/train-000{number}.json" for number in range(3))
    found = compute(Job(files={"train": names}, shared=str(volumes.shared), cpu_s=9)).summary
    assert found is not None
    assert found.incomplete == 1
    (volumes.shared / names[0]).write_text("{")
    assert "damaged" in compute(Job(files={"train": names}, shared=str(volumes.shared), cpu_s=9)).reason


PLAN = EtlPlan(
    dataset="d1",
    splits={"train": tuple(PartitionPlan(partition=n, worker="worker-0", rows=898) for n in range(2))},
)


@pytest.mark.processes
def test_a_failure_has_a_new_version_once_it_is_repeated(volumes: Volumes) -> None:
    """An open page then asks again."""
    write_sorted(volumes)
    path = volumes.statistics("d1", "train", 1)
    content = path.read_bytes()
    path.write_text("{")
    now = [0.0]
    summaries = Summaries(volumes, lambda: now[0])
    failed = until(lambda: summaries.find(PLAN, 1.0, wait_s=1), "failure")
    assert "damaged" in failed.reason
    path.write_bytes(content)
    now[0] = 59.0
    version = summaries.version()
    assert summaries.find(PLAN, 1.0) == failed
    assert summaries.version() == version
    now[0] = 60.0
    assert summaries.version() > version
    assert until(lambda: summaries.find(PLAN, 1.0, wait_s=1), "summary").summary is not None
    assert summaries.version() > version + 1


def test_an_open_page_asks_again_after_a_busy_moment(volumes: Volumes) -> None:
    """Nothing was computed, but the version differs."""
    write_sorted(volumes)
    summaries = Summaries(volumes)
    admitted = summaries._processes._slots._admitted
    while admitted.acquire(blocking=False):
        pass
    version = summaries.version()
    assert summaries.find(PLAN, 1.0, wait_s=60) is None
    assert summaries.version() > version
