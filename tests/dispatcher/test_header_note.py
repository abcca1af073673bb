"""The page header shows in full why a run is paused."""

from __future__ import annotations

import re

from cerebro.contract.events import RunRequested
from cerebro.contract.runs import EtlRequest
from tests.dispatcher.fakes import Bench
from tests.dispatcher.stories import CODE, Story, running_story

LONG = "the checkpoint volume is full: " + "x" * 200 + " <b>and no more</b>"


def head(story: Story, tab: str = "/models") -> str:
    """Extract the header of a page."""
    bench = Bench()
    bench.store.add(story)
    return (
        bench.signed_in().get(f"/experiments/{story.record.name}{tab}").text.partition('class="tabline"')[0]
    )


def test_each_page_shows_why_a_run_paused_before_its_plan() -> None:
    """A volume that the plan needs is unusable."""
    story, reason = Story("new"), "/volumes/shared/x is read-only"
    story.workers_join()
    story.append(
        RunRequested(run="etl-1", request=EtlRequest(code=CODE, code_fingerprint=CODE), author="ada")
    )
    story.pause(reason, "etl-1")
    bench = Bench()
    bench.store.add(story)
    for page in (
        "/experiments",
        "/experiments/new",
        "/experiments/new/models",
        "/experiments/new/schedule",
    ):
        found = bench.signed_in().get(page).text
        assert reason in found, page
        assert "paused" in found, page


def test_a_long_reason_is_expandable() -> None:
    """The heading is the beginning of the text; the escaped full text follows."""
    run_story = running_story()
    run_story.pause(LONG)
    for tab in ("", "/models", "/schedule"):
        found = re.search(
            r'<details class="noted noted-paused" id="note">.*?</details>', head(run_story, tab), re.S
        )
        assert found is not None, tab
        assert "x" * 200 + " &lt;b&gt;and no more&lt;/b&gt;" in found[0]
