"""The schedule figure shows planned sub-epochs as hollow bars after the current time."""

from __future__ import annotations

from typing import Any

from cerebro import figures
from cerebro.figures import Figure, Landmarks, Span, description
from tests.figures.samples import ahead, spans

MODELS = tuple(f"m{i:02}" for i in range(16))
WORKERS = {f"worker-{i}": 1 for i in range(4)}


def drawn(found: list[Span], highlight: str = "", now_s: float = 33.0) -> Figure:
    return figures.schedule(
        found,
        workers=WORKERS,
        models=MODELS,
        landmarks=Landmarks(now_s=now_s),
        planned=ahead(),
        highlight=highlight,
    )


def hollow(figure: Figure) -> dict[str, Any]:
    (found,) = [trace for trace in figure["data"] if trace["name"] == "planned" and trace["x"] != [None]]
    return dict(found)


def test_a_line_marks_now_between_past_and_planned_sub_epochs() -> None:
    """The axis covers the whole plan."""
    found = spans()
    now = max(span.end_s for span in found)
    layout = drawn(found)["layout"]
    (note,) = [note for note in layout["annotations"] if note["text"] == "now"]
    assert note["x"] == max(now, 33.0)
    assert layout["xaxis"]["range"][1] > 46.0
    assert "since the first sub-epoch" in layout["xaxis"]["title"]["text"]


def test_before_the_first_sub_epoch_only_the_plan_is_shown() -> None:
    """No line of busy devices, and time counts from now."""
    figure = drawn([], now_s=0.0)
    assert figure["layout"]["title"]["text"] == "Plan of 16 models on 4 workers"
    assert {trace["name"] for trace in figure["data"]} == {"planned"}
    assert "from now" in figure["layout"]["xaxis"]["title"]["text"]
    assert "yaxis2" not in figure["layout"]
    assert description(figure).startswith("No sub-epoch has started yet. 8 sub-epochs are planned next")
