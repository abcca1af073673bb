"""Exports to the fake MLflow: the shared tests, and faults at every request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from cerebro.contract.records import ExperimentRecord
from cerebro.errors import ExportError, TrackerUnavailableError
from cerebro.exports.export_loop import ExperimentExport
from cerebro.exports.mlflow_export import MlflowExport, _name
from cerebro.exports.mlflow_server import MlflowServer
from tests.exports.fake_mlflow import Answer, FakeMlflow, serving
from tests.exports.logged import LogStore, record, story
from tests.exports.reading import Shown
from tests.exports.tracking_contract import TrackingContract, check_rows

OF = record()


@pytest.fixture
def fake() -> FakeMlflow:
    return FakeMlflow()


@pytest.fixture
def address(fake: FakeMlflow) -> Iterator[str]:
    with serving(fake) as there:
        yield there


class TestStandIn(TrackingContract):
    """The shared tests with the fake."""

    @pytest.fixture(autouse=True)
    def remember(self, fake: FakeMlflow) -> None:
        self.fake = fake

    def file(self, address: str, run: Shown, name: str) -> bytes:
        return self.fake.files[f"{run.info['experiment_id']}/{run.info['run_id']}/artifacts/{name}"]


class Killed(BaseException):
    """Simulates a killed process."""


class Mortal(MlflowServer):
    """A client that dies at one request, before it is sent or before its response arrives."""

    def __init__(self, address: str, last: int, *, is_sent: bool) -> None:
        super().__init__(address, {})
        self._left, self._is_sent = last, is_sent

    def _request(self, *given: Any, **more: Any) -> bytes:
        self._left -= 1
        if self._left or self._is_sent:
            try:
                return super()._request(*given, **more)
            finally:
                if not self._left:
                    raise Killed
        raise Killed


def attempt(server: MlflowServer, of: ExperimentRecord = OF) -> None:
    ExperimentExport(
        LogStore(story().log), of, lambda projection: MlflowExport(server, projection)
    ).catch_up()


def patient(address: str) -> tuple[MlflowServer, list[float]]:
    """Return a client whose pauses take no time, and the list of pauses."""
    pauses: list[float] = []
    return MlflowServer(address, {}, sleep=pauses.append, clock=lambda: sum(pauses)), pauses


@pytest.mark.slow
@pytest.mark.parametrize("is_sent", [False, True])
def test_an_export_killed_at_any_request_resumes(fake: FakeMlflow, address: str, is_sent: bool) -> None:
    """The export is killed at each request, and once more at the fifth request afterwards."""
    for last in range(1, 1000):
        fake.runs.clear()
        try:
            attempt(Mortal(address, last, is_sent=is_sent))
        except Killed:
            with suppress(Killed):
                attempt(Mortal(address, 5, is_sent=is_sent))
            attempt(MlflowServer(address, {}))
            check_rows(address, OF, story().log)
        else:
            break
    assert last > 20


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("is_done", [False, True])
def test_with_every_third_request_failing_each_row_is_exported_once(
    fake: FakeMlflow, address: str, status: int, is_done: bool
) -> None:
    """The server may or may not have executed the failed request."""

    def fault(number: int, call: str, done: bool) -> Answer | None:
        return (status, {}) if number % 3 == 0 and done is is_done and call != "a row" else None

    fake.fault = fault
    server, _ = patient(address)
    attempt(server)
    check_rows(address, OF, story().log)


def test_a_server_that_dies_within_a_request_stores_each_row_once(fake: FakeMlflow, address: str) -> None:
    """Some of a request's rows are stored, and the cursor is not."""
    rows = iter(range(1, 10_000))
    fake.fault = lambda number, call, done: (500, {}) if call == "a row" and next(rows) % 2 == 0 else None
    server, _ = patient(address)
    attempt(server)
    check_rows(address, OF, story().log)


def test_retry_after_sets_the_pause(fake: FakeMlflow, address: str) -> None:
    """Retry-After sets the pause; otherwise pauses grow."""
    fake.fault = lambda number, call, done: (429, {"retry_after": "20"}) if number == 3 and not done else None
    server, pauses = patient(address)
    attempt(server)
    assert pauses == [20.0]


def test_an_unavailable_server_is_named_and_the_next_export_resumes(fake: FakeMlflow, address: str) -> None:
    """The number of tries is limited; sent rows stay."""
    fake.fault = lambda number, call, done: (503, {}) if number > 12 else None
    server, pauses = patient(address)
    with pytest.raises(TrackerUnavailableError, match=r"for 120 s .*it continues where this one stopped"):
        attempt(server)
    assert len(pauses) < 20
    assert sum(pauses) <= 120
    fake.fault = lambda *_: None
    attempt(MlflowServer(address, {}))
    check_rows(address, OF, story().log)


def test_the_token_is_sent_and_a_missing_token_is_reported(fake: FakeMlflow, address: str) -> None:
    """Uses the variables of MLflow's own client."""
    fake.token = "secret"
    with pytest.raises(ExportError, match=r"asks for a sign-in .*set MLFLOW_TRACKING_TOKEN"):
        attempt(MlflowServer(address, {}))
    attempt(MlflowServer(address, {"MLFLOW_TRACKING_TOKEN": "secret"}))
    assert fake.runs


@pytest.mark.parametrize("url", ["", "mlflow:5000", "sqlite:///mlflow.db", "http://"])
def test_an_invalid_address_is_refused_before_any_request(url: str) -> None:
    """The error shows a valid example."""
    with pytest.raises(ExportError, match=r"expected one such as http://mlflow:5000, as --url"):
        MlflowServer(url, {})


def test_different_names_stay_different() -> None:
    """Holds even if characters are replaced."""
    names = ["a/b", "a//b", "a_b", "ä", "ö", "..", "...", "x" * 250, "x" * 251, "x" * 252, " ", ""]
    assert len({_name(name) for name in names}) == len(names)
    assert all(len(_name(name)) <= 250 for name in names)
