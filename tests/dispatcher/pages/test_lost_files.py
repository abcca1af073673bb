"""The experiment page reports missing checkpoints of finished models."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState
from cerebro.state.models.final_checkpoints import final_files
from tests.dispatcher.fakes import Bench, settings
from tests.dispatcher.stories import NOW, Story
from tests.waiting import HANG_S

PAGES = ("/experiments/digits", "/experiments/digits/checkpoints")


def story() -> Story:
    """A running fit with one finished model."""
    story = Story("digits", began=NOW - 120)
    story.workers_join()
    story.etl()
    story.fit()
    for epoch in (1, 2, 3):
        story.train("m00", epoch)
    story.run_task("fit-1/train/m05/e1/p0", "worker-0", None)
    return story


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Write the final checkpoints of an experiment."""
    state = ExperimentState(name="digits")
    for event in story().events:
        state.apply(event)
    found = [tmp_path / "checkpoints" / each.name for each in final_files(state)]
    for path in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("state")
    assert found
    return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(settings=settings(volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})))
    bench.store.add(story())
    return bench


def test_missing_checkpoints_are_reported(bench: Bench, files: list[Path]) -> None:
    """With model and file. The check runs every five minutes in the background."""
    browser, lost = bench.signed_in(), bench.app.extensions["cerebro-lost"]
    files[0].unlink()
    assert "from the checkpoint volume" not in browser.get(PAGES[0]).text
    lost.wait(HANG_S)
    for page in PAGES:
        shown = browser.get(page).text
        assert "1 checkpoint of finished models is gone" in shown
        assert files[0].name in shown
    files[0].write_text("back")
    assert all("from the checkpoint volume" in browser.get(page).text for page in PAGES)
    bench.clock.now += 301
    browser.get(PAGES[0])
    lost.wait(HANG_S)
    assert all("from the checkpoint volume" not in browser.get(page).text for page in PAGES)
