"""During an outage pages keep their last data, show its start, and do not pile up."""

from __future__ import annotations

import pytest

from cerebro.errors import StoreUnavailableError
from cerebro.runtime import logs
from dispatcher import __main__ as main_module
from dispatcher.read_models.reader import Reader
from tests.dispatcher.fakes import Bench, Clock, FakeStore
from tests.dispatcher.stories import NOW, running_story


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.add(running_story())
    return bench


def test_the_last_good_data_stays_with_a_banner(bench: Bench) -> None:
    """Both live pages dim and name the start of the outage; they recover by themselves."""
    browser = bench.signed_in()
    for path in ("/experiments", "/experiments/digits"):
        browser.get(path)
    bench.store.is_away = True
    bench.clock.now = NOW + 10
    for path in ("/experiments", "/experiments/digits"):
        bench.monotonic.now += 10
        page = browser.get(path)
        assert page.status_code == 200
        assert 'The store does not answer</strong> since <time datetime="2027-01-15T08:00:10Z"' in page.text
        assert 'class="stale"' in page.text
        assert "m04" in page.text or "running" in page.text
        bench.clock.now += 30
    bench.store.is_away = False
    bench.monotonic.now += 10
    assert "does not answer" not in browser.get("/experiments").text


def test_a_page_without_known_data_is_503(bench: Bench) -> None:
    """503 with instructions, not a misleading empty list."""
    browser = bench.signed_in()
    bench.store.is_away = True
    answer = browser.get("/experiments")
    assert answer.status_code == 503
    assert "No experiment yet" not in answer.text
    assert "Reload this page" in answer.text
    assert browser.client.get("/health").status_code == 200


def test_during_a_known_outage_calls_fail_immediately() -> None:
    """One call per interval probes the store; the others fail immediately."""
    store, monotonic = FakeStore(is_away=True), Clock()
    reader = Reader(store, clock=Clock(), monotonic=monotonic)
    for _ in range(5):
        with pytest.raises(StoreUnavailableError):
            reader.record("digits")
    assert len(store.calls) == 1
    monotonic.now += 3
    with pytest.raises(StoreUnavailableError):
        reader.record("digits")
    assert len(store.calls) == 2


def test_a_hanging_store_times_out_as_fast_as_an_unavailable_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one hanging call would block a page for 30 s."""
    requests: dict[str, float] = {}

    def client(*_: object, retry_for_s: float, timeout_s: float, **__: object) -> None:
        requests.update(retry_for_s=retry_for_s, timeout_s=timeout_s)
        raise SystemExit

    for name, value in (("CEREBRO_TOKEN", "secret"), ("CEREBRO_SERVER", "http://127.0.0.1:1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(main_module, "KvsClient", client)
    monkeypatch.setattr(logs, "set_up", lambda *_, **__: None)
    with pytest.raises(SystemExit):
        main_module.main()
    assert requests["timeout_s"] <= requests["retry_for_s"] == 3.0


def test_a_command_is_tried_despite_a_known_outage(bench: Bench) -> None:
    """A form sent right after an outage must not report the outage."""
    browser = bench.signed_in()
    bench.store.is_away = True
    browser.get("/experiments")
    bench.store.is_away = False
    assert browser.post("/start", {"name": "new", "train_metadata": "/data/train.csv"}).status_code == 303
