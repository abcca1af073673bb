"""A run as a Gantt chart."""

from __future__ import annotations

from random import Random
from xml.etree import ElementTree

from cerebro.state.chart import chart
from tests.state.runs import TimedStory, dispatched
from tests.state.stories import joined, unit


def texts(story: TimedStory, *, newest: int = 100) -> list[str]:
    """What the chart says, tooltips included."""
    drawing = chart(story.state, story.run, story.time, newest=newest)
    return [
        text for element in ElementTree.fromstring(drawing).iter() if (text := (element.text or "").strip())
    ]


def test_a_chart_before_the_first_unit_is_empty() -> None:
    """Its workers are there already, in the order of their numbers, and nothing else is."""
    story = TimedStory()
    story.tell(joined(10))
    story.fit()
    said = texts(story)
    assert [text for text in said if text.startswith("worker-")] == ["worker-0", "worker-1", "worker-10"]
    assert not any("partition" in text for text in said)


def test_a_unit_that_runs_is_drawn_up_to_now() -> None:
    """And says so."""
    story = TimedStory()
    story.fit()
    story.runs(unit(1, 0), 0, 0.0, 4.0)
    story.begins(unit(1, 1), 1, 5.0)
    assert [text for text in texts(story) if "partition" in text] == [
        "m00, partition 0, epoch 1, 0 to 4 s",
        "m00, partition 1, epoch 1, since 5 s",
    ]


def test_a_long_run_shows_its_newest_units() -> None:
    """As many as are asked for, said in the heading; their times still count from the start of the run."""
    story = dispatched(Random(4), models=3, partitions=2, epochs=2)
    said = texts(story, newest=5)
    assert said[0] == "Units of one/fit-1: the newest 5 of 12"
    drawn = [text for text in said if ", partition " in text]
    assert len(drawn) == 5
    assert drawn == [text for text in texts(story) if ", partition " in text][-5:]
