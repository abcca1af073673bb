"""Training steps, counted over sub-epochs of any sizes and in any order."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks.bodies import TrainTask
from cerebro.state import position_of
from controller.decisions import tasks
from tests.state.stories import Story, sub_epoch

RECORD = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv")))


@settings(deadline=None)
@given(
    rows=st.lists(st.integers(7, 60), min_size=1, max_size=5),
    size=st.integers(1, 7),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_sub_epochs_continue_the_steps_up_to_the_total(
    rows: list[int], size: int, epochs: int, seed: int
) -> None:
    """Assigned tasks and the log give the same positions."""
    story, random = Story(workers=len(rows)), Random(seed)
    story.fit(epochs=epochs, partitions=len(rows), hyperparams={"m00": {"batch_size": size}})
    sizes = dict(enumerate(rows))
    assert isinstance(story.run.plan, FitPlan)
    story.run.plan = story.run.plan.model_copy(update={"partitions": sizes})
    steps, places = 0, []
    model = story.model()
    while not model.is_trained:
        partition = random.choice(model.remaining)
        body = tasks.body(RECORD, story.state, story.run, sub_epoch(model.epoch, partition))
        assert isinstance(body, TrainTask)
        assert body.position is not None
        places.append(body.position)
        assert (body.position.step, body.sub_epoch) == (steps, len(places) - 1)
        assert (body.position.epochs, body.position.sub_epochs) == (epochs, epochs * len(rows))
        steps += -(-rows[partition] // size)
        story.train(model.epoch, partition, rows=rows[partition])
    assert {place.total_steps for place in places} == {steps}
    assert [position_of(model, sizes, number) for number in range(len(places))] == places
