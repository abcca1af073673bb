"""Commands become events with the user's name, if the state allows them."""

from __future__ import annotations

import pytest

from tests.dispatcher.fakes import TOKEN, Bench, Browser
from tests.dispatcher.stories import Story, running_story

ACTIONS = "/experiments/digits/actions"
FORM = "/start"


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.add(running_story())
    return bench


@pytest.fixture
def browser(bench: Bench) -> Browser:
    """Open a browser signed in as Ada."""
    browser = bench.browser()
    assert browser.post("/sign-in", {"token": TOKEN, "name": " Ada \n L."}).status_code == 303
    return browser


def finished_story() -> Story:
    story = Story("digits")
    story.workers_join()
    story.etl()
    return story


def sent_commands(bench: Bench, number: int = 1) -> list[tuple[str, str]]:
    return [(event.type, getattr(event, "by", "")) for event in bench.store.logs["digits"][-number:]]


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        ({"action": "stop_run", "run": "fit-1"}, "RunStopRequested"),
        ({"action": "stop_model", "run": "fit-1", "model": "m01"}, "ModelStopRequested"),
        ({"action": "retry_model", "run": "fit-1", "model": "m07"}, "ModelRetried"),
        ({"action": "set_scheduler", "run": "fit-1", "scheduler": "random"}, "SchedulerChanged"),
        ({"action": "prioritize", "run": "fit-1", "priority": "high"}, "PriorityChanged"),
        ({"action": "archive"}, "ExperimentArchived"),
    ],
)
def test_a_command_becomes_an_event_with_its_author(
    bench: Bench, browser: Browser, fields: dict[str, object], event: str
) -> None:
    """The browser returns to its page."""
    answer = browser.post(ACTIONS, fields | {"next": "/experiments/digits?page=2"}, form=FORM)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/experiments/digits?page=2")
    assert sent_commands(bench) == [(event, "Ada L.")]


def test_one_impossible_model_blocks_the_whole_command(bench: Bench, browser: Browser) -> None:
    """A command for several models is all or nothing."""
    before = len(bench.store.logs["digits"])
    fields = {"action": "stop_model", "run": "fit-1", "model": ["m01", "m07"]}
    answer = browser.post(ACTIONS, fields, form=FORM)
    assert answer.status_code == 409
    assert "m07" in answer.text
    assert "retry the model" in answer.text
    assert len(bench.store.logs["digits"]) == before


def test_program_gets_the_reason_as_json(bench: Bench) -> None:
    """With a bearer token instead of a form token."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    fields = {"action": "resume_run", "run": "fit-1"}
    answer = bench.app.test_client().post(
        ACTIONS, data=fields, headers=headers, base_url="http://127.0.0.1:7080"
    )
    assert answer.status_code == 409
    assert answer.json is not None
    assert answer.json["error"] == "ConflictError"
    assert "fit-1 is running" in answer.json["message"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"action": "explode"}, 400),
        ({}, 400),
        ({"action": "stop_model", "run": "fit-1"}, 400),
        ({"action": "set_scheduler", "run": "fit-1", "scheduler": "<script>"}, 400),
        ({"action": "prioritize", "run": "fit-1", "priority": "highest"}, 400),
        ({"action": "prioritize", "run": "fit-1"}, 400),
        ({"action": "stop_run", "run": "fit-9"}, 404),
        ({"action": "stop_model", "run": "fit-1", "model": "<script>alert(1)</script>"}, 404),
        ({"action": "delete", "confirm": "digits"}, 409),
        ({"action": "resume_run", "run": "fit-1"}, 409),
    ],
)
def test_an_invalid_command_is_refused_with_a_message(
    bench: Bench, browser: Browser, fields: dict[str, object], status: int
) -> None:
    """The message is escaped and nothing changes."""
    before = len(bench.store.logs["digits"])
    answer = browser.post(ACTIONS, fields, form=FORM)
    assert answer.status_code == status
    assert "<script>alert" not in answer.text
    assert len(bench.store.logs["digits"]) == before


def test_deletion_requires_the_typed_name(bench: Bench, browser: Browser) -> None:
    """The page lists the loss; a wrong name deletes nothing."""
    bench.store.add(finished_story())
    page = browser.get("/experiments/digits/delete").text
    assert "This cannot be undone" in page
    wrong = browser.post(
        ACTIONS, {"action": "delete", "confirm": "Digits"}, form="/experiments/digits/delete"
    )
    assert wrong.status_code == 409
    assert "nothing was deleted" in wrong.text
    assert sent_commands(bench) == [("RunFinished", "")]
    right = browser.post(
        ACTIONS, {"action": "delete", "confirm": "digits"}, form="/experiments/digits/delete"
    )
    assert (right.status_code, right.headers["Location"]) == (303, "/experiments")
    assert sent_commands(bench) == [("DeletionRequested", "Ada L.")]
    assert 'name="confirm"' not in browser.get("/experiments/digits/delete").text
