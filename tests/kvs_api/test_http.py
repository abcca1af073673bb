"""The HTTP interface: token, malformed requests, status codes, OpenAPI document."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
import urllib3
from openapi_spec_validator import validate

from cerebro.contract import SCHEMA_VERSION
from cerebro.contract.events import RunPaused
from cerebro.contract.records import CodeRecord
from cerebro.contract.rest import api
from cerebro.contract.rest.routes import STORE
from cerebro.contract.trials import TrialOutcome, TrialRecord
from cerebro.errors import BadRequestError, NotFoundError, UnauthorizedError
from cerebro.runtime.kvs.client import KvsClient
from kvs_api.api.views import openapi_document, package_version
from kvs_api.settings import Settings
from tests.kvs_api.bench import Bench, worker
from tests.kvs_api.real import TOKEN, Service
from tests.waiting import HANG_S

SHA = "a" * 64
WITH_TOKEN = {"Authorization": f"Bearer {TOKEN}"}


def send(
    service: Service, route: str, *, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Send a raw request for a route of `STORE`."""
    method, path = route.split(" ", 1)
    path = path.replace("{name}", "one").replace("{sha256}", SHA)
    with urllib3.PoolManager(retries=False, timeout=HANG_S) as http:
        answer = http.request(
            method, service.address + path, body=body, headers=WITH_TOKEN if headers is None else headers
        )
        return answer.status, answer.data


def problem(content: bytes) -> api.Problem:
    """Parse the body of an error response."""
    return api.Problem.model_validate_json(content)


# --- the token ---------------------------------------------------------------------------------------


OPEN = {"GET /health", "GET /live"}


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"bearer {TOKEN}", TOKEN, f"Basic {TOKEN}", "Bearer ü"],
)
def test_every_route_requires_the_token(service: Service, given: str) -> None:
    """The response is 401 with a reason, before any other check."""
    headers = {"Authorization": given} if given else {}
    for route in STORE.keys() - OPEN:
        status, content = send(service, route, body=b"{", headers=headers)
        assert status == 401, route
        assert problem(content).error == "UnauthorizedError"


def test_health_needs_no_token(service: Service) -> None:
    """It reports the database's state and the schema version."""
    status, content = send(service, "GET /health", headers={})
    health = api.Health.model_validate_json(content)
    assert (status, health.status, health.schema_version) == (200, "ok", SCHEMA_VERSION)


def test_the_client_raises_an_error_for_a_wrong_token(service: Service) -> None:
    """The client raises at once, and the error says where the token is stored."""
    client = service.client("wrong")
    with pytest.raises(UnauthorizedError, match="token"):
        client.queue()
    client.close()


def test_the_service_refuses_to_run_without_a_token() -> None:
    with pytest.raises(Exception, match="CEREBRO_TOKEN"):
        Settings.from_environment({"CEREBRO_TOKEN": ""})


# --- malformed requests ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"text"', b'{"nonsense": 1}', b"\xff\xfe", b"[" * 2000]
)
def test_a_malformed_body_is_refused_with_a_reason(service: Service, body: bytes) -> None:
    """The response is 400 with a `Problem` that names method and path."""
    for route in (name for name, route in STORE.items() if route.body not in (None, bytes)):
        status, content = send(service, route, body=body)
        assert status == 400, route
        refusal = problem(content)
        assert refusal.error == "BadRequestError"
        assert refusal.message.startswith(route.split(" ", 1)[0])


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "a" * 51, "%00", "a%0ab", "ü", "a%2e"])
def test_invalid_names_are_refused(service: Service, name: str) -> None:
    """Names must be valid as folders and keys, so they are checked before the lookup."""
    for path in (f"GET /v1/experiments/{name}", f"GET /v1/workers/{name}/inbox"):
        assert send(service, path)[0] in (400, 404)
    with pytest.raises((BadRequestError, NotFoundError)):
        service.client().experiment(name)


@pytest.mark.parametrize(
    "query",
    [
        "after=-1",
        "after=x",
        "wait_s=-1",
        "wait_s=31",
        "wait_s=nan",
        "wait_s=inf",
        "after=1.5",
        "after=" + "9" * 30,
    ],
)
def test_a_cursor_out_of_range_is_refused(kvs: KvsClient, service: Service, query: str) -> None:
    """Only numbers are valid, and waits have a maximum."""
    Bench(store=kvs, pass_a_moment=lambda: None)
    for path in ("/v1/experiments/one/events", "/v1/experiments/one/live", "/v1/workers/w/inbox"):
        status, content = send(service, f"GET {path}?{query}")
        assert status == 400, path
        assert problem(content).error == "BadRequestError"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("PUT /v1/experiments/two", '{"name": "one", "locators": {"train": {"metadata": "m"}}}'),
        ("PUT /v1/workers/two", worker("a", "one").model_dump_json()),
    ],
)
def test_path_and_body_must_name_the_same_object(service: Service, route: str, body: str) -> None:
    """The error has both names."""
    status, content = send(service, route, body=body.encode())
    assert status == 400
    assert "'one'" in problem(content).message
    assert "'two'" in problem(content).message


