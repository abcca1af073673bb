"""The models list and the model's page show the warnings of a model's sub-epochs."""

from __future__ import annotations

from cerebro.contract.events import TaskCommitted
from tests.dispatcher.fakes import Bench
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import record
from tests.state.stories import Story


def test_a_warning_of_sub_epochs_is_shown_with_its_model() -> None:
    """One model has a warning in each sub-epoch, the other has none."""
    story = Story()
    story.fit(epochs=1)
    story.train(1, 0)
    story.train(1, 0, model="m01")
    bench = Bench()
    bench.store.records["one"] = record("one")
    bench.store.logs["one"] = [
        event.model_copy(
            update={"result": event.result.model_copy(update={"warnings": ("no weight changed",)})}
        )
        if isinstance(event, TaskCommitted) and "m00" in event.task
        else event
        for event in story.log
    ]
    browser = bench.signed_in()
    listed = text_of(browser.get("/experiments/one/models").text)
    assert listed.count("warning: no weight changed (in 1 of 1 sub-epochs)") == 1
    assert "No weight changed (in 1 of 1 sub-epochs)." in text_of(
        browser.get("/experiments/one/models/m00").text
    )
    assert "No weight changed" not in text_of(browser.get("/experiments/one/models/m01").text)
