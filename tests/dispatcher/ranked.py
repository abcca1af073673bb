"""A test run with values per row, for tests of the page Ranking."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks.results import TaskResult
from cerebro.data.tables.whole_tables import write_columns
from tests.dispatcher.fakes import Bench
from tests.dispatcher.stories import NOW, Story

Values = Mapping[str, npt.NDArray[np.float64]]


def add_ranked(bench: Bench, values: Values, *, began: float = NOW - 300) -> None:
    """Add the experiment ``ranked``, whose models were tested with these values of accuracy per row."""
    story = Story("ranked", began=began)
    story.workers_join()
    story.etl()
    story.fit(models=len(values))
    for model in values:
        story.train(model, 1)
    rows = len(next(iter(values.values())))
    plan = EvaluatePlan(
        kind="test",
        dataset="d1",
        fit="fit-1",
        models=dict.fromkeys(values, 1),
        partitions={0: rows},
        is_whole=True,
    )
    request = EvaluateRequest(kind="test", fit="fit-1", models=tuple(values), split="test")
    story.append(RunRequested(run="test-1", request=request))
    story.append(RunStarted(run="test-1", plan=plan))
    for model, column in values.items():
        output = f"predictions/ranked/test-1/{model}-1.arrow"
        path = bench.settings.volumes.shared / output
        path.parent.mkdir(parents=True, exist_ok=True)
        write_columns(path, {"id": list(range(rows)), "accuracy": column})
        result = TaskResult(rows=rows, metrics={"accuracy": float(column.mean())}, output=output)
        story.run_task(f"test-1/test/{model}", "worker-0", result)
    story.finish("test-1")
    bench.store.add(story)


def three_models() -> Values:
    """Two models that tie, and a worse one."""
    rows = np.arange(400)
    return {
        "m00": (rows < 200).astype(np.float64),
        "m01": (rows < 330).astype(np.float64),
        "m02": (rows < 328).astype(np.float64),
    }
