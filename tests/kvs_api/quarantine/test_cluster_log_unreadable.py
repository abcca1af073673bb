"""An unreadable cluster event does not quarantine experiments (real store)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cerebro.errors import UnreadableClusterLogError
from controller.loop import loop
from tests.kvs_api.quarantine.unreadable import Store, Work

NEWER = '{"type":"WorkerSold","worker":"worker-0"}'
CUT = '{"type":"WorkerJo'
TWICE = '{"type":"WorkerLost","worker":"worker-9","incarnation":"a","reason":"nobody knows it"}'


@pytest.mark.parametrize("event", [NEWER, CUT])
def test_the_error_names_the_cluster_log(store: Store, tmp_path: Path, event: str) -> None:
    """The error and remedy are the same for each experiment and for the log itself."""
    store.begin("one", tmp_path)
    store.write_cluster_log(event)
    with pytest.raises(
        UnreadableClusterLogError, match="event of the cluster log, event 2 of experiment 'one'"
    ) as caught:
        store.kvs.events("one")
    assert "Install the newer version" in str(caught.value)
    assert [known.type for known in caught.value.readable] == ["RunRequested"]
    with pytest.raises(UnreadableClusterLogError):
        store.kvs.watch({"one": 0}, 0, 0.0)


@pytest.mark.parametrize("event", [NEWER, TWICE])
def test_the_controller_waits_until_the_cluster_log_is_readable(
    store: Store,
    tmp_path: Path,
    controlled: Work,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    event: str,
) -> None:
    """The controller logs the remedy, lets another one lead, and continues once the log is readable."""
    monkeypatch.setattr(loop, "_STAND_BY_S", 0.2)
    seq = store.write_cluster_log(event)
    store.begin("one", tmp_path)
    led: list[int] = []

    def another_leads() -> bool:
        if any("cluster log" in record.getMessage() for record in caplog.records):
            led.append(store.kvs.lead("the newer one", 0.1).term)
        return any(led)

    with caplog.at_level(logging.ERROR):
        controlled(another_leads)
    assert "Install the newer version" in caplog.text
    assert store.mark("one") is None
    store.mend_cluster_log(seq)
    controlled(lambda: store.kvs.queue() == ())
    assert store.types("one")[-1] == "RunFinished"
