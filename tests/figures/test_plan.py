"""The plan in the schedule's figure: hollow bars behind a line that is now."""

from __future__ import annotations

from typing import Any

from cerebro import figures
from cerebro.figures import Figure, Landmarks, Span, description, table
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


def test_sub_epochs_to_come_are_outlines_in_their_models_colour() -> None:
    """Nothing is inside, they have a word in the legend, and say what they are."""
    bars = hollow(drawn(spans()))
    assert bars["marker"]["color"] == "rgba(0,0,0,0)"
    assert bars["marker"]["line"]["color"][0] == figures.colour(0, "light")
    assert bars["customdata"][0] == ["m00", 9, 0]
    assert "planned on worker-0" in bars["hovertext"][0]
    legend = [trace["name"] for trace in drawn(spans())["data"] if trace["showlegend"]]
    assert "planned" in legend


def test_now_is_a_line_between_what_ran_and_what_is_to_come() -> None:
    """The axis reaches as far as the plan."""
    found = spans()
    now = max(span.end_s for span in found)
    layout = drawn(found)["layout"]
    (note,) = [note for note in layout["annotations"] if note["text"] == "now"]
    assert note["x"] == max(now, 33.0)
    assert layout["xaxis"]["range"][1] > 46.0
    assert "since the first sub-epoch" in layout["xaxis"]["title"]["text"]


def test_before_the_first_sub_epoch_there_is_the_plan_alone() -> None:
    """No line of busy devices, and time counts from now."""
    figure = drawn([], now_s=0.0)
    assert figure["layout"]["title"]["text"] == "Plan of 16 models on 4 workers"
    assert {trace["name"] for trace in figure["data"]} == {"planned"}
    assert "from now" in figure["layout"]["xaxis"]["title"]["text"]
    assert "yaxis2" not in figure["layout"]
    assert description(figure).startswith("No sub-epoch has started yet. 8 sub-epochs are planned next")


def test_the_table_counts_sub_epochs_to_come() -> None:
    """Per worker; none where no plan is followed."""
    assert [row[6] for row in table(drawn(spans())).rows] == [2, 2, 2, 2]
    assert table(drawn(spans())).columns[6] == "sub-epochs planned next"


def test_a_chosen_model_stands_out_among_them_too() -> None:
    """Its way through what is to come."""
    bars = hollow(drawn(spans(), highlight="m01"))
    for identity, opacity in zip(bars["customdata"], bars["marker"]["opacity"], strict=True):
        assert (opacity == 1.0) is (identity[0] == "m01")


def test_without_a_plan_and_a_sub_epoch_it_is_said_in_words() -> None:
    """Nothing is drawn."""
    figure = figures.schedule([], workers=WORKERS, models=MODELS, landmarks=Landmarks(now_s=0.0))
    assert figure["layout"]["meta"]["empty"] == "no sub-epoch has started yet, and no plan is followed"


def test_a_merged_schedule_shows_what_comes_next_as_well() -> None:
    """What ran is put together, the next sub-epochs are not."""
    found = spans(8, 16, 30, last_runs=False)
    end = max(span.end_s for span in found)
    figure = figures.schedule(
        found, workers=WORKERS, models=MODELS, landmarks=Landmarks(now_s=end), planned=ahead(end)
    )
    assert len(hollow(figure)["x"]) == 8
    assert "in stretches of" in figure["layout"]["title"]["text"]