# --- statuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("GET /v1/experiments/{name}", None),
        ("GET /v1/experiments/{name}/events", None),
        ("GET /v1/experiments/{name}/live", None),
        ("POST /v1/experiments/{name}/events", '{"type": "RunStopRequested", "run": "etl-1"}'),
        (
            "POST /v1/experiments/{name}/decisions",
            '{"term": 0, "after": 0, "steps": [{"op": "note", "event": {"type": "RunResumed", "run": "etl-1"}}]}',
        ),
        ("GET /v1/code/{sha256}", None),
        ("GET /v1/archives/{sha256}", None),
    ],
)
def test_a_missing_object_is_404(service: Service, route: str, body: str | None) -> None:
    """The error names the missing object."""
    status, content = send(service, route, body=body.encode() if body else None)
    assert status == 404
    assert problem(content).error == "NotFoundError"
    assert re.search("'one'|aaaa", problem(content).message)


def test_a_body_that_is_too_large_is_413(service: Service) -> None:
    """The limit applies to every route, with a `Problem` as body."""
    large = b"x" * (service.settings.max_body_bytes + 1)
    for route in ("PUT /v1/archives/{sha256}", "POST /v1/leader"):
        status, content = send(service, route, body=large)
        assert status == 413
        assert problem(content).error == "BadRequestError"
    with pytest.raises(
        BadRequestError, match=r"refused PUT .*: \d+\.\d MiB are too much\. Send fewer models"
    ):
        service.client().put_archive(SHA, large)


def test_a_number_with_thousands_of_digits_is_refused(service: Service) -> None:
    """A 5xx would make clients retry."""
    status, content = send(service, "POST /v1/leader", headers={api.TERM: "1" * 5000})
    assert (status, problem(content).error) == (400, "BadRequestError")


# --- code --------------------------------------------------------------------------------------------


def test_code_is_kept_under_its_hash(kvs: KvsClient) -> None:
    """A hash that does not match the content is refused."""
    encoded = "ü" * 1000
    record = CodeRecord(
        sha256=hashlib.sha256(encoded.encode()).hexdigest(),
        fingerprint=SHA,
        class_name="Spec",
        source="class Spec: ...",
        encoded=encoded,
    )
    assert kvs.put_code(record) == kvs.put_code(record) == kvs.code(record.sha256) == record
    with pytest.raises(BadRequestError, match="hash"):
        kvs.put_code(record.model_copy(update={"sha256": SHA}))


def test_a_long_log_is_read_in_pages(kvs: KvsClient) -> None:
    """A page has at most a thousand events; the next cursor continues without a gap."""
    bench = Bench(store=kvs, pass_a_moment=lambda: None)
    bench.decide(*(api.Note(event=RunPaused(run="etl-1", reason=str(n))) for n in range(1001)))
    first = kvs.events("one")
    rest = kvs.events("one", first[-1].seq)
    assert [event.seq for event in (*first, *rest)] == list(range(1, 1002))
    assert len(first) == 1000


# --- the document ------------------------------------------------------------------------------------


def test_the_openapi_document_is_valid_and_served(service: Service) -> None:
    """It is checked against the OpenAPI 3.1 schema and the routes."""
    status, content = send(service, "GET /openapi.json")
    served = json.loads(content)
    assert status == 200
    validate(served)
    assert served["paths"] == json.loads(openapi_document(package_version()))["paths"]


def test_the_openapi_document_lists_exactly_the_routes(service: Service) -> None:
    """Routes and document match; all except the probes require the token."""
    described = json.loads(openapi_document(package_version()))
    found = {
        f"{method.upper()} {path}": operation
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    }
    assert set(found) == set(STORE)
    assert described["security"] == [{"token": []}]
    assert {key for key, operation in found.items() if operation.get("security") == []} == OPEN
    for key, operation in found.items():
        names = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
        assert names == set(re.findall("{(.*?)}", key))


def test_outcomes_of_trials_are_kept_by_key_until_they_are_forgotten(
    kvs: KvsClient, service: Service
) -> None:
    """Missing and unreadable outcomes are omitted."""
    record = TrialRecord(key=SHA, outcome=TrialOutcome(batch_s=0.5), label="ddp-2", torch="2.13.0")
    newer = record.model_copy(update={"outcome": TrialOutcome(batch_s=0.25)})
    kvs.keep_trial(record)
    kvs.keep_trial(newer)
    assert kvs.trials([SHA, "b" * 64]) == (newer,)
    assert kvs.trials([]) == ()
    assert kvs.forget_trials([SHA, "b" * 64]) == 1
    assert kvs.trials([SHA]) == ()
    status, _ = send(service, "POST /v1/trials", body=b'{"keys": ["short"]}')
    assert status == 400
