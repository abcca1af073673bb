"""After a preprocessing failure, the data tab shows its cause and its partition."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.contract.events import RunFinished, RunRequested, RunStarted
from cerebro.contract.runs import EtlPlan, EtlRequest, PartitionPlan
from cerebro.contract.tasks.results import TaskResult
from cerebro.runtime.volumes import Volumes
from tests.dispatcher.fakes import Bench, settings
from tests.dispatcher.gallery import write_failed_row
from tests.dispatcher.stories import CODE, Story

CAUSE = "row 'b-17' of train failed: " + "x" * 200 + " <b>cannot open image</b>"
DATA = "/experiments/digits/data"


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    found = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    found.logs.mkdir()
    return found


@pytest.fixture
def bench(volumes: Volumes) -> Bench:
    return Bench(settings=settings(volumes=volumes))


def begun() -> Story:
    """ETL of three partitions, all incomplete."""
    story = Story("digits")
    story.workers_join()
    parts = tuple(PartitionPlan(partition=p, worker=f"worker-{p % 2}", rows=500) for p in range(3))
    story.append(
        RunRequested(run="etl-1", request=EtlRequest(code=CODE, code_fingerprint=CODE), author="ada")
    )
    story.append(RunStarted(run="etl-1", plan=EtlPlan(dataset="d1", splits={"train": parts})))
    return story


def test_failed_preprocessing_shows_cause_and_log(bench: Bench) -> None:
    """The message, the traceback and the log; remaining partitions are not shown as waiting."""
    story = begun()
    story.run_task("etl-1/etl/train/p1", "worker-1", TaskResult(rows=490, rows_failed=10))
    story.fail("etl-1/etl/train/p0", "worker-0", CAUSE, "Traceback\n  line 3", rows_failed=7)
    story.append(RunFinished(run="etl-1", outcome="failed", error="1 partition failed"))
    bench.store.add(story)
    page = bench.signed_in().get(DATA).text
    assert CAUSE.replace("<b>", "&lt;b&gt;").replace("</b>", "&lt;/b&gt;").replace("'", "&#39;") in page
    assert "Traceback\n  line 3" in page
    assert "logs?task=etl-1/etl/train/p0" in page
    assert "etl-1 has ended" in page
    assert '<strong class="num">17</strong> failed; ' in page
    assert "data?split=train&amp;partition=0#failed-rows" in page
    assert "so far" not in page
    assert '<strong class="num">1</strong> partition failed permanently' in page
    assert 'state-stopped">' in page
    assert 'state-pending">' not in page


def test_failed_rows_can_be_read_without_scripts(bench: Bench, volumes: Volumes) -> None:
    """The link beside a partition opens this page with the partition's rows."""
    story = Story("digits")
    story.workers_join()
    story.etl(failed=1)
    bench.store.add(story)
    write_failed_row(volumes, "<row>", "cannot open image 7.png")
    browser = bench.signed_in()
    assert f'href="{DATA}?split=train&amp;partition=0#failed-rows"' in browser.get(DATA).text
    page = browser.get(f"{DATA}?split=train&partition=0").text
    assert '<td class="wrap">&lt;row&gt;</td><td class="wrap">cannot open image 7.png</td>' in page
    assert "Failed rows of" not in browser.get(f"{DATA}?split=train&partition=99").text
