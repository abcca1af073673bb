"""Exports into a stand-in for MLflow: the contract, and whatever goes wrong at any request."""

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
    """The contract."""

    @pytest.fixture(autouse=True)
    def remember(self, fake: FakeMlflow) -> None:
        self.fake = fake

    def file(self, address: str, run: Shown, name: str) -> bytes:
        return self.fake.files[f"{run.info['experiment_id']}/{run.info['run_id']}/artifacts/{name}"]


class Killed(BaseException):
    """The process is gone."""


class Mortal(MlflowServer):
    """Ends at one of its requests: before it is sent, or before its answer has come."""

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
    """Whose pauses take no time, and how long they would have been."""
    pauses: list[float] = []
    return MlflowServer(address, {}, sleep=pauses.append, clock=lambda: sum(pauses)), pauses


@pytest.mark.slow
@pytest.mark.parametrize("is_sent", [False, True])
def test_an_export_that_is_killed_at_any_request_goes_on(
    fake: FakeMlflow, address: str, is_sent: bool
) -> None:
    """Killed at its first request, or its second, or any other; and killed again at the fifth after that."""
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
def test_every_third_request_fails_and_nothing_is_lost_or_doubled(
    fake: FakeMlflow, address: str, status: int, is_done: bool
) -> None:
    """Whether the server had done its part or not before it said that it could not."""

    def fault(number: int, call: str, done: bool) -> Answer | None:
        return (status, {}) if number % 3 == 0 and done is is_done and call != "a row" else None

    fake.fault = fault
    server, _ = patient(address)
    attempt(server)
    check_rows(address, OF, story().log)


def test_a_server_that_dies_within_a_request_has_no_row_twice(fake: FakeMlflow, address: str) -> None:
    """Some rows of it are there, and its cursor is not."""
    rows = iter(range(1, 10_000))
    fake.fault = lambda number, call, done: (500, {}) if call == "a row" and next(rows) % 2 == 0 else None
    server, _ = patient(address)
    attempt(server)
    check_rows(address, OF, story().log)


def test_a_server_with_too_much_to_do_is_left_alone_for_as_long_as_it_asks(
    fake: FakeMlflow, address: str
) -> None:
    """By Retry-After; else with pauses that grow."""
    fake.fault = lambda number, call, done: (429, {"retry_after": "20"}) if number == 3 and not done else None
    server, pauses = patient(address)
    attempt(server)
    assert pauses == [20.0]


def test_a_server_that_stays_away_is_named_and_the_next_export_goes_on(
    fake: FakeMlflow, address: str
) -> None:
    """After bounded tries; what was sent stays."""
    fake.fault = lambda number, call, done: (503, {}) if number > 12 else None
    server, pauses = patient(address)
    with pytest.raises(TrackerUnavailableError, match=r"for 120 s .*it continues where this one stopped"):
        attempt(server)
    assert len(pauses) < 20
    assert sum(pauses) <= 120
    fake.fault = lambda *_: None
    attempt(MlflowServer(address, {}))
    check_rows(address, OF, story().log)


def test_a_token_is_sent_and_a_missing_one_is_told(fake: FakeMlflow, address: str) -> None:
    """By the variables that MLflow's own client has."""
    fake.token = "secret"
    with pytest.raises(ExportError, match=r"asks for a sign-in .*set MLFLOW_TRACKING_TOKEN"):
        attempt(MlflowServer(address, {}))
    attempt(MlflowServer(address, {"MLFLOW_TRACKING_TOKEN": "secret"}))
    assert fake.runs


@pytest.mark.parametrize("url", ["", "mlflow:5000", "sqlite:///mlflow.db", "http://"])
def test_an_address_that_is_none_is_refused_before_anything_is_sent(url: str) -> None:
    """And says what was expected."""
    with pytest.raises(ExportError, match=r"expected one such as http://mlflow:5000, as --url"):
        MlflowServer(url, {})


def test_two_names_never_become_one() -> None:
    """Whatever is not taken in them."""
    names = ["a/b", "a//b", "a_b", "ä", "ö", "..", "...", "x" * 250, "x" * 251, "x" * 252, " ", ""]
    assert len({_name(name) for name in names}) == len(names)
    assert all(len(_name(name)) <= 250 for name in names)
