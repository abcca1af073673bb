"""How fast a run goes while another one of its experiment goes on beside it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import RunRequested
from cerebro.contract.runs import EvaluateRequest
from cerebro.state.throughput import ThroughputMeter
from tests.state.stories import Story

BATCH_S = 0.5


@pytest.mark.parametrize("every", [1, 3])
@given(others=st.integers(0, 4))
def test_a_run_is_told_as_fast_as_it_is_whatever_goes_on_beside_it(others: int, every: int) -> None:
    """A fit makes 200 rows a second on one worker, beside a prediction with so many tasks for each of its units."""
    story = Story()
    fit = story.fit(models=1, partitions=1, epochs=1)
    story.tell(
        RunRequested(run="predict-1", request=EvaluateRequest(kind="predict", fit="fit-1", split="predict"))
    )
    prediction = story.state.runs["predict-1"]
    meter, now = ThroughputMeter(), fit.started
    for number in range(1000):
        now += BATCH_S
        if number % every == 0:
            began = now - every * BATCH_S
            meter.commit(
                fit, "train", worker="worker-0", started=began, ended=now, rows=round(200 * (now - began))
            )
        for each in range(others):
            meter.commit(
                prediction, "predict", worker=f"worker-{each + 1}", started=now - BATCH_S, ended=now, rows=7
            )
    assert meter.throughput(fit, now).rows_per_s == pytest.approx(200, rel=0.02)
