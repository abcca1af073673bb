"""The stacks button asks a sub-epoch's process for its stack and opens its log."""

from __future__ import annotations

import re

import pytest

from cerebro.errors import ConflictError
from dispatcher.logs import stacks
from tests.dispatcher.fakes import Bench
from tests.dispatcher.stories import running_story

SUB_EPOCH = "fit-1/train/m05/e1/p0"
ADDRESS = "/experiments/digits/stacks"
PAGE = "/experiments/digits/models/m05"


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.add(running_story())
    return bench


def test_the_button_leads_to_the_log(bench: Bench) -> None:
    """A model that is not running has no button."""
    browser = bench.signed_in()
    form = re.search(rf'<form method="post" action="{ADDRESS}".*?</form>', browser.get(PAGE).text, re.S)  # fmt: skip
    assert form is not None
    assert f'value="{SUB_EPOCH}"' in form[0]
    answer = browser.post(ADDRESS, {"task": SUB_EPOCH}, form=PAGE)
    assert answer.status_code == 303
    assert answer.headers["Location"] == f"/experiments/digits/logs?task={SUB_EPOCH}&attempt=1"
    assert ADDRESS not in browser.get("/experiments/digits/models/m00").text


def test_impossible_requests_for_stacks_are_explained(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sub-epoch, an ended sub-epoch, and a worker that does not answer."""
    browser = bench.signed_in()
    assert browser.post(ADDRESS, {"task": ""}, form=PAGE).status_code == 400
    bench.store.problems["request_stacks"] = ConflictError("it does not run now")
    answer = browser.post(ADDRESS, {"task": SUB_EPOCH}, form=PAGE)
    assert (answer.status_code, "it does not run now" in answer.text) == (409, True)
    bench.store.problems, bench.store.told_stacks = {}, None
    monkeypatch.setattr(stacks, "_ANSWER_S", 0.0)
    answer = browser.post(ADDRESS, {"task": SUB_EPOCH}, form=PAGE)
    assert (answer.status_code, "worker-0 has not said" in answer.text) == (503, True)
