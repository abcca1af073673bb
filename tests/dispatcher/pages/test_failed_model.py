"""The page of a failed model: the cause first, the user's line, and what failures of this kind share."""

from __future__ import annotations

import pytest

from cerebro.contract.events import ModelRetried
from dispatcher.models.failed import Frame, user_frame
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.pages.seen import text_of
from tests.dispatcher.stories import Story

TRACEBACK = """Traceback (most recent call last):
  File "/code/digits/spec.py", line 31, in train_batch
    loss = self.loss(model(batch), batch.y)
           ^^^^^^^^^^^^
  File "/usr/lib/python3/dist-packages/torch/nn/functional.py", line 3029, in cross_entropy
    return torch._C._nn.cross_entropy_loss(input, target)
ValueError: shapes differ
"""


@pytest.fixture
def story(bench: Bench) -> Story:
    """Four models; those with two layers failed for the same reason, before their first epoch ended."""
    story = Story("digits")
    story.workers_join()
    story.etl()
    story.fit(models=4)
    story.train("m00", 1)
    for model in ("m01", "m03"):
        story.fail(f"fit-1/train/{model}/e1/p0", "worker-0", "ValueError: shapes differ", TRACEBACK)
    bench.store.add(story)
    return story


def test_the_line_of_user_code_is_found() -> None:
    """The innermost one, above frames of libraries."""
    expected = Frame(
        file="/code/digits/spec.py",
        line=31,
        function="train_batch",
        code="loss = self.loss(model(batch), batch.y)",
    )
    assert user_frame(TRACEBACK) == expected
    assert user_frame("Traceback\n  ValueError") is None
    notebook = 'Traceback:\n  File "<ipython-input-3-a>", line 2\nSyntaxError: invalid syntax'
    assert user_frame(notebook) == Frame(file="<ipython-input-3-a>", line=2, function="", code="")


@pytest.mark.usefixtures("story")
def test_the_page_of_a_failed_model_starts_with_the_cause(browser: Browser) -> None:
    page = text_of(browser.get("/experiments/digits/models/m01").text)
    cause = page.index("user error: ValueError: shapes differ")
    assert cause < page.index("Raised by your code in /code/digits/spec.py , line 31, in train_batch")
    assert cause < page.index("Compute")
    assert "2 models failed for this reason. All of them have layers = 2 ; other models don't." in page


@pytest.mark.usefixtures("story")
def test_a_model_that_failed_early_shows_no_empty_parts(browser: Browser) -> None:
    page = browser.get("/experiments/digits/models/m01").text
    assert "data-figure" not in page
    assert "No epoch is complete yet" not in text_of(page)
    assert "data-figure" in browser.get("/experiments/digits/models/m00").text


@pytest.mark.usefixtures("story")
def test_all_failures_of_a_kind_are_retried_by_one_button(bench: Bench, browser: Browser) -> None:
    page = browser.get("/experiments/digits/models/m03").text
    assert "Retry all 2 of this kind" in page
    form = {"action": "retry_model", "run": "fit-1", "model": ["m01", "m03"]}
    assert browser.post("/experiments/digits/actions", form).status_code == 303
    retried = [event.model for event in bench.store.logs["digits"] if isinstance(event, ModelRetried)]
    assert retried == ["m01", "m03"]
