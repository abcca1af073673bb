"""Commands on several experiments report an outcome for each."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro.contract.events import ClientEvent
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import Story


def test_several_experiments_are_archived_together(bench: Bench, browser: Browser) -> None:
    """The page explains each skipped experiment."""
    bench.store.add(Story("one"))
    bench.store.add(Story("two"))
    sent = browser.post(
        "/experiments/actions", {"action": "archive", "name": ["one", "two"]}, form="/experiments"
    )
    assert sent.status_code == 303
    assert [type(event).__name__ for event in bench.store.logs["one"]] == ["ExperimentArchived"]
    bench.monotonic.now += 1.0
    again = browser.post(
        "/experiments/actions", {"action": "unarchive", "name": ["one", "nobody"]}, form="/experiments"
    )
    assert again.status_code == 409
    assert "1 of 2 done: one. nobody: " in text_of(again.text)
    assert "had no effect" not in again.text
    assert len(bench.store.logs["one"]) == 2


@pytest.mark.parametrize("action", ["resume_run", "delete", "stop_model", "add_models", "unknown"])
def test_only_commands_of_the_list_are_executed_together(bench: Bench, browser: Browser, action: str) -> None:
    """Other commands of an experiment's page are refused; nothing is written."""
    bench.store.add(Story("one"))
    fields = {"action": action, "name": ["one"], "model": "m00", "confirm": "one"}
    sent = browser.post("/experiments/actions", fields, form="/experiments")
    assert sent.status_code == 400
    assert "known commands: stop_run, archive, unarchive" in text_of(sent.text)
    assert bench.store.logs["one"] == []


def test_a_batch_interrupted_by_an_outage_lists_its_outcomes(bench: Bench, browser: Browser) -> None:
    """The page names the experiment with an unknown outcome and the ones not tried."""
    names = ["one", "two", "three"]
    for name in names:
        bench.store.add(Story(name))
    append = bench.store.append

    def then_away(experiment: str, event: ClientEvent, **options: Any) -> int:
        bench.store.is_away = experiment == "two"
        return append(experiment, event, **options)

    bench.store.append = then_away  # type: ignore[method-assign]
    sent = browser.post("/experiments/actions", {"action": "archive", "name": names}, form="/experiments")
    text = text_of(sent.text)
    assert sent.status_code == 409
    assert "1 of 3 done: one. two: the store stopped answering, so check if the command took effect: " in text
    assert "Not tried, send the command again: three." in text


def test_batch_ends_in_time(bench: Bench, browser: Browser) -> None:
    """For any number of experiments and any delay of the store."""
    names = [f"x-{number}" for number in range(10)]
    for name in names:
        bench.store.add(Story(name))
    append = bench.store.append

    def slow(experiment: str, event: ClientEvent, **options: Any) -> int:
        bench.monotonic.now += 4.0
        return append(experiment, event, **options)

    bench.store.append = slow  # type: ignore[method-assign]
    sent = browser.post("/experiments/actions", {"action": "archive", "name": names}, form="/experiments")
    assert "4 of 10 done: x-0, x-1, x-2, x-3. Not tried, send the command again: x-4, x-5," in text_of(
        sent.text
    )
