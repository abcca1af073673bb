"""The tab Analysis and the table of models show the Pareto front of a fit with several objectives."""

from __future__ import annotations

import pytest

from cerebro import figures
from cerebro.client.reporting import report_html
from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.runs import Constraint, FitPlan, FitRequest
from cerebro.contract.search import FixedProcedure, SearchRequest
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult, Timings
from cerebro.figures import ProgressAxis
from cerebro.figures.search import hypervolume_steps
from cerebro.search.pareto import ranks
from tests.dispatcher.fakes import TOKEN, Bench
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.search_logs import log_of
from tests.dispatcher.stories import CODE, Story, record

PAGE = "/experiments/wide/analysis"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


def wide_story(models: int = 12, search: SearchRequest | None = None) -> Story:
    """A fit of models with more and more weights; larger ones are better, and every third one is poor."""
    story = Story("wide")
    story.workers_join()
    story.etl()
    given = {f"m{i:02}": {"width": 2**i, "lr": 0.1 / (i + 1), "batch_size": 32} for i in range(models)}
    request = FitRequest(
        code=CODE,
        models=tuple(given.values()),
        epochs=1,
        metric="accuracy",
        mode="max",
        objectives={"accuracy": "max", "model_bytes": "min", "train_s": "min"},
        constraints=(Constraint(name="model_bytes", operator="<=", limit=1e6),),
        search=search,
    )
    story.append(RunRequested(run="fit-1", request=request, author="ada"))
    story.append(RunStarted(run="fit-1", plan=FitPlan(dataset="d1", models=given, partitions={0: 898})))
    for i, model in enumerate(given):
        value = 0.5 + 0.4 * (1 - 0.7**i) - (0.1 if i % 3 == 2 else 0)
        result = TaskResult(
            rows=898,
            metrics={"accuracy": value},
            checkpoint=CheckpointRef(name=f"{model}/e1p0", checksum="0" * 16, size=1000 * 2**i),
            timings=Timings(compute_s=3.0 + i % 4),
        )
        story.run_task(f"fit-1/train/{model}/e1/p0", "worker-0", result)
    story.finish("fit-1")
    return story


def test_the_analysis_shows_the_front() -> None:
    """The axes are choices; other tabs' parameters stay in the address."""
    bench = Bench()
    bench.store.add(wide_story())
    page = bench.signed_in().get(f"{PAGE}?px=train_s&slice=width").text
    assert "Pareto front" in text_of(page)
    assert "accuracy over train_s of each model" in page
    assert '<input type="hidden" name="slice" value="width">' in page
    answer = bench.app.test_client().get(
        "/api/views/experiments/wide/figures/pareto?x=model_bytes&filter=width+<+1024", headers=AUTHORIZED
    )
    assert answer.status_code == 200, answer.text
    figure = answer.get_json()
    names = [trace.get("name") for trace in figure["data"]]
    assert names == [None, "dominated", "Pareto front"]
    assert figure["layout"]["xaxis"]["title"]["text"] == "model_bytes (smaller is better)"
    assert sum(len(trace["x"]) for trace in figure["data"][1:]) == 10


def test_models_have_the_rank_of_their_front() -> None:
    """Models on the front share rank 1; the objectives are columns of the table."""
    bench = Bench()
    bench.store.add(wide_story())
    view = bench.app.test_client().get("/api/views/experiments/wide/models", headers=AUTHORIZED).get_json()
    ranks = [row["rank"] for row in view["rows"]]
    assert ranks == sorted(ranks)
    assert ranks.count(1) > 1
    assert {row["id"] for row in view["rows"][-2:]} == {"m10", "m11"}
    names = [column["name"] for column in view["columns"]]
    assert names[2:5] == ["best", "metric.model_bytes", "metric.train_s"]


def test_a_fit_with_one_metric_has_no_front() -> None:
    """The section is absent, and the figure gives the reason."""
    bench = Bench()
    story = Story("one")
    story.workers_join()
    story.etl()
    story.fit()
    story.train("m00", 1)
    bench.store.add(story)
    assert "Pareto front" not in bench.signed_in().get("/experiments/one/analysis").text
    answer = bench.app.test_client().get("/api/views/experiments/one/figures/pareto", headers=AUTHORIZED)
    assert answer.get_json()["layout"]["meta"]["empty"] == "the run has one objective and no constraints"


@pytest.mark.parametrize("unit", ["model", "time", "epoch"])
def test_the_search_shows_the_hypervolume(unit: ProgressAxis) -> None:
    """It grows with each model that no earlier one dominates, up to the share that the whole front dominates."""
    bench, story = Bench(), wide_story(search=SearchRequest(procedure=FixedProcedure()))
    bench.store.add(story)
    run = story.state.runs["fit-1"]
    rows = list(figures.summaries(run))
    steps = hypervolume_steps(rows, figures.observations(run, unit))
    assert [each.share for each in steps] == sorted({each.share for each in steps})
    feasible = [row.point for row in rows if row.point.is_feasible]
    front = {row.id for row in rows if ranks([*feasible, row.point])[-1] == 1 and row.point.is_feasible}
    assert front <= {each.model for each in steps}
    assert 0 < steps[0].share < steps[-1].share <= 1
    address = f"/api/views/experiments/wide/figures/hypervolume?axis={unit}"
    figure = bench.app.test_client().get(address, headers=AUTHORIZED).get_json()
    assert figure["data"][0]["y"][: len(steps)] == pytest.approx([each.share for each in steps], rel=1e-3)
    page = bench.signed_in().get(f"/experiments/wide/search?axis={unit}").text
    assert "Hypervolume over" in page
    report = report_html(story.state, run, record=story.record, now=story.time)
    assert "Hypervolume" in report


def test_a_search_with_one_objective_shows_no_hypervolume() -> None:
    """The dominated share would only repeat the best value so far."""
    bench = Bench()
    bench.store.records["asha"] = record("asha")
    bench.store.logs["asha"] = list(log_of("asha"))
    assert "Hypervolume" not in bench.signed_in().get("/experiments/asha/search").text
    address = "/api/views/experiments/asha/figures/hypervolume"
    figure = bench.app.test_client().get(address, headers=AUTHORIZED).get_json()
    assert "the run has one objective" in str(figure["layout"])
