"""Trackers get the measures and the Pareto front of a fit with several objectives."""

from __future__ import annotations

from cerebro.contract.events import RunFinished
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.exports.projection import PageKey, Projection
from tests.state.objective_stories import story_of


def test_an_ended_fit_has_its_front_and_its_models_their_measures() -> None:
    """The run's parameters have objectives and constraints."""
    story = story_of()
    story.append(RunFinished(run="fit-1", outcome="stopped"))
    record = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv")))
    projection = Projection(record)
    for event in story.log:
        list(projection.apply(event))
    page = projection.page(PageKey("fit-1"))
    assert page.tags["cerebro.pareto_front"] == "m02, m01"
    assert page.params["objectives"] == '{"accuracy": "max", "model_bytes": "min"}'
    assert '"name": "model_bytes"' in page.params["constraints"]
    assert projection.page(PageKey("fit-1", "m02")).tags["cerebro.model_bytes"] == "50"
