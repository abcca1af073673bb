"""``cerebro trials`` lists each parallel plan of each group, and why it is not used."""

from __future__ import annotations

from cerebro.cli.experiments.trials import lines, rows
from cerebro.contract.events import TaskCommitted
from cerebro.contract.tasks.results import TaskResult
from tests.controller.trials.test_trial_cache import FOUND, inspected
from tests.controller.trials.test_trial_cache import OUTCOME as MEASURED
from tests.state.stories import Story
from tests.state.test_measured import INSPECT, started


def test_each_parallel_plan_is_listed_with_its_measurement_or_reason() -> None:
    """Measured, ruled out, not applicable or not tried, in the inspection's order."""
    outcome = MEASURED.model_copy(update={"device_bytes": 3_000_000_000, "sigma": 0.03})
    text_lines = lines(inspected(outcome).run)
    assert text_lines == [
        "Parallel plans for the models of fit-1. Models of a group are alike: a trial of one holds for all.",
        "",
        "  g00: m00, m01",
        "",
        "  GROUP  PLAN    DEVICES     A BATCH  DEVICE MEMORY  HOST MEMORY  GRADIENT  STATE",
        "  g00    single  1 x 1 core  -        -              -            -         not tried",
        "  g00    ddp-2   2 x 1 core  500 ms   3.0 GB         -            verified  measured",
    ]
    wrong = MEASURED.model_copy(update={"reason": "another gradient", "cause": "gradient", "batch_s": 0.0})
    *_, line, reason = lines(inspected(wrong).run)
    assert (line.split()[-2:], reason.strip()) == (["ruled", "out"], "another gradient")


def test_an_inapplicable_parallel_plan_is_listed_with_its_reason() -> None:
    """With its technique's reason."""
    story = Story(devices=2)
    story.fit()
    group = FOUND.groups[0]
    parallel_plans = (
        group.parallel_plans[0].model_copy(update={"reason": "no blocks"}),
        *group.parallel_plans[1:],
    )
    found = FOUND.model_copy(
        update={"groups": (group.model_copy(update={"parallel_plans": parallel_plans}),)}
    )
    named = started(story, INSPECT)
    story.append(TaskCommitted.model_validate({**named, "result": TaskResult(inspection=found)}))
    assert (rows(story.run)[0].state, rows(story.run)[0].reason) == ("not applicable", "no blocks")
