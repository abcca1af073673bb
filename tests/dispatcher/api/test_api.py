"""The read API returns the pages' data as JSON and explains bad requests."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from werkzeug.test import TestResponse

from cerebro.contract.events import LivePoint
from cerebro.contract.rest import api
from cerebro.runtime.volumes import Volumes
from dispatcher.api import gateway
from dispatcher.api.routes import ROUTES
from tests.dispatcher.fakes import TOKEN, Bench, settings
from tests.dispatcher.search_logs import log_of
from tests.dispatcher.stories import NOW, Story, record, running_story

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    volumes.shared.mkdir()
    volumes.logs.mkdir()
    bench = Bench(settings=settings(volumes=volumes))
    bench.store.add(running_story())
    return bench


def get(bench: Bench, path: str, **headers: str) -> TestResponse:
    return bench.app.test_client().get(f"/api/views{path}", headers=BEARER | headers)


def answer_json(bench: Bench, path: str) -> Any:
    answer = get(bench, path)
    assert answer.status_code == 200, answer.text
    return answer.get_json()


def refused(bench: Bench, path: str, status: int) -> str:
    answer = get(bench, path)
    assert answer.status_code == status, answer.text
    return api.Problem.model_validate(answer.get_json()).message


@pytest.mark.parametrize("address", sorted(ROUTES))
def test_every_route_returns_its_declared_type(bench: Bench, address: str) -> None:
    """The body has the type that the OpenAPI document declares."""
    route = ROUTES[address]
    query = "?split=train&partition=0" if address.endswith("failed-rows") else ""
    name = "asha" if address.endswith("/search") else "digits"
    if name == "asha":
        bench.store.records[name], bench.store.logs[name] = record(name), list(log_of(name))
    answer = get(bench, address.format(name=name, model="m00") + query)
    assert answer.status_code == 200, answer.text
    if route.kind == "application/json":
        TypeAdapter(route.answer).validate_json(answer.data)


@pytest.mark.parametrize("address", sorted(ROUTES))
def test_a_parameter_that_a_route_does_not_have_is_refused(bench: Bench, address: str) -> None:
    path = address.format(name="digits", model="m00")
    assert "mispelt" in refused(bench, f"{path}?mispelt=1", 400)


@pytest.mark.parametrize("address", sorted(a for a in ROUTES if "{name}" in a))
def test_a_missing_experiment_is_not_found(bench: Bench, address: str) -> None:
    query = "?split=train&partition=0" if address.endswith("failed-rows") else ""
    assert "nothing" in refused(bench, address.format(name="nothing", model="m00") + query, 404)


@pytest.mark.parametrize(
    "path",
    [
        "/experiments?page=0",
        "/experiments?page=one",
        "/experiments?sort=speed",
        "/experiments?archived=perhaps",
        "/experiments?q=a&q=b",
        "/experiments/digits/models?filter=lr+%3E%3E+1",
        "/experiments/digits/models?size=100000",
        "/experiments/digits/curves?axis=z",
        "/experiments/digits/curves?points=1",
        "/experiments/digits/curves?start=nan",
        "/experiments/digits/sub_epochs?kind=other",
        "/experiments/digits/figures/curves?smoothing=1",
        "/experiments/digits/figures/heatmap?x=nothing",
        "/experiments/digits/failed-rows?split=all&partition=0",
        "/cluster?span=year",
    ],
)
def test_an_invalid_value_is_refused(bench: Bench, path: str) -> None:
    assert refused(bench, path, 400)


def test_before_the_first_fit_figures_state_the_reason(bench: Bench) -> None:
    bench.store.add(Story("fresh"))
    assert "no planned fit run" in refused(bench, "/experiments/fresh/models", 404)
    figure = answer_json(bench, "/experiments/fresh/figures/curves")
    assert figure["data"] == []
    assert "run_fit" in figure["layout"]["meta"]["empty"]


def test_rungs_list_the_fate_of_each_model(bench: Bench) -> None:
    """The answer has the same models as the tab of a search, up to the requested limit."""
    bench.store.records["asha"], bench.store.logs["asha"] = record("asha"), list(log_of("asha"))
    view = answer_json(bench, "/experiments/asha/search")
    assert (view["method"], view["metric"]) == ("ASHA (stopping), models sampled at random", "loss")
    highest, *_, lowest = view["rungs"]
    assert highest["epochs"] > lowest["epochs"] == 1
    assert lowest["total"] == len(lowest["rows"]) == 12
    assert {row["fate"] for row in lowest["rows"]} == {"goes on", "stopped"}
    assert all((row["to"] > 1) == (row["fate"] == "goes on") for row in lowest["rows"])
    few = answer_json(bench, "/experiments/asha/search?size=2")["rungs"][-1]
    assert (few["rows"], few["total"]) == (lowest["rows"][:2], 12)


def test_a_fit_without_a_search_has_no_rungs(bench: Bench) -> None:
    """The error names the missing search, not a missing fit."""
    assert "fit-1 of 'digits' searches nothing" in refused(bench, "/experiments/digits/search", 404)


def test_an_unchanged_answer_is_304(bench: Bench) -> None:
    answer = get(bench, "/experiments/digits/overview")
    again = get(bench, "/experiments/digits/overview", **{"If-None-Match": answer.headers["ETag"]})
    assert again.status_code == 304
    bench.store.points["digits"] = [LivePoint(seq=1, task="fit-1/train/m05/e1/p0", attempt=1, rows=5)]
    bench.monotonic.now += 1
    news = get(bench, "/experiments/digits/overview", **{"If-None-Match": answer.headers["ETag"]})
    assert news.status_code == 200
    assert [task["rows"] for task in news.get_json()["running"] if task["model"] == "m05"] == [5]


def test_csv_has_all_matching_rows_and_no_formula(bench: Bench) -> None:
    story = Story("odd")
    story.workers_join()
    story.etl()
    story.fit(models=2)
    story.state.runs["fit-1"].models["m00"].hyperparams["learning_rate"] = "=HYPERLINK(1)"
    bench.store.add(story)
    answer = get(bench, "/experiments/odd/models.csv?filter=id+~+m")
    table = list(csv.DictReader(io.StringIO(answer.text)))
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert [row["id"] for row in table] == ["m00", "m01"]
    assert table[0]["hp.learning_rate"] == "'=HYPERLINK(1)"


def test_curves_include_live_points_and_are_downsampled(bench: Bench) -> None:
    task = "fit-1/train/m04/e1/p1"
    values = [0.5] * 500
    values[250] = 9.0
    bench.store.points["digits"] = [
        LivePoint(seq=n, time=NOW + n, task=task, attempt=1, rows=n, values={"loss": value})
        for n, value in enumerate(values, start=1)
    ]
    view = answer_json(bench, "/experiments/digits/curves?metric=loss&axis=row&models=m04&top=0&points=30")
    (curve,) = view["curves"]
    assert view["split"] == "live"
    assert curve["model"] == "m04"
    assert len(curve["x"]) <= 30
    assert max(curve["y"]) == 9.0
    assert curve["x"][-1] == 500.0
    near = answer_json(
        bench, "/experiments/digits/curves?metric=loss&axis=row&models=m04&top=0&points=30&start=245&stop=255"
    )
    assert [round(x) for x in near["curves"][0]["x"]] == list(range(245, 256))


def test_failed_rows_are_returned_with_id_and_cause(bench: Bench) -> None:
    path = bench.settings.volumes.failed_rows("d1", "train", 1)
    path.parent.mkdir(parents=True)
    row = {"id": 17, "error": "ValueError: no label", "traceback": "Traceback"}
    path.write_text(json.dumps({"total": 3, "rows": [row]}))
    view = answer_json(bench, "/experiments/digits/failed-rows?split=train&partition=1")
    assert view["rows"] == [row]
    assert view["total"] == 3
    assert answer_json(bench, "/experiments/digits/failed-rows?split=train&partition=0")["rows"] == []


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{}",
        b'{"total": 1, "rows": [{"id": 1}]}',
        b'{"total": 1, "rows": 5}',
        b"[" * 99_999,
        b" " * 9_000_000,
    ],
)
def test_an_invalid_file_of_failed_rows_is_not_blamed_on_the_store(bench: Bench, content: bytes) -> None:
    """User code can write a malformed or huge file to that volume; the answer says so."""
    path = bench.settings.volumes.failed_rows("d1", "train", 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    answer = get(bench, "/experiments/digits/failed-rows?split=train&partition=1")
    assert answer.status_code == 503
    problem = api.Problem.model_validate(answer.get_json())
    assert problem.error == "UnreadableError"
    assert "train-0001.json cannot be read" in problem.message
    assert (
        bench.app.extensions["cerebro-metrics"].exposition().count(b"cerebro_dispatcher_store_away 0.0") == 1
    )


def test_requests_without_credentials_are_refused(bench: Bench) -> None:
    client = bench.app.test_client()
    for address in ROUTES:
        assert client.get(f"/api/views{address.format(name='digits', model='m00')}").status_code == 401
    assert client.get("/openapi.json").status_code == 401


def test_the_document_describes_every_route_of_the_read_api_and_of_the_gateway(bench: Bench) -> None:
    document = bench.app.test_client().get("/openapi.json", headers=BEARER).get_json()
    described = {f"{method.upper()} {path}" for path, each in document["paths"].items() for method in each}
    served = {f"GET /api/views{address}" for address in ROUTES}
    store = {key.replace(" ", " /api") for key in gateway.FORWARDED}
    assert described == served | store
    assert document["openapi"].startswith("3.1")
    text = json.dumps(document)
    for name in set(_references(document)):
        assert name in document["components"]["schemas"], name
    assert TOKEN not in text


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        references = [value["$ref"].rpartition("/")[2]] if isinstance(value.get("$ref"), str) else []
        return references + [name for each in value.values() for name in _references(each)]
    if isinstance(value, list):
        return [name for each in value for name in _references(each)]
    return []
