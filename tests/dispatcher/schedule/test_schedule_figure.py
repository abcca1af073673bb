"""The page's schedule after a user resumed the run: epochs, break and idle time as in the report."""

from __future__ import annotations

from cerebro.client.reporting import Drawings
from cerebro.figures import description, spans
from dispatcher.read_models.from_log import FromLog
from dispatcher.read_models.read_model import ReadModel
from dispatcher.schedule.figure import ScheduleFigureQuery, schedule
from tests.client.reporting.stories import RECORD, resumed


def test_page_and_report_draw_the_same_schedule() -> None:
    """An epoch's line is where its last sub-epoch ends, the break is shaded, idle time leaves it out."""
    story = resumed(1000.0)
    read_model = ReadModel(RECORD)
    read_model.apply(story.log)
    found = schedule(read_model, ScheduleFigureQuery(), story.time)
    assert not isinstance(found, FromLog)
    drawn = found()
    assert drawn == Drawings(state=story.state, run=story.run, now=story.time).schedule()
    ends = {span.epoch: span.end_s for span in spans(story.run, story.time)}
    minutes = [shape["x0"] for shape in drawn["layout"]["shapes"] if shape["line"].get("dash") == "dot"]
    assert minutes == [ends[1] / 60, ends[2] / 60]
    assert drawn["layout"]["shapes"][0]["type"] == "rect"
    assert "in which the run had ended" in description(drawn)
